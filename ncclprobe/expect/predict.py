"""The time of one collective on one machine, by NCCL's own cost model with a correction and the limits of the network.

NCCL's cost model does not cover all-to-all, sendrecv, gather and scatter, which are pairs of ranks. A rank's links
carry its own share at once, so the bandwidth is that of one GPU's links
(:func:`ncclprobe.expect.tuner.search.rank_links`), less the share that no published run reaches. The time before the
first byte is that of one kernel and one hop.

For all other operations NCCL's model decides which algorithm, protocol and channels a call uses, and its time is split
into hops and bytes.

NCCL's model ranks algorithms; it was never meant to predict times. Four things are missing in it, the same for every
machine of a class, and each is one number here:

- `STARTS_US`: the wait before a call's first and after its last hop: the launch, the slowest rank, and between
  nodes the host's thread that posts to the NIC (with TCPX a program on the host that moves every message).
- `latency`: hops that take longer than NCCL counts: only through host memory.
- `transfer`: the time of the bytes, by the constants of the search. Below one on a single Blackwell board: the 0.74
  that NCCL since 2.28 gives its switches was set for racks, and the share of (n-1)/n heads then counts twice for
  eight. Above one in a rack by older releases, which give these switches Hopper's 0.85. Above one through host memory,
  because each byte crosses it twice while NCCL counts only the slot. Below one across sockets: 8 GPUs on two EPYC reach
  22 GB/s, and NCCL counts 16 (https://github.com/voipmonitor/rtx6kpro).
- `filling`: a pipeline that fills and drains costs time that is neither latency nor bandwidth; it is
  greatest if both are equal, hence the geometric mean: 1 MiB on 8 A100 reaches 24 of the 29 GB/s modelled, 8 MiB
  90 of 125. It ends at FILLED times the wait: a pipeline fills once, however much follows. Rings between nodes show
  none, trees do.

``corrected_us = wait + transfer x B + filling x min(sqrt(wait x B), FILLED x wait)`` with ``wait = start + latency x
L``, for a modelled latency L and transfer time B.

The numbers come from ``scripts/accuracy.py --fit`` over published runs; ``reports/expected-accuracy.md`` has their
error if each source is compared with factors that were fitted without it. They are never tuned to a row.

Small messages are expected by time: their bus bandwidth is the factor of the collective times bytes by that time.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from ncclprobe.expect import evidence, network
from ncclprobe.expect.network import Confidence, Limit
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.cost import FUNCTIONS, Forced, best, only, table
from ncclprobe.expect.tuner.search import Graph, Graphs, graphs, rank_links
from ncclprobe.model.ops import DIRECT_OPS, OPS
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

_NVLINK = 0.92
"""A share of a GPU's NVLinks as NCCL counts them: 8 H100 exchange 348 of 370.8 GB/s and send 367 to their neighbour, 4
GB300 exchange 628 of 722 (https://github.com/xxrjun/nccl-tests-cluster, Oracle's GB300 results).
"""
_PCIE, _HOST = 0.75, 0.38
"""A share of a slot as NCCL counts it, without P2P, when each byte crosses memory: 4.6 of 12 GB/s
(2 RTX 2080 Ti, https://github.com/Anthony-Hoo/Anthony-Hoo.github.io).
"""
_USED_OF_18 = 320 / 370.8
DATA: Mapping[str, float] = MappingProxyType({"LL": 0.5, "LL128": 120 / 128})
"""The share of data in what a protocol sends beside flags (src/device/prims_ll.h and prims_ll128.h, v2.30.7)."""
_HOP_US = 12.0
"""One kernel and one hop: 13 us (2 RTX 2080 Ti, 8 H100), 30 over IB with what a call waits for there."""


class _Direct(Struct, frozen=True):
    """The pairwise rate of a node: bus bandwidth in GB/s, the time before the first byte, and why.

    `part` names the link that decides.
    """

    busbw_GBps: float
    latency_us: float
    part: str
    why: str
    source: str
    confidence: Confidence


PARTS = {"nvlink": "NVLink", "pcie": "PCIe", "inter-socket": "inter-socket", "local": "PCIe"}
"""Kinds of link (:func:`.tuner.search.rank_links`) in the words of the field."""


def direct(system: NodeSystem, shape: Shape, version: NcclVersion) -> _Direct:
    """Return the pairwise rate of ranks in one node or NVLink domain."""
    have = rank_links(system, shape, version)
    part = PARTS[have.kind]
    if have.kind == "nvlink":
        why = f"NVLinks of {have.inside_GBps:.4g} GB/s per GPU as NCCL counts them, {_NVLINK:g} of that"
        source = "https://github.com/xxrjun/nccl-tests-cluster: 348 and 367 of 370.8 GB/s"
        return _Direct(have.inside_GBps * _NVLINK, _HOP_US, part, why, source, "medium")
    share, how = (_PCIE, "P2P") if system.p2p else (_HOST, "through host memory")
    why = f"a path that NCCL counts as {have.inside_GBps:g} GB/s, {share:g} of that {how}"
    source = "https://github.com/Anthony-Hoo/Anthony-Hoo.github.io: 4.6 of 12 GB/s without P2P"
    return _Direct(have.inside_GBps * share, _HOP_US, part, why, source, "low")


_EFA_US = ((90, 20.0), (0, 75.0))
"""The latency of EFA, by GPU. For v1 it is what AWS's plugin reports to NCCL (aws-ofi-nccl, src/platform-aws.cpp at
2daf7d303aa1). For later ones the plugin reports 75 and 35, but a p5's whole all-reduce takes 65 us, two g7e's 46: 20
is nearest to four publishers (15 to 25 fit equally well). What NCCL would choose by the plugin's number does not
count, because the plugin has its own tuner. NCCL's own plugin for IB and RoCE reports no latency.
"""


class _Modelled(Struct, frozen=True):
    """NCCL's model of one call, in microseconds: `base_us` is the part of the latency that hops do not add.

    `efficiency` is the bandwidth of the algorithm and protocol that NCCL chose, relative to the best it has for this
    call.
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
) -> _Modelled | None:
    """Return NCCL's choice; None if it has no model of `op`, its search is unknown, or `forced` leaves nothing."""
    if op not in FUNCTIONS:
        return None
    counted = as_counted(system)
    found = _graphs(counted, shape, version)
    if isinstance(found, Absent):
        return None
    cost = best(found, counted, shape, op, nbytes, version, forced)
    if cost is None:
        return None
    most = max(each.algbw_GBps for each in table(found, counted, shape, op, nbytes, version, forced))
    efficiency = DATA.get(cost.protocol, 1.0) if forced and forced.flagged else cost.algbw_GBps / most
    unused = _used_link_share(found, system, shape) if cost.algorithm == "NVLS" else 1.0
    return _Modelled(
        cost.latency_us,
        nbytes / cost.algbw_GBps / 1e3 * unused,
        cost.base_us,
        efficiency,
        cost.algorithm,
        cost.protocol,
        cost.channels,
    )


