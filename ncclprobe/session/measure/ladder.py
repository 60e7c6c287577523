"""Measure the rungs of a ladder (:mod:`ncclprobe.model.training`): a training step and an all_reduce in each.

The groups of a rung run at the same time, and rungs take turns step by step, so that other load on the machine affects
all of them. The work is the same on every rank and every rung: as many matrix products as fill the requested time on
the usual rank.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist

from ncclprobe.model import training
from ncclprobe.model.ops import DTYPES, OPS
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.training import Collective, Compute, Model, Rung, StepPlan
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct
from ncclprobe.probes.buffers import allocate
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.collectives import BufferView, Call, all_reduce
from ncclprobe.probes.plan import Exchange, Plan, SetPhase
from ncclprobe.probes.training import Bench, play_step, views_of, work_of
from ncclprobe.session.measure.context import TORCH_SLACK_S, RankContext
from ncclprobe.session.measure.training import room_of

STEP_BYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Gradients of one step, by backend: of 16 million and of 1 million parameters in float32."""
LARGEST = {"nccl": 1 << 30, "gloo": 4 << 20}
"""Bytes of the all_reduce by itself: with NCCL a size that can be judged, with gloo one that any network carries in
time.
"""
_SHARE = 1 / 8
_BUFFERS = 6
"""This many messages must fit: the buffers of the steps of two rungs, and the all_reduce's."""
STEPS, _WARM_UPS = 7, 2
_MOST_WORK_S = 0.1
_TOKENS = 8192
"""Tokens of one rank's step: its work is 6 operations per parameter and token (Kaplan et al. 2020, section 2.1)."""
_BATCHES, _BATCH_S, _MOST_CALLS = 7, 0.05, 200
_LAYERS = 8


