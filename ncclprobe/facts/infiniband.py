"""RDMA devices, InfiniBand and RoCE, as the kernel shows them under /sys/class/infiniband.

For RoCE ports also the traffic class and congestion control (ECN) per priority. NVIDIA's driver (MLNX_OFED, DOCA) shows
both in sysfs: ``tc/N/traffic_class`` of a device, and ``ecn/roce_np/enable`` and ``ecn/roce_rp/enable`` of its
interface, a file with 0 or 1 for each priority (docs.nvidia.com, MLNX_OFED, "Explicit Congestion Notification" and
"Quality of Service"). The kernel's own driver has neither. Which priorities are paused (PFC) takes netlink or a
vendor's tool, and is not read.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TypeVar

from ncclprobe.facts.field import learn, missing
from ncclprobe.facts.pci import normal
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Failed, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

T = TypeVar("T")
ROOT = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
NO_GID, NO_PKEY = ":".join(["0000"] * 8), "0x0000"


class Rate(Struct, frozen=True, tag=True):
    """A port's signalling rate: Gb/s over all lanes, the number of lanes, and the generation (empty: SDR)."""

    gbps: float
    lanes: int
    generation: str = ""


class Gid(Struct, frozen=True):
    """One non-zero entry of a port's GID table.

    `type` is ``IB/RoCE v1`` or ``RoCE v2``; None if the kernel does not show it (older kernels in a container).
    `netdev` is its interface; None for InfiniBand and for an interface of another network namespace.
    """

    index: int
    address: IPv6Address
    type: str | None = None
    netdev: str | None = None

    @property
    def link_local(self) -> bool:
        """Return whether the GID is within fe80::/10 and so valid in one subnet only."""
        return self.address.is_link_local

    @property
    def ipv4(self) -> bool:
        """Return whether the GID is an IPv4-mapped address, ``::ffff:a.b.c.d``, which NCCL prefers."""
        return self.address.ipv4_mapped is not None

    @property
    def text(self) -> str:
        """Return the address as show_gids and NCCL write it."""
        return gid_text(self.address)


def gid_text(address: IPv6Address) -> str:
    """Format a GID as an address: ``::ffff:10.0.0.1``. Python writes it this way only since 3.13."""
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


class Port(Struct, frozen=True):
    """One port. Absent in a field: could not be read. `name` is as NCCL writes it, ``mlx5_0:1``.

    `state` is DOWN, INIT (no subnet manager yet), ARMED or ACTIVE; `physical` LinkUp, Polling (no cable), Disabled or
    another. `lid` is 0 without a subnet manager, and on Ethernet. `pkeys` are the non-zero ones, by index; bit 15 is
    full membership. Counters count since the driver was loaded or the last reset. A counter that the driver does not
    keep is left out (soft-RoCE has no `counters` at all).
    """

    device: str
    number: int
    state: str | Absent
    physical: str | Absent
    rate: Rate | Absent
    link_layer: str | Absent = "InfiniBand"
    lid: int | Absent = 0
    pkeys: tuple[tuple[int, int], ...] | Absent = ()
    gids: tuple[Gid, ...] | Absent = ()
    counters: tuple[tuple[str, int], ...] | Absent = ()
    hw_counters: tuple[tuple[str, int], ...] | Absent = ()

    @property
    def name(self) -> str:
        """Return device and number."""
        return f"{self.device}:{self.number}"


class RdmaDevice(Struct, frozen=True):
    """One RDMA device. An empty text: the driver does not provide it.

    `pci` is the address of its function; None for a device that is not a PCI function (soft-RoCE). `verbs` is its node
    below /dev/infiniband; empty if ib_uverbs offers none. `opens`: whether this process may open it, as NCCL must.
    """

    name: str
    ports: tuple[Port, ...] = ()
    pci: str | Absent | None = None
    firmware: str | Absent = ""
    board: str | Absent = ""
    model: str | Absent = ""
    verbs: str | Absent = ""
    opens: bool | Absent = True


class Fabric(Struct, frozen=True):
    """All RDMA devices by name; empty: the kernel has none, or none in this network namespace.

    `cut`: a pasted text shows only some of the machine's devices.
    """

    devices: tuple[RdmaDevice, ...] = ()
    cut: bool = False

    @property
    def ports(self) -> tuple[Port, ...]:
        """Return the ports of all devices."""
        return tuple(port for device in self.devices for port in device.ports)


