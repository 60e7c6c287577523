"""The expected performance of one collective on one machine: the best evidence, its certainty, and a one-sentence
reason.

A few published numbers reveal more than themselves. Small calls of one operation show the fixed wait of every call on
that machine, in addition to its hops. A curve between two published numbers passes through both: the model keeps its
shape and is shifted to them, in the logarithm of time over the logarithm of size.

In order of trust: the user's numbers or the site's baseline (:mod:`ncclprobe.expect.bands`), numbers published for this
very machine type, NCCL's own cost model with a correction and the limits of the network
(:mod:`ncclprobe.expect.predict`), and last the datasheet. Without any of these there is no expectation, and so no FAIL.
:mod:`ncclprobe.expect.evidence` decides what passes, and whether a row is judged at all.

For the rows of a run, every node's own facts are used for that node: a few hundred bytes of each reach rank 0 before
anything is measured (:class:`Described`), and a replay takes them from the captures. A collective is as slow as its
slowest node, so if nodes differ, the lowest expectation applies.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, cast

from ncclprobe.expect import evidence, network, sockets
from ncclprobe.expect.pinned import NOTHING, Pinned, pinned
from ncclprobe.expect.predict import LATEST, Prediction, predict
from ncclprobe.expect.recognise import expectation_context
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.expect.tables.machines import Latency, MachineType, Published
from ncclprobe.model.measurement import Band, Conditions, Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, replace

FADES = 64
"""A published number without another on its far side loses weight with distance, and has none for calls this many times
as large.
"""


class _PublishedTime(Struct, frozen=True):
    """A published time for one size, in microseconds."""

    nbytes: int
    time_us: float


def published_at_size(
    machine: MachineType, op: str, nbytes: int, shape: Shape, algorithm: str | None, *, same: bool
) -> tuple[Expectation, bool] | None:
    """Return the published number for this many GPUs and nodes at this size, and whether it is a time.

    `same`: settings change nothing in this call. Otherwise only a number that names the chosen `algorithm` counts.
    """
    rates = [row for row in _rates(machine, op, shape) if row.min_bytes <= nbytes <= row.max_bytes]
    rates = [row for row in rates if same or (algorithm is not None and row.algorithm == algorithm.lower())]
    if rates:
        best = max(rates, key=lambda row: (row.busbw_GBps, row.source))
        passes = f"; its source passes {best.threshold_GBps:g}" if best.threshold_GBps else ""
        why = f"{machine.name}: {best.why}{passes}"
        return Expectation(best.busbw_GBps, 0.0, "GB/s", "published", why, best.source), False
    times = [row for row in machine.latencies if same and _fits(row, op, shape) and nbytes <= row.max_bytes]
    return (
        (_rate_expectation(machine, min(times, key=lambda row: row.max_bytes), op, nbytes, shape), True)
        if times
        else None
    )


def _rates(machine: MachineType, op: str, shape: Shape) -> list[Published]:
    return [row for row in machine.published if _fits(row, op, shape) and row.algorithm != "sharp"]


def _fits(row: Published | Latency, op: str, shape: Shape) -> bool:
    return row.op == op and set(shape.gpus) == {row.gpus} and shape.nodes == row.nodes


def _rate_expectation(machine: MachineType, row: Latency, op: str, nbytes: int, shape: Shape) -> Expectation:
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    normal = f", up to {row.high_us:.3g} normal by its source" if row.high_us else ""
    why = f"{machine.name}: {row.why}; by time, {row.time_us:.3g} us{normal}"
    return Expectation(bus_bytes / row.time_us / 1e3, 0.0, "GB/s", "published", why, row.source, "medium")


def published_start_us(machine: MachineType, shape: Shape, hops_us: Callable[[Latency], float | None]) -> float | None:
    """Return a call's fixed wait on this machine besides its hops, in a node or between nodes; None if unknown.

    `hops_us`: the model's time of a published small call without that wait.
    """
    calls = [row for row in machine.latencies if (row.nodes > 1) == (shape.nodes > 1)]
    waits = [max(0.0, row.time_us - hops) for row in calls if (hops := hops_us(row)) is not None]
    return statistics.median(waits) if waits else None


def drawn(
    machine: MachineType, op: str, nbytes: int, shape: Shape, modelled_us: Callable[[int], float | None]
) -> tuple[float, str]:
    """Return the factor that shifts the modelled time to the published numbers around `nbytes`, and a description of
    them.
    """
    points = sorted(_points(machine, op, shape), key=lambda point: point.nbytes)
    below = next((point for point in reversed(points) if point.nbytes <= nbytes), None)
    above = next((point for point in points if point.nbytes >= nbytes), None)
    pulls = [pull for point in (below, above) if point and (pull := _pull(point, nbytes, modelled_us))]
    if not pulls:
        return 1.0, ""
    logs = [log for _, log, _ in pulls]
    if len(pulls) == 1:
        far, log, _ = pulls[0]
        factor = math.exp(log * max(0.0, 1 - far / math.log(FADES)))
    else:
        (near, _, _), (beyond, _, _) = pulls
        share = near / (near + beyond) if near + beyond else 0.0
        factor = math.exp(logs[0] * (1 - share) + logs[1] * share)
    return factor, f"adjusted to published results at {' and '.join(dict.fromkeys(word for _, _, word in pulls))}"


def _pull(
    point: _PublishedTime, nbytes: int, modelled_us: Callable[[int], float | None]
) -> tuple[float, float, str] | None:
    """Return a point's distance in log bytes, the log of its time over the modelled one, and its size in words."""
    modelled = modelled_us(point.nbytes)
    if modelled is None:
        return None
    return abs(math.log(nbytes / point.nbytes)), math.log(point.time_us / modelled), size(point.nbytes)


