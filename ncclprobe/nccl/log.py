"""Parse NCCL's own INFO lines: network, devices, GPUDirect, channels and algorithm that carried the bytes.

The lines are those of NCCL 2.8 to 2.30 (format strings in src/init.cc, src/transport/*.cc, src/graph/*.cc,
src/enqueue.cc). A log is one rank's; lines of several ranks on one stream are separated by their ``host:pid``. A
missing line means unknown, never "no".
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ncclprobe.model.values import Struct

_MOST_LINE = 2048
"""Characters: NCCL truncates its lines at 1023 bytes; a launcher's prefix precedes them."""
_MOST_KEPT = 256
"""Distinct lines of each kind; further ones add nothing new."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?P<host>[^\s:\[\]>]{1,256}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) \[-?\d{1,4}\] "
    r"(?:\S{1,256}:\d{1,6}(?: \([^)]{0,128}\))? )?NCCL (?P<level>INFO|WARN) (?P<message>.*)"
)
_VERSION = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})\S*\+cuda")
_NETWORK = re.compile(r"Using network (.{1,64}?)\s*$")
_SOCKETS = re.compile(r"NET/Socket : Using((?: \[\d+\][^:]+:\S+)+)")
_HCAS = re.compile(r"NET/IB : Using((?: \[\d+\]\S+:\d+/\S+)+)")
_DEVICE = re.compile(r"\[(\d+)\]([^:\s]+)(?::(\d+)/([\w/]+))?")
_CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:\d+ nvls channels, )?\d+ p2p channels")
_HOP = re.compile(
    r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via "
    r"(?:P2P/(?P<p2p>direct pointer|IPC|CUMEM|MNNVL|indirect)|(?P<shm>SHM|direct shared memory)|"
    r"NET/(?P<net>.+?)/(?P<device>\d+)(?:\(\d+\))?(?P<gdr>/GDRDMA)?(?:\(PCI\))?(?:/Shared)?\s*$)"
)
_CHOICE = re.compile(
    r"(?:(?P<op>\w+): )?(?P<nbytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+) "
    r"(?:time [\d.]+|channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})"
)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""By the numbers printed until 2.23 (NCCL_ALGO_*, NCCL_PROTO_* in src/include/nccl_common.h)."""


class Line(Struct, frozen=True):
    """One message without its prefix; `host` and `pid` identify its process, empty if unknown."""

    host: str
    pid: int
    level: Literal["INFO", "WARN"]
    message: str


class Device(Struct, frozen=True):
    """A network device as numbered in the log: an interface, or an HCA's port with its link layer (IB, RoCE)."""

    number: int
    name: str
    port: int | None = None
    link: str = ""


class Hop(Struct, frozen=True):
    """How channels connect one rank to another.

    `by`: CUMEM, IPC, …, or the network's name. `device` is the network's device number, `gdr` whether it accesses GPU
    memory directly.
    """

    how: Literal["P2P", "SHM", "NET"]
    by: str = ""
    device: int | None = None
    gdr: bool = False


class Choice(Struct, frozen=True):
    """NCCL's choice for one call of `nbytes` (count times type size of the call; for all-gather one rank's part)."""

    op: str
    nbytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


class Log(Struct, frozen=True):
    """The contents of one rank's log. None or empty: not in the log."""

    version: str | None = None
    network: str | None = None
    interfaces: tuple[Device, ...] = ()
    hcas: tuple[Device, ...] = ()
    channels: int | None = None
    hops: tuple[Hop, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def gdr(self) -> bool | None:
        """Return whether all network channels use GPUDirect; None if none is logged."""
        over = [hop.gdr for hop in self.hops if hop.how == "NET"]
        return all(over) if over else None

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that channels use, in order; a number if the log has no name."""
        network = self.network or ""
        known = self.interfaces if network == "Socket" else self.hcas if network.startswith("IB") else ()
        names = {device.number: device.name for device in known}  # other plugins number devices of their own
        used = dict.fromkeys(hop.device for hop in self.hops if hop.how == "NET" and hop.device is not None)
        return tuple(names.get(number, f"device {number}") for number in sorted(used))

    def chosen(self, nbytes: int, op: str = "") -> Choice | None:
        """Return the choice for a call of `nbytes`, of `op` (in NCCL's spelling, AllReduce) if the log names it."""
        return next((each for each in self.choices if each.nbytes == nbytes and (not each.op or each.op == op)), None)


def lines(text: str) -> Iterator[Line]:
    """Yield the NCCL messages in `text`, among launchers' prefixes, colours and other programs' lines."""
    for raw in text.splitlines():
        if "NCCL" not in raw or len(raw) > _MOST_LINE:
            continue
        found = _PREFIX.search(_ANSI.sub("", raw))
        if found:
            level: Literal["INFO", "WARN"] = "WARN" if found["level"] == "WARN" else "INFO"
            yield Line(found["host"], int(found["pid"]), level, found["message"].strip())
        elif _VERSION.match(raw):  # at level VERSION and WARN it is printed bare
            yield Line("", 0, "INFO", raw.strip())


def read(text: str | Iterable[Line]) -> Log:
    """Parse the log of one rank. Never fails: lines that are not NCCL's are skipped."""
    found: dict[str, Any] = {}
    hops, choices = dict[Hop, None](), dict[Choice, None]()
    for line in lines(text) if isinstance(text, str) else text:
        message = line.message
        if line.level == "WARN":
            continue
        if (match := _HOP.search(message)) and len(hops) < _MOST_KEPT:
            hops[_hop(match)] = None
        elif (match := _CHOICE.search(message)) and len(choices) < _MOST_KEPT:
            channels = int(match["high"]) - int(match["low"]) + 1 if match["high"] else None
            algorithm, protocol = _resolve_name(match["algo"], _ALGORITHMS), _resolve_name(match["proto"], _PROTOCOLS)
            choices[Choice(match["op"] or "", int(match["nbytes"]), algorithm, protocol, channels)] = None
        elif match := _CHANNELS.search(message):
            found["channels"] = int(match[1])
        elif match := _NETWORK.search(message):
            found["network"] = match[1]
        elif match := _SOCKETS.search(message):
            found["interfaces"] = _devices(match[1])
        elif match := _HCAS.search(message):
            found["hcas"] = _devices(match[1])
        elif match := _VERSION.search(message):
            found.setdefault("version", match[1])
    return Log(**found, hops=tuple(hops), choices=tuple(choices))


def _devices(text: str) -> tuple[Device, ...]:
    found = _DEVICE.findall(text)[:_MOST_KEPT]
    return tuple(Device(int(number), name, int(port) if port else None, link) for number, name, port, link in found)


def _hop(found: re.Match[str]) -> Hop:
    if found["p2p"]:
        return Hop("P2P", found["p2p"])
    if found["shm"]:
        return Hop("SHM")
    return Hop("NET", found["net"], int(found["device"]), bool(found["gdr"]))


def _resolve_name(message: str, names: tuple[str, ...]) -> str:
    """Return a name, or the name for the number that older versions print."""
    if not (message.isascii() and message.isdecimal()):
        return message
    return names[int(message)] if int(message) < len(names) else message
