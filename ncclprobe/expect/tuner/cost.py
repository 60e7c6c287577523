"""NCCL's cost model: the time of each algorithm and protocol for one call, and NCCL's choice.

``time_us = latency + bytes / (1000 x algorithm bandwidth)``, over every pair that the communicator has. Source:
src/graph/tuning.cc:240 ncclTopoTuneModel and :640 ncclTopoGetAlgoTime, src/enqueue.cc:2040 the choice (v2.30.7),
docs/maintainers/nccl.md; the constants per version are in :mod:`ncclprobe.expect.tuner.constants`.

The model ranks algorithms. Its times are within some 5 % near saturation on NVSwitch machines, and off by a factor of
two or more for small messages between nodes. Tables and choices equal those of NCCL's own code, release by release
(tests/data/nccl). Left out: CollNet, tuner plugins, CUDA 11.8's special case of LL128, POWER's penalty of trees, and
several operations in one group. NCCL has no model of all_to_all, gather, scatter and sendrecv: see
:mod:`ncclprobe.expect.tuner.search`.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, cast

from ncclprobe.expect.system import NcclVersion, NodeSystem, Processor, Shape
from ncclprobe.expect.tuner.constants import (
    ALGORITHMS,
    CORRECTIONS,
    MOST_CHANNELS,
    MOST_NVLS,
    PROTOCOLS,
    Algorithm,
    Hardware,
    PCI_GBps,
    Protocol,
    Tuning,
    tuning,
)
from ncclprobe.expect.tuner.search import TREE, WORDS, Graph, Graphs, nvlink_domains
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import Struct

Function = Literal["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"]


class _Communicator(Struct, frozen=True):
    """A communicator: `nodes` as NCCL counts them, and the keys of its tables."""

    graphs: Graphs
    system: NodeSystem
    ranks: int
    nodes: int
    version: NcclVersion

    @property
    def tuning(self) -> Tuning:
        """Return the constants of this version."""
        return tuning(self.version)

    @property
    def per_node(self) -> float:
        """Return the average number of ranks per node."""
        return self.ranks / self.nodes

    @property
    def generation(self) -> int:
        """Return the table row: Volta, Ampere, Hopper, Blackwell."""
        cc = self.system.compute_capability
        return 3 if cc >= 100 else 2 if cc >= 90 else 1 if cc >= 80 else 0

    @property
    def column(self) -> int:
        """Return the table column: one node, two, more."""
        return min(self.nodes, 3) - 1

    def graph(self, algorithm: Algorithm) -> Graph:
        """Return the channels that `algorithm` uses."""
        nvls = self.graphs.nvls or self.graphs.ring
        trees = self.graphs.tree
        return {"Tree": trees, "Ring": self.graphs.ring, "NVLS": nvls, "NVLSTree": nvls, "PAT": trees}[algorithm]

    def steps(self, function: Function) -> int:
        """Return the number of steps of a ring."""
        if function == "AllReduce":
            return 2 * (self.ranks - 1)
        return self.ranks - 1 if function in ("AllGather", "ReduceScatter") else self.ranks

    @property
    def channels(self) -> int:
        """Return twice the channels of the search, and twice more on fast rings between nodes
        (src/graph/connect.cc:460).

        Before 2.28 never fewer than NVLS has; Hopper's fast rings first, Blackwell's since 2.25.
        """
        most = 2 * MOST_CHANNELS if self.version >= (2, 25, 0) else MOST_CHANNELS
        count = min(most, 2 * min(self.graphs.ring.channels, self.graphs.tree.channels))
        hopper = self.system.compute_capability // 10 == 9
        fast = hopper or (self.system.compute_capability >= 90 and self.version >= (2, 25, 0))
        if fast and self.nodes > 1 and self.graphs.ring.bw_intra > 45 and count < 16:
            count *= 2
        return max(count, self.nvls_channels) if self.version < (2, 28, 0) and self.graphs.nvls else count

    @property
    def nvls_channels(self) -> int:
        """Return the channels of the switches' reduction, which the size of a call does not change
        (src/transport/nvls.cc:203).
        """
        if self.system.compute_capability < 100 or self.version < (2, 25, 0):
            return 16
        if self.version < (2, 27, 0):
            return 32
        if self.nodes == 1:
            return 24
        return self._nvls_channels_between() if self.version >= (2, 30, 0) else 32

    def _nvls_channels_between(self) -> int:
        """Return Blackwell's number between nodes, since 2.30: fewer if the NICs are the limit."""
        nic = min(self.system.nic_gbps / 8, self.system.to_nic_GBps)
        if nic < 48 or self.nodes == 2:
            return 32
        return 24 if nic < 96 or self.per_node <= 8 else 32


