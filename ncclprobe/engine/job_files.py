"""From a job's files to facts, verdicts, and the sections of a report that explain its end.

Each file is read by its kind, which is recognised by content because people choose the name; logs use all cores. A
running job's own answers are judged and reported the same way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.log.known import follows, harmless, understood
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.diagnose import JudgedNodes, Topic
from ncclprobe.engine.evidence_excerpts import AROUND, LONGEST_LINE, MOST
from ncclprobe.engine.judge import judge
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.host.job_files import Blocks, JobFile
from ncclprobe.logs.answer import answers, is_condition, outcome, when, with_telling_lines
from ncclprobe.logs.causes import causes
from ncclprobe.logs.job_log import Explained, JobLog, LogEvent
from ncclprobe.logs.lines import has_own_reason, states_reason, telling_lines
from ncclprobe.logs.outcome import (
    alone,
    earlier_attempts,
    ended_well,
    events_at,
    last_attempt,
    last_resort,
    lived_on,
)
from ncclprobe.logs.rank_ends import Clocks, clocks, with_suspects
from ncclprobe.logs.read import JobFiles
from ncclprobe.logs.texts import goes_on
from ncclprobe.logs.timeline import (
    cited_lines,
    last_seen,
    not_understood,
    ranks,
    stage,
    standing_still,
    timeline,
    with_next_steps,
)
from ncclprobe.model.causes import Answer, Cause, JobOutcome
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Severity, Status, Verdict
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import Check
from ncclprobe.model.report import Excerpt
from ncclprobe.model.snapshot import Job, learned
from ncclprobe.model.values import replace

_MOST_FILES, _CITED_IN_ONE, _MOST_READ = 12, 4, 64 << 20
"""Limits: logs with lines shown, lines cited of one, and bytes of one that are read again for them."""


def excerpts(causes: Sequence[Cause], files: Sequence[JobFile]) -> tuple[Excerpt, ...]:
    """Return the lines around those that causes cite in logs; a pipe cannot be read again."""
    by_name = {file.name: file for file in files if not file.once}
    wanted: dict[str, dict[int, None]] = {}
    for cause in causes:
        for each in (*cause.evidence, *(one for what in cause.consequences for one in what.evidence[:1])):
            if each.source in by_name and each.line is not None:
                wanted.setdefault(each.source, {})[each.line] = None
    found = []
    for name, numbers in list(wanted.items())[:_MOST_FILES]:
        shown = list(numbers)[:_CITED_IN_ONE]
        lines = _read_lines_around(by_name[name], shown)
        found += [_log_excerpt(name, number, lines) for number in shown if number in lines]
    return tuple(found[:MOST])


def _log_excerpt(name: str, number: int, lines: Mapping[int, str]) -> Excerpt:
    near = [at for at in range(number - AROUND, number + AROUND + 1) if at in lines]
    return Excerpt(
        name, "", f"{name}:{number}", tuple(lines[at].expandtabs(4) for at in near), near[0], (near.index(number),)
    )


def _read_lines_around(file: JobFile, numbers: Sequence[int]) -> dict[int, str]:
    """Return the lines of `file` around `numbers`, by number, reading no further than the last of them."""
    wanted = {at for number in numbers for at in range(number - AROUND, number + AROUND + 1)}
    found: dict[int, str] = {}
    number, rest, read = 1, b"", 0
    try:
        for block in Blocks(file):
            read += len(block)
            *whole, rest = (rest + block).split(b"\n")
            if wanted.isdisjoint(range(number, number + len(whole))):
                number += len(whole)
            else:
                for line in whole:
                    if number in wanted:
                        found[number] = line[:LONGEST_LINE].decode(errors="replace").rstrip("\r")
                    number += 1
            rest = rest[-_MOST_READ:]
            if number > max(wanted) or read > _MOST_READ:
                break
        else:
            if number in wanted and rest:
                found[number] = rest[:LONGEST_LINE].decode(errors="replace")
    except UsageError:
        return found  # it was there when it was read; what is gone cannot be shown
    return found


def judged(checks: Sequence[Check], left: Facts, job: Job) -> tuple[Verdict, ...]:
    """Return the verdicts of the checks whose facts were given: missing evidence makes no rows."""
    given = [check for check in checks if all(n.fact in left or n.accepts_absent for n in check.needs)]
    given = [check for check in given if any(need.fact in left for need in check.needs)]
    verdicts = judge([], given, job, left)
    last = [check for check in checks if any(need.fact is Explained for need in check.needs)]
    log = left.get(JobLog)
    if not isinstance(log, JobLog):
        return verdicts
    survived = {(e.stream, e.line) for e in events_at(log, _failing(verdicts, checks)) if lived_on(log, e)}
    verdicts = tuple(_drop_survived(verdict, survived, checks) for verdict in verdicts)
    for check in last:  # each knows what those before it said
        verdicts = (*verdicts, *judge([], [check], job, left | {Explained: _explained(verdicts, checks)}))
    return verdicts


def _drop_survived(verdict: Verdict, survived: Collection[tuple[int, int]], checks: Sequence[Check]) -> Verdict:
    """Drop findings on lines after which their process continued: they ended nothing."""
    kept = tuple(f for f in verdict.findings if not (o := f.occurrence) or (o.stream, o.line) not in survived)
    if kept == verdict.findings:
        return verdict
    passed = replace(verdict, findings=kept, status=verdict.status if kept else Status.PASS)
    return next(check for check in checks if check.key == verdict.key).titled(passed)


def _explained(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> Explained:
    found = _causes(verdicts, checks, {})
    return Explained(
        tuple(each.code for each in found if each.confidence == "named" and each.severity is Severity.FAIL),
        tuple(each.id for each in found if each.confidence != "named"),
        cited_lines(verdicts),
        _failing(verdicts, checks),
        tuple(dict.fromkeys(code for each in found if each.confidence == "narrowed" for code in each.could_be)),
    )


def _drop_silent_verdict(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Drop the verdict that is based on the last lines of silent ranks."""
    return [verdict for verdict in verdicts if verdict.key != "log.rank-silent/rank-fell-silent"]


