"""Measure one row: an untimed call, batches from a common start, scheduled starts, and the data's verification."""

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from ncclprobe import stats, units
from ncclprobe.model.measurement import Measurement, Mismatch, Place
from ncclprobe.ops import Op, Shape
from ncclprobe.probes import arrival_skew
from ncclprobe.probes.arrival_skew import Arrival
from ncclprobe.probes.clock import Batch, time_batch
from ncclprobe.probes.data import Pattern
from ncclprobe.probes.plan import PLACES, SweepContext
from ncclprobe.probes.probe import BufferView, Call, Probe
from ncclprobe.probes.rank_reduction import RankResult, rank_result, reduce_ranks
from ncclprobe.probes.sampling import calls_per_batch, more_batches


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
