"""What the ends of links must have in common: rate, MTU, partition, subnet."""

from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Any

from ncclprobe.checks import several
from ncclprobe.checks.env.fixtures import ETH0, LO, PLAIN, having, hcas
from ncclprobe.checks.ib.selection import active, listed, taken
from ncclprobe.checks.sync import describe, kinds, named, of_one_kind, several_with_gpus
from ncclprobe.checks.sync.counts import DGXS, H100S
from ncclprobe.checks.sync.interfaces import data_interfaces
from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding, fail, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import replace
from ncclprobe.nccl.hcas import gbps
from ncclprobe.nccl.networks import efa_ports
from ncclprobe.nccl.values import read_setting

_FULL_MEMBER = 0x8000

_PLAIN: Every[Settings] = Every({f"n{i}": PLAIN for i in range(4)})
_ANY: Every[Software | Absent] = Every({})
_FAST = hcas(2)


def _changed(fabric: Fabric, **changes: Any) -> Fabric:
    """Return the same devices, each with a port changed so."""
    return Fabric(tuple(replace(d, ports=tuple(replace(p, **changes) for p in d.ports)) for d in fabric.devices))


_SLOW = _changed(_FAST, rate=Rate(200, 4, "HDR"))
_THREE_FAST = {f"n{i}": _FAST for i in range(3)}
_WITHOUT_IT = {f"n{i}": having(NCCL_IB_HCA="mlx5_0") for i in range(4)}


def _ports(fabrics: Every[Fabric], settings: Every[Settings]) -> dict[str, tuple[Port, ...]]:
    """Return the active ports that NCCL takes on each node."""
    known = settings.by_node
    return {node: active(taken(fabric, known[node])) for node, fabric in fabrics.items() if node in known}


