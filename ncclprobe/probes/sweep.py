"""A sweep of collectives over sizes: warm up, time, verify, and put the ranks' times together.

The order of things is that of nccl-tests' BenchTime (src/common.cu:694- at a0b82b2), so that the numbers compare:
warm-up once per operation at doubling sizes; then per size and place one untimed call, a barrier, and `iters` calls
back to back with nothing between them. Every rank makes the same steps in the same order, and decides nothing alone.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from ncclprobe import stats, units
from ncclprobe.errors import ProbeError, UsageError
from ncclprobe.host import Host
from ncclprobe.model import Library, Measurement, Mode, Place
from ncclprobe.ops import DTYPES, OPS, Op, Shape
from ncclprobe.probes import Call, Probe, Slot
from ncclprobe.probes.buffers import Buffers, allocate, footprint, free_bytes
from ncclprobe.probes.clock import Batch, Clock, clock_of, time_batch
from ncclprobe.probes.data import Pattern, pattern
from ncclprobe.registry import discover

Beat = Callable[[str], None]

_SETTLE_S = 0.2  # gloo counts a call that failed as under way for a moment longer, and a barrier would fail with it

_PLACES: dict[Place, str] = {"in": "in place", "out": "out of place"}

_TORCH_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class Exchange(Protocol):
    """How results travel: never over the group that is measured. Both are called by all ranks in the same order."""

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """All ranks' values, by rank, on rank 0; None elsewhere."""
        ...

    def agree(self, value: float) -> float:
        """Rank 0's value, on every rank."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, the same on every rank but for `rank` and `device`.

    `sizes` are bytes as asked for; each operation rounds them as nccl-tests does. gloo is always blocking. Small
    messages rotate over `footprint_bytes`. Names and numbers are what the command line has let pass.
    """

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    rank: int
    ranks: int
    backend: Literal["nccl", "gloo"]
    nodes: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    redop: str = "sum"
    iters: int = 20
    warmup: int = 5
    batches: int = 5
    mode: Mode = "queued"
    verify: bool = True
    footprint_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was asked for and not measured, and why. `nbytes` is the size asked for; None: no size was."""

    op: str
    nbytes: int | None
    why: str


@dataclass(frozen=True, slots=True)
class _Bench:
    """What every step of a sweep needs."""

    plan: Plan
    exchange: Exchange
    beat: Beat
    clock: Clock
    buffers: Buffers

    def phase(self, what: str) -> AbstractContextManager[None]:
        """A step that may block or fail: see _phase."""
        return _phase(self.plan.rank, self.beat, what)

    def slots(self, shape: Shape, place: Place, most: int = 1) -> list[Slot]:
        """Up to `most` places in memory for one call each."""
        plan, redop = self.plan, _TORCH_REDOPS[self.plan.redop]
        views = self.buffers.slots(shape, place, plan.rank, most)
        return [Slot(send, recv, plan.rank, plan.ranks, redop) for send, recv in views]


@contextmanager
def _phase(rank: int, beat: Beat, what: str) -> Iterator[None]:
    """Say what comes next, and name it where torch fails in it: a lost peer, a deadline of torch's own, no memory."""
    beat(what)
    try:
        yield
    except RuntimeError as error:
        raise ProbeError(f"rank {rank}: {what}: {_first_line(error)}") from error