def play(run: RankContext) -> bool:
    """Measure all rungs, on every rank, within a share of --timeout. Raises ProbeError."""
    plan, exchange, timeout_s = run.plan(), run.exchange, run.options.timeout_s
    rungs = training.plan(exchange.share(list(run.hosts)), pairs=plan.backend == "gloo")
    room = room_of(plan, run.host, exchange)

    def fitting(nbytes: int) -> int:
        return nbytes if room is None else max(1 << 20, min(nbytes, room // _BUFFERS // 512 * 512))

    sizes = LadderSizes(
        fitting(STEP_BYTES[plan.backend]), fitting(min(LARGEST[plan.backend], max(plan.sizes))), _SHARE * timeout_s
    )
    run.record(climb(plan, rungs, sizes, timeout_s + TORCH_SLACK_S, exchange, run.set_phase))
    return True


class LadderSizes(Struct, frozen=True):
    """Bytes of a step's gradients, bytes of the all_reduce by itself, and the total time limit in seconds."""

    step_bytes: int
    nbytes: int
    budget_s: float


_Play = Callable[[StepPlan, Mapping[tuple[str, int], BufferView]], None]


class _Part(Struct):
    """This rank's part in one rung: the ranks of its group, its step, and its separate all_reduce."""

    rung: Rung
    members: tuple[int, ...]
    play: Callable[[], None]
    call: Call | None


def climb(
    plan: Plan, rungs: Sequence[Rung], sizes: LadderSizes, timeout_s: float, exchange: Exchange, set_phase: SetPhase
) -> tuple[LadderRow, ...]:
    """Measure `rungs` from the lowest on; rank 0 gets the rows. All ranks must call it. Raises ProbeError.

    `timeout_s`: torch's own deadline for the groups that are created here.
    """
    device = torch.device(plan.device)
    bench = Bench(plan, exchange, set_phase, clock_of(device))
    work = work_of(bench)
    model = Model(sizes.step_bytes // DTYPES[plan.dtype], _LAYERS, DTYPES[plan.dtype], _TOKENS)
    flops = 6.0 * model.params * model.tokens
    usual_s = bench.usual(work.chunk_s)
    chunks = min(flops / work.flops, _MOST_WORK_S / usual_s)
    buffer = allocate(sizes.nbytes, getattr(torch, plan.dtype), device).recv
    parts = [
        _open(bench, rung, model, lambda items, views: play_step(items, views, work, chunks, True), buffer, timeout_s)
        for rung in rungs
    ]
    steps = time_steps(bench, parts, sizes.budget_s / 2)
    calls = [time_calls(bench, part, sizes.budget_s / 2 / len(parts)) for part in parts]
    set_phase("ladder, gather")
    by_rank = exchange.collect([steps, calls])
    if by_rank is None:
        return ()
    return tuple(
        rung_row(part.rung, sizes, [steps[number] for steps, _ in by_rank], [calls[number] for _, calls in by_rank])
        for number, part in enumerate(parts)
    )


def _open(bench: Bench, rung: Rung, model: Model, play: _Play, buffer: torch.Tensor, timeout_s: float) -> _Part:
    """Open this rank's group of `rung`, with `play` for its step; its separate all_reduce uses `buffer`."""
    plan, members = bench.plan, rung.of(bench.plan.rank)
    items: StepPlan = training.step("ddp", model)
    group = _group(bench, rung, members, timeout_s)
    if len(members) < 2:
        alone = tuple(item for item in items if isinstance(item, Compute))
        return _Part(rung, members, lambda: play(alone, {}), None)
    views = views_of(plan, [item for item in items if isinstance(item, Collective)], group)
    view = BufferView(buffer, buffer, members.index(plan.rank), len(members), dist.ReduceOp.SUM, group)
    call = all_reduce.run(view)
    return _Part(rung, members, lambda: play(items, views), call)


def _group(bench: Bench, rung: Rung, members: Sequence[int], timeout_s: float) -> dist.ProcessGroup | None:
    """Open a group; a single rank also opens one, if others of the rung are larger.

    torch names a group by its ranks and by how many groups the process has (_hash_ranks_to_str in distributed_c10d.py):
    ranks with different numbers of groups would wait for each other forever.
    """
    if max(map(len, rung.groups)) < 2:
        return None
    with bench.phase(f"ladder, {rung.name} group"):
        wait = timedelta(seconds=timeout_s)
        found: dist.ProcessGroup = dist.new_group(list(members), timeout=wait, use_local_synchronization=True)
    return found


def time_steps(bench: Bench, parts: Sequence[_Part], budget_s: float) -> list[list[float]]:
    """Return this rank's seconds of each step, by rung: as many as `budget_s` allows, at least one."""
    took: list[list[float]] = [[] for _ in parts]
    for turn in range(_WARM_UPS):
        for part, each in zip(parts, took, strict=True):
            each.append(bench.timed(f"ladder, {part.rung.name}, warm-up {turn + 1}", part.play))
    slowest_s = bench.slowest(sum(each[-1] for each in took))
    for turn in range(max(1, min(STEPS, int(budget_s / slowest_s)))):
        for part, each in zip(parts, took, strict=True):
            each.append(bench.timed(f"ladder, {part.rung.name}, step {turn + 1}", part.play))
    return [each[_WARM_UPS:] for each in took]


def time_calls(bench: Bench, part: _Part, budget_s: float) -> list[float]:
    """Return this rank's seconds per all_reduce, batch by batch; empty if its group has no other rank."""
    if max(map(len, part.rung.groups)) < 2:
        return []
    name = f"ladder, {part.rung.name}, all_reduce"
    seen_s = [bench.batch(f"{name} warm-up {turn + 1}", part.call, 1) for turn in range(_WARM_UPS)][-1]
    slowest_s = bench.slowest(seen_s)
    calls = max(1, min(_MOST_CALLS, round(_BATCH_S / slowest_s)))
    count = max(1, min(_BATCHES, int(budget_s / (calls * slowest_s))))
    return [bench.batch(f"{name} batch {number + 1}", part.call, calls) for number in range(count)]


def rung_row(
    rung: Rung, sizes: LadderSizes, steps: Sequence[Sequence[float]], calls: Sequence[Sequence[float]]
) -> LadderRow:
    """Reduce one rung over its groups: a group's step ends with its last rank, its call is the mean over its ranks."""
    by_group = {group: [max(each) for each in zip(*(steps[r] for r in group), strict=True)] for group in rung.groups}
    slowest = max(by_group, key=lambda group: median(by_group[group]))
    took, ranks = by_group[slowest], len(slowest)
    found = []
    for group in rung.groups:
        samples = [sum(each) / len(group) for each in zip(*(calls[r] for r in group), strict=True)]
        if len(group) > 1 and samples:
            factor = OPS["all_reduce"].bus_factor(len(group)) * sizes.nbytes / 1e9
            found.append((factor / median(samples), factor / min(samples)))
    busbw, best = min(found) if found else (None, None)
    return LadderRow(
        rung=rung.name,
        ranks=ranks,
        groups=len(rung.groups),
        slowest=slowest,
        step_bytes=sizes.step_bytes,
        step_us=microseconds(median(took)),
        samples_us=tuple(map(microseconds, took)),
        nbytes=sizes.nbytes,
        busbw_GBps=busbw,
        best_GBps=best,
    )
