"""Judge torch's flight records: ranks that called something different, did not join, or joined late.

Also the stacks of a job that hangs: ranks whose stacks differ.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.checks.log import cause
from ncclprobe.checks.log.lines import JOB, failed
from ncclprobe.facts.files.flight_child import dump
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.logs.collectives import AllEntered, CameLate, Crossed, Entered, NotEntered, Parted, judge
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.stacks import ProcessStack, Stacks, read_stacks
from ncclprobe.model.findings import Certainty, Evidence, Finding, Occurrence, fail, note, seen, warn
from ncclprobe.model.hostlist import fold_ranks
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import grouped, replace

_STATES = {"?": "scheduled", "*": "started", "!": "started", "": "completed"}


def recorded(
    ranks: Mapping[int, str], world: int = 0, backend: str = "nccl", timeout_s: float = 600.0, first: int = 0
) -> FlightRecords:
    """Return flight records from what each rank called, such as ``all_reduce:8 all_gather:8:Half* 1/barrier?``.

    A word is the operation, its elements and their type; ``1/`` before it is the group (with its ranks: ``1=0,1/``),
    ``@12.5`` after it the second of the call. A call is completed unless it is marked: ``*`` started, ``?`` scheduled,
    and ``!`` started and given up.
    """
    everyone = tuple(range(world or len(ranks)))
    dumps = ((rank, _written(text.split(), everyone, backend, timeout_s, first)) for rank, text in ranks.items())
    return FlightRecords(
        tuple(replace(dump(written), source=f"nccl_trace_rank_{rank}", rank=rank) for rank, written in dumps)
    )


def _written(
    words: list[str], everyone: tuple[int, ...], backend: str, timeout_s: float, first: int
) -> dict[str, object]:
    """Return a dump under the keys of torch. Gloo never records more than that torch looks after it no longer."""
    groups: dict[str, dict[str, object]] = {}
    entries: list[dict[str, object]] = []
    seqs: dict[str, int] = {}
    for at, word in enumerate(words):
        group, _, rest = word.rpartition("/")
        name, _, members = (group or "0").partition("=")
        ranks = [*map(int, members.split(","))] if members else [*everyone]
        own = groups.setdefault(name, {"desc": "default_pg" if name == "0" else "", "ranks": ranks})
        rest, _, second = rest.partition("@")
        call = rest.rstrip("?*!")
        mark = rest[len(call) :]
        op, elements, dtype = (*call.split(":"), "", "")[:3]
        p2p = op.startswith(("send", "recv"))
        seqs[name] = seqs.get(name, first) + (not p2p)
        tensors = {"sizes": [[int(elements or 8)]], "dtypes": [dtype or "Float"]}
        entries.append(
            {
                "record_id": first,
                "process_group": (name, own["desc"]),
                "profiling_name": f"{backend}:{op.replace('_0', ' 0').replace('_1', ' 1') if p2p else op}",
                "is_p2p": p2p,
                "p2p_seq_id" if p2p else "collective_seq_id": seqs[name],
                "state": "scheduled" if backend == "gloo" else _STATES[mark],
                "retired": mark in ("", "!"),
                "time_created_ns": int(float(second or at + 1) * 1e9),
                "timeout_ms": int(timeout_s * 1000),
                "frames": [{"name": "step", "filename": "train.py", "line": 10 + at}],
                **{f"{side}_{what}": each for side in ("input", "output") for what, each in tensors.items()},
            }
        )
    return {"version": "2.10", "pg_config": groups, "entries": entries}


_READ = Certainty("high", "flight records of the ranks")
_OF_JOB = JOB | {"confidence": _READ}
_ENDS_A_RANK = (
    "rank-crashed",
    "collective-desync",
    "timeout-straggler",
    "oom",
    "gpu-hw-error",
    "fd-limit",
    "shm-too-small",
    "memlock",
    "peer-unreachable",
    "ib-link-error",
)
"""Causes after which a rank does not reach its next collective."""
_HOW = {
    "operation": "called another operation",
    "size": "used another size",
    "type": "used another type",
    "order": "called two operations in a different order",
    "skipped": "skipped an operation",
    "additional": "called an extra operation",
}
_SHOWN = 4
NO_LOG = Absent("no log was given")


@cause(
    code="collective-desync",
    bad=lambda: [(recorded({0: "all_reduce all_reduce*", 1: "all_reduce all_reduce*", 2: "all_reduce all_gather*"}),)],
    good=lambda: [(recorded({0: "all_reduce all_reduce*", 1: "all_reduce all_reduce*"}),)],
)
def desync(records: FlightRecords) -> Iterator[Finding]:
    """Ranks called different collectives, according to their flight records.

    Right: Every rank called the same collectives in the same order, according to their flight records.
    Why: every rank of a group must call the same collectives in the same order, with the same sizes and types.
    Otherwise all wait for each other until the watchdog ends them, or they exchange the wrong data.
    Fix: make the two lines of the program agree. Common causes are a branch that only some ranks take, a data set that
    ends earlier on some ranks, or a model that differs between ranks.
    """
    for found in judge(records):
        if isinstance(found, Parted):
            yield _parted(found)
        elif isinstance(found, Crossed):
            parts = [
                f"{_wait(ranks)} in {entry.call}{entry.place}, number {entry.seq} of group {entry.group}"
                for entry, ranks in zip(found.entries, found.ranks, strict=True)
            ]
            ranks = tuple(sorted({rank for each in found.ranks for rank in each}))
            yield fail(
                fold_ranks(ranks),
                f"are waiting for each other in different calls: {'; '.join(parts[:_SHOWN])}",
                **_OF_JOB,
                evidence=[_seen(entry) for entry in found.entries[:_SHOWN]],
                occurrence=_occurrence(found.entries[0], ranks),
            )


def _parted(found: Parted) -> Finding:
    """Return who called what else. If all ranks finished all the same, that is wrong but not a failure."""
    first, usual = found.others[0], found.usual
    they = f"as many called each: {fold_ranks(found.usual_ranks)}" if found.tied else fold_ranks(found.usual_ranks)
    message = (
        f"{_HOW[found.how]}: {first.call}{first.place}, as number {first.seq} of group {first.group}; "
        f"{they} {usual.call}{usual.place}"
    )
    make = warn if found.finished else fail
    both = found.tied and len(found.usual_ranks) == 1
    ranks = (*found.usual_ranks, *found.other_ranks) if both else found.other_ranks
    return make(
        fold_ranks(ranks),
        message,
        **_OF_JOB,
        evidence=[*map(_seen, found.others[:_SHOWN]), _seen(usual)],
        occurrence=_occurrence(first, ranks, found.usual_ranks),
    )


@cause(
    code="timeout-straggler",
    bad=lambda: [(recorded({0: "all_reduce@1 all_reduce!@2", 1: "all_reduce@1 all_reduce*@700"}),)],
    good=lambda: [(recorded({0: "all_reduce@1 all_reduce*@2", 1: "all_reduce@1 all_reduce*@300"}),)],
)
def late_rank(records: FlightRecords) -> Iterator[Finding]:
    """A rank joined a collective after the others had timed out.

    Right: No rank joined a collective after the timeout, according to their flight records.
    Why: a collective waits for its last rank, and torch ends the job if that takes longer than the timeout of the
    process group. The late rank loaded data, wrote a checkpoint, compiled, or computed something that the others did
    not.
    Fix: make every rank do the same work before the collective, or give init_process_group a longer timeout.
    """
    for found in judge(records):
        if isinstance(found, CameLate):
            yield fail(
                f"rank {found.rank}",
                f"joined {found.late_s:.0f} s after the others in {found.entry.call}{found.entry.place}, number "
                f"{found.entry.seq} of group {found.entry.group}, whose timeout is {found.timeout_s:g} s",
                **_OF_JOB,
                evidence=_seen(found.entry),
                occurrence=_occurrence(found.entry, (found.rank,), found.waiting),
            )


@cause(
    echoes=_ENDS_A_RANK,
    bad=lambda: [(recorded({0: "all_reduce barrier*", 1: "all_reduce barrier*", 2: "all_reduce"}),)],
    good=lambda: [(recorded({0: "all_reduce barrier*", 1: "all_reduce barrier*"}),)],
)
def absent_rank(records: FlightRecords) -> Iterator[Finding]:
    """A rank did not join a collective in which the others wait, or left no flight record.

    Right: Every rank left a flight record and joined the collective in which the others wait.
    Why: a rank with a record was alive, but its program did something else. It is late, or its path through the program
    does not include this collective. Every rank writes its record when one of them has timed out. If a rank did not, it
    had already exited, its process was stopped, or its record is on another host and not among these files.
    Fix: read the end of this rank's own log, and look for its missing record. While it hangs, `py-spy dump --pid PID`
    shows what it does.
    """
    for found in judge(records):
        if isinstance(found, NotEntered):
            last = f"; its last was {_where(found.last[0])}{found.last[0].place}" if found.last else ""
            codes = ("timeout-straggler", "collective-desync")
            yield fail(
                fold_ranks(found.missing),
                f"did not reach {_where(found.entry)}; {_wait(found.waiting)} in it{last}",
                **_OF_JOB,
                evidence=[*map(_seen, found.last[:_SHOWN]), _seen(found.entry)],
                occurrence=_occurrence(
                    found.entry, found.missing, found.waiting, codes[::-1] if _apart(found) else codes
                ),
            )
        elif isinstance(found, AllEntered) and _few(found):
            yield fail(
                fold_ranks(found.undumped),
                f"left no flight record; {_wait(_joined_ranks(found))} in {_where(found.entry)}",
                blame="unknown",
                action="restart",
                confidence=Certainty("medium", "flight records of the other ranks"),
                evidence=_seen(found.entry),
                occurrence=_occurrence(
                    found.entry,
                    found.undumped,
                    _joined_ranks(found),
                    ("rank-crashed", "timeout-straggler", "collective-desync"),
                ),
            )


@cause(
    bad=lambda: [(recorded({0: "all_reduce*", 1: "all_reduce?"}), NO_LOG)],
    good=lambda: [(recorded({0: "all_reduce*", 1: "all_reduce?"}), JobLog((), ()))],
)
def all_entered(records: FlightRecords, log: JobLog | Absent) -> Iterator[Finding]:
    """Every rank with a flight record waits in the same collective.

    Right: No collective hangs with all ranks in it.
    Why: all ranks made the same calls, so these records point to the network or a GPU and not to the program. If a
    rank's state is 'scheduled', its GPU had not reached the collective and may hang in earlier work.
    Fix: read the kernel logs and NCCL WARN lines of all hosts. For the next run, set NCCL_DEBUG=INFO and collect the
    flight records of all ranks.
    """
    for found in judge(records):
        if isinstance(found, AllEntered) and not _few(found):
            tell = note if isinstance(log, JobLog) and not failed(log) else warn  # a job at work is always in some call
            yield tell(
                f"group {found.entry.group}",
                f"collective {found.entry.seq}, {found.entry.call}, has not finished: {'; '.join(_states(found))}",
                confidence=_READ,
                evidence=_seen(found.entry),
                occurrence=_occurrence(found.entry, _joined_ranks(found)),
            )


def _apart(found: NotEntered) -> bool:
    """Return whether the ranks that did not arrive went to calls of different groups."""
    return len({entry.group for entry in found.last}) > 1


def _few(found: AllEntered) -> bool:
    """Return whether so few records are missing that their ranks are suspected, and not the collecting of files."""
    return bool(found.undumped) and len(found.undumped) <= max(1, len(_joined_ranks(found)) // 3)


def _joined_ranks(found: AllEntered) -> tuple[int, ...]:
    return tuple(sorted((*found.scheduled, *found.started, *found.completed, *found.ended)))


def _states(found: AllEntered) -> Iterator[str]:
    for state in ("scheduled", "started", "completed", "ended"):
        if ranks := getattr(found, state):
            yield f"{state} on {fold_ranks(ranks)}"
    if found.undumped:
        yield f"no record of {fold_ranks(found.undumped)}"


def _where(entry: Entered) -> str:
    return f"{entry.call}, number {entry.seq} of group {entry.group}"


def _wait(ranks: tuple[int, ...]) -> str:
    return f"{fold_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} waiting"


def _seen(entry: Entered) -> Evidence:
    return seen(entry.source, f"rank {entry.rank}: {_where(entry)}, {entry.state}{entry.place}")


def _occurrence(
    entry: Entered, ranks: tuple[int, ...], peers: tuple[int, ...] = (), codes: tuple[str, ...] = ()
) -> Occurrence:
    """Return its place among lines of logs: in no stream, by the clock of the rank that entered."""
    return Occurrence(ranks=ranks, peers=peers, stream=-1, time_s=entry.time_s or None, codes=codes)


_AIDES = ("_worker_loop", "_launch_agent", "launch_agent", "_run_once_resource", "_MonitorThread")
"""Functions of processes that are not ranks: workers of a data loader, torchrun's agent."""
_KEEPERS = ("EngineCore", "APIServer", "DPCoordinator", "detokenizer", "data_parallel_controller")
"""What such processes of vLLM and SGLang call themselves; an EngineCore without workers is a rank itself."""


