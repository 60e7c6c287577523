"""Why a job failed, and whether the check for the cause had found it in earlier reports and captures of its nodes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ncclprobe.engine.collect import replayed
from ncclprobe.engine.diagnose import MACHINE, Question, diagnose, every_check
from ncclprobe.engine.inventory import LOUDEST_FIRST
from ncclprobe.engine.job_files import excerpts
from ncclprobe.engine.judge import judge
from ncclprobe.host import job_files
from ncclprobe.logs import messages
from ncclprobe.logs.read import JobFiles, looked_at, refuse_nothing_read
from ncclprobe.model.causes import Cause, When
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import grouped, replace

_SAID = {
    Status.FAIL: "failed",
    Status.WARN: "warned",
    Status.PASS: "passed",
    Status.SKIP: "did not apply",
    Status.UNKNOWN: "could not be done",
}


def explain(
    question: Question,
    files: Sequence[job_files.JobFile],
    read: Callable[[str], Report],
    show: Callable[[str], None] = lambda _: None,
    *,
    asked: When | None = None,
) -> Report:
    """Make the report on the files of a job; `read` reads a report among them. `asked`: what the user says about it.

    Raises UsageError if nothing can be read.
    """
    signs = [sign for check in question.checks if check.cause for sign in check.cause.signs]
    signs += messages.use(Path(question.accepted.messages) if question.accepted.messages else None)
    found = replace(add_running_job(looked_at(files, signs, show)), asked=asked)
    refuse_nothing_read(found, files)
    report = diagnose(question, facts={JobFiles: found})
    if question.pictures:
        report = replace(report, excerpts=excerpts(report.causes, files))
    if not (found.reports or found.captures):
        return report
    said = {path: read(path).checks for path in found.reports}
    if found.captures:
        said["captures"] = judge_captures(found.captures, report.causes)
    return replace(report, causes=add_verdicts(report.causes, said))


def add_running_job(found: JobFiles) -> JobFiles:
    """Return the facts of the files, and the state of the job if they contain captures of `ncclprobe attach --keep`."""
    from ncclprobe.engine import running  # imports of a running job, which other files do without

    snapshots = running.kept(found.captures) if found.captures else ()
    if not snapshots:
        return found
    seen = running.stands(snapshots)
    return replace(found, facts={**found.facts, **seen.facts}, kinds=(*found.kinds, *seen.kinds))


def judge_captures(paths: Sequence[str], found: Sequence[Cause]) -> tuple[Verdict, ...]:
    """Return the verdicts on captured machines of the checks that find these causes. Raises UsageError."""
    wanted = {cause.doctor for cause in found}
    checks = [check for check in every_check(MACHINE) if check.id in wanted]
    if not paths or not checks:
        return ()
    return judge(
        replayed([Path(path) for path in paths], discover("ncclprobe.facts", Collector, MACHINE)), checks, Job()
    )


def add_verdicts(found: Sequence[Cause], by_source: Mapping[str, Sequence[Verdict]]) -> tuple[Cause, ...]:
    """Add its check's verdict to each cause. `by_source`: the verdicts of each report, and of captures."""
    return tuple(replace(cause, checked=_join_sources(cause.doctor, by_source)) for cause in found)


def _join_sources(wanted: str, by_source: Mapping[str, Sequence[Verdict]]) -> str:
    parts = []
    for source, verdicts in by_source.items() if wanted else ():
        said_of = grouped((v.node or "the nodes together", v.status) for v in verdicts if v.id == wanted)
        own = grouped((min(said, key=LOUDEST_FIRST.index), node) for node, said in said_of.items())
        first = {v.status: f"{v.findings[0].message}" for v in reversed(verdicts) if v.id == wanted and v.findings}
        said = "; ".join(
            f"{_SAID[status]} on {fold(dict.fromkeys(nodes))}{f': {first[status]}' if status in first else ''}"
            for status, nodes in own.items()
        )
        parts.append(f"{source}: it {said}" if said else f"{source}: it was not asked")
    return f" ({', '.join(parts)})" if parts else ""
