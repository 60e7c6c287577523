"""Replay steps of training: the real collectives of a strategy, between real ranks, with stand-in compute.

Every rank runs the same plan (:mod:`ncclprobe.model.training`). What is compared is one step with another: with and
without overlap, measured and predicted from the time of each call alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.model import training, units
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES, OPS
from ncclprobe.model.traffic import StepRow
from ncclprobe.model.training import Collective, Compute, Model, StepPlan, Strategy
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct
from ncclprobe.probes import collectives
from ncclprobe.probes.buffers import Buffers, allocate
from ncclprobe.probes.clock import Clock, clock_of
from ncclprobe.probes.collectives import BufferView
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, phase

_CPU_SIDE, _CUDA_SIDE = 192, 2048
"""Of the square matrices: a product is to be short against a call, and long against its own overhead."""
_TRIES, _EACH = 9, 8


class Work:
    """Compute in portions of one matrix product. `chunk_s` is how long one takes here, `flops` how many it is."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        side = _CUDA_SIDE if device.type == "cuda" else _CPU_SIDE
        if device.type == "cpu":
            torch.set_num_threads(1)  # ranks that share processors would otherwise wait for each other's threads
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._a, self._b, self._c = (torch.zeros(side, side, dtype=dtype, device=device) for _ in range(3))
        self.flops = 2 * side**3
        self._owed = 0.0
        self._do(_EACH)
        clock.synchronise()
        tries = []
        for _ in range(_TRIES):
            started = clock.now()
            self._do(_EACH)
            clock.synchronise()
            tries.append((clock.now() - started) / _EACH)
        self.chunk_s = median(tries)

    def chunks(self, seconds: float) -> float:
        """Return how many products take so long."""
        return seconds / self.chunk_s

    def do(self, chunks: float) -> None:
        """Compute so many products; a fraction of one is owed, and done with the next."""
        self._owed += chunks
        whole = int(self._owed + 1e-9)
        self._owed -= whole
        self._do(whole)

    def rest(self) -> None:
        """End a step: owe nothing to the next."""
        self._owed = 0.0

    def _do(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._c)


class Bench(Struct):
    """What steps of training are timed with: this rank's part of the plan, and how it meets the others."""

    plan: Plan
    exchange: Exchange
    set_phase: SetPhase
    clock: Clock
    work: Work

    def usual(self, value: float) -> float:
        """Return the median over the ranks, on every rank."""
        by_rank = self.exchange.collect(value)
        return float(self.exchange.share(median(by_rank) if by_rank else None))

    def slowest(self, seconds: float) -> float:
        """Return the longest that any rank took, on every rank."""
        by_rank = self.exchange.collect(seconds)
        return float(self.exchange.share(max(by_rank) if by_rank else None))

    def timed(self, name: str, play: Callable[[], object]) -> float:
        """Return this rank's seconds from a common start until its own part is over."""
        with phase(self.plan.rank, self.set_phase, name):
            self.clock.barrier()
            started = self.clock.now()
            play()
            self.clock.synchronise()
            took = self.clock.now() - started
        self.work.rest()
        return took

    def slowest_of(self, name: str, play: Callable[[], object]) -> float:
        """Return the seconds from a common start until the last rank has finished."""
        return self.slowest(self.timed(name, play))


_FEWEST, _MOST, _ALONE = 3, 9, 5
_PLAYS_S = 4.0
"""For the steps of one strategy, unless the fewest take longer: all of them are to end within half a minute."""
_MOST_DEFAULT_S = 0.1
"""Of compute in a step without a given time: a big model on a small machine would take minutes."""
_COMPUTE, _APART, _OVERLAPPED = "compute alone", "without overlap", "with overlap"
Seconds = tuple[float, float, float]
Waitable = Callable[[], Any]
Issue = Callable[[BufferView], Waitable]


