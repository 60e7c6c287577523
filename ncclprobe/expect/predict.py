"""What one collective takes on one machine, by NCCL's own cost model with a correction and the limits of the network.

Small messages are expected by time: their bus bandwidth is the factor of the collective times bytes by that time.
"""

from functools import lru_cache

from ncclprobe.expect import direct, evidence, network
from ncclprobe.expect.correction import CORRECTIONS, Correction, Where, corrected_us, start_us, where
from ncclprobe.expect.modelled import Modelled, modelled
from ncclprobe.expect.network import Confidence, Limit
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.cost import FUNCTIONS, Forced, only
from ncclprobe.expect.tuner.graphs import Graphs
from ncclprobe.expect.tuner.p2p import links
from ncclprobe.model.values import Struct, replace
from ncclprobe.ops import OPS

LATEST: NcclVersion = (2, 30, 7)
SATURATED, LATENT = 0.9, 0.25
"""Shares of the time that bytes take: above the first, bandwidth is judged, below the second, time; both between."""

_LAUNCH_SHARE = 0.6
_LARGE = 8 << 30
_LOW = ("pcie", "pcie ring", "sockets", "host")
_RING_US, _RANK_US = 5.0, 2.0
"""A small ring over PCIe: 16 us with 4 V100, 24 with 8 RTX PRO 6000."""
_MODEL = "NCCL 2.30's own search and cost model (src/graph/search.cc, tuning.cc), corrected by published runs"

_LINKS = "the slowest link as NCCL counts it, as its search finds no channel there; corrected by published runs"


class Prediction(Struct, frozen=True, kw_only=True):
    """What the model makes of one call, corrected and within what the network allows.

    `latency_us` and `transfer_us` are NCCL's own; `model_GBps` is the bus bandwidth that they alone give. `start_us` is
    what a call waits for on top of its hops, `bytes_us` the transfer time within what the network allows, `bus_bytes`
    what the bus bandwidth counts. `links` says in words what the bytes cross, `bottleneck` what decides: ``launch``,
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
        """Whether the model's own time was corrected."""
        return CORRECTIONS[self.place] != Correction() or self.start_us > 0

    @property
    def between_nodes(self) -> bool:
        """Whether it crosses a network."""
        return self.place.startswith("network")

    @property
    def latency_decides(self) -> bool:
        """Whether more than bytes decide the time; between nodes a tenth is enough, as latency grows with nodes."""
        return self.judged_by == "time" or (self.between_nodes and self.judged_by == "both")

    @property
    def above_the_wire(self) -> bool:
        """Whether the bus bandwidth exceeds what any link carries: right where not every byte goes around a ring."""
        return self.busbw_GBps > self.wire_GBps > 0


def predict(
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    version: NcclVersion = LATEST,
    algorithm: str | None = None,
    graphs: Graphs | None = None,
    left: Forced | None = None,
    start: float | None = None,
) -> Prediction | None:
    """What `op` of `nbytes` (as nccl-tests prints it) takes; None where nothing can be said.

    `algorithm` is the only one that NCCL may take, `left` what settings leave it.
    `graphs` are what NCCL itself wrote of its search (:mod:`.dumps`). `start`: what a call of this machine waits for
    on top of its hops, in microseconds, where that is known better than of its class.
    """
    if shape.ranks < 2 or nbytes < 1 or op not in OPS:
        return None
    if not system.p2p and not system.nvlinks:
        system = replace(system, sockets=1)  # each byte crosses host memory, on whichever socket its GPU sits
    parts = network.domains(system, shape)
    if system.network == "sockets" and parts.count > 1:
        return None
    wait = start_us(evidence.path_of(system, shape, op)) if start is None else start
    if op in direct.OPS:
        return _of_pairs(system, shape, op, nbytes, version, wait)
    forced = left or only(algorithm)
    found = modelled(system, shape, op, nbytes, version, forced, graphs)
    if found is None and parts.count < 2 and (forced is None or forced.ring):
        found = _over_links(system, shape, op, nbytes, version)
    if found is None:
        return None
    ring = forced is not None and forced.ring
    alone = _alone_GBps(system, shape, op, version, ring)
    limit = network.limit(system, shape, op, alone, ring=ring)
    if parts.count > 1 and limit is None:
        return None
    return _whole(found, system, shape, op, nbytes, limit, version, wait)


def _over_links(system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion) -> Modelled | None:
    """A ring over the slowest link of a node without NVLink, where NCCL's search finds no channel of its speeds.

    NCCL then falls back on one in simple order, as between the sockets of 8 RTX 5090.
    """
    if op not in FUNCTIONS or system.nvlinks:
        return None
    transfer_us = nbytes * OPS[op].bus_factor(shape.ranks) / links(system, shape, version).inside_GBps / 1e3
    latency_us = _RING_US + _RANK_US * shape.ranks
    return Modelled(latency_us, transfer_us, _RING_US, 1.0, "Ring", "", 1, "low")