@collector
def infiniband(host: Host) -> Fabric:
    """Read every device that the kernel shows, each counter once."""
    try:
        names = json.loads(host.ask("list", ROOT))
    except Missing:  # no ib_core module: known to be empty, not unknown
        return Fabric()
    nodes = _nodes(host)
    return Fabric(tuple(_device(host, name, nodes) for name in names))


def _nodes(host: Host) -> dict[str, str] | Absent:
    """Map each device to its ``uverbsN``."""
    entries = learn(host, json.loads, "list", VERBS)
    if isinstance(entries, Absent):
        return {} if missing(entries) else entries
    nodes = [entry for entry in entries if entry.startswith("uverbs")]
    owners = {node: learn(host, str.strip, "read", f"{VERBS}/{node}/ibdev") for node in nodes}
    refused = [owner for owner in owners.values() if isinstance(owner, Absent)]
    return refused[0] if refused else {str(owner): node for node, owner in owners.items()}


def _device(host: Host, name: str, nodes: dict[str, str] | Absent) -> RdmaDevice:
    folder = f"{ROOT}/{name}"
    verbs = nodes if isinstance(nodes, Absent) else nodes.get(name, "")
    ports = sorted(int(entry) for entry in json.loads(host.ask("list", f"{folder}/ports")))
    return RdmaDevice(
        name=name,
        ports=tuple(_port(host, name, number) for number in ports),
        pci=_unless_missing(learn(host, parent, "link", f"{folder}/device"), None),
        firmware=_word(host, f"{folder}/fw_ver"),
        board=_word(host, f"{folder}/board_id"),
        model=_word(host, f"{folder}/hca_type"),
        verbs=verbs,
        opens=_opens(host, verbs),
    )


def _unless_missing(value: T | Absent, instead: T) -> T | Absent:
    return instead if missing(value) else value


def _word(host: Host, path: str) -> str | Absent:
    return _unless_missing(learn(host, str.strip, "read", path), "")


def _opens(host: Host, verbs: str | Absent) -> bool | Absent:
    if isinstance(verbs, Absent) or not verbs:
        return verbs or False
    answer = learn(host, json.loads, "open", f"/dev/infiniband/{verbs}")
    said_no = isinstance(answer, Absent) and answer.refused in (Missing.__name__, Denied.__name__, Failed.__name__)
    return False if said_no else answer


def _port(host: Host, device: str, number: int) -> Port:
    folder = f"{ROOT}/{device}/ports/{number}"
    return Port(
        device=device,
        number=number,
        state=learn(host, state, "read", f"{folder}/state"),
        physical=learn(host, state, "read", f"{folder}/phys_state"),
        rate=learn(host, rate, "read", f"{folder}/rate"),
        link_layer=learn(host, str.strip, "read", f"{folder}/link_layer"),
        lid=learn(host, hexadecimal, "read", f"{folder}/lid"),
        pkeys=learn(host, pkeys, "files", f"{folder}/pkeys", NO_PKEY),
        gids=_gids(host, folder),
        counters=_unless_missing(learn(host, counters, "files", f"{folder}/counters"), ()),
        hw_counters=_unless_missing(learn(host, counters, "files", f"{folder}/hw_counters"), ()),
    )


def _gids(host: Host, folder: str) -> tuple[Gid, ...] | Absent:
    table = learn(host, gids, "files", f"{folder}/gids", NO_GID)
    if isinstance(table, Absent):
        return table
    return tuple(
        Gid(
            index,
            address,
            type=_attribute(host, f"{folder}/gid_attrs/types/{index}"),
            netdev=_attribute(host, f"{folder}/gid_attrs/ndevs/{index}"),
        )
        for index, address in table.items()
    )


def _attribute(host: Host, path: str) -> str | None:
    reported = learn(host, str.strip, "read", path)
    return None if isinstance(reported, Absent) else reported


@lru_cache(1024)
def parent(text: str) -> str | None:
    """Return the PCI address at the end of a device's link; None if the parent is not a PCI function."""
    try:
        return normal(text.strip().rpartition("/")[2])
    except ParseError:
        return None


@lru_cache(1024)
def state(text: str) -> str:
    """Parse the word in ``4: ACTIVE``. Raises ParseError."""
    match = re.fullmatch(r"[0-9]+: *(\S.*)", text.strip())
    if not match:
        raise ParseError(f"port state: {text[:40]!r}")
    return match[1]


