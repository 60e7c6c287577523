"""Judge the state of a running job from two looks at its ranks. Pure; any subset of the nodes will do.

torch's records show which rank waits in which call for whom, and since when; the kernel shows whether the others are at
work. A rank that others wait for is stuck only if it does nothing, or nothing new, for longer than is usual: a
checkpoint, a compilation or a slow file is work. A call in which a rank moved between the looks is not stuck.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain

from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.job.meeting import Meetings
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import SLURM_JOB, JobLook, JobLooks, JobState, LocalRanks
from ncclprobe.logs.collectives import caller
from ncclprobe.logs.job.activity import (
    Activity,
    RankView,
    asleep_s,
    at_its_end,
    blocked_s,
    child_naps,
    counted,
    doing,
    evidence,
    heard,
    may_wait_for_work,
    pauses,
    received,
    waits_for_key,
    waits_outside,
    wires,
    with_peers,
)
from ncclprobe.logs.job.arguments import arguments, of_peer
from ncclprobe.logs.job.arrival import Arrival, agent_rows, arrival, arrival_of_unnumbered, misnumbered
from ncclprobe.logs.job.calls import (
    INIT,
    MOVES_BYTES,
    OF_MODEL,
    OWN_RECEIVE,
    WAIT,
    LookedAt,
    Stalled,
    call_of,
    confirmed,
    function,
    gaps,
    in_threads,
    launched,
    looked_at,
    named,
    stalled,
)
from ncclprobe.logs.job.gpus import gpus_of
from ncclprobe.logs.job.reasons import OTHER_GROUPS, POLLS, Doing, of_call, of_debugger, of_stack
from ncclprobe.model.causes import ClassName, JobVerdict, RankClass
from ncclprobe.model.findings import Evidence
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import agreeing, size
from ncclprobe.model.values import grouped

_LEAST_S: Mapping[Activity, float] = {"idle": 3.0, "spins": 180.0}
"""How long others wait at least for a rank that does nothing, or nothing new, until it is called stuck."""
_INSIDE_LEAST_S, _INSIDE_NO_GPU_S, _QUIET_LEAST_S, _PAUSE_S = 30.0, 15.0, 60.0, 10.0
"""The same for a call that all ranks have entered, without GPUs whose kernels it may wait for, for ranks outside any
call, and for how long these may be idle."""
_POLLS_LEAST_S = 15.0
"""How long others wait at least for a rank that asks again and again with pauses: it may be a server without work."""
_SILENT_LEAST_S = 9.0
"""The same of such a call if nothing arrives over a connection."""
_OF_USUAL, _OF_LONGEST = 3.0, 5.0
_MOST_EVIDENCE = 6
_HELD: tuple[ClassName, ...] = ("dead or gone", "desync", "stuck outside", "stuck inside", "not arrived")
_ORDER: tuple[ClassName, ...] = (*_HELD, "slow, not stuck", "cannot tell", "waiting", "working")
_PREPARE = "`ncclprobe attach --prepare` prints what to put into the program"
_STEP_NODES = "SLURM_STEP_NUM_NODES"
_CALL = " #"
"""Before the number of a call: ``all_reduce #51``."""
_STACKS = "`ncclprobe attach --stacks` shows the lines of the program (pip install py-spy)"