def _whole(
    found: Modelled,
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
    place = where(system, shape, found.algorithm, version, crosses_network=bound is not None)
    if place in ("pcie", "pcie ring") and links(system, shape, version).kind == "inter-socket":
        place = "sockets"
    factors = CORRECTIONS[place]
    time_us = corrected_us(found.latency_us, transfer_us, factors, start)
    share = transfer_us / (start + factors.latency * found.latency_us + transfer_us)
    judged_by = "bandwidth" if share > SATURATED else "time" if share < LATENT else "both"
    busbw, path = bus_bytes / time_us / 1e3, _crossed(system, shape, bound)
    if bound and found.algorithm == "Ring" and busbw > network.domains(system, shape).line_GBps:
        found = replace(found, algorithm="NVLSTree" if system.nvls else "Tree")  # no ring passes more than its NICs
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


@lru_cache(maxsize=256)
def _alone_GBps(system: NodeSystem, shape: Shape, op: str, version: NcclVersion, ring: bool) -> float | None:
    """What the fullest NVLink domain of the job reaches alone; None where it is one rank."""
    parts = network.domains(system, shape)
    if parts.count < 2 or parts.ranks < 2:
        return None
    part = Shape(shape.gpus[: max(1, -(-shape.nodes // parts.count))])
    found = predict(system, part, op, _LARGE, version, "Ring" if ring else None)
    return found.busbw_GBps if found else None


def _bottleneck(
    found: Modelled, share: float, system: NodeSystem, shape: Shape, bound: Limit | None, version: NcclVersion
) -> str:
    if share < 0.5:
        return "launch" if bound is None and found.base_us > _LAUNCH_SHARE * found.latency_us else "latency"
    if bound:
        if bound.rule == "one node":
            return _link(system, shape, version)
        return "PCIe" if links(system, shape, version).gate == "pcie" else "NIC"
    return _link(system, shape, version)


def _link(system: NodeSystem, shape: Shape, version: NcclVersion) -> str:
    """Which link within a node is the slowest that a ring must cross."""
    return direct.PARTS[links(system, shape, version).kind]


def _wire(system: NodeSystem) -> float:
    """What the links of one GPU carry in one direction, by their datasheet: no ring is faster."""
    links = 25.0 * (2 if system.compute_capability >= 100 else 1)
    return system.nvlinks * links if system.nvlinks else system.pcie_GBps * 1.3


def _crossed(system: NodeSystem, shape: Shape, bound: Limit | None) -> str:
    """What the bytes cross, in words."""
    if bound:
        return bound.why
    if system.nvlinks and _link(system, shape, LATEST) == "NVLink":
        return f"{system.nvlinks} NVLinks x {system.nvlink_GBps:g} GB/s as NCCL counts them"
    return _pcie(system, shape)


def _why(found: Modelled, path: str, shape: Shape, start: float | None) -> str:
    """The links, the algorithm and the ranks; with `start`, the microseconds that the bytes have no part in."""
    how = f"{found.algorithm} {found.protocol}".strip()
    ranks = f"{shape.ranks} ranks" + (f" on {shape.nodes} nodes" if shape.nodes > 1 else "")
    time = f"; judged by time, {start + found.latency_us:.3g} us of it latency" if start is not None else ""
    return f"{path}, {how}, {ranks}{time}"


def _pcie(system: NodeSystem, shape: Shape) -> str:
    """The slots, or the link between the sockets, that a ring of PCIe crosses."""
    have = links(system, shape, LATEST)
    path = f"PCIe that NCCL counts as {system.pcie_GBps:g} GB/s" + ("" if system.p2p else ", through host memory")
    place = where(system, shape, "Ring", LATEST, crosses_network=False)
    if have.kind == "inter-socket":
        path, place = f"the link between processor sockets, which NCCL counts as {have.inside_GBps:g} GB/s", "sockets"
    share = 1 / CORRECTIONS[place].transfer
    return path if share == 1 else f"{path}, of which {share:.2g} is reached"


def _of_pairs(
    system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion, start: float
) -> Prediction | None:
    inside = direct.direct(system, shape, version)
    limit = network.limit(system, shape, op, inside.busbw_GBps)
    crosses = network.domains(system, shape).count > 1
    if crosses and limit is None:
        return None
    top = limit.value_GBps if limit else inside.busbw_GBps
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    transfer_us = bus_bytes / top / 1e3
    place = where(system, shape, "pairs", LATEST, crosses_network=limit is not None)
    time_us = corrected_us(inside.latency_us, transfer_us, Correction(filling=CORRECTIONS[place].filling), start)
    share = transfer_us / (start + inside.latency_us + transfer_us)
    judged_by = "bandwidth" if share > SATURATED else "time" if share < LATENT else "both"
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