def _used_link_share(found: Graphs, system: NodeSystem, shape: Shape) -> float:
    """Return the share of a Hopper's links that the search's speed steps use, relative to their share of 18 links.

    They count 120 of 165 GB/s on a board of H800, and 320 of 371 on one of H100, and both reach 1.29 times their links:
    215 and 480 GB/s (https://github.com/NVIDIA/nccl/issues/1374).
    """
    if found.nvls is None or system.compute_capability // 10 != 9 or shape.nodes > 1:
        return 1.0
    share = found.nvls.channels * found.nvls.bw_intra / (system.nvlinks * system.nvlink_GBps)
    return min(1.0, share / _USED_OF_18)


def as_counted(system: NodeSystem) -> NodeSystem:
    """Return `system` with its NICs as NCCL counts them.

    AWS's plugin presents the rails of one GPU as one NIC, and NCCL merges the two ports of a card (NCCL_IB_MERGE_NICS,
    1 since 2.20). Two NICs per GPU are assumed to be the ports of one card.

    Two nodes of A100 with 16 ports reach 180 to 190 GB/s in pods, by 2.14 and by 2.29, and 221 to 238 on bare metal, if
    NCCL sees 16 NICs and takes a tree; the lower is expected.
    """
    each = system.nics // system.gpus if system.gpus and system.nics % system.gpus == 0 else 1
    ports = each == 2 and system.network in ("ib", "roce")
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