def _stacks(*frames: str) -> Stacks:
    """Return the stacks of processes whose innermost frame is given, each called by the program."""
    text = "".join(
        f'rank {rank}\nProcess {rank + 7}: python train.py\nPython v3.11.9\n\nThread {rank + 7} (idle): "MainThread"\n'
        f"    {frame}\n    <module> (train.py:40)\n"
        for rank, frame in enumerate(frames)
    )
    return Stacks(read_stacks("stacks.txt", text.encode()))


_IN_CALL = "all_reduce (torch/distributed/distributed_c10d.py:2709)"


@cause(
    echoes=_ENDS_A_RANK,
    bad=lambda: [(_stacks(_IN_CALL, _IN_CALL, "get (queue.py:171)"), NO_LOG)],
    good=lambda: [(_stacks("step (train.py:9)"), NO_LOG)],
)
def stands_elsewhere(stacks: Stacks, log: JobLog | Absent) -> Iterator[Finding]:
    """A process is at a different line from the others, according to its stack.

    Right: All processes with a stack are at the same line.
    Why: in a hung job the ranks wait at one line for the missing ones. The missing ones are in another call, or busy
    with their own work, such as reading data.
    Fix: look at the line of the rank that differs, and find out why it is there. A second dump a minute later shows
    whether it is still there.
    """
    processes = [each for each in stacks.processes if each.frames and not any(f.name in _AIDES for f in each.frames)]
    ranks = [each for each in processes if not _keeps_workers(each, processes)]
    places = grouped(((e.call, e.own and (e.own.filename, e.own.line)), e) for e in ranks)
    usual = max(places.values(), key=lambda each: (bool(each[0].call), len(each)), default=[])
    others = [each for place in places.values() if place is not usual for each in place]
    if not 0 < len(others) < len(usual):
        if len(ranks) > 1 and usual[0].call:
            rest = f"; {', '.join(f'{_who(each, log)} in {each.where}' for each in others[:_SHOWN])}" if others else ""
            message = f"{len(usual)} of {len(ranks)} processes are in {usual[0].where}{rest}"
            yield _stack_finding(usual, (), message, log)
        return
    apart = [f"{_who(each, log)} is in {each.where}" for each in others[:_SHOWN]]
    codes = ("timeout-straggler", "collective-desync")
    message = f"{'; '.join(apart)}, while {len(usual)} others are in {usual[0].where}"
    yield _stack_finding(others, codes[::-1] if any(each.call for each in others) else codes, message, log, usual)