def _points(machine: MachineType, op: str, shape: Shape) -> Iterator[_PublishedTime]:
    """Yield the published points where a range of numbers ends, and where it begins again."""
    for late in machine.latencies:
        if _fits(late, op, shape):
            yield _PublishedTime(late.max_bytes, late.time_us)
    factor = OPS[op].bus_factor(shape.ranks)
    for rate in _rates(machine, op, shape):
        for nbytes in {rate.min_bytes, rate.max_bytes}:
            yield _PublishedTime(nbytes, nbytes * factor / rate.busbw_GBps / 1e3)


def expectation(
    op: str,
    nbytes: int,
    shape: Shape,
    system: NodeSystem | None,
    *,
    machine: MachineType | None = None,
    version: NcclVersion = LATEST,
    given: Sequence[Band] = (),
    settings: Pinned = NOTHING,
    itemsize: int = 4,
) -> Expectation | None:
    """Return the expected bandwidth of `op` at `nbytes` (as printed) on `shape`; None if nothing is known.

    `given` are the user's and the site's bands, in that order. `system` has the links, `machine` is the recognised type
    with its published numbers. `settings` are the job's: if the effect of one is unknown, the number is not used to
    judge. NVSwitches do not reduce one-byte types (ncclNvlsSupported, src/include/device.h, v2.30.7), whatever was
    published for larger ones.
    """
    stated = next((b.expectation for b in given if b.op == op and b.low_bytes <= nbytes <= b.high_bytes), None)
    if stated or shape.ranks < 2 or op not in OPS or nbytes < 1:
        return stated
    if system is None and machine is None:
        return None
    whole = system or cast(MachineType, machine).system()
    if itemsize == 1 and op in ("all_reduce", "reduce_scatter") and whole.nvls:
        whole, machine = replace(whole, nvls=False), None
    call = Call(settings.applied(whole), shape, op, nbytes, version, settings)
    call = replace(call, start=_wait(machine, call.system, shape, version)) if machine else call
    own = call.predicted()
    same = not settings or (
        not _network_setting(call, whole) and _is_same_choice(own, predict(whole, shape, op, nbytes, version))
    )
    chosen = own.algorithm if own else None
    printed = published_at_size(machine, op, nbytes, shape, chosen, same=same) if machine else None
    of_it = _weighed(printed, call)
    modelled = _expect_by_model(own, call, machine if same and not printed else None) or _expect_over_tcp(call)
    if of_it is None and modelled is None:
        return None
    found = combined(of_it, modelled)
    unknown = _unjudged_reason(call, whole, own, same=same)
    return replace(evidence.unjudged(found, unknown), gross=None) if unknown else found


