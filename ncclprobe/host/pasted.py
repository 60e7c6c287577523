"""Text that people paste, turned into the answers that a machine would have given.

    $ ibstat                           ncclprobe doctor ibstat.txt env.txt
    $ env

Each form is known by its own lines, so that one file may hold several, with prompts between them. What a paste shows
becomes answers of a capture, and the collectors read those as they read any; what it does not show stays unknown and
advisory. All pastes of one call describe one machine.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from itertools import pairwise

from ncclprobe.host import Question
from ncclprobe.model.errors import HostError, Missing

Answers = dict[Question, str | HostError]
_NO_FILE = Missing("no file of settings was pasted")
NO_SETTINGS: Answers = {("env",): "{}", ("home",): _NO_FILE, ("conf", "/etc/nccl.conf"): _NO_FILE}
"""What devices are judged with if no settings were pasted: NCCL's defaults."""

_IB, _NET = "/sys/class/infiniband", "/sys/class/net"
_MOST_LINES = 20_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,120}")
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}m")
_STATES = {"down": 1, "init": 2, "initializing": 2, "armed": 3, "active": 4}
_PHYSICAL = {"sleep": 1, "polling": 2, "disabled": 3, "training": 4, "linkup": 5, "linkerrorrecovery": 6}
_LANE_GBPS = ((100, "NDR"), (50, "HDR"), (25, "EDR"), (14, "FDR"), (10, "QDR"), (5, "DDR"), (2.5, "SDR"))
_SETTINGS_LEAST = 3
"""One line of so many must be a setting: fewer stand in any log or script."""
_LIMITS = {"(-l)": ("RLIMIT_MEMLOCK", 1024), "(-n)": ("RLIMIT_NOFILE", 1), "(-u)": ("RLIMIT_NPROC", 1)}


def answers(text: str) -> Answers | None:
    """Return what the forms in a text show, as questions and answers of a capture; None: no form is recognised."""
    lines = _bare([_COLOURS.sub("", line).rstrip("\r ") for line in text.splitlines()[:_MOST_LINES]])
    found: Answers = {}
    for read in (_ibstat, _devinfo, _query, _list, _matrix, _nvlinks, _addresses, _limits, _settings):
        for question, answer in read(lines).items():
            found.setdefault(question, answer)
    return found or None


def _bare(lines: list[str]) -> list[str]:
    """Return lines without what a mail, `srun -l` or `kubectl logs --timestamps` put before each of them."""
    for prefix in (r">[> ]*", r"\d{1,6}: ", r"\d{4}-\d\d-\d\dT[0-9:.]{8,20}Z? ", r"# "):
        written = [line for line in lines if line.strip()]
        if written and all(re.match(prefix, line) for line in written):
            lines = [re.sub(f"^{prefix}", "", line) for line in lines]
    return lines


def joined(parts: Mapping[str, Answers]) -> tuple[Answers, list[str]]:
    """Return the answers of all files, by name, as one machine's, and a line for each contradiction between two."""
    whole: Answers = {}
    source: dict[Question, str] = {}
    odd = []
    for name, own in parts.items():
        for question, answer in own.items():
            if question in whole and str(whole[question]) != str(answer):
                asked = " ".join(map(str, question))
                odd.append(f"{source[question]} and {name} differ in {asked}")
                continue
            whole[question], source[question] = answer, name
    return whole, odd


def _fields(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield indentation, name and value of lines such as ``  Rate: 400`` and ``state:  PORT_ACTIVE (4)``."""
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            yield len(line) - len(line.lstrip()), name.strip(), value.strip()


_OF_IBSTAT = {
    "state": "state",
    "physical state": "phys_state",
    "phys state": "phys_state",
    "rate": "rate",
    "base lid": "lid",
    "link layer": "link_layer",
    "link_layer": "link_layer",
}
"""Names of ibstat and ibstatus, and the kernel's files of a port."""


def _ibstat(lines: Sequence[str]) -> Answers:
    """Read ``ibstat``, or ``ibstatus``.

    >>> _ibstat(["CA 'mlx5_0'", "  Port 1:", "    State: Down", "    Rate: 400"])[("list", "/sys/class/infiniband")]
    '["mlx5_0"]'
    """
    ports: dict[str, dict[int, dict[str, str]]] = {}
    of_device: Answers = {}
    device, number = "", 0
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] == "CA" and words[1].startswith("'"):
            device, number = words[1].strip("'"), 0
            ports[device] = {}
        elif device and len(words) == 2 and words[0] == "Port" and words[1].rstrip(":").isdecimal():
            number = int(words[1].rstrip(":"))
            ports[device][number] = {}
        elif words[:2] == ["Infiniband", "device"] and len(words) > 4 and words[4].isdecimal():  # of ibstatus
            device, number = words[2].strip("'"), int(words[4])
            ports.setdefault(device, {})[number] = {}
        elif device and ":" in line:
            name, _, value = line.partition(":")
            file = {"CA type": "hca_type", "Firmware version": "fw_ver"}.get(name.strip())
            if number:
                ports[device][number][name.strip().lower()] = value.strip()
            elif file:
                of_device["read", f"{_IB}/{device}/{file}"] = value.strip()
    found = _devices(ports, _OF_IBSTAT)
    return found | of_device if found else {}