def _keeps_workers(process: ProcessStack, all_of_them: Sequence[ProcessStack]) -> bool:
    """Return whether a process of a server only hands work to its workers, which are the ranks, and waits for them."""
    keeps = any(word in process.title for word in _KEEPERS) and process.rank is None
    return keeps and any(each.rank is not None or "Worker" in each.title for each in all_of_them)


def _stack_finding(
    whose: Sequence[ProcessStack],
    codes: tuple[str, ...],
    message: str,
    log: JobLog | Absent,
    peers: Sequence[ProcessStack] = (),
) -> Finding:
    ranks, others = (tuple(r for e in of if (r := _rank(e, log)) is not None) for of in (whose, peers))
    make = fail if codes else warn
    return make(
        _who(whose[0], log),
        message,
        blame="job" if codes else "unknown",
        action="fix-job" if codes else "none",
        confidence=Certainty("medium", "one look at the stacks of processes"),
        evidence=[seen(e.source, f"{_who(e, log)}: {e.where}", e.line) for e in (*whose[:_SHOWN], *peers[:1])],
        occurrence=Occurrence(ranks=ranks, hosts=(), peers=others, codes=codes, ordered=False),
    )


def _rank(process: ProcessStack, log: JobLog | Absent) -> int | None:
    """Return the rank of a process: its own word, otherwise that of a log that names its number."""
    if process.rank is not None or isinstance(log, Absent):
        return process.rank
    return next((each.rank for each in log.ranks.values() if each.pid == process.pid), None)


def _who(process: ProcessStack, log: JobLog | Absent) -> str:
    rank = _rank(process, log)
    return f"process {process.pid}" if rank is None else f"rank {rank}"
