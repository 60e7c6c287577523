"""The groups of a hybrid-parallel job, each kind alone and then all kinds at once: what they cost one another.

All groups of a kind are always at work together, as in a job. Every rank is in one group of each kind, and makes the
same calls in the same order, for NCCL deadlocks where two communicators are used in different orders (NCCL's user
guide, "Using multiple NCCL communicators concurrently").
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch
import torch.distributed as dist

from ncclprobe.model import units
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES, OPS, CallShape
from ncclprobe.model.registry import discover
from ncclprobe.model.traffic import GroupRow
from ncclprobe.model.training import AXES, OPERATION, Axis, Grid, advice, crossing, problems
from ncclprobe.model.values import Struct
from ncclprobe.probes.buffers import allocate
from ncclprobe.probes.clock import Clock, clock_of, time_batch
from ncclprobe.probes.collectives import BufferView, Call, Probe
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, phase

BATCHES = 7
_BATCH_S = 0.05
_MOST_CALLS = 200
_SIDE = 8
"""Calls of the quickest kind for one of the slowest, at most: all kinds are to end at about the same time."""


class _ConcurrentGroup(Struct, frozen=True):
    """This rank's part in one kind: the members of its group, in their order, and the call."""

    kind: Axis
    members: tuple[int, ...]
    shape: CallShape
    call: Call


def run(plan: Plan, grid: Grid, hosts: Sequence[str], exchange: Exchange, set_phase: SetPhase) -> Iterator[GroupRow]:
    """Measure the groups of `grid`, one size (the largest of `plan`). Rows come on rank 0, one per kind.

    `hosts` are those of the ranks. Raises UsageError where nothing has two ranks or the size is too small to share,
    ProbeError where a step fails.
    """
    if grid.ranks < 2:
        raise UsageError("--groups: no kind has two ranks, so nothing would be sent")
    device = torch.device(plan.device)
    clock = clock_of(device)
    concurrent_groups = [_make_group(plan, grid, kind, set_phase) for kind in AXES if grid.along(kind) > 1]
    iters = {
        concurrent_group.kind: _calls(plan, concurrent_group, clock, exchange, set_phase)
        for concurrent_group in concurrent_groups
    }
    alone: dict[Axis, list[float]] = {}
    for concurrent_group in concurrent_groups:
        alone[concurrent_group.kind] = []
        for number in range(BATCHES):
            with phase(plan.rank, set_phase, f"{concurrent_group.kind} groups alone, batch {number + 1}"):
                clock.barrier()
                alone[concurrent_group.kind].append(
                    time_batch([concurrent_group.call] * iters[concurrent_group.kind], plan.timing, clock).seconds
                )
    together = (
        _together(plan, concurrent_groups, alone, clock, exchange, set_phase) if len(concurrent_groups) > 1 else None
    )
    for concurrent_group in concurrent_groups:
        set_phase(f"{concurrent_group.kind} groups gather")
        seconds_by_rank = exchange.collect(
            [alone[concurrent_group.kind], together[concurrent_group.kind] if together else None]
        )
        if seconds_by_rank is not None:
            yield _row(
                grid,
                concurrent_group,
                hosts,
                [seconds for seconds, _ in seconds_by_rank],
                [shared for _, shared in seconds_by_rank],
            )


def _make_group(plan: Plan, grid: Grid, kind: Axis, set_phase: SetPhase) -> _ConcurrentGroup:
    """Open this rank's group of `kind`, and bind the call."""
    members = next(group for group in grid.groups(kind) if plan.rank in group)
    op, dtype = OPS[OPERATION[kind]], plan.dtype
    shape = op.shape(plan.sizes[-1], len(members), DTYPES[dtype])
    if not shape.nbytes:
        raise UsageError(
            f"-e {units.size(plan.sizes[-1])} is too little for the {len(members)} ranks of a {kind} group"
        )
    with phase(plan.rank, set_phase, f"{kind} group"):
        group = dist.new_group(list(members), use_local_synchronization=True)
    place = op.places[0]
    largest = max(shape.send_bytes, shape.recv_bytes)
    buffers = allocate(
        largest * (1 if place == "out" else len(members)), getattr(torch, dtype), torch.device(plan.device)
    )
    group_rank = members.index(plan.rank)
    send, recv = next(buffers.views(shape, place, group_rank, 1))
    view = BufferView(send, recv, group_rank, len(members), dist.ReduceOp.SUM, group)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    return _ConcurrentGroup(kind, members, shape, probes[op.name].run(view))


def _calls(
    plan: Plan, concurrent_group: _ConcurrentGroup, clock: Clock, exchange: Exchange, set_phase: SetPhase
) -> int:
    """Warm up, and settle on the calls of a batch, by the slowest rank."""
    with phase(plan.rank, set_phase, f"{concurrent_group.kind} groups warm-up"):
        clock.barrier()
        for _ in range(max(1, plan.warmup)):
            concurrent_group.call()
        clock.synchronise()
        clock.barrier()
        took = time_batch([concurrent_group.call], plan.timing, clock).seconds
    slowest = exchange.collect(took)
    return int(exchange.share(max(1, min(_MOST_CALLS, round(_BATCH_S / max(slowest)))) if slowest else None))