def communicator(graphs: Graphs, system: NodeSystem, shape: Shape, version: NcclVersion) -> _Communicator:
    """Return the communicator of all ranks of `shape`."""
    return _Communicator(graphs, system, shape.ranks, len(nvlink_domains(system, shape)), version)


FUNCTIONS: dict[str, Function] = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""The collectives that NCCL models, by our names."""

_ARM: frozenset[Processor] = frozenset(("arm", "power9"))
_PLATEAU, _PLATEAU_BEFORE_AMPERE = 1.4, 1.9


class Forced(Struct, frozen=True):
    """The choices that the user leaves to NCCL; None: all. Names as in :data:`.constants.ALGORITHMS`."""

    algorithms: frozenset[Algorithm] | None = None
    protocols: frozenset[Protocol] | None = None

    @property
    def ring(self) -> bool:
        """Return whether no tree is left, so that two nodes always exchange a ring's traffic."""
        return self.algorithms is not None and not self.algorithms & {"Tree", "NVLSTree"}

    @property
    def flagged(self) -> bool:
        """Whether only protocols are left that send flags beside the data, which NVLink SHARP does not have."""
        return self.protocols is not None and bool(self.protocols) and "Simple" not in self.protocols


class Cost(Struct, frozen=True, kw_only=True):
    """The time of one algorithm and protocol. `base_us` is the part of `latency_us` that hops do not cause: the launch.

    `algbw_GBps` is the bandwidth of only the bytes, `busbw_GBps` that of the whole call, by nccl-tests' factor.
    `channels` are those that this many bytes use.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    time_us: float
    base_us: float
    latency_us: float
    algbw_GBps: float
    busbw_GBps: float


class Cell(Struct, frozen=True):
    """A cell of the table that NCCL prints at TUNING: latency in us, algorithm bandwidth in GB/s (0: not available)."""

    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    algbw_GBps: float
    base_us: float


def table(
    graphs: Graphs,
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    version: NcclVersion,
    forced: Forced | None = None,
) -> tuple[Cost, ...]:
    """Return every algorithm and protocol that NCCL may use for `op` at `nbytes` (as nccl-tests prints it), in its
    order.

    Empty if `forced` leaves none, and the call then fails (since 2.24; before, it fell back to rings). Raises
    UsageError for an operation that NCCL does not model.
    """
    found = cells(graphs, system, shape, op, version)
    comm = communicator(graphs, system, shape, version)
    left = [cell for cell in found if _is_available(cell, comm, op) and _is_allowed(cell, forced or Forced())]
    if not left and comm.tuning.ring_returns:
        left = [cell for cell in found if cell.algbw_GBps > 0 and cell.algorithm == "Ring"]
    return tuple(_cost(cell, comm, op, nbytes) for cell in left)


def best(
    graphs: Graphs,
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    version: NcclVersion,
    forced: Forced | None = None,
) -> Cost | None:
    """Return NCCL's choice: the first of the shortest times. None if `forced` leaves nothing."""
    return min(table(graphs, system, shape, op, nbytes, version, forced), key=lambda cost: cost.time_us, default=None)


def _is_available(cell: Cell, comm: _Communicator, op: str) -> bool:
    """Return whether NCCL considers the cell: since 2.25, too many GPUs for a switch use it only to reduce."""
    if cell.algorithm == "NVLS" and op != "all_reduce" and comm.version >= (2, 25, 0) and comm.per_node > MOST_NVLS:
        return False
    return cell.algbw_GBps > 0


def _is_allowed(cell: Cell, forced: Forced) -> bool:
    return (forced.algorithms is None or cell.algorithm in forced.algorithms) and (
        forced.protocols is None or cell.protocol in forced.protocols
    )


def only(algorithm: str | None) -> Forced | None:
    """Force one algorithm; without one, leave NCCL's own choice."""
    return Forced(frozenset({cast(Algorithm, algorithm)})) if algorithm else None


