"""Predict which HCA ports NCCL's own InfiniBand transport uses, with which GID, and why others are left out.

Sources, all of v2.30.7, and in prose docs/maintainers/nccl.md: src/transport/net_ib/init.cc:300 ncclIbInitDevices for
the ports; src/transport/net_ib/connect.cc:97-345 ncclIbGetGidIndex and ncclUpdateGidIndex for the GID, whose index was
0 before 2.21 unless NCCL_IB_GID_INDEX set another (routable FLIDs exist since 2.22). Not modelled: fusing ports into
virtual devices (NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL), and ConnectX-8's Data Direct, which uses the same ports by
another name (``mlx5_0_dma``).

NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_OOB_NET_IFNAME are written ``[^][=]name[:port[:rail[:plane]]]{,…}``; ``^`` and
``=`` count for the whole list and only in front of it (src/misc/utils.cc:189 parseStringList and :218 matchIf). Rail
and plane are read since 2.30.7; before, an empty port (``mlx5_0:``) was port 0, which matches none.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Literal

from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate, RdmaDevice
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.values import BLANKS, read_setting, to_int32

MAX_INTERFACES = 16
"""Entries of an interface list that NCCL reads: MAX_IFS, src/include/socket.h:25 (v2.30.7)."""

MAX_HCAS = 32
"""Entries of an HCA list that NCCL reads: MAX_IB_DEVS, src/transport/net_ib/common.h:112 (v2.30.7)."""

ANY = -1
"""A port, rail or plane that was not given."""

_LONGEST_PREFIX = 63  # netIf.prefix holds 64 with its NUL, src/include/utils.h:47
_DECIMAL = rf"[{BLANKS}]*([+-]?)0*([0-9]*)"
_MOST_DIGITS = 19


class Entry(Struct, frozen=True):
    """One element of a list: a name or prefix, and the port, rail or plane that narrows it down."""

    prefix: str
    port: int = ANY
    rail: int = ANY
    plane: int = ANY

    def matches(self, name: str, port: int, exact: bool) -> bool:
        """Return whether this entry matches device `name`, port `port` (`ANY`: unknown)."""
        named = name == self.prefix if exact else name.startswith(self.prefix)
        return named and (port in (ANY, self.port) or self.port == ANY)


class Selector(Struct, frozen=True):
    """A parsed list. ``dropped`` are the entries beyond the limit, which NCCL silently ignores."""

    exclude: bool
    exact: bool
    entries: tuple[Entry, ...]
    dropped: tuple[str, ...]

    def takes(self, name: str, port: int = ANY) -> bool:
        """Return whether NCCL would use device `name`, port `port`. An empty list matches everything.

        Source: src/os/linux.cc:417 and src/transport/net_ib/init.cc:370 (v2.30.7): match XOR exclude.
        """
        found = not self.entries or any(entry.matches(name, port, self.exact) for entry in self.entries)
        return found != self.exclude


@lru_cache(256)
def parse_selector(text: str, limit: int) -> Selector:
    """Split `text` as NCCL does; `limit` is `MAX_INTERFACES` or `MAX_HCAS`. Never fails."""
    exclude, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    pieces = [piece for piece in text.split(",") if piece and not piece.startswith(":")]
    entries = tuple(_entry(piece) for piece in pieces[:limit])
    return Selector(exclude, exact, entries, dropped=tuple(pieces[limit:]))


def _entry(piece: str) -> Entry:
    """Parse ``name:port:rail:plane``; ignore what follows a fourth colon."""
    name, *numbers = piece.split(":")
    return Entry(name[:_LONGEST_PREFIX], *(_atoi(number) if number else ANY for number in numbers[:3]))


def _atoi(text: str) -> int:
    """Parse like glibc's atoi: strtol in base 10, truncated to an int; text without digits is 0."""
    match = re.match(_DECIMAL, text)
    assert match is not None  # every part of the pattern may be empty
    if len(match[2]) > _MOST_DIGITS:
        return 0 if match[1] == "-" else -1  # LONG_MIN and LONG_MAX, cut
    value = int(match[1] + (match[2] or "0"))
    return to_int32(max(-(1 << 63), min(value, (1 << 63) - 1)))


LAYERS = ("InfiniBand", "Ethernet")
"""Link layers that NCCL supports. EFA's is neither: it needs a plugin."""

_PCI_ORDER = (2, 29, 7)
_MORE_DEVICES, _FEWER = (2, 19), 16  # MAX_IB_DEVS of src/transport/net_ib.cc (v2.18.3)


