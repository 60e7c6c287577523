"""What the ends of links must have in common: rate, MTU, partition, RoCE's marks, NVLink domain."""

from collections.abc import Iterator
from functools import partial
from ipaddress import IPv6Address
from typing import Any

from ncclprobe.checks import FABRIC, IMAGE, JOB, several
from ncclprobe.checks.env import loaded
from ncclprobe.checks.env.fixtures import ETH0, LO, PLAIN, having, hcas, interface
from ncclprobe.checks.ib import active, listed, taken
from ncclprobe.checks.majority import differing, kinds, named, several_with_gpus, split_by_kind, unlike
from ncclprobe.checks.nvl import CLUSTER, TRAY
from ncclprobe.checks.sync import LOCATION_GROUP, NETWORK_GROUP
from ncclprobe.checks.sync.addresses import OVER_SOCKETS, data_interfaces
from ncclprobe.checks.sync.host import DGXS, H100S
from ncclprobe.facts.driver import NODES, Imex
from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate, RoceMarks, RoceQos
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.hcas import gbps
from ncclprobe.nccl.networks import efa_ports
from ncclprobe.nccl.values import read_setting

_FULL_MEMBER = 0x8000

UNSET: Every[Settings] = Every({f"n{i}": PLAIN for i in range(4)})
ANY: Every[Software | Absent] = Every({})
FAST = hcas(2)


def changed(fabric: Fabric, **changes: Any) -> Fabric:
    """Return the same devices, each with a port changed so."""
    return Fabric(tuple(replace(d, ports=tuple(replace(p, **changes) for p in d.ports)) for d in fabric.devices))


SLOW = changed(FAST, rate=Rate(200, 4, "HDR"))
THREE_FAST = {f"n{i}": FAST for i in range(3)}
_WITHOUT_IT = {f"n{i}": having(NCCL_IB_HCA="mlx5_0") for i in range(4)}


def _ports(fabrics: Every[Fabric], settings: Every[Settings]) -> dict[str, tuple[Port, ...]]:
    """Return the active ports that NCCL takes on each node."""
    known = settings.by_node
    return {node: active(taken(fabric, known[node])) for node, fabric in fabrics.items() if node in known}


