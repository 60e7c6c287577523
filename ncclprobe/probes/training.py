"""Replay the communication of training on real ranks (:mod:`ncclprobe.model.training` plans it).

A step is a strategy's real collectives with stand-in compute. Steps are compared: with and without overlap, measured
and predicted from the time of each call alone.

Groups are those of a hybrid-parallel job. Each kind runs alone, then all kinds run at once, to measure what they cost
each other. All groups of a kind are always active together, as in a job. Every rank is in one group of each kind, and
makes the same calls in the same order, because NCCL deadlocks if two communicators are used in different orders (NCCL's
user guide, "Using multiple NCCL communicators concurrently").
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.model import training, units
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES, OPS, CallShape
from ncclprobe.model.registry import discover
from ncclprobe.model.traffic import GroupRow, StepRow
from ncclprobe.model.training import AXES, OPERATION, Axis, Collective, Compute, Grid, Model, StepPlan, Strategy
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct
from ncclprobe.probes import collectives
from ncclprobe.probes.buffers import Buffers, allocate, footprint
from ncclprobe.probes.clock import Clock, time_batch
from ncclprobe.probes.collectives import BufferView, Call, Probe
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, phase

_CPU_SIDE, _CUDA_SIDE = 192, 2048
"""Side of the square matrices: a product should be short against a call, and long against its own overhead."""
_TRIES, _EACH = 9, 8


class Work:
    """Compute in chunks of one matrix product; each takes `chunk_s` here and has `flops` operations."""

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

    def do(self, chunks: float) -> None:
        """Compute `chunks` products; a remaining fraction is carried over to the next call."""
        self._owed += chunks
        whole = int(self._owed + 1e-9)
        self._owed -= whole
        self._do(whole)

    def rest(self) -> None:
        """End a step: carry nothing over to the next."""
        self._owed = 0.0

    def _do(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._c)


class Bench(Struct, frozen=True):
    """This rank's part of the plan, its clock, and its exchange with the other ranks."""

    plan: Plan
    exchange: Exchange
    set_phase: SetPhase
    clock: Clock

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Enter a step that may block or fail."""
        return phase(self.plan.rank, self.set_phase, name)

    def usual(self, value: float) -> float:
        """Return the median over ranks, on every rank."""
        by_rank = self.exchange.collect(value)
        return float(self.exchange.share(median(by_rank) if by_rank else None))

    def slowest(self, seconds: float) -> float:
        """Return the longest time over ranks, on every rank."""
        by_rank = self.exchange.collect(seconds)
        return float(self.exchange.share(max(by_rank) if by_rank else None))

    def batch(self, name: str, call: Call | None, calls: int) -> float:
        """Return this rank's seconds per call from a common start; 0 if it has no call to make."""
        with self.phase(name):
            self.clock.barrier()
            return time_batch([call] * calls, self.plan.timing, self.clock).seconds if call else 0.0

    def timed(self, name: str, play: Callable[[], object]) -> float:
        """Return this rank's seconds from a common start until its own part is over."""
        with self.phase(name):
            self.clock.barrier()
            started = self.clock.now()
            play()
            self.clock.synchronise()
            return self.clock.now() - started

    def slowest_of(self, name: str, play: Callable[[], object]) -> float:
        """Return the seconds from a common start until the last rank has finished."""
        return self.slowest(self.timed(name, play))


def work_of(bench: Bench) -> Work:
    """Return this rank's compute, timed while all ranks compute."""
    with bench.phase("calibrate the compute"):
        bench.clock.barrier()
        return Work(torch.device(bench.plan.device), bench.clock)


_FEWEST, _MOST, _ALONE = 3, 9, 5
_PLAYS_S = 4.0
"""Seconds for the steps of one strategy, unless the minimum takes longer: all together within half a minute."""
_MOST_DEFAULT_S = 0.1
"""Maximum compute of a step without a given time: a big model on a small machine would take minutes."""
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


ISSUE: Mapping[str, Issue] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter
}  # fmt: skip


