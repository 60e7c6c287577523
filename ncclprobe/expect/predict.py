"""What one collective should reach on one machine: the best evidence there is, how sure it is, and why in a sentence.

In the order of trust: what the user or the site's baseline says (:mod:`.bands`), what was published for this very
machine type, NCCL's own cost model with a correction and the limits of the network, and last the datasheet. Without
any of these there is no expectation, and so no FAIL.

Small messages are expected by time: their bus bandwidth is the factor of the collective times bytes by the modelled (or
published) time. What passes, and whether a row is judged at all, is :mod:`.evidence`'s to say.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, cast

from ncclprobe.expect import direct, evidence, network, sockets
from ncclprobe.expect.correction import CORRECTIONS, Correction, Where, corrected_us, where
from ncclprobe.expect.modelled import Modelled, modelled
from ncclprobe.expect.network import Confidence, Limit
from ncclprobe.expect.pinned import NOTHING, Pinned
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machine_types import Latency, MachineType, Published
from ncclprobe.expect.tuner.cost import Forced, only
from ncclprobe.expect.tuner.graphs import Graphs
from ncclprobe.expect.tuner.p2p import links
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.values import Struct, replace
from ncclprobe.ops import OPS

LATEST: NcclVersion = (2, 30, 7)
SATURATED, LATENT = 0.9, 0.25
"""Shares of the time that bytes take: above the first, bandwidth is judged, below the second, time; both between."""

_LAUNCH_SHARE = 0.6
_LARGE = 8 << 30
_MODEL = "NCCL 2.30's own search and cost model (src/graph/search.cc, tuning.cc), corrected by published runs"


class Prediction(Struct, frozen=True, kw_only=True):
    """What the model makes of one call, corrected and within what the network allows.

    `latency_us` and `transfer_us` are NCCL's own; `model_GBps` is the bus bandwidth that they alone give. `bytes_us` is
    the transfer time within what the network allows, `bus_bytes` what the bus bandwidth counts. `bottleneck` names
    what decides: ``launch``, ``latency``, ``NVLink``, ``PCIe``, ``inter-socket`` or ``NIC``.
    """

    op: str
    nbytes: int
    time_us: float
    busbw_GBps: float
    model_GBps: float
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
    why: str
    source: str
    confidence: Confidence

    @property
    def corrected(self) -> bool:
        """Whether the model's own time was corrected."""
        return CORRECTIONS[self.place] != Correction()

    @property
    def latency_decides(self) -> bool:
        """Whether more than bytes decide the time; between nodes a tenth is enough, as latency grows with nodes."""
        return self.judged_by == "time" or (self.place == "network" and self.judged_by == "both")

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
) -> Prediction | None:
    """What `op` of `nbytes` (as nccl-tests prints it) takes; None where nothing can be said.

    `algorithm` is the only one that NCCL may take, `left` what settings leave it.
    `graphs` are what NCCL itself wrote of its search (:mod:`.dumps`).
    """
    if shape.ranks < 2 or nbytes < 1 or op not in OPS:
        return None
    parts = network.domains(system, shape)
    if system.network == "sockets" and parts.count > 1:
        return None
    if op in direct.OPS:
        return _of_pairs(system, shape, op, nbytes, version)
    forced = left or only(algorithm)
    found = modelled(system, shape, op, nbytes, version, forced, graphs)
    if found is None:
        return None
    ring = forced is not None and forced.ring
    alone = _alone_GBps(system, shape, op, version, ring)
    limit = network.limit(system, shape, op, alone, ring=ring)
    return None if parts.count > 1 and limit is None else _whole(found, system, shape, op, nbytes, limit, version)


