"""Whether the check that finds a cause before a launch did: in reports and captures of the same nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.engine.observe import replayed
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import discover
from ncclprobe.model.rules import Collector
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace

_SAID = {
    Status.FAIL: "failed",
    Status.WARN: "warned",
    Status.PASS: "passed",
    Status.SKIP: "did not apply",
    Status.UNKNOWN: "could not look",
}


def of_captures(paths: Sequence[str], found: Sequence[Cause]) -> tuple[Verdict, ...]:
    """Return what the checks that find these causes say of captured machines. Raises UsageError."""
    wanted = {cause.doctor for cause in found}
    checks = [check for check in every_check(MACHINE) if check.id in wanted]
    if not paths or not checks:
        return ()
    return judge(
        replayed([Path(path) for path in paths], discover("ncclprobe.facts", Collector, MACHINE)), checks, Job()
    )


def with_verdicts(found: Sequence[Cause], by_source: Mapping[str, Sequence[Verdict]]) -> tuple[Cause, ...]:
    """Return the causes, each with what its check said. `by_source`: the verdicts of each report, and of captures."""
    return tuple(replace(cause, checked=_in_words(cause.doctor, by_source)) for cause in found)


def _in_words(wanted: str, by_source: Mapping[str, Sequence[Verdict]]) -> str:
    parts = []
    for source, verdicts in by_source.items() if wanted else ():
        own: dict[Status, list[str]] = {}
        for verdict in verdicts:
            if verdict.id == wanted:
                own.setdefault(verdict.status, []).append(verdict.node or "the nodes together")
        said = "; ".join(f"{_SAID[status]} on {fold(dict.fromkeys(nodes))}" for status, nodes in own.items())
        parts.append(f"{source}: it {said}" if said else f"{source}: it was not asked")
    return f" ({', '.join(parts)})" if parts else ""