Where = Literal["nvlink", "pcie", "sockets", "host", "nvls", "nvls-8", "nvls-72", "network", "network trees"]
"""Classes with different corrections: rings and trees over NVLink, between GPUs over PCIe, across processor sockets,
and through host memory (which NCCL counts as PCIe, though each byte crosses memory twice); the switches' own
reduction; the same on one Blackwell board; rings and pairs that cross a network, and trees that do.
"""


class Correction(Struct, frozen=True):
    """Factors on the modelled latency and transfer time, and the weight of filling the pipeline."""

    latency: float = 1.0
    transfer: float = 1.0
    filling: float = 0.0


CORRECTIONS: Mapping[Where, Correction] = MappingProxyType(
    {
        "nvlink": Correction(filling=0.65),
        "pcie": Correction(),
        "sockets": Correction(transfer=0.72),
        "host": Correction(latency=1.1, transfer=1.7, filling=0.2),
        "nvls": Correction(filling=0.65),
        "nvls-8": Correction(transfer=0.86, filling=0.65),
        "nvls-72": Correction(transfer=1.15, filling=0.65),
        "network": Correction(),
        "network trees": Correction(filling=0.8),
    }
)

STARTS_US: Mapping[str, float] = MappingProxyType(
    {
        "nvlink": 16.0,
        "nvlink ampere": 16.0,
        "nvlink hopper": 2.0,
        "mnnvl": 16.0,
        "pcie": 2.0,
        "rdma": 18.0,
        "tcpxo": 40.0,
        "tcpx": 880.0,
        "unknown": 18.0,
        "racks": 117.0,
    }
)
"""Fixed waits by path class, as :mod:`.evidence` words it. One run shows it between racks: 184 us for 8 B on two of
them (https://github.com/oracle-quickstart/oci-hpc-oke, GB200 document); likewise over TCPX: 1 ms for anything up to
16 MiB (https://github.com/GoogleCloudPlatform/cluster-toolkit, gke-a3-highgpu).
"""
_KIND: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("ib", "roce", "efa", "slingshot", "opa"), "rdma"), "host": "pcie", "sockets": "pcie"}
)

FILLED = 4.0
_BOARD, _SHARES = 8, (2, 28, 0)


def start_us(path: str, starts: Mapping[str, float] = STARTS_US) -> float:
    """Return the fixed wait of a call over `path` besides its hops: by class, otherwise by wider class, otherwise 0."""
    words = path.removesuffix(" pairs")
    base, kind = words.split()[0], " ".join(words.split()[:2])
    return next((starts[each] for each in (words, kind, base, _KIND.get(base, "")) if each in starts), 0.0)


def where(system: NodeSystem, shape: Shape, algorithm: str, version: NcclVersion, *, crosses_network: bool) -> Where:
    """Return the correction class of one prediction."""
    if crosses_network:
        return "network trees" if algorithm.endswith("Tree") else "network"
    if algorithm.startswith("NVLS"):
        board, told = shape.ranks <= _BOARD, version >= _SHARES
        if system.compute_capability < 100 or board is not told:
            return "nvls"
        return "nvls-8" if board else "nvls-72"
    if system.joins(max(shape.gpus)):
        return "nvlink"
    if not system.p2p:
        return "host"
    return "pcie"


def corrected_us(latency_us: float, transfer_us: float, factors: Correction, start: float = 0.0) -> float:
    """Return the corrected time of one call from the modelled latency and transfer time, in microseconds."""
    wait = start + factors.latency * latency_us
    moving = factors.transfer * transfer_us
    return wait + moving + factors.filling * min(math.sqrt(wait * moving), FILLED * wait)


LATEST: NcclVersion = (2, 30, 7)
SATURATED, LATENT = 0.9, 0.25
"""Share of the time that the bytes take: above the first bandwidth is judged, below the second time,
in between both.
"""

