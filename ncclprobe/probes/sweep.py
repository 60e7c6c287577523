"""Sweep collectives over sizes: allocate, warm up, and measure row by row.

The order is that of nccl-tests' BenchTime (src/common.cu:694- at a0b82b2), so that the numbers compare: warm-up once
per operation at doubling sizes; then, per size and place, one untimed call, a barrier, and calls back to back with
nothing between them. All ranks make the same steps in the same order, and none decides anything by itself.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.host import Host
from ncclprobe.model import stats, units
from ncclprobe.model.errors import ProbeError, UsageError, reason
from ncclprobe.model.measurement import Measurement, Mismatch, Place, Samples, SkippedRow
from ncclprobe.model.ops import DTYPES, OPS, CallShape, Op
from ncclprobe.model.registry import discover
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.probes import arrival_skew
from ncclprobe.probes.arrival_skew import Arrival, skew
from ncclprobe.probes.buffers import Pattern, allocate, footprint, free_bytes, pattern
from ncclprobe.probes.clock import Batch, Clock, clock_of, time_batch
from ncclprobe.probes.collectives import BufferView, Call, Probe
from ncclprobe.probes.plan import (
    PLACES,
    Exchange,
    Plan,
    Reach,
    SetPhase,
    SweepContext,
    calls_per_batch,
    library,
    more_batches,
    phase,
)

_MOST_SAMPLES = 1000
_MOST_MISMATCHES = 8


def measure(context: SweepContext, op: Op, probe: Probe, shape: CallShape, place: Place, data: Pattern) -> Measurement:
    """Measure one row: on rank 0 over all ranks, elsewhere only of this rank. Raises ProbeError."""
    plan = context.plan
    row = f"{op.name} {units.size(shape.nbytes)} {PLACES[place]}"
    began = context.clock.now()
    first, *_ = context.views(shape, place)
    iters = _choose_calls_per_batch(context, row, probe.run(first))
    views = context.views(shape, place, most=iters * (stats.MIN_SAMPLES if plan.target else plan.batches))
    batches = _time_batches(context, row, [probe.run(view) for view in views], iters, began)
    arrivals = _arrival_rounds(context, row, probe.run(views[0]), batches)
    wrong, mismatch = _verify(context, row, probe, views[0], shape.count, data) if plan.verify else (None, None)
    context.set_phase(f"{row} gather")
    own_result = rank_result(batches, wrong, mismatch, arrivals)
    gathered = context.exchange.collect(own_result.pack())
    by_rank = dict(enumerate(map(RankResult.unpack, gathered))) if gathered else {plan.rank: own_result}
    return reduce_ranks(plan, op, shape, place, context.buffers.footprint_bytes, iters, by_rank)


def _choose_calls_per_batch(context: SweepContext, row: str, call: Call) -> int:
    """Make nccl-tests' one untimed call, and choose the calls per batch from the slowest rank's time."""
    clock = context.clock
    with context.phase(f"{row} untimed call"):
        started = clock.now()
        call()
        clock.synchronise()
        took = clock.now() - started
    if context.plan.target is None:
        return context.plan.iters
    context.set_phase(f"{row} decide")
    slowest = context.exchange.collect(took)
    return int(context.exchange.share(calls_per_batch(max(slowest), context.plan.target) if slowest else None))


def _time_batches(context: SweepContext, row: str, calls: Sequence[Call], iters: int, began: float) -> list[Batch]:
    """Time batches until the plan has enough; each continues through the views where the last one ended."""
    plan = context.plan
    turns = _batch_calls(context, row, calls, iters)
    batches: list[Batch] = []
    samples: list[float] = []  # of all ranks; on rank 0 only
    more = stats.MIN_SAMPLES if plan.target else plan.batches
    while more:
        at_once = more if plan.target and iters > 1 else 1  # short batches need no heartbeat each
        for begin in range(len(batches), len(batches) + more, at_once):
            with context.phase(f"{row} batch {begin + 1}" + (f" to {begin + at_once}" if at_once > 1 else "")):
                batches += [_batch(context, next(turns), iters) for _ in range(at_once)]
        more = _agree_on_more_batches(context, row, batches[-more:], samples, began) if plan.target else 0
    return batches


def _batch(context: SweepContext, turn: Sequence[Call], iters: int) -> Batch:
    context.clock.barrier()
    return time_batch(turn, context.plan.timing, context.clock, each=iters // len(turn))


def _batch_calls(context: SweepContext, row: str, calls: Sequence[Call], iters: int) -> Iterator[Sequence[Call]]:
    """Yield the calls of each batch: the next `iters` views, or always the one graph that holds so many."""
    endless = itertools.cycle(calls)
    if context.plan.timing != "graph":
        while True:
            yield list(itertools.islice(endless, iters))
    with context.phase(f"{row} graph capture"):
        graph = context.clock.graph(list(itertools.islice(endless, iters)))
        graph()  # the first launch uploads it
        context.clock.synchronise()
    while True:
        yield [graph]


def _agree_on_more_batches(
    context: SweepContext, row: str, batches: Sequence[Batch], samples: list[float], began: float
) -> int:
    """Return how many batches to add; rank 0 decides from the samples of all ranks. 0: enough."""
    context.set_phase(f"{row} decide")
    gathered = context.exchange.collect([batch.seconds for batch in batches])
    decision = None
    if gathered and context.plan.target:
        samples += [fmean(together) for together in zip(*gathered, strict=True)]
        context.reach(row, stats.precision(samples))
        decision = more_batches(samples, context.clock.now() - began, context.plan.target)
    return int(context.exchange.share(decision))


def _arrival_rounds(context: SweepContext, row: str, call: Call, batches: Sequence[Batch]) -> list[Arrival]:
    """Make the rounds of probes.arrival_skew, as many as rank 0 finds affordable."""
    plan = context.plan
    if not plan.rounds:
        return []
    call_s = fmean(batch.seconds for batch in batches)
    number = int(context.exchange.share(min(plan.rounds, arrival_skew.rounds(call_s, plan.budget_s))))
    with context.phase(f"{row} appointments"):
        return [arrival_skew.arrive(call, context.clock) for _ in range(number)]


def _verify(
    context: SweepContext, row: str, probe: Probe, view: BufferView, count: int, data: Pattern
) -> tuple[int, Mismatch | None]:
    """Return how many elements one more call gets wrong on this rank, and the first of them.

    The view is left zeroed, because calls are timed on zeros: repeated sums of anything else would overflow.
    """
    with context.phase(f"{row} verify"):
        view.recv.zero_()
        data.fill(view.send, view.rank)
        context.clock.synchronise()
        probe.run(view)()
        context.clock.synchronise()
        parts = probe.result(view.rank, view.ranks, count)
        wrong = data.wrong(view.recv, parts)
        first = data.first_wrong(view.recv, parts, view.rank) if wrong else None
        view.send.zero_()
        view.recv.zero_()
    return wrong, first


class RankResult(Struct, frozen=True):
    """One rank's part of a row: seconds per call of each batch, and the means of the host's and the device's times.

    `wrong` counts elements; None if not verified.
    """

    seconds: Sequence[float]
    issue_s: float
    device_s: float | None = None
    wrong: int | None = None
    mismatch: Mismatch | None = None
    arrivals: Sequence[Arrival] = ()

    def pack(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> "RankResult":
        """Parse what :meth:`pack` made."""
        mismatch = row["mismatch"] and Mismatch(**row["mismatch"])
        return cls(**{**row, "mismatch": mismatch, "arrivals": [Arrival(**each) for each in row["arrivals"]]})


def rank_result(
    batches: Sequence[Batch], wrong: int | None, mismatch: Mismatch | None, arrivals: Sequence[Arrival]
) -> RankResult:
    """Reduce this rank's batches to its result."""
    on_device = [batch.device_s for batch in batches if batch.device_s is not None]
    return RankResult(
        [batch.seconds for batch in batches],
        fmean(batch.issue_s for batch in batches),
        fmean(on_device) if on_device else None,
        wrong,
        mismatch,
        arrivals,
    )


