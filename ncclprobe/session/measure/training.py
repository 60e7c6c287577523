"""``ncclprobe workload``: measure process groups and training steps."""

import torch

from ncclprobe.host import Host
from ncclprobe.model.training import fit
from ncclprobe.probes.buffers import free_bytes
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.plan import Exchange, Plan
from ncclprobe.probes.training import Bench, play_groups, play_strategy, work_of
from ncclprobe.session.measure.context import RankContext


def play(run: RankContext) -> bool:
    """Measure the requested parts over the default group, on every rank; groups use the plan's last size.

    Raises UsageError on every rank, ProbeError if a step fails.
    """
    asked, plan, exchange = run.options.training, run.plan(), run.exchange
    assert asked
    bench = Bench(plan, exchange, run.set_phase, clock_of(torch.device(plan.device)))
    if asked.grid is not None:
        run.record(play_groups(bench, fit(asked.grid, plan.ranks), exchange.share(list(run.hosts))))
    if asked.strategies:
        room, work = room_of(plan, run.host, exchange), work_of(bench)
        for strategy in asked.strategies:
            run.record(play_strategy(bench, work, strategy, asked.model, room))
    return True


def room_of(plan: Plan, host: Host, exchange: Exchange) -> int | None:
    """Return the bytes that the fullest rank may allocate, on every rank; None: unknown. Every rank must call it."""
    free = free_bytes(torch.device(plan.device), host)
    sharing = 1 if plan.device.startswith("cuda") else -(-plan.ranks // plan.nodes)
    received = exchange.collect(None if free is None else free // sharing)
    known = [room for room in received if room is not None] if received else []
    found: int | None = exchange.share(min(known, default=None))
    return found