def stand(nodes: Mapping[str, tuple[LocalRanks, JobLooks]], meetings: Mapping[str, Meetings] | None = None) -> JobState:
    """Return the state of the job whose ranks are on `nodes` and meet as `meetings` say."""
    ranks: dict[int, RankView] = {}
    for node, (here, looks) in nodes.items():
        ranks |= {number: RankView(number, node, oom_kills=_oom_kills(looks)) for number in here.absent}
        ranks |= {each.rank: each for each in _seen(node, here, looks)}
    both = [looks for _, looks in nodes.values()]
    records = [_joined([getattr(looks, name) for looks in both]) for name in ("first", "second")]
    answers = [each for looks in both if (each := confirmed(looks)) is not None]
    grew = {pid for looks in both for pid in launched(looks)}
    by_node = {node: looks for node, (_, looks) in nodes.items()}
    between = wires(by_node, ranks)
    more = sum(here.gone for here, _ in nodes.values())
    job = looked_at(
        ranks, records[0], records[1], answers, grew, between, heard(both, between), more, any(map(_has_gpus, both))
    )
    if in_init := arrival(job, by_node, meetings or {}) or arrival_of_unnumbered(job):
        rows = tuple(merged(_classify_in_init(job, in_init)))
        return JobState(rows, _answer(job, rows, None, in_init.message), "init_process_group", in_init.arrived)
    found = stalled(job)
    first = next((each for each in found if each.missing or each.apart), found[0] if found else None)
    counts = {node: tuple(counted(node, looks)) for node, looks in by_node.items()}
    ended = (
        RankClass("dead or gone", (), (node,), doing=f"{here.gone} of {job.world} ranks no longer have a process")
        for node, (here, _) in nodes.items()
        if here.gone
    )
    rows = tuple(merged(chain(_classes(job, found, counts), ended)))
    waiting = first.waiting if first else ()
    return JobState(rows, _answer(job, rows, first), first.where if first else "", waiting)


def of_agents(nodes: Mapping[str, tuple[LocalRanks, Meetings]]) -> JobState:
    """Return the state of a job whose agents have started no rank."""
    rows = tuple(row for node, (here, met) in nodes.items() for row in agent_rows(node, here.agents, met))
    time_s = max(here.time_s for here, _ in nodes.values())
    at = datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds")
    return JobState(rows, JobVerdict(_word(rows, None), "; ".join(each.doing for each in rows), at))


def _classify_in_init(job: LookedAt, found: Arrival) -> Iterator[RankClass]:
    """Yield a row for each rank of a job that is in init_process_group."""
    for number in sorted({*found.arrived, *found.others}):
        name, text = found.others.get(number, ("waiting", Doing(f"has arrived at {found.where}")))
        if number in job.ranks or number in found.others:  # below 0: one whose number is not known
            yield _row(job, number, name, text, found.evidence.get(number, ()))


def _seen(node: str, here: LocalRanks, looks: JobLooks) -> Iterator[RankView]:
    gpus, came = gpus_of(here, looks), received(node, here, looks)
    for at, process in enumerate(here.ranks):
        first, second = looks.first.processes[at], with_peers(looks.second.processes[at], looks.second, here.ranks)
        stacks = [look.stacks[at] for look in (looks.first, looks.second) if at < len(look.stacks)]
        read = tuple(each for each in stacks if isinstance(each, tuple))
        unread = next((each.why for each in stacks if isinstance(each, Absent)), "")
        number = -process.pid if process.rank is None else process.rank
        said = looks.second.servers[at]
        children = looks.second.of_children
        gpu, trouble = gpus.get(process.pid, ("", ""))
        kills, (bytes_in, hears) = _oom_kills(looks), came.get(process.pid, (0, False))
        threads = next((look.threads[at] for look in (looks.second, looks.first) if any(look.threads[at:])), ())
        yield RankView(
            number, node, process, first, second, said, read, kills, unread, children, gpu, trouble, bytes_in, hears,
            threads,
        )  # fmt: skip


def _oom_kills(looks: JobLooks) -> int:
    return max((each.oom_kills for each in looks.second.processes if isinstance(each, LiveRank)), default=0)


def _has_gpus(looks: JobLooks) -> bool:
    gpus = looks.second.gpus
    return not (isinstance(gpus, Absent) and gpus.refused == "Missing")  # without a driver there are none


def _joined(looks: Sequence[JobLook]) -> FlightRecords:
    return FlightRecords(tuple(dump for look in looks for dump in look.records.dumps))


# The class of each rank.


def _classes(
    job: LookedAt, found: Sequence[Stalled], counts: Mapping[str, tuple[Evidence, ...]]
) -> Iterator[RankClass]:
    placed: dict[int, Stalled] = {}
    for missing in (True, False):
        for each in found:
            for number in each.missing if missing else each.waiting:
                placed.setdefault(number, each)
    quiet = not found and all(_quiet(job, number) for number in job.ranks)
    for number in sorted(job.ranks.keys() | placed.keys()):
        call = placed.get(number)
        name, text = (
            _classify_outside(job, number, quiet, found) if call is None else _classify_in_call(job, number, call)
        )
        nics = counts[job.ranks[number].node] if name == "stuck inside" and number in job.ranks else ()
        yield _row(job, number, name, text, (*nics, *(call.evidence if call else ())))