class Call(Struct, frozen=True):
    """One call on `system`, which has only the links that `settings` leave."""

    system: NodeSystem
    shape: Shape
    op: str
    nbytes: int
    version: NcclVersion
    settings: Pinned = NOTHING
    start: float | None = None

    def predicted(self) -> Prediction | None:
        """Return the model's prediction."""
        left = self.settings.left(self.op)
        args = self.system, self.shape, self.op, self.nbytes, self.version
        return predict(*args, left=left, start=self.start)

    def time_us(self, nbytes: int) -> float | None:
        """Return the predicted time for another size."""
        found = replace(self, nbytes=nbytes).predicted()
        return found.time_us if found else None


@lru_cache(maxsize=256)
def _wait(machine: MachineType, system: NodeSystem, shape: Shape, version: NcclVersion) -> float | None:
    """Return the fixed wait of calls on `machine` besides their hops, from its own published small calls."""

    def hops(row: Latency) -> float | None:
        few = Shape((row.gpus,) * row.nodes)
        found = predict(system, few, row.op, OPS[row.op].shape(256, few.ranks, 4).nbytes, version)
        return found.time_us - found.start_us if found else None

    return published_start_us(machine, shape, hops)


def _is_same_choice(own: Prediction | None, default: Prediction | None) -> bool:
    """Return whether NCCL makes the same choice with these settings as without, over the same links."""
    if own is None or default is None:
        return own is default
    return (own.algorithm, own.protocol, own.place, own.wire_GBps) == (
        default.algorithm,
        default.protocol,
        default.place,
        default.wire_GBps,
    )


def _unjudged_reason(call: Call, whole: NodeSystem, own: Prediction | None, *, same: bool) -> str:
    """Return why this call is not judged: a setting whose effect is not published; empty: none."""
    settings, what = call.settings, ""
    if settings.refused:
        return f"not judged: {settings.refused}"
    if settings.p2p and (whole.nvlinks or whole.p2p):
        what = settings.p2p
    elif (settings.shm and not (call.system.p2p or call.system.nvlinks)) or _network_setting(call, whole):
        what = _network_setting(call, whole) or settings.shm
    elif settings.proto and not same and own and not _own_choice(call, own):
        what = settings.proto
    elif settings.algo and not same and own and own.algorithm != "Ring":
        what = settings.algo
    else:
        used = own.channels if own else None
        large = own is not None and own.judged_by == "bandwidth" and own.place != "sockets"
        what = next((each.text for each in settings.channels if each.changes(used, large=large)), "")
    return f"not judged: {what} is set, and the rate of {call.op} at this size with it is unknown" if what else ""


def _network_setting(call: Call, whole: NodeSystem) -> str:
    """Return the setting that takes NICs, or their access to GPU memory, from a call between nodes; empty: none."""
    now = call.system
    less = (now.network, now.nics, now.gdr) != (whole.network, whole.nics, whole.gdr)
    return call.settings.between_nodes if less and network.domains(whole, call.shape).count > 1 else ""


def _own_choice(call: Call, own: Prediction) -> bool:
    """Return whether NCCL would choose this protocol for the algorithm anyway."""
    free = predict(call.system, call.shape, call.op, call.nbytes, call.version, own.algorithm)
    return free is not None and free.protocol == own.protocol


