"""Output of NVIDIA's, RDMA and kernel tools, each turned into answers of a capture.

A reader gets the lines of a whole text, finds its own form among them, and returns nothing if it is not there.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from itertools import pairwise
from types import MappingProxyType

from ncclprobe.host.pasted_containers import limits
from ncclprobe.host.pasted_gpus import Answers, csv, listed, query, table
from ncclprobe.model.errors import Missing

_IB, _NET = "/sys/class/infiniband", "/sys/class/net"
_STATES = {"down": 1, "init": 2, "initializing": 2, "armed": 3, "active": 4}
_PHYSICAL = {
    "sleep": 1,
    "polling": 2,
    "disabled": 3,
    "training": 4,
    "linkup": 5,
    "link_up": 5,
    "linkerrorrecovery": 6,
}
_LANE_GBPS = ((200, "XDR"), (100, "NDR"), (50, "HDR"), (25, "EDR"), (14, "FDR"), (10, "QDR"), (5, "DDR"), (2.5, "SDR"))


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
"""Kernel file of a port by field of ibstat and ibstatus."""


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
        elif line.startswith("hca_id"):  # of ibv_devinfo
            device = ""
        elif device and ":" in line:
            name, _, value = line.partition(":")
            if not number and name.strip() in ("State", "Rate"):  # a filter took the line of the port
                number = 1
                ports[device][number] = {}
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
        elif number:
            ports[device][number][name] = value
    for fields in (port for of in ports.values() for port in of.values()):
        _complete(fields)
    names = {
        "state": "state",
        "phys_state": "phys_state",
        "rate": "rate",
        "port_lid": "lid",
        "link_layer": "link_layer",
    }
    found = _devices(ports, names)
    return found | of_device if found else {}


_RDMA_LINK = re.compile(
    r"(?:link )?([\w.-]{1,40})/(\d{1,2}):?\s(.{0,120}\b)?state (\w{1,12}) physical_state (\w{1,24})"
)
_OF_NETDEV = re.compile(r"([\w.-]{1,40}) port (\d{1,2}) ==> ([\w.-]{1,40}) \((Up|Down)\)")


def _port_lines(lines: Sequence[str]) -> Answers:
    """Read ``rdma link`` and ``ibdev2netdev``, which print a line for each port.

    >>> _port_lines(["mlx5_1 port 1 ==> eth1 (Down)"])[("read", "/sys/class/infiniband/mlx5_1/ports/1/state")]
    '1: DOWN'
    """
    ports: dict[str, dict[int, dict[str, str]]] = {}
    for line in map(str.strip, lines):
        if found := _RDMA_LINK.match(line):
            layer = "InfiniBand" if "subnet_prefix" in line else "Ethernet"
            fields = {"state": found[4], "phys_state": found[5], "link_layer": layer}
        elif found := _OF_NETDEV.match(line):
            state = "ACTIVE" if found[4] == "Up" else "DOWN"
            fields = {"state": state, "link_layer": "InfiniBand" if found[3].startswith("ib") else "Ethernet"}
        else:
            continue
        ports.setdefault(found[1], {})[int(found[2])] = fields
    return _devices(ports, {name: name for name in ("state", "phys_state", "link_layer")})


_LISTS_NICS = re.compile(r"[$#>] (?:sudo )?ls (?:-1 )?/sys/class/infiniband/?$|[$#>] ibstat -l$|[$#>] ibv_devices$")
_NIC = re.compile(r"(?:mlx[45]|rdmap|ibp|roce|bnxt_re|irdma|efa|hfi1)[\w.-]{0,30}")


def _names_of_nics(lines: Sequence[str]) -> Answers:
    """Read NIC names from ``ls /sys/class/infiniband``, ``ibstat -l`` or ``ibv_devices``."""
    found: list[str] = []
    inside = False
    for line in lines:
        words = line.split()
        if _LISTS_NICS.search(line.strip()):
            inside = True
        elif inside and words and all(map(_NIC.fullmatch, words[:1])):
            found += [word for word in words if _NIC.fullmatch(word)]
        elif words and words[0] not in ("device", "------"):
            inside = False
    ports: Answers = {("list", f"{_IB}/{each}/ports"): '["1"]' for each in found}
    return {("list", _IB): json.dumps(list(dict.fromkeys(found))), **ports} if found else {}


def _complete(fields: dict[str, str]) -> None:
    """Add derived fields: width and speed give a rate, and a port in INIT has a link."""
    width, speed = fields.get("active_width", ""), fields.get("active_speed", "")
    lanes, lane = width.partition("X")[0], speed.partition(" ")[0]
    if lanes.isdecimal() and lane.replace(".", "", 1).isdecimal():
        fields["rate"] = f"{int(lanes) * float(lane):g}"
    if fields.get("state", "").startswith("PORT_INIT"):
        fields.setdefault("phys_state", "LINK_UP")


def _devices(ports: Mapping[str, Mapping[int, Mapping[str, str]]], names: Mapping[str, str]) -> Answers:
    found: Answers = {}
    whole = {device: of for device, of in ports.items() if of}
    if not whole:
        return {}
    found["list", _IB] = json.dumps(list(whole))
    for device, of in whole.items():
        found["list", f"{_IB}/{device}/ports"] = json.dumps([str(number) for number in of])
        for number, fields in of.items():
            for name, file in names.items():
                if (value := _port_file(file, fields.get(name, ""))) is not None:
                    found["read", f"{_IB}/{device}/ports/{number}/{file}"] = value
    return found


def _port_file(file: str, value: str) -> str | None:
    """Return the content of a port's kernel file for a tool's value; None if the tool does not state it."""
    bare = value.partition(": ")[2] if value[:1].isdecimal() and ": " in value else value  # `4: ACTIVE` of ibstatus
    word = bare.partition(" ")[0].removeprefix("PORT_")
    if file == "state" and (number := _STATES.get(word.lower())):
        return f"{number}: {'INIT' if number == 2 else word.upper()}"
    if file == "phys_state" and (number := _PHYSICAL.get(word.lower())):
        return f"{number}: {'LinkUp' if number == 5 else word}"
    if file == "rate" and word.replace(".", "", 1).isdecimal() and (rate := float(word)) > 0:
        lane, name = next((each for each in _LANE_GBPS if rate / 4 >= 0.98 * each[0]), _LANE_GBPS[-1])
        lanes = max(1, round(rate / lane))
        return f"{rate:g} Gb/sec ({lanes}X {name})"
    if file == "lid" and word.removeprefix("0x").isalnum() and word[:1].isdecimal():
        return word if word.startswith("0x") else hex(int(word)) if word.isdecimal() else None
    return word if file == "link_layer" and word in ("InfiniBand", "Ethernet") else None


def _blocks(lines: Sequence[str], begins: Callable[[str], bool], goes_on: Callable[[str], bool]) -> str:
    """Return each line that begins a form, with the following lines that belong to it."""
    kept: list[str] = []
    inside = False
    for line in lines:
        begun = begins(line)
        inside = begun or (inside and (not line.strip() or goes_on(line)))
        kept += ["", line] if begun and kept else [line] if inside else []
    return "\n".join(kept) + "\n" if kept else ""


def _matrix(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi topo -m`` verbatim, even amid other marks: its own reader repairs it."""
    named = [words for line in lines if "GPU0" in (words := re.split(r"[^\w#]+", line))]
    if {"X" in words for words in named} != {True, False}:  # a row, and the header
        return {}

    def heads(line: str) -> bool:
        return "topo -p2p " in line or (line.split()[:1] == ["GPU0"] and line.split()[1:2] != ["X"])

    def goes_on(line: str) -> bool:
        words = line.replace("|", " ").split() or [""]
        return words[0].startswith(("GPU", "NIC", "mlx", "Legend", "NIC")) or words[0] in _LEGEND or "=" in line

    text = _blocks(lines, heads, goes_on) or "\n".join(lines) + "\n"
    return {("run", "nvidia-smi", "topo", "-m"): text}


