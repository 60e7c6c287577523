"""Measure arrival skew: which rank is late at a call, and how long the transfer takes once all ranks are there.

Ranks that call back to back all measure the same time, whichever of them was slow. So some extra rounds have a
scheduled start: all ranks leave a barrier, keep the processor busy for WAIT_S as a job's host would, and call. A rank
that gets no processor arrives late, and the others wait for it inside the call; the last rank to arrive spends only
the transfer inside. The barrier's exits align the clocks of different hosts: the usual difference between two ranks
is their clock offset.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from ncclprobe.model.measurement import Skew
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct
from ncclprobe.probes.clock import Clock
from ncclprobe.probes.collectives import Call

WAIT_S = 4e-3
LATE_S = 1e-3
"""Threshold for a late arrival: many times the jitter of leaving a barrier within a host or a rack."""
ROUNDS = 8
_SHARE = 0.1  # of a row's budget, that the calls of all rounds may take
_FEWEST = 3


class Arrival(Struct, frozen=True):
    """One round on one rank, on its own clock: when it left the barrier, when it called, and the seconds
    in the call.
    """

    left_s: float
    came_s: float
    inside_s: float


def rounds(call_s: float, budget_s: float) -> int:
    """Return the number of rounds for calls of `call_s` seconds; 0 if lateness would be small against a call."""
    affordable = int(_SHARE * budget_s / max(call_s, 1e-9))
    return min(ROUNDS, affordable) if affordable >= _FEWEST else 0


def arrive(call: Call, clock: Clock) -> Arrival:
    """Make one round. The time inside is the device's own if it has a clock: NCCL's kernel waits there."""
    clock.barrier()
    left = clock.now()
    clock.busy_until(left + WAIT_S)
    arrived = clock.now()
    first = clock.mark()
    call()
    last = clock.mark()
    clock.synchronise()
    inside = clock.now() - arrived
    on_device = clock.between(first, last)
    return Arrival(left, arrived, inside if on_device is None else on_device)


def skew(by_rank: Mapping[int, Sequence[Arrival]]) -> Skew | None:
    """Reduce the rounds of all ranks; None if there were none."""
    all_arrivals = list(by_rank.values())
    if not all_arrivals or not all_arrivals[0]:
        return None
    late = [[max(0.0, arrival.came_s - arrival.left_s - WAIT_S) for arrival in rank] for rank in all_arrivals]
    offsets = [_offset(rank, all_arrivals[0]) for rank in all_arrivals]
    arrived = [
        [arrival.came_s - offset for arrival in rank] for rank, offset in zip(all_arrivals, offsets, strict=True)
    ]
    return Skew(
        rounds=len(all_arrivals[0]),
        wait_us=WAIT_S * 1e6,
        transfer_us=microseconds(
            median(
                min(arrival.inside_s for arrival in rounds_together)
                for rounds_together in zip(*all_arrivals, strict=True)
            )
        ),
        arrival_us=microseconds(
            fmean(max(rounds_together) - min(rounds_together) for rounds_together in zip(*arrived, strict=True))
        ),
        late_us=tuple(microseconds(fmean(lateness)) for lateness in late),
        late_rounds=tuple(sum(seconds > LATE_S for seconds in lateness) for lateness in late),
    )


def _offset(rank: Sequence[Arrival], first: Sequence[Arrival]) -> float:
    """Return how far one rank's clock is ahead of the first rank's, in seconds."""
    return median(arrival.left_s - other.left_s for arrival, other in zip(rank, first, strict=True))
