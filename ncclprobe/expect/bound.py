"""An upper bound on what a machine can still reach with its settings, next to what a healthy one should reach.

Judging the cost of a setting takes no exact number. Each function here is a limit that no run of the machine in its
present state can exceed: the rate of the NICs that NCCL would use, of sockets, of channels, of host memory between
GPUs, of the network between the nodes of a rack whose NVLinks are not used. The lowest limit counts. A test compares
them with every published run of a machine with such a handicap (tests/expect/test_bound.py).

Both numbers are the bus bandwidth of an out-of-place float32 all_reduce of :data:`NBYTES` over all GPUs.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.expect import network
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import NOTHING, Pinned, pinned
from ncclprobe.expect.predict import DATA, LATEST
from ncclprobe.expect.recognise import expectation_context
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.expect.tuner.cost import FUNCTIONS
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.software import Software
from ncclprobe.model.nccl_selection import NOT_CHOSEN, Choices, NetworkChoice
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Snapshot, learned
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl import networks
from ncclprobe.nccl.gpudirect import nearest_nics, user_level
from ncclprobe.nccl.hcas import gbps
from ncclprobe.nccl.paths import PathType, connected
from ncclprobe.nccl.selection import choose
from ncclprobe.nccl.values import SLOWING

OP, NBYTES = "all_reduce", 1 << 30

SOCKETS_GBps = 10.0
"""The most that the sockets of one node carry: 8.1 of 25 GB/s is the highest published number (two nodes of L40S over
200GbE, https://github.com/NVIDIA/nccl/issues/450: 4.5 to 5.2 of 12.5).
"""
_CHANNEL_GBps = ((100, 70.0), (90, 41.4), (80, 24.0), (0, 26.5))
"""The most that one channel of a ring or a tree carries, by compute capability: NCCL's own limits (src/graph/tuning.cc,
perChMaxTreeBws, v2.30.7). Published runs reach 30 per channel on Hopper.
"""
_SLOT_PAYLOAD = 1.1
"""The payload rate of a slot relative to NCCL's own figure (:mod:`.network`)."""


class _Healthy(Struct, frozen=True):
    """The machine without the fault, the ranks of the job, their bandwidth, and the path from each GPU to its NIC."""

    system: NodeSystem
    machine: MachineType | None
    version: NcclVersion
    shape: Shape
    GBps: float
    nearest: tuple[PathType, ...] = ()


def likeness(facts: Mapping[type, Any]) -> tuple[Any, ...]:
    """Return a key of everything that the prediction depends on: links, NICs and settings. Equal keys, equal
    prediction.
    """
    gpus, links, fabric = learned(facts, Gpus), learned(facts, NvLinks), learned(facts, Fabric)
    interfaces, settings, launch = learned(facts, Interfaces), learned(facts, Settings), learned(facts, Launch)
    same = (Pci, Cpus, PeerAccess, GpuDirect, Plugins, Software, Machine)
    return (
        tuple((gpu.name, gpu.lost, gpu.pcie_width) for gpu in gpus.all) if gpus else (),
        tuple(row if isinstance(row, Absent) else sum(e.state == "active" for e in row) for row in links.gpus)
        if links
        else (),
        tuple((port.name, port.state, gbps(port), port.link_layer) for port in fabric.ports) if fabric else (),
        tuple((i.name, i.running, i.speed_mbps, bool(i.addresses)) for i in interfaces.all) if interfaces else (),
        tuple((name, entry.value) for name, entry in settings.effective.items()) if settings else (),
        launch.nnodes if launch else None,
        *(id(facts.get(kind)) for kind in same),  # equal answers of a fleet are one fact
    )


def nodes_of(facts: Mapping[type, Any], system: NodeSystem, together: int = 1) -> int:
    """Return the number of nodes to judge for: the launcher's, otherwise `together`, and at least two if there are
    fabric NICs.
    """
    launch, said = learned(facts, Launch), learned(facts, NamedMachine)
    if said and (said.nodes == 1 or not system.nics):
        return 1
    announced = (launch.nnodes if launch else None) or together
    fabric = system.network not in (None, "sockets") and system.nics > 0
    return max(announced, 2) if fabric else announced


