"""Find the stuck calls of a running job, from torch's records at both looks, or from stacks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from ncclprobe.facts.files.flight_records import FlightDump, FlightFrame, FlightRecords
from ncclprobe.facts.files.ras import RasAnswer, RasProcess, by_operation
from ncclprobe.facts.job.process_state import READS, LiveRank
from ncclprobe.facts.job.ranks import JobLooks
from ncclprobe.facts.job.stacks import C10D
from ncclprobe.logs.collectives import (
    AllEntered,
    CameLate,
    Crossed,
    Entered,
    NotEntered,
    Parted,
    SideBySide,
    blocked,
    caller,
    judge,
    roots,
    waits,
)
from ncclprobe.logs.job.activity import Activity, RankView, Wire, activity
from ncclprobe.logs.job.arguments import arguments, crossed, differing, of_peer
from ncclprobe.logs.job.reasons import of_call
from ncclprobe.model.findings import Evidence, seen
from ncclprobe.model.hostlist import fold_ranks
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field, grouped, replace

_MOST_GAPS = 200
_UNKNOWN_USUAL_S = 3.0
"""The time that passes between two calls of a job for which only stacks are known."""
MOVES_BYTES = 64 << 10
"""What passes over a connection between the looks of a call that is slow, and not stuck."""
INIT = "init_process_group"
OWN_RECEIVE = "a receive over the program's own connection"
WAIT = "Work.wait"
"""The call of a rank that waits for an operation which it has started before."""
_COLLECTIVES = ("/torch/distributed/utils.py", "/torch/distributed/_functional_collectives", "/torch/distributed/rpc/")
OF_MODEL = ("backward", "forward")
"""Calls of a program in which DistributedDataParallel makes collectives."""
_WRAPPER = "/torch/nn/parallel/distributed.py"
_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_MOST_LINES = 2
_IN_CIRCLE = "ranks are waiting for each other in a circle"
_ONE_SIDED = ("send", "recv", "recv_object_list", "send_object_list")


class Stalled(Struct, frozen=True):
    """A stuck call: who is in it, for whom they wait, since when, and how long calls usually take.

    `apart`: the other call that the missing ranks made, in words, with its `reason`. `over`: it has ended on the
    waiting ranks, which now wait for something that torch does not record. `launched`: only counts of launches are
    known, so `waited_s` is how long the missing ranks have not run.
    """

    where: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    waited_s: float = 0.0
    usual_s: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    apart: str = ""
    reason: str = ""
    launched: bool = False
    over: bool = False

    @property
    def place(self) -> str:
        """Return the call in which its ranks wait: ``in all_reduce #51``."""
        return f"after {self.where}, which has ended," if self.over else f"in {self.where}"