def _together(
    plan: Plan,
    concurrent_groups: Sequence[_ConcurrentGroup],
    alone: Mapping[Axis, Sequence[float]],
    clock: Clock,
    exchange: Exchange,
    set_phase: SetPhase,
) -> dict[Axis, list[float]]:
    """Return seconds per call of each kind while all kinds are at work, batch by batch."""
    seconds_by_rank = exchange.collect([median(alone[concurrent_group.kind]) for concurrent_group in concurrent_groups])
    counts = exchange.share(
        _balanced([max(each) for each in zip(*seconds_by_rank, strict=True)]) if seconds_by_rank else None
    )
    run_calls = _on_streams if plan.device.startswith("cuda") else _in_threads
    found: dict[Axis, list[float]] = {concurrent_group.kind: [] for concurrent_group in concurrent_groups}
    for number in range(BATCHES):
        with phase(plan.rank, set_phase, f"all groups at once, batch {number + 1}"):
            clock.barrier()
            for concurrent_group, count, seconds in zip(
                concurrent_groups, counts, run_calls(concurrent_groups, counts), strict=True
            ):
                found[concurrent_group.kind].append(seconds / count)
    return found


def _balanced(seconds: Sequence[float]) -> list[int]:
    """Return how many calls of each kind take the same time, so that none runs alone at the end."""
    rounds = max(1, round(_BATCH_S / max(seconds)))
    return [rounds * max(1, min(_SIDE, round(max(seconds) / each))) for each in seconds]


def _in_threads(concurrent_groups: Sequence[_ConcurrentGroup], counts: Sequence[int]) -> list[float]:
    """Run one thread per kind in host memory, for gloo's calls return when they have happened."""
    import time

    def run_calls(concurrent_group: _ConcurrentGroup, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            concurrent_group.call()
        return time.perf_counter() - began

    with ThreadPoolExecutor(len(concurrent_groups)) as pool:
        return list(pool.map(run_calls, concurrent_groups, counts))


def _on_streams(concurrent_groups: Sequence[_ConcurrentGroup], counts: Sequence[int]) -> list[float]:
    """Run one CUDA stream per kind; one thread hands over calls in turn, in the same order on every rank."""
    streams = [torch.cuda.Stream() for _ in concurrent_groups]
    first, last = ([torch.cuda.Event(enable_timing=True) for _ in concurrent_groups] for _ in range(2))
    for stream, event in zip(streams, first, strict=True):
        event.record(stream)
    for turn in range(max(counts)):
        for concurrent_group, stream, count in zip(concurrent_groups, streams, counts, strict=True):
            if turn < count:
                with torch.cuda.stream(stream):
                    concurrent_group.call()
    for stream, event in zip(streams, last, strict=True):
        event.record(stream)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in zip(first, last, strict=True)]


def _row(
    grid: Grid,
    concurrent_group: _ConcurrentGroup,
    hosts: Sequence[str],
    alone: Sequence[Sequence[float]],
    shared: Sequence[Sequence[float] | None],
) -> GroupRow:
    """Reduce one kind over all its groups: a group's time is the mean over its ranks, the median over batches."""
    kind, op = concurrent_group.kind, OPS[OPERATION[concurrent_group.kind]]
    groups = grid.groups(kind)
    slowest, seconds = _slowest(groups, alone)
    both = _slowest(groups, [each for each in shared if each is not None]) if shared[0] is not None else None
    size = len(concurrent_group.members)
    return GroupRow(
        kind=kind,
        op=op.name,
        nbytes=concurrent_group.shape.nbytes,
        size=size,
        groups=len(groups),
        crossing=len(crossing(groups, hosts)),
        slowest=slowest,
        alone_us=round(seconds * 1e6, 3),
        alone_busbw_GBps=op.bandwidth(concurrent_group.shape, size, seconds)[1],
        together_us=round(both[1] * 1e6, 3) if both else None,
        together_busbw_GBps=op.bandwidth(concurrent_group.shape, size, both[1])[1] if both else None,
        slowdown=both[1] / seconds if both else None,
        problems=problems(groups, grid.ranks),
        advice=advice(grid, hosts) if kind == "tp" else (),
    )


def _slowest(groups: Sequence[tuple[int, ...]], by_rank: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], float]:
    """Return the slowest of `groups`, and its seconds per call."""
    times = {
        group: median(sum(each) / len(group) for each in zip(*(by_rank[r] for r in group), strict=True))
        for group in groups
    }
    worst = max(times, key=lambda group: times[group])
    return worst, times[worst]
