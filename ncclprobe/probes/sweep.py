"""A sweep of collectives over sizes: allocate, warm up, and measure row by row.

The order of things is that of nccl-tests' BenchTime (src/common.cu:694- at a0b82b2), so that the numbers compare:
warm-up once per operation at doubling sizes; then per size and place one untimed call, a barrier, and the calls back to
back with nothing between them. Every rank makes the same steps in the same order, and decides nothing alone.
"""

import sys
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from ncclprobe import stats, units
from ncclprobe.errors import ProbeError, UsageError, reason
from ncclprobe.host import Host
from ncclprobe.model.measurement import Measurement, SkippedRow
from ncclprobe.model.registry import discover
from ncclprobe.model.values import replace
from ncclprobe.ops import DTYPES, OPS, Op, Shape
from ncclprobe.probes.buffers import allocate, footprint, free_bytes
from ncclprobe.probes.clock import Clock, clock_of
from ncclprobe.probes.data import pattern
from ncclprobe.probes.plan import PLACES, Exchange, Plan, Reach, SetPhase, SweepContext, phase
from ncclprobe.probes.probe import Call, Probe
from ncclprobe.probes.row import measure

_PREDICTS = 1 << 20
"""From so many bytes on, a message of twice the size takes about twice as long."""
_EXTRA_CALLS = 2
"""Calls of a row in addition to its warm-up and batches: an untimed one, and one whose data is verified."""
_HOLDERS = ", or end what else holds it: nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv"
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

    `set_phase` receives the name of every step that may block, on all ranks. `host` is asked how much memory is free;
    sizes that have no room are left out, and reported. `reach` hears how far a row is. On rank 0 a measurement is over
    all ranks; elsewhere it is of that rank alone. Raises UsageError (on all ranks) where no size has room, ProbeError
    where a step fails or ranks disagree.
    """
    device = torch.device(plan.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    room, fullest = _room(plan, exchange, free_bytes(device, host))
    fits = tuple(nbytes for nbytes in plan.sizes if 2 * _footprint(plan, nbytes) <= room)
    yield from _clamped(plan, fits, room, fullest)
    plan = replace(plan, sizes=fits)
    need = max(_footprint(plan, nbytes) for nbytes in fits)
    with phase(plan.rank, set_phase, f"allocating 2 x {units.size(need)}"):
        buffers = allocate(need, getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock or clock_of(device, plan.group), buffers, reach)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name in plan.ops:
        yield from _sweep(context, OPS[name], probes[name])


def _room(plan: Plan, exchange: Exchange, free: int | None) -> tuple[int, int]:
    """Return the bytes that the fullest rank may take, and which it is.

    Ranks on one host share its memory; each has its own GPU.
    """
    sharing = 1 if plan.device.startswith("cuda") else -(-plan.ranks // plan.nodes)
    rooms = exchange.collect(sys.maxsize if free is None else free // sharing)
    room, rank = exchange.share(min((room, rank) for rank, room in enumerate(rooms)) if rooms else None)
    return int(room), int(rank)


def _footprint(plan: Plan, nbytes: int) -> int:
    """Return the bytes of each of the two buffers that messages of up to `nbytes` take."""
    shapes = [OPS[name].shape(nbytes, plan.ranks, DTYPES[plan.dtype]) for name in plan.ops]
    return footprint(max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes), plan.footprint_bytes)


def _clamped(plan: Plan, fits: tuple[int, ...], room: int, rank: int) -> Iterator[SkippedRow]:
    """Yield what does not fit into the `room` bytes of `rank`, size by size. Raises UsageError where nothing does."""
    left_out = [nbytes for nbytes in plan.sizes if nbytes not in fits]
    but, end = (" without what NCCL itself needs", _HOLDERS) if plan.backend == "nccl" else ("", "")
    whys = {
        nbytes: f"two buffers need {units.size(2 * _footprint(plan, nbytes))} per rank and rank {rank} has only "
        f"{units.size(room)} free{but}"
        for nbytes in left_out
    }
    if not fits:
        smallest = min(plan.sizes)
        raise UsageError(f"{units.size(smallest)}: {whys[smallest]}; choose a smaller -b and -e{end}")
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


def _refusal(context: SweepContext, op: Op, probe: Probe, shape: Shape) -> str:
    """Return why torch does not do this operation here, or nothing: found by trying it, agreed between ranks.

    Ranks that lost each other may all see an error too. A barrier tells: after a mere refusal it still works.
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
    """Return torch's objection to `call`. Its exception depends on backend and operation."""
    try:
        call()
        context.clock.synchronise()
    except (dist.DistError, torch.cuda.OutOfMemoryError):  # of NCCL, the network, the store or memory: no refusal
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        return reason(error)
    return ""


def _warm_up(context: SweepContext, op: Op, probe: Probe, asked: Sequence[int]) -> dict[int, float]:
    """Let connections, algorithms and caches settle: every size class once, doubling whatever -f says.

    Returns those of the sizes `asked`, in rising order, that would take too long, with a row's predicted seconds.
    """
    nbytes = asked[0]
    while nbytes <= asked[-1]:
        with context.phase(f"{op.name} {units.size(nbytes)} warm-up"):
            shape = op.shape(nbytes, context.plan.ranks, DTYPES[context.plan.dtype])
            call_s = _settled(context, probe.run(context.views(shape, op.places[0])[0]))
        larger = [each for each in asked if each > nbytes]
        if larger and (late := _too_long(context, f"{op.name} {units.size(nbytes)}", nbytes, larger, call_s)):
            return late
        nbytes *= 2
    return {}


def _settled(context: SweepContext, call: Call) -> float:
    """Make the warm-up calls. Returns the seconds of the last one, when what is made once is made, where times are
    predicted; else 0.
    """
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


def _too_long(context: SweepContext, what: str, nbytes: int, larger: Sequence[int], call_s: float) -> dict[int, float]:
    """Return those of the `larger` sizes whose rows would take too long, once the next class would; the same on all
    ranks.
    """
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
