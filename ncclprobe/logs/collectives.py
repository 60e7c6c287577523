"""Find the point at which a job's ranks diverged, from any set of their flight records. Pure.

The records of all ranks are aligned: what every rank called as collective 17 of a group. Ranks must call the same
collectives of a group in the same order; the values that must be equal depend on the operation (:func:`equal_on_all`).
The first call that is not the same on all ranks is the point of divergence. Otherwise the ranks that are missing from a
call that others wait in are reported, and then the ranks that were late. A rank without a dump is not judged.

A rank that is missing from one group's collective may itself wait in another group's, or for a send. Only the calls at
the end of such a chain are reported, and calls that wait for each other in a circle.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from ncclprobe.facts.files.flight_records import (
    COMPLETED,
    RETIRED,
    STARTED,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
    FlightRecords,
)
from ncclprobe.model.values import Same, Struct

WITHOUT_KERNELS = frozenset({"gloo", "mpi", "ucc"})
"""Backends that record neither start nor completion: `retired` means only that torch no longer tracks the call."""


class Entered(Struct, frozen=True):
    """One entry of one rank's recorder. `caller` is the frame of the program that made the call, if it was recorded.

    `state`: ``scheduled`` (called, and no kernel of it began), ``started``, ``completed`` or, of backends that record
    no kernels, ``ended``.
    """

    rank: int
    source: str
    group: str
    seq: int
    call: FlightCall
    state: str
    caller: FlightFrame | None = None
    time_s: float = 0.0

    @property
    def place(self) -> str:
        """Return the program's line that made the call, `` (train.py:12 in step)``; empty if it was not recorded."""
        return f" ({self.caller})" if self.caller else ""


class _Lane:
    """The collectives of one group on all ranks.

    `slots`: for each number, the ranks by what they called. `last`: the number that each rank reached; a rank whose
    recorder has dropped all of this group is not in it. `open`: the first that a rank has not finished.
    """

    def __init__(self, group: FlightGroup) -> None:
        self.group = group
        self.members: tuple[int, ...] = ()
        self.undumped: tuple[int, ...] = ()
        self.slots: dict[int, dict[object, list[int]]] = defaultdict(dict)
        self.last: dict[int, int] = {}
        self.open: dict[int, int] = {}

    @property
    def without_kernels(self) -> bool:
        """Return whether its backend records neither the start nor the completion of a collective."""
        return self.group.backend in WITHOUT_KERNELS

    def stuck_at(self) -> int | None:
        """Return the first collective that some rank has not finished, or that only some ranks have entered.

        If the backend does not record completion, the last collective counts as unfinished if a rank has no dump.
        """
        if self.open:
            return min(self.open.values())
        if not self.without_kernels:
            return None
        behind, ahead = min(self.last.values(), default=0), max(self.last.values(), default=0)
        return behind + 1 if behind < ahead else ahead if self.undumped and ahead else None

    def waiting(self, seq: int) -> tuple[int, ...]:
        """Return the ranks that entered collective `seq`."""
        return tuple(sorted(rank for rank, last in self.last.items() if last >= seq))

    def missing(self, seq: int) -> tuple[int, ...]:
        """Return the ranks that have a dump and did not enter collective `seq`."""
        return tuple(sorted(rank for rank, last in self.last.items() if last < seq))

    def key_of(self, rank: int, seq: int) -> object:
        """Return what `rank` called as collective `seq`; None: nothing that is known."""
        return next((key for key, ranks in self.slots.get(seq, {}).items() if rank in ranks), None)


