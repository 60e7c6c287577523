"""What NCCL's RAS says of a job: processes that are gone, and ranks that launched fewer operations than the others."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause
from ncclprobe.facts.files.ras import RasAnswer, RasProcess, RasStatement, RasStatus, by_operation, read_answer
from ncclprobe.localise.collectives import folded
from ncclprobe.model.findings import Certainty, Evidence, Finding, Occurrence, fail, seen, warn
from ncclprobe.model.values import replace

_SURE = Certainty("high", "NCCL RAS")
_HEAD = "Job summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n"
_AT = "GPU 5 managed by process 3487984 on node 172.16.64.213"
_DEAD = (
    f"{_HEAD}Errors\n======\n\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
    f"  Missing communicator data from 1 rank\n  Rank 21 -- {_AT}\n"
)
_BEHIND = (
    f"{_HEAD}Warnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
    "  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 6650\n"
    f"  Rank 21 has launched up to operation 6649 -- {_AT}\n"
)
_OTHER = (
    f"{_BEHIND}\n  Communicator ranks have different AllGather operation counts\n"
    "  31 ranks have launched up to operation 9\n"
    f"  Rank 21 has launched up to operation 10 -- {_AT}\n"
)
_ERROR = (
    f"{_HEAD}Errors\n======\n\n#0-0 (27a079b828ff1a75) ERROR\n  Asynchronous errors on 2 ranks\n"
    f"  2 ranks reported Remote process error\n  Rank 21 -- {_AT}\n"
)


def _said(text: str) -> tuple[RasStatus]:
    return (RasStatus((read_answer("ras.txt", text.encode()),)),)


@cause(
    code="rank-crashed",
    echoes=("oom", "gpu-hw-error", "collective-desync", "shm-too-small", "fd-limit"),
    bad=lambda: [_said(_DEAD)],
    good=lambda: [_said(_HEAD)],
)
def ras_dead_process(ras: RasStatus) -> Iterator[Finding]:
    """NCCL's RAS holds a process of the job for dead.

    Right: NCCL's RAS reaches every process of the job.
    Why: a process that answers nothing for 60 seconds has ended, is stopped, or its host is gone; the others wait.
    Fix: look at the end of this process's log and at its host's kernel log.
    """
    for answer, statement in _statements(ras, "dead"):
        for process in statement.processes or (RasProcess(),):
            known = _rank_of(answer, process)
            yield fail(
                _subject(known),
                f"{_process(known)} does not answer any more: NCCL's RAS holds it for dead",
                blame="unknown",
                action="restart",
                confidence=_SURE,
                evidence=_seen(answer, statement),
                occurrence=_occurrence(statement, (known,)),
            )


@cause(
    echoes=("rank-crashed", "oom", "gpu-hw-error", "timeout-straggler", "collective-desync"),
    bad=lambda: [_said(_DEAD.replace("DEAD", "INCOMPLETE").replace("  1 job process is considered dead", "  1 job"))],
    good=lambda: [_said(_HEAD)],
)
def ras_no_answer(ras: RasStatus) -> Iterator[Finding]:
    """A process of the job did not answer NCCL's RAS.

    Right: Every process of the job answered NCCL's RAS, or is named as dead.
    Why: its RAS thread answers while the program computes, so a process without an answer has ended or is stopped.
    Fix: ask once more: after 60 seconds RAS names it dead or has its answer; look at the process on its host.
    """
    for answer, statement in _statements(ras, "missing"):
        if not statement.processes or any(each.kind == "dead" for each in answer.statements):
            continue
        ranks = ", ".join(map(_process, statement.processes[:8]))
        yield fail(
            _subject(*statement.processes),
            f"did not answer NCCL's RAS: {ranks}",
            action="restart",
            confidence=_SURE,
            evidence=_seen(answer, statement),
            occurrence=_occurrence(statement, statement.processes, ("rank-crashed", "timeout-straggler")),
        )


@cause(
    code="collective-desync",
    bad=lambda: [_said(_OTHER)],
    good=lambda: [_said(_HEAD)],
)
def ras_other_operations(ras: RasStatus) -> Iterator[Finding]:
    """Ranks launched more of one operation and fewer of another than the others.

    Right: No rank has launched more of one operation and fewer of another than the others, as NCCL's RAS says.
    Why: every rank of a communicator has to call the same collectives; a rank that is ahead in one operation and behind
    in another called the one for the other.
    Fix: look for a branch that only this rank takes; flight records (TORCH_FR_BUFFER_SIZE) name the lines.
    """
    for answer, ahead, behind in _outliers(ras):
        for rank in sorted(ahead.keys() & behind.keys()):
            up, down = ahead[rank], behind[rank]
            yield fail(
                f"rank {rank}",
                f"is ahead in {up.operation} ({up.value}) and behind in {down.operation} ({down.value}), "
                f"communicator {up.comm}",
                blame="job",
                action="fix-job",
                confidence=_SURE,
                evidence=[_seen(answer, up), _seen(answer, down)],
                occurrence=_occurrence(up, [p for p in up.processes if p.rank == rank]),
            )


@cause(
    echoes=("rank-crashed", "oom", "gpu-hw-error", "timeout-straggler", "collective-desync"),
    bad=lambda: [_said(_BEHIND)],
    good=lambda: [_said(_HEAD)],
)
def ras_rank_behind(ras: RasStatus) -> Iterator[Finding]:
    """A rank launched fewer operations than the others.

    Right: All ranks of a communicator have launched the same number of operations, as NCCL's RAS says.
    Why: if the counts stay as they are when RAS is asked again, the others wait for this rank. A count that grows is a
    job at work: RAS does not stop it to look.
    Fix: ask RAS again; if nothing moves, `py-spy dump --pid PID` on this rank's host shows where it is.
    """
    for answer, ahead, behind in _outliers(ras):
        ranks = sorted(behind.keys() - ahead.keys())
        if not ranks:
            continue
        first = behind[ranks[0]]
        processes = [each for rank in ranks for each in behind[rank].processes if each.rank == rank]
        yield fail(
            f"ranks {folded(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}",
            f"launched only {first.value} operations{f' {first.operation}' if first.operation else ''} of communicator "
            f"{first.comm}, fewer than the others: {', '.join(map(_process, processes[:8]))}",
            blame="job",
            action="fix-job",
            confidence=_SURE,
            evidence=_seen(answer, first),
            occurrence=_occurrence(first, processes, ("timeout-straggler", "collective-desync")),
        )


@cause(
    bad=lambda: [_said(_ERROR)],
    good=lambda: [_said(_HEAD)],
)
def ras_error(ras: RasStatus) -> Iterator[Finding]:
    """NCCL's RAS knows of ranks with an error.

    Right: No rank has an error that NCCL's RAS knows of.
    Why: it is the error that NCCL returns to the program of these ranks; what caused it stands in their logs.
    Fix: look at the first NCCL WARN line of these ranks.
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


