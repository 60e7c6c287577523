"""What one call takes by the model alone, and which link or delay decides: search, cost model and pairs in one place.

``NCCL's search -> graphs -> cost model -> the algorithm that it would choose``, or, where a dump or a log has told the
graphs (:mod:`.dumps`), from there on. Uncorrected: what measurement adds is :mod:`.correction`.
"""

from dataclasses import dataclass

from ncclprobe.expect.cost import FUNCTIONS, Cost, Forced, best
from ncclprobe.expect.graphs import Graph, Graphs
from ncclprobe.expect.p2p import Links, links, paired
from ncclprobe.expect.search import graphs as searched
from ncclprobe.expect.search import islands
from ncclprobe.expect.system import Shape, System, Version
from ncclprobe.model import Absent
from ncclprobe.ops import OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One call. `algorithm` and `protocol` are empty and `channels` None for operations in pairs, `basis` says so.

    `bottleneck` is ``launch`` or ``latency`` where bytes are less than half of the time, else the slowest link.
    `limits`: what each kind of link on the way allows one rank, GB/s in one direction.
    """

    time_us: float
    base_us: float
    latency_us: float
    busbw_GBps: float
    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None
    bottleneck: str
    limits: tuple[tuple[str, float], ...]
    basis: str


def predicted(
    system: System,
    shape: Shape,
    op: str,
    nbytes: int,
    version: Version,
    forced: Forced | None = None,
    found: Graphs | None = None,
) -> Predicted | Absent:
    """`op` of `nbytes` (as nccl-tests prints it) on `shape`; Absent with the reason where the model cannot tell.

    `found` are graphs that NCCL wrote itself, in place of the search; `forced` is the user's algorithm or protocol.
    """
    if op not in OPS:
        return Absent(f"no model of {op}")
    if op not in FUNCTIONS:
        return _paired(system, shape, op, nbytes, version)
    graphs = found or searched(system, shape, version)
    if isinstance(graphs, Absent):
        return graphs
    cost = best(graphs, system, shape, op, nbytes, version, forced)
    if cost is None:
        return Absent(f"NCCL has no {forced} for {op} here: the call would fail")
    return _of(cost, graphs, system, shape, version)


def _of(cost: Cost, graphs: Graphs, system: System, shape: Shape, version: Version) -> Predicted:
    have = links(system, shape, version)
    network = len(islands(system, shape, version)) > 1
    nvls = cost.algorithm.startswith("NVLS") and graphs.nvls
    graph = nvls or (graphs.tree if cost.algorithm == "Tree" else graphs.ring)
    return Predicted(
        time_us=cost.time_us,
        base_us=cost.base_us,
        latency_us=cost.latency_us,
        busbw_GBps=cost.busbw_GBps,
        algorithm=cost.algorithm,
        protocol=cost.protocol,
        channels=cost.channels,
        bottleneck=_bottleneck(cost, graph, have, network),
        limits=_limits(have, network),
        basis=f"NCCL's cost model, {graphs.source}",
    )


def _bottleneck(cost: Cost, graph: Graph, have: Links, network: bool) -> str:
    if cost.time_us < 2 * cost.latency_us:
        return "launch" if 2 * cost.base_us > cost.latency_us else "latency"
    inside = "nvlink" if graph.type_intra in ("NVL", "NVB") else have.kind
    if not network:
        return inside
    # NVLS reserves each GPU's links nearly as often as there are GPUs, so that they may end before the NICs do.
    return have.gate if graph.bw_inter <= graph.bw_intra or inside == "local" else inside


def _limits(have: Links, network: bool) -> tuple[tuple[str, float], ...]:
    inside = ((have.kind, have.inside_GBps),) if have.kind != "local" else ()
    return (*inside, *((("nic", have.nic_GBps),) if network else ()))


def _paired(system: System, shape: Shape, op: str, nbytes: int, version: Version) -> Predicted | Absent:
    found = paired(system, shape, op, nbytes, version)
    if isinstance(found, Absent):
        return found
    have = links(system, shape, version)
    return Predicted(
        time_us=found.time_us,
        base_us=found.base_us,
        latency_us=found.latency_us,
        busbw_GBps=found.busbw_GBps,
        bottleneck=found.part,
        limits=_limits(have, len(islands(system, shape, version)) > 1),
        basis="link rates and one hop, no model of NCCL's",
    )