_LEGEND = frozenset(("X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#", "PXN", "Legend:", "Where"))


_CUT_LINKS = re.compile(r"nvidia-smi nvlink\b.{0,40}\| ?(?:head|sed)\b")


def _nvlinks(lines: Sequence[str]) -> Answers:
    """Read ``nvidia-smi nvlink -s`` verbatim, without a last GPU that the paste cuts off."""
    gpus: list[list[str]] = []
    for line in lines:
        if line.startswith(("GPU ", "NVML: ")):
            gpus.append([line])
        elif gpus and line.strip().startswith("Link "):
            gpus[-1].append(line)
    short = gpus and 1 < len(gpus[-1]) < max(map(len, gpus))
    if short or (gpus and any(map(_CUT_LINKS.search, lines))):
        gpus.pop()
    linked = [gpu for gpu in gpus if len(gpu) > 1]  # without the lines of `nvidia-smi -L`
    kept = [line for gpu in linked or gpus for line in gpu]
    if not any("GB/s" in line or "inactive" in line for line in kept):
        return {}
    return {("run", "nvidia-smi", "nvlink", "-s"): "\n".join(kept) + "\n"}


_INTERFACE = re.compile(
    r"(?:\d{1,5}: )?([\w.-]{1,32})(?:@[\w.-]{1,32})?: (?:flags=\d{1,6})?<([A-Z0-9_,]{0,200})>\s{1,4}mtu (\d{1,6})"
)
"""Heading of an interface in ``ip addr`` and ``ifconfig``."""