class Selection(Struct, frozen=True):
    """The ports that NCCL_IB_HCA, or its absence, selects on this machine.

    `taken`: the ports NCCL uses, in its order. `down`: selected and of a supported layer, but not ACTIVE; dropped
    silently. `closed`: selected, but this process may not open the device. `unknown`: selected, but the state could not
    be read. `beyond`: active ones above the limit (32; 16 before 2.19). `unmatched`: entries that match no port.
    """

    selector: Selector
    taken: tuple[Port, ...] = ()
    down: tuple[Port, ...] = ()
    closed: tuple[Port, ...] = ()
    unknown: tuple[Port, ...] = ()
    beyond: tuple[Port, ...] = ()
    unmatched: tuple[Entry, ...] = ()


def select(fabric: Fabric, text: str = "", version: Version | None = None, pci_order: bool = True) -> Selection:
    """Return the ports that NCCL_IB_HCA=`text` selects; empty: all. `pci_order`: NCCL_IB_DEVICE_PCI_ORDER."""
    limit = MAX_HCAS if reaches(version, _MORE_DEVICES) else _FEWER
    selector = parse_selector(text, limit)
    devices = list(fabric.devices)
    if pci_order and reaches(version, _PCI_ORDER):
        devices.sort(key=lambda device: device.pci if isinstance(device.pci, str) else "~")
    ports = [(device, port) for device in devices for port in device.ports if layer_fits(port)]
    chosen = [(device, port) for device, port in ports if selector.takes(port.device, port.number)]
    opened = [port for device, port in chosen if _opens(device)]
    active = [port for port in opened if port.state == "ACTIVE"]
    everything = [(port.device, port.number) for port in fabric.ports] if selector.entries else []
    return Selection(
        selector=selector,
        taken=tuple(active[:limit]),
        down=tuple(port for port in opened if isinstance(port.state, str) and port.state != "ACTIVE"),
        closed=tuple(port for device, port in chosen if not _opens(device)),
        unknown=tuple(port for port in opened if isinstance(port.state, Absent)),
        beyond=tuple(active[limit:]),
        unmatched=tuple(
            entry for entry in selector.entries if not any(entry.matches(*each, selector.exact) for each in everything)
        ),
    )


def select_by(fabric: Fabric, settings: Settings, version: Version | None) -> Selection:
    """Return the ports that these settings select: NCCL_IB_HCA, in the order of NCCL_IB_DEVICE_PCI_ORDER."""
    ordered = read_setting(settings, "NCCL_IB_DEVICE_PCI_ORDER", 1, version) != 0
    return select(fabric, settings.get("NCCL_IB_HCA") or "", version, ordered)


def layer_fits(port: Port) -> bool:
    """Return whether NCCL's own transport supports the port's link layer; True if that is unknown."""
    return isinstance(port.link_layer, Absent) or port.link_layer in LAYERS


def _opens(device: RdmaDevice) -> bool:
    """Return whether a device opens; unknown counts as yes, because another check reports those that do not."""
    return device.opens is not False


def gbps(port: Port) -> float | None:
    """Return the port's rate; None: unknown."""
    return port.rate.gbps if isinstance(port.rate, Rate) else None