_LAUNCH_SHARE = 0.6
_LARGE = 8 << 30
_LOW = ("pcie", "sockets", "host")
_RING_US, _RANK_US = 5.0, 2.0
"""A small ring over PCIe: 16 us with 4 V100, 24 with 8 RTX PRO 6000."""
_MODEL = "NCCL 2.30's own search and cost model (src/graph/search.cc, tuning.cc), corrected by published runs"

_LINKS = "the slowest link as NCCL counts it, because its search finds no channel there; corrected by published runs"


class Prediction(Struct, frozen=True, kw_only=True):
    """The model's result for one call, corrected and limited by the network.

    `latency_us` and `transfer_us` are NCCL's own; `model_GBps` is the bus bandwidth from only these two. `start_us` is
    the fixed wait besides the hops, `bytes_us` the transfer time within the network's limit, `bus_bytes` the bytes that
    bus bandwidth counts. `links` describes the links that the bytes cross, `bottleneck` what decides: ``launch``,
    ``latency``, ``NVLink``, ``PCIe``, ``inter-socket`` or ``NIC``.
    """

    op: str
    nbytes: int
    time_us: float
    busbw_GBps: float
    model_GBps: float
    start_us: float
    latency_us: float
    transfer_us: float
    bytes_us: float
    bus_bytes: float
    algorithm: str
    protocol: str
    channels: int | None
    bottleneck: str
    judged_by: str
    place: Where
    wire_GBps: float
    links: str
    why: str
    source: str
    confidence: Confidence

    @property
    def corrected(self) -> bool:
        """Return whether the model's own time was corrected."""
        return CORRECTIONS[self.place] != Correction() or self.start_us > 0

    @property
    def between_nodes(self) -> bool:
        """Return whether the call crosses a network."""
        return self.place.startswith("network")

    @property
    def latency_decides(self) -> bool:
        """Return whether bytes take less than half of the time; between nodes, 10 % latency is enough: it grows with
        them.
        """
        return 2 * self.bytes_us < self.time_us or (self.between_nodes and self.judged_by != "bandwidth")

    @property
    def above_the_wire(self) -> bool:
        """Return whether bus bandwidth may exceed any link's rate, because not every byte goes around a ring."""
        return self.busbw_GBps > self.wire_GBps > 0


def predict(
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    version: NcclVersion = LATEST,
    algorithm: str | None = None,
    left: Forced | None = None,
    start: float | None = None,
) -> Prediction | None:
    """Predict the time of `op` at `nbytes` (as nccl-tests prints it); None if that is impossible.

    `algorithm` is the only one allowed; `left` is the choice that settings leave. `start`: the fixed wait of a call on
    this machine besides its hops, in microseconds, if known better than for its class.
    """
    if shape.ranks < 2 or nbytes < 1 or op not in OPS:
        return None
    if not system.p2p and not system.nvlinks:
        system = replace(system, sockets=1)  # each byte crosses host memory, on whichever socket its GPU sits
    parts = network.domains(system, shape)
    if system.network == "sockets" and parts.count > 1:
        return None
    wait = start_us(evidence.path_of(system, shape, op)) if start is None else start
    if op in DIRECT_OPS:
        return _pairwise(system, shape, op, nbytes, version, wait)
    forced = left or only(algorithm)
    found = modelled(system, shape, op, nbytes, version, forced)
    if found is None and parts.count < 2 and (forced is None or forced.ring):
        found = _predict_over_links(system, shape, op, nbytes, version)
    if found is None:
        return None
    ring = _uses_ring(found, system, parts.count, forced)
    alone = _fullest_domain_GBps(system, shape, op, version, ring or bool(forced and forced.flagged))
    limit = network.limit(system, shape, op, alone, ring=ring)
    if parts.count > 1 and limit is None:
        return None
    return _whole(found, system, shape, op, nbytes, limit, version, wait)


def _uses_ring(found: _Modelled, system: NodeSystem, groups: int, forced: Forced | None) -> bool:
    """Return whether the call uses a ring: by NCCL's choice, but two nodes of Hopper and later always use a tree."""
    if forced is not None:
        return forced.ring
    return found.algorithm == "Ring" and not (groups == 2 and system.compute_capability >= 90)


