"""NCCL's own model of one call, split into the time of its hops and the time of its bytes.

It decides which algorithm, protocol and channels a call takes; how far it is a clock is in reports/ablation.md. Where a
communicator exists, NCCL since 2.22 gives the same estimate for that very one: a call between ncclGroupStart and
ncclGroupSimulateEnd returns estimatedTime without running. It would stand in for :func:`.cost.best` here, plugins and
settings included; nothing calls it yet.
"""

from functools import lru_cache

from ncclprobe.expect.network import Confidence
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.cost import FUNCTIONS, Forced, best, table
from ncclprobe.expect.tuner.graphs import Graph, Graphs
from ncclprobe.expect.tuner.search import graphs
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

_EFA_US = ((90, 35.0), (0, 75.0))
"""What AWS's plugin tells NCCL of the latency of its network, by the GPU of the machine: EFA v1 (aws-ofi-nccl,
src/platform-aws.cpp at 2daf7d303aa1: 75; 150 on p3dn), v3 and v4 (35). It says 75 of v2 too, but a p5's whole
all-reduce takes 65 us, and what NCCL would choose by 75 does not count: the plugin brings a tuner of its own. NCCL's
own plugin for IB and RoCE says nothing."""
_PORTS_MERGE: NcclVersion = (2, 24, 0)


class Modelled(Struct, frozen=True):
    """What NCCL's model makes of one call, in microseconds: `base_us` is the part of the latency that no hop adds.

    `efficiency` is the bandwidth of the algorithm and protocol that NCCL chose, by the best that it has for this call.
    """

    latency_us: float
    transfer_us: float
    base_us: float
    efficiency: float
    algorithm: str
    protocol: str
    channels: int
    confidence: Confidence = "medium"


def modelled(
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    version: NcclVersion,
    forced: Forced | None = None,
    told: Graphs | None = None,
) -> Modelled | None:
    """NCCL's choice; None where it has no model of `op`, its search cannot be told, or `forced` leaves nothing.

    `told` are graphs that NCCL itself wrote, in place of the search.
    """
    if op not in FUNCTIONS:
        return None
    counted = as_counted(system, version)
    found = told or _graphs(counted, shape, version)
    if isinstance(found, Absent):
        return None
    cost = best(found, counted, shape, op, nbytes, version, forced)
    if cost is None:
        return None
    most = max(each.algbw_GBps for each in table(found, counted, shape, op, nbytes, version, forced))
    return Modelled(
        cost.latency_us,
        nbytes / cost.algbw_GBps / 1e3,
        cost.base_us,
        cost.algbw_GBps / most,
        cost.algorithm,
        cost.protocol,
        cost.channels,
    )


def as_counted(system: NodeSystem, version: NcclVersion) -> NodeSystem:
    """`system` with its NICs as NCCL counts them: AWS's plugin shows the rails of one GPU as one NIC, and since 2.24
    NCCL makes one of the two ports of a card. Two NICs per GPU are taken for the ports of one, which they mostly are.
    """
    each = system.nics // system.gpus if system.gpus and system.nics % system.gpus == 0 else 1
    ports = each == 2 and system.network in ("ib", "roce") and version >= _PORTS_MERGE
    if each < 2 or not (ports or system.network == "efa"):
        return system
    return replace(system, nics=system.gpus, nic_gbps=system.nic_gbps * each)


@lru_cache(maxsize=256)
def _graphs(system: NodeSystem, shape: Shape, version: NcclVersion) -> Graphs | Absent:
    found = graphs(system, shape, version)
    if isinstance(found, Absent) or system.network != "efa":
        return found
    waits = next(latency for oldest, latency in _EFA_US if system.compute_capability >= oldest)
    nvls = _later(found.nvls, waits) if found.nvls else None
    return replace(found, ring=_later(found.ring, waits), tree=_later(found.tree, waits), nvls=nvls)


def _later(graph: Graph, latency_us: float) -> Graph:
    return replace(graph, latency_inter_us=graph.latency_inter_us or latency_us)
