"""Ranks apart: who comes late to a call, and how long the bytes take once all are there.

Ranks that call back to back all see the same time, whoever of them was slow. So beside the timed batches some rounds
are made with an appointment: all leave a barrier, use the processor for WAIT_S as a job's host would, and call. A rank
that gets no processor comes late, and the others wait for it inside the call; what the last to come spends inside is
the transfer alone. Clocks of several hosts are compared by the barrier's exits: their usual difference between two
ranks is the offset of their clocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ncclprobe.model.measurement import Skew
from ncclprobe.probes import Call
from ncclprobe.probes.clock import Clock

WAIT_S = 4e-3
LATE_S = 1e-3
"""What counts as late: many times the jitter of leaving a barrier on one host or within a rack."""
ROUNDS = 8
_SHARE = 0.1  # of a row's budget, that the calls of all rounds may take
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Arrival:
    """One round on one rank, by its own clock: when it left the barrier and when it called; seconds in the call."""

    left_s: float
    came_s: float
    inside_s: float


def rounds(call_s: float, budget_s: float) -> int:
    """How many rounds are made with calls of `call_s` seconds; none where lateness is nothing beside the call."""
    affordable = int(_SHARE * budget_s / max(call_s, 1e-9))
    return min(ROUNDS, affordable) if affordable >= _FEWEST else 0


def arrive(call: Call, clock: Clock) -> Arrival:
    """One round. The time inside is the device's own where it has a clock: NCCL's kernel waits there, not the host."""
    clock.barrier()
    left = clock.now()
    clock.busy_until(left + WAIT_S)
    came = clock.now()
    first = clock.mark()
    call()
    last = clock.mark()
    clock.synchronise()
    inside = clock.now() - came
    on_device = clock.between(first, last)
    return Arrival(left, came, inside if on_device is None else on_device)


def skew(by_rank: Mapping[int, Sequence[Arrival]]) -> Skew | None:
    """What the rounds of all ranks say together; None where there were none.

    A rank is late by what it lost after its own exit: that the barrier let it go late may be another's doing.
    """
    everyone = list(by_rank.values())
    if not everyone or not everyone[0]:
        return None
    late = [[max(0.0, own.came_s - own.left_s - WAIT_S) for own in rank] for rank in everyone]
    offsets = [_offset(rank, everyone[0]) for rank in everyone]
    came = [[own.came_s - offset for own in rank] for rank, offset in zip(everyone, offsets, strict=True)]
    return Skew(
        rounds=len(everyone[0]),
        wait_us=WAIT_S * 1e6,
        transfer_us=_us(median(min(own.inside_s for own in together) for together in zip(*everyone, strict=True))),
        arrival_us=_us(fmean(max(together) - min(together) for together in zip(*came, strict=True))),
        late_us=tuple(_us(fmean(lateness)) for lateness in late),
        late_rounds=tuple(sum(seconds > LATE_S for seconds in lateness) for lateness in late),
    )


def _offset(rank: Sequence[Arrival], first: Sequence[Arrival]) -> float:
    """How far a rank's clock is ahead of the first's."""
    return median(own.left_s - other.left_s for own, other in zip(rank, first, strict=True))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