def _classify_in_call(job: LookedAt, number: int, call: Stalled) -> tuple[ClassName, Doing]:
    """Return the class of a rank that is in a stuck call, or is missing from one, and its activity."""
    rank, what = job.ranks.get(number), job.activities.get(number, "unseen")
    if rank is None and number in call.missing:
        unheard = [wire for wire in job.wires if wire.silent and wire.rank in call.waiting and wire.peer is None]
        return "cannot tell", Doing(f"was not examined: attach on its node too{f'; {unheard[0]}' if unheard else ''}")
    if rank is not None and what == "gone" and rank.process is None and function(call.where) == INIT:
        wrong = misnumbered(job)
        text = f"has not connected: no process of it on {rank.node}{wrong.text}"
        return "not arrived", Doing(text, wrong.reason or "no-process")
    if rank is not None and what == "gone":
        return "dead or gone", doing(rank, what)
    if rank is not None and what == "stopped":
        return "stuck outside" if number in call.missing else "stuck inside", doing(rank, what)
    if number in call.missing and rank is not None:
        return _missing(job, rank, what, call)
    return _waiting(job, number, call)


def _missing(job: LookedAt, rank: RankView, what: Activity, call: Stalled) -> tuple[ClassName, Doing]:
    text = doing(rank, what)
    if call.apart:
        return "desync", Doing(call.apart, call.reason)
    own = call_of(rank)
    if own and function(own) not in (function(call.where), WAIT):
        reason = of_call(function(own)) if function(own) in OF_MODEL else ""
        return "desync", Doing(f"is waiting in {own}{of_peer(rank.stack)}, which others have not called", reason)
    serves = isinstance(rank.second, LiveRank) and rank.second.listens and not of_debugger(rank.stack)
    if what == "idle" and serves and OWN_RECEIVE not in call.where:
        return "cannot tell", text  # a server without requests looks the same, and is well
    unheard = rank.silent and not call.launched and not waits_outside(rank) and (own or not rank.stacks)
    works = any(job.activities.get(other) == "busy" for other in call.missing)
    if (works and may_wait_for_work(rank)) or (
        what == "idle" and (child_naps(rank) or _met(job, rank.rank, job.took_s))
    ):
        return "slow, not stuck", text
    if what == "unseen" or (what in _LEAST_S and unheard):  # a late server's rank may be in the call, and spin there
        return "cannot tell", text
    changes = what == "spins" and rank.stacks and not rank.same_stack
    polls = _POLLS_LEAST_S if pauses(rank) else 0.0
    long_enough = what in _LEAST_S and call.waited_s >= max(_LEAST_S[what], polls, _OF_USUAL * call.usual_s)
    return "stuck outside" if long_enough and not changes else "slow, not stuck", text


def _waiting(job: LookedAt, number: int, call: Stalled) -> tuple[ClassName, Doing]:
    if call.apart:
        return "waiting", Doing(f"is waiting in {call.where}")
    if others := (*call.missing, *job.held(call.waiting)):
        return "waiting", Doing(f"is waiting {call.place} for {named(others)}")
    return _classify_inside(job, number, call)