def _devinfo(lines: Sequence[str]) -> Answers:
    """Read ``ibv_devinfo``, with or without ``-v``."""
    ports: dict[str, dict[int, dict[str, str]]] = {}
    of_device: Answers = {}
    device, number = "", 0
    for _, name, value in _fields(lines):
        if name == "hca_id":
            device, number = value.split()[0] if value else "", 0
            ports[device] = {}
        elif device and name == "port" and value.isdecimal():
            number = int(value)
            ports[device][number] = {}
        elif device and not number and name in ("fw_ver", "board_id"):
            of_device["read", f"{_IB}/{device}/{name}"] = value
        elif device and number:
            ports[device][number][name] = value
    found = _devices(ports, {"state": "state", "port_lid": "lid", "link_layer": "link_layer"})
    return found | of_device if found else {}


def _devices(ports: Mapping[str, Mapping[int, Mapping[str, str]]], names: Mapping[str, str]) -> Answers:
    found: Answers = {}
    whole = {device: of for device, of in ports.items() if device and of}
    if not whole:
        return {}
    found["list", _IB] = json.dumps(list(whole))
    for device, of in whole.items():
        found["list", f"{_IB}/{device}/ports"] = json.dumps([str(number) for number in of])
        for number, fields in of.items():
            for name, file in names.items():
                if (value := _of_port(file, fields.get(name, ""))) is not None:
                    found["read", f"{_IB}/{device}/ports/{number}/{file}"] = value
    return found


def _of_port(file: str, value: str) -> str | None:
    """Return what the kernel's file of a port would hold for a value of a tool; None: the tool does not say."""
    bare = value.partition(": ")[2] if value[:1].isdecimal() and ": " in value else value  # `4: ACTIVE` of ibstatus
    word = bare.partition(" ")[0].removeprefix("PORT_")
    if file == "state" and (number := _STATES.get(word.lower())):
        return f"{number}: {'INIT' if number == 2 else word.upper()}"
    if file == "phys_state" and (number := _PHYSICAL.get(word.lower())):
        return f"{number}: {word}"
    if file == "rate" and word.replace(".", "", 1).isdecimal() and (rate := float(word)) > 0:
        lane, name = next((each for each in _LANE_GBPS if rate / 4 >= 0.98 * each[0]), _LANE_GBPS[-1])
        lanes = max(1, round(rate / lane))
        return f"{rate:g} Gb/sec ({lanes}X {name})"
    if file == "lid" and word.removeprefix("0x").isalnum() and word[:1].isdecimal():
        return word if word.startswith("0x") else hex(int(word)) if word.isdecimal() else None
    return word if file == "link_layer" and word in ("InfiniBand", "Ethernet") else None