def predicted(facts: Mapping[type, Any], together: int = 1) -> AttainableRate | Absent:
    """Predict what a node with these facts can still reach, and what a healthy one should; Absent if unknown.

    `together`: the number of nodes judged, if no launcher announces the job's. A setting that the network's vendor
    prescribes has no cost: published numbers include it.
    """
    here = expectation_context(facts)
    if isinstance(here.system, Absent):
        return here.system
    shape = Shape((here.system.gpus,) * nodes_of(facts, here.system, together))
    version = here.nccl or LATEST
    whole = expectation(OP, NBYTES, shape, here.system, machine=here.machine, version=version)
    if whole is None:
        return Absent("no bandwidth expectation is known for this machine")
    near = nearest_nics(*(facts.get(kind, Absent("not asked")) for kind in (Gpus, Pci, Fabric)))
    healthy = _Healthy(here.system, here.machine, version, shape, whole.value, tuple(near))
    settings = learned(facts, Settings) or Settings()
    choices = _choose(facts, settings)
    right = _prescribed(facts, settings, choices)
    names = [name for name in settings.effective if name in SLOWING and name not in right]
    own = Settings({name: entry for name, entry in settings.effective.items() if name not in right})
    free = min(whole.value, most(healthy, _choose(facts, _drop_settings(settings, names)), Settings()))
    costs = {}
    for name in names:
        alone = Settings({name: settings.effective[name]})
        others = _drop_settings(settings, [each for each in names if each != name])
        left = most(healthy, _choose(facts, others), alone)
        if left < free:
            costs[name] = _digits(left)
    now = min(whole.value, most(healthy, choices, own))
    nvlinked = shape.nodes > 1 and network.domains(here.system, shape).count == 1
    return AttainableRate(_digits(now), _digits(whole.value), shape.nodes, costs, nvlinked)


def _digits(rate: float) -> float:
    """Return a rate with four digits, so that a small one keeps its share."""
    return float(f"{rate:.4g}")


def _choose(facts: Mapping[type, Any], settings: Settings) -> Choices:
    """Return NCCL's choices with these settings. Sockets are unknown as the network if a port's state is."""
    found, fabric = choose(Snapshot("", {**facts, Settings: settings})), learned(facts, Fabric)
    unread = fabric is not None and any(isinstance(port.state, Absent) for port in fabric.ports)
    sockets = any(each.name == "Socket" for each in found.network.chosen or ())
    return replace(found, network=NOT_CHOSEN) if unread and sockets else found


def _drop_settings(settings: Settings, names: list[str]) -> Settings:
    kept = {name: entry for name, entry in settings.effective.items() if name not in names}
    return replace(settings, effective=kept)


def _prescribed(facts: Mapping[type, Any], settings: Settings, choices: Choices) -> frozenset[str]:
    machine = facts.get(Machine, Absent("not asked"))
    found = networks.compared(settings, networks.in_use(settings, machine, choices))
    return frozenset(found.right)


def most(healthy: _Healthy, choices: Choices, settings: Settings) -> float:
    """Return the lowest of all limits, in GB/s. `choices` are what NCCL would use, `settings` the job's."""
    kept, level = pinned(settings, healthy.version), user_level(settings, "NCCL_NET_GDR_LEVEL", healthy.version)
    if level and healthy.nearest and not choices.gpudirect.chosen and level.path < min(healthy.nearest):
        kept = replace(kept, gdr=level.origin)  # it is not known which ports NCCL takes, but none is near enough
    return min(limits(healthy, choices, kept), default=float("inf"))


def limits(healthy: _Healthy, choices: Choices, kept: Pinned) -> Iterator[float]:
    """Yield the limit of each remaining link, and of the remaining algorithms."""
    bare = replace(kept, p2p="", shm="", gdr="", rdma="", hcas="", few=0, channels=())
    whole = replace(kept, p2p="").applied(healthy.system)
    if bare and not bare.refused:
        args = OP, NBYTES, healthy.shape, healthy.system
        found = expectation(*args, machine=healthy.machine, version=healthy.version, settings=bare)
        yield from [found.value] if found else ()
    makers = healthy.machine is not None and "nics" in healthy.machine.links.unverified
    listed = replace(kept, few=0) if makers and kept.few > 1 else kept  # the maker decides how many NICs there are
    yield from over_network(replace(kept, rdma="", few=0).applied(healthy.system), healthy.shape, choices, listed)
    yield from over_channels(whole, kept)
    yield from by_protocol(healthy, kept)
    if kept.p2p:
        yield through_host_GBps(whole)
    if kept.shm and not (whole.nvlinks and not kept.p2p):
        alone = kept.p2p or not whole.p2p
        yield from through_network(healthy.system, healthy.system.gpus if alone else _groups(choices))