def combined(published: Expectation | None, modelled: Expectation | None) -> Expectation:
    """Combine the published number for a machine with the model's: a row fails only below both thresholds.

    If one of them is too uncertain, the other's threshold counts. Either may be missing, not both.
    """
    if published is None or modelled is None:
        return cast(Expectation, published or modelled)
    marks = [each.gross for each in (published, modelled) if each.gross is not None]
    published = replace(published, gross=min(marks, default=None))
    if modelled.worst == "unjudged":
        return published
    known = f"the model expects {modelled.value:.4g} GB/s: {modelled.known}"
    if published.worst == "unjudged":
        return replace(published, threshold=min(modelled.threshold, published.value), worst=modelled.worst, known=known)
    low = min(published.threshold, modelled.threshold)
    worst: Literal["fail", "warn"] = "warn" if "warn" in (published.worst, modelled.worst) else "fail"
    return replace(published, threshold=low, worst=worst, known=f"{published.known}; {known}")


def _weighed(found: tuple[Expectation, bool] | None, call: Call) -> Expectation | None:
    """Weigh `found`, a number and whether it is a time, by the evidence."""
    if found is None:
        return None
    return evidence.weighed(found[0], call.system, call.shape, call.op, call.nbytes, by_time=found[1])


def _expect_by_model(own: Prediction | None, call: Call, machine: MachineType | None) -> Expectation | None:
    """Return the model's number, shifted to what is published for `machine` at other sizes."""
    if own is None:
        return None
    found = as_expectation(own, call.settings)
    if machine:
        factor, words = drawn(machine, call.op, call.nbytes, call.shape, call.time_us)
        found = replace(found, value=found.value / factor, why="; ".join(filter(None, (found.why, words))))
    return _weighed((found, own.latency_decides), call)


def as_expectation(found: Prediction, settings: Pinned = NOTHING) -> Expectation:
    """Turn a prediction into an expectation that the evidence has not weighed yet."""
    why = found.why + ("; corrected" if found.corrected else "") + (f"; with {settings}" if settings else "")
    return Expectation(found.busbw_GBps, 0.0, "GB/s", "model", why, found.source, found.confidence)


def _expect_over_tcp(call: Call) -> Expectation | None:
    """Expect NCCL between nodes without RDMA, for large sizes only: nothing is known about the latency."""
    system = call.system
    tcp = system.network == "sockets" and network.domains(system, call.shape).count > 1
    if not tcp or not system.nic_gbps or call.nbytes < sockets.LARGE_NBYTES:
        return None
    link = sockets.SocketLink(system.nic_gbps * max(1, system.nics), "the NICs of a node", "reported")
    found = sockets.nccl(call.op, link)
    return _weighed((found, False), call) if found else None


_MOST_NAMED = 3


class Described(Struct, frozen=True):
    """One node as expectations see it. `system`: None if nothing is expected, for the reason `why`.

    `machine`: the recognised type's name. `nccl`: the version on that node. `settings`: those that restrict NCCL's
    choice.
    """

    system: NodeSystem | None
    machine: str | None = None
    why: str = ""
    nccl: NcclVersion | None = None
    settings: Pinned = NOTHING


class Expecting(Struct, frozen=True):
    """Bands for the rows of a run, and a note for the reader about their source (empty: not needed).

    `node_bands`: bands of each node by itself, for the steps of a ladder.
    """

    bands: tuple[Band, ...] = ()
    note: str = ""
    node_bands: tuple[Band, ...] = ()


def describe(facts: Mapping[type, Any]) -> Described:
    """Describe a node by its facts."""
    here = expectation_context(facts)
    if isinstance(here.system, Absent):
        return Described(None, why=here.system.why)
    machine = here.machine.name if here.machine else None
    return Described(here.system, machine, here.why, here.nccl, pinned(here.settings, here.nccl or LATEST))


