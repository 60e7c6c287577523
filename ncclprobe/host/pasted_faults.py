"""Faults that pasted text states and that no fact holds: a tool that finds no device, a service that is off, a plugin
that is asked for and absent.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.host import FAULTS, Question

_BUILT_IN = ("", "ib", "socket", "none")
_OF_PLUGINS = r"ofi|efa|/gib\b|libnccl-(?:net|tuner)|nccl_rdma_sharp|fastrak|tcpx|spcx"
_GONE = re.compile(
    r"(?:ls|cat|stat|find): (?:cannot (?:access|stat) )?['\"‘]?"
    rf"(/\S{{0,120}}(?:{_OF_PLUGINS})\S{{0,120}}?)['\"’]?: No such",
    re.IGNORECASE,
)
_SEARCH = re.compile(rf"\b(?:ldconfig|find|rpm|dpkg)\b.{{0,120}}(?:nccl|{_OF_PLUGINS})", re.IGNORECASE)
_IMAGE = re.compile(
    r"\b(?:nvcr\.io/nvidia/(?:pytorch|cuda|tensorflow|jax)|pytorch/pytorch|nvidia/cuda|rayproject/ray)[\w./-]{0,40}:[\w.-]{1,60}"
)
_BROUGHT = re.compile(rf"(?:-v|--volume|--mount|mountPath|container-mounts|LD_LIBRARY_PATH|RUN|COPY)\b.{{0,200}}(?:{_OF_PLUGINS}|/opt/amazon|/usr/local/gib)")  # fmt: skip  # noqa: E501
_NO_DEVICE = re.compile(
    r"fi_getinfo: -61\b|No IB devices found|ls: cannot access '?/dev/infiniband/?'?: No such|^no RDMA devices",
    re.IGNORECASE,
)
_WITH_FABRIC = re.compile(
    r"\b(?:p4de?|p5\w{0,2}|p6-\w{4,5})\.|\bnd\d{2}|\b(?:dgx|hgx)\b|bm\.gpu|\ba3-ultra|\ba4x?-|\bgb[23]00|infiniband|\broce\b",
    re.IGNORECASE,
)
"""Machines with an RDMA fabric."""
_PLAIN_GPUS = re.compile(r"\b(?:L40S?|L4|A10G?|T4|RTX|GeForce)\b|\b[AH]\d00 (?:80GB )?PCIe|\bH[12]00 NVL\b")
"""GPUs without NVSwitches, which need no fabric manager."""
_FORCED = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "FI_PROVIDER")
_CRC = re.compile(r"\s{0,8}Link (\d{1,2}): (Replay|CRC|Recovery) Errors: (\d{1,18})")
_MANY = 100
_SPEEDS = re.compile(r"Settings for ([\w.@-]{1,32}):|Speed: (\d{1,7})Mb/s|Link detected: (no)")
_MTU = re.compile(r"\s{0,40}(active_mtu|link_layer):\s{0,40}(\w{1,12})")


def faults(lines: Sequence[str], variables: Mapping[str, str | None]) -> dict[Question, str]:
    """Return the faults that a text states, by check.

    >>> json.loads(faults(["$ ibv_devinfo", "No IB devices found"], {})[FAULTS])[0]["id"]
    'ib.state'
    """
    found = [
        *_missing_plugins(lines, variables),
        *_no_device(lines, variables),
        *_stopped_services(lines),
        *_nvlink_errors(lines),
    ]
    found += [*_slow_interfaces(lines), *_small_mtu(lines)]
    return {FAULTS: json.dumps(found)} if found else {}


def _fault(check: str, subject: str, message: str, remedy: str, severity: str = "fail") -> dict[str, str]:
    return {"id": check, "subject": subject, "message": message, "remedy": remedy, "severity": severity}


def _missing_plugins(lines: Sequence[str], variables: Mapping[str, str | None]) -> Iterator[dict[str, str]]:
    """Report a requested plugin that the text shows to be missing, or that an image may lack."""
    asked = {name: variables.get(name) or "" for name in ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN")}
    named = next((f"{name}={value}" for name, value in asked.items() if value.lower() not in _BUILT_IN), "")
    text = "\n".join(lines)
    if not named or _BROUGHT.search(text) or re.search(_OF_PLUGINS, variables.get("LD_LIBRARY_PATH") or ""):
        return
    remedy = "install the plugin in the image, or mount it, and put its folder on LD_LIBRARY_PATH"
    gone = next((found[1] for line in lines if (found := _GONE.match(line.strip()))), "")
    empty = next((line for line in _without_plugin(lines)), "")
    if gone or empty:
        where = f"{gone} does not exist" if gone else f"`{empty}` lists no plugin"
        severity = "fail" if named.startswith("NCCL_NET=") else "warn"  # NCCL goes on without the others
        yield _fault("env.libraries", named, f"asks for a plugin that is not there: {where}", remedy, severity)
    elif (image := _IMAGE.search(text)) and not re.search(r"libnccl-net|libnccl-tuner", text):
        message = f"asks for a plugin, and it is unknown if the image {image[0]} has it"
        yield _fault("env.libraries", named, message, remedy, "unknown")


def _without_plugin(lines: Sequence[str]) -> Iterator[str]:
    """Yield each command that looks for plugins and prints none."""
    command, listed = "", False
    for line in [*lines, "$ "]:
        if re.match(r"[\w.@:~/\[\] -]{0,60}[$#>] ?", line):
            if command and not listed:
                yield command
            searches = _SEARCH.search(line)
            command, listed = (re.sub(r"^[^$#>]{0,60}[$#>] ?", "", line) if searches else ""), False
        elif command:
            listed = listed or bool(re.search(r"libnccl-(?:net|tuner)|ofi|gib/", line))


def _no_device(lines: Sequence[str], variables: Mapping[str, str | None]) -> Iterator[dict[str, str]]:
    line = next((line.strip() for line in lines if _NO_DEVICE.search(line)), "")
    forced = any(variables.get(name) for name in _FORCED)
    if line and (forced or any(map(_WITH_FABRIC.search, lines))):
        message = "no RDMA device is visible here, and NCCL uses TCP between nodes"
        remedy = "give the container /dev/infiniband, or load the NIC's driver; then run ibv_devinfo again"
        yield _fault("ib.state", "RDMA devices", f"{message} ({line[:80]})", remedy, "fail" if forced else "warn")


_OFF = re.compile(r"(?:inactive|failed|dead)$")


def _stopped_services(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report a fabric manager that is not running, as ``systemctl is-active`` prints it."""
    if any(map(_PLAIN_GPUS.search, lines)):
        return
    for number, line in enumerate(lines):
        units = re.search(r"systemctl is-active ([\w@. -]{1,200})$", line)
        if units and "fabricmanager" in units[1]:
            at = next(at for at, unit in enumerate(units[1].split()) if "fabricmanager" in unit)
            state = lines[number + 1 + at].strip() if number + 1 + at < len(lines) else ""
            if _OFF.match(state):
                message = f"is {state}: GPUs behind NVSwitches do not start without the fabric manager"
                remedy = "systemctl enable --now nvidia-fabricmanager"
                yield _fault("nvl.fabric", "nvidia-fabricmanager", message, remedy)