class SideBySide:
    """The dumps by rank, and a lane for every group."""

    def __init__(self, records: FlightRecords) -> None:
        self.dumps = {dump.rank: dump for dump in records.dumps if dump.rank is not None}
        self.lanes: list[_Lane] = []
        self.lane_of: dict[int, list[_Lane]] = {}
        self._by_key: dict[tuple[str, str, tuple[int, ...]], _Lane] = {}
        for rank, dump in self.dumps.items():
            self.lane_of[rank] = [self._lane(group) for group in dump.groups]
            self._lay(rank, dump)
            self._mark(rank, dump)
        self._complete()

    def _lane(self, group: FlightGroup) -> _Lane:
        key = (group.backend, group.name, group.ranks)
        if key not in self._by_key:
            self._by_key[key] = _Lane(group)
            if group.backend:
                self.lanes.append(self._by_key[key])
        return self._by_key[key]

    def _lay(self, rank: int, dump: FlightDump) -> None:
        """Put every collective of one dump to those of the same number of the other ranks."""
        lanes, keys = self.lane_of[rank], [None if call.p2p else equal_on_all(call) for call in dump.calls]
        held: list[tuple[int, object] | None] = [None] * len(lanes)
        whole = [dump.first_record == 0] * len(lanes)  # else the oldest may be the rest of calls that were coalesced
        for number, call, seq in zip(dump.column("group"), dump.column("call"), dump.column("seq"), strict=True):
            key: object = keys[call]
            if key is None:
                continue
            before = held[number]
            if before is not None and before[0] == seq:  # calls that were coalesced share a number
                held[number] = (seq, (before[1], key))
                continue
            if before is not None:
                if whole[number]:
                    lanes[number].slots[before[0]].setdefault(before[1], []).append(rank)
                whole[number] = True
            held[number] = (seq, key)
        for lane, before, complete in zip(lanes, held, whole, strict=True):
            if before is not None:
                lane.last[rank] = before[0]
                if complete:
                    lane.slots[before[0]].setdefault(before[1], []).append(rank)

    def _mark(self, rank: int, dump: FlightDump) -> None:
        """Note the first collective of each group that this rank has not finished."""
        lanes, numbers, calls = self.lane_of[rank], dump.column("group"), dump.column("call")
        for at in open_entries(dump):
            lane = lanes[numbers[at]]
            if not dump.calls[calls[at]].p2p:
                lane.open.setdefault(rank, dump.column("seq")[at])

    def _complete(self) -> None:
        """Say who belongs to each group. A rank with a whole recorder and no entry of a group called nothing in it."""
        everyone = {r for dump in self.dumps.values() for g in dump.groups for r in g.ranks} | {*self.dumps}
        for lane in self.lanes:
            group = lane.group
            members = {*group.ranks} or (everyone if group.desc == "default_pg" else {*lane.last})
            lane.members = tuple(sorted(members | {*lane.last}))
            lane.undumped = tuple(rank for rank in lane.members if rank not in self.dumps)
            for rank in members - lane.last.keys():
                dump = self.dumps.get(rank)
                if dump is not None and dump.first_record == 0 and not dump.left_out:
                    lane.last[rank] = 0

    def entry(self, lane: _Lane, rank: int, seq: int) -> Entered | None:
        """Return the entry of `rank` for collective `seq` of a group; None: it is not recorded."""
        dump, lanes = self.dumps[rank], self.lane_of[rank]
        numbers, calls, seqs = dump.column("group"), dump.column("call"), dump.column("seq")
        for at in reversed(range(len(dump))):
            if seqs[at] == seq and lanes[numbers[at]] is lane and not dump.calls[calls[at]].p2p:
                return entered(dump, at)
        return None


def open_entries(dump: FlightDump) -> list[int]:
    """Return which entries are not finished, oldest first."""
    over = [COMPLETED | RETIRED if group.backend in WITHOUT_KERNELS else COMPLETED for group in dump.groups]
    numbers = dump.column("group")
    return [at for at, state in enumerate(dump.state) if not state & over[numbers[at]]]


def entered(dump: FlightDump, at: int) -> Entered:
    """Return entry `at` of a dump."""
    group = dump.groups[dump.column("group")[at]]
    return Entered(
        rank=-1 if dump.rank is None else dump.rank,
        source=dump.source,
        group=group.name if group.desc in ("", "undefined") else f"{group.name} ({group.desc})",
        seq=dump.column("seq")[at],
        call=dump.calls[dump.column("call")[at]],
        state=_state(dump.column("state")[at], group.backend),
        caller=caller(dump.stacks[dump.column("stack")[at]]),
        time_s=dump.column("created_ns")[at] / 1e9,
    )


def caller(stack: Sequence[FlightFrame]) -> FlightFrame | None:
    """Return the innermost frame of the program itself; of a library if there is none; of torch as the last resort.

    A frame belongs to a library if its path is in a library folder or in torch's. The program may be an installed
    package too, which a script of a ``bin`` folder or ``python -m`` has called: that of the outermost frame.
    """
    beside_torch = {f.filename.partition("torch/")[0] for f in stack if "/torch/distributed/" in f.filename}
    package = next((part for frame in reversed(stack) if (part := _package(frame.filename))), "<")
    ways: Sequence[Callable[[str], bool]] = (
        lambda path: not _has(path, (*_LIBRARIES, *_SCRIPTS, *beside_torch)),
        lambda path: not _has(path, (*_LIBRARIES, *_SCRIPTS)),
        lambda path: path.startswith("<") and not path.startswith("<frozen"),  # of python -c, or a notebook
        lambda path: package in path,
        lambda path: not _has(path, _LIBRARIES),
        lambda path: "/torch/" not in path,
    )
    found = (frame for of_program in ways for frame in stack if of_program(frame.filename))
    return next(found, stack[0] if stack else None)