def _failing(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> frozenset[tuple[int, int]]:
    """Return the lines that report a failure: of failing findings, and of consequences."""
    consequences = {check.key for check in checks if check.cause and not check.cause.code}
    return frozenset(
        (o.stream, o.line)
        for verdict in verdicts
        for finding in verdict.findings
        if (o := finding.occurrence)
        and (finding.severity is Severity.FAIL or (verdict.key in consequences and finding.severity is Severity.WARN))
    )


def _causes(verdicts: Sequence[Verdict], checks: Sequence[Check], ahead_s: Mapping[str, float]) -> tuple[Cause, ...]:
    found = causes(verdicts, {check.key: check.cause for check in checks if check.cause}, ahead_s)
    return tuple(_add_remedy(each, checks) if each.confidence == "named" else each for each in found)


def _add_remedy(cause: Cause, checks: Sequence[Check]) -> Cause:
    """Give a cause from the table of messages the remedy of the only check for the same cause."""
    own = [check for check in checks if check.cause and check.cause.code == cause.code]
    usual = next((check.fix for check in checks if check.key == cause.id), "")
    general = cause.remedy in ("", usual) or cause.remedy.startswith("check ")
    if cause.id != "log.known-message" or not general or len(own) != 1 or not own[0].cause:
        return cause
    return replace(cause, remedy=own[0].fix, doctor=own[0].cause.doctor)


def _cut_short(log: JobLog) -> Iterator[str]:
    """Name the logs that end within a line of NCCL's, which does not flush what it writes to standard output."""
    cut = {number for number, stream in enumerate(log.streams) if stream.cut_short}
    of_nccl = {event.stream for event in log.events if event.stream in cut and event.host and event.pid}
    names = [log.streams[number].name for number in sorted(of_nccl)]
    if names:
        yield (
            f"{first_of(names, 3)} ends within a line. NCCL does not flush standard output, so its last lines are "
            "lost; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p keeps them"
        )


def _learn(known: JudgedNodes) -> JudgedNodes:
    """Add the files' facts, including the files themselves; for logs those of the last attempt."""
    left = known.facts[JobFiles]
    log = left.facts.get(JobLog)
    last = {JobLog: last_attempt(log, failed=left.asked == "failed")} if isinstance(log, JobLog) else {}
    return replace(known, facts={**known.facts, **left.facts, **last})


def _judge(known: JudgedNodes) -> JudgedNodes:
    return replace(known, verdicts=judged(known.question.checks, known.facts, known.job))


def _conclude(known: JudgedNodes) -> dict[str, Any]:
    """Return the fields of a report that explain a job's failure. A running job has no outcome."""
    left, verdicts, checks = known.facts[JobFiles], known.verdicts, known.question.checks
    log, records = learned(known.facts, JobLog), FlightRecords in known.facts
    stand = learned(known.facts, JobState)
    times = clocks(log) if log else Clocks()
    found = _causes(verdicts, checks, times.ahead_s)
    failing = _failing(_drop_silent_verdict(verdicts), checks)
    well = ended_well(log, failing) if log and not (stand or records or left.asked == "failed") else ()
    beside = _answer_for_ended_well(found) if well else ()
    if well:
        found = tuple(each for each in found if when(each) == left.asked == "slow")
    elif log and not stand:
        found = _add_telling_lines(known, log, found, failing)
    if left.asked:
        found = tuple(each for each in found if when(each) == left.asked or not is_condition(each))
    found = with_suspects(found, log, failing) if log else found
    found = found if stand else with_next_steps(found, log, records=records)
    found = tuple(sorted(found, key=lambda each: when(each) != left.asked))
    happened: JobOutcome = "" if stand else outcome(found, well)
    seen = last_seen(log) if log and happened == "unknown" and not records else ()
    stands = standing_still(log, seen) if log and seen else ()
    told = answers(found, happened, left.asked, stands)
    status, code = _status(found, told, verdicts, well=happened == "ended-well")
    return {
        "status": status,
        "exit_code": code if known.question.judging.gates else ExitCode.OK,
        "files": left.kinds,
        "outcome": happened,
        "answers": told,
        "ended_well": well,
        "last_seen": seen,
        "stands": (*stands, *(stage(log, seen) if log else ())),
        "causes": found,
        "timeline": timeline(log, verdicts, times.ahead_s),
        "ranks": ranks(log, learned(known.facts, FlightRecords)),
        "standing": stand and stand.answer,
        "classes": stand.classes if stand else (),
        "not_understood": (*left.not_understood, *(not_understood(log, verdicts, understood) if log else ())),
        "notes": [*(_log_notes(log, times) if log else ()), *_attempts(left), *_other_files(left), *beside],
    }


def _answer_for_ended_well(found: Sequence[Cause]) -> tuple[str, ...]:
    """Return the answer about causes if the job ended well."""
    failing = (each for each in found if each.severity is Severity.FAIL)
    return tuple(f"not fatal, but worth checking: {each.message} ({each.code})" for each in failing)


_OF_PODS, _PLACED = "FailedScheduling", "Successfully assigned "
"""Kubernetes' messages about any pod: a process's own messages explain more, and so does being scheduled."""


def _add_telling_lines(
    known: JudgedNodes, log: JobLog, found: tuple[Cause, ...], failing: Collection[tuple[int, int]]
) -> tuple[Cause, ...]:
    """If no cause is named, or an inner line contradicts it, prepend the lines that most likely explain the failure."""
    failed = known.facts[JobFiles].asked == "failed"
    told = [(o, f, v.key) for v in known.verdicts for f in v.findings if (o := f.occurrence)]
    said = {(o.stream, o.line): f for o, f, _ in told}
    by_the_table = {(o.stream, o.line) for o, _, key in told if key == "log.known-message"}

    def doubted(event: LogEvent) -> bool:
        own = said.get((event.stream, event.line))
        by_itself = (event.stream, event.line) in by_the_table and states_reason(event, ended=True)
        known_to_follow = own is not None and own.severity is Severity.WARN and not by_itself
        lived = not failed and (lived_on(log, event) or goes_on(event.text, event.level))
        lived = lived or (_OF_PODS in event.text and (bool(failing) or any(log.having(_PLACED))))
        return (
            known_to_follow or lived or (bool(found) and follows(event)) or (harmless(event) and not alone(log, event))
        )

    ranked = telling_lines(log.events, doubted) or (() if found else last_resort(log))
    return with_telling_lines(log, found, ranked, said, failing, failed=failed)


def _status(
    found: Sequence[Cause], told: Sequence[Answer], verdicts: Sequence[Verdict], *, well: bool
) -> tuple[Status, ExitCode]:
    """Return the status, and the code for ``--exit-code``: only known trouble counts."""
    known = [each for each in told if each.known]
    if well and not known:
        return Status.PASS, ExitCode.OK
    said = [each for each in known if each.kind == "named" or (each.kind == "narrowed" and _is_stated(each))]
    if said:
        failed = any(each.when != "slow" for each in said)
        return Status.FAIL if failed else Status.WARN, ExitCode.FAIL
    if known or any(v.status is Status.UNKNOWN and v.required for v in verdicts):
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return Status.WARN if found else Status.PASS, ExitCode.OK


def _is_stated(answer: Answer) -> bool:
    """Return whether an answer's line states what failed and why, although several faults may be behind it."""
    return any(has_own_reason(each.text) for each in answer.evidence)


def _log_notes(log: JobLog, times: Clocks) -> Iterator[str]:
    """Yield notes on the logs as a whole: whose clocks agree, and what was not read."""
    yield from filter(None, (times.in_words(), *_cut_short(log), *log.unread))


def _other_files(left: JobFiles) -> Iterator[str]:
    """Yield which files were left out and why, and what to do with captures among them."""
    if left.left_out:
        yield f"left out: {first_of(left.left_out, 3)}, because they look like documents, not logs; name one to read it"
    if left.captures and not left.facts.keys() - {JobLog}:
        shown = " ".join(left.captures[:2]) + " …" * (len(left.captures) > 2)
        yield f"this answer leaves out the findings on these machines: `ncclprobe doctor {shown}`"


def _attempts(left: JobFiles) -> Iterator[str]:
    log = left.facts.get(JobLog)
    return earlier_attempts(log) if isinstance(log, JobLog) and left.asked != "failed" else iter(())


TOPIC = Topic(_judge, _conclude, learn=_learn)