@lru_cache(maxsize=1024)
def cells(graphs: Graphs, system: NodeSystem, shape: Shape, op: str, version: NcclVersion) -> tuple[Cell, ...]:
    """Return the table that NCCL prints at TUNING for `op`, in its order. Raises UsageError as :func:`table` does."""
    function = FUNCTIONS.get(op)
    if function is None:
        raise UsageError(f"NCCL has no cost model of {op}; it has one of {', '.join(FUNCTIONS)}")
    comm = communicator(graphs, system, shape, version)
    return tuple(_cell(comm, function, algorithm, protocol) for algorithm, protocol in _pairs(comm, function))


def _pairs(comm: _Communicator, function: Function) -> Iterator[tuple[Algorithm, Protocol]]:
    for algorithm in ALGORITHMS:
        if _supports(comm, function, algorithm):
            protocols: Sequence[Protocol] = PROTOCOLS if algorithm in ("Tree", "Ring") else ("Simple",)
            yield from ((algorithm, protocol) for protocol in protocols)


def _supports(comm: _Communicator, function: Function, algorithm: Algorithm) -> bool:
    """Return whether the function and this communicator support `algorithm`."""
    gathers = function in ("AllGather", "ReduceScatter")
    nvls = comm.graphs.nvls is not None and comm.graphs.nvls.channels >= 2
    match algorithm:
        case "Ring":
            return True
        case "Tree":
            return function == "AllReduce"
        case "NVLS":
            return (function == "AllReduce" or gathers) and nvls and comm.nodes == 1
        case "NVLSTree":
            return function == "AllReduce" and nvls and comm.nodes > 1
        case "PAT":
            return gathers and comm.tuning.pat > 0 and comm.ranks == comm.nodes


def _cell(comm: _Communicator, function: Function, algorithm: Algorithm, protocol: Protocol) -> Cell:
    at = PROTOCOLS.index(protocol)
    enabled = protocol != "LL128" or _has_ll128(comm, comm.graph(algorithm))
    bandwidth = _algbw(comm, function, algorithm, protocol) if enabled else 0.0
    base = 0.0 if algorithm == "NVLS" and not comm.tuning.base["NVLS"][2] else comm.tuning.base[algorithm][at]
    return Cell(algorithm, protocol, base + _hops_us(comm, function, algorithm, protocol), bandwidth, base)


def _has_ll128(comm: _Communicator, graph: Graph) -> bool:
    """Return whether NCCL trusts these GPUs' 128-byte stores to arrive whole."""
    cc = comm.system.compute_capability
    generations = comm.tuning.ll128_generations
    farthest = WORDS.index("PXN" if cc >= 90 else "PXB")
    near = WORDS.index(graph.type_inter) <= farthest and WORDS.index(graph.type_intra) <= WORDS.index("NVB")
    return near and cc >= 70 and (generations is None or cc in generations)


def _algbw(comm: _Communicator, function: Function, algorithm: Algorithm, protocol: Protocol) -> float:
    bus = _bus(comm, function, algorithm, protocol)
    gathers = function in ("AllGather", "ReduceScatter")
    if gathers and algorithm != "Ring":
        return bus * (comm.tuning.gathers_ratio if algorithm == "NVLS" else 1.0)
    ratio = comm.tuning.nvls_ratio
    if algorithm in ("NVLS", "NVLSTree") and ratio is not None:
        return bus * ratio
    return bus * (0.5 if algorithm in ("Tree", "PAT") else comm.ranks / comm.steps(function))


def _bus(comm: _Communicator, function: Function, algorithm: Algorithm, protocol: Protocol) -> float:
    graph = comm.graph(algorithm)
    match algorithm:
        case "NVLS" | "NVLSTree":
            return graph.channels * _nvls_GBps(comm, function, algorithm, graph)
        case "PAT":
            return graph.channels * _channel_GBps(comm, graph) * comm.tuning.pat
        case "Ring":
            return _ring_bus(comm, function, graph, protocol)
        case "Tree":
            return _tree_bus(comm, graph, protocol)


def _channel_GBps(comm: _Communicator, graph: Graph) -> float:
    """Return one channel's rate: on two nodes the rate within them, because the network is crossed half as often."""
    return graph.bw_intra if comm.nodes <= 2 else graph.bw_inter