def fast(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports with at least half the rate of the fastest: for GPUs, not for management."""
    best = max((rate for port in ports if (rate := gbps(port)) is not None), default=0.0)
    return tuple(port for port in ports if (rate := gbps(port)) is None or 2 * rate >= best)


def caught_besides(entry: Entry, fabric: Fabric, selector: Selector) -> tuple[str, ...]:
    """Return the devices that `entry` matches as a prefix although one has exactly its name; empty if `=` leads.

    ``mlx5_1`` also matches mlx5_10 and mlx5_11, if there is a mlx5_1.
    """
    names = [device.name for device in fabric.devices]
    if selector.exact or entry.prefix not in names:
        return ()
    meant = {other.prefix for other in selector.entries}
    return tuple(name for name in names if name.startswith(entry.prefix) and name not in meant)


def as_listed(entry: Entry) -> str:
    """Return the entry as written in the list, without rail and plane."""
    return entry.prefix if entry.port < 0 else f"{entry.prefix}:{entry.port}"


Family = Literal["inet", "inet6"]
Range = IPv4Network | IPv6Network

_AUTOMATIC = (2, 21)
_ROUTABLE_FLID = (2, 22)
_MULTICAST_OF_IPV4 = b"\xff\x0e" + b"\0" * 8 + b"\xff\xff"
_MAPPED_IPV4 = b"\0" * 10 + b"\xff\xff"
_EMPTY = Gid(-1, IPv6Address(0))


class Wish(Struct, frozen=True):
    """The GID that the environment requests. `index` below 0: NCCL searches."""

    index: int = -1
    family: Family = "inet"
    within: Range | None = None
    roce: int = 2
    flid_index: int = 1


class Pick(Struct, frozen=True):
    """The index that NCCL uses on a port, its entry (None: an empty one), and the deciding rule.

    `by` is ``setting`` (NCCL_IB_GID_INDEX), ``search``, ``version`` (one that does not search) or ``infiniband``.
    """

    index: int
    gid: Gid | None
    by: Literal["setting", "search", "version", "infiniband"]


def wish(settings: Settings, version: Version | None = None) -> Wish:
    """Read the variables as NCCL does; up to 2.20 only the index."""
    automatic = reaches(version, _AUTOMATIC)
    index = read_setting(settings, "NCCL_IB_GID_INDEX", -1 if automatic else 0, version)
    if not automatic:
        return Wish(index)
    family: Family = "inet6" if settings.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else "inet"
    return Wish(
        index=index,
        family=family,
        within=address_range(settings.get("NCCL_IB_ADDR_RANGE") or "", family),
        roce=read_setting(settings, "NCCL_IB_ROCE_VERSION_NUM", 2, version),
        flid_index=read_setting(settings, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1, version),
    )


def address_range(text: str, family: Family) -> Range | None:
    """Parse a CIDR of `family`; any other text restricts nothing. Host bits are ignored."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return network if "/" in text and (network.version == 4) == (family == "inet") else None


def pick(port: Port, wanted: Wish, version: Version | None = None) -> Pick | None:
    """Return the GID for connections over `port`, or None if its table or link layer could not be read."""
    if isinstance(port.gids, Absent) or isinstance(port.link_layer, Absent):
        return None
    table = {gid.index: gid for gid in port.gids}
    if port.link_layer == "InfiniBand":
        index = wanted.flid_index if reaches(version, _ROUTABLE_FLID) and _has_flid(table.get(wanted.flid_index)) else 0
        return Pick(index, table.get(index), "infiniband")
    if wanted.index >= 0:
        by: Literal["setting", "version"] = "setting" if reaches(version, _AUTOMATIC) or wanted.index else "version"
        return Pick(wanted.index, table.get(wanted.index), by)
    index = 0
    # Empty entries take part; one behind the last stands for all that follow it.
    for candidate in range(1, max(table, default=0) + 2):
        if _is_better(table.get(index, _EMPTY), table.get(candidate, _EMPTY), wanted):
            index = candidate
    return Pick(index, table.get(index), "search")


def _has_flid(gid: Gid | None) -> bool:
    """Return whether a GID contains a routable LID, in bytes 4 and 5."""
    return gid is not None and any(gid.address.packed[4:6])


def _is_better(current: Gid, candidate: Gid, wanted: Wish) -> bool:
    """Compare as ncclUpdateGidIndex: the wanted family comes before everything, even the version and a
    GID's validity.
    """
    fits = family(candidate.address) == wanted.family and _is_allowed(candidate.address, wanted.within)
    if fits and family(current.address) != wanted.family:
        return True
    if not fits or not valid(candidate.address):
        return False
    other = roce_version(current) != roce_version(candidate)
    return (other or not valid(current.address)) and roce_version(candidate) == wanted.roce


def family(address: IPv6Address) -> Family:
    """Return inet for an IPv4-mapped IPv6 address, unicast or multicast; otherwise inet6."""
    head = address.packed[:12]
    return "inet" if head in (_MAPPED_IPV4, _MULTICAST_OF_IPV4) else "inet6"


def _is_allowed(address: IPv6Address, allowed: Range | None) -> bool:
    if isinstance(allowed, IPv4Network):
        return IPv4Address(address.packed[12:]) in allowed
    return allowed is None or address in allowed


def valid(address: IPv6Address) -> bool:
    """Return whether a GID is neither all zero nor in fe80::/64."""
    return any(address.packed) and address.packed[:8] != b"\xfe\x80" + b"\0" * 6


def roce_version(gid: Gid) -> int:
    """Return 1 or 2; -1 if the kernel does not report it, as in containers."""
    return {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}.get(gid.type or "", -1)


def advised(gids: Sequence[Gid]) -> int | None:
    """Return the index of a RoCE v2 GID of an IPv4 address; None if there is none."""
    return next((gid.index for gid in gids if gid.ipv4 and roce_version(gid) == 2), None)