def reduce_ranks(
    plan: Plan, op: Op, shape: CallShape, place: Place, footprint_bytes: int, iters: int, rows: Mapping[int, RankResult]
) -> Measurement:
    """Reduce the results of all ranks, by rank, to the row; ncclprobe.model.stats defines its numbers."""
    samples = [fmean(batch) for batch in zip(*(row.seconds for row in rows.values()), strict=True)]
    time_us = replace(stats.summary(samples), headline="median" if plan.precision else "mean")
    algbw, busbw = op.bandwidth(shape, plan.ranks, time_us.typical / 1e6)
    issue_us = fmean(row.issue_s for row in rows.values()) * 1e6
    interval = stats.median_interval(samples) if len(samples) >= stats.MIN_SAMPLES else None
    wrong = [row.wrong for row in rows.values() if row.wrong is not None]
    return Measurement(
        op=op.name,
        place=place,
        mode=plan.timing,
        backend=plan.backend,
        library=library(plan.backend),
        dtype=plan.dtype,
        redop=plan.redop if op.reduces else None,
        nbytes=shape.nbytes,
        count=shape.count,
        ranks=plan.ranks,
        nodes=plan.nodes,
        iters=iters,
        batches=len(samples),
        footprint_bytes=footprint_bytes,
        time_us=time_us,
        issue_us=issue_us,
        slowest_rank=max(rows, key=lambda rank: fmean(rows[rank].seconds)),
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        wrong=sum(wrong) if wrong else None,
        mismatches=tuple(row.mismatch for row in rows.values() if row.mismatch)[:_MOST_MISMATCHES],
        interval_us=(interval[0] * 1e6, interval[1] * 1e6) if interval else None,
        precision=stats.precision(samples) if interval else None,
        precision_asked=plan.precision,
        launch_bound=plan.timing != "blocking" and issue_us >= stats.LAUNCH_BOUND * time_us.typical,
        device_us=_mean_us([row.device_s for row in rows.values()]),
        samples=samples_of(samples, [row.seconds for row in rows.values()]),
        skew=skew({rank: row.arrivals for rank, row in rows.items()}),
    )