class LookedAt(Struct, frozen=True):
    """All that is known of a job: its ranks by number, what each does, and what torch has recorded at both looks."""

    ranks: Mapping[int, RankView]
    activities: Mapping[int, Activity]
    first: FlightRecords
    second: FlightRecords
    moved: frozenset[int]
    world: int
    time_s: float
    took_s: float
    ras: tuple[RasAnswer, ...] = ()
    wires: tuple[Wire, ...] = ()
    heard: Mapping[int, float] = field(default_factory=dict)
    gpus: bool = True

    def silent(self, ranks: Collection[int]) -> list[Wire]:
        """Return the connections among `ranks` over which no data arrives."""
        return [wire for wire in self.wires if wire.silent and {wire.rank, wire.peer} <= {*ranks}]

    def dump(self, rank: int) -> FlightDump | None:
        """Return what torch has recorded of `rank`, as of the second look."""
        return next((dump for dump in self.second.dumps if dump.rank == rank), None)

    def held(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return those of `ranks` that are stopped or have ended, whatever they were in."""
        return tuple(rank for rank in ranks if self.activities.get(rank) in ("gone", "stopped"))


def looked_at(
    ranks: Mapping[int, RankView],
    first: FlightRecords,
    second: FlightRecords,
    ras: Sequence[RasAnswer] = (),
    launched: Collection[int] = (),
    between: tuple[Wire, ...] = (),
    heard: Mapping[int, float] | None = None,
    more: int = 0,
    gpus: bool = True,
) -> LookedAt:
    """Return all that is known of a job. `launched`: the processes that launched operations between the looks.

    `between` are the connections of its ranks, `heard` the seconds since each heard from another. There are `more`
    ranks than were looked at. `gpus`: their nodes may have GPUs.
    """
    worlds = [rank.process.launch.world_size or 0 for rank in ranks.values() if rank.process]
    times = [time_s for rank in ranks.values() for time_s in rank.times]
    return LookedAt(
        ranks,
        {number: activity(rank) for number, rank in ranks.items()},
        first,
        second,
        _moved(first, second) | {n for n, rank in ranks.items() if rank.process and rank.process.pid in launched},
        max([*worlds, len(ranks) + more]),
        max(times, default=0.0),
        max(times, default=0.0) - min(times, default=0.0),
        tuple(ras),
        between,
        heard or {},
        gpus,
    )


def confirmed(looks: JobLooks) -> RasAnswer | None:
    """Return NCCL's RAS report at both looks: if the job is at work, the counts differ."""
    first, second = looks.first.ras, looks.second.ras
    if isinstance(first, Absent) or isinstance(second, Absent):
        return None
    before = {replace(each, line=0) for each in first.statements}
    return replace(second, statements=tuple(each for each in second.statements if replace(each, line=0) in before))


def launched(looks: JobLooks) -> frozenset[int]:
    """Return the processes that launched operations of NCCL between the looks, by RAS."""
    first, second = looks.first.ras, looks.second.ras
    if isinstance(first, Absent) or isinstance(second, Absent):
        return frozenset()
    before = dict(first.launched)
    return frozenset(pid for pid, total in second.launched if total > before.get(pid, total))


def _moved(first: FlightRecords, second: FlightRecords) -> frozenset[int]:
    """Return the ranks that entered or finished something between the looks."""
    before = {dump.rank: _progress(dump) for dump in first.dumps}
    known = ((dump.rank, dump) for dump in second.dumps if dump.rank in before)
    return frozenset(rank for rank, dump in known if rank is not None and before[rank] != _progress(dump))


def _progress(dump: FlightDump) -> tuple[object, ...]:
    groups = tuple((group.name, group.enqueued, group.started, group.completed) for group in dump.groups)
    return dump.first_record, dump.state, dump.seq, groups


def stalled(job: LookedAt) -> list[Stalled]:
    """Return the stuck calls; those in which all ranks are with the arguments that differ, if any do."""
    return [_stalled_by_arguments(job, each) for each in _stalled_calls(job)]


def _stalled_by_arguments(job: LookedAt, call: Stalled) -> Stalled:
    inside = {rank: job.ranks[rank] for rank in call.waiting if rank in job.ranks}
    same = {function(call_of(each)) for each in inside.values()}
    if call.missing or call.apart or len(same) != 1 or call.waited_s < _UNKNOWN_USUAL_S:
        return call
    found = differing(name := same.pop(), {rank: arguments(each.stack) for rank, each in inside.items()})
    if not found:
        return call
    by_text = grouped((text, rank) for rank, text in sorted(found.items()))
    most = max(by_text.values(), key=len)
    odd = {*found} - ({*most} if len(found) < 2 * len(most) < 2 * len(found) else set())
    texts = "; ".join(f"{named(ranks)} {text}" for text, ranks in by_text.items())
    line = call_of(next(iter(inside.values()))).partition(" ")[2]
    return replace(
        call,
        waiting=tuple(sorted({*call.waiting} - odd)),
        missing=tuple(sorted(odd)),
        apart=f"all {len(inside)} ranks are in {name} {line} with different arguments: {texts}",
        reason=of_call(name),
    )


def _stalled_calls(job: LookedAt) -> list[Stalled]:
    if not job.second.dumps:
        return _stalled_without_records(job)
    found = judge(job.second)
    if any(isinstance(each, CameLate) for each in found):  # of a call that is over; who stands now is asked here
        found = tuple(roots(SideBySide(job.second)))
    made = [each for each in (_stalled(job, each) for each in found) if each and not {*each.waiting} & job.moved]
    known = {rank for each in made for rank in (*each.waiting, *each.missing)}
    apart = any(function(call_of(job.ranks[rank])) in _P2P for rank in known & job.ranks.keys())
    read = not job.moved and all(rank.stack for rank in job.ranks.values())
    if read and (apart or len(known) < len(job.ranks)) and (told := list(_stalled_by_stacks(job))):
        return told  # torch records no new_group, and of gloo no send and no members of a group
    if made and all(each.missing for each in made):
        return made
    return list(_unknown_group_calls(job)) or made or ([] if job.moved else _stalled_without_records(job))


def _stalled_without_records(job: LookedAt) -> list[Stalled]:
    return (
        list(_stalled_by_stacks(job))
        or list(_stalled_by_lines(job))
        or list(_stalled_by_ras(job))
        or list(_stalled_by_connections(job))
    )


def _unknown_group_calls(job: LookedAt) -> Iterator[Stalled]:
    """Yield a stuck call if every rank waits, some of them in a call of a group whose members torch has not recorded.

    Gloo records the members only of the first group that a rank made: nobody can name who is missing from such a call.
    """
    side = SideBySide(job.second)
    found = waits(side)
    calls = blocked(side, found)
    rarest = min({*calls.values()}, key=lambda call: [*calls.values()].count(call), default=None)
    if rarest is None or len({*calls.values()}) < 2 or len(calls) < job.world or job.moved:
        return
    lane = found[rarest].lane
    if lane is not None and not lane.group.ranks and lane.group.desc != "default_pg":
        ranks = {call: tuple(sorted(rank for rank, at in calls.items() if at == call)) for call in calls.values()}
        texts = [f"{named(each)} in {_at_line(job, found[call].entry, each)}" for call, each in ranks.items()]
        most = max(map(len, ranks.values()))
        odd = {rank for each in ranks.values() if len(each) < most or len(ranks) * most == len(calls) for rank in each}
        others = tuple(sorted(calls.keys() - odd))
        made = _stalled_since(job, found[calls[min(others or odd)]].entry, others, tuple(sorted(odd)))
        threads = in_threads(job, calls)
        apart = f"ranks are waiting in different calls: {'; '.join(texts)}{threads}"
        yield replace(made, apart=apart, reason="collectives-of-threads" if threads else "crossed-groups")


def _stalled(job: LookedAt, found: object) -> Stalled | None:
    if isinstance(found, NotEntered):
        unheard = (rank for rank in found.undumped if rank in job.ranks)
        return _stalled_since(job, found.entry, found.waiting, tuple(sorted({*found.missing, *unheard})))
    if isinstance(found, AllEntered):
        inside = tuple(sorted((*found.scheduled, *found.started, *found.ended)))
        return _stalled_since(job, found.entry, inside, found.undumped) if inside else None
    if isinstance(found, Parted) and not found.finished:
        return _parted(job, found)
    return _crossed(job, found) if isinstance(found, Crossed) else None


def _parted(job: LookedAt, found: Parted) -> Stalled:
    first, usual = found.others[0], found.usual
    places = [_line(job, each, ranks) for each, ranks in ((first, found.other_ranks), (usual, found.usual_ranks))]
    calls = f"{named(found.other_ranks)} called {first.call}{places[0]} and {named(found.usual_ranks)} {usual.call}"
    calls += places[1]
    made = _stalled_since(job, usual, found.usual_ranks, found.other_ranks)
    threads = in_threads(job, (*found.usual_ranks, *found.other_ranks))
    apart = f"{calls} as #{first.seq} of group {first.group}{threads}"
    if found.tied:  # none is the odd one
        made = replace(made, waiting=(), missing=tuple(sorted((*found.usual_ranks, *found.other_ranks))))
    inside = {function(call_of(job.ranks[rank])) for rank in (*made.waiting, *made.missing) if rank in job.ranks}
    why = _of_lone(job, made.missing, made.waiting) or _of_different(inside & {*OF_MODEL})
    reason = "collectives-of-threads" if threads else why
    return replace(made, apart=apart, reason=reason, evidence=(_seen(first), _seen(usual)))


def _crossed(job: LookedAt, found: Crossed) -> Stalled:
    both = [*zip(found.entries, found.ranks, strict=True)]
    calls = [f"{named(ranks)} in {_at_line(job, each, ranks)}" for each, ranks in both]
    made = _stalled_since(job, found.entries[0], (), tuple(sorted({rank for ranks in found.ranks for rank in ranks})))
    apart = f"{_IN_CIRCLE}: {'; '.join(calls)}"
    reason = "p2p-circle" if all(each.call.p2p for each in found.entries) else "crossed-groups"
    return replace(made, apart=apart, reason=reason, evidence=tuple(map(_seen, found.entries)))


def _at_line(job: LookedAt, entry: Entered, ranks: Sequence[int]) -> str:
    return f"{_where(entry)}{_line(job, entry, ranks)}"


def _line(job: LookedAt, entry: Entered, ranks: Sequence[int]) -> str:
    """Return the lines of the program at which ranks made a call, by torch's records or else by their stacks."""
    own = [job.ranks[rank] for rank in ranks if rank in job.ranks]
    frames = [entry.caller] if entry.caller else [_made_at(rank, entry.call.op) for rank in own]
    lines = dict.fromkeys(each.place for each in frames if each)
    return f" ({', '.join([*lines][:_MOST_LINES])})" if lines else ""


def _stalled_since(job: LookedAt, entry: Entered, waiting: tuple[int, ...], missing: tuple[int, ...]) -> Stalled:
    dump = job.dump(entry.rank)
    between = sorted(gaps(dump)) if dump else []
    usual_s = max(between[len(between) // 2], between[-2] / 2 if len(between) > 1 else 0.0) if between else 0.0
    own = job.ranks.get(entry.rank)
    now_s = max(own.times, default=job.time_s) if own else job.time_s  # clocks of nodes need not agree
    over = entry.state in ("ended", "completed")
    return Stalled(_where(entry), waiting, missing, now_s - entry.time_s, usual_s, (_seen(entry),), over=over)


def _made_at(rank: RankView, op: str) -> FlightFrame | None:
    """Return the line of a rank's program that called an operation: of the thread that is in it, if any is."""
    inside = (each.frame for each in rank.threads if each.call == op and function(call_of(rank)) != op)
    return next(inside, None) or caller(rank.stack)


def in_threads(job: LookedAt, ranks: Collection[int]) -> str:
    """Return which of these ranks are in a call with a further thread, as the end of a sentence; empty: none is."""
    also = [
        f"; rank {rank} is also in {each.call} ({each.frame.place}, thread {each.name})"
        for rank in sorted({*ranks} & job.ranks.keys())
        if call_of(job.ranks[rank])
        for each in job.ranks[rank].threads
        if each.call
    ]
    return "".join(also[:_MOST_LINES])


def gaps(dump: FlightDump) -> list[float]:
    """Return the seconds between the last calls of one rank."""
    return [(later - earlier) / 1e9 for earlier, later in pairwise(dump.column("created_ns")[-_MOST_GAPS:])]


def _stalled_by_stacks(job: LookedAt) -> Iterator[Stalled]:
    """Yield the calls in which ranks wait by their stacks, if their first threads did not even wake between the looks,
    or only to retry the store.

    If all ranks are in calls that differ, or all receive and none sends, they wait for each other: those that send or
    receive are missing from the collective of the others, however many they are.
    """
    inside = {number: call for number, rank in job.ranks.items() if (call := call_of(rank))}
    others = tuple(sorted(job.ranks.keys() - inside.keys()))
    passes = any(each.sent_bytes >= MOVES_BYTES for each in job.wires if {each.rank, each.peer} <= inside.keys())
    if not inside or not all(map(_rests, map(job.ranks.__getitem__, inside))):
        return
    by_call = grouped((call, number) for number, call in sorted(inside.items()))
    ranks = {call: tuple(numbers) for call, numbers in by_call.items()}
    where = max(ranks, key=lambda call: (function(call) not in _ONE_SIDED, len(ranks[call])))
    timed = [still_s for number in inside if (still_s := _still_s(job.ranks[number])) is not None]
    made = Stalled(where, ranks[where], others, min(timed, default=job.took_s), _UNKNOWN_USUAL_S if timed else 0.0)
    if not timed and others and all(_asks_for_work(job.ranks[number]) for number in inside):
        late = [_still_s(job.ranks[number]) or 0.0 for number in others]
        made = replace(made, waited_s=min(late), usual_s=_UNKNOWN_USUAL_S, launched=True)
    if (circle := _circle(job, inside)) and not (crossed(_peers(job, inside)) and not others):
        rest = tuple(sorted(inside.keys() - {*circle}))
        each = "; ".join(f"rank {rank} in {inside[rank]}{of_peer(job.ranks[rank].stack)}" for rank in circle)
        yield replace(made, waiting=rest, missing=circle, apart=f"{_IN_CIRCLE}: {each}", reason="p2p-circle")
    elif others:
        yield replace(made, waiting=tuple(sorted(inside)))
    elif len(inside) >= job.world and not (passes and len(ranks) > 1):  # else what was sent before still arrives
        yield from _with_all_inside(job, made, inside, ranks, bool(timed))


def _with_all_inside(
    job: LookedAt, made: Stalled, inside: Mapping[int, str], ranks: Mapping[str, tuple[int, ...]], timed: bool
) -> Iterator[Stalled]:
    """Yield the stuck call of a job whose ranks are all in calls, and those that are in others or have other peers."""
    texts = "; ".join(_describe_peers(job, call, each) for call, each in ranks.items())
    if found := next(_conflicting_ranks(job, inside, ranks), None) or _unmatched(job, inside):
        odd, why, reason = found
        rest = tuple(sorted(inside.keys() - {*odd}))
        yield replace(made, waiting=rest, missing=odd, apart=f"{why}: {texts}", reason=reason)
    elif len(ranks) > 1:
        tied = function(made.where) not in _ONE_SIDED and len({len(each) for each in ranks.values()}) == 1
        missing = tuple(sorted(inside if tied else inside.keys() - {*made.waiting}))
        threads = in_threads(job, inside)
        usual = _of_lone(job, missing, made.waiting) or _of_different({function(call) for call in ranks})
        reason = "collectives-of-threads" if threads else usual
        apart = f"ranks are waiting in different calls: {texts}{threads}"
        yield replace(made, waiting=() if tied else made.waiting, missing=missing, apart=apart, reason=reason)
    elif function(made.where) in _ONE_SIDED:
        apart = f"every rank is waiting in {made.where}, and none in its other side"
        yield replace(made, waiting=(), missing=made.waiting, apart=apart, reason="p2p-circle")
    elif timed:
        yield made


def _describe_peers(job: LookedAt, call: str, ranks: Sequence[int]) -> str:
    """Return who is in a call; of sends and receives each rank with its peer."""
    if function(call) not in (*_P2P, WAIT):
        return f"{named(ranks)} in {call}"
    return "; ".join(f"rank {each} in {call}{of_peer(job.ranks[each].stack)}" for each in ranks)


def _of_lone(job: LookedAt, odd: Sequence[int], others: Sequence[int]) -> str:
    """Return that one rank makes a call of its own while all others are in backward; empty: it is not so."""
    own, *rest = [function(call_of(job.ranks[rank])) for rank in (*odd, *others) if rank in job.ranks] or [""]
    lone = len(odd) == 1 and len(rest) == len(others) and own and own not in OF_MODEL
    return "lone-call" if lone and {*rest} == {"backward"} else ""


def _of_different(functions: Collection[str]) -> str:
    """Return why ranks are in calls of these functions; empty: the usual causes."""
    telling = next((of_call(each) for each in (*OF_MODEL, "new_group") if each in functions), "")
    return telling or ("crossed-groups" if len(functions) == 1 else "")


def _peers(job: LookedAt, inside: Mapping[int, str]) -> Mapping[int, Mapping[str, str]]:
    """Return the arguments of the ranks that are in a send or receive."""
    return {number: arguments(job.ranks[number].stack) for number, call in inside.items() if function(call) in _P2P}


def _circle(job: LookedAt, inside: Mapping[int, str]) -> tuple[int, ...]:
    """Return ranks that each wait in a send or receive for the next, which is not in its other side; empty: none."""
    peers = _peers(job, inside)
    aims = {rank: (name, values[name]) for rank, values in peers.items() for name in ("src", "dst") if name in values}
    after = {rank: int(to) for rank, (_, to) in aims.items() if to.isdecimal()}
    after = {
        rank: to
        for rank, to in after.items()
        if to in after and not (after[to] == rank and aims[to][0] != aims[rank][0])
    }
    for first in sorted(after):
        path = [first]
        while (following := after.get(path[-1])) is not None and following not in path:
            path.append(following)
        if following is not None:
            return tuple(path[path.index(following) :])
    return ()


def _unmatched(job: LookedAt, inside: Mapping[int, str]) -> tuple[tuple[int, ...], str, str] | None:
    """Return the ranks that send or receive, and wait for one that is in a collective instead; None: none are known."""
    aims = {
        rank: int(peer)
        for rank, values in _peers(job, inside).items()
        if (peer := values.get("src", values.get("dst", ""))).isdecimal()
    }
    ends = {peer for peer in aims.values() if peer in inside and function(inside[peer]) not in (*_P2P, WAIT)}
    for end in sorted(ends):
        odd, more = {end}, {end}
        while more := {rank for rank, peer in aims.items() if peer in more} - odd:
            odd |= more
        first = min(rank for rank, peer in aims.items() if peer == end)
        side = "receives from" if function(inside[first]).endswith("recv") else "sends to"
        why = f"rank {first} {side} rank {end}, which is in {function(inside[end])}"
        return tuple(sorted(odd)), why, "p2p-unmatched"
    return None


def _conflicting_ranks(
    job: LookedAt, inside: Mapping[int, str], ranks: Mapping[str, Sequence[int]]
) -> Iterator[tuple[tuple[int, ...], str, str]]:
    """Yield ranks whose arguments do not fit those of the others in their calls, and why."""
    for call, of in ranks.items():
        if mixed := _mixed_groups(job, call, of):
            yield tuple(of), mixed, "mixed-groups"
        given = {each: arguments(job.ranks[each].stack) for each in of}
        if len(ranks) > 1 and (found := differing(function(call), given)):
            texts = ", ".join(f"rank {rank} {text}" for rank, text in found.items())
            yield tuple(found), f"ranks gave {function(call)} different arguments ({texts})", of_call(function(call))
    if wrong := crossed(_peers(job, inside)):
        yield (wrong[0],), *wrong[1:]


def _mixed_groups(job: LookedAt, call: str, ranks: Sequence[int]) -> str:
    """Return that some ranks are in a call of the default group and some, at one line, in that of another."""
    by_group = grouped((arguments(job.ranks[each].stack).get("group", ""), each) for each in ranks)
    if not {"given", "default"} <= by_group.keys():
        return ""
    default, given = named(by_group["default"]), named(by_group["given"])
    return f"ranks are in {call} of different groups: {default} in the default group, {given} in a group of the program"


def _stalled_by_lines(job: LookedAt) -> Iterator[Stalled]:
    """Yield that most ranks wait in C at one line, as in ``work.wait()``, and the others do nothing, elsewhere.

    No frame of torch is there. A lock of the program looks the same, but no other process can hold that.
    """
    lines = {number: line for number, rank in job.ranks.items() if (line := _waits_in_c(rank))}
    where = max(lines.values(), key=[*lines.values()].count, default="")
    waiting = tuple(sorted(number for number, line in lines.items() if line == where))
    missing = tuple(sorted(job.ranks.keys() - {*waiting}))
    timed = [still_s for number in waiting if (still_s := _still_s(job.ranks[number])) is not None]
    if missing and len(waiting) > len(missing) and timed and len(job.ranks) == job.world:
        yield Stalled(f"a wait ({where})", waiting, missing, min(timed), _UNKNOWN_USUAL_S)


def _waits_in_c(rank: RankView) -> str:
    """Return the line of the program at which its first thread waits for another one in C, at both looks."""
    at, own = rank.second, caller(rank.stack) if rank.same_stack else None
    if own is None or isinstance(at, Absent) or not rank.still or at.call != "futex" or rank.stack[0] != own:
        return ""
    return own.place


def _stalled_by_connections(job: LookedAt) -> Iterator[Stalled]:
    """Yield that ranks read from connections of their program to ranks that themselves wait for somebody to connect."""
    sockets = {(wire.rank, f"socket:[{wire.first.inode}]"): wire.peer for wire in job.wires}
    peers = {
        number: peer
        for number, rank in job.ranks.items()
        if isinstance(at := rank.first, LiveRank) and at.call in READS and rank.still
        if (peer := sockets.get((number, at.file))) not in (None, number)
    }
    listens = {
        number for number, rank in job.ranks.items() if isinstance(rank.second, LiveRank) and rank.second.listens
    }
    held = {peer for peer in peers.values() if peer is not None and peer in listens}
    waiting = tuple(sorted(number for number, peer in peers.items() if peer in held))
    if waiting:
        lines = {str(own) for number in waiting if (own := caller(job.ranks[number].stack))}
        timed = [still_s for number in waiting if (still_s := _still_s(job.ranks[number])) is not None]
        where = f"{OWN_RECEIVE} ({min(lines).rpartition('/')[2] if lines else 'line unknown'})"
        yield Stalled(where, waiting, tuple(sorted(held)), min(timed, default=job.took_s), _UNKNOWN_USUAL_S)


def _stalled_by_ras(job: LookedAt) -> Iterator[Stalled]:
    """Yield the operations that some ranks have launched and others not, by NCCL's RAS, if no count grew.

    Few ranks that launched what no other has are in another operation; if more of one is launched by few, the others
    may only be late.
    """
    for answer in job.ras:
        for (comm, operation), statements in by_operation(answer).items():
            usual = max(statements, key=lambda each: each.nranks)
            few = [each for each in statements if each.nranks < usual.nranks]
            behind = [each for each in few if int(each.value) < int(usual.value)]
            other = [] if behind or int(usual.value) else few
            found = behind or other
            missing = tuple(sorted({rank for each in found for one in each.processes for rank in _ranks_of(job, one)}))
            if missing:
                timed = [_still_s(job.ranks[rank]) for rank in missing if rank in job.ranks]
                waited_s = min((each for each in timed if each is not None), default=job.took_s)
                where = f"{operation or 'an operation'} #{usual.value} (communicator {comm})"
                waiting = tuple(sorted(job.ranks.keys() - {*missing}))
                apart = (
                    f"{named(missing)} launched {operation} #{found[0].value}, which no other rank has" if other else ""
                )
                where = f"another operation (communicator {comm})" if other else where
                read = tuple(seen(answer.source, each.text, each.line or None) for each in found)
                yield Stalled(where, waiting, missing, waited_s, _UNKNOWN_USUAL_S, read, apart, launched=True)


def _ranks_of(job: LookedAt, process: RasProcess) -> tuple[int, ...]:
    """Return the rank that RAS calls so, by its process's number, if only one node that was looked at has that."""
    found = tuple(number for number, rank in job.ranks.items() if rank.process and rank.process.pid == process.pid)
    return found if len(found) == 1 else ()


def _rests(rank: RankView) -> bool:
    """Return whether a rank in a call makes no progress: it did not even wake between the looks, or only to ask again
    whether the store is there or its operation is over.
    """
    return rank.still or _tries_again(rank) or (_asks_for_work(rank) and activity(rank) == "idle")


def _asks_for_work(rank: RankView) -> bool:
    return bool(rank.stack) and getattr(rank.stack[0], "values", {}).get("asks") == "polls-work"


def _still_s(rank: RankView) -> float | None:
    """Return for how long a rank has waited, if known: for a store that it cannot reach, as long as it idled."""
    at = rank.second
    if isinstance(at, Absent) or _asks_for_work(rank):
        return None
    if not _tries_again(rank):
        return at.still_s
    return None if at.age_s is None else max(at.age_s - at.cpu_s, 0.0)


def _tries_again(rank: RankView) -> bool:
    """Return whether a rank tries again and again to reach its store, and sleeps in between as C++ does."""
    looks = [each for each in (rank.first, rank.second) if not isinstance(each, Absent)]
    return function(call_of(rank)) == INIT and any(each.native for each in looks) and activity(rank) == "idle"


def call_of(rank: RankView) -> str:
    """Return the function of torch.distributed that a rank is in at both looks: ``all_reduce (train.py:40)``."""
    stack = rank.stack if rank.same_stack else ()
    own = caller(stack)
    call = next((frame.name for frame in reversed(stack) if frame.filename.endswith(C10D)), "")
    if not call and own is not None and activity(rank) == "idle":  # nothing computes
        call = _other_call(stack, own)
    return f"{call} ({own.place})" if call and own else call


def _other_call(stack: Sequence[FlightFrame], own: FlightFrame) -> str:
    """Return in which other way an idle rank waits for others; empty: in none that is known.

    It waits for an operation that it has started, in backward for the gradients of others, as DDP and FSDP do, or in
    functions of torch.distributed that call C++.
    """
    values = getattr(stack[0], "values", {})
    if values.get("asks") == "polls-work" or ("work" in values and "asks" not in values):
        return WAIT
    if any(_is_backward(frame) for frame in stack):
        return "backward"
    if stack[0].filename.endswith(_WRAPPER):
        return "forward"
    inner = reversed(stack[: [*stack].index(own)])
    return next((frame.name for frame in inner if any(part in frame.filename for part in _COLLECTIVES)), "")


def _is_backward(frame: FlightFrame) -> bool:
    return frame.name == "_engine_run_backward" and frame.filename.endswith("/torch/autograd/graph.py")


def function(where: str) -> str:
    """Return the function that a rank is in: the first word of its position."""
    return where.partition(" ")[0]


def named(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0-5,7``, ``process 4242``."""
    known = [rank for rank in ranks if rank >= 0]
    parts = [fold_ranks(known)] if known else []
    return ", ".join((*parts, *(f"process {-rank}" for rank in ranks if rank < 0)))


def _where(entry: Entered) -> str:
    return f"{entry.call.op} #{entry.seq} (group {entry.group})"


def _seen(entry: Entered) -> Evidence:
    return seen(entry.source, f"rank {entry.rank}: {_where(entry)}, {entry.state}{entry.place}")