def _classify_inside(job: LookedAt, number: int, call: Stalled) -> tuple[ClassName, Doing]:
    """Return the class of a rank in a call that all ranks have entered, and over whose links no data arrives."""
    text, silent = f"is in {call.where}, as all are", job.silent(call.waiting)
    ill = {at: trouble for at in call.waiting if at in job.ranks and (trouble := job.ranks[at].trouble)}
    given = {arguments(job.ranks[rank].stack).get("group") for rank in call.waiting if rank in job.ranks}
    threads = in_threads(job, call.waiting)
    text += threads or f"; {OTHER_GROUPS}" * (given == {"given"})
    least_s = _INSIDE_LEAST_S if job.gpus else _INSIDE_NO_GPU_S
    if call.waited_s < max(_SILENT_LEAST_S if silent or ill else least_s, _OF_USUAL * call.usual_s):
        return "cannot tell" if _still(job, call) else "working", Doing(text)
    held = [*ill] or sorted({end for wire in silent for end in (wire.rank, wire.peer) if end is not None})
    if held and number not in held:
        return "waiting", Doing(f"{text}, for {named(held)}")
    if held:
        return "stuck inside", Doing(f"{text}; {ill.get(number) or silent[0]}", "links")
    sends = [wire for wire in job.wires if wire.peer in call.waiting and wire.sent_bytes >= MOVES_BYTES]
    if not sends:
        on_gpus = given != {"given"} and any(rank.gpu for rank in job.ranks.values())
        usual = "awaited-operation" if function(call.where) == WAIT else "links" if on_gpus else "groups"
        usual = "collectives-of-threads" if threads else of_call(function(call.where)) or usual
        return "stuck inside", Doing(text, usual)
    most = max(sends, key=lambda wire: wire.second.unacknowledged_bytes)
    return "slow, not stuck", Doing(f"{text}; {most}: {size(most.sent_bytes)} between the two samples")


def _still(job: LookedAt, call: Stalled) -> bool:
    """Return whether a call that all ranks have entered shows no progress: no rank woke, and no byte passed."""
    if call.waited_s < _PAUSE_S:
        return False
    sent = any(wire.sent_bytes for wire in job.wires if wire.rank in call.waiting and wire.peer in call.waiting)
    return not sent and all(rank in job.ranks and job.ranks[rank].still for rank in call.waiting)


def _classify_outside(job: LookedAt, number: int, quiet: bool, found: Sequence[Stalled]) -> tuple[ClassName, Doing]:
    """Return the class of a rank that is in no stuck call, and its activity."""
    what = job.activities[number]
    text = doing(job.ranks[number], what)
    if at_its_end(job.ranks[number]):
        return "stuck outside", text
    if what == "gone" and any(map(at_its_end, job.ranks.values())):
        return "working", Doing("has ended")
    if what in ("gone", "stopped"):
        return "dead or gone" if what == "gone" else "stuck outside", text
    if quiet and all(waits_outside(rank) for rank in job.ranks.values()):
        return "stuck outside", text
    rank = job.ranks[number]
    if what == "idle" and max(asleep_s(rank), blocked_s(rank) if _none_works(job) else 0) >= _SILENT_LEAST_S:
        return "stuck outside", text
    held = job.held(tuple(job.ranks))
    if held and job.ras and number not in job.moved:
        return "waiting", Doing(f"launched nothing between the two samples, and {named(held)} makes no progress")
    if number in job.moved or what == "busy" or _called(job, number) or _met(job, number):
        return "working", Doing("is at work")
    if (waits_for_key(rank) or of_stack(rank.stack).startswith(POLLS)) and "busy" in job.activities.values():
        return "slow, not stuck", text
    silent = () if held else [wire for wire in job.wires if wire.silent and number in (wire.rank, wire.peer)]
    for wire in silent:
        long = wire.peer is not None and wire.second.heard_s >= _SILENT_LEAST_S
        return "stuck inside" if long else "cannot tell", Doing(f"{text.text}; {wire}", "links")
    return "cannot tell", text


def _none_works(job: LookedAt) -> bool:
    """Return whether all ranks of the job were examined, and none did anything between the looks."""
    return len(job.ranks) >= job.world and not job.moved and {*job.activities.values()} == {"idle"}


def _called(job: LookedAt, number: int) -> bool:
    """Return whether a rank has called collectives, the last not much longer ago than usual: it may pause."""
    dump = job.dump(number)
    return dump is not None and len(dump) > 0 and not _quiet(job, number, _PAUSE_S)


def _met(job: LookedAt, number: int, within_s: float = _PAUSE_S) -> bool:
    """Return whether a rank that does nothing now ran within some seconds, and heard from another rank."""
    at = job.ranks[number].second
    if isinstance(at, Absent) or at.still_s is None or job.activities[number] != "idle":
        return False
    return max(job.heard.get(number, math.inf), at.still_s) < within_s