def _addresses(lines: Sequence[str]) -> Answers:
    """Read ``ip addr``, with or without ``-br``, or ``ifconfig``.

    >>> sorted(_addresses(["lo               UNKNOWN        127.0.0.1/8"]))[1]
    ('psutil', 'net_if_stats')
    """
    shown: dict[str, tuple[bool, int, list[str]]] = {}
    name = ""
    for line in lines:
        words = line.split()
        if head := _INTERFACE.match(line):
            name, flags = head[1], head[2].split(",")
            shown[name] = bool({"LOWER_UP", "RUNNING"} & set(flags)), int(head[3]), []
        elif name and words[:1] in (["inet"], ["inet6"]) and len(words) > 1:
            masked = len(words) > 3 and words[2] in ("netmask", "prefixlen")
            shown[name][2].append(f"{words[1]}/{words[3]}" if masked else words[1])
        elif len(words) > 1 and words[1] in ("UP", "DOWN", "UNKNOWN", "LOWERLAYERDOWN", "DORMANT"):  # of -br
            brief = words[0].partition("@")[0]
            shown[brief] = words[1] in ("UP", "UNKNOWN"), 0, words[2:]
    if not any(_address(text) for _, _, own in shown.values() for text in own):  # of `ip link`: no address is shown
        return {}
    stats = {each: _stats(each, up, mtu) for each, (up, mtu, _) in shown.items()}
    addresses = {each: [row for text in own if (row := _address(text))] for each, (_, _, own) in shown.items()}
    indices: Answers = {("read", f"{_NET}/{each}/ifindex"): str(at) for at, each in enumerate(shown, start=1)}
    return indices | {("psutil", "net_if_addrs"): json.dumps(addresses), ("psutil", "net_if_stats"): json.dumps(stats)}


def _stats(name: str, up: bool, mtu: int) -> dict[str, object]:
    flags = ["up", *(["running"] if up else []), *(["loopback"] if name == "lo" else [])]
    return {"isup": up, "duplex": 0, "speed": 0, "mtu": mtu, "flags": ",".join(flags)}


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


_LIMITS = {"-l": ("RLIMIT_MEMLOCK", 1024), "-n": ("RLIMIT_NOFILE", 1), "-u": ("RLIMIT_NPROC", 1)}
_OF_PROC = {"Max locked memory": "RLIMIT_MEMLOCK", "Max open files": "RLIMIT_NOFILE", "Max processes": "RLIMIT_NPROC"}
_OF_FILES = {
    re.compile(r"LimitMEMLOCK=(\d{1,18}|infinity)"): 1,
    re.compile(r"(?:\*|@\w{1,32}|\w{1,32})\s+(?:soft|-)\s+memlock\s+(\d{1,18}|unlimited)"): 1024,
    re.compile(r"ulimit (?:-S ?)?-l (\d{1,18}|unlimited)"): 1024,
}
"""Lines that set the limit of locked memory: in systemd units, limits.conf(5) and scripts."""
_ULIMIT = (
    re.compile(r".{0,60}\((?:[\w -]{1,20}, )?(-[lnu])\)\s+(\d{1,18}|unlimited)"),  # bash
    re.compile(r"(-[lnu]): .{0,60}\s(\d{1,18}|unlimited)"),  # zsh
)