def _predict_over_links(
    system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion
) -> _Modelled | None:
    """Predict a ring over the slowest link of a node without NVLink, if NCCL's search finds no channel.

    NCCL then falls back to a ring in simple order, as between the sockets of 8 RTX 5090.
    """
    if op not in FUNCTIONS or system.nvlinks:
        return None
    transfer_us = nbytes * OPS[op].bus_factor(shape.ranks) / rank_links(system, shape, version).inside_GBps / 1e3
    latency_us = _RING_US + _RANK_US * shape.ranks
    return _Modelled(latency_us, transfer_us, _RING_US, 1.0, "Ring", "", 1, "low")


def _whole(
    found: _Modelled,
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    bound: Limit | None,
    version: NcclVersion,
    start: float,
) -> Prediction:
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    transfer_us = bus_bytes / (bound.value_GBps * found.efficiency * 1e3) if bound else found.transfer_us
    place = _place(found, system, shape, bound, version)
    factors = _corrections(place, system, bus_bytes / transfer_us)
    time_us, share, judged_by = _correct_time(found, transfer_us, factors, start)
    busbw, path = bus_bytes / time_us / 1e3, _describe_links(system, shape, bound)
    found = _as_tree(found, system) if bound and busbw > network.domains(system, shape).line_GBps else found
    return Prediction(
        op=op,
        nbytes=nbytes,
        time_us=time_us,
        busbw_GBps=busbw,
        model_GBps=bus_bytes / (found.latency_us + found.transfer_us) / 1e3,
        start_us=start,
        latency_us=found.latency_us,
        transfer_us=found.transfer_us,
        bytes_us=transfer_us,
        bus_bytes=bus_bytes,
        algorithm=found.algorithm,
        protocol=found.protocol,
        channels=found.channels,
        bottleneck=_bottleneck(found, share, system, shape, bound, version),
        judged_by=judged_by,
        place=place,
        wire_GBps=bound.hard_GBps / network.crossing(shape, network.domains(system, shape)) if bound else _wire(system),
        links=path,
        why=_why(found, path, shape, start if judged_by != "bandwidth" else None),
        source=f"{_MODEL}; {bound.source}" if bound else _MODEL if found.protocol else _LINKS,
        confidence=bound.confidence if bound else "low" if place in _LOW else found.confidence,
    )


def _as_tree(found: _Modelled, system: NodeSystem) -> _Modelled:
    """Return the choice with a tree in place of a ring."""
    return replace(found, algorithm="NVLSTree" if system.nvls else "Tree") if found.algorithm == "Ring" else found


def _corrections(place: Where, system: NodeSystem, bytes_per_us: float) -> Correction:
    """Return the corrections of the model; between sockets they do not exceed the slots' rate."""
    factors = CORRECTIONS[place]
    if place == "sockets" and not system.nvlinks:
        return replace(factors, transfer=max(factors.transfer, bytes_per_us / system.pcie_GBps / 1e3))
    return factors


def _place(found: _Modelled, system: NodeSystem, shape: Shape, bound: Limit | None, version: NcclVersion) -> Where:
    place = where(system, shape, found.algorithm, version, crosses_network=bound is not None)
    between_sockets = place == "pcie" and rank_links(system, shape, version).kind == "inter-socket"
    return "sockets" if between_sockets else place


def _correct_time(
    found: _Modelled | _Direct, transfer_us: float, factors: Correction, start: float
) -> tuple[float, float, str]:
    """Return the time of a call in microseconds, the bytes' share of it, and what to judge it by."""
    share = transfer_us / (start + factors.latency * found.latency_us + transfer_us)
    judged_by = "bandwidth" if share > SATURATED else "time" if share < LATENT else "both"
    return corrected_us(found.latency_us, transfer_us, factors, start), share, judged_by