def _quiet(job: LookedAt, number: int, least_s: float = _QUIET_LEAST_S) -> bool:
    """Return whether a rank does nothing, and has called nothing for much longer than it ever did before."""
    dump = job.dump(number)
    if dump is None or not len(dump) or number in job.moved or job.activities[number] != "idle":
        return False
    since_s = job.time_s - dump.column("created_ns")[-1] / 1e9
    return since_s >= max(least_s, _OF_LONGEST * max(gaps(dump), default=0.0))


def _row(job: LookedAt, number: int, name: ClassName, found: Doing, more: Sequence[Evidence]) -> RankClass:
    rank, ranks = job.ranks.get(number), (number,) if number >= 0 else ()
    kind = found.reason if name in _HELD else ""
    if rank is None:
        return RankClass(name, ranks, doing=found.text, evidence=tuple(more), reason=kind)
    process = (f"{rank.node}:{rank.process.pid}",) if rank.process else ()
    return RankClass(name, ranks, (rank.node,), process, found.text, (*evidence(rank), *more), kind)


def merged(rows: Iterator[RankClass]) -> Iterator[RankClass]:
    """Yield the ranks of one class that do the same, but for numbers, as one row, what is worst first."""
    groups = grouped(((each.name, _alike(each)), each) for each in rows)
    for group in sorted(groups.values(), key=lambda group: _ORDER.index(group[0].name)):
        ranks, nodes, processes, read = (
            tuple(dict.fromkeys(one for each in group for one in getattr(each, name)))
            for name in ("ranks", "nodes", "processes", "evidence")
        )
        others = len({each.doing for each in group}) > 1 and len(ranks) - len(group[0].ranks)
        first = agreeing(group[0].doing, len(ranks) or len(processes) or 1)
        text = f"{first}; {others} more alike" if others else first
        yield RankClass(group[0].name, ranks, nodes, processes, text, read[:_MOST_EVIDENCE], group[0].reason)


def _alike(row: RankClass) -> str:
    """Return what ranks do without the numbers of processes, rates and files; the number of a call stays."""
    if _CALL in row.doing or row.name == "desync":
        return row.doing
    return "".join(each for each in row.doing if not each.isdigit())


# The answer.


def _answer(job: LookedAt, rows: Sequence[RankClass], call: Stalled | None, in_init: str = "") -> JobVerdict:
    at = datetime.fromtimestamp(job.time_s, timezone.utc).isoformat(timespec="seconds")
    word = _word(rows, call)
    message = in_init or (_describe_idle(job, rows, word) if call is None else _describe_call(job, rows, call))
    calls = sum(dump.first_record + len(dump) for dump in job.second.dumps)
    return JobVerdict(word, message, at, round(job.took_s, 1), _missing_evidence(job, word), calls, _sources(job))


def _missing_evidence(job: LookedAt, word: str) -> str:
    """Return what was not examined and would have added evidence: other nodes, torch's worker server, the stacks."""
    ranks = [each for each in job.ranks.values() if each.process]
    silent = not job.second.dumps and all(each.silent for each in ranks)
    unread = next((f"stacks were not read: {each.unread}" for each in ranks if each.unread), _STACKS)
    no_stacks = unread if (silent or word in ("STUCK", "CANNOT TELL")) and not any(e.stacks for e in ranks) else ""
    return "; ".join(filter(None, (_other_nodes(job), _PREPARE if silent else "", no_stacks)))


def _sources(job: LookedAt) -> str:
    """Return how many ranks could be examined: ``worker server: 3 of 3 ranks answer; stacks of 3 of 3 read``."""
    ranks = [each for each in job.ranks.values() if each.process]
    number = sum(not each.silent for each in ranks)
    read = sum(bool(each.stacks) for each in ranks)
    words = [f"worker server: {number} of {len(ranks)} ranks answer"] if number else []
    return "; ".join([*words, *([f"stacks of {read} of {len(ranks)} read"] if read else [])])