def play_strategy(bench: Bench, work: Work, strategy: Strategy, model: Model, room: int | None) -> Iterator[StepRow]:
    """Replay one strategy over the default group, without and with overlap; yield the same rows on every rank.

    `room`: bytes that may be allocated, None if unknown. Raises UsageError if that is not enough, before anything is
    allocated, or if a call is too small to share; ProbeError if a step fails.
    """
    need = training.memory_bytes(strategy, model)
    if room is not None and need > room:
        raise UsageError(
            f"{strategy}: its largest call needs {units.size(need)} on every rank and a rank has only "
            f"{units.size(room)} free; give fewer --params or more --layers"
        )
    plan, items = bench.plan, training.step(strategy, model)
    calls = [item for item in items if isinstance(item, Collective)]
    views = views_of(plan, calls)
    alone = {key: _time_alone(bench, key, view) for key, view in views.items()}
    # 6 operations per parameter and token (Kaplan et al. 2020, section 2.1).
    flops = 6.0 * model.params * model.tokens * model.micro_batches
    share = flops / bench.plan.ranks if strategy == "tp" else flops
    compute_s = min(_MOST_DEFAULT_S, bench.slowest(share / work.flops * work.chunk_s))
    chunks = compute_s / work.chunk_s
    bare = tuple(item for item in items if isinstance(item, Compute))
    plays: dict[str, Callable[[], object]] = {
        _COMPUTE: lambda: play_step(bare, views, work, chunks, True),
        _APART: lambda: play_step(items, views, work, chunks, False),
        _OVERLAPPED: lambda: play_step(items, views, work, chunks, True),
    }
    took, steps = _time_in_turn(bench, strategy, plays)
    compute_s = took[_COMPUTE][0]
    for overlap, step in ((False, took[_APART]), (True, took[_OVERLAPPED])):
        predicted = training.predict(items, compute_s, lambda call: alone[call.op, call.nbytes], overlap)
        yield _step_row(
            plan, (strategy, model), overlap, step, (compute_s, predicted.calls_s, predicted.step_s), calls, steps
        )


def _step_row(
    plan: Plan,
    asked: tuple[Strategy, Model],
    overlap: bool,
    step: Seconds,
    parts: Seconds,
    calls: Sequence[Collective],
    steps: int,
) -> StepRow:
    """Return the row of a step; `parts`: seconds of its compute, of all its calls, and of the prediction."""
    (strategy, model), (compute_s, calls_s, predicted_s) = asked, parts
    return StepRow(
        strategy=strategy,
        ranks=plan.ranks,
        params=model.params,
        layers=model.layers,
        dtype=plan.dtype,
        micro_batches=model.micro_batches,
        overlap=overlap,
        calls=len(calls),
        call_bytes=sum(call.nbytes for call in calls),
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


def views_of(
    plan: Plan, calls: Sequence[Collective], group: dist.ProcessGroup | None = None
) -> dict[tuple[str, int], BufferView]:
    """Return the buffers of each kind of call over `group` (None: all ranks); all kinds share two buffers.

    Raises UsageError for sizes that cannot be shared.
    """
    itemsize = DTYPES[plan.dtype]
    rank, ranks = (plan.rank, plan.ranks) if group is None else (group.rank(), group.size())
    shapes = {(call.op, call.nbytes): OPS[call.op].shape(call.nbytes, ranks, itemsize) for call in calls}
    for (name, nbytes), shape in shapes.items():
        if not shape.nbytes:
            raise UsageError(f"a step's {name} of {units.size(nbytes)} is too little for {ranks} ranks to share")
    largest = max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes.values())
    buffers: Buffers = allocate(footprint(largest, 0), getattr(torch, plan.dtype), torch.device(plan.device))
    found = {}
    for key, shape in shapes.items():
        place = OPS[key[0]].places[0]
        send, recv = next(buffers.views(shape, place, rank, 1))
        found[key] = BufferView(send, recv, rank, ranks, dist.ReduceOp.SUM, group)
    return found


def _time_alone(bench: Bench, key: tuple[str, int], view: BufferView) -> float:
    """Return the seconds of one call while nothing else runs."""
    name = f"{key[0]} {units.size(key[1])} alone"
    return median([bench.slowest_of(name, lambda: ISSUE[key[0]](view)()) for _ in range(_ALONE + 1)][1:])


