"""Read NCCL's own INFO lines: network, devices, GPUDirect, channels and algorithm that carried the bytes.

The lines are those of NCCL 2.8 to 2.30 (format strings in src/init.cc, src/transport/*.cc, src/graph/*.cc,
src/enqueue.cc). A log is one rank's; lines of several ranks on one stream are separated by their ``host:pid``. A
missing line means unknown, never "no".
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from ncclprobe.model.values import Struct, field

_MOST_LINE = 2048
"""Characters: NCCL cuts its lines at 1023 bytes; a launcher's prefix precedes them."""
_MOST_KEPT = 4096
"""Lines kept of each kind: 64 channels to each of some peers. Further ones add nothing new."""

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
_CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:(\d+) nvls channels, )?\d+ p2p channels")
_HOP = re.compile(
    r"Channel (?P<channel>\d+)(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\] "
    r"(?:\[(?P<way>send|receive)\] )?via "
    r"(?:P2P/(?P<p2p>direct pointer|IPC|CUMEM|MNNVL|indirect)|(?P<shm>SHM|direct shared memory)|"
    r"NET/(?P<net>.+?)/(?P<device>\d+)(?:\((?P<proxy>\d+)\))?(?P<gdr>/GDRDMA)?(?:\(PCI\))?(?:/Shared)?\s*$)"
)
_CHOICE = re.compile(
    r"(?:(?P<op>\w+): )?(?P<nbytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+) "
    r"(?:time [\d.]+|channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})"
)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""By the numbers that were printed until 2.23 (NCCL_ALGO_*, NCCL_PROTO_* in src/include/nccl_common.h)."""


class Line(Struct, frozen=True):
    """One message, without its prefix; `host` and `pid` are of the process that wrote it, empty if it has none."""

    host: str
    pid: int
    level: Literal["INFO", "WARN"]
    message: str


class Device(Struct, frozen=True):
    """A network device as the log numbers them: an interface, or an HCA's port with its link layer (IB, RoCE)."""

    number: int
    name: str
    port: int | None = None
    link: str = ""


class Hop(Struct, frozen=True):
    """How one channel goes from rank `src` to rank `dst`.

    `how`: P2P, SHM or NET; `by`: CUMEM, IPC, …, of a network its name. `device` is the network's number of the device,
    `gdr` whether it reaches GPU memory by itself, `proxy` the rank whose NIC is used if it is another's (PXN).
    """

    channel: int
    src: int
    dst: int
    how: Literal["P2P", "SHM", "NET"]
    by: str = ""
    device: int | None = None
    gdr: bool = False
    proxy: int | None = None
    way: str = ""


class Choice(Struct, frozen=True):
    """What NCCL chose for one call of `nbytes` (count times type size of the call, of all-gather one rank's part)."""

    op: str
    nbytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


class Log(Struct, frozen=True):
    """The contents of one rank's log. Null or empty: the log does not have it."""

    version: str | None = None
    network: str | None = None
    interfaces: tuple[Device, ...] = ()
    hcas: tuple[Device, ...] = ()
    channels: int | None = None
    nvls_channels: int | None = None
    hops: tuple[Hop, ...] = ()
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def gdr(self) -> bool | None:
        """Return whether all channels over a network are GPUDirect; None if none is logged."""
        over = [hop.gdr for hop in self.hops if hop.how == "NET"]
        return all(over) if over else None

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that channels go over, in order; a number if the log has no name."""
        network = self.network or ""
        known = self.interfaces if network == "Socket" else self.hcas if network.startswith("IB") else ()
        names = {device.number: device.name for device in known}  # other plugins number devices of their own
        used = dict.fromkeys(hop.device for hop in self.hops if hop.how == "NET" and hop.device is not None)
        return tuple(names.get(number, f"device {number}") for number in sorted(used))

    def chosen(self, nbytes: int, op: str = "") -> Choice | None:
        """Return what was chosen for a call of `nbytes`, of `op` (in NCCL's spelling, AllReduce) if the log has it."""
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


class _Reading(Struct):
    """A log as far as it has been read."""

    version: str | None = None
    network: str | None = None
    channels: int | None = None
    nvls_channels: int | None = None
    interfaces: list[Device] = field(default_factory=list)
    hcas: list[Device] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, line: Line) -> None:
        message = line.message
        if line.level == "WARN":
            _keep(self.warnings, message)
        elif found := _HOP.search(message):
            _keep(self.hops, _hop(found))
        elif found := _CHOICE.search(message):
            _keep(self.choices, _choice(found))
        elif found := _CHANNELS.search(message):
            self.channels, nvls = int(found[1]), found[2]
            self.nvls_channels = int(nvls) if nvls else None
        elif found := _NETWORK.search(message):
            self.network = found[1]
        elif found := _SOCKETS.search(message):
            self.interfaces = _devices(found[1])
        elif found := _HCAS.search(message):
            self.hcas = _devices(found[1])
        elif found := _VERSION.search(message):
            self.version = self.version or found[1]


def read(text: str | Iterable[Line]) -> Log:
    """Read the log of one rank. Never fails: lines that are not NCCL's are skipped."""
    reading = _Reading()
    for line in lines(text) if isinstance(text, str) else text:
        reading.take(line)
    return Log(
        reading.version,
        reading.network,
        tuple(reading.interfaces),
        tuple(reading.hcas),
        reading.channels,
        reading.nvls_channels,
        tuple(reading.hops),
        tuple(reading.choices),
        tuple(dict.fromkeys(reading.warnings)),
    )


def _keep(kept: list[object] | list[str] | list[Hop] | list[Choice], new: object) -> None:
    if len(kept) < _MOST_KEPT:
        kept.append(new)  # type: ignore[arg-type]


def _devices(text: str) -> list[Device]:
    return [
        Device(int(number), name, int(port) if port else None, link)
        for number, name, port, link in _DEVICE.findall(text)[:_MOST_KEPT]
    ]


def _hop(found: re.Match[str]) -> Hop:
    ends = int(found["channel"]), int(found["src"]), int(found["dst"])
    if found["p2p"]:
        return Hop(*ends, "P2P", found["p2p"])
    if found["shm"]:
        return Hop(*ends, "SHM")
    proxy = int(found["proxy"]) if found["proxy"] else None
    return Hop(*ends, "NET", found["net"], int(found["device"]), bool(found["gdr"]), proxy, found["way"] or "")


def _choice(found: re.Match[str]) -> Choice:
    channels = int(found["high"]) - int(found["low"]) + 1 if found["high"] else None
    algorithm, protocol = _named(found["algo"], _ALGORITHMS), _named(found["proto"], _PROTOCOLS)
    return Choice(found["op"] or "", int(found["nbytes"]), algorithm, protocol, channels)


def _named(message: str, names: tuple[str, ...]) -> str:
    """Return a name, or the name behind the number that older versions print."""
    if not (message.isascii() and message.isdecimal()):
        return message
    return names[int(message)] if int(message) < len(names) else message