def _ll_max(comm: _Communicator) -> float:
    """Return the LL limit: within a node by the GPU, between nodes by the processor, in rows that have GPUs' names."""
    row = comm.generation if comm.nodes == 1 else 1 if comm.system.processor == "amd" else 0
    return comm.tuning.ll_max[row][comm.column]


def _ring_bus(comm: _Communicator, function: Function, graph: Graph, protocol: Protocol) -> float:
    bus = graph.channels * _channel_GBps(comm, graph)
    if protocol == "LL":
        copies = comm.nodes == 1 and function not in ("AllReduce", "Reduce")
        return min(_ll_max(comm), bus * (comm.tuning.ring_ll_copies if copies else comm.tuning.ring_ll))
    if protocol == "Simple":
        return bus
    kept = comm.tuning.ll128_lonely if comm.per_node < 2 else 0.92
    return min(bus * kept, graph.channels * comm.tuning.ring_ll128[comm.generation][comm.column])


def _tree_bus(comm: _Communicator, graph: Graph, protocol: Protocol) -> float:
    tuned = comm.tuning
    bus = graph.channels * _channel_GBps(comm, graph)
    bus = min(bus * 0.92, graph.channels * tuned.tree[comm.generation][comm.column])
    if protocol == "LL":
        bus = min(bus / 3.8, _ll_max(comm))
    elif protocol == "LL128":
        share = 7 / 9 if comm.nodes == 1 else 120 / 128
        bus = min(bus * share, graph.channels * tuned.tree_ll128[comm.generation][comm.column])
    return bus * (0.85 if graph.pattern == TREE else 1.0)


def _nvls_GBps(comm: _Communicator, function: Function, algorithm: Algorithm, graph: Graph) -> float:
    """Return one channel's rate for the switch's own reduction."""
    if comm.tuning.nvls_ratio is not None:
        return _old_nvls_GBps(comm, function, algorithm, graph)
    efficiency = comm.tuning.nvls_efficiency[comm.generation]
    intra = graph.bw_intra * efficiency * (graph.channels - 1) / graph.channels
    intra *= 2 if function == "AllReduce" else (comm.per_node - 1) / comm.per_node
    tree = algorithm == "NVLSTree"
    inter = graph.bw_inter * (2 if tree and comm.nodes <= 2 else 1)
    limits = comm.tuning.nvls_tree
    return min(intra, inter, limits[comm.generation][comm.column] if tree and limits else math.inf)


def _old_nvls_GBps(comm: _Communicator, function: Function, algorithm: Algorithm, graph: Graph) -> float:
    """Return the same for versions before 2.28."""
    if algorithm == "NVLSTree":
        return min(graph.bw_intra, graph.bw_inter if comm.nodes <= 2 else graph.bw_inter / 2)
    if function != "AllReduce" and comm.tuning.nvls_gathers == "share":
        return min(graph.bw_intra * (comm.per_node - 1) / comm.per_node, graph.bw_inter * 0.9)
    return min(graph.bw_intra, graph.bw_inter)