def _has(path: str, parts: Sequence[str]) -> bool:
    return any(part in path for part in parts)


def _package(path: str) -> str:
    """Return the folder of the installed package to which a file belongs, other than torch; empty: to none."""
    folder, _, rest = path.partition("-packages/")
    name, inside, _ = rest.partition("/")
    return f"{folder}-packages/{name}/" if inside and name not in ("torch", "torchgen", "functorch") else ""


_OF_TORCH = "_ ao/ autograd/ cuda/ distributed/ fx/ jit/ multiprocessing/ nn/ optim/ serialization.py utils/"
_LIBRARIES = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "<",
    *(f"/torch/{each}" for each in _OF_TORCH.split()),
)
_SCRIPTS = ("/bin/",)


def _state(state: int, backend: str) -> str:
    if state & COMPLETED:
        return "completed"
    if backend in WITHOUT_KERNELS and state & RETIRED:
        return "ended"
    return "started" if state & STARTED else "scheduled"


_BY_INPUT = frozenset(
    {
        "_broadcast_oop",
        "_reduce_oop",
        "_reduce_scatter_base",
        "all_reduce",
        "allreduce_coalesced",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
    }
)
_BY_OUTPUT = frozenset(
    {"_all_gather_base", "all_gather", "all_gather_into_tensor_coalesced", "all_gather_single", "scatter"}
)
_ANY_SIZE = frozenset({"all_to_all", "all_to_all_single", "all_to_all_v_single"})


def equal_on_all(call: FlightCall) -> object:
    """Return the values of a call that must be the same on every rank of its group.

    Ranks of an all_to_all may send any sizes; in a gather or scatter only the root has the long list; an all_gather
    into a list, and a reduce_scatter from one, may have uneven parts but one total. For an unknown operation, only its
    name.
    """
    if call.op in _BY_INPUT:
        return (call.op, call.input_numel, call.input_dtype)
    if call.op in _BY_OUTPUT:
        return (call.op, call.output_numel, call.output_dtype)
    return (call.op, -1, call.input_dtype) if call.op in _ANY_SIZE else (call.op, -1, "")


_PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
Call = tuple[object, ...]
"""A call that ranks meet in: ("collective", lane, number) or ("p2p", group, sender, receiver)."""


class NotEntered(Struct, frozen=True):
    """A call that `waiting` ranks entered and `missing` did not, whose last entries of any group are `last`.

    `undumped` ranks belong to the group and have left no dump.
    """

    entry: Entered
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    last: tuple[Entered, ...] = ()
    undumped: tuple[int, ...] = ()


class AllEntered(Struct, frozen=True):
    """A call that every rank with a dump entered and that some did not finish: the ranks by their progress.

    `ended`: for backends that record no kernels, finished or given up.
    """

    entry: Entered
    scheduled: tuple[int, ...]
    started: tuple[int, ...]
    completed: tuple[int, ...]
    ended: tuple[int, ...] = ()
    undumped: tuple[int, ...] = ()


class Crossed(Struct, frozen=True):
    """Calls that wait for each other: one entry of each, and the ranks in it."""

    entries: tuple[Entered, ...]
    ranks: tuple[tuple[int, ...], ...]


class Wait(Struct, frozen=True):
    """A call that is not finished: who entered it, who did not, and one of its entries."""

    entry: Entered
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    lane: _Lane | None = None


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
    # Of sends and receives, a peer with a dump that does not wait too is missing.
    entries: dict[Call, dict[int, Entered]] = defaultdict(dict)
    for rank, dump in side.dumps.items():
        for at in open_entries(dump):
            call = _call_at(side, rank, at)
            if call[0] == "p2p":
                entries[call].setdefault(rank, entered(dump, at))
    return found | {call: _pair_wait(side, call, each) for call, each in entries.items()}


def blocked(side: SideBySide, found: Mapping[Call, Wait]) -> dict[int, Call]:
    """Return the call in which each rank is stuck: its oldest unfinished one."""
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
    ends = [call for call, others in waits_on.items() if not others or None in others]
    reached = set(ends)
    while further := {call for call, others in waits_on.items() if call not in reached and others & reached}:
        reached |= further
    for call in ends:
        yield _trouble(side, found[call], stuck)
    circle = [found[call] for call in found if call not in reached]
    if circle:
        yield Crossed(tuple(wait.entry for wait in circle), tuple(wait.waiting for wait in circle))