def _outliers(ras: RasStatus) -> Iterator[tuple[RasAnswer, dict[int, RasStatement], dict[int, RasStatement]]]:
    """Yield each answer with the ranks that are ahead, and those that are behind, of most ranks in any operation.

    Of several answers only what the last says: counts of a job at work differ at every moment.
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
    """Return `process` with its rank, where another line of the answer says it; 2.24 lists missing ranks alone."""
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


def _process(process: RasProcess) -> str:
    rank = "" if process.rank is None else f"rank {process.rank}, "
    return f"{rank}process {process.pid} on {process.host}, GPU {process.gpu}" if process.host else "a process"


def _subject(*processes: RasProcess) -> str:
    ranks = [each.rank for each in processes if each.rank is not None]
    if ranks:
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {folded(ranks)}"
    return ", ".join(dict.fromkeys(each.host for each in processes[:4])) or "a process"


def _seen(answer: RasAnswer, statement: RasStatement) -> Evidence:
    return seen(answer.source, statement.text, statement.line or None)


def _occurrence(
    statement: RasStatement, processes: list[RasProcess] | tuple[RasProcess, ...], codes: tuple[str, ...] = ()
) -> Occurrence:
    """Return whom it speaks of. The rank is the communicator's, which is the job's where that holds all ranks."""
    return Occurrence(
        ranks=tuple(each.rank for each in processes if each.rank is not None),
        hosts=tuple(dict.fromkeys(each.host for each in processes if each.host)),
        comm=statement.comm,
        stream=-2,
        line=statement.line,
        codes=codes,
    )
