"""Ranks that say nothing while the others complain, by the logs and by NCCL's RAS."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.known import harmless
from ncclprobe.checks.log.lines import JOB, UNPROVEN, blame_hosts, has_called
from ncclprobe.facts.files.ras import RasAnswer, RasProcess, RasStatement, RasStatus, by_operation, read_answer
from ncclprobe.logs.job_log import Explained, JobLog, LogEvent
from ncclprobe.logs.outcome import ABORTED, aborted, lived_on
from ncclprobe.logs.rank_ends import Ends, RankEnd, of_others, rank_ends
from ncclprobe.logs.ranks import is_launcher_line
from ncclprobe.logs.reader import read
from ncclprobe.logs.texts import ERROR, address_of, between, form_of_failure
from ncclprobe.logs.torch_lines import timed_out_work
from ncclprobe.model.findings import Certainty, Evidence, Finding, Occurrence, fail, seen, warn
from ncclprobe.model.hostlist import fold_ranks
from ncclprobe.model.values import replace

_DIED, _LATE, _DESYNC = "rank-crashed", "timeout-straggler", "collective-desync"
_OPEN = {_DIED, _LATE, _DESYNC, "peer-unreachable"}
"""Causes that stay possible if peers only lost a rank, or were refused by its host."""
_LOST = {*_OPEN, "ib-link-error", "ib-no-path"}
"""The same if all ranks of one host are silent."""
_NO_WORD = (_DIED, "oom", "gpu-hw-error")
"""Possible ends of a process that logs nothing about it."""
_MOST_SILENT, _FEWEST = 3, 3
_MOST_RANKS = 1 << 16
WAITED = "[rank{r}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv"


def example(*complaints: str, size: int = 0) -> tuple[JobLog, Explained]:
    """Return a log and its facts: each rank makes a step, and then writes the given text, if any."""
    texts = {
        f"rank{rank}": "\n".join([f"step 7 of a job of world size {size or len(complaints)}", text.format(r=rank)])
        for rank, text in enumerate(complaints)
    }
    log = read(((name, [text.encode()]) for name, text in texts.items()), ("RuntimeError",))
    return log, Explained(failing=frozenset((e.stream, e.line) for e in log.events if "RuntimeError" in e.text))


@cause(
    code=_DIED,
    echoes=("oom", "gpu-hw-error", "fd-limit", "shm-too-small", "memlock", _DIED, _LATE),
    bad=lambda: [example(WAITED, "")],
    good=lambda: [example("", "")],
)
def rank_fell_silent(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A rank logged nothing while the others waited for it or lost their connections to it.

    Right: No rank was silent while others reported errors.
    Why: a rank that is killed or hangs logs nothing, and only the others report errors. A process that exits closes its
    connections, so if they were closed, it has exited. If the others only waited, it may still be running.
    Fix: read the last line of that rank. On its host, look at that minute in `journalctl -k | grep -iE
    'oom|killed|xid|segfault'` and in the scheduler's record (`sacct -j JOB -o JobID,State,ExitCode,NodeList`, `kubectl
    describe pod`). If its process still runs, use `py-spy dump --pid PID`.
    """
    ends = rank_ends(log, explained.failing)
    if explained.codes or not {*explained.could_be} <= (_LOST if _one_host(log, ends) else _OPEN):
        return
    if ends.unattributed or ends.complaint_kinds == {"otherwise"}:
        return  # it may be of a rank that seems to say nothing; and who lost no one and waited for no one failed itself
    works = [work for each in ends.complaining if each.said and (work := timed_out_work(each.said.text))]
    if works and any(has_called(log, each.rank, works[0].seq) for each in ends.silent):
        return
    if ends.latecomer:
        yield _late(log, ends, ends.latecomer)
    elif outspoken := _outspoken(ends, explained):
        yield said(log, outspoken, f"rank {outspoken.rank} {_BY_ITS_WORDS}", codes=(_DIED,), **UNPROVEN)
    elif _few(ends) or _one_host(log, ends):
        yield _silent(log, ends)
    elif lost := _lost_peer(log, explained):
        yield lost


