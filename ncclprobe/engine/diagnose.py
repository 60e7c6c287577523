"""From snapshots of all nodes to the doctor's report. Nothing here looks at a machine, and nothing is written."""

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ncclprobe import __version__
from ncclprobe.checks import MEASURED
from ncclprobe.engine import suppressions
from ncclprobe.engine.judge import conclude, coverage, judge, part_of, selected, status_by_node, suppress
from ncclprobe.errors import UsageError
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software
from ncclprobe.facts.system import System
from ncclprobe.model.findings import ExitCode, Status, Suppression
from ncclprobe.model.registry import discover
from ncclprobe.model.report import LaunchRow, NodeEnvironment, NodeRow, Report, Setting, Tool
from ncclprobe.model.rules import Check
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.units import printable


@dataclass(frozen=True, slots=True)
class Question:
    """What one run of the doctor was asked: its options, when it began, and what it judges by."""

    options: argparse.Namespace
    command: Sequence[str]
    checks: tuple[Check, ...]
    accepted: tuple[suppressions.Ignore, ...]
    started: datetime
    clock: float

    @property
    def job(self) -> Job:
        """What the user is about to run."""
        return Job(self.options.backend, self.options.expect_gpus, self.options.local)


def ask(options: argparse.Namespace, command: Sequence[str]) -> Question:
    """The question that `options` put, beginning now. Raises UsageError."""
    started, clock = datetime.now(timezone.utc), time.monotonic()
    accepted = suppressions.load(options.config, discover("ncclprobe.checks", Check))
    return Question(options, command, doctor_checks(options.select, options.ignore), accepted, started, clock)


def every_check() -> tuple[Check, ...]:
    """All checks by id."""
    return tuple(sorted(discover("ncclprobe.checks", Check), key=lambda check: check.id))


def doctor_checks(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks that judge a machine, as far as `select` and `ignore` let them.

    Raises UsageError for a pattern that names none: a misspelt one would otherwise judge, or spare, nothing.
    """
    found = [c for c in discover("ncclprobe.checks", Check) if not c.id.startswith(MEASURED)]
    for option, patterns in (("--select", select), ("--ignore", ignore)):
        for pattern in patterns:
            if not selected(found, [pattern.partition("=")[0]]):
                raise UsageError(f"{option} {pattern}: matches no check; ids are such as 'env.bool-word', or 'env.*'")
    return selected(found, select, ignore)


def diagnose(
    question: Question, snapshots: Sequence[Snapshot], missing: Sequence[str] = (), remarks: Sequence[str] = ()
) -> Report:
    """The report on all nodes of a job: `missing` are those that nobody looked at."""
    options, checks = question.options, question.checks
    verdicts, suppressed = suppress(judge(snapshots, checks, question.job), options.ignore)
    verdicts, lived_with = suppressions.suppress(verdicts, question.accepted)
    judged = {c.id for c in checks}
    left_out = (c.id for c in doctor_checks(options.select) if c.id not in judged)
    suppressed += (*lived_with, *(Suppression(name, "every subject", "--ignore") for name in left_out))
    launch = launch_of(snapshots[0])
    status, code = conclude(verdicts, options.fail_on, inconclusive=bool(missing))
    each = status_by_node([s.node for s in snapshots], verdicts, options.fail_on)
    return Report(
        tool=Tool("ncclprobe", __version__),
        started=question.started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - question.clock, 3),
        command=printable(shlex.join(["ncclprobe", "doctor", *question.command])),
        status=status,
        exit_code=code,
        launch=LaunchRow(launch.kind, launch.nnodes, launch.world_size),
        nodes=tuple(_node_row(s, place, each[s.node]) for place, s in enumerate(snapshots)),
        missing_nodes=tuple(missing),
        checks=verdicts,
        coverage=coverage(verdicts),
        suppressed=suppressed,
        environment={s.node: _environment(s) for s in snapshots},
        **(_pictures(snapshots, question.job) if options.verbose or options.json or options.html else {}),
        remarks=tuple(remarks),
    )


def exit_of(node: str, report: Report, fail_on: str, whole: bool = False) -> ExitCode:
    """With what one node of several leaves: node 0, and with `whole` everybody, with the worst of all.

    Contract, Whose exit.
    """
    if whole or node == report.nodes[0].name:
        return ExitCode(report.exit_code)
    return conclude(part_of(node, report.checks), fail_on)[1]


def launch_of(snapshot: Snapshot) -> Launch:
    """How this node's process was started; of kind none where that is not known."""
    launch = snapshot.facts.get(Launch)
    return launch if isinstance(launch, Launch) else Launch()


def _pictures(snapshots: Sequence[Snapshot], job: Job) -> dict[str, Any]:
    """The report's `topology` and `choices`, by node: only made, and imported, where somebody will see them."""
    from ncclprobe.nccl.selection import choose
    from ncclprobe.topology.node import layout

    chosen = {s.node: choose(s) for s in snapshots} if job.backend == "nccl" else {}
    return {"topology": {s.node: layout(s) for s in snapshots}, "choices": chosen}


def _node_row(snapshot: Snapshot, place: int, status: Status) -> NodeRow:
    system = snapshot.facts.get(System)
    hostname = system.hostname if isinstance(system, System) else snapshot.node
    rank = launch_of(snapshot).node_rank
    return NodeRow(snapshot.node, place if rank is None else rank, hostname, status)


def _environment(snapshot: Snapshot) -> NodeEnvironment:
    """Versions and settings for the report; what is not known is null."""
    settings = snapshot.facts.get(Settings)
    rows: tuple[Setting, ...] = tuple(settings.effective.values()) if isinstance(settings, Settings) else ()
    return NodeEnvironment(_versions(snapshot.facts), rows)


def _versions(facts: Mapping[type, Any]) -> dict[str, str | None]:
    system, software, gpus = (facts.get(kind) for kind in (System, Software, Gpus))
    versions: dict[str, str | None] = {"kernel": None, "torch": None, "nccl": None, "driver": None}
    if isinstance(system, System):
        versions |= {"kernel": system.kernel, "distribution": system.distribution or None}
    if isinstance(software, Software):
        nccl = ".".join(map(str, software.nccl_version or ()))
        versions |= {**software.packages, "nccl": nccl or "none found"}
    if isinstance(gpus, Gpus):
        versions |= {"driver": gpus.driver, "cuda": ".".join(map(str, gpus.cuda))}
    return versions
