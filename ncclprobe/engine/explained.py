"""What the files that a job left come to: verdicts, and the sections of a report that say why the job failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from ncclprobe.checks.log.harmless import HARMLESS
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.judge import judge
from ncclprobe.engine.left import LeftBehind
from ncclprobe.facts.files.explained import Explained
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.localise.causes import causes
from ncclprobe.localise.clocks import Clocks, clocks
from ncclprobe.localise.next_steps import with_next_steps
from ncclprobe.localise.timeline import not_understood, ranks, timeline
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import ExitCode, Severity, Status, Verdict
from ncclprobe.model.rules import Check
from ncclprobe.model.snapshot import Job


def judged(checks: Sequence[Check], left: Facts, job: Job) -> tuple[Verdict, ...]:
    """Return what the checks say whose facts were given: evidence that is missing makes no rows."""
    given = [check for check in checks if all(n.fact in left or n.accepts_absent for n in check.needs)]
    given = [check for check in given if any(need.fact in left for need in check.needs)]
    verdicts = judge([], given, job, left)
    last = [check for check in checks if any(need.fact is Explained for need in check.needs)]
    if JobLog not in left:
        return verdicts
    return (*verdicts, *judge([], last, job, left | {Explained: _explained(verdicts, given)}))


def _explained(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> Explained:
    found = _causes(verdicts, checks, {})
    said = [f.occurrence for verdict in verdicts for f in verdict.findings if f.occurrence]
    return Explained(
        tuple(each.code for each in found if each.confidence == "named" and each.severity is Severity.FAIL),
        tuple(each.id for each in found if each.confidence != "named"),
        frozenset((each.stream, each.line) for each in said),
    )


def _causes(verdicts: Sequence[Verdict], checks: Sequence[Check], ahead_s: Mapping[str, float]) -> tuple[Cause, ...]:
    return causes(verdicts, {check.id: check.cause for check in checks if check.cause}, ahead_s)


def conclusion(found: Sequence[Cause], verdicts: Sequence[Verdict]) -> tuple[Status, ExitCode]:
    """Return the status, and the code for ``--exit-code``: of a cause that is named, and of a failure without one."""
    named = {each.severity for each in found if each.confidence == "named"}
    if named:
        return Status.FAIL if Severity.FAIL in named else Status.WARN, ExitCode.FAIL
    if found or any(v.status is Status.UNKNOWN and v.required for v in verdicts):
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return Status.PASS, ExitCode.OK


def notes(left: LeftBehind) -> tuple[str, ...]:
    """Return what a reader must know of the files as a whole: whose clocks agree, and what was not read."""
    log = left.facts.get(JobLog)
    return tuple(filter(None, (clocks(log).in_words(), *log.unread))) if isinstance(log, JobLog) else ()


def sections(left: LeftBehind, verdicts: Sequence[Verdict], checks: Sequence[Check]) -> dict[str, Any]:
    """Return the sections of a report that say why a job failed."""
    log, records = left.facts.get(JobLog), left.facts.get(FlightRecords)
    times = clocks(log) if log else Clocks()
    found = with_next_steps(_causes(verdicts, checks, times.ahead_s), log, records=records is not None)
    return {
        "files": left.kinds,
        "causes": found,
        "timeline": timeline(log, verdicts, times.ahead_s),
        "ranks": ranks(log, records),
        "not_understood": (*left.not_understood, *(not_understood(log, verdicts, HARMLESS) if log else ())),
    }