def expecting(
    ops: Sequence[str], sizes: Sequence[int], itemsize: int, shape: Shape, nodes: Mapping[str, Described]
) -> Expecting:
    """Return the bands of a run of `ops` at `sizes` (requested bytes) over `nodes`, in the order of `shape`."""
    if reason := _unfit(shape, nodes):
        return Expecting(note=f"no expectation: {reason}")
    kinds = _distinct(nodes.values())
    found = tuple(_bands(ops, sizes, itemsize, shape, kinds))
    return Expecting(found, _note(found, nodes, kinds), tuple(_node_bands(sizes, itemsize, shape, kinds)))


def _node_bands(sizes: Sequence[int], itemsize: int, shape: Shape, kinds: Sequence[Described]) -> Iterator[Band]:
    """Yield bands of an all_reduce within one node, if there are several nodes with several ranks."""
    if shape.nodes > 1:
        for gpus in sorted({gpus for gpus in shape.gpus if gpus > 1}):
            like = Conditions(gpus, 1, "float32", "sum", "in", "queued", "nccl")
            for band in _bands(("all_reduce",), sizes, itemsize, Shape((gpus,)), kinds):
                yield replace(band, like=like)


def expecting_pairs(nbytes: int, shape: Shape, nodes: Mapping[str, Described]) -> Expecting:
    """Return the band of one transfer of `nbytes` between two ranks, on different nodes if there are several.

    Between nodes, it is a NIC's rate times the published share that healthy machines reach.
    """
    found = expecting(("sendrecv",), (nbytes,), 1, Shape((1, 1)) if shape.nodes > 1 else Shape((2,)), nodes)
    return Expecting(tuple(replace(band, op=PAIRS) for band in found.bands), found.note)


def _unfit(shape: Shape, nodes: Mapping[str, Described]) -> str:
    """Return why nothing can be expected of these nodes; empty: something can."""
    if not nodes:
        return "no node reported its type"
    most = max(shape.gpus)
    for name, node in nodes.items():
        if node.system is None:
            return f"{name}: {node.why}"
        if most > node.system.gpus:
            return f"{most} ranks on {name}, a machine of {plural(node.system.gpus, 'GPU')}"
    return ""


def _distinct(nodes: Iterable[Described]) -> list[Described]:
    found: list[Described] = []
    for node in nodes:
        if node not in found:
            found.append(node)
    return found


def _bands(
    ops: Sequence[str], sizes: Sequence[int], itemsize: int, shape: Shape, kinds: Sequence[Described]
) -> Iterator[Band]:
    """Yield one band per operation and printed size that has an expectation: the slowest kind of node's."""
    for op in ops:
        printed = dict.fromkeys(OPS[op].shape(nbytes, shape.ranks, itemsize).nbytes for nbytes in sizes)
        for nbytes in filter(None, printed):
            each = [_expected(op, nbytes, itemsize, shape, kind) for kind in kinds]
            known = [expected for expected in each if expected]
            if known and len(known) == len(each):
                yield Band(op, nbytes, nbytes, min(known, key=lambda expected: expected.value))


def _expected(op: str, nbytes: int, itemsize: int, shape: Shape, kind: Described) -> Expectation | None:
    machine = machines.find(kind.machine) if kind.machine else None
    assert kind.system
    version, settings = kind.nccl or LATEST, kind.settings
    return expectation(
        op, nbytes, shape, kind.system, machine=machine, version=version, settings=settings, itemsize=itemsize
    )


def _note(bands: Sequence[Band], nodes: Mapping[str, Described], kinds: Sequence[Described]) -> str:
    if not bands:
        return ""
    judged = any(band.expectation.worst != "unjudged" for band in bands)
    how = "judged without --expect" if judged else "too uncertain to judge by without --expect"
    text = f"{how}: {kinds[0].why}" + (f"; with {kinds[0].settings}" if kinds[0].settings else "")
    if len(kinds) == 1:
        return text
    others = [f"{name}: {node.why}" for name, node in nodes.items() if node != kinds[0]][:_MOST_NAMED]
    return f"{text}; the nodes differ, so all are compared with the slowest ({'; '.join(others)})"
