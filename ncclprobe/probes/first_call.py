"""What is paid once: the first call of its kind opens connections, which a job feels at its start and nowhere else."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ncclprobe.model.measurement import FirstCall
from ncclprobe.probes.clock import Clock
from ncclprobe.probes.plan import Exchange, phase


def first_calls(
    group_s: float, device: torch.device, clock: Clock, exchange: Exchange, set_phase: Callable[[str], None]
) -> FirstCall | None:
    """Make the default group's first collective, the same again, and its first pairs. On all ranks; the answer on 0.

    One rank has no pair.

    `group_s` is what init_process_group took here. Raises ProbeError where a call fails.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one, other = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def pairs() -> None:
        """Send and receive between each rank and both its neighbours."""
        to_next = dist.P2POp(dist.isend, one, (rank + 1) % ranks)
        from_previous = dist.P2POp(dist.irecv, other, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([to_next, from_previous]):
            work.wait()

    seconds = [group_s]
    calls = (
        ("communicator (first all_reduce)", lambda: dist.all_reduce(one)),
        ("second all_reduce", lambda: dist.all_reduce(one)),
        ("first pairs", pairs),
    )
    for name, call in calls if ranks > 1 else calls[:2]:
        with phase(rank, set_phase, name):
            started = clock.now()
            call()
            clock.synchronise()
            seconds.append(clock.now() - started)
    rows = exchange.collect(seconds)
    return _slowest(rows) if rows else None


def _slowest(rows: Sequence[Sequence[float]]) -> FirstCall:
    """Return the slowest rank's seconds of each kind, and which rank that is."""
    worst = [max((row[kind], -rank) for rank, row in enumerate(rows)) for kind in range(len(rows[0]))]
    (group, collective, second), pair = worst[:3], worst[3] if len(worst) > 3 else (None, 0)
    return FirstCall(group[0], -group[1], collective[0], -collective[1], second[0], pair[0], -pair[1])
