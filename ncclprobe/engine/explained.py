"""What the files that a job left, or the job itself, come to: verdicts, and the sections of a report that say why."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.log.harmless import harmless, understood
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.judge import judge
from ncclprobe.engine.left import LeftBehind
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.files.job_log import Explained, JobLog, LogEvent
from ncclprobe.facts.job.standing import Stand
from ncclprobe.localise.causes import causes
from ncclprobe.localise.clocks import Clocks, clocks
from ncclprobe.localise.next_steps import with_next_steps
from ncclprobe.localise.outcome import ended_well, events_at, likeliest, lived_on, outcome, with_the_unknown_line
from ncclprobe.localise.rank_ends import with_suspects
from ncclprobe.localise.timeline import not_understood, ranks, timeline
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Evidence, ExitCode, Severity, Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace


def judged(checks: Sequence[Check], left: Facts, job: Job) -> tuple[Verdict, ...]:
    """Return what the checks say whose facts were given: evidence that is missing makes no rows."""
    given = [check for check in checks if all(n.fact in left or n.accepts_absent for n in check.needs)]
    given = [check for check in given if any(need.fact in left for need in check.needs)]
    verdicts = judge([], given, job, left)
    last = [check for check in checks if any(need.fact is Explained for need in check.needs)]
    log = left.get(JobLog)
    if not isinstance(log, JobLog):
        return verdicts
    survived = {(e.stream, e.line) for e in events_at(log, _failing(verdicts, checks)) if lived_on(log, e)}
    verdicts = tuple(_without(verdict, survived, checks) for verdict in verdicts)
    for check in last:  # each knows what those before it said
        verdicts = (*verdicts, *judge([], [check], job, left | {Explained: _explained(verdicts, checks)}))
    return verdicts


def _without(verdict: Verdict, survived: Collection[tuple[int, int]], checks: Sequence[Check]) -> Verdict:
    """Return a verdict without findings that rest on lines after which their process went on: they ended nothing."""
    kept = tuple(f for f in verdict.findings if not (o := f.occurrence) or (o.stream, o.line) not in survived)
    if kept == verdict.findings:
        return verdict
    passed = replace(verdict, findings=kept, status=verdict.status if kept else Status.PASS)
    return next(check for check in checks if check.id == verdict.id).titled(passed)


def _explained(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> Explained:
    found = _causes(verdicts, checks, {})
    said = [f.occurrence for verdict in verdicts for f in verdict.findings if f.occurrence]
    return Explained(
        tuple(each.code for each in found if each.confidence == "named" and each.severity is Severity.FAIL),
        tuple(each.id for each in found if each.confidence != "named"),
        frozenset((each.stream, each.line) for each in said),
        _failing(verdicts, checks),
        tuple(dict.fromkeys(code for each in found if each.confidence == "narrowed" for code in each.could_be)),
    )


def _without_the_silent(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the verdicts but the one that rests on the last lines of ranks that say nothing."""
    return [verdict for verdict in verdicts if verdict.id != "log.rank-fell-silent"]


def _failing(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> frozenset[tuple[int, int]]:
    """Return the lines that speak of a failure: of what fails, and of consequences."""
    consequences = {check.id for check in checks if check.cause and not check.cause.code}
    return frozenset(
        (o.stream, o.line)
        for verdict in verdicts
        for finding in verdict.findings
        if (o := finding.occurrence)
        and (finding.severity is Severity.FAIL or (verdict.id in consequences and finding.severity is Severity.WARN))
    )


def _causes(verdicts: Sequence[Verdict], checks: Sequence[Check], ahead_s: Mapping[str, float]) -> tuple[Cause, ...]:
    return causes(verdicts, {check.id: check.cause for check in checks if check.cause}, ahead_s)


def conclusion(said: Mapping[str, Any], verdicts: Sequence[Verdict]) -> tuple[Status, ExitCode]:
    """Return the status, and the code for ``--exit-code``: of a cause that is named, and of a failure without one.

    `said`: the sections of the report.
    """
    found = said["causes"]
    named = {each.severity for each in found if each.confidence == "named"}
    if said["outcome"] == "ended-well":
        return Status.PASS, ExitCode.OK
    if named:
        return Status.FAIL if Severity.FAIL in named else Status.WARN, ExitCode.FAIL
    if found or any(v.status is Status.UNKNOWN and v.required for v in verdicts):
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return Status.PASS, ExitCode.OK


def notes(left: LeftBehind) -> tuple[str, ...]:
    """Return what a reader must know of the files as a whole: whose clocks agree, and what was not read."""
    log = left.facts.get(JobLog)
    return (
        tuple(filter(None, (clocks(log).in_words(), *_cut_short(log), *log.unread))) if isinstance(log, JobLog) else ()
    )


def _cut_short(log: JobLog) -> Iterator[str]:
    """Yield which logs end within a line of NCCL's, which does not flush what it writes to standard output."""
    cut = {number for number, stream in enumerate(log.streams) if stream.cut_short}
    of_nccl = {event.stream for event in log.events if event.stream in cut and event.host and event.pid}
    names = [log.streams[number].name for number in sorted(of_nccl)]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield (
            f"{', '.join(names[:3])}{more} ends within a line: NCCL does not flush standard output, so that what it "
            "said last is lost; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p keeps it"
        )


def _slow(found: Sequence[Cause]) -> Iterator[str]:
    """Yield what may have made a job slow that ended well all the same."""
    return (f"it may have been slow: {each.message} ({each.code})" for each in found)


def sections(left: LeftBehind, verdicts: Sequence[Verdict], checks: Sequence[Check]) -> dict[str, Any]:
    """Return the sections of a report that say why a job failed."""
    log, records = left.facts.get(JobLog), left.facts.get(FlightRecords)
    times = clocks(log) if log else Clocks()
    stand = left.facts.get(Stand)
    found = _causes(verdicts, checks, times.ahead_s)
    failing = _failing(_without_the_silent(verdicts), checks)
    well: tuple[Evidence, ...] = ()
    slow: tuple[str, ...] = ()
    if log and not stand:  # a job that runs has come to no end
        well = () if left.failed or FlightRecords in left.facts else ended_well(log, failing)
        slow = tuple(_slow(found)) if well else ()
        found = () if well else with_the_unknown_line(log, found, _unknown_line(left, log, verdicts, found))
    found = with_suspects(found, log, failing) if log else found
    found = found if stand else with_next_steps(found, log, records=records is not None)
    return {
        "files": left.kinds,
        "outcome": "" if stand else outcome(found, well),
        "ended_well": well,
        "slow": slow,
        "causes": found,
        "timeline": timeline(log, verdicts, times.ahead_s),
        "ranks": ranks(log, records),
        "standing": stand and stand.answer,
        "classes": stand.classes if stand else (),
        "not_understood": (*left.not_understood, *(not_understood(log, verdicts, understood) if log else ())),
    }


def _unknown_line(
    left: LeftBehind, log: JobLog, verdicts: Sequence[Verdict], found: Sequence[Cause]
) -> LogEvent | None:
    """Return the line that most likely says why, if no check knows it; None: there is none."""
    known = {(f.occurrence.stream, f.occurrence.line) for v in verdicts for f in v.findings if f.occurrence}
    return likeliest(log, known, harmless, any_level=left.failed, launcher=not found)
