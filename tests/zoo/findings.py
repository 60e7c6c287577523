"""What the doctor finds on captured machines, as short text."""

from functools import cache
from pathlib import Path

import zoo
from ncclprobe.engine.collect import add_choices, replayed
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.model.findings import Finding, Status, Verdict
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot
from zoo import sick

GOLDEN = zoo.CAPTURES / "golden"


def captures() -> list[Path]:
    """Every captured machine, the healthy ones first."""
    return [path for folder in (zoo.CAPTURES, sick.CAPTURES) for path in sorted(folder.glob("*.jsonl"))]


def golden(path: Path) -> Path:
    """Where the findings of a capture are kept."""
    return GOLDEN / path.relative_to(zoo.CAPTURES).with_suffix(".txt")


@cache
def looked_at(path: Path) -> Snapshot:
    """What one capture tells, with what NCCL would choose there."""
    return add_choices(replayed([path], discover("ncclprobe.facts", Collector, {"machine"})), every_check(MACHINE))[0]


@cache
def judged(path: Path) -> tuple[Verdict, ...]:
    """The verdicts of all checks on one capture."""
    return judge([looked_at(path)], every_check(MACHINE), Job())


def findings(path: Path) -> list[tuple[str, Finding]]:
    """Each finding with the id of its check, in the order of their names."""
    found = [(verdict.id, finding) for verdict in judged(path) for finding in verdict.findings]
    return sorted(found, key=lambda pair: (pair[0], pair[1].subject, pair[1].message))


def short(check_id: str, finding: Finding) -> str:
    """``severity id subject``."""
    return f"{finding.severity.value} {check_id} {finding.subject}"


def text(path: Path) -> str:
    """A line for each finding, and the checks that did not apply or could not look."""
    found = "".join(f"{short(name, finding)}: {finding.message}\n" for name, finding in findings(path))
    for status in (Status.SKIP, Status.UNKNOWN):
        silent = sorted(f"{each.id}/{each.part}".rstrip("/") for each in judged(path) if each.status is status)
        found += f"{status.value}: {' '.join(silent)}\n"
    return found