@check(
    slows=True,
    bad=lambda: [(Every({**_THREE_FAST, "n3": _SLOW}), _PLAIN, DGXS, H100S)],
    good=lambda: [(Every({"n0": _FAST}), _PLAIN, DGXS, H100S)],
    applies=several_with_gpus,
)
def rate(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """The fastest NICs of nodes of one kind run at different rates.

    Right: The fastest NICs of nodes of one kind run at one rate.
    Why: collectives go round all nodes, so that the slowest node's links pace every other's. A port that is slower than
    its neighbours on the same node is ib.rate's finding; this is about a whole node.
    Fix: look at cables, transceivers and the switch ports of the node that is slower (ibstat, mlxlink).
    """
    best = {
        node: max(rates)
        for node, ports in _ports(fabrics, settings).items()
        if (rates := [known for port in ports if (known := gbps(port)) is not None])
    }
    for part in of_one_kind(best, kinds(machines, gpus)):
        ballot = vote(part)
        if ballot.agreed:
            continue
        outliers = ballot.outliers
        lower = bool(outliers) and all(part[node] < ballot.usual for node in outliers)
        tell = warn if ballot.settled and not lower else fail
        blamed = {"blame": "link" if lower else "fabric", "action": "repair"}
        seen = "/sys/class/infiniband/*/ports/*/rate"
        yield tell(named(outliers), describe(ballot, "{:g} Gb/s".format), nodes=outliers, evidence=seen, **blamed)


_DARK: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
_ONE_DARK = Fabric((_FAST.devices[0], *_changed(Fabric(_FAST.devices[1:]), **_DARK).devices))


@check(
    slows=True,
    requires="ib.state",
    bad=lambda: [(Every({**_THREE_FAST, "n3": _ONE_DARK}), _PLAIN, DGXS, H100S)],
    good=lambda: [(Every({**_THREE_FAST, "n3": _ONE_DARK}), Every(_WITHOUT_IT), DGXS, H100S)],
    applies=several_with_gpus,
)
def port_state(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """A port is down on a node, and up on the others.

    Right: Every port that is up on most nodes is up on all.
    Why: what is up elsewhere was meant to be up: NCCL takes the ports that are active and is silent about the others,
    so that this node has fewer NICs than the rest. One node alone cannot tell a port without a cable from one that
    needs none.
    Fix: reseat or replace the cable of this port and look at its switch port; one that is Disabled is switched on by
    mlxlink or ibportstate.
    """
    parts = of_one_kind(
        {node: _placed(each, settings.by_node.get(node)) for node, each in fabrics.items()}, kinds(machines, gpus)
    )
    for part in parts:
        for place in dict.fromkeys(place for ports in part.values() for place in ports):
            here = {node: ports[place] for node, ports in part.items() if place in ports}
            dark = {n: p for n, p in here.items() if isinstance(p.state, str) and p.state != "ACTIVE"}
            lit = [node for node, port in here.items() if port.state == "ACTIVE"]
            if dark and len(lit) >= len(dark):
                yield _dark(dark, len(lit))


def _placed(fabric: Fabric, settings: Settings | None) -> dict[tuple[str, int], Port]:
    """Return the ports that NCCL would take by their place: a NIC that is gone hands its name to the next one."""
    slots = {device.name: device.pci for device in fabric.devices if isinstance(device.pci, str)}
    ports = () if settings is None else (*taken(fabric, settings), *efa_ports(fabric))
    return {(slots.get(port.device, port.device), port.number): port for port in ports}


def _dark(dark: dict[str, Port], lit: int) -> Finding:
    """Return a finding on the port that is down on these nodes and up on `lit` others."""
    port = next(iter(dark.values()))
    nodes, same = tuple(dark), len({(p.state, p.physical) for p in dark.values()}) == 1
    what = f"{port.state}/{port.physical}" if same and isinstance(port.physical, str) else str(port.state)
    message = f"is {what}, and ACTIVE on {'the other node' if lit == 1 else f'{lit} other nodes'}"
    tell = fail if lit > len(dark) or len(dark) == 1 else warn
    evidence = f"/sys/class/infiniband/{port.device}/ports/{port.number}/state"
    return tell(f"{named(nodes)} {port.name}", message, blame="link", action="repair", nodes=nodes, evidence=evidence)


def _with_mtu(mtu: int) -> Interfaces:
    return Interfaces((LO, replace(ETH0, mtu=mtu)))


_JUMBO = _with_mtu(9000)
_THREE_JUMBO = {f"n{i}": _JUMBO for i in range(3)}
_NO_FABRICS: Every[Fabric | Absent] = Every({})


@check(
    slows=True,
    bad=lambda: [(Every({**_THREE_JUMBO, "n3": _with_mtu(1500)}), _PLAIN, _ANY, _NO_FABRICS)],
    good=lambda: [(Every({**_THREE_JUMBO, "n3": _JUMBO}), _PLAIN, _ANY, _NO_FABRICS)],
    applies=several,
)
def mtu(
    interfaces: Every[Interfaces],
    settings: Every[Settings],
    software: Every[Software | Absent],
    fabrics: Every[Fabric | Absent],
) -> Iterator[Finding]:
    """The interfaces between the nodes have different MTUs.

    Right: The interfaces between the nodes have one MTU.
    Why: RoCE takes the smaller packet of both ends (src/transport/net_ib/connect.cc), and TCP agrees on the smaller
    segment, so that the node with the smaller MTU slows its peers; if anything between them drops what is too large for
    it, connections open and then stand still (nccl#1524). Whether large messages pass is tried where paths are probed.
    Fix: `ip link set dev INTERFACE mtu 9000` on all nodes, or the largest MTU that the switches carry.
    """
    ends: dict[str, dict[str, Interface]] = {}
    for node, found in interfaces.items():
        known = software.by_node.get(node, Absent("not asked"))
        here = data_interfaces(found, settings.by_node.get(node, PLAIN), known, fabrics.by_node.get(node))
        for use, each in here.items():
            ends.setdefault(use, {})[node] = each
    reported = set()
    for use, every in ends.items():
        ballot = vote({node: each.mtu for node, each in every.items()})
        outliers = ballot.outliers
        name = every[next(iter(outliers or every))].name
        if ballot.agreed or (outliers, name) in reported:  # one interface may have several uses
            continue
        reported.add((outliers, name))
        message, seen = describe(ballot, "MTU {}".format), (f"/sys/class/net/{name}/mtu", use)
        yield warn(name, message, blame="image", action="fix-image", nodes=outliers, evidence=seen)


_LIMITED = _changed(_FAST, pkeys={0: 0x7FFF})


@check(
    bad=lambda: [(Every({"n0": _LIMITED, "n1": _LIMITED}), _PLAIN)],
    good=lambda: [(Every({"n0": _FAST, "n1": _FAST}), _PLAIN)],
    applies=several_with_gpus,
)
def pkey(fabrics: Every[Fabric], settings: Every[Settings]) -> Iterator[Finding]:
    """InfiniBand ports of different nodes are not full members of one partition.

    Right: InfiniBand ports of all nodes are full members of one partition.
    Why: two queue pairs talk only where the P_Keys at their NCCL_IB_PKEY index (0 by default) name one partition and at
    least one is a full member (bit 15); else every message is dropped without a message, and the job ends in retries.
    Fix: have the subnet manager put all ports of the job into one partition as full members (partitions.conf, or the
    cloud's placement), or set NCCL_IB_PKEY to the index of the common one.
    """
    seen = "/sys/class/infiniband/*/ports/*/pkeys"
    blamed = {"blame": "fabric", "action": "repair", "evidence": seen}
    keys: dict[str, frozenset[int]] = {}
    for node, ports in _ports(fabrics, settings).items():
        index = read_setting(settings.by_node[node], "NCCL_IB_PKEY", 0)
        every = [port.pkeys for port in ports if port.link_layer == "InfiniBand"]
        tables = [table for table in every if not isinstance(table, Absent) and table]
        if tables:
            keys[node] = frozenset(table.get(index, 0) for table in tables)
    partitions = vote({node: frozenset(key & ~_FULL_MEMBER for key in found) for node, found in keys.items()})
    limited = [node for node, found in keys.items() if not any(key & _FULL_MEMBER for key in found)]
    if not partitions.agreed:
        outliers = partitions.outliers
        message = describe(partitions, lambda found: "partition " + ", ".join(f"{key:#06x}" for key in sorted(found)))
        yield fail(named(outliers), message, nodes=outliers, **blamed)
    elif len(limited) > 1:
        message = f"{len(limited)} of {len(keys)} nodes are limited members only, which cannot talk to each other"
        yield fail(named(limited), message, nodes=tuple(limited), **blamed)
    elif limited and len(keys) > 1:
        message = "is a limited member only: it can talk to the others, which are full members"
        yield warn(named(limited), message, nodes=tuple(limited), **blamed)


def _prefixed(*prefixes: str) -> Fabric:
    tables = [(Gid(0, IPv6Address(f"{prefix}::{n + 1}")),) for n, prefix in enumerate(prefixes)]
    devices = hcas(len(prefixes)).devices
    ports = [replace(device.ports[0], gids=table) for device, table in zip(devices, tables, strict=True)]
    return Fabric(tuple(replace(d, ports=(p,)) for d, p in zip(devices, ports, strict=True)))


_RAILS, _SWAPPED = _prefixed("fec0:0:0:1", "fec0:0:0:2"), _prefixed("fec0:0:0:2", "fec0:0:0:1")


@check(
    bad=lambda: [(Every({"n0": _RAILS, "n1": _RAILS, "n2": _SWAPPED}), _PLAIN, DGXS, H100S)],
    good=lambda: [(Every({"n0": _RAILS, "n1": _RAILS}), _PLAIN, DGXS, H100S)],
    applies=several_with_gpus,
)
def subnet_prefix(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """InfiniBand ports of one rail are in different subnets.

    Right: InfiniBand ports of one rail are in one subnet.
    Why: NICs of the same number talk to each other first; in another subnet they are reached over a router at best. A
    node whose prefixes are those of other rails is cabled to the wrong switches.
    Fix: compare the cabling of the ports named with a healthy neighbour's, and the subnet managers' prefixes.
    """
    rails: dict[str, dict[str, str]] = {}
    for node, ports in _ports(fabrics, settings).items():
        for each in ports:
            if each.link_layer == "InfiniBand" and (prefix := _prefix(each)):
                rails.setdefault(each.name, {})[node] = prefix
    same: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    kind = kinds(machines, gpus)
    for rail, values in rails.items():
        for ballot in (vote(part) for part in of_one_kind(values, kind)):
            if not ballot.agreed:
                same.setdefault((describe(ballot), ballot.outliers), []).append(rail)
    for (message, outliers), names in same.items():
        seen = f"/sys/class/infiniband/{names[0].replace(':', '/ports/')}/gids/0"
        yield warn(listed(names), message, blame="fabric", action="repair", nodes=outliers, evidence=seen)


def _prefix(port: Port) -> str:
    """Return the upper half of GID 0, empty where there is none."""
    table = {gid.index: gid for gid in port.gids} if isinstance(port.gids, tuple) else {}
    return str(IPv6Address(int(table[0].address) >> 64 << 64)) if 0 in table else ""