def _nvlink_errors(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the links whose errors ``nvidia-smi nvlink -e`` counts."""
    gpu, counts = "", Counter[str]()
    for line in lines:
        if head := re.match(r"\s{0,4}GPU (\d{1,3}): ", line):
            gpu = f"GPU{head[1]}"
        elif (
            gpu
            and (found := _CRC.match(line))
            and (int(found[3]) >= _MANY or (found[2] == "Recovery" and int(found[3])))
        ):
            counts[f"{gpu} link {found[1]}"] += int(found[3])
    for link, count in list(counts.items())[:4]:
        remedy = "reset the GPUs at both ends, and have the board or bridge examined if the counter grows again"
        yield _fault("nvl.links", link, f"counts {count} errors of its NVLink", remedy, "warn")


def _slow_interfaces(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield interfaces that are slower than most others of ``ethtool``, or have no link."""
    name, speeds = "", dict[str, int]()
    for line in lines:
        found = _SPEEDS.match(line.strip())
        if found and found[1]:
            name = found[1]
        elif found and name and found[2]:
            speeds[name] = int(found[2])
        elif found and name:
            yield _fault(
                "ib.state", name, "has no link", "reseat or replace the cable, and check the switch's end", "warn"
            )
    if len({*speeds.values()}) == 1:
        yield _fault("ib.rate", "", "Every interface runs at the rate of its siblings.", "", "pass")
    usual, times = next(iter(Counter(speeds.values()).most_common(1)), (0, 0))
    for slow, speed in speeds.items():
        if speed < usual and times >= _SIBLINGS:
            message = f"runs at {speed // 1000} Gb/s, {times} of {len(speeds)} others at {usual // 1000} Gb/s"
            yield _fault("ib.rate", slow, message, "reseat or replace the cable or transceiver", "warn")


_SIBLINGS = 2
_SMALLEST = 4096


def _small_mtu(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report a RoCE port with a small MTU, as ``ibv_devinfo`` shows it."""
    size = ""
    for line in lines:
        found = _MTU.match(line)
        if found and found[1] == "active_mtu":
            size = found[2]
        elif found and found[2] == "Ethernet" and size.isdecimal() and int(size) < _SMALLEST:
            message = f"RoCE packets have {size} bytes, and the port could send {_SMALLEST}"
            yield _fault("ib.roce", "active_mtu", message, "set the interface's MTU to 9000 on every host", "warn")
            return