def _limits(lines: Sequence[str]) -> Answers:
    """Read ``ulimit -a`` of bash or zsh, ``ulimit -l`` after its prompt, and ``/proc/PID/limits``."""
    found: Answers = {}
    for line, following in pairwise([*lines, ""]):
        words = line.strip()
        name = next((name for name in _OF_PROC if words.startswith(f"{name}  ")), "")
        asked = re.search(r"(?:^|[$#%>]\s*)ulimit (-[lnu])$", words)
        match = next((match for each in _ULIMIT if (match := each.fullmatch(words))), None)
        for form, factor in _OF_FILES.items():
            if given := form.fullmatch(words):
                limit = _limit(given[1].replace("infinity", "unlimited"), factor)
                found["rlimit", "RLIMIT_MEMLOCK"] = _both([limit, limit])
        if name:
            values = words.removeprefix(name).split()[:2]
            found["rlimit", _OF_PROC[name]] = _both([_limit(each, 1) for each in values])
        elif asked and re.fullmatch(r"\d{1,18}|unlimited", following.strip()):
            resource, factor = _LIMITS[asked[1]]
            found["rlimit", resource] = _both([_limit(following.strip(), factor)] * 2)
        elif match:
            resource, factor = _LIMITS[match[1]]
            found["rlimit", resource] = _both([_limit(match[2], factor)] * 2)
    return {question: answer for question, answer in found.items() if answer}


def _limit(text: str, factor: int) -> int | None:
    """Parse a limit; None if unlimited, negative if unreadable."""
    return int(text) * factor if text.isdecimal() else None if text == "unlimited" else -1


def _both(values: Sequence[int | None]) -> str:
    good = len(values) == 2 and all(value is None or value >= 0 for value in values)
    return json.dumps(list(values)) if good else ""


