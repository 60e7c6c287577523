"""The network interfaces that NCCL uses for its bootstrap, for NET/Socket and for the setup of NET/IB.

Sources: src/misc/socket.cc:190 ncclFindInterfaces, src/os/linux.cc:379 ncclOsFindInterfaces and :445 matchSubnet
(v2.30.7); the differences of versions before 2.28.3 from src/misc/socket.cc of those. In prose:
docs/maintainers/nccl.md.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Literal, Protocol

from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.values import Struct
from ncclprobe.nccl.hcas import MAX_INTERFACES, parse_selector

Family = Literal["inet", "inet6"]

_RUNNING_AND_VIRBR = (2, 28, 3)
_REVERSED_SUBNET = (2, 29)


class Interface(Protocol):
    """One address of one interface, as getifaddrs() lists it: all of IPv4 first, then those of IPv6."""

    @property
    def name(self) -> str:
        """Return ``eth0``."""

    @property
    def family(self) -> str:
        """Return ``inet`` or ``inet6``; entries of other families are never used."""

    @property
    def address(self) -> str:
        """Return the numeric address; a link-local IPv6 address includes its scope: ``fe80::1%eth0``."""

    @property
    def netmask(self) -> str:
        """Return the netmask as an address: ``255.255.255.0``, ``ffff:ffff::``. Empty if there is none."""

    @property
    def running(self) -> bool:
        """Return IFF_RUNNING: whether the interface is up and has a carrier."""


class Choice(Struct, frozen=True):
    """The chosen interfaces, in NCCL's order, and the step of its search that found them.

    ``step`` is ``env`` (NCCL_SOCKET_IFNAME), ``ib``, ``subnet`` (that of NCCL_COMM_ID), ``^docker,lo,virbr`` (up to
    2.28.2 ``^docker,lo``), ``docker``, ``lo``, ``virbr`` or ``none``. After ``env`` nothing else is tried, so that step
    may have chosen nothing.
    """

    interfaces: tuple[Interface, ...]
    step: str


def forced_family(text: str) -> Family | None:
    """Return the family that NCCL_SOCKET_FAMILY forces; None for any text but these two.

    Source: src/misc/socket.cc:178 ncclEnvSocketFamily (v2.30.7).
    """
    if text == "AF_INET":
        return "inet"
    return "inet6" if text == "AF_INET6" else None


def find_interfaces(
    interfaces: Sequence[Interface],
    *,
    ifname: str = "",
    family: Family | None = None,
    comm_id_address: str | None = None,
    limit: int = MAX_INTERFACES,
    version: Version | None = None,
) -> Choice:
    """Return the interfaces that NCCL would choose among `interfaces`, which are in the kernel's order.

    `ifname` is the value of NCCL_SOCKET_IFNAME; empty or a single character counts as not set. `comm_id_address` is the
    resolved, numeric address of NCCL_COMM_ID. `limit` is 1 for the bootstrap and NET/IB, 16 for NET/Socket. With
    NCCL_COMM_ID the *bootstrap* uses only `same_subnet` (src/bootstrap.cc:117), not this search.
    """
    if len(ifname) > 1:
        return Choice(_matching(interfaces, ifname, family, limit, version), "env")
    found = _matching(interfaces, "ib", family, limit, version)
    if found:
        return Choice(found, "ib")
    if comm_id_address is not None:
        near = next((each for each in interfaces if same_subnet(each, comm_id_address, version)), None)
        if near is not None:
            return Choice((near,), "subnet")
    for step in _last_resorts(version):
        found = _matching(interfaces, step, family, limit, version)
        if found:
            return Choice(found, step)
    return Choice((), "none")


def find_by(
    interfaces: Sequence[Interface],
    settings: Settings,
    version: Version | None,
    *,
    comm_id_address: str | None = None,
    limit: int = MAX_INTERFACES,
) -> Choice:
    """Call `find_interfaces` with NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY from these settings."""
    return find_interfaces(
        interfaces,
        ifname=settings.get("NCCL_SOCKET_IFNAME") or "",
        family=forced_family(settings.get("NCCL_SOCKET_FAMILY") or ""),
        comm_id_address=comm_id_address,
        limit=limit,
        version=version,
    )


def _last_resorts(version: Version | None) -> tuple[str, ...]:
    """Return the lists tried in turn if neither the user nor InfiniBand named an interface."""
    if reaches(version, _RUNNING_AND_VIRBR):
        return "^docker,lo,virbr", "docker", "lo", "virbr"
    return "^docker,lo", "docker", "lo"


def _matching(
    interfaces: Iterable[Interface], names: str, family: Family | None, limit: int, version: Version | None
) -> tuple[Interface, ...]:
    """Search as ncclOsFindInterfaces for `names`: the first matching address of each name, at most `limit`."""
    selector = parse_selector(names, MAX_INTERFACES)
    found: dict[str, Interface] = {}
    for each in interfaces:
        if len(found) == limit:
            break
        if _is_usable(each, family, version) and selector.takes(each.name):
            found.setdefault(each.name, each)
    return tuple(found.values())


def _is_usable(interface: Interface, family: Family | None, version: Version | None) -> bool:
    """Return whether an interface passes the tests before the list. Of the special addresses, only ::1 does not.

    127.0.0.1, 169.254/16 and fe80::/10 pass them.
    """
    if interface.family not in ("inet", "inet6") or family not in (None, interface.family):
        return False
    if reaches(version, _RUNNING_AND_VIRBR) and not interface.running:
        return False
    return interface.family == "inet" or ip_address(interface.address) != IPv6Address("::1")


def same_subnet(interface: Interface, address: str, version: Version | None = None) -> bool:
    """Return whether NCCL considers `address` in the subnet of `interface`: same family, masked bits, IPv6 scope.

    Ignores IFF_RUNNING and a forced family. Raises ValueError if `address` is not numeric. The 2.29 releases invert the
    test for IPv4, and so choose the first interface of *another* subnet. Sources: src/os/linux.cc:445 matchSubnet
    (v2.30.7); :361 (v2.29.2, v2.29.3) and :383 (v2.29.7).
    """
    remote = ip_address(address)
    if interface.family not in ("inet", "inet6") or not interface.netmask:
        return False
    local, mask = ip_address(interface.address), int(ip_address(interface.netmask))
    if local.version != remote.version or _scope(local) != _scope(remote):
        return False
    same = int(local) & mask == int(remote) & mask
    reversed_test = local.version == 4 and version is not None and version[:2] == _REVERSED_SUBNET
    return same != reversed_test


def _scope(address: object) -> str | None:
    return address.scope_id if isinstance(address, IPv6Address) else None
