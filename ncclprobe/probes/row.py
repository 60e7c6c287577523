"""Measuring one row: an untimed call, batches from a common start, appointments, and the data's verification."""

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from ncclprobe import stats, units
from ncclprobe.model.measurement import Measurement, Mismatch, Place
from ncclprobe.ops import Op, Shape
from ncclprobe.probes import Call, Probe, Slot, arrival_skew
from ncclprobe.probes.arrival_skew import Arrival
from ncclprobe.probes.clock import Batch, time_batch
from ncclprobe.probes.data import Pattern
from ncclprobe.probes.plan import PLACES, Bench
from ncclprobe.probes.rank_reduction import Told, tally, told
from ncclprobe.probes.sampling import calls_per_batch, more_batches


def measure(bench: Bench, op: Op, probe: Probe, shape: Shape, place: Place, data: Pattern) -> Measurement:
    """One row: on rank 0 over all ranks, elsewhere of this rank alone. Raises ProbeError."""
    plan = bench.plan
    row = f"{op.name} {units.size(shape.nbytes)} {PLACES[place]}"
    began = bench.clock.now()
    first, *_ = bench.slots(shape, place)
    iters = _calls(bench, row, probe.run(first))
    slots = bench.slots(shape, place, most=iters * (stats.MIN_SAMPLES if plan.target else plan.batches))
    batches = _batches(bench, row, [probe.run(slot) for slot in slots], iters, began)
    arrivals = _appointments(bench, row, probe.run(slots[0]), batches)
    wrong, mismatch = _verify(bench, row, probe, slots[0], shape.count, data) if plan.verify else (None, None)
    bench.beat(f"{row} gather")
    own = told(batches, wrong, mismatch, arrivals)
    gathered = bench.exchange.collect(own.pack())
    by_rank = dict(enumerate(map(Told.unpack, gathered))) if gathered else {plan.rank: own}
    return tally(plan, op, shape, place, bench.buffers.footprint_bytes, iters, by_rank)


def _calls(bench: Bench, row: str, call: Call) -> int:
    """Make nccl-tests' one untimed call, and settle on the number of calls per batch, by the slowest rank's time."""
    clock = bench.clock
    with bench.phase(f"{row} untimed call"):
        started = clock.now()
        call()
        clock.synchronise()
        took = clock.now() - started
    if bench.plan.target is None:
        return bench.plan.iters
    bench.beat(f"{row} decide")
    slowest = bench.exchange.collect(took)
    return int(bench.exchange.share(calls_per_batch(max(slowest), bench.plan.target) if slowest else None))


def _batches(bench: Bench, row: str, calls: Sequence[Call], iters: int, began: float) -> list[Batch]:
    """Batches until the plan has what it wants, each going on through the slots where the one before stopped."""
    plan = bench.plan
    turns = _turns(bench, row, calls, iters)
    batches: list[Batch] = []
    samples: list[float] = []  # of all ranks; on rank 0 only
    more = stats.MIN_SAMPLES if plan.target else plan.batches
    while more:
        at_once = more if plan.target and iters > 1 else 1  # short batches need no heartbeat each
        for begin in range(len(batches), len(batches) + more, at_once):
            with bench.phase(f"{row} batch {begin + 1}" + (f" to {begin + at_once}" if at_once > 1 else "")):
                batches += [_batch(bench, next(turns), iters) for _ in range(at_once)]
        more = _more(bench, row, batches[-more:], samples, began) if plan.target else 0
    return batches


def _batch(bench: Bench, turn: Sequence[Call], iters: int) -> Batch:
    bench.clock.barrier()
    return time_batch(turn, bench.plan.timing, bench.clock, each=iters // len(turn))


def _turns(bench: Bench, row: str, calls: Sequence[Call], iters: int) -> Iterator[Sequence[Call]]:
    """The calls of each batch: the next `iters` slots, or always the one graph that holds so many."""
    endless = itertools.cycle(calls)
    if bench.plan.timing != "graph":
        while True:
            yield list(itertools.islice(endless, iters))
    with bench.phase(f"{row} graph capture"):
        graph = bench.clock.graph(list(itertools.islice(endless, iters)))
        graph()  # the first launch uploads it
        bench.clock.synchronise()
    while True:
        yield [graph]


def _more(bench: Bench, row: str, batches: Sequence[Batch], samples: list[float], began: float) -> int:
    """How many batches come next, which rank 0 decides once it has everybody's; 0: enough."""
    bench.beat(f"{row} decide")
    gathered = bench.exchange.collect([batch.seconds for batch in batches])
    decision = None
    if gathered and bench.plan.target:
        samples += [fmean(together) for together in zip(*gathered, strict=True)]
        decision = more_batches(samples, bench.clock.now() - began, bench.plan.target)
    return int(bench.exchange.share(decision))


def _appointments(bench: Bench, row: str, call: Call, batches: Sequence[Batch]) -> list[Arrival]:
    """The rounds of probes.apart; as many as rank 0 finds affordable."""
    plan = bench.plan
    if not plan.rounds:
        return []
    call_s = fmean(batch.seconds for batch in batches)
    number = int(bench.exchange.share(min(plan.rounds, arrival_skew.rounds(call_s, plan.budget_s))))
    with bench.phase(f"{row} appointments"):
        return [arrival_skew.arrive(call, bench.clock) for _ in range(number)]


def _verify(bench: Bench, row: str, probe: Probe, slot: Slot, count: int, data: Pattern) -> tuple[int, Mismatch | None]:
    """How many elements one more call leaves wrong on this rank, and the first of them.

    The slot is left as zeros, which is what calls are timed on: repeated sums of anything else would overflow.
    """
    with bench.phase(f"{row} verify"):
        slot.recv.zero_()
        data.fill(slot.send, slot.rank)
        bench.clock.synchronise()
        probe.run(slot)()
        bench.clock.synchronise()
        parts = probe.result(slot.rank, slot.ranks, count)
        wrong = data.wrong(slot.recv, parts)
        first = data.first_wrong(slot.recv, parts, slot.rank) if wrong else None
        slot.send.zero_()
        slot.recv.zero_()
    return wrong, first
