"""The flight records of all ranks side by side: what every rank called as collective 17 of a group.

What must be equal on all ranks depends on the operation (:func:`equal_on_all`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

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
from ncclprobe.model.values import Struct

WITHOUT_KERNELS = frozenset({"gloo", "mpi", "ucc"})
"""Backends that record neither start nor completion: `retired` says only that torch looks after it no longer."""


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


class Lane:
    """The collectives of one group on all ranks.

    `slots`: of each number, the ranks by what they called. `last`: the number that each rank came to; a rank whose
    recorder has dropped all of this group is not in it. `open`: the first that a rank has not finished.
    """

    def __init__(self, group: FlightGroup) -> None:
        self.group = group
        self.members: tuple[int, ...] = ()
        self.undumped: tuple[int, ...] = ()
        self.slots: dict[int, dict[object, list[int]]] = defaultdict(dict)
        self.last: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.timed_out: set[int] = set()

    @property
    def without_kernels(self) -> bool:
        """Return whether its backend says neither that a collective began nor that it was completed."""
        return self.group.backend in WITHOUT_KERNELS

    def stuck_at(self) -> int | None:
        """Return the first collective that some rank has not finished, or that only some ranks have entered.

        Where the backend does not say that a collective was finished, the last is taken for it if a rank has no dump.
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
        self.lanes: list[Lane] = []
        self.lane_of: dict[int, list[Lane]] = {}
        self._by_key: dict[tuple[str, str, tuple[int, ...]], Lane] = {}
        for rank, dump in self.dumps.items():
            self.lane_of[rank] = [self._lane(group) for group in dump.groups]
            self._lay(rank, dump)
            self._mark(rank, dump)
        self._complete()

    def _lane(self, group: FlightGroup) -> Lane:
        key = (group.backend, group.name, group.ranks)
        if key not in self._by_key:
            self._by_key[key] = Lane(group)
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
                if dump.column("state")[at] & RETIRED:
                    lane.timed_out.add(rank)

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

    def entry(self, lane: Lane, rank: int, seq: int | None = None) -> Entered | None:
        """Return the entry of `rank` for collective `seq` of a group, or its last in it; None: it is not recorded."""
        dump, lanes = self.dumps[rank], self.lane_of[rank]
        numbers, calls, seqs = dump.column("group"), dump.column("call"), dump.column("seq")
        for at in reversed(range(len(dump))):
            if (seq is None or seqs[at] == seq) and lanes[numbers[at]] is lane and not dump.calls[calls[at]].p2p:
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
    """Return the innermost frame of the program itself; of a library where there is none; of torch at last.

    Libraries are what lies where libraries do, or where torch does.
    """
    beside_torch = {f.filename.partition("torch/")[0] for f in stack if "/torch/distributed/" in f.filename}
    for outside in ((*_LIBRARIES, *beside_torch), ("/torch/",)):
        for frame in stack:
            if not any(part in frame.filename for part in outside):
                return frame
    return stack[0] if stack else None


_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "/torch/", "<")


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
    """Return what of a call must be the same on every rank of its group.

    Ranks of an all_to_all may send as much as they like; of a gather or scatter only the root has the long list; an
    all_gather into a list, and a reduce_scatter from one, may be of uneven parts but of one whole. Of an operation that
    is not known here, its name alone.
    """
    if call.op in _BY_INPUT:
        return (call.op, call.input_numel, call.input_dtype)
    if call.op in _BY_OUTPUT:
        return (call.op, call.output_numel, call.output_dtype)
    return (call.op, -1, call.input_dtype) if call.op in _ANY_SIZE else (call.op, -1, "")


def folded(ranks: Iterable[int]) -> str:
    """Return ``0-5, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