def _all_reduce(at: BufferView) -> Waitable:
    return _waited(dist.all_reduce(at.recv, at.redop, at.group, async_op=True))


def _all_gather(at: BufferView) -> Waitable:
    return _waited(collectives._all_gather(at.recv, at.send, at.group, async_op=True))


def _reduce_scatter(at: BufferView) -> Waitable:
    return _waited(collectives._reduce_scatter(at.recv, at.send, at.redop, at.group, async_op=True))


def _waited(work: Any) -> Waitable:
    return work.wait  # type: ignore[no-any-return]


_ISSUE: Mapping[str, Issue] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter
}  # fmt: skip


class Asked(Struct, frozen=True):
    """What to replay: `compute_s` of one rank in one step, null: what 6 operations per parameter and token take."""

    strategy: Strategy
    model: Model
    compute_s: float | None = None


def run(plan: Plan, asked: Asked, room: int | None, exchange: Exchange, set_phase: SetPhase) -> Iterator[StepRow]:
    """Replay one strategy over the default group, without and with overlap; the same rows on every rank.

    `room`: bytes that may be allocated, null: unknown. Raises UsageError where that is not enough, before anything is
    allocated, or where a call is too small to share; ProbeError where a step fails.
    """
    need = training.memory_bytes(asked.strategy, asked.model)
    if room is not None and need > room:
        raise UsageError(
            f"{asked.strategy}: its largest call needs {units.size(need)} on every rank and a rank has only "
            f"{units.size(room)} free; give fewer --params or more --layers"
        )
    device = torch.device(plan.device)
    clock = clock_of(device)
    with phase(plan.rank, set_phase, "calibrate the compute"):
        clock.barrier()
        bench = Bench(plan, exchange, set_phase, clock, Work(device, clock))
    yield from _steps(bench, asked)


def _compute_s(bench: Bench, asked: Asked) -> float:
    """Return seconds of one rank's step: 6 operations per parameter and token (Kaplan et al. 2020, section 2.1)."""
    if asked.compute_s is not None:
        return asked.compute_s
    model, ranks = asked.model, bench.plan.ranks
    flops = 6.0 * model.params * model.tokens * model.micro_batches
    share = flops / ranks if asked.strategy == "tp" else flops
    return min(_MOST_DEFAULT_S, bench.slowest(share / bench.work.flops * bench.work.chunk_s))


def _steps(bench: Bench, asked: Asked) -> Iterator[StepRow]:
    plan, items = bench.plan, training.step(asked.strategy, asked.model)
    calls = [item for item in items if isinstance(item, Collective)]
    views = views_of(plan, calls)
    alone = {key: _alone(bench, key, view) for key, view in views.items()}
    chunks = bench.work.chunks(_compute_s(bench, asked))
    bare = tuple(item for item in items if isinstance(item, Compute))
    plays: dict[str, Callable[[], object]] = {
        _COMPUTE: lambda: play_step(bare, views, bench.work, chunks, True),
        _APART: lambda: play_step(items, views, bench.work, chunks, False),
        _OVERLAPPED: lambda: play_step(items, views, bench.work, chunks, True),
    }
    took, steps = _in_turn(bench, asked.strategy, plays)
    compute_s = took[_COMPUTE][0]
    for overlap, step in ((False, took[_APART]), (True, took[_OVERLAPPED])):
        predicted = training.predict(items, compute_s, lambda call: alone[call.op, call.nbytes], overlap)
        yield _row(plan, asked, overlap, step, compute_s, calls_s=predicted.calls_s, predicted_s=predicted.step_s,
                   calls=len(calls), call_bytes=sum(call.nbytes for call in calls), steps=steps)  # fmt: skip