def _mean_us(seconds: Sequence[float | None]) -> float | None:
    """Return the mean over ranks in µs; None unless all ranks have a value."""
    known = [value for value in seconds if value is not None]
    return fmean(known) * 1e6 if known and len(known) == len(seconds) else None


def samples_of(means: Sequence[float], ranks: Sequence[Sequence[float]]) -> Samples:
    """Return the samples of a size, in microseconds: `means` of each batch, `ranks` of each rank's batches (s)."""
    few = len(means) * len(ranks) <= _MOST_SAMPLES
    return Samples(
        by_rank=tuple(microseconds(fmean(each)) for each in ranks),
        by_batch=tuple(map(microseconds, means)),
        each=tuple(tuple(map(microseconds, each)) for each in ranks) if few else (),
    )


_PREDICTS = 1 << 20
"""From this size in bytes, a message of twice the size takes about twice as long."""
_EXTRA_CALLS = 2
"""Calls of a row besides its warm-up and batches: an untimed one, and one that is verified."""
_HOLDERS = (
    ", or stop the other processes that use it: nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv"
)
_SETTLE_S = 0.2  # gloo counts a call that failed as under way for a moment longer, and a barrier would fail with it


def run(
    plan: Plan,
    exchange: Exchange,
    set_phase: SetPhase,
    *,
    host: Host,
    clock: Clock | None = None,
    reach: Reach = lambda row, precision: None,
) -> Iterator[Measurement | SkippedRow]:
    """Measure everything in `plan`, row by row, over its process group, which must exist.

    `set_phase` receives the name of every step that may block, on all ranks. `host` is asked for free memory; sizes
    that
    do not fit are skipped and reported. `reach` receives the progress of a row. On rank 0 a measurement is over all
    ranks; elsewhere only of that rank. Raises UsageError (on all ranks) if no size fits, ProbeError if a step fails or
    ranks disagree.
    """
    device = torch.device(plan.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    room, fullest = least_room(plan, exchange, free_bytes(device, host))
    fits = tuple(nbytes for nbytes in plan.sizes if 2 * buffer_bytes(plan, nbytes) <= room)
    yield from skipped_for_memory(plan, fits, room, fullest)
    plan = replace(plan, sizes=fits)
    need = max(buffer_bytes(plan, nbytes) for nbytes in fits)
    with phase(plan.rank, set_phase, f"allocating 2 x {units.size(need)}"):
        buffers = allocate(need, getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock or clock_of(device), buffers, reach)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name in plan.ops:
        yield from _sweep(context, OPS[name], probes[name])


def least_room(plan: Plan, exchange: Exchange, free: int | None) -> tuple[int, int]:
    """Return the bytes available on the fullest rank, and that rank. Ranks of a host share its memory, but no GPU."""
    sharing = 1 if plan.device.startswith("cuda") else -(-plan.ranks // plan.nodes)
    rooms = exchange.collect(sys.maxsize if free is None else free // sharing)
    room, rank = exchange.share(min((room, rank) for rank, room in enumerate(rooms)) if rooms else None)
    return int(room), int(rank)


def buffer_bytes(plan: Plan, nbytes: int) -> int:
    """Return the bytes of each of the two buffers for messages of up to `nbytes`."""
    shapes = [OPS[name].shape(nbytes, plan.ranks, DTYPES[plan.dtype]) for name in plan.ops]
    return footprint(max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes), plan.footprint_bytes)


def skipped_for_memory(plan: Plan, fits: tuple[int, ...], room: int, rank: int) -> Iterator[SkippedRow]:
    """Yield the rows that do not fit into the `room` bytes of `rank`. Raises UsageError if nothing fits."""
    left_out = [nbytes for nbytes in plan.sizes if nbytes not in fits]
    but, end = (" without what NCCL itself needs", _HOLDERS) if plan.backend == "nccl" else ("", "")
    whys = {
        nbytes: f"two buffers need {units.size(2 * buffer_bytes(plan, nbytes))} per rank and rank {rank} has only "
        f"{units.size(room)} free{but}"
        for nbytes in left_out
    }
    if not fits:
        smallest = min(plan.sizes)
        raise UsageError(f"{units.size(smallest)}: {whys[smallest]}; choose smaller sizes (-b and -e){end}")
    for name in plan.ops:
        for nbytes in left_out:
            yield SkippedRow(name, nbytes, "memory", whys[nbytes])


def _sweep(context: SweepContext, op: Op, probe: Probe) -> Iterator[Measurement | SkippedRow]:
    plan = context.plan
    shapes = {nbytes: op.shape(nbytes, plan.ranks, DTYPES[plan.dtype]) for nbytes in plan.sizes}
    for nbytes, shape in shapes.items():
        if not shape.nbytes:
            why = f"{units.size(nbytes)} is too little for {plan.ranks} ranks to share"
            yield SkippedRow(op.name, nbytes, "small", why)
    measurable = {nbytes: shape for nbytes, shape in shapes.items() if shape.nbytes}
    if not measurable:
        return
    refusal = _refusal(context, op, probe, measurable[min(measurable)])
    if refusal:
        yield SkippedRow(op.name, None, "refused", refusal)
        return
    for nbytes, row_s in _warm_up(context, op, probe, sorted(measurable)).items():
        why = f"a row of it would take {row_s:.3g} s, and may take {plan.longest_s:.3g}"
        yield SkippedRow(op.name, nbytes, "time", why)
        del measurable[nbytes]
    recv = context.buffers.recv
    data = pattern(recv.dtype, plan.redop if op.reduces else None, plan.ranks, recv.device)
    for shape in measurable.values():
        for place in op.places:
            yield measure(context, op, probe, shape, place, data)


def _refusal(context: SweepContext, op: Op, probe: Probe, shape: CallShape) -> str:
    """Return why torch does not support this operation here, or nothing: tried out, and agreed between ranks.

    Ranks that lost each other may all see an error too. A barrier tells the two apart: it still works after a mere
    refusal.
    """
    why = ""
    for place in op.places:
        with context.phase(f"{op.name} first call {PLACES[place]}"):
            why = why or _attempt(context, probe.run(context.views(shape, place)[0]))
    answers = context.exchange.collect(bool(why))
    refused = context.exchange.share(sum(answers) if answers else None)
    if 0 < refused < context.plan.ranks:
        here = f"rank {context.plan.rank}: {why or 'succeeded'}"
        raise ProbeError(f"{op.name} first call: failed on {refused} of {context.plan.ranks} ranks; {here}")
    if refused:
        time.sleep(_SETTLE_S)
        with context.phase(f"barrier after {op.name} failed with {why!r}"):
            context.clock.barrier()
    return why


def _attempt(context: SweepContext, call: Call) -> str:
    """Return torch's error for `call`, if any; the exception's type depends on backend and operation."""
    try:
        call()
        context.clock.synchronise()
    except (dist.DistError, torch.cuda.OutOfMemoryError):  # of NCCL, the network, the store or memory: no refusal
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        return reason(error)
    return ""


def _warm_up(context: SweepContext, op: Op, probe: Probe, asked: Sequence[int]) -> dict[int, float]:
    """Let connections, algorithms and caches settle: every size class once, doubling whatever -f is.

    Return the sizes of `asked`, ascending, that would take too long, with the predicted seconds of a row.
    """
    nbytes = asked[0]
    while nbytes <= asked[-1]:
        with context.phase(f"{op.name} {units.size(nbytes)} warm-up"):
            shape = op.shape(nbytes, context.plan.ranks, DTYPES[context.plan.dtype])
            call_s = warm_up_size(context, probe.run(context.views(shape, op.places[0])[0]))
        larger = [each for each in asked if each > nbytes]
        if larger and (late := too_long(context, f"{op.name} {units.size(nbytes)}", nbytes, larger, call_s)):
            return late
        nbytes *= 2
    return {}


def warm_up_size(context: SweepContext, call: Call) -> float:
    """Make the warm-up calls; return the seconds of the last one if times are predicted, else 0."""
    clock, plan = context.clock, context.plan
    predicts = plan.target is not None and plan.longest_s is not None and plan.warmup > 0
    for _ in range(plan.warmup - predicts):
        call()
    clock.synchronise()
    if not predicts:
        return 0.0
    started = clock.now()
    call()
    clock.synchronise()
    return clock.now() - started


def too_long(context: SweepContext, what: str, nbytes: int, larger: Sequence[int], call_s: float) -> dict[int, float]:
    """Return the `larger` sizes whose rows would take too long, if the next class would; the same on all ranks."""
    plan = context.plan
    if plan.target is None or plan.longest_s is None or nbytes < _PREDICTS:
        return {}
    context.set_phase(f"{what} decide")
    told = context.exchange.collect(call_s)
    slowest_s = float(context.exchange.share(max(told) if told else None))
    calls = plan.warmup + stats.MIN_SAMPLES + _EXTRA_CALLS
    rows_s = {each: slowest_s * calls * each / nbytes for each in larger}
    if slowest_s * calls * 2 <= plan.longest_s:
        return {}
    return {each: row_s for each, row_s in rows_s.items() if row_s > plan.longest_s}
