"""Measure an operation with this rank's processors as they are and as they could be, in turn, in one run.

Measuring one after the other would measure the machine's mood as well: so both sides stand in every round, and the
first one alternates.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext

import torch

from ncclprobe.model.registry import discover
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of, time_batch
from ncclprobe.probes.copies import bound
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, SweepContext
from ncclprobe.probes.probe import Probe

OP = "all_reduce"
ROUNDS = 12
_BATCH_S, _MOST_CALLS = 0.1, 2000
"""Of calls: several turns of the kernel's balancing of threads over processors."""


def alternate(
    plan: Plan, better: Collection[int] | None, exchange: Exchange, set_phase: SetPhase
) -> tuple[list[float], list[float]]:
    """Return seconds per call of each round, as it is and on `better` processors (None: this rank stays).

    All ranks call this together, over the default group, and change sides together. Raises ProbeError.
    """
    device = torch.device(plan.device)
    shape = OPS[OP].shape(plan.sizes[-1], plan.ranks, DTYPES[plan.dtype])
    buffers = allocate(footprint(shape.nbytes, 1), getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock_of(device), buffers)
    call = next(probe for probe in discover("ncclprobe.probes", Probe) if probe.name == OP).run(
        context.views(shape, OPS[OP].places[0])[0]
    )
    number = _calls(context, call)
    sides: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        with context.phase(f"affinity, round {turn + 1} of {ROUNDS}"):
            for side in _order(turn):
                with bound(better) if side and better else nullcontext():
                    context.clock.barrier()
                    time_batch([call] * (1 + number // 2), plan.timing, context.clock)  # until the threads have moved
                    context.clock.barrier()
                    batch = time_batch([call] * number, plan.timing, context.clock)
                sides[side].append(batch.seconds)
    return sides


def _order(turn: int) -> Sequence[int]:
    return (0, 1) if turn % 2 == 0 else (1, 0)


def _calls(context: SweepContext, call: object) -> int:
    """Return how many calls make a batch, by the slowest rank's time of one."""
    assert callable(call)
    with context.phase("affinity, first calls"):
        for _ in range(2):
            context.clock.barrier()
            started = context.clock.now()
            call()
            context.clock.synchronise()
            took = context.clock.now() - started
    slowest = context.exchange.collect(took)
    most = max(1, min(_MOST_CALLS, math.ceil(_BATCH_S / max(max(slowest), 1e-6)))) if slowest else None
    return int(context.exchange.share(most))