def views_of(
    plan: Plan, calls: Sequence[Collective], group: dist.ProcessGroup | None = None
) -> dict[tuple[str, int], BufferView]:
    """Return the buffers of each kind of call over `group` (null: all ranks): all share two.

    Raises UsageError for what cannot be shared.
    """
    itemsize = DTYPES[plan.dtype]
    rank, ranks = (plan.rank, plan.ranks) if group is None else (group.rank(), group.size())
    shapes = {(call.op, call.nbytes): OPS[call.op].shape(call.nbytes, ranks, itemsize) for call in calls}
    for (name, nbytes), shape in shapes.items():
        if not shape.nbytes:
            raise UsageError(f"a step's {name} of {units.size(nbytes)} is too little for {ranks} ranks to share")
    largest = max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes.values())
    buffers: Buffers = allocate(-(-largest // 512) * 512, getattr(torch, plan.dtype), torch.device(plan.device))
    found = {}
    for key, shape in shapes.items():
        place = OPS[key[0]].places[0]
        send, recv = next(buffers.views(shape, place, rank, 1))
        found[key] = BufferView(send, recv, rank, ranks, dist.ReduceOp.SUM, group)
    return found


def _alone(bench: Bench, key: tuple[str, int], view: BufferView) -> float:
    """Return the seconds of one call while nothing else runs."""
    name = f"{key[0]} {units.size(key[1])} alone"
    return median([bench.slowest_of(name, lambda: _ISSUE[key[0]](view)()) for _ in range(_ALONE + 1)][1:])


def play_step(
    items: StepPlan, views: Mapping[tuple[str, int], BufferView], work: Work, chunks: float, overlap: bool
) -> None:
    """Run one step. With overlap a call is waited for where its result is needed, without it at once."""
    pending: list[tuple[int, Waitable]] = []
    for place, item in enumerate(items):
        for wanted, wait in pending:
            if wanted <= place:
                wait()
        pending = [each for each in pending if each[0] > place]
        if isinstance(item, Compute):
            work.do(item.share * chunks)
            continue
        wait = _ISSUE[item.op](views[item.op, item.nbytes])
        if overlap:
            pending.append((training.needed_at(items, place), wait))
        else:
            wait()
    for _, wait in pending:
        wait()


def _in_turn(bench: Bench, name: str, plays: Mapping[str, Callable[[], object]]) -> tuple[dict[str, Seconds], int]:
    """Return median, shortest and longest of each play, in turn, and how often each was played.

    In turn: what else the machine does affects all of them. All ranks play equally often, by what the slowest took.
    """
    warm_up = sum(bench.slowest_of(f"{name}, {how}, warm-up", play) for how, play in plays.items())
    steps = max(_FEWEST, min(_MOST, int(_PLAYS_S / max(warm_up, 1e-6))))
    took: dict[str, list[float]] = {how: [] for how in plays}
    for number in range(steps):
        for how, play in plays.items():
            took[how].append(bench.slowest_of(f"{name}, {how}, step {number + 1}", play))
    return {how: (median(each), min(each), max(each)) for how, each in took.items()}, steps


def _row(
    plan: Plan,
    asked: Asked,
    overlap: bool,
    step: Seconds,
    compute_s: float,
    *,
    calls_s: float,
    predicted_s: float,
    calls: int,
    call_bytes: int,
    steps: int,
) -> StepRow:
    model = asked.model
    return StepRow(
        strategy=asked.strategy,
        ranks=plan.ranks,
        params=model.params,
        layers=model.layers,
        dtype=plan.dtype,
        micro_batches=model.micro_batches,
        bucket_bytes=model.bucket_bytes,
        overlap=overlap,
        calls=calls,
        call_bytes=call_bytes,
        steps=steps,
        step_us=microseconds(step[0]),
        step_min_us=microseconds(step[1]),
        step_max_us=microseconds(step[2]),
        compute_us=microseconds(compute_s),
        calls_us=microseconds(calls_s),
        exposed_us=microseconds(max(0.0, step[0] - compute_s)),
        efficiency=compute_s / step[0],
        predicted_us=microseconds(predicted_s),
    )
