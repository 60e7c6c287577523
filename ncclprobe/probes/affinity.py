"""The same operation with this rank's processors as they are and as they could be, in turn, in one run.

Whoever measures one after the other measures the machine's mood as well: so both sides stand in every round, and who is
first alternates.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext

import torch

from ncclprobe.model.registry import discover
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.probes import Probe
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of, time_batch
from ncclprobe.probes.copies import bound
from ncclprobe.probes.plan import Beat, Bench, Exchange, Plan

OP = "all_reduce"
ROUNDS = 12
_BATCH_S, _MOST_CALLS = 0.1, 2000
"""Of calls: several turns of the kernel's balancing of threads over processors."""


def alternate(
    plan: Plan, better: Collection[int] | None, exchange: Exchange, beat: Beat
) -> tuple[list[float], list[float]]:
    """Seconds per call of each round, as it is and on `better` processors (None: this rank stays where it is).

    All ranks call this together, over the default group, and change sides together. Raises ProbeError.
    """
    device = torch.device(plan.device)
    shape = OPS[OP].shape(plan.sizes[-1], plan.ranks, DTYPES[plan.dtype])
    buffers = allocate(footprint(shape.nbytes, 1), getattr(torch, plan.dtype), device)
    bench = Bench(plan, exchange, beat, clock_of(device), buffers)
    call = next(probe for probe in discover("ncclprobe.probes", Probe) if probe.name == OP).run(
        bench.slots(shape, OPS[OP].places[0])[0]
    )
    number = _calls(bench, call)
    sides: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        with bench.phase(f"affinity, round {turn + 1} of {ROUNDS}"):
            for side in _order(turn):
                with bound(better) if side and better else nullcontext():
                    bench.clock.barrier()
                    time_batch([call] * (1 + number // 2), plan.timing, bench.clock)  # until the threads have moved
                    bench.clock.barrier()
                    batch = time_batch([call] * number, plan.timing, bench.clock)
                sides[side].append(batch.seconds)
    return sides


def _order(turn: int) -> Sequence[int]:
    return (0, 1) if turn % 2 == 0 else (1, 0)


def _calls(bench: Bench, call: object) -> int:
    """How many calls make a batch, by the slowest rank's time of one."""
    assert callable(call)
    with bench.phase("affinity, first calls"):
        for _ in range(2):
            bench.clock.barrier()
            started = bench.clock.now()
            call()
            bench.clock.synchronise()
            took = bench.clock.now() - started
    slowest = bench.exchange.collect(took)
    most = max(1, min(_MOST_CALLS, math.ceil(_BATCH_S / max(max(slowest), 1e-6)))) if slowest else None
    return int(bench.exchange.share(most))
