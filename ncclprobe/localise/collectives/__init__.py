"""Where the ranks of a job parted, from their flight records: pure, and of whatever dumps there are.

Ranks must make the same collectives of a group in the same order. The first that is not the same on all is where they
parted; else who has not come to a call that others wait in, and who came too late. A rank without a dump is not judged.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.localise.collectives.lanes import Entered, Lane, SideBySide, folded
from ncclprobe.localise.collectives.waits import AllEntered, Crossed, NotEntered, roots
from ncclprobe.model.values import Struct

__all__ = ["AllEntered", "CameLate", "Crossed", "Entered", "NotEntered", "Parted", "folded", "judge"]

Difference = Literal["operation", "size", "type", "order", "skipped", "additional"]
_LATE_SHARE = 0.95
"""Of the group's timeout: a rank that came later than this was too late for the others."""


class Parted(Struct, frozen=True):
    """The first collective of a group that is not the same on all ranks.

    `usual` is what most ranks called and `others`, one of each sort, what a few did; `tied`: as many called one as the
    other. `how` they differ. `finished`: all ranks finished it all the same.
    """

    how: Difference
    usual: Entered
    usual_ranks: tuple[int, ...]
    others: tuple[Entered, ...]
    other_ranks: tuple[int, ...]
    tied: bool = False
    finished: bool = False


class CameLate(Struct, frozen=True):
    """A collective that `rank` entered `late_s` seconds after the others, by its own clock; they wait `timeout_s`."""

    entry: Entered
    rank: int
    late_s: float
    timeout_s: float
    waiting: tuple[int, ...]


Trouble = Parted | CameLate | NotEntered | AllEntered | Crossed


def judge(records: FlightRecords) -> tuple[Trouble, ...]:
    """Return where the ranks parted, the first of all; else who came too late; else who waits for whom."""
    return _judged(_Identical(records))


class _Identical:
    """One object: several checks ask of the same records, whose millions of entries are not compared to see that."""

    def __init__(self, records: FlightRecords) -> None:
        self.records = records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identical) and other.records is self.records

    def __hash__(self) -> int:
        return id(self.records)


@lru_cache(maxsize=1)
def _judged(asked: _Identical) -> tuple[Trouble, ...]:
    side = SideBySide(asked.records)
    parted = [found for lane in side.lanes if (found := _parted(side, lane)) is not None]
    if unfinished := [each for each in parted if not each.finished]:
        return (min(unfinished, key=lambda each: each.usual.time_s),)
    late = tuple(each for lane in side.lanes if (each := _late(side, lane)) is not None)
    return late or (*roots(side), *parted)


def _parted(side: SideBySide, lane: Lane) -> Parted | None:
    seq = min((seq for seq, kinds in lane.slots.items() if len(kinds) > 1), default=None)
    return None if seq is None else _parting(side, lane, seq, lane.slots[seq])


def _parting(side: SideBySide, lane: Lane, seq: int, kinds: Mapping[object, list[int]]) -> Parted | None:
    (_, usual_ranks), *rest = sorted(kinds.items(), key=lambda each: -len(each[1]))
    usual = side.entry(lane, usual_ranks[0], seq)
    others = tuple(found for _, ranks in rest if (found := side.entry(lane, ranks[0], seq)) is not None)
    if usual is None or not others:
        return None
    return Parted(
        how=_how(lane, seq, usual, others[0]),
        usual=usual,
        usual_ranks=tuple(usual_ranks),
        others=others,
        other_ranks=tuple(sorted(rank for _, ranks in rest for rank in ranks)),
        tied=len(usual_ranks) == len(rest[0][1]),
        finished=not lane.without_kernels and all(at > seq for at in lane.open.values()),
    )


def _how(lane: Lane, seq: int, usual: Entered, other: Entered) -> Difference:
    now, then = (lane.key_of(usual.rank, at) for at in (seq, seq + 1))
    other_now, other_then = (lane.key_of(other.rank, at) for at in (seq, seq + 1))
    if other_now == then:
        return "order" if other_then == now else "skipped"
    if other_then == now:
        return "additional"
    if usual.call.op != other.call.op:
        return "operation"
    types = ((each.call.input_dtype, each.call.output_dtype) for each in (usual, other))
    return "size" if len({*types}) == 1 else "type"


def _late(side: SideBySide, lane: Lane) -> CameLate | None:
    """Return the rank that took longer than the timeout from the collective before, when the others did not.

    Each rank's time is a difference by its own clock, so that clocks need not agree.
    """
    stuck = lane.stuck_at()
    seq = max(lane.last.values(), default=0) if stuck is None else stuck
    here = lane.waiting(seq)
    if lane.group.timeout_s <= 0 or len(here) < 2 or lane.missing(seq):
        return None
    pairs = {rank: (side.entry(lane, rank, seq - 1), side.entry(lane, rank, seq)) for rank in here}
    took_s = {rank: now.time_s - before.time_s for rank, (before, now) in pairs.items() if before and now}
    if len(took_s) < 2:
        return None
    *_, rank = sorted(took_s, key=lambda each: took_s[each])
    late_s = took_s[rank] - sorted(took_s.values())[(len(took_s) - 1) // 2]
    entry = pairs[rank][1]
    if entry is None or late_s < _LATE_SHARE * lane.group.timeout_s:
        return None
    return CameLate(entry, rank, late_s, lane.group.timeout_s, tuple(each for each in here if each != rank))
