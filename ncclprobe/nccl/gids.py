"""Which entry of a port's GID table NCCL uses for its connections.

Source: src/transport/net_ib/connect.cc:97-345 ncclIbGetGidIndex and ncclUpdateGidIndex (v2.30.7); in prose
docs/how/nccl-selection.md. Before 2.21 the index was 0 unless NCCL_IB_GID_INDEX said otherwise; routable FLIDs came
with 2.22.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Literal

from ncclprobe.facts.infiniband import Gid, Port
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.values import read_setting

Family = Literal["inet", "inet6"]
Range = IPv4Network | IPv6Network

_AUTOMATIC = (2, 21)
_ROUTABLE_FLID = (2, 22)
_MULTICAST_OF_IPV4 = b"\xff\x0e" + b"\0" * 8 + b"\xff\xff"
_MAPPED_IPV4 = b"\0" * 10 + b"\xff\xff"
_EMPTY = Gid(-1, IPv6Address(0))


class Wish(Struct, frozen=True):
    """What the environment asks for. `index` below 0: NCCL searches."""

    index: int = -1
    family: Family = "inet"
    within: Range | None = None
    roce: int = 2
    flid_index: int = 1


class Pick(Struct, frozen=True):
    """The index that NCCL uses on a port, what stands there (None: an empty entry), and what decided.

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
    """Return the GID for connections over `port`, or None where its table or link layer could not be read."""
    if isinstance(port.gids, Absent) or isinstance(port.link_layer, Absent):
        return None
    table = {gid.index: gid for gid in port.gids}
    if port.link_layer == "InfiniBand":
        index = wanted.flid_index if reaches(version, _ROUTABLE_FLID) and _flid(table.get(wanted.flid_index)) else 0
        return Pick(index, table.get(index), "infiniband")
    if wanted.index >= 0:
        by: Literal["setting", "version"] = "setting" if reaches(version, _AUTOMATIC) or wanted.index else "version"
        return Pick(wanted.index, table.get(wanted.index), by)
    index = _search(table, wanted)
    return Pick(index, table.get(index), "search")


def _flid(gid: Gid | None) -> bool:
    """Return whether a GID carries the bits of a routable LID: bytes 4 and 5."""
    return gid is not None and any(gid.address.packed[4:6])


def _search(table: Mapping[int, Gid], wanted: Wish) -> int:
    current = 0
    # Empty entries take part; one behind the last stands for all that follow it.
    for candidate in range(1, max(table, default=0) + 2):
        if _better(table.get(current, _EMPTY), table.get(candidate, _EMPTY), wanted):
            current = candidate
    return current


def _better(current: Gid, candidate: Gid, wanted: Wish) -> bool:
    """Compare as ncclUpdateGidIndex: the wanted family beats everything, even the version and a GID's validity."""
    fits = family(candidate.address) == wanted.family and _within(candidate.address, wanted.within)
    if fits and family(current.address) != wanted.family:
        return True
    if not fits or not valid(candidate.address):
        return False
    other = roce_version(current) != roce_version(candidate)
    return (other or not valid(current.address)) and roce_version(candidate) == wanted.roce


def family(address: IPv6Address) -> Family:
    """Return inet for an IPv4-mapped IPv6 address, unicast or multicast; inet6 for everything else."""
    head = address.packed[:12]
    return "inet" if head in (_MAPPED_IPV4, _MULTICAST_OF_IPV4) else "inet6"


def _within(address: IPv6Address, allowed: Range | None) -> bool:
    if isinstance(allowed, IPv4Network):
        return IPv4Address(address.packed[12:]) in allowed
    return allowed is None or address in allowed


def valid(address: IPv6Address) -> bool:
    """Return whether a GID is not all zero, and not of fe80::/64."""
    return any(address.packed) and address.packed[:8] != b"\xfe\x80" + b"\0" * 6


def roce_version(gid: Gid) -> int:
    """Return 1 or 2; -1 where the kernel does not say, as in containers."""
    return {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}.get(gid.type or "", -1)


def advised(gids: Sequence[Gid]) -> int | None:
    """Return the index of a RoCE v2 GID of an IPv4 address, None where there is none."""
    return next((gid.index for gid in gids if gid.ipv4 and roce_version(gid) == 2), None)