@lru_cache(1024)
def rate(text: str) -> Rate:
    """Parse ``400 Gb/sec (4X NDR)`` or ``2.5 Gb/sec (1X)``. Raises ParseError."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9])?) Gb/sec \(([0-9]{1,3})X(?: (\w+))?\)", text.strip())
    if not match:
        raise ParseError(f"port rate: {text[:40]!r}")
    return Rate(float(match[1]), int(match[2]), match[3] or "")


@lru_cache(1024)
def hexadecimal(text: str) -> int:
    """Parse ``0x1a``. Raises ParseError."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text.strip()):
        raise ParseError(f"hexadecimal number: {text[:40]!r}")
    return int(text, 16)


def gids(text: str) -> dict[int, IPv6Address]:
    """Parse a host's answer to ``files`` into GIDs by index. Raises ParseError."""
    try:
        return {index: IPv6Address(reported) for index, reported in _table(text)}
    except ValueError:
        raise ParseError(f"GID table: {text[:120]!r}") from None


@lru_cache(1024)
def pkeys(text: str) -> tuple[tuple[int, int], ...]:
    """Parse a host's answer to ``files`` into P_Keys by index."""
    return tuple((index, hexadecimal(reported)) for index, reported in _table(text))


def _table(text: str) -> list[tuple[int, str]]:
    """Return entries by index. Older kernels refuse to read an empty entry. Raises Failed if all are refused."""
    rows = {int(name): reported for name, reported in _files(text).items() if re.fullmatch("[0-9]{1,5}", name)}
    if rows and not any(rows.values()):
        raise Failed(f"none of {len(rows)} entries could be read")
    return sorted((index, reported) for index, reported in rows.items() if reported)


@lru_cache(1024)
def counters(text: str) -> tuple[tuple[str, int], ...]:
    """Parse counters from a host's answer to ``files``; unreadable ones ("N/A (no PMA)") are left out.

    ``lifespan`` among the hw_counters is not a counter: it is the kernel's caching time in milliseconds.
    """
    reported = {name: text for name, text in _files(text).items() if text and name != "lifespan"}
    return tuple((name, int(count)) for name, count in reported.items() if re.fullmatch("[0-9]{1,20}", count))


def _files(text: str) -> dict[str, str | None]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise ParseError(f"folder of files: {text[:80]!r}") from None
    if not isinstance(rows, dict) or not all(isinstance(reported, str | None) for reported in rows.values()):
        raise ParseError(f"folder of files: {text[:80]!r}")
    return rows


_LONGEST_TEXT = 200


class RoceMarks(Struct, frozen=True):
    """Settings of one port. `traffic_class`: the text of the driver's file; empty if the driver forces none.

    `slows` and `notifies`: the priorities for which the port lowers its rate (reaction point), and for which it
    notifies the sender of marked packets (notification point). Absent in a field: the driver does not show it.
    """

    traffic_class: str | Absent
    slows: tuple[int, ...] | Absent
    notifies: tuple[int, ...] | Absent


class RoceQos(Struct, frozen=True):
    """Marking and congestion settings of each RoCE port, by port name."""

    ports: Mapping[str, RoceMarks] = field(default_factory=dict)


@collector
def roce_qos(host: Host, fabric: Fabric) -> RoceQos:
    """Read the driver's settings of every hardware Ethernet port. Needs no privileges."""
    ports = [port for device in fabric.devices if device.pci is not None for port in device.ports]
    return RoceQos({port.name: _marks(host, port) for port in ports if port.link_layer == "Ethernet"})


def _marks(host: Host, port: Port) -> RoceMarks:
    gids = () if isinstance(port.gids, Absent) else port.gids
    netdev = next((gid.netdev for gid in gids if gid.netdev), "")
    slows, notifies = (_enabled(host, netdev, side) for side in ("roce_rp", "roce_np"))
    path = f"{ROOT}/{port.device}/tc/{port.number}/traffic_class"
    return RoceMarks(learn(host, lambda text: text.strip()[:_LONGEST_TEXT], "read", path), slows, notifies)


def _enabled(host: Host, netdev: str, side: str) -> tuple[int, ...] | Absent:
    if not netdev:
        return Absent("no interface of this network namespace belongs to the port")
    return learn(host, priorities, "files", f"/sys/class/net/{netdev}/ecn/{side}/enable")


def priorities(text: str) -> tuple[int, ...]:
    """Return the priorities whose file contains 1. Raises ParseError."""
    try:
        said = json.loads(text)
        return tuple(sorted(int(name) for name, value in said.items() if value == "1"))
    except (ValueError, AttributeError, RecursionError):
        raise ParseError(f"ecn: {text[:80]!r}") from None
