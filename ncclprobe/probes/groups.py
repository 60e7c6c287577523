"""The groups of a hybrid-parallel job, each kind alone and then all kinds at once: what they cost one another.

All groups of a kind are always at work together, as in a job. Every rank is in one group of each kind, and makes the
same calls in the same order, for NCCL deadlocks where two communicators are used in different orders (NCCL's user
guide, "Using multiple NCCL communicators concurrently").
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from ncclprobe import units
from ncclprobe.errors import UsageError
from ncclprobe.model.registry import discover
from ncclprobe.model.traffic import GroupRow
from ncclprobe.ops import DTYPES, OPS, Shape
from ncclprobe.probes import Call, Probe, Slot
from ncclprobe.probes.buffers import allocate
from ncclprobe.probes.clock import Clock, clock_of, time_batch
from ncclprobe.probes.plan import Beat, Exchange, Plan, phase
from ncclprobe.training.groups import KINDS, OPERATION, Grid, Kind, advice, crossing, problems

BATCHES = 7
_BATCH_S = 0.05
_MOST_CALLS = 200
_SIDE = 8
"""Calls of the quickest kind for one of the slowest, at most: all kinds are to end at about the same time."""


@dataclass(frozen=True, slots=True)
class Lane:
    """This rank's part in one kind: the members of its group, in their order, and the call."""

    kind: Kind
    members: tuple[int, ...]
    shape: Shape
    call: Call


def run(plan: Plan, grid: Grid, hosts: Sequence[str], exchange: Exchange, beat: Beat) -> Iterator[GroupRow]:
    """Measure the groups of `grid`, one size (the largest of `plan`). Rows come on rank 0, one per kind.

    `hosts` are those of the ranks. Raises UsageError where nothing has two ranks or the size is too small to share,
    ProbeError where a step fails.
    """
    if grid.ranks < 2:
        raise UsageError("--groups: no kind has two ranks, so nothing would be sent")
    device = torch.device(plan.device)
    clock = clock_of(device)
    lanes = [_lane(plan, grid, kind, beat) for kind in KINDS if grid.along(kind) > 1]
    iters = {lane.kind: _calls(plan, lane, clock, exchange, beat) for lane in lanes}
    alone: dict[Kind, list[float]] = {}
    for lane in lanes:
        alone[lane.kind] = []
        for number in range(BATCHES):
            with phase(plan.rank, beat, f"{lane.kind} groups alone, batch {number + 1}"):
                clock.barrier()
                alone[lane.kind].append(time_batch([lane.call] * iters[lane.kind], plan.timing, clock).seconds)
    together = _together(plan, lanes, alone, clock, exchange, beat) if len(lanes) > 1 else None
    for lane in lanes:
        beat(f"{lane.kind} groups gather")
        told = exchange.collect([alone[lane.kind], together[lane.kind] if together else None])
        if told is not None:
            yield _row(grid, lane, hosts, [own for own, _ in told], [shared for _, shared in told])


def _lane(plan: Plan, grid: Grid, kind: Kind, beat: Beat) -> Lane:
    """Open this rank's group of `kind`, and bind the call."""
    members = next(group for group in grid.groups(kind) if plan.rank in group)
    op, dtype = OPS[OPERATION[kind]], plan.dtype
    shape = op.shape(plan.sizes[-1], len(members), DTYPES[dtype])
    if not shape.nbytes:
        raise UsageError(
            f"-e {units.size(plan.sizes[-1])} is too little for the {len(members)} ranks of a {kind} group"
        )
    with phase(plan.rank, beat, f"{kind} group"):
        group = dist.new_group(list(members), use_local_synchronization=True)
    place = op.places[0]
    largest = max(shape.send_bytes, shape.recv_bytes)
    buffers = allocate(
        largest * (1 if place == "out" else len(members)), getattr(torch, dtype), torch.device(plan.device)
    )
    own = members.index(plan.rank)
    send, recv = next(buffers.slots(shape, place, own, 1))
    slot = Slot(send, recv, own, len(members), dist.ReduceOp.SUM, group)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    return Lane(kind, members, shape, probes[op.name].run(slot))


