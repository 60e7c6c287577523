"""Measure one row: an untimed call, batches from a common start, scheduled starts, the data's verification,
and one row of what all ranks report."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ncclprobe import stats, units
from ncclprobe.model.measurement import Measurement, Mismatch, Place, Samples
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.ops import Op, Shape
from ncclprobe.probes import arrival_skew
from ncclprobe.probes.arrival_skew import Arrival, skew
from ncclprobe.probes.clock import Batch, time_batch
from ncclprobe.probes.data import Pattern
from ncclprobe.probes.plan import PLACES, Plan, SweepContext, library
from ncclprobe.probes.probe import BufferView, Call, Probe
from ncclprobe.probes.sampling import calls_per_batch, more_batches
from ncclprobe.units import microseconds

_MOST_SAMPLES = 1000
_MOST_MISMATCHES = 8


def measure(context: SweepContext, op: Op, probe: Probe, shape: Shape, place: Place, data: Pattern) -> Measurement:
    """Measure one row: on rank 0 over all ranks, elsewhere of this rank alone. Raises ProbeError."""
    plan = context.plan
    row = f"{op.name} {units.size(shape.nbytes)} {PLACES[place]}"
    began = context.clock.now()
    first, *_ = context.views(shape, place)
    iters = _calls(context, row, probe.run(first))
    views = context.views(shape, place, most=iters * (stats.MIN_SAMPLES if plan.target else plan.batches))
    batches = _batches(context, row, [probe.run(view) for view in views], iters, began)
    arrivals = _arrival_rounds(context, row, probe.run(views[0]), batches)
    wrong, mismatch = _verify(context, row, probe, views[0], shape.count, data) if plan.verify else (None, None)
    context.set_phase(f"{row} gather")
    own_result = rank_result(batches, wrong, mismatch, arrivals)
    gathered = context.exchange.collect(own_result.pack())
    by_rank = dict(enumerate(map(RankResult.unpack, gathered))) if gathered else {plan.rank: own_result}
    return reduce_ranks(plan, op, shape, place, context.buffers.footprint_bytes, iters, by_rank)


def _calls(context: SweepContext, row: str, call: Call) -> int:
    """Make nccl-tests' one untimed call, and settle on the number of calls per batch, by the slowest rank's time."""
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


def _batches(context: SweepContext, row: str, calls: Sequence[Call], iters: int, began: float) -> list[Batch]:
    """Time batches until the plan has enough, each going on through the views where the one before stopped."""
    plan = context.plan
    turns = _turns(context, row, calls, iters)
    batches: list[Batch] = []
    samples: list[float] = []  # of all ranks; on rank 0 only
    more = stats.MIN_SAMPLES if plan.target else plan.batches
    while more:
        at_once = more if plan.target and iters > 1 else 1  # short batches need no heartbeat each
        for begin in range(len(batches), len(batches) + more, at_once):
            with context.phase(f"{row} batch {begin + 1}" + (f" to {begin + at_once}" if at_once > 1 else "")):
                batches += [_batch(context, next(turns), iters) for _ in range(at_once)]
        more = _more(context, row, batches[-more:], samples, began) if plan.target else 0
    return batches


def _batch(context: SweepContext, turn: Sequence[Call], iters: int) -> Batch:
    context.clock.barrier()
    return time_batch(turn, context.plan.timing, context.clock, each=iters // len(turn))


def _turns(context: SweepContext, row: str, calls: Sequence[Call], iters: int) -> Iterator[Sequence[Call]]:
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


def _more(context: SweepContext, row: str, batches: Sequence[Batch], samples: list[float], began: float) -> int:
    """Return how many batches come next, which rank 0 decides once it has those of all ranks; 0: enough."""
    context.set_phase(f"{row} decide")
    gathered = context.exchange.collect([batch.seconds for batch in batches])
    decision = None
    if gathered and context.plan.target:
        samples += [fmean(together) for together in zip(*gathered, strict=True)]
        context.reach(row, stats.precision(samples))
        decision = more_batches(samples, context.clock.now() - began, context.plan.target)
    return int(context.exchange.share(decision))


def _arrival_rounds(context: SweepContext, row: str, call: Call, batches: Sequence[Batch]) -> list[Arrival]:
    """Make the rounds of probes.arrival_skew; as many as rank 0 finds affordable."""
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
    """Return how many elements one more call leaves wrong on this rank, and the first of them.

    The view is left as zeros, which is what calls are timed on: repeated sums of anything else would overflow.
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
    """What one rank measured of a row: per batch the seconds per call, and means of the host's and device's share.

    `wrong` counts elements, None: not verified.
    """

    seconds: Sequence[float]
    issue_s: float
    device_s: float | None = None
    wrong: int | None = None
    mismatch: Mismatch | None = None
    arrivals: Sequence[Arrival] = ()

    def pack(self) -> dict[str, Any]:
        """Return the result as JSON can hold it."""
        return asdict(self)

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> "RankResult":
        """Read what :meth:`pack` made."""
        mismatch = row["mismatch"] and Mismatch(**row["mismatch"])
        return cls(**{**row, "mismatch": mismatch, "arrivals": [Arrival(**each) for each in row["arrivals"]]})


def rank_result(
    batches: Sequence[Batch], wrong: int | None, mismatch: Mismatch | None, arrivals: Sequence[Arrival]
) -> RankResult:
    """Return this rank's part."""
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
    plan: Plan, op: Op, shape: Shape, place: Place, footprint_bytes: int, iters: int, rows: Mapping[int, RankResult]
) -> Measurement:
    """Reduce the results of all ranks (by number) to the row; ncclprobe.stats defines its numbers."""
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
        samples=_samples(samples, [row.seconds for row in rows.values()]),
        skew=skew({rank: row.arrivals for rank, row in rows.items()}),
    )


def _mean_us(seconds: Sequence[float | None]) -> float | None:
    """Return the mean over ranks, if all have one."""
    known = [value for value in seconds if value is not None]
    return fmean(known) * 1e6 if known and len(known) == len(seconds) else None


def _samples(means: Sequence[float], ranks: Sequence[Sequence[float]]) -> Samples:
    few = len(means) * len(ranks) <= _MOST_SAMPLES
    return Samples(
        by_rank=tuple(microseconds(fmean(each)) for each in ranks),
        by_batch=tuple(map(microseconds, means)),
        each=tuple(tuple(map(microseconds, each)) for each in ranks) if few else (),
    )