BEGINS = "Init START"


def begun(*ranks: int, end: str = "START") -> tuple[JobLog, Explained]:
    """Return the logs of four ranks; the given ones reach NCCL's initialisation."""
    text = (
        "n1:{r}:7 [{r}] NCCL INFO ncclCommInitRank comm 0x1 rank {r} nranks 4 cudaDev 0 busId 1a000 commId 0x2 - Init "
    )
    lines = {rank: f"{text}START\n{text}{end}".format(r=rank) if rank in ranks else "" for rank in range(4)}
    return read(((f"rank{rank}", [line.encode()]) for rank, line in lines.items()), (BEGINS,)), Explained()


@cause(
    signs=(BEGINS,),
    doctor="launch.vars",
    bad=lambda: [begun(0, 1, 3)],
    good=lambda: [begun(0, 1, 2, 3)],
)
def rank_did_not_begin(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """Ranks wait in NCCL's initialisation for a rank that did not begin it.

    Right: All ranks of a communicator began its initialisation.
    Why: ncclCommInitRank waits for all ranks without a time limit and without a message. A rank that was never started,
    hung earlier, or was killed has no "Init START" line. If a rank is killed, the line may also be lost, because NCCL
    does not flush stdout.
    Fix: check whether that rank's process exists, and what it does (`py-spy dump --pid PID`). If it does not exist,
    look for its end in the messages of the launcher and the kernel. NCCL_DEBUG_FILE=/tmp/nccl.%h.%p keeps the last
    lines of a killed rank.
    """
    ranks = log.ranks.values()
    waiting = [each.rank for each in ranks if each.init_started > each.init_complete]
    if explained.codes or not {*explained.could_be} <= _OPEN:
        return
    last = {event.rank: between(event.text, "nranks ", " ") for event in log.having(BEGINS)}
    again = any(each.init_complete for each in ranks)  # then another communicator, which may be of some ranks alone
    if again and {last.get(rank) for rank in waiting} != {str(log.world_size)}:
        return
    absent = tuple(rank for rank in range(min(log.world_size or 0, _MOST_RANKS)) if rank not in waiting)
    if 0 < len(absent) <= min(_MOST_SILENT, len(waiting) - 1):
        names = ", ".join(map(str, absent))
        event = next(event for event in log.having(BEGINS))
        message = f"{len(waiting)} ranks were waiting in NCCL's initialisation, which rank {names} did not begin"
        codes = (_DIED, _LATE, "world-size-mismatch")
        yield said(log, event, message, ranks=absent, codes=codes, subject=f"rank {names}", **UNPROVEN)


def ending(*words: str) -> tuple[JobLog, Explained]:
    """Return the logs of as many ranks that end so."""
    lines = (
        f"n1:{n}:7 [{n}] NCCL INFO comm 0x{n} rank {n} nranks 3 - Init START\n{text}" for n, text in enumerate(words)
    )
    return read(((f"rank{n}", [text.encode()]) for n, text in enumerate(lines)), (BEGINS, ABORTED)), Explained()


ABORT = "n1:8:8 [0] NCCL INFO misc/socket.cc:707 (ncclSocketTryRecv) -> 3"
_TOLD = f"n1:8:8 [0] NCCL INFO comm 0x1 - {ABORTED}\n{ABORT}"


@cause(
    code=_DESYNC,
    signs=(BEGINS, ABORTED),
    bad=lambda: [ending(_TOLD, "done", _TOLD)],
    good=lambda: [ending(_TOLD, _TOLD, _TOLD)],
)
def one_rank_ended_otherwise(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """One rank finished and all others were aborted, or the reverse.

    Right: All ranks ended in the same way.
    Why: a rank that makes one call fewer, or uses another size or type, finishes, and the others wait for it until they
    are aborted. If only one rank is aborted, the others completed a call without it, and their results cannot be
    trusted.
    Fix: run with TORCH_DISTRIBUTED_DEBUG=DETAIL, and compare that rank's calls with those of the others at the same
    step.
    """
    gone = aborted(log)
    well = [number for number, stream in enumerate(log.streams) if stream.finished and number not in gone]
    known = all(stream.rank is not None for stream in log.streams)
    if explained.codes or explained.could_be or not known or len(log.streams) < _FEWEST:
        return
    if len(gone) + len(well) < len(log.streams):
        return
    told = any(True for _ in log.having(ABORTED))  # then log.finished-beside-an-abort tells of who aborted
    if len(gone) == 1 and not told and (event := log.streams[gone[0]].last):
        what = "was aborted, but all others finished"
    elif len(well) == 1 and (event := log.streams[well[0]].finished):
        what = "finished, but all others were aborted"
    else:
        return
    rank = log.streams[event.stream].rank or 0
    yield said(log, event, f"rank {rank} {what}", ranks=(rank,), codes=(_DESYNC, _LATE), **UNPROVEN)


def _few(ends: Ends) -> bool:
    """Return whether few ranks are silent.

    A rank without a log may be one whose log was not given: of two ranks the other one is at fault all the same if it
    closed its connections. If only one rank complains, no rank between those that were seen may be missing: that one
    could be the one at fault.
    """
    known = len(ends.complaining) > 1 or any(each.has_log for each in ends.silent) or ends.complaint_kinds == {"closed"}
    known = known and (len(ends.complaining) > 1 or len(ends.ranks) > max(ends.ranks))
    return 0 < len(ends.silent) <= min(_MOST_SILENT, len(ends.complaining)) and known


def _one_host(log: JobLog, ends: Ends) -> str:
    """Return the host that all silent ranks share and no other rank: it was lost.

    If none of their lines names it, it is the one peer that others complain about, if they are a host's ranks by
    number.
    """
    hosts = {each.host for each in ends.silent}
    if hosts == {""} and len(ends.silent) > 1 and _a_hosts_share(ends):
        peers = {_peer(each.said.text) for each in ends.complaining if each.said} - {""}
        return next(iter(peers)) if len(peers) == 1 else ""
    lost = next(iter(hosts)) if len(hosts) == 1 else ""
    return "" if any(each.host in ("", lost) for each in ends.complaining) else lost


def _a_hosts_share(ends: Ends) -> bool:
    """Return whether the silent ranks are all of one host, as launchers number them: a block of an even share."""
    ranks, share = [each.rank for each in ends.silent], len(ends.silent)
    return ranks == [*range(ranks[0], ranks[0] + share)] and ranks[0] % share == 0 and len(ends.ranks) % share == 0


def _peer(text: str) -> str:
    """Return the peer that a line reports as lost: its name, or its address; empty: it names none on another host."""
    peer = address_of(between(text, "peer ", " ")) if "<" in text or "[" in text else ""
    return "" if peer.startswith(("127.", "::1", "localhost")) else peer


def _lost_peer(log: JobLog, explained: Explained) -> Finding | None:
    """Return that a process ended if several lost their connections, all to it, and it logs nothing itself."""
    lost = [(e, _peer(e.text)) for e in log.having("losed by remote peer", "losed by peer") if e.level != "INFO"]
    lost = [(e, peer) for e, peer in lost if peer and (e.stream, e.line) in explained.failing]
    writers = {(e.rank, e.host) for e, _ in lost}
    spoke = {e.host.partition(".")[0] for e, _ in lost}
    if len({peer for _, peer in lost}) != 1 or len(writers) < 2 or lost[0][1].partition(".")[0] in spoke:
        return None
    event, peer = lost[0]
    message = f"{peer} exited: {len(writers)} processes lost their connections to it, and to no other peer"
    return blame_hosts(said(log, event, message, codes=_NO_WORD, subject=peer, **UNPROVEN), peer, ranks=())


def _late(log: JobLog, ends: Ends, rank: RankEnd) -> Finding:
    surely = ends.came_later(rank)
    message = f"rank {rank.rank} joined after the others had timed out"
    codes = (_LATE,) if surely else (_LATE, _DESYNC)
    assert rank.said
    return said(log, rank.said, message, codes=codes, **JOB)


def _silent(log: JobLog, ends: Ends) -> Finding:
    silent, host = ends.silent, _one_host(log, ends)
    ranks = tuple(each.rank for each in silent)
    names = ", ".join(map(str, ranks[:8]))
    first = silent[0]
    line = first.last or ends.complaining[0].said
    assert line
    subject = f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
    message, codes = _why(ends, subject, first)
    if codes == (_DESYNC,):
        alone = tuple(each.rank for each in ends.complaining)
        details = {**JOB, "remedy": _ON_ALL}
        return said(log, line, message, ranks=tuple(sorted((*alone, *ranks))), codes=codes, subject=subject, **details)
    if len(ranks) == 1 and (words := _own_words(log, ends, first.rank)):
        message, codes, line = f"{subject} {_BY_ITS_WORDS}", (_DIED,), words
    if len(ranks) > 1 and host:
        message, codes = f"no rank of {host} logged anything: ranks {names}", (_DIED, "peer-unreachable")
    return said(log, line, message, ranks=ranks, codes=codes, subject=subject, **UNPROVEN)


_ON_ALL = (
    "look for a collective that only one rank calls, for example below `if rank == 0:`. It may be hidden "
    "in another call, such as a barrier, saving a checkpoint or gathering a metric. Make all ranks call it, or none"
)
_BY_ITS_WORDS = "reported its own failure before the others lost it"


def _own_words(log: JobLog, ends: Ends, rank: int) -> LogEvent | None:
    """Return the line of a rank that by its form is an error, after which it did not go on, otherwise its last line if
    that has words of a failure; None: there is none, or the others had given up before.
    """
    own = (event for event in log.events if event.rank == rank and not is_launcher_line(event))
    errors = [event for event in own if form_of_failure(event.text, event.level) >= ERROR]
    last = log.ranks[rank].last if rank in log.ranks else None
    if last and form_of_failure(last.text, last.level):
        errors.append(last)
    first = (event for event in errors if not of_others(event) and not ends.later_than_others(event))
    return next((event for event in first if not lived_on(log, event) and not harmless(event)), None)


def _outspoken(ends: Ends, explained: Explained) -> LogEvent | None:
    """Return the line of the one rank that ended with words of its own, if all others lost a connection."""
    own = [each.said for each in ends.complaining if each.said and each.complains == "otherwise"]
    alone = len(own) == 1 and not ends.silent and ends.complaint_kinds == {"closed", "otherwise"}
    return own[0] if alone and (own[0].stream, own[0].line) not in explained.failing else None


def _why(ends: Ends, subject: str, first: RankEnd) -> tuple[str, tuple[str, ...]]:
    """Return what is known of ranks that say nothing, and which causes are left."""
    one, lost = len(ends.silent) == 1, "closed" in ends.complaint_kinds and "timed out" not in ends.complaint_kinds
    if one and first.rank == ends.first_out and first.by_itself:
        return f"{subject} exited first, without an error message: {first.exit_text}", (_DIED,)
    if one and first.alive:
        return f"{subject} had not reached {_awaited(ends)}, although its process was alive", (_LATE,)
    if one and first.over:
        alone = [each.rank for each in ends.complaining]
        if len(alone) == 1 and "timed out" in ends.complaint_kinds:
            return f"only rank {alone[0]} was waiting in {_awaited(ends)}, because {subject} had exited", (_DESYNC,)
        return f"{subject} exited while the others continued", (_DESYNC, _DIED)
    if one and not lost and ends.wrote_on(first):
        return f"{subject} had not reached {_awaited(ends)} and was still busy", (_LATE,)
    if not lost:
        codes = (_LATE, _DIED) if first.has_log else (_LATE, _DIED, _DESYNC)  # it may have waited in another call
        return f"{subject} never reached {_awaited(ends)}, and printed nothing", codes
    if not one:
        return f"{subject} print nothing, and the others lost connections", (_DIED, _LATE)
    if not first.has_log:
        return f"{subject} exited, and there is no log of it", _NO_WORD
    return f"{subject} exited silently: its log ends without an error, and the others lost their connections to it", (
        _DIED,
    )


def _awaited(ends: Ends) -> str:
    """Return what the first rank that complains waited for."""
    text = next((each.said.text for each in ends.complaining if each.said), "")
    return str(timed_out_work(text) or "the call that the others were waiting in")


_SURE = Certainty("high", "NCCL RAS")
_HEAD = "Job summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n"
_AT = "GPU 5 managed by process 3487984 on node 172.16.64.213"
DEAD = (
    f"{_HEAD}Errors\n======\n\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
    f"  Missing communicator data from 1 rank\n  Rank 21 -- {_AT}\n"
)
BEHIND = (
    f"{_HEAD}Warnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
    "  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 6650\n"
    f"  Rank 21 has launched up to operation 6649 -- {_AT}\n"
)
OTHER = (
    f"{BEHIND}\n  Communicator ranks have different AllGather operation counts\n"
    "  31 ranks have launched up to operation 9\n"
    f"  Rank 21 has launched up to operation 10 -- {_AT}\n"
)
RAS_ERROR = (
    f"{_HEAD}Errors\n======\n\n#0-0 (27a079b828ff1a75) ERROR\n  Asynchronous errors on 2 ranks\n"
    f"  2 ranks reported Remote process error\n  Rank 21 -- {_AT}\n"
)


def ras_said(text: str) -> tuple[RasStatus]:
    return (RasStatus((read_answer("ras.txt", text.encode()),)),)


@cause(
    code="rank-crashed",
    echoes=("oom", "gpu-hw-error", "collective-desync", "shm-too-small", "fd-limit"),
    bad=lambda: [ras_said(DEAD)],
    good=lambda: [ras_said(_HEAD)],
)
def ras_dead_process(ras: RasStatus) -> Iterator[Finding]:
    """NCCL's RAS reports a process of the job as dead.

    Right: NCCL's RAS can reach every process of the job.
    Why: a process that does not answer for 60 seconds has exited or is stopped, or its host is down. The others wait.
    Fix: read the end of this process's log and its host's kernel log.
    """
    for answer, statement in _statements(ras, "dead"):
        for process in statement.processes or (RasProcess(),):
            known = _rank_of(answer, process)
            yield fail(
                _subject(known),
                f"{_processes([known])} no longer answers, and NCCL's RAS considers it dead",
                blame="unknown",
                action="restart",
                confidence=_SURE,
                evidence=_seen(answer, statement),
                occurrence=_occurrence(statement, (known,)),
            )


@cause(
    echoes=("rank-crashed", "oom", "gpu-hw-error", "timeout-straggler", "collective-desync"),
    bad=lambda: [ras_said(DEAD.replace("DEAD", "INCOMPLETE").replace("  1 job process is considered dead", "  1 job"))],
    good=lambda: [ras_said(_HEAD)],
)
def ras_no_answer(ras: RasStatus) -> Iterator[Finding]:
    """A process of the job did not answer NCCL's RAS.

    Right: Every process of the job answered NCCL's RAS, or is reported as dead.
    Why: the RAS thread answers even while the program computes, so a process that does not answer has exited or is
    stopped.
    Fix: query RAS again after 60 seconds: it then reports the process as dead, or has its answer. Check the process on
    its host.
    """
    for answer, statement in _statements(ras, "missing"):
        if not statement.processes or any(each.kind == "dead" for each in answer.statements):
            continue
        silent = [_rank_of(answer, each) for each in statement.processes]
        yield fail(
            _subject(*silent),
            f"no answer to NCCL's RAS from {_processes(silent)}",
            action="restart",
            confidence=_SURE,
            evidence=_seen(answer, statement),
            occurrence=_occurrence(statement, silent, ("rank-crashed", "timeout-straggler")),
        )


@cause(
    code="collective-desync",
    bad=lambda: [ras_said(OTHER)],
    good=lambda: [ras_said(_HEAD)],
)
def ras_other_operations(ras: RasStatus) -> Iterator[Finding]:
    """Ranks launched more of one operation and fewer of another than the others.

    Right: No rank has launched more of one operation and fewer of another than the others, according to NCCL's RAS.
    Why: every rank of a communicator must call the same collectives. A rank that is ahead in one operation and behind
    in another called one instead of the other.
    Fix: look for a branch that only this rank takes. Flight records (TORCH_FR_BUFFER_SIZE) show the lines.
    """
    for answer, ahead, behind in _outliers(ras):
        for rank in sorted(ahead.keys() & behind.keys()):
            up, down = ahead[rank], behind[rank]
            yield fail(
                f"rank {rank}",
                f"is ahead in {up.operation} ({up.value}) and behind in {down.operation} ({down.value}), "
                f"communicator {up.comm}",
                **JOB,
                confidence=_SURE,
                evidence=[_seen(answer, up), _seen(answer, down)],
                occurrence=_occurrence(up, [p for p in up.processes if p.rank == rank]),
            )


@cause(
    echoes=("rank-crashed", "oom", "gpu-hw-error", "timeout-straggler", "collective-desync"),
    bad=lambda: [ras_said(BEHIND)],
    good=lambda: [ras_said(_HEAD)],
)
def ras_rank_behind(ras: RasStatus) -> Iterator[Finding]:
    """A rank launched fewer operations than the others.

    Right: All ranks of a communicator have launched the same number of operations, according to NCCL's RAS.
    Why: query RAS again. If the counts do not change, the others are waiting for this rank. If a count grows, the job
    is working, because RAS does not stop it.
    Fix: query RAS again. If the counts do not change, run `py-spy dump --pid PID` on this rank's host to see where it
    is.
    """
    for answer, ahead, behind in _outliers(ras):
        ranks = sorted(behind.keys() - ahead.keys())
        if not ranks and not behind:
            yield _few_ahead(answer, ahead)
        if not ranks:
            continue
        first = behind[ranks[0]]
        processes = [each for rank in ranks for each in behind[rank].processes if each.rank == rank]
        yield fail(
            fold_ranks(ranks),
            f"launched only {first.value}{f' {first.operation}' if first.operation else ''} operations on communicator "
            f"{first.comm}, fewer than the others: {_processes(processes)}",
            **JOB,
            confidence=_SURE,
            evidence=_seen(answer, first),
            occurrence=_occurrence(first, processes, ("timeout-straggler", "collective-desync")),
        )


@cause(
    bad=lambda: [ras_said(RAS_ERROR)],
    good=lambda: [ras_said(_HEAD)],
)
def ras_error(ras: RasStatus) -> Iterator[Finding]:
    """NCCL's RAS reports ranks with an error.

    Right: NCCL's RAS reports no rank with an error.
    Why: NCCL returns this error to the program on these ranks. The cause is in their logs.
    Fix: read the first NCCL WARN line of these ranks.
    """
    for answer, statement in _statements(ras, "error"):
        yield warn(
            _subject(*statement.processes) if statement.processes else f"communicator {statement.comm}",
            f"{statement.nranks} ranks of communicator {statement.comm} reported {statement.value}",
            confidence=_SURE,
            evidence=_seen(answer, statement),
            occurrence=_occurrence(statement, statement.processes),
        )


def _statements(ras: RasStatus, kind: str) -> Iterator[tuple[RasAnswer, RasStatement]]:
    for answer in ras.answers:
        for statement in answer.statements:
            if statement.kind == kind:
                yield answer, statement


def _few_ahead(answer: RasAnswer, ahead: Mapping[int, RasStatement]) -> Finding:
    """Return that most ranks have launched fewer operations than a few: this does not show which of them the others
    lack.

    The ranks ahead wait, too, unless the counts grow.
    """
    first = next(iter(ahead.values()))
    what = f" {first.operation}" if first.operation else ""
    return fail(
        f"communicator {first.comm}",
        f"only {fold_ranks(sorted(ahead))} launched {first.value} operations{what} of communicator {first.comm}; most "
        "ranks launched fewer",
        **JOB,
        confidence=_SURE,
        evidence=_seen(answer, first),
        occurrence=_occurrence(first, [], ("timeout-straggler", "collective-desync")),
    )


def _outliers(ras: RasStatus) -> Iterator[tuple[RasAnswer, dict[int, RasStatement], dict[int, RasStatement]]]:
    """Yield each answer with the ranks that are ahead of most in any operation, and those that are behind.

    If there are several answers, only the last counts: counts of a job at work differ at every moment.
    """
    for answer in ras.answers[-1:]:
        ahead: dict[int, RasStatement] = {}
        behind: dict[int, RasStatement] = {}
        for statements in by_operation(answer).values():
            usual = max(statements, key=lambda each: each.nranks)
            for each in statements:
                side = ahead if int(each.value) > int(usual.value) else behind
                if each is not usual and each.nranks < usual.nranks:
                    side.update({process.rank: each for process in each.processes if process.rank is not None})
        if ahead or behind:
            yield answer, ahead, behind


def _rank_of(answer: RasAnswer, process: RasProcess) -> RasProcess:
    """Return `process` with its rank, if another line of the answer has it; 2.24 lists only missing ranks."""
    if process.rank is not None:
        return process
    ranked = [each for statement in answer.statements for each in statement.processes if each.rank is not None]
    for each in ranked:
        if (each.host, each.pid) == (process.host, process.pid):
            return each
    nameless = {each.rank for each in ranked if not each.host}
    gone = {(each.host, each.pid) for _, statement in _gone(answer) for each in statement.processes if each.host}
    return replace(process, rank=nameless.pop()) if len(nameless) == len(gone) == 1 else process


def _gone(answer: RasAnswer) -> Iterator[tuple[RasAnswer, RasStatement]]:
    for kind in ("dead", "missing"):
        yield from _statements(RasStatus((answer,)), kind)


def _processes(processes: Sequence[RasProcess]) -> str:
    """Return what RAS knows of these, each with its rank if a finding's subject does not name just that one."""
    several = len({each.rank for each in processes}) > 1
    return ", ".join(
        f"{f'rank {each.rank}, ' if several and each.rank is not None else ''}"
        f"process {each.pid} on {each.host}, GPU {each.gpu}"
        if each.host
        else "a process"
        for each in processes[:8]
    )


def _subject(*processes: RasProcess) -> str:
    ranks = [each.rank for each in processes if each.rank is not None]
    if ranks:
        return fold_ranks(ranks)
    return ", ".join(dict.fromkeys(each.host for each in processes[:4])) or "a process"


def _seen(answer: RasAnswer, statement: RasStatement) -> Evidence:
    return seen(answer.source, statement.text, statement.line or None)


def _occurrence(
    statement: RasStatement, processes: list[RasProcess] | tuple[RasProcess, ...], codes: tuple[str, ...] = ()
) -> Occurrence:
    """Return whom it speaks of. The rank is the communicator's, which is the job's if that holds all ranks."""
    return Occurrence(
        ranks=tuple(each.rank for each in processes if each.rank is not None),
        hosts=tuple(dict.fromkeys(each.host for each in processes if each.host)),
        comm=statement.comm,
        stream=-2,
        line=statement.line,
        codes=codes,
    )