def _calls(plan: Plan, lane: Lane, clock: Clock, exchange: Exchange, beat: Beat) -> int:
    """Warm up, and settle on the calls of a batch, by the slowest rank."""
    with phase(plan.rank, beat, f"{lane.kind} groups warm-up"):
        clock.barrier()
        for _ in range(max(1, plan.warmup)):
            lane.call()
        clock.synchronise()
        clock.barrier()
        took = time_batch([lane.call], plan.timing, clock).seconds
    slowest = exchange.collect(took)
    return int(exchange.share(max(1, min(_MOST_CALLS, round(_BATCH_S / max(slowest)))) if slowest else None))


def _together(
    plan: Plan,
    lanes: Sequence[Lane],
    alone: Mapping[Kind, Sequence[float]],
    clock: Clock,
    exchange: Exchange,
    beat: Beat,
) -> dict[Kind, list[float]]:
    """Seconds per call of each kind while all kinds are at work, batch by batch."""
    told = exchange.collect([median(alone[lane.kind]) for lane in lanes])
    counts = exchange.share(_balanced([max(each) for each in zip(*told, strict=True)]) if told else None)
    play = _on_streams if plan.device.startswith("cuda") else _in_threads
    found: dict[Kind, list[float]] = {lane.kind: [] for lane in lanes}
    for number in range(BATCHES):
        with phase(plan.rank, beat, f"all groups at once, batch {number + 1}"):
            clock.barrier()
            for lane, count, seconds in zip(lanes, counts, play(lanes, counts), strict=True):
                found[lane.kind].append(seconds / count)
    return found


def _balanced(seconds: Sequence[float]) -> list[int]:
    """How many calls of each kind take about as long as one another, so that none is left alone at the end."""
    rounds = max(1, round(_BATCH_S / max(seconds)))
    return [rounds * max(1, min(_SIDE, round(max(seconds) / each))) for each in seconds]


def _in_threads(lanes: Sequence[Lane], counts: Sequence[int]) -> list[float]:
    """Host memory: a thread per kind, for gloo's calls return when they have happened."""
    import time

    def play(lane: Lane, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            lane.call()
        return time.perf_counter() - began

    with ThreadPoolExecutor(len(lanes)) as pool:
        return list(pool.map(play, lanes, counts))


def _on_streams(lanes: Sequence[Lane], counts: Sequence[int]) -> list[float]:
    """CUDA: a stream per kind, and calls handed over in turn by one thread, in the same order on every rank."""
    streams = [torch.cuda.Stream() for _ in lanes]
    first, last = ([torch.cuda.Event(enable_timing=True) for _ in lanes] for _ in range(2))
    for stream, event in zip(streams, first, strict=True):
        event.record(stream)
    for turn in range(max(counts)):
        for lane, stream, count in zip(lanes, streams, counts, strict=True):
            if turn < count:
                with torch.cuda.stream(stream):
                    lane.call()
    for stream, event in zip(streams, last, strict=True):
        event.record(stream)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in zip(first, last, strict=True)]


def _row(
    grid: Grid,
    lane: Lane,
    hosts: Sequence[str],
    alone: Sequence[Sequence[float]],
    shared: Sequence[Sequence[float] | None],
) -> GroupRow:
    """One kind over all its groups: a group's time is the mean over its ranks, the median over batches."""
    kind, op = lane.kind, OPS[OPERATION[lane.kind]]
    groups = grid.groups(kind)
    slowest, seconds = _slowest(groups, alone)
    both = _slowest(groups, [each for each in shared if each is not None]) if shared[0] is not None else None
    size = len(lane.members)
    return GroupRow(
        kind=kind,
        op=op.name,
        nbytes=lane.shape.nbytes,
        size=size,
        groups=len(groups),
        crossing=len(crossing(groups, hosts)),
        slowest=slowest,
        alone_us=round(seconds * 1e6, 3),
        alone_busbw_GBps=op.bandwidth(lane.shape, size, seconds)[1],
        together_us=round(both[1] * 1e6, 3) if both else None,
        together_busbw_GBps=op.bandwidth(lane.shape, size, both[1])[1] if both else None,
        slowdown=both[1] / seconds if both else None,
        problems=problems(groups, grid.ranks),
        advice=advice(grid, hosts) if kind == "tp" else (),
    )


def _slowest(groups: Sequence[tuple[int, ...]], by_rank: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], float]:
    """The slowest of `groups`, and its seconds per call."""
    times = {
        group: median(sum(each) / len(group) for each in zip(*(by_rank[r] for r in group), strict=True))
        for group in groups
    }
    worst = max(times, key=lambda group: times[group])
    return worst, times[worst]
