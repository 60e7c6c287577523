"""RoCE: addresses, packet sizes and subnets of the interfaces below the ports."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface
from typing import Any

from ncclprobe.checks.ib.fixtures import PLAIN, TWO_NODES, fabric, interfaces, roce
from ncclprobe.checks.ib.ports import path
from ncclprobe.checks.ib.selection import active, listed, rdma_job, single_node, taken
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric, Gid, Port
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.sysctls import Ipv4Settings, Sysctls
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.hcas import fast, gbps

_HEADERS = 96
"""Bytes that RoCE takes of an interface's MTU (iboe_get_mtu in Linux, include/rdma/ib_addr.h)."""

_SIZES = (4096, 2048, 1024, 512, 256)  # enum ib_mtu
_NO_SYSCTL = Absent("not read")
_FLUX = Ipv4Settings(1, 0, 0)


def _rails(fabric: Fabric, settings: Settings) -> tuple[Port, ...]:
    """Return the Ethernet ports that are there for the GPUs: no slow ones, and none where InfiniBand ports are
    active.
    """
    ports = active(taken(fabric, settings))
    infiniband = any(port.link_layer == "InfiniBand" for port in ports)
    return () if infiniband else tuple(port for port in fast(ports) if port.link_layer == "Ethernet")


def _interface(port: Port, found: Interfaces) -> Interface | None:
    """Return the interface that the port's GIDs belong to; a bond of which it is a member carries the addresses."""
    table = port.gids if not isinstance(port.gids, Absent) else ()
    names = {entry.netdev for entry in table if entry.netdev}
    return next((interface for interface in found.all if interface.name in names), None)


@check(
    bad=lambda: [(fabric(roce(0, "10.0.0.5"), roce(1, ""), count=0), PLAIN, TWO_NODES)],
    good=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, TWO_NODES)],
    required=True,
    applies=rdma_job,
)
def roce_v2(fabric: Fabric, settings: Settings, launch: Launch | Absent) -> Iterator[Finding]:
    """An Ethernet port has no routable RoCE v2 address.

    Right: Every Ethernet port in use has a routable RoCE v2 address.
    Why: NCCL looks for a RoCE v2 GID with an IPv4 address and, where there is none, takes GID 0: link-local and RoCE v1
    (src/transport/net_ib/connect.cc). Queue pairs then end in "ibv_modify_qp failed with error 110" (nccl#426, #769).
    Fix: give the port's interface an IP address; NCCL_IB_GID_INDEX cannot name a GID that is not there.
    """
    ports = [port for port in active(taken(fabric, settings)) if port.link_layer == "Ethernet"]
    rails = _rails(fabric, settings)
    verdicts = {port.name: _routable(port.gids) for port in ports}
    if rails and all(verdicts[port.name] is None for port in rails):
        raise Unlearned("the GID tables, or the types of their entries, could not be read")
    tell = fail if isinstance(launch, Launch) and launch.several_nodes else warn
    for each in ports:
        if verdicts[each.name]:
            continue
        sources = {"evidence": (f"{path(each)}/gids", f"{path(each)}/gid_attrs/types")}
        if verdicts[each.name] is None:
            yield note(each.name, "its GIDs or their types could not be read", **sources)
        elif each not in rails or single_node(launch):
            yield note(each.name, "has no routable RoCE v2 GID, and it is not known that it needs one", **sources)
        else:
            message = "has no RoCE v2 GID but link-local ones: its interface has no IP address"
            yield tell(each.name, message, blame="node", action="repair", **sources)


def _routable(table: Sequence[Gid] | Absent) -> bool | None:
    """Return whether a GID is RoCE v2 and not link-local; None where the table, or the types of such GIDs, are
    unknown.
    """
    if isinstance(table, Absent):
        return None
    kinds = {entry.type for entry in table if not entry.link_local}
    return True if "RoCE v2" in kinds else None if None in kinds else False


def _routes(*found: Route) -> Routes:
    return Routes(found, ())


