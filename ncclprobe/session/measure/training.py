"""``ncclprobe workload``: the process groups and training steps to measure, and their measurement."""

from collections.abc import Iterator, Sequence
from typing import Any

from ncclprobe.host import Host
from ncclprobe.model.traffic import GroupRow, StepRow
from ncclprobe.model.values import Struct
from ncclprobe.training import groups
from ncclprobe.training.groups import Grid
from ncclprobe.training.workload import Model, Strategy


class Training(Struct, frozen=True):
    """The parts of real training to measure: the groups of `grid`, and the steps of `strategies`."""

    grid: Grid | None
    strategies: tuple[Strategy, ...]
    model: Model
    compute_s: float | None


def play(
    training: Training, plan: Any, hosts: Sequence[str], host: Host, exchange: Any, set_phase: Any
) -> Iterator[GroupRow | StepRow]:
    """Measure what is asked for over the default group, on every rank; rows count on rank 0.

    `plan` is a probes.plan.Plan whose last size is that of the groups; `hosts` are those of all ranks, on rank 0.
    Raises UsageError on every rank, ProbeError where a step fails.
    """
    from ncclprobe.probes import groups as played
    from ncclprobe.probes import steps

    if training.grid is not None:
        grid = groups.fit(training.grid, plan.ranks)
        yield from played.run(plan, grid, exchange.share(list(hosts)), exchange, set_phase)
    room = room_of(plan, host, exchange)
    for strategy in training.strategies:
        asked = steps.Asked(strategy, training.model, training.compute_s)
        yield from steps.run(plan, asked, room, exchange, set_phase)


def room_of(plan: Any, host: Host, exchange: Any) -> int | None:
    """Return the bytes that the fullest rank may allocate, on every rank; None: not known. Every rank must call it."""
    import torch

    from ncclprobe.probes.buffers import free_bytes

    free = free_bytes(torch.device(plan.device), host)
    sharing = 1 if plan.device.startswith("cuda") else -(-plan.ranks // plan.nodes)
    received = exchange.collect(None if free is None else free // sharing)
    known = [room for room in received if room is not None] if received else []
    found: int | None = exchange.share(min(known, default=None))
    return found