def _list(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi -L``, alone or as the headings of ``nvidia-smi nvlink -s``."""
    gpus: dict[int, tuple[str, str]] = {}
    for line in lines:
        head, _, rest = line.strip().partition(": ")
        words = head.split()
        if len(words) == 2 and words[0] == "GPU" and words[1].isdecimal() and "(UUID: " in rest:
            name, _, uuid = rest.partition(" (UUID: ")
            gpus[int(words[1])] = name.strip(), uuid.rstrip(") ")
    if sorted(gpus) != list(range(len(gpus))) or not gpus:
        return {}
    found: Answers = {("nvml", "nvmlDeviceGetCount"): str(len(gpus))}
    for index, (name, uuid) in gpus.items():
        found["nvml", "nvmlDeviceGetName", index] = json.dumps(name)
        found["nvml", "nvmlDeviceGetUUID", index] = json.dumps(uuid)
    return found


_ENABLED = {"Enabled": 1, "Disabled": 0}
_COMPUTE = {"Default": 0, "Exclusive_Process": 3, "Prohibited": 2}


def _query(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi -q``: names, bus, modes, PCIe link and row remapping of each GPU, and the driver."""
    if not any("NVSMI LOG" in line for line in lines):
        return {}
    found: Answers = {}
    count, path = 0, list[tuple[int, str]]()
    for line in lines:
        words = line.split()
        if line.startswith("GPU ") and len(words) == 2 and words[1].count(":") == 2:
            found["nvml", "nvmlDeviceGetPciInfo", count] = json.dumps({"busId": words[1]})
            count, path = count + 1, []
            continue
        indent = len(line) - len(line.lstrip())
        name, colon, value = line.partition(" : ")
        path = [each for each in path if each[0] < indent] + [(indent, name.strip())]
        if colon:
            names = tuple(each for _, each in path[-2:])
            found.update(_of_query(names, value.strip(), count - 1))
    return found | {("nvml", "nvmlDeviceGetCount"): str(count)} if count else {}


def _of_query(path: tuple[str, ...], value: str, gpu: int) -> Answers:
    """Return what one line of ``nvidia-smi -q`` answers; `path`: its heading and its name."""
    name, heading = path[-1], path[0]
    if gpu < 0:
        if name == "Driver Version":
            return {("nvml", "nvmlSystemGetDriverVersion"): json.dumps(value)}
        parts = value.split(".")
        whole = name == "CUDA Version" and len(parts) == 2 and all(part.isdecimal() for part in parts)
        return (
            {("nvml", "nvmlSystemGetCudaDriverVersion"): str(int(parts[0]) * 1000 + int(parts[1]) * 10)}
            if whole
            else {}
        )
    if name == "Product Name":
        return {("nvml", "nvmlDeviceGetName", gpu): json.dumps(value)}
    if name == "GPU UUID":
        return {("nvml", "nvmlDeviceGetUUID", gpu): json.dumps(value)}
    if name == "Persistence Mode" and value in _ENABLED:
        return {("nvml", "nvmlDeviceGetPersistenceMode", gpu): str(_ENABLED[value])}
    if name == "Compute Mode" and value in _COMPUTE:
        return {("nvml", "nvmlDeviceGetComputeMode", gpu): str(_COMPUTE[value])}
    if heading in ("ECC Mode", "MIG Mode") and name == "Current" and value in _ENABLED:
        function = "nvmlDeviceGetEccMode" if heading == "ECC Mode" else "nvmlDeviceGetMigMode"
        return {("nvml", function, gpu): json.dumps([_ENABLED[value]] * 2)}
    digits = value.removesuffix("x")
    if heading in ("PCIe Generation", "Link Width") and name in ("Max", "Current") and digits.isdecimal():
        part = "Generation" if heading == "PCIe Generation" else "Width"
        which = "Max" if name == "Max" else "Curr"
        return {("nvml", f"nvmlDeviceGet{which}PcieLink{part}", gpu): digits}
    return {}


def _block(lines: Sequence[str], begins: Callable[[str], bool], goes_on: Callable[[str], bool]) -> str:
    """Return the first line that begins a form, and those after it that belong to it."""
    for number, line in enumerate(lines):
        if begins(line):
            rest = lines[number + 1 :]
            end = next((at for at, each in enumerate(rest) if each.strip() and not goes_on(each)), len(rest))
            return "\n".join([line, *rest[:end]]) + "\n"
    return ""


def _matrix(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi topo -m`` as it is: its own reader knows its damages."""
    first = next((line for line in lines if "GPU0" in line.split()[:1] and "X" in line.split()[1:2]), "")
    if not first:
        return {}

    def heads(line: str) -> bool:
        return line.split()[:1] == ["GPU0"] and line.split()[1:2] != ["X"]

    def goes_on(line: str) -> bool:
        words = line.split()
        return words[0].startswith(("GPU", "NIC", "mlx", "Legend", "NIC")) or words[0] in _LEGEND or "=" in line

    text = _block(lines, heads, goes_on)
    return {("run", "nvidia-smi", "topo", "-m"): text} if text else {}


_LEGEND = frozenset(("X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#", "PXN", "Legend:", "Where"))


def _nvlinks(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi nvlink -s`` as it is."""
    kept = [line for line in lines if line.strip().startswith("Link ") or line.startswith(("GPU ", "NVML: "))]
    if not any("GB/s" in line or "inactive" in line for line in kept):
        return {}
    return {("run", "nvidia-smi", "nvlink", "-s"): "\n".join(kept) + "\n"}


def _addresses(lines: Sequence[str]) -> Answers:
    """Read ``ip -br addr``: a line for each interface with its state and addresses."""
    addresses: dict[str, list[dict[str, object]]] = {}
    stats: dict[str, dict[str, object]] = {}
    found: Answers = {}
    for line in lines:
        words = line.split()
        if len(words) < 2 or words[1] not in ("UP", "DOWN", "UNKNOWN", "LOWERLAYERDOWN", "DORMANT"):
            continue
        name, up = words[0].partition("@")[0], words[1] in ("UP", "UNKNOWN")
        flags = ["up", *(["running"] if up else []), *(["loopback"] if name == "lo" else [])]
        stats[name] = {
            "isup": up,
            "duplex": 0,
            "speed": 0,
            "mtu": 65536 if name == "lo" else 1500,
            "flags": ",".join(flags),
        }
        addresses[name] = [row for each in words[2:] if (row := _address(each))]
        found["read", f"{_NET}/{name}/ifindex"] = str(len(stats))
    if not stats:
        return {}
    return found | {("psutil", "net_if_addrs"): json.dumps(addresses), ("psutil", "net_if_stats"): json.dumps(stats)}


def _address(text: str) -> dict[str, object] | None:
    try:
        address = ip_interface(text)
    except ValueError:
        return None
    family = 2 if address.version == 4 else 10
    return {
        "family": family,
        "address": str(address.ip),
        "netmask": str(address.netmask),
        "broadcast": None,
        "ptp": None,
    }


def _limits(lines: Sequence[str]) -> Answers:
    """Read ``ulimit -a``, whose units stand in the line: ``max locked memory  (kbytes, -l) 65536``."""
    found: Answers = {}
    for line in lines:
        head, bracket, value = line.rpartition(")")
        unit = head.rpartition("(")[2].split()
        if not bracket or not unit or f"({unit[-1]})" not in _LIMITS:
            continue
        name, factor = _LIMITS[f"({unit[-1]})"]
        if value.strip() == "unlimited":
            found["rlimit", name] = "[null, null]"
        elif value.strip().isdecimal():
            found["rlimit", name] = json.dumps([int(value) * factor] * 2)
    return found


def _settings(lines: Sequence[str]) -> Answers:
    """Read settings: ``env``, ``export``, ``docker run -e``, ``mpirun -x``, and the ``env:`` of a manifest."""
    found: dict[str, str] = {}
    named, told, written = "", 0, 0
    for line in lines:
        words = line.strip().removeprefix("- ")
        written += bool(words)
        before = len(found)
        if words.startswith("name:"):
            named = _unquoted(words.removeprefix("name:"))
        elif named and words.startswith("value:"):
            found[named], named = _unquoted(words.removeprefix("value:")), ""
        else:
            found.update(_assigned(line))
        told += len(found) > before or words.startswith(("name:", "value:", "env:", "#"))
    if _SETTINGS_LEAST * told < written:  # a log that quotes a few
        return {}
    kept = {name: value for name, value in found.items() if _NAME.fullmatch(name)}
    return {**NO_SETTINGS, ("env",): json.dumps(kept)} if kept else {}


def _assigned(line: str) -> Iterator[tuple[str, str]]:
    """Yield the assignments of a line: one of ``env`` or ``export``, or each behind an ``-e`` or ``-x``."""
    words = line.strip().lstrip("$# ").split()
    behind = [word for option, word in pairwise(words) if option in ("-e", "-x", "--env", "--export")]
    if behind:
        for each in behind:
            name, equals, value = each.partition("=")
            if equals:
                yield name, _unquoted(value)
        return
    if words[:1] == ["export"]:
        words = words[1:]
    name, equals, value = " ".join(words).partition("=")
    if equals and _NAME.fullmatch(name) and name.upper() == name:
        yield name, _unquoted(value)


def _unquoted(text: str) -> str:
    value = text.strip().rstrip("\\").strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