def _whole(
    found: Modelled, system: NodeSystem, shape: Shape, op: str, nbytes: int, bound: Limit | None, version: NcclVersion
) -> Prediction:
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    transfer_us = bus_bytes / (bound.value_GBps * found.efficiency * 1e3) if bound else found.transfer_us
    place = where(system, shape, found.algorithm, version, crosses_network=bound is not None)
    time_us = corrected_us(found.latency_us, transfer_us, CORRECTIONS[place])
    share = transfer_us / (found.latency_us + transfer_us)
    judged_by = "bandwidth" if share > SATURATED else "time" if share < LATENT else "both"
    busbw = bus_bytes / time_us / 1e3
    return Prediction(
        op=op,
        nbytes=nbytes,
        time_us=time_us,
        busbw_GBps=busbw,
        model_GBps=bus_bytes / (found.latency_us + found.transfer_us) / 1e3,
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
        why=_why(found, system, shape, bound, judged_by),
        source=f"{_MODEL}; {bound.source}" if bound else _MODEL,
        confidence=bound.confidence if bound else "low" if place in ("pcie", "host") else found.confidence,
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


def _why(found: Modelled, system: NodeSystem, shape: Shape, bound: Limit | None, judged_by: str) -> str:
    how = f"{found.algorithm} {found.protocol}".strip()
    ranks = f"{shape.ranks} ranks" + (f" on {shape.nodes} nodes" if shape.nodes > 1 else "")
    if bound:
        links = bound.why
    elif system.nvlinks and _link(system, shape, LATEST) == "NVLink":
        links = f"{system.nvlinks} NVLinks x {system.nvlink_GBps:g} GB/s as NCCL counts them"
    else:
        links = f"PCIe that NCCL counts as {system.pcie_GBps:g} GB/s" + ("" if system.p2p else ", through host memory")
    time = f"; judged by time, {found.latency_us:.3g} us of it latency" if judged_by != "bandwidth" else ""
    return f"{links}, {how}, {ranks}{time}"


def _of_pairs(system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion) -> Prediction | None:
    inside = direct.direct(system, shape, version)
    limit = network.limit(system, shape, op, inside.busbw_GBps)
    crosses = network.domains(system, shape).count > 1
    if crosses and limit is None:
        return None
    top = limit.value_GBps if limit else inside.busbw_GBps
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    transfer_us = bus_bytes / top / 1e3
    place = where(system, shape, "pairs", LATEST, crosses_network=limit is not None)
    time_us = corrected_us(inside.latency_us, transfer_us, Correction(filling=CORRECTIONS[place].filling))
    share = transfer_us / (inside.latency_us + transfer_us)
    judged_by = "bandwidth" if share > SATURATED else "time" if share < LATENT else "both"
    busbw = bus_bytes / time_us / 1e3
    return Prediction(
        op=op,
        nbytes=nbytes,
        time_us=time_us,
        busbw_GBps=busbw,
        model_GBps=busbw,
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
        why=f"{limit.why if limit else inside.why}, {shape.ranks} ranks in pairs",
        source=limit.source if limit else inside.source,
        confidence="low" if limit is None else limit.confidence,
    )


def expectation(
    op: str,
    nbytes: int,
    shape: Shape,
    system: NodeSystem | None,
    *,
    machine: MachineType | None = None,
    version: NcclVersion = LATEST,
    given: Sequence[Band] = (),
    graphs: Graphs | None = None,
    settings: Pinned = NOTHING,
) -> Expectation | None:
    """What `op` of `nbytes` bytes (as printed) should reach on `shape`; None where nobody can say.

    `given` are the user's and the site's bands, in that order; `system` are the links there are, `machine` the type
    that was recognised, for what was published of it. `settings` are the job's: where it is not known what is reached
    with them, the number judges nothing.
    """
    stated = next((b.expectation for b in given if b.op == op and b.low_bytes <= nbytes <= b.high_bytes), None)
    if stated or shape.ranks < 2 or op not in OPS or nbytes < 1:
        return stated
    if system is None and machine is None:
        return None
    whole = system or cast(MachineType, machine).system()
    call = Call(settings.applied(whole), shape, op, nbytes, version, settings, graphs)
    own = call.predicted()
    same = not settings or _same(own, predict(whole, shape, op, nbytes, version, graphs=graphs))
    printed = _published(machine, call, own, same=same) if machine else None
    published = _weighed(printed, call)
    modelled = _by_model(own, call) or _over_tcp(call)
    if published is None and modelled is None:
        return None
    found = combined(published, modelled)
    unknown = _unknown(call, whole, own, same=same)
    return evidence.unjudged(found, unknown) if unknown else found


class Call(Struct, frozen=True):
    """One call on `system`, which has no links but those that `settings` leave it."""

    system: NodeSystem
    shape: Shape
    op: str
    nbytes: int
    version: NcclVersion
    settings: Pinned = NOTHING
    graphs: Graphs | None = None

    def predicted(self) -> Prediction | None:
        """What the model makes of it."""
        left = self.settings.left(self.op)
        return predict(self.system, self.shape, self.op, self.nbytes, self.version, graphs=self.graphs, left=left)


def _same(own: Prediction | None, default: Prediction | None) -> bool:
    """Whether settings leave NCCL the choice that it makes without them, over the same links."""
    if own is None or default is None:
        return own is default
    return (own.algorithm, own.protocol, own.place, own.wire_GBps) == (
        default.algorithm,
        default.protocol,
        default.place,
        default.wire_GBps,
    )


def _unknown(call: Call, whole: NodeSystem, own: Prediction | None, *, same: bool) -> str:
    """Which setting makes of this call something that is not published; empty: none."""
    settings, what = call.settings, ""
    if settings.refused:
        return f"not judged: {settings.refused}"
    if settings.p2p and (whole.nvlinks or whole.p2p):
        what = settings.p2p
    elif settings.proto and not same and own and not _own_choice(call, own):
        what = settings.proto
    elif settings.algo and not same and own and own.algorithm != "Ring":
        what = settings.algo
    else:
        used = own.channels if own else None
        what = next((each.text for each in settings.channels if each.changes(used)), "")
    return f"not judged: {what} is set, and what {call.op} of this size reaches with it is not known" if what else ""


def _own_choice(call: Call, own: Prediction) -> bool:
    """Whether the protocol is what NCCL takes for the algorithm anyway."""
    free = predict(call.system, call.shape, call.op, call.nbytes, call.version, own.algorithm, call.graphs)
    return free is not None and free.protocol == own.protocol


def combined(published: Expectation | None, modelled: Expectation | None) -> Expectation:
    """What was published of a machine, and what the model makes of it: a row fails below the thresholds of both.

    Where one of them is too loosely known, the other's threshold counts. Either may be missing, not both.
    """
    if published is None or modelled is None:
        return cast(Expectation, published or modelled)
    if modelled.worst == "unjudged":
        return published
    known = f"the model expects {modelled.value:.4g} GB/s: {modelled.known}"
    if published.worst == "unjudged":
        return replace(published, threshold=min(modelled.threshold, published.value), worst=modelled.worst, known=known)
    low = min(published.threshold, modelled.threshold)
    worst: Literal["fail", "warn"] = "warn" if "warn" in (published.worst, modelled.worst) else "fail"
    return replace(published, threshold=low, worst=worst, known=f"{published.known}; {known}")


def _weighed(found: tuple[Expectation, bool] | None, call: Call) -> Expectation | None:
    """`found`, a number and whether it is of a time, with what the evidence lets it decide."""
    if found is None:
        return None
    return evidence.weighed(found[0], call.system, call.shape, call.op, call.nbytes, by_time=found[1])


def _by_model(own: Prediction | None, call: Call) -> Expectation | None:
    return _weighed((as_expectation(own, call.settings), own.latency_decides), call) if own else None


def as_expectation(found: Prediction, settings: Pinned = NOTHING) -> Expectation:
    """The model's number, before the evidence says what it may decide."""
    why = found.why + ("; corrected" if found.corrected else "") + (f"; with {settings}" if settings else "")
    return Expectation(found.busbw_GBps, 0.0, "GB/s", "model", why, found.source, found.confidence)


def _over_tcp(call: Call) -> Expectation | None:
    """NCCL between nodes without RDMA: only what is large, because nothing is known of the latency."""
    system = call.system
    tcp = system.network == "sockets" and network.domains(system, call.shape).count > 1
    if not tcp or not system.nic_gbps or call.nbytes < sockets.LARGE_NBYTES:
        return None
    link = sockets.SocketLink(system.nic_gbps * max(1, system.nics), "the NICs of a node", "reported")
    found = sockets.nccl(call.op, link)
    return _weighed((found, False), call) if found else None


def _published(
    machine: MachineType, call: Call, own: Prediction | None, *, same: bool
) -> tuple[Expectation, bool] | None:
    """What was measured on this machine type, with as many GPUs and nodes, at such a size; whether it is of a time.

    `same`: settings change nothing of this call. Else only a number counts that names the algorithm now chosen.
    """
    op, nbytes, shape = call.op, call.nbytes, call.shape
    fitting = [row for row in machine.published if _fits(row, op, shape) and row.algorithm != "sharp"]
    rates = [row for row in fitting if row.min_bytes <= nbytes <= row.max_bytes and (same or _names(row, own))]
    if rates:
        best = max(rates, key=lambda row: (row.busbw_GBps, row.source))
        passes = f"; its source passes {best.threshold_GBps:g}" if best.threshold_GBps else ""
        why = f"{machine.name}: {best.why}{passes}"
        return Expectation(best.busbw_GBps, 0.0, "GB/s", "published", why, best.source), False
    times = [row for row in machine.latencies if same and _fits(row, op, shape) and nbytes <= row.max_bytes]
    return (_as_rate(machine, min(times, key=lambda row: row.max_bytes), op, nbytes, shape), True) if times else None


def _names(row: Published, own: Prediction | None) -> bool:
    return own is not None and row.algorithm == own.algorithm.lower()


def _as_rate(machine: MachineType, row: Latency, op: str, nbytes: int, shape: Shape) -> Expectation:
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    normal = f", up to {row.high_us:.3g} normal by its source" if row.high_us else ""
    why = f"{machine.name}: {row.why}; by time, {row.time_us:.3g} us{normal}"
    return Expectation(bus_bytes / row.time_us / 1e3, 0.0, "GB/s", "published", why, row.source, "medium")


def _fits(row: Published | Latency, op: str, shape: Shape) -> bool:
    return row.op == op and set(shape.gpus) == {row.gpus} and shape.nodes == row.nodes