@lru_cache(maxsize=256)
def _fullest_domain_GBps(system: NodeSystem, shape: Shape, op: str, version: NcclVersion, ring: bool) -> float | None:
    """Return the rate of the fullest NVLink domain by itself; None if it is a single rank."""
    parts = network.domains(system, shape)
    if parts.count < 2 or parts.ranks < 2:
        return None
    part = Shape(shape.gpus[: max(1, -(-shape.nodes // parts.count))])
    found = predict(system, part, op, _LARGE, version, "Ring" if ring else None)
    return found.busbw_GBps if found else None


def _bottleneck(
    found: _Modelled, share: float, system: NodeSystem, shape: Shape, bound: Limit | None, version: NcclVersion
) -> str:
    if share < 0.5:
        return "launch" if bound is None and found.base_us > _LAUNCH_SHARE * found.latency_us else "latency"
    if bound:
        if bound.rule == "one node":
            return _link(system, shape, version)
        return "PCIe" if rank_links(system, shape, version).gate == "pcie" else "NIC"
    return _link(system, shape, version)


def _link(system: NodeSystem, shape: Shape, version: NcclVersion) -> str:
    """Return the slowest link within a node that a ring must cross."""
    return PARTS[rank_links(system, shape, version).kind]


def _wire(system: NodeSystem) -> float:
    """Return the datasheet rate of one GPU's links in one direction: no ring is faster."""
    links = 25.0 * (2 if system.compute_capability >= 100 else 1)
    return system.nvlinks * links if system.nvlinks else system.pcie_GBps * 1.3


def _describe_links(system: NodeSystem, shape: Shape, bound: Limit | None) -> str:
    """Describe the links that the bytes cross."""
    if bound:
        return bound.why
    if system.nvlinks and _link(system, shape, LATEST) == "NVLink":
        return f"{system.nvlinks} NVLinks x {system.nvlink_GBps:g} GB/s as NCCL counts them"
    return _pcie(system, shape)


def _why(found: _Modelled, path: str, shape: Shape, start: float | None) -> str:
    """Describe links, algorithm and ranks; with `start`, also the latency in microseconds."""
    how = f"{found.algorithm} {found.protocol}".strip()
    ranks = f"{shape.ranks} ranks" + (f" on {shape.nodes} nodes" if shape.nodes > 1 else "")
    time = f"; judged by time, {start + found.latency_us:.3g} us of it latency" if start is not None else ""
    return f"{path}, {how}, {ranks}{time}"


def _pcie(system: NodeSystem, shape: Shape) -> str:
    """Describe the slots, or the link between sockets, that a PCIe ring crosses."""
    have = rank_links(system, shape, LATEST)
    path = f"PCIe that NCCL counts as {system.pcie_GBps:g} GB/s" + ("" if system.p2p else ", through host memory")
    place = where(system, shape, "Ring", LATEST, crosses_network=False)
    if have.kind == "inter-socket":
        path, place = f"the link between processor sockets, which NCCL counts as {have.inside_GBps:g} GB/s", "sockets"
    share = 1 / CORRECTIONS[place].transfer
    return path if share == 1 else f"{path}; published runs reach {share:.2g} of that"


def _pairwise(
    system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion, start: float
) -> Prediction | None:
    inside = direct(system, shape, version)
    limit = network.limit(system, shape, op, inside.busbw_GBps)
    crosses = network.domains(system, shape).count > 1
    if crosses and limit is None:
        return None
    top = limit.value_GBps if limit else inside.busbw_GBps
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    transfer_us = bus_bytes / top / 1e3
    place = where(system, shape, "pairs", LATEST, crosses_network=limit is not None)
    factors = Correction(filling=CORRECTIONS[place].filling)
    time_us, share, judged_by = _correct_time(inside, transfer_us, factors, start)
    busbw = bus_bytes / time_us / 1e3
    return Prediction(
        op=op,
        nbytes=nbytes,
        time_us=time_us,
        busbw_GBps=busbw,
        model_GBps=busbw,
        start_us=start,
        latency_us=inside.latency_us,
        transfer_us=transfer_us,
        bytes_us=transfer_us,
        bus_bytes=bus_bytes,
        algorithm="pairs",
        protocol="",
        channels=None,
        bottleneck="latency" if share < 0.5 else "NIC" if limit and limit.rule != "one node" else inside.part,
        judged_by=judged_by,
        place=place,
        wire_GBps=limit.hard_GBps if limit else _wire(system),
        links=limit.why if limit else inside.why,
        why=f"{limit.why if limit else inside.why}, {shape.ranks} ranks in pairs",
        source=limit.source if limit else inside.source,
        confidence="low" if limit is None else limit.confidence,
    )