def play_step(
    items: StepPlan, views: Mapping[tuple[str, int], BufferView], work: Work, chunks: float, overlap: bool
) -> None:
    """Run one step. With overlap a call is waited for when its result is needed, otherwise at once."""
    pending: list[tuple[int, Waitable]] = []
    for place, item in enumerate(items):
        for wanted, wait in pending:
            if wanted <= place:
                wait()
        pending = [each for each in pending if each[0] > place]
        if isinstance(item, Compute):
            work.do(item.share * chunks)
            continue
        wait = ISSUE[item.op](views[item.op, item.nbytes])
        if overlap:
            pending.append((training.needed_at(items, place), wait))
        else:
            wait()
    for _, wait in pending:
        wait()
    work.rest()


def _time_in_turn(bench: Bench, name: str, plays: Mapping[str, Callable[[], object]]) -> tuple[dict[str, Seconds], int]:
    """Return median, minimum and maximum of each play, interleaved, and how often each was played.

    Interleaved, so that other load on the machine affects all of them. All ranks play equally often, by the slowest
    rank's time.
    """
    warm_up = sum(bench.slowest_of(f"{name}, {how}, warm-up", play) for how, play in plays.items())
    steps = max(_FEWEST, min(_MOST, int(_PLAYS_S / max(warm_up, 1e-6))))
    took: dict[str, list[float]] = {how: [] for how in plays}
    for number in range(steps):
        for how, play in plays.items():
            took[how].append(bench.slowest_of(f"{name}, {how}, step {number + 1}", play))
    return {how: (median(each), min(each), max(each)) for how, each in took.items()}, steps


BATCHES = 7
_BATCH_S = 0.05
_MOST_CALLS = 200
_SIDE = 8
"""Maximum calls of the fastest kind per call of the slowest: all kinds should end at about the same time."""


class Group(Struct, frozen=True):
    """This rank's part in one kind of group: its members, in order, and the call."""

    kind: Axis
    members: tuple[int, ...]
    shape: CallShape
    call: Call


def play_groups(bench: Bench, grid: Grid, hosts: Sequence[str]) -> Iterator[GroupRow]:
    """Measure the groups of `grid` at one size (the largest of the plan). Yield the rows, one per kind, on rank 0.

    `hosts` are the ranks' hosts. Raises UsageError if nothing has two ranks or the size is too small to share,
    ProbeError
    if a step fails.
    """
    if grid.ranks < 2:
        raise UsageError("--groups: no group has two ranks, so nothing would be sent")
    made = [_open_group(bench, grid, kind) for kind in AXES if grid.along(kind) > 1]
    alone = {each.kind: time_one_kind(bench, each) for each in made}
    together = time_together(bench, made, alone) if len(made) > 1 else {}
    for each in made:
        bench.set_phase(f"{each.kind} groups gather")
        by_rank = bench.exchange.collect([alone[each.kind], together.get(each.kind)])
        if by_rank is not None:
            yield group_row(grid, each, hosts, [own for own, _ in by_rank], [shared for _, shared in by_rank if shared])


def _open_group(bench: Bench, grid: Grid, kind: Axis) -> Group:
    """Open this rank's group of `kind`, and bind the call."""
    plan = bench.plan
    members = next(group for group in grid.groups(kind) if plan.rank in group)
    op, dtype = OPS[OPERATION[kind]], plan.dtype
    shape = op.shape(plan.sizes[-1], len(members), DTYPES[dtype])
    if not shape.nbytes:
        raise UsageError(
            f"-e {units.size(plan.sizes[-1])} is too little for the {len(members)} ranks of a {kind} group"
        )
    with bench.phase(f"{kind} group"):
        group = dist.new_group(list(members), use_local_synchronization=True)
    place = op.places[0]
    largest = max(shape.send_bytes, shape.recv_bytes) * (1 if place == "out" else len(members))
    buffers = allocate(footprint(largest, 0), getattr(torch, dtype), torch.device(plan.device))
    group_rank = members.index(plan.rank)
    send, recv = next(buffers.views(shape, place, group_rank, 1))
    view = BufferView(send, recv, group_rank, len(members), dist.ReduceOp.SUM, group)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    return Group(kind, members, shape, probes[op.name].run(view))