@check(
    slows=True,
    bad=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, interfaces(1500), _routes())],
    good=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, interfaces(1500), _routes(Route("0.0.0.0/0", "eth0")))],
    applies=rdma_job,
)
def roce_mtu(fabric: Fabric, settings: Settings, found: Interfaces, routes: Routes | Absent) -> Iterator[Finding]:
    """An interface's MTU is too small for RoCE packets of 4096 bytes.

    Right: Every RoCE interface's MTU is large enough for packets of 4096 bytes.
    Why: RoCE's packets are the power of two that fits into the interface's MTU: 1024 bytes at 1500, with four times the
    headers and work of 4096. NCCL takes the smaller size of both ends, so one such port slows its peers as well.
    Fix: `ip link set dev INTERFACE mtu 9000` (4200 is enough) on all nodes, and the same MTU on the switches between
    them.
    """
    default = () if isinstance(routes, Absent) else routes.default_interfaces
    rails = [port for port in _rails(fabric, settings) if (gbps(port) or 0) >= 100]
    owners = {port.name: _interface(port, found) for port in rails}
    if rails and not any(owners.values()):
        raise Unlearned("the ports' interfaces are not visible here: they may be in another network namespace")
    sizes = {name: _packet(owner.mtu) for name, owner in owners.items() if owner}
    for each in rails:
        owner, size = owners[each.name], sizes.get(each.name, 0)
        if owner is None:
            yield note(each.name, "its interface is not visible here", evidence=f"{path(each)}/gid_attrs/ndevs")
        elif size < 4096:
            shorter = size < max(sizes.values())
            message = f"{owner.name} has MTU {owner.mtu}: RoCE packets of {size} bytes"
            more = f", {max(sizes.values())} on other ports" if shorter else ""
            managed = owner.name in default and not shorter
            tell = note if managed or (size == 2048 and not shorter) else warn
            evidence = (f"/sys/class/net/{owner.name}/mtu", f"of it RoCE takes {_HEADERS} bytes")
            yield tell(each.name, message + more, blame="node", action="repair", evidence=evidence)


def _packet(mtu: int) -> int:
    """Return the largest packet of RoCE that fits an interface's MTU, 0 where none does."""
    return next((size for size in _SIZES if size + _HEADERS <= mtu), 0)


def _sysctls(**found: Ipv4Settings) -> Sysctls:
    numbers: dict[str, Any] = dict.fromkeys(("somaxconn", "rmem_max", "wmem_max", "tcp_rmem", "tcp_wmem"), _NO_SYSCTL)
    return Sysctls(_NO_SYSCTL, _NO_SYSCTL, **numbers, interfaces=found)


_SAME = interfaces(9000, 9000, prefix="10.0.0.{}")
_BOTH = fabric(roce(0, "10.0.0.0"), roce(1, "10.0.0.1"), count=0)


@check(
    slows=True,
    bad=lambda: [(_BOTH, PLAIN, _SAME, _routes(), _sysctls(eth0=_FLUX, eth1=_FLUX))],
    good=lambda: [(fabric(*_BOTH.ports, count=4), PLAIN, _SAME, _routes(), _sysctls(eth0=_FLUX, eth1=_FLUX))],
    applies=rdma_job,
)
def same_subnet(
    fabric: Fabric, settings: Settings, found: Interfaces, routes: Routes | Absent, sysctls: Sysctls | Absent
) -> Iterator[Finding]:
    """Several RoCE interfaces share one subnet, and nothing keeps their traffic apart.

    Right: RoCE interfaces have subnets of their own, or rules that keep their traffic apart.
    Why: Linux answers ARP for an address on any interface and sends by the first route that fits, so packets of one NIC
    arrive at, or leave by, another (nccl#1580); RDMA does not follow them there.
    Fix: give each NIC a subnet; or set net.ipv4.conf.INTERFACE.arp_ignore=1 and arp_announce=2 for each, or add a
    routing rule per address (ip rule).
    """
    shared: dict[str, list[str]] = defaultdict(list)
    for each in _rails(fabric, settings):
        owner = _interface(each, found)
        for subnet in _subnets(owner) if owner else ():
            if owner and owner.name not in shared[subnet]:
                shared[subnet].append(owner.name)
    for subnet, names in shared.items():
        if len(names) < 2:
            continue
        by_rule = None if isinstance(routes, Absent) or isinstance(routes.rules, Absent) else routes.policy
        loose = [name for name in names if _answers_for_others(sysctls, name)]
        if by_rule or loose == []:
            continue
        evidence = (f"arp_ignore and arp_announce of {listed(loose)}", "ip rule")
        message = f"are all in {subnet}, without arp_ignore=1 and arp_announce=2"
        doubt = "; whether there are routing rules is not known" if by_rule is None else " or routing rules"
        yield warn(listed(names), message + doubt, blame="node", action="repair", evidence=evidence)


def _subnets(interface: Interface) -> set[str]:
    own = [a for a in interface.addresses if a.family == "inet" and a.netmask]
    return {str(ip_interface(f"{a.address}/{a.netmask}").network) for a in own}


def _answers_for_others(sysctls: Sysctls | Absent, name: str) -> bool:
    """Return whether the interface answers ARP for others' addresses, or announces them. Not known counts as not seen
    to.
    """
    kept = None if isinstance(sysctls, Absent) else sysctls.interfaces.get(name)
    if kept is None:
        return False
    return not (_at_least(kept.arp_ignore, 1) and _at_least(kept.arp_announce, 2))


def _at_least(value: int | Absent, least: int) -> bool:
    return isinstance(value, Absent) or value >= least
