"""The interfaces that the nodes of a job use, and addresses that only one machine may have."""

from collections.abc import Iterator
from ipaddress import ip_address

from ncclprobe.checks import FABRIC, several
from ncclprobe.checks.env import loaded
from ncclprobe.checks.env.fixtures import DOCKER0, ETH0, LO, PLAIN, over
from ncclprobe.checks.ib import taken
from ncclprobe.checks.sync import IDENTITY_GROUP
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.process import Process, ResourceLimit, Stack, stack_of
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding, fail, note
from ncclprobe.model.hostlist import fold
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import Struct
from ncclprobe.nccl.interfaces import find_by


def sockets(found: Interfaces, settings: Settings, software: Software | Absent) -> tuple[Interface, ...]:
    """Return the interfaces that NCCL's sockets use and that lead to other nodes, in NCCL's order."""
    by_name = found.by_name
    chosen = find_by(found.addresses, settings, loaded(software)).interfaces
    return tuple(by_name[each.name] for each in chosen if by_name[each.name].leads_out)


def data_interfaces(
    found: Interfaces, settings: Settings, software: Software | Absent, fabric: Fabric | Absent | None, choices: Choices
) -> dict[str, Interface]:
    """Return the interfaces that carry a job's data on this node, by use: NCCL's sockets, and those of RoCE ports.

    With another network, that has devices of its own, only the first of the sockets matters: the bootstrap's.
    """
    ports = taken(fabric, settings) if isinstance(fabric, Fabric) else ()
    by_name = found.by_name
    devices = {device for network in choices.network.chosen or () for device in network.devices}
    of_its_own = ports or devices - {*by_name}  # Google's plugins send over interfaces, too
    chosen = sockets(found, settings, software)[: 1 if of_its_own and not choices.over_sockets else None]
    owners = {p.name: gid.netdev for p in ports if isinstance(p.gids, tuple) for gid in p.gids if gid.netdev}
    return {
        **{f"socket device {place}": each for place, each in enumerate(chosen)},
        **{f"RoCE port {port}": by_name[name] for port, name in owners.items() if name in by_name},
    }


_NO_LIMIT = ResourceLimit(None, None)


def _machine(boot_id: str | None) -> System:
    return System("node", "6.8.0", "x86_64", "Ubuntu 22.04", boot_id)


def within(namespace: int) -> Process:
    return Process(_NO_LIMIT, (0,), (0,), frozenset(), True, {"net": namespace})


HOST = Interfaces((LO, ETH0, DOCKER0))
TWO: Every[System | Absent] = Every({"n0": _machine("a"), "n1": _machine("b")})
ONE: Every[System | Absent] = Every({"n0": _machine("a"), "n1": _machine("a")})
TOGETHER: Every[Process | Absent] = Every({"n0": within(1), "n1": within(1)})
UNSET: Every[Settings | Absent] = Every({})
ANY: Every[Software | Absent] = Every({})
NO_FABRICS: Every[Fabric | Absent] = Every({})
OVER_SOCKETS = Every({f"n{i}": over("Socket") for i in range(4)})


@check(
    group=IDENTITY_GROUP,
    bad=lambda: [(Every({"n0": HOST, "n1": HOST}), TWO, TOGETHER, UNSET, ANY, NO_FABRICS, OVER_SOCKETS)],
    good=lambda: [(Every({"n0": HOST, "n1": HOST}), ONE, TOGETHER, UNSET, ANY, NO_FABRICS, OVER_SOCKETS)],
    applies=several,
)
def address_twice(
    interfaces: Every[Interfaces],
    systems: Every[System | Absent],
    processes: Every[Process | Absent],
    settings: Every[Settings | Absent],
    software: Every[Software | Absent],
    fabrics: Every[Fabric | Absent],
    choices: Every[Choices],
) -> Iterator[Finding]:
    """Two nodes have the same address.

    Right: Every node has its own address.
    Why: packets for one node arrive at the node that answered ARP last. Connections open, then are reset or reach the
    wrong rank. Container bridges have the same address everywhere, which is harmless.
    Fix: give one of the nodes another address. Look for a cloned image, an old DHCP lease, or a failover address.
    """
    holders: dict[str, list[_Holder]] = {}
    for node, found in interfaces.items():
        stack = stack_of(systems.by_node.get(node), processes.by_node.get(node))
        given, known = settings.by_node.get(node), software.by_node.get(node, Absent("not asked"))
        plain = given if isinstance(given, Settings) else PLAIN
        used = {
            each.name
            for each in data_interfaces(found, plain, known, fabrics.by_node.get(node), choices.by_node[node]).values()
        }
        for each in (each for each in found.all if each.leads_out):
            for address in {a.address for a in each.addresses if not _anybodys(a.address)}:
                holders.setdefault(address, []).append(_Holder(node, each.name, stack, each.name in used))
    for address, twice in holders.items():
        if len({holder.stack for holder in twice}) < 2 or any(holder.stack[0] is None for holder in twice):
            continue
        nodes = tuple(dict.fromkeys(holder.node for holder in twice))
        where = ", ".join(dict.fromkeys(holder.interface for holder in twice))
        used_by = [holder.node for holder in twice if holder.used]
        tell, why = (fail, "") if len(used_by) > 1 else (note, "; NCCL would use it on at most one of them")
        message = f"is the address of {len(nodes)} nodes, {fold(nodes)} (on {where}){why}"
        yield tell(address, message, **FABRIC, nodes=nodes, evidence="getifaddrs(3)")


class _Holder(Struct, frozen=True):
    """A node that has an address, and whether NCCL would use the interface that it is on."""

    node: str
    interface: str
    stack: Stack
    used: bool


def _anybodys(address: str) -> bool:
    """Return addresses that many machines may have: loopback and link-local ones."""
    known = ip_address(address.partition("%")[0])
    return known.is_loopback or known.is_link_local
