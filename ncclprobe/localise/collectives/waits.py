"""Who waits for whom, from flight records: in which call each rank is stuck, and which rank has not come to it.

A rank that has not come to one group's collective may itself wait in another group's, or for a send. Only the calls at
the end of such a chain are reported, and calls that wait for each other in a circle.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ncclprobe.localise.collectives.lanes import Entered, Lane, SideBySide, entered, open_entries
from ncclprobe.model.values import Struct

_PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
Call = tuple[object, ...]
"""A call that ranks meet in: ("collective", lane, number) or ("p2p", group, sender, receiver)."""


class NotEntered(Struct, frozen=True):
    """A call that `waiting` ranks entered and `missing` did not, whose last entries of any group are `last`.

    `undumped` ranks belong to the group and have left no dump. `timed_out`: torch has given up waiting.
    """

    entry: Entered
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    last: tuple[Entered, ...] = ()
    undumped: tuple[int, ...] = ()
    timed_out: bool = False


class AllEntered(Struct, frozen=True):
    """A call that every rank with a dump entered and that some did not finish: the ranks by how far it came.

    `ended`: of backends that record no kernels, finished or given up.
    """

    entry: Entered
    scheduled: tuple[int, ...]
    started: tuple[int, ...]
    completed: tuple[int, ...]
    ended: tuple[int, ...] = ()
    undumped: tuple[int, ...] = ()
    timed_out: bool = False


class Crossed(Struct, frozen=True):
    """Calls that wait for each other: one entry of each, and the ranks in it."""

    entries: tuple[Entered, ...]
    ranks: tuple[tuple[int, ...], ...]


class Wait(Struct, frozen=True):
    """A call that is not finished: who entered it, who did not, and one of its entries."""

    entry: Entered
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    lane: Lane | None = None


def waits(side: SideBySide) -> dict[Call, Wait]:
    """Return every call that is not finished, by the call."""
    found: dict[Call, Wait] = {}
    for lane in side.lanes:
        seq = lane.stuck_at()
        if seq is None:
            continue
        waiting = lane.waiting(seq)
        entry = next((e for rank in waiting if (e := side.entry(lane, rank, seq)) is not None), None)
        if entry is not None:
            found["collective", id(lane), seq] = Wait(entry, waiting, lane.missing(seq), lane)
    return found | _of_pairs(side)


def blocked(side: SideBySide, found: Mapping[Call, Wait]) -> dict[int, Call]:
    """Return the call in which each rank is stuck: its oldest that is not finished."""
    stuck: dict[int, Call] = {}
    for rank, dump in side.dumps.items():
        for at in open_entries(dump):
            call = _call_at(side, rank, at)
            if call in found:
                stuck[rank] = call
                break
    for call, wait in found.items():
        for rank in wait.waiting:
            if wait.lane is not None and wait.lane.without_kernels:
                stuck.setdefault(rank, call)
    return stuck


def roots(side: SideBySide) -> Iterator[NotEntered | AllEntered | Crossed]:
    """Yield the calls that wait for nothing but ranks which are in no call, and those that wait in a circle."""
    found = waits(side)
    stuck = blocked(side, found)
    waits_on = {call: _waits_on(call, wait, stuck) for call, wait in found.items()}
    ends = {call for call, others in waits_on.items() if not others or None in others}
    reached = set(ends)
    while further := {call for call, others in waits_on.items() if call not in reached and others & reached}:
        reached |= further
    for call in ends:
        yield _trouble(side, found[call], stuck)
    circle = [found[call] for call in found if call not in reached]
    if circle:
        yield Crossed(tuple(wait.entry for wait in circle), tuple(wait.waiting for wait in circle))


def _waits_on(call: Call, wait: Wait, stuck: Mapping[int, Call]) -> set[Call | None]:
    """Return the calls in which ranks hang that have not come to `call`, or whose GPU has not; None: in no call."""
    behind = {stuck[rank] for rank in wait.waiting if rank in stuck}
    return ({stuck.get(rank) for rank in wait.missing} | behind) - {call}


def _trouble(side: SideBySide, wait: Wait, stuck: Mapping[int, Call]) -> NotEntered | AllEntered:
    lane = wait.lane
    undumped = () if lane is None else lane.undumped
    timed_out = bool(lane and lane.timed_out)
    idle = tuple(rank for rank in wait.missing if rank not in stuck)
    if wait.missing:
        dumps = [side.dumps[rank] for rank in idle]
        last = tuple(entered(dump, len(dump) - 1) for dump in dumps if len(dump))
        return NotEntered(wait.entry, wait.waiting, idle or wait.missing, last, undumped, timed_out)
    by_state: dict[str, list[int]] = defaultdict(list)
    for rank in wait.waiting:
        entry = side.entry(lane, rank, wait.entry.seq) if lane is not None else wait.entry
        if entry is not None:
            by_state[entry.state].append(rank)
    states = ("scheduled", "started", "completed", "ended")
    scheduled, started, completed, ended = (tuple(by_state[state]) for state in states)
    return AllEntered(wait.entry, scheduled, started, completed, ended, undumped, timed_out)


def _call_at(side: SideBySide, rank: int, at: int) -> Call:
    dump = side.dumps[rank]
    lane, call = side.lane_of[rank][dump.column("group")[at]], dump.calls[dump.column("call")[at]]
    if not call.p2p:
        return ("collective", id(lane), dump.column("seq")[at])
    return _pair(lane, call.op) or ("other", rank, at)


def _pair(lane: Lane, op: str) -> Call | None:
    """Return the call that ``send 0->1`` and ``recv 1<-0`` meet in, with the ranks of the job."""
    found = _PEER.fullmatch(op)
    if found is None:
        return None
    own, peer = (_of_job(lane, int(number)) for number in found.groups()[1:])
    return ("p2p", id(lane), *((own, peer) if found[1] == "send" else (peer, own)))


def _of_job(lane: Lane, rank: int) -> int:
    """Return the job's rank of a group's."""
    return lane.group.ranks[rank] if rank < len(lane.group.ranks) else rank


def _of_pairs(side: SideBySide) -> dict[Call, Wait]:
    """Return the sends and receives that are not finished. A peer with a dump that does not wait too is missing."""
    entries: dict[Call, dict[int, Entered]] = defaultdict(dict)
    for rank, dump in side.dumps.items():
        for at in open_entries(dump):
            call = _call_at(side, rank, at)
            if call[0] == "p2p":
                entries[call].setdefault(rank, entered(dump, at))
    return {call: _of_pair(side, call, each) for call, each in entries.items()}


def _of_pair(side: SideBySide, call: Call, entries: Mapping[int, Entered]) -> Wait:
    missing = tuple(rank for rank in call[2:] if isinstance(rank, int) and rank in side.dumps and rank not in entries)
    return Wait(next(iter(entries.values())), tuple(sorted(entries)), missing)