@check(
    group=NETWORK_GROUP,
    slows=True,
    bad=lambda: [(Every({**THREE_FAST, "n3": SLOW}), UNSET, DGXS, H100S)],
    good=lambda: [(Every({"n0": FAST}), UNSET, DGXS, H100S)],
    applies=several_with_gpus,
)
def rate(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """On nodes of the same kind the fastest NICs run at different rates.

    Right: On nodes of the same kind the fastest NICs run at the same rate.
    Why: collectives go through all nodes, so the links of the slowest node set the pace of the others. If a port is
    slower than others on the same node, ib.rate reports it. This check compares whole nodes.
    Fix: check the cables, transceivers and switch ports of the slower node (ibstat, mlxlink).
    """
    best = {
        node: max(rates)
        for node, ports in _ports(fabrics, settings).items()
        if (rates := [known for port in ports if (known := gbps(port)) is not None])
    }
    for part in split_by_kind(best, kinds(machines, gpus)):
        ballot = vote(part)
        lower = bool(ballot.outliers) and all(part[node] < ballot.usual for node in ballot.outliers)
        details: dict[str, Any] = {"tell": warn if ballot.settled and not lower else fail, "action": "repair"}
        details |= {"blame": "link" if lower else "fabric", "evidence": "/sys/class/infiniband/*/ports/*/rate"}
        yield from unlike(ballot, "{:g} Gb/s NICs".format, **details)


_DARK: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
ONE_DARK = Fabric((FAST.devices[0], *changed(Fabric(FAST.devices[1:]), **_DARK).devices))


@check(
    group=NETWORK_GROUP,
    slows=True,
    requires="ib.state",
    bad=lambda: [(Every({**THREE_FAST, "n3": ONE_DARK}), UNSET, DGXS, H100S)],
    good=lambda: [(Every({**THREE_FAST, "n3": ONE_DARK}), Every(_WITHOUT_IT), DGXS, H100S)],
    applies=several_with_gpus,
)
def port_state(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """A port is down on one node but up on the others.

    Right: Every port that is up on most nodes is up on all.
    Why: a port that is up on other nodes should be up here too. NCCL uses only active ports and does not mention the
    others, so this node has fewer NICs than the rest. On a single node a port that lost its cable looks the same as a
    port that needs none.
    Fix: reseat or replace the cable of this port and check its switch port. If the port is Disabled, enable it with
    mlxlink or ibportstate.
    """
    parts = split_by_kind(
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
    message = f"is {what}, but ACTIVE on {'the other node' if lit == 1 else f'{lit} other nodes'}"
    tell = fail if lit > len(dark) or len(dark) == 1 else warn
    evidence = f"/sys/class/infiniband/{port.device}/ports/{port.number}/state"
    return tell(f"{named(nodes)} {port.name}", message, blame="link", action="repair", nodes=nodes, evidence=evidence)


def with_mtu(mtu: int) -> Interfaces:
    return Interfaces((LO, replace(ETH0, mtu=mtu)))


JUMBO = with_mtu(9000)
_THREE_JUMBO = {f"n{i}": JUMBO for i in range(3)}
NO_FABRICS: Every[Fabric | Absent] = Every({})


@check(
    group=NETWORK_GROUP,
    slows=True,
    bad=lambda: [(Every({**_THREE_JUMBO, "n3": with_mtu(1500)}), UNSET, ANY, NO_FABRICS, OVER_SOCKETS)],
    good=lambda: [(Every({**_THREE_JUMBO, "n3": JUMBO}), UNSET, ANY, NO_FABRICS, OVER_SOCKETS)],
    applies=several,
)
def mtu(
    interfaces: Every[Interfaces],
    settings: Every[Settings],
    software: Every[Software | Absent],
    fabrics: Every[Fabric | Absent],
    choices: Every[Choices],
) -> Iterator[Finding]:
    """The interfaces between the nodes have different MTUs.

    Right: The interfaces between the nodes have the same MTU.
    Why: RoCE uses the smaller packet size of the two ends (src/transport/net_ib/connect.cc), and TCP agrees on the
    smaller segment. So the node with the smaller MTU slows its peers. If a device between them drops packets that are
    too large, connections open and then stall (nccl#1524). path.mtu tests whether large messages pass.
    Fix: run `ip link set dev INTERFACE mtu 9000` on all nodes, or set the largest MTU that the switches support.
    """
    ends: dict[str, dict[str, Interface]] = {}
    for node, found in interfaces.items():
        known = software.by_node.get(node, Absent("not asked"))
        given, fabric = settings.by_node.get(node, PLAIN), fabrics.by_node.get(node)
        for use, each in data_interfaces(found, given, known, fabric, choices.by_node[node]).items():
            ends.setdefault(use, {})[node] = each
    reported = set()
    for use, every in ends.items():
        ballot = vote({node: each.mtu for node, each in every.items()})
        outliers = ballot.outliers
        name = every[next(iter(outliers or every))].name
        if ballot.agreed or (outliers, name) in reported:  # one interface may have several uses
            continue
        reported.add((outliers, name))
        seen = (f"/sys/class/net/{name}/mtu", use)
        yield from unlike(ballot, "MTU {}".format, name, subject=name, evidence=seen, **IMAGE)


LIMITED = changed(FAST, pkeys=((0, 0x7FFF),))


@check(
    group=NETWORK_GROUP,
    bad=lambda: [(Every({"n0": LIMITED, "n1": LIMITED}), UNSET)],
    good=lambda: [(Every({"n0": FAST, "n1": FAST}), UNSET)],
    applies=several_with_gpus,
)
def pkey(fabrics: Every[Fabric], settings: Every[Settings]) -> Iterator[Finding]:
    """InfiniBand ports of different nodes are not full members of the same partition.

    Right: InfiniBand ports of all nodes are full members of the same partition.
    Why: two queue pairs can communicate only if the P_Keys at their NCCL_IB_PKEY index (0 by default) belong to the
    same partition and at least one is a full member (bit 15). Otherwise every packet is silently dropped, and the job
    fails when its retries are exhausted.
    Fix: configure the subnet manager to make all ports of the job full members of one partition (partitions.conf, or
    the cloud's placement), or set NCCL_IB_PKEY to the index of the common partition.
    """
    seen = "/sys/class/infiniband/*/ports/*/pkeys"
    blamed = {**FABRIC, "evidence": seen}
    keys: dict[str, frozenset[int]] = {}
    for node, ports in _ports(fabrics, settings).items():
        index = read_setting(settings.by_node[node], "NCCL_IB_PKEY", 0)
        every = [port.pkeys for port in ports if port.link_layer == "InfiniBand"]
        tables = [dict(table) for table in every if not isinstance(table, Absent) and table]
        if tables and all(index in table for table in tables):
            keys[node] = frozenset(table[index] for table in tables)
    partitions = vote({node: frozenset(key & ~_FULL_MEMBER for key in found) for node, found in keys.items()})
    limited = [node for node, found in keys.items() if not any(key & _FULL_MEMBER for key in found)]
    if not partitions.agreed:
        say = partial(map, "{:#06x}".format)
        yield from unlike(partitions, lambda found: f"partition {', '.join(say(sorted(found)))}", tell=fail, **blamed)
    elif len(limited) > 1:
        message = (
            f"{len(limited)} of {len(keys)} nodes are only limited members, which cannot communicate with each other"
        )
        yield fail(named(limited), message, nodes=tuple(limited), **blamed)
    elif limited and len(keys) > 1:
        message = "is only a limited member; it can communicate with the others, which are full members"
        yield warn(named(limited), message, nodes=tuple(limited), **blamed)


def prefixed(*prefixes: str) -> Fabric:
    tables = [(Gid(0, IPv6Address(f"{prefix}::{n + 1}")),) for n, prefix in enumerate(prefixes)]
    devices = hcas(len(prefixes)).devices
    ports = [replace(device.ports[0], gids=table) for device, table in zip(devices, tables, strict=True)]
    return Fabric(tuple(replace(d, ports=(p,)) for d, p in zip(devices, ports, strict=True)))


RAILS, _SWAPPED = prefixed("fec0:0:0:1", "fec0:0:0:2"), prefixed("fec0:0:0:2", "fec0:0:0:1")


@check(
    group=NETWORK_GROUP,
    bad=lambda: [(Every({"n0": RAILS, "n1": RAILS, "n2": _SWAPPED}), UNSET, DGXS, H100S)],
    good=lambda: [(Every({"n0": RAILS, "n1": RAILS}), UNSET, DGXS, H100S)],
    applies=several_with_gpus,
)
def subnet_prefix(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """InfiniBand ports on one rail are in different subnets.

    Right: InfiniBand ports on one rail are in the same subnet.
    Why: NCCL first connects NICs with the same number. In different subnets they reach each other only through a
    router, if at all. If a node has the prefixes of other rails, it is cabled to the wrong switches.
    Fix: compare the cabling of the ports that the finding names with that of a healthy node, and compare the subnet
    managers' prefixes.
    """
    rails: dict[str, dict[str, str]] = {}
    for node, ports in _ports(fabrics, settings).items():
        for each in ports:
            if each.link_layer == "InfiniBand" and (prefix := _prefix(each)):
                rails.setdefault(each.name, {})[node] = prefix
    same: dict[str, tuple[dict[str, Any], list[str]]] = {}
    kind = kinds(machines, gpus)
    for rail, values in rails.items():
        for ballot in (vote(part) for part in split_by_kind(values, kind)):
            if not ballot.agreed:
                told = differing(ballot, "subnet {}".format)
                same.setdefault(told["message"], (told, []))[1].append(rail)
    for told, names in same.values():
        seen = f"/sys/class/infiniband/{names[0].replace(':', '/ports/')}/gids/0"
        yield warn(listed(names), **FABRIC, evidence=seen, **told)


def _prefix(port: Port) -> str:
    """Return the upper half of GID 0, empty if there is none."""
    table = {gid.index: gid for gid in port.gids} if isinstance(port.gids, tuple) else {}
    return str(IPv6Address(int(table[0].address) >> 64 << 64)) if 0 in table else ""


SET = RoceMarks("Global tclass=106", (3,), (3,))
NODE = RoceQos({f"mlx5_{n}:1": SET for n in range(2)})


@applies
def marks_shown(marks: Every[RoceQos | Absent], job: Job) -> bool:
    """to jobs on GPUs, if the driver of several nodes shows how RoCE ports mark their traffic (MLNX_OFED, DOCA)."""
    told = [isinstance(each, RoceQos) and any(map(_told, each.ports.values())) for _, each in marks.items()]
    return job.backend == "nccl" and sum(told) > 1


@check(
    group=NETWORK_GROUP,
    slows=True,
    bad=lambda: [
        (Every({"n0": NODE, "n1": RoceQos({**NODE.ports, "mlx5_1:1": replace(SET, notifies=(0, 3))})}), DGXS, H100S)
    ],
    good=lambda: [(Every({"n0": NODE, "n1": NODE}), DGXS, H100S)],
    applies=marks_shown,
)
def roce_qos(marks: Every[RoceQos], machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]) -> Iterator[Finding]:
    """On nodes of the same kind, RoCE ports mark or slow their traffic differently.

    Right: On nodes of the same kind, RoCE ports mark and slow their traffic in the same way.
    Why: switches queue and pause packets by their marks. If a node uses another traffic class, its packets are dropped
    while those of the others are paused. A node that ignores ECN takes the bandwidth that the others give up.
    Fix: at boot set the same values on all nodes: /sys/class/infiniband/*/tc/1/traffic_class, mlnx_qos -i INTERFACE
    --pfc and --trust dscp, ecn/roce_np/enable and ecn/roce_rp/enable. NCCL_IB_TC sets the class of NCCL's own packets.
    """
    known = {node: each for node, each in marks.items() if any(map(_told, each.ports.values()))}
    for part in split_by_kind(known, kinds(machines, gpus)):
        for name in dict.fromkeys(name for each in part.values() for name in each.ports):
            here = {node: each.ports[name] for node, each in part.items() if name in each.ports}
            yield from _compared(name, {node: each for node, each in here.items() if _told(each)})


def _told(marks: RoceMarks) -> bool:
    return not all(isinstance(each, Absent) for each in (marks.traffic_class, marks.slows, marks.notifies))


def _compared(name: str, ports: dict[str, RoceMarks]) -> Iterator[Finding]:
    ballot = vote({node: _words(each) for node, each in ports.items()})
    seen = ("/sys/class/infiniband/*/tc/*/traffic_class", "/sys/class/net/*/ecn")
    where = f"{named(ballot.outliers)} {name}" if ballot.outliers else name
    yield from unlike(ballot, what=f"{name} marks", subject=where, evidence=seen, **IMAGE)


def _words(marks: RoceMarks) -> str:
    """Return what is known of a port; what its driver does not show is not held against it."""
    words = [] if isinstance(marks.traffic_class, Absent) else [marks.traffic_class or "no traffic class"]
    for what, priorities in (("slows down on ECN for", marks.slows), ("sends ECN notifications for", marks.notifies)):
        if not isinstance(priorities, Absent):
            listed = " and ".join(map(str, priorities))
            words.append(f"{what} priority {listed}" if listed else f"{what} no priority")
    return ", ".join(words)


_OTHER_CLIQUE = replace(TRAY, all=tuple(replace(gpu, fabric=replace(CLUSTER, clique=7)) for gpu in TRAY.all))
HOSTS = Every({"n0": Interfaces((LO, ETH0)), "n1": Interfaces((LO, interface("eth0", 2, "10.0.0.6")))})
PLAINS = Every({"n0": PLAIN, "n1": PLAIN})
UNSEEN: Every[Imex | Absent] = Every({"n0": Absent("not here"), "n1": Absent("not here")})


@applies
def several_trays(gpus: Every[Gpus | Absent], job: Job) -> bool:
    """to jobs on GPUs, if the NVLinks of several nodes lead to other machines (MNNVL)."""
    return (
        job.backend == "nccl" and sum(isinstance(each, Gpus) and bool(_domains(each)) for _, each in gpus.items()) > 1
    )


def _domains(gpus: Gpus) -> frozenset[tuple[str, int]]:
    """Return cluster and clique of the GPUs that are in a cluster of machines."""
    joined = [gpu.fabric for gpu in gpus.all if isinstance(gpu.fabric, GpuFabric) and gpu.fabric.state == "completed"]
    return frozenset((each.cluster, each.clique) for each in joined if each.cluster.strip("0-"))


@check(
    group=LOCATION_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": TRAY, "n1": _OTHER_CLIQUE}), UNSEEN, HOSTS, PLAINS, ANY)],
    good=lambda: [
        (
            Every({"n0": TRAY, "n1": _OTHER_CLIQUE}),
            UNSEEN,
            HOSTS,
            Every(dict.fromkeys(("n0", "n1"), having(NCCL_MNNVL_ENABLE="0"))),
            ANY,
        )
    ],
    applies=several_trays,
)
def rack(
    gpus: Every[Gpus],
    services: Every[Imex | Absent],
    interfaces: Every[Interfaces | Absent],
    settings: Every[Settings],
    software: Every[Software | Absent],
) -> Iterator[Finding]:
    """Machines in one rack are not in the same NVLink domain.

    Right: Machines in one rack are in the same NVLink domain, according to their GPUs and IMEX.
    Why: NCCL uses NVLink between machines whose GPUs have the same cluster UUID and clique (src/mnnvl.cc), and NICs
    between all others. If IMEX on these machines does not list the same nodes, or is not ready, sharing memory fails
    and NCCL does not start.
    Fix: write one nodes_config.cfg with the addresses of all trays, and restart nvidia-imex on each tray (in Kubernetes
    use one ComputeDomain). Different cliques are partitions, which are configured in the fabric manager (NMX-C on
    racks).
    """
    off = {n for n, each in settings.items() if read_setting(each, "NCCL_MNNVL_ENABLE", 2, _version(software, n)) == 0}
    domains = {node: _domains(each) for node, each in gpus.items() if node not in off and _domains(each)}
    clusters = grouped((min(cluster for cluster, _ in found), node) for node, found in domains.items())
    for cluster, nodes in clusters.items():
        yield from _cliques(cluster, {node: domains[node] for node in nodes})
        yield from _services({node: services.by_node.get(node) for node in nodes}, interfaces)
    yield from _lone_machines(clusters)


def _version(software: Every[Software | Absent], node: str) -> tuple[int, int, int] | None:
    return loaded(software.by_node.get(node, Absent("not asked")))


_SEEN = "nvmlDeviceGetGpuFabricInfo (nvidia-smi -q: Fabric)"


def _cliques(cluster: str, domains: dict[str, frozenset[tuple[str, int]]]) -> Iterator[Finding]:
    ballot = vote({node: tuple(sorted({clique for _, clique in found})) for node, found in domains.items()})
    more = {"before": f"of cluster {cluster[:8]}: ", "evidence": _SEEN, **FABRIC}
    yield from unlike(ballot, lambda each: f"NVLink clique {' and '.join(map(str, each))}", **more)


def _lone_machines(clusters: dict[str, list[str]]) -> Iterator[Finding]:
    """Yield machines that are alone in a cluster while others share one: all their traffic goes over the NICs."""
    single = [nodes[0] for nodes in clusters.values() if len(nodes) == 1]
    if single and len(single) < len(clusters):
        one = len(single) == 1
        alone = "is the only node in its NVLink cluster" if one else "are each the only node in their NVLink clusters"
        message = f"{alone}, but the others share one; {'its' if one else 'their'} traffic uses the NICs"
        yield warn(named(single), message, **JOB, nodes=tuple(single), evidence=_SEEN)
    elif len(clusters) > 1:
        yield note("racks", f"the nodes are in {len(clusters)} NVLink clusters, which NICs connect", evidence=_SEEN)


def _services(services: dict[str, Imex | Absent | None], interfaces: Every[Interfaces | Absent]) -> Iterator[Finding]:
    known = {node: each for node, each in services.items() if isinstance(each, Imex)}
    lists = {node: tuple(sorted(each.nodes)) for node, each in known.items() if isinstance(each.nodes, tuple)}
    ballot = vote(lists)
    if not ballot.agreed:
        what = "IMEX lists different nodes:"
        yield from unlike(ballot, _listed, what, before=f"{what} ", tell=fail, evidence=NODES, **IMAGE)
    elif lists and (missing := _unlisted(lists, interfaces)):
        message = f"IMEX on {plural(len(lists), 'node')} does not list any of its addresses"
        yield fail(named(missing), message, nodes=missing, evidence=NODES, **IMAGE)
    late = {node: each.state for node, each in known.items() if isinstance(each.state, str) and each.state != "READY"}
    if late:
        message = f"nvidia-imex is {' or '.join(sorted(set(late.values())))}, not READY"
        yield fail(named(late), message, nodes=tuple(late), evidence="nvidia-imex-ctl -q", **IMAGE)


def _listed(addresses: tuple[str, ...]) -> str:
    return f"{plural(len(addresses), 'node')} ({first_of(addresses, 3)})"


def _unlisted(lists: dict[str, tuple[str, ...]], interfaces: Every[Interfaces | Absent]) -> tuple[str, ...]:
    """Return the nodes none of whose addresses are listed; one whose addresses are not known is none of them."""
    listed = set(next(iter(lists.values())))
    own = {n: {a.address for a in each.addresses} for n, each in interfaces.items() if isinstance(each, Interfaces)}
    numeric = all(each.replace(".", "").isdigit() or ":" in each for each in listed)
    return tuple(node for node in lists if numeric and node in own and not own[node] & listed)