def _waits_on(call: Call, wait: Wait, stuck: Mapping[int, Call]) -> set[Call | None]:
    """Return the calls that block the ranks missing from `call`, or whose GPU is behind; None: no call blocks it."""
    behind = {stuck[rank] for rank in wait.waiting if rank in stuck}
    return ({stuck.get(rank) for rank in wait.missing} | behind) - {call}


def _trouble(side: SideBySide, wait: Wait, stuck: Mapping[int, Call]) -> NotEntered | AllEntered:
    lane = wait.lane
    undumped = () if lane is None else lane.undumped
    idle = tuple(rank for rank in wait.missing if rank not in stuck)
    if wait.missing:
        dumps = [side.dumps[rank] for rank in idle]
        last = tuple(entered(dump, len(dump) - 1) for dump in dumps if len(dump))
        return NotEntered(wait.entry, wait.waiting, idle or wait.missing, last, undumped)
    by_state: dict[str, list[int]] = defaultdict(list)
    for rank in wait.waiting:
        entry = side.entry(lane, rank, wait.entry.seq) if lane is not None else wait.entry
        if entry is not None:
            by_state[entry.state].append(rank)
    states = ("scheduled", "started", "completed", "ended")
    scheduled, started, completed, ended = (tuple(by_state[state]) for state in states)
    return AllEntered(wait.entry, scheduled, started, completed, ended, undumped)


def _call_at(side: SideBySide, rank: int, at: int) -> Call:
    dump = side.dumps[rank]
    lane, call = side.lane_of[rank][dump.column("group")[at]], dump.calls[dump.column("call")[at]]
    if not call.p2p:
        return ("collective", id(lane), dump.column("seq")[at])
    return _pair(lane, call.op) or ("other", rank, at)


def _pair(lane: _Lane, op: str) -> Call | None:
    """Return the call that ``send 0->1`` and ``recv 1<-0`` meet in, with the ranks of the job."""
    found = _PEER.fullmatch(op)
    if found is None:
        return None
    own, peer = (_job_rank(lane, int(number)) for number in found.groups()[1:])
    return ("p2p", id(lane), *((own, peer) if found[1] == "send" else (peer, own)))


def _job_rank(lane: _Lane, rank: int) -> int:
    """Return the job's rank of a group's."""
    return lane.group.ranks[rank] if rank < len(lane.group.ranks) else rank


def _pair_wait(side: SideBySide, call: Call, entries: Mapping[int, Entered]) -> Wait:
    missing = tuple(rank for rank in call[2:] if isinstance(rank, int) and rank in side.dumps and rank not in entries)
    return Wait(next(iter(entries.values())), tuple(sorted(entries)), missing)


__all__ = ["AllEntered", "CameLate", "Crossed", "Entered", "NotEntered", "Parted", "judge"]

Difference = Literal["operation", "size", "type", "order", "skipped", "additional"]
_LATE_SHARE = 0.95
"""Fraction of the group's timeout: a rank that was later than this was too late for the others."""


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
    """Return the first divergence of the ranks; otherwise the ranks that were late; otherwise who waits for whom."""
    return _judged(Same(records))


@lru_cache(maxsize=1)
def _judged(asked: Same[FlightRecords]) -> tuple[Trouble, ...]:
    side = SideBySide(asked.value)
    parted = [found for lane in side.lanes if (found := _parted(side, lane)) is not None]
    if unfinished := [each for each in parted if not each.finished]:
        return (min(unfinished, key=lambda each: each.usual.time_s),)
    late = tuple(each for lane in side.lanes if (each := _late(side, lane)) is not None)
    return late or (*roots(side), *parted)


def _parted(side: SideBySide, lane: _Lane) -> Parted | None:
    seq = min((seq for seq, kinds in lane.slots.items() if len(kinds) > 1), default=None)
    return None if seq is None else _parting(side, lane, seq, lane.slots[seq])


def _parting(side: SideBySide, lane: _Lane, seq: int, kinds: Mapping[object, list[int]]) -> Parted | None:
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


def _how(lane: _Lane, seq: int, usual: Entered, other: Entered) -> Difference:
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


def _late(side: SideBySide, lane: _Lane) -> CameLate | None:
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