def _hops_us(comm: _Communicator, function: Function, algorithm: Algorithm, protocol: Protocol) -> float:
    """Return the latency without the launch, in microseconds."""
    intra, inter = _intra_us(comm, algorithm, protocol), _inter_us(comm, algorithm, protocol)
    match algorithm:
        case "Ring":
            return _ring_hops(comm, function, protocol, intra, inter)
        case "Tree":
            return 2 * ((comm.ranks // comm.nodes - 1) * intra + _log2(comm.nodes) * inter)
        case "NVLS":
            return intra + (inter if comm.nodes > 1 else 0.0)
        case "NVLSTree":
            return intra + 2 * _log2(comm.nodes) * inter
        case "PAT":
            return _log2(comm.nodes) * inter / 3.5 + comm.ranks * 2.8


def _log2(number: int) -> int:
    return number.bit_length() - 1


def _hardware(comm: _Communicator, algorithm: Algorithm) -> Hardware:
    # NCCL compares a kind of path with a kind of link here, and NVL is 1 in both: LOC and NVB count as PCIe.
    return "NVLINK" if comm.graph(algorithm).type_intra == "NVL" else "PCI"


def _intra_us(comm: _Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    return comm.tuning.hardware(_hardware(comm, algorithm))[algorithm][PROTOCOLS.index(protocol)]


def _inter_us(comm: _Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    exposed: Algorithm = "Tree" if comm.ranks == comm.nodes and comm.tuning.lonely_net else algorithm
    waits = comm.graph(algorithm).latency_inter_us * (2 if protocol == "Simple" else 1)
    return comm.tuning.net[exposed][PROTOCOLS.index(protocol)] + waits


def _ring_hops(comm: _Communicator, function: Function, protocol: Protocol, intra: float, inter: float) -> float:
    steps = comm.steps(function)
    if function in ("Broadcast", "Reduce"):
        kind: Hardware = _hardware(comm, "Ring") if comm.nodes == 1 else "NET"
        same = comm.graphs.ring.same_channels
        column: Algorithm = "Tree" if protocol == "Simple" and not same else "Ring"
        one = comm.tuning.hardware(kind)[column][PROTOCOLS.index(protocol)]
        return one if same else steps * one
    if comm.nodes == 1:
        return steps * intra
    overhead = (2.0 if comm.system.processor == "amd" else 1.0) * (3 if protocol == "Simple" else 1)
    crossings = 2 * (comm.nodes - 1) + comm.tuning.inter_steps if function == "AllReduce" else comm.nodes - 1
    return (steps - crossings) * max(intra, overhead) + crossings * inter


def _cost(cell: Cell, comm: _Communicator, op: str, nbytes: int) -> Cost:
    bandwidth = cell.algbw_GBps * _tree_factor(cell, comm, op, nbytes)
    latency, used = cell.latency_us * _plateau_factor(cell, comm, op, nbytes), _used_channels(cell, comm, nbytes)
    time_us = latency + nbytes / (1000 * bandwidth)
    bus = nbytes / time_us / 1e3 * OPS[op].bus_factor(comm.ranks) if time_us > 0 else 0.0
    return Cost(
        algorithm=cell.algorithm,
        protocol=cell.protocol,
        channels=used,
        time_us=time_us,
        base_us=cell.base_us,
        latency_us=latency,
        algbw_GBps=bandwidth,
        busbw_GBps=bus,
    )


def _tree_factor(cell: Cell, comm: _Communicator, op: str, nbytes: int) -> float:
    """Return the factor by which trees fall behind their model at middle sizes."""
    if op != "all_reduce" or cell.algorithm not in ("Tree", "NVLSTree"):
        return 1.0
    steps = comm.tuning.corrected
    if cell.algorithm == "NVLSTree":
        x86 = comm.system.processor not in _ARM
        if not (comm.tuning.nvls_tree_corrected and comm.system.compute_capability >= 100 and x86):
            return 1.0
        steps += 1
    at = _log2(nbytes >> 6)
    return CORRECTIONS[cell.protocol][at] if 0 <= at < steps else 1.0


def _plateau_factor(cell: Cell, comm: _Communicator, op: str, nbytes: int) -> float:
    """Return the factor for rings between nodes, which stall if each rank has little data per channel."""
    if (cell.algorithm, cell.protocol, op) != ("Ring", "Simple", "all_reduce") or comm.nodes == 1:
        return 1.0
    if nbytes // (comm.channels * comm.ranks) < 64:
        return 1.0
    return _PLATEAU_BEFORE_AMPERE if comm.system.compute_capability < 80 else _PLATEAU


def _used_channels(cell: Cell, comm: _Communicator, nbytes: int) -> int:
    """Return the channels that `nbytes` use: each thread must have something to do (src/enqueue.cc:2078)."""
    if cell.algorithm in ("NVLS", "NVLSTree"):
        return comm.nvls_channels
    count = comm.channels
    threads = _threads(cell, comm)
    least = {"LL": 8 * (comm.ranks if cell.algorithm == "Ring" else 1), "LL128": 8, "Simple": 64}[cell.protocol]
    while count > 1 and nbytes < count * threads * least:
        count -= 1
    return count


def _threads(cell: Cell, comm: _Communicator) -> int:
    if cell.protocol != "Simple" or cell.algorithm not in ("Ring", "Tree"):
        return 512 if cell.protocol == "LL" else 640
    slow = cell.algorithm == "Ring" and comm.graphs.ring.bw_intra * comm.graphs.ring.channels <= PCI_GBps
    return 256 if slow else 512