def _groups(choices: Choices) -> int:
    """Return how many groups of GPUs only the network joins."""
    pairs = [(row.transport, {*pair}) for row in choices.p2p.chosen or () for pair in row.pairs]
    links = [each for how, ends in pairs for each in ([{end} for end in ends] if how == "NET" else [ends])]
    return len(connected(links))


def through_network(system: NodeSystem, senders: int) -> Iterator[float]:
    """Yield the limit between the GPUs of a node without P2P and shared memory: each sender uses NICs or sockets.

    Sockets within one node can be twice as fast as those between two, and one thread sends for each GPU.
    """
    fabric = system.network not in (None, "sockets") and system.nics
    whole = system.nics * system.nic_gbps / 8 if fabric else min(2.0, system.gpus / 2) * SOCKETS_GBps
    yield from [whole / senders] if senders > 1 else ()


def over_network(system: NodeSystem, shape: Shape, choices: Choices, kept: Pinned = NOTHING) -> Iterator[float]:
    """Yield the limit of the NICs, or sockets, that NCCL would use between nodes.

    If NCCL's choice is unknown, assume the machine's NICs, less those that the settings disable (`kept`).
    """
    parts = network.domains(system, shape)
    if parts.count < 2 or system.network in (None, "sockets") or choices.network.chosen == ():
        return
    (chosen,) = choices.network.chosen or (_remaining_network(system, kept),)
    line_GBps = chosen.rate_gbps / 8 if chosen.rate_gbps else None
    if chosen.name == "Socket":
        yield min(line_GBps or SOCKETS_GBps, SOCKETS_GBps) * network.crossing(shape, parts)
        return
    if line_GBps and line_GBps < parts.nics_GBps and chosen.devices:
        number = len(chosen.devices)
        few = replace(system, nics=number, nic_gbps=line_GBps * 8 / number)
        yield from _hard(few, shape)
    rows = choices.gpudirect.chosen
    if not system.gdr or (chosen.name == "IB" and rows and all(row.receives is False for row in rows)):
        found = network.limit(replace(system, gdr=False), shape, OP)
        yield from [found.value_GBps] if found else ()


def _remaining_network(system: NodeSystem, kept: Pinned) -> NetworkChoice:
    """Return the network that remains with these settings."""
    if kept.applied(system).network == "sockets":
        return NetworkChoice("Socket", "", (), None, kept.rdma)
    listed = kept.few if system.network in ("ib", "roce") else 0  # plugins have their own
    number = min(system.nics, listed or system.nics)
    return NetworkChoice("IB", "", ("",) * number, number * system.nic_gbps, kept.hcas)


def _hard(system: NodeSystem, shape: Shape) -> Iterator[float]:
    found = network.limit(system, shape, OP)
    yield from [found.hard_GBps] if found else ()


def over_channels(system: NodeSystem, kept: Pinned) -> Iterator[float]:
    """Yield the limit of the number of channels that the settings allow."""
    each = next(rate for oldest, rate in _CHANNEL_GBps if system.compute_capability >= oldest)
    yield from (limit.number * each for limit in kept.channels if limit.kind == "most")


def by_protocol(healthy: _Healthy, kept: Pinned) -> Iterator[float]:
    """Yield the limit of a GPU's links if only protocols remain that send flags with the data."""
    left = kept.protocols.kept.get(FUNCTIONS[OP])
    if left and "Simple" not in left:
        yield healthy.GBps * max(DATA[name] for name in left)


def through_host_GBps(system: NodeSystem) -> float:
    """Return the limit between GPUs through host memory: every byte crosses both GPUs' slots."""
    sharing = 2 if system.processor == "arm" and system.compute_capability >= 100 else 1
    return system.pcie_GBps / sharing * _SLOT_PAYLOAD