_IN_UNITS = {"": 1024, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OF_DF = re.compile(
    r"\S{1,80}\s+(?:[a-z]\w{1,12}\s+)?(\d{1,15}(?:\.\d)?)([KMGT]?)\s+\S{1,16}\s+(\d{1,15}(?:\.\d)?)([KMGT]?)\s.{0,8}%\s/dev/shm"
)


_MOUNTED = re.compile(r"^\S{1,40} on /dev/shm type tmpfs \(\S{0,200}?\bsize=(\d{1,15})([kmg]?)\b")


def _df(lines: Sequence[str]) -> Answers:
    """Read the line of /dev/shm in ``df``, with or without ``-h``, or in ``mount``.

    >>> _df(["Filesystem 1K-blocks Used Available Use% Mounted on", "shm 65536 0 65536 0% /dev/shm"])
    {('statvfs', '/dev/shm'): '{"total": 67108864, "available": 67108864}'}
    """
    mounted = next((found for line in lines if (found := _MOUNTED.search(line[:400]))), None)
    if mounted:
        total = int(mounted[1]) * _IN_UNITS[mounted[2].upper()] // (1024 if not mounted[2] else 1)
        return {("statvfs", "/dev/shm"): json.dumps({"total": total, "available": total})}
    rows = [row for line in lines if (row := _OF_DF.fullmatch(line.strip()))]
    if not rows or not any(line.startswith("Filesystem ") for line in lines):
        return {}
    total, available = (int(float(rows[-1][at]) * _IN_UNITS[rows[-1][at + 1]]) for at in (1, 3))
    return {("statvfs", "/dev/shm"): json.dumps({"total": total, "available": available})}


_OF_SHOW_GIDS = re.compile(
    r"([\w.-]{1,40})\s+(\d{1,2})\s+(\d{1,3})\s+([0-9a-f:]{39})\s+(?:[\d.]{7,15}\s+)?v([12])\b\s*(\S{0,40})"
)


def _show_gids(lines: Sequence[str]) -> Answers:
    """Read ``show_gids``: the GIDs of RoCE ports, their type and interface."""
    rows = [row for line in lines if (row := _OF_SHOW_GIDS.match(line.strip()))]
    tables: dict[tuple[str, str], dict[str, str]] = {}
    found: Answers = {}
    for device, port, index, gid, version, netdev in (row.groups() for row in rows):
        folder = f"{_IB}/{device}/ports/{port}"
        tables.setdefault((device, port), {})[index] = gid
        found["read", f"{folder}/gid_attrs/types/{index}"] = f"{'RoCE v2' if version == '2' else 'IB/RoCE v1'}\n"
        found["read", f"{folder}/gid_attrs/ndevs/{index}"] = netdev
        found["read", f"{folder}/link_layer"] = "Ethernet"
    if len(tables) > 1 and len([*tables.values()][-1]) < max(map(len, tables.values())):  # a filter has cut it
        device, port = tables.popitem()[0]
        cut = f"/{device}/ports/{port}/"
        found = {question: answer for question, answer in found.items() if cut not in str(question[1])}
    for (device, port), gids in tables.items():
        ports = [number for name, number in tables if name == device]
        found["list", f"{_IB}/{device}/ports"] = json.dumps(ports)
        found["files", f"{_IB}/{device}/ports/{port}/gids", ":".join(["0000"] * 8)] = json.dumps(gids)
    return found | ({("list", _IB): json.dumps(list(dict.fromkeys(name for name, _ in tables)))} if tables else {})


_NOT_THERE = re.compile(
    r"(?:ls|cat|stat|file): (?:cannot (?:access|stat) )?['\"]?(/[\w./+-]{1,200})['\"]?: No such file or directory"
)


def missing_files(lines: Sequence[str]) -> Answers:
    """Read that ``ls`` or ``cat`` found no file. Logs have such lines too: they do not make a text a paste."""
    found = [match[1] for line in lines if (match := _NOT_THERE.fullmatch(line.strip()))]
    return {(kind, path): Missing("No such file or directory") for path in found for kind in ("read", "stat")}


_MODULE = re.compile(r"(\w{2,40})\s{1,30}\d{3,10}\s{1,4}\d{1,4}\b.{0,400}")
_PEER_MEMORY = {
    "nvidia_peermem": "/sys/module/nvidia_peermem/version",
    "nv_peer_mem": "/sys/kernel/mm/memory_peers/nv_mem/version",
}


_UNAME = re.compile(r"(?:Linux \S{1,80} )?(\d{1,2}\.\d{1,3}\.\d{1,4}-[\w.+-]{2,60})(?: .{0,120})?")


def _kernel(lines: Sequence[str]) -> Answers:
    """Read ``uname -r`` or ``-a``, and the line of NVIDIA's module in /proc/driver/nvidia/version."""
    found: Answers = {}
    for line in map(str.strip, lines):
        if release := _UNAME.fullmatch(line):
            found["uname",] = json.dumps({"hostname": "pasted", "release": release[1], "machine": "x86_64"})
        elif line.startswith("Fabric Manager version is"):
            found["run", "nv-fabricmanager", "--version"] = f"{line}\n"
        elif line.startswith("NVRM version: "):
            found["read", "/proc/driver/nvidia/version"] = f"{line}\n"
    return found


def _lsmod(lines: Sequence[str]) -> Answers:
    """Read ``lsmod``, or what a filter left of it: whether a peer-memory module is among NVIDIA's."""
    modules = {row[1] for line in lines if (row := _MODULE.fullmatch(line.strip()))}
    if not {"nvidia", "nvidia_uvm"} <= modules:
        return {}
    found: Answers = {("read", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"): Missing("not loaded")}
    for name, path in _PEER_MEMORY.items():
        found["read", path] = "" if name in modules else Missing(f"{name} is not loaded")
    return found


FORMS: Mapping[str, Callable[[Sequence[str]], Answers]] = MappingProxyType(
    {
        "ibstat": _ibstat,
        "ibv_devinfo": _devinfo,
        "rdma link": _port_lines,
        "ls /sys/class/infiniband": _names_of_nics,
        "nvidia-smi -q": query,
        "nvidia-smi": table,
        "nvidia-smi -L": listed,
        "nvidia-smi --query-gpu": csv,
        "nvidia-smi topo -m": _matrix,
        "nvidia-smi nvlink -s": _nvlinks,
        "ip -br addr": _addresses,
        "ulimit": _limits,
        "df": _df,
        "show_gids": _show_gids,
        "lsmod": _lsmod,
        "uname": _kernel,
        "container": limits,
    }
)