def _nodes(job: LookedAt) -> tuple[int, int]:
    """Return how many nodes were looked at, and how many the job has by its launcher, 0: it does not say."""
    processes = [each.process for each in job.ranks.values() if each.process]
    steps = (each.settings.get(_STEP_NODES, "") for each in processes)  # RANK set by hand, in a task of srun
    told = [each.launch.nnodes or 0 for each in processes] + [int(step[:9]) for step in steps if step.isdecimal()]
    return len({each.node for each in job.ranks.values()}), max(told, default=0)


def _other_nodes(job: LookedAt) -> str:
    """Return how to look at all nodes of the job, if only some were looked at."""
    nodes, of = _nodes(job)
    if nodes >= of:
        return ""
    settings = next((each.process.settings for each in job.ranks.values() if each.process), {})
    if not (slurm := settings.get(SLURM_JOB)):
        return f"{nodes} of {of} nodes were examined: attach on each with --keep, and explain these files together"
    return (
        f"{nodes} of {of} nodes of job {slurm} were examined: `srun --jobid={slurm} --overlap -N {of} "
        f"--ntasks-per-node=1 ncclprobe attach --keep DIR`, and `ncclprobe explain DIR`"
    )


def _word(rows: Sequence[RankClass], call: Stalled | None) -> str:
    names = {each.name for each in rows}
    starts_or_ends = call is None and names & {*_HELD} == {"dead or gone"} and "working" in names
    if names & {*_HELD} and not starts_or_ends:
        return "STUCK"
    if "cannot tell" in names:
        return "CANNOT TELL"
    return "SLOW" if "slow, not stuck" in names else "WORKING"


def _describe_idle(job: LookedAt, rows: Sequence[RankClass], word: str) -> str:
    looked = f"{len(job.ranks)} of {job.world} ranks were examined"
    if word == "WORKING":
        found = (
            f"; rank {n} is at {str(at).rpartition('/')[2]}"
            for n, each in job.ranks.items()
            if (at := caller(each.stack))
        )
        return f"{looked}, and none is waiting for a rank that makes no progress{next(found, '')}"
    held = [each for each in rows if each.name in _HELD]
    if word == "STUCK":
        number = sum(len(each.ranks or each.processes) for each in held)
        return f"{looked}: {' '.join(filter(None, (_subject(held), agreeing(held[0].doing, number or 1))))}"
    if len(rows) == 1 and len(rows[0].ranks) > 1 and len(rows[0].ranks) == job.world:
        return f"all {job.world} ranks {rows[0].doing}; it is unknown whether this ends"
    return f"{looked}, and it is unknown which rank is waiting for which"


_LASTING = {"are waiting": "have been waiting", "is waiting": "has been waiting"}
"""What goes on now, and the same with its duration."""


def _describe_call(job: LookedAt, rows: Sequence[RankClass], call: Stalled) -> str:
    since = f" for {call.waited_s:.0f} s" if call.waited_s >= 1 and not call.launched else ""
    if call.apart:
        what, colon, each = call.apart.partition(": ")
        for now, until_now in _LASTING.items() if since else ():
            what = what.replace(now, until_now)
        return f"{what}{since}{colon}{each}"
    held = (*call.missing, *job.held(call.waiting))
    known = {rank for row in rows if row.name != "cannot tell" for rank in row.ranks}  # the others are not blamed
    held = tuple(number for number in held if number in known & {*job.ranks}) or held
    if not held:
        return f"all {len(call.waiting)} ranks {'have been' if since else 'are'} in {call.where}{since}"
    nodes = dict.fromkeys(job.ranks[number].node for number in held if number in job.ranks)
    waiting = len({*call.waiting} - {*held})
    on = f" on {', '.join(nodes)}" if nodes else ""
    waits = agreeing(f"has been waiting{since}" if since else "is waiting", waiting)
    return f"{waiting} of {job.world} ranks {waits} {call.place} for {named(held)}{on}"


def _subject(rows: Sequence[RankClass]) -> str:
    ranks = [rank for each in rows for rank in each.ranks]
    return named(ranks) or ", ".join(process for each in rows for process in each.processes)