def run(
    plan: Plan, exchange: Exchange, beat: Beat, *, host: Host, clock: Clock | None = None
) -> Iterator[Measurement | Skipped]:
    """Measure everything in `plan`, row by row, over the default process group, which must exist.

    `beat` is told what comes before every step that may block, on all ranks alike. `host` is asked how much memory is
    free. On rank 0 a measurement is over all ranks; elsewhere it
    is of that rank alone. Raises UsageError (on all ranks alike) where memory does not suffice, ProbeError where a
    step fails or ranks disagree.
    """
    device = torch.device(plan.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    need = footprint(max(_largest(plan, OPS[name]) for name in plan.ops), plan.footprint_bytes)
    _demand_memory(plan, exchange, need, free_bytes(device, host))
    with _phase(plan.rank, beat, f"allocating 2 x {units.size(need)}"):
        buffers = allocate(need, getattr(torch, plan.dtype), device)
    bench = _Bench(plan, exchange, beat, clock or clock_of(device), buffers)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name in plan.ops:
        yield from _sweep(bench, OPS[name], probes[name])


def _largest(plan: Plan, op: Op) -> int:
    shape = op.shape(max(plan.sizes), plan.ranks, DTYPES[plan.dtype])
    return max(shape.send_bytes, shape.recv_bytes)


def _demand_memory(plan: Plan, exchange: Exchange, footprint_bytes: int, free: int | None) -> None:
    """Refuse what the fullest rank has no room for. Ranks on one host share its memory; each has its own GPU."""
    sharing = 1 if plan.device.startswith("cuda") else -(-plan.ranks // plan.nodes)
    room = sys.maxsize if free is None else free // sharing
    rooms = exchange.gather([float(room)])
    least = exchange.agree(min(row[0] for row in rooms) if rooms else 0.0)
    need = 2 * footprint_bytes
    if need > least:
        raise UsageError(
            f"-e {units.size(max(plan.sizes))}: two buffers need {units.size(need)} per rank and a rank has only "
            f"{units.size(least)} free; choose a smaller -e"
        )


def _sweep(bench: _Bench, op: Op, probe: Probe) -> Iterator[Measurement | Skipped]:
    plan = bench.plan
    shapes = {nbytes: op.shape(nbytes, plan.ranks, DTYPES[plan.dtype]) for nbytes in plan.sizes}
    for nbytes, shape in shapes.items():
        if not shape.nbytes:
            yield Skipped(op.name, nbytes, f"{units.size(nbytes)} is too little for {plan.ranks} ranks to share")
    measurable = {nbytes: shape for nbytes, shape in shapes.items() if shape.nbytes}
    if not measurable:
        return
    refusal = _refusal(bench, op, probe, measurable[min(measurable)])
    if refusal:
        yield Skipped(op.name, None, refusal)
        return
    _warm_up(bench, op, probe, min(measurable), max(measurable))
    recv = bench.buffers.recv
    data = pattern(recv.dtype, plan.redop if op.reduces else None, plan.ranks, recv.device)
    for shape in measurable.values():
        for place in op.places:
            yield _measure(bench, op, probe, shape, place, data)


def _refusal(bench: _Bench, op: Op, probe: Probe, shape: Shape) -> str:
    """Why torch does not do this operation here, or nothing: found out by trying it, and agreed between ranks.

    Ranks that lost each other may all see an error too. A barrier tells: after a mere refusal it still works.
    """
    why = ""
    for place in op.places:
        with bench.phase(f"{op.name} first call {_PLACES[place]}"):
            why = why or _attempt(bench, probe.run(bench.slots(shape, place)[0]))
    answers = bench.exchange.gather([float(bool(why))])
    refused = bench.exchange.agree(sum(row[0] for row in answers) if answers else 0.0)
    if 0 < refused < bench.plan.ranks:
        here = f"rank {bench.plan.rank}: {why or 'succeeded'}"
        raise ProbeError(f"{op.name} first call: failed on {refused:g} of {bench.plan.ranks} ranks; {here}")
    if refused:
        time.sleep(_SETTLE_S)
        with bench.phase(f"barrier after {op.name} failed with {why!r}"):
            bench.clock.barrier()
    return why


def _attempt(bench: _Bench, call: Call) -> str:
    """What torch says against `call`. With which exception depends on backend and operation."""
    try:
        call()
        bench.clock.synchronise()
    except dist.DistError:  # from NCCL, the network or the store: no refusal
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _warm_up(bench: _Bench, op: Op, probe: Probe, smallest: int, largest: int) -> None:
    """Let connections, algorithms and caches settle: every size class once, doubling whatever -f says."""
    nbytes = smallest
    while nbytes <= largest:
        with bench.phase(f"{op.name} {units.size(nbytes)} warm-up"):
            shape = op.shape(nbytes, bench.plan.ranks, DTYPES[bench.plan.dtype])
            call = probe.run(bench.slots(shape, op.places[0])[0])
            for _ in range(bench.plan.warmup):
                call()
            bench.clock.synchronise()
        nbytes *= 2


def _measure(bench: _Bench, op: Op, probe: Probe, shape: Shape, place: Place, data: Pattern) -> Measurement:
    plan = bench.plan
    row = f"{op.name} {units.size(shape.nbytes)} {_PLACES[place]}"
    slots = bench.slots(shape, place, most=plan.iters * plan.batches)
    batches = _time(bench, row, [probe.run(slot) for slot in slots])
    wrong = 0
    if plan.verify:
        with bench.phase(f"{row} verify"):
            wrong = _verify(bench, probe, slots[0], shape.count, data)
    bench.beat(f"{row} gather")
    own = [*(batch.seconds for batch in batches), *(batch.issue_s for batch in batches), float(wrong)]
    gathered = bench.exchange.gather(own)
    by_rank = dict(enumerate(gathered)) if gathered else {plan.rank: own}
    return tally(plan, op, shape, place, bench.buffers.footprint_bytes, by_rank)


def _time(bench: _Bench, row: str, calls: Sequence[Call]) -> list[Batch]:
    """The plan's batches, each from a common start, going on through the slots where the one before stopped."""
    plan, clock = bench.plan, bench.clock
    with bench.phase(f"{row} untimed call"):
        calls[0]()
        clock.synchronise()
    batches = []
    for number in range(plan.batches):
        turn = [calls[(number * plan.iters + i) % len(calls)] for i in range(plan.iters)]
        with bench.phase(f"{row} batch {number + 1} of {plan.batches}"):
            clock.barrier()
            batches.append(time_batch(turn, mode(plan), clock))
    return batches


def _verify(bench: _Bench, probe: Probe, slot: Slot, count: int, data: Pattern) -> int:
    """Wrong elements that one more call leaves on this rank.

    The slot is left as zeros, which is what calls are timed on: repeated sums of anything else would overflow.
    """
    slot.recv.zero_()
    data.fill(slot.send, slot.rank)
    bench.clock.synchronise()
    probe.run(slot)()
    bench.clock.synchronise()
    wrong = data.wrong(slot.recv, probe.result(slot.rank, slot.ranks, count))
    slot.send.zero_()
    slot.recv.zero_()
    return wrong


def tally(
    plan: Plan, op: Op, shape: Shape, place: Place, footprint_bytes: int, rows: Mapping[int, Sequence[float]]
) -> Measurement:
    """One row of the report out of what each rank measured.

    `rows`: by rank, seconds per operation of each batch, then issue seconds of each batch, then wrong elements. A
    batch's sample is the mean of its times over ranks, and bandwidths come from the mean of samples: a mean of rates
    would flatter whoever was lucky.
    """
    seconds = {rank: row[: plan.batches] for rank, row in rows.items()}
    samples = [fmean(batch) for batch in zip(*seconds.values(), strict=True)]
    algbw, busbw = op.bandwidth(shape, plan.ranks, fmean(samples))
    return Measurement(
        op=op.name,
        place=place,
        mode=mode(plan),
        backend=plan.backend,
        library=library(plan.backend),
        dtype=plan.dtype,
        redop=plan.redop if op.reduces else None,
        nbytes=shape.nbytes,
        count=shape.count,
        ranks=plan.ranks,
        nodes=plan.nodes,
        iters=plan.iters,
        batches=plan.batches,
        footprint_bytes=footprint_bytes,
        time_us=stats.summary(samples),
        issue_us=fmean(fmean(row[plan.batches : -1]) for row in rows.values()) * 1e6,
        slowest_rank=max(seconds, key=lambda rank: fmean(seconds[rank])),
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        wrong=int(sum(row[-1] for row in rows.values())) if plan.verify else None,
    )


def mode(plan: Plan) -> Mode:
    """How calls are timed. A gloo call returns when it is done, so calling back to back is blocking all the same."""
    return "blocking" if plan.backend == "gloo" else plan.mode


def library(backend: str) -> Library:
    """What is measured: NCCL as torch loaded it, or the gloo inside torch, which has no version of its own."""
    if backend == "nccl":
        return Library("nccl", ".".join(map(str, torch.cuda.nccl.version())))
    return Library("gloo", f"torch {torch.__version__}")