def time_one_kind(bench: Bench, group: Group) -> list[float]:
    """Return seconds per call of each batch while no other kind is active; the slowest rank sets the
    number of calls.
    """
    with bench.phase(f"{group.kind} groups warm-up"):
        bench.clock.barrier()
        for _ in range(max(1, bench.plan.warmup)):
            group.call()
        bench.clock.synchronise()
    slowest_s = bench.slowest(bench.batch(f"{group.kind} groups, one call", group.call, 1))
    calls = max(1, min(_MOST_CALLS, round(_BATCH_S / slowest_s)))
    names = (f"{group.kind} groups alone, batch {number + 1}" for number in range(BATCHES))
    return [bench.batch(name, group.call, calls) for name in names]


def time_together(
    bench: Bench, groups: Sequence[Group], alone: Mapping[Axis, Sequence[float]]
) -> dict[Axis, list[float]]:
    """Return seconds per call of each batch, by kind, while all kinds are active."""
    # How many calls of each kind take the same time, so that none runs alone at the end:
    slowest_s = [bench.slowest(median(alone[group.kind])) for group in groups]
    rounds = max(1, round(_BATCH_S / max(slowest_s)))
    counts = [rounds * max(1, min(_SIDE, round(max(slowest_s) / each))) for each in slowest_s]
    run_calls = run_on_streams if bench.plan.device.startswith("cuda") else _run_in_threads
    found: dict[Axis, list[float]] = {group.kind: [] for group in groups}
    for number in range(BATCHES):
        with bench.phase(f"all groups at once, batch {number + 1}"):
            bench.clock.barrier()
            for group, count, seconds in zip(groups, counts, run_calls(groups, counts), strict=True):
                found[group.kind].append(seconds / count)
    return found


def _run_in_threads(groups: Sequence[Group], counts: Sequence[int]) -> list[float]:
    """Run one thread per kind in host memory: gloo's calls return when they are complete."""

    def run_calls(group: Group, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            group.call()
        return time.perf_counter() - began

    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(run_calls, groups, counts))


def run_on_streams(groups: Sequence[Group], counts: Sequence[int]) -> list[float]:
    """Run one CUDA stream per kind; one thread launches calls in turn, in the same order on every rank."""
    streams = [torch.cuda.Stream() for _ in groups]
    first, last = ([torch.cuda.Event(enable_timing=True) for _ in groups] for _ in range(2))
    for stream, event in zip(streams, first, strict=True):
        event.record(stream)
    for turn in range(max(counts)):
        for group, stream, count in zip(groups, streams, counts, strict=True):
            if turn < count:
                with torch.cuda.stream(stream):
                    group.call()
    for stream, event in zip(streams, last, strict=True):
        event.record(stream)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in zip(first, last, strict=True)]


def group_row(
    grid: Grid, group: Group, hosts: Sequence[str], alone: Sequence[Sequence[float]], shared: Sequence[Sequence[float]]
) -> GroupRow:
    """Reduce one kind over all its groups: mean over a group's ranks, median over batches."""
    kind, op = group.kind, OPS[OPERATION[group.kind]]
    groups = grid.groups(kind)
    slowest, seconds = _slowest(groups, alone)
    both_s = _slowest(groups, shared)[1] if shared else None
    size = len(group.members)
    return GroupRow(
        kind=kind,
        op=op.name,
        nbytes=group.shape.nbytes,
        size=size,
        groups=len(groups),
        crossing=len(training.crossing(groups, hosts)),
        slowest=slowest,
        alone_us=microseconds(seconds),
        alone_busbw_GBps=op.bandwidth(group.shape, size, seconds)[1],
        together_us=microseconds(both_s) if both_s else None,
        together_busbw_GBps=op.bandwidth(group.shape, size, both_s)[1] if both_s else None,
        slowdown=both_s / seconds if both_s else None,
        advice=training.advice(grid, hosts) if kind == "tp" else (),
    )


def _slowest(groups: Sequence[tuple[int, ...]], by_rank: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], float]:
    """Return the slowest of `groups`, and its seconds per call."""
    times = {
        group: median(sum(each) / len(group) for each in zip(*(by_rank[r] for r in group), strict=True))
        for group in groups
    }
    worst = max(times, key=lambda group: times[group])
    return worst, times[worst]
