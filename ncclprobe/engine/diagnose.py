"""From facts to the report: the only place where one is made. Nothing here looks at a machine, and nothing is written.

A **question** names the sources that it asks: the doctor a machine, a measuring run the machine and its own samples.
A check is asked if the sources of all its needs are.
"""

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ncclprobe import __version__, page, run_clock
from ncclprobe.engine import evidence_excerpts, inventory, site, stability, suppressions
from ncclprobe.engine.collect import Facts, with_choices
from ncclprobe.engine.judge import Share, conclude, coverage, judge, selected, shares, suppress
from ncclprobe.errors import UsageError, unknown
from ncclprobe.facts.data_paths import DataRates
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.reach import Rails
from ncclprobe.facts.software import Software
from ncclprobe.facts.system import System
from ncclprobe.model.findings import ExitCode, Status, Suppression, Verdict
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.pair_results import RailWay
from ncclprobe.model.path_rates import PathRate
from ncclprobe.model.registry import Check, Source, discover
from ncclprobe.model.report import LaunchRow, NodeEnvironment, NodeRow, Report, Setting, Tool
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import Struct, replace
from ncclprobe.units import printable

if TYPE_CHECKING:
    from ncclprobe.engine.job_files import JobFiles

MACHINE: frozenset[Source] = frozenset({"machine"})
MEASURED: frozenset[Source] = frozenset({"machine", "run"})
LEFT: frozenset[Source] = frozenset({"files", "job"})


class Judging(Protocol):
    """The options that every command has which judges."""

    @property
    def select(self) -> Sequence[str]: ...
    @property
    def ignore(self) -> Sequence[str]: ...
    @property
    def config(self) -> Path | None: ...
    @property
    def fail_on(self) -> str: ...
    @property
    def verbose(self) -> bool: ...
    @property
    def json(self) -> str | None: ...
    @property
    def html(self) -> str | None: ...
    @property
    def new_checks(self) -> str | None: ...


class Asked(Struct, frozen=True):
    """The same without a command line. The report holds all that its JSON does."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    config: Path | None = suppressions.NO_FILE
    fail_on: str = "fail"
    verbose: bool = True
    json: str | None = None
    html: str | None = None
    new_checks: str | None = None


class Question(Struct, frozen=True):
    """What a command was asked: which checks judge what, since when, and what a site accepts.

    `command` is what was typed, `left_out` the ids that --ignore leaves out, `accepted` what ncclprobe.toml holds.
    `pictures`: whether topology and NCCL's choices are to be in the report; the last line of accept says widths.
    `gates`: whether what is found makes the exit code. It is not where files are explained, unless that is asked for.
    """

    command: tuple[str, ...]
    checks: tuple[Check, ...]
    left_out: tuple[str, ...]
    ignore: tuple[str, ...]
    accepted: suppressions.Accepted
    fail_on: str
    job: Job
    pictures: bool
    started: datetime
    clock: float
    gates: bool = True


def ask(options: Judging, command: Sequence[str], job: Job, sources: frozenset[Source] = MACHINE) -> Question:
    """Return the question that `options` put to `sources`, in the run that has begun. Raises UsageError."""
    clock = run_clock.began()
    started = datetime.now(timezone.utc) - timedelta(seconds=time.monotonic() - clock)
    accepted = accepted_by(options.config)
    found = stability.judged_as(options.new_checks or accepted.new_checks, every_check(sources, accepted.checks))
    for option, patterns in (("--select", options.select), ("--ignore", options.ignore)):
        _refuse_unknown(option, patterns, found)
    checks, wanted = selected(found, options.select, options.ignore), selected(found, options.select)
    return Question(
        command=("ncclprobe", *command),
        checks=checks,
        left_out=tuple(c.id for c in wanted if c not in checks),
        ignore=tuple(options.ignore),
        accepted=accepted,
        fail_on=options.fail_on,
        job=job,
        pictures=bool(options.verbose or options.json or options.html) or command[:1] == ("accept",),
        started=started,
        clock=clock,
    )


def doctor_question(options: argparse.Namespace, argv: Sequence[str]) -> Question:
    """Return the doctor's question. Raises UsageError."""
    job = Job(options.backend, options.expect_gpus, options.expect_nics, options.local, options.mixed_gpus)
    if options.baseline:
        from ncclprobe.expect.baselines import expected_paths  # and with it what was measured of collectives

        job = replace(job, path_rates=expected_paths(options.baseline))
    return ask(options, ("doctor", *argv), job)


def accepted_by(config: Path | None) -> suppressions.Accepted:
    """Return what the configuration file at `config` accepts (null: that of the working directory, if there is one).

    Raises UsageError for a file that is not understood, or a folder of checks that is not to be trusted.
    """
    return suppressions.load(config, lambda folder: every_check(None, folder))


def every_check(sources: frozenset[Source] | None = None, folder: str = "") -> tuple[Check, ...]:
    """Return the checks whose needs all come from `sources` (null: any), in the order of their modules, then a site's.

    Those are of installed distributions and in `folder`. Raises UsageError for a folder that is not to be trusted.
    """
    found = discover("ncclprobe.checks", Check) if sources is None else discover("ncclprobe.checks", Check, sources)
    return (*found, *site.checks(sources, folder))


def _refuse_unknown(option: str, patterns: Sequence[str], checks: Sequence[Check]) -> None:
    """Refuse a pattern without a check. Raises UsageError: a misspelt one would otherwise judge, or spare, nothing."""
    for pattern in patterns:
        if not selected(checks, [pattern.partition("=")[0]]):
            wanted, ids = pattern.partition("=")[0], [check.id for check in checks]
            near = [f"'{wanted}.*'"] if any(each.startswith(f"{wanted}.") for each in ids) else []
            raise UsageError(f"{option}: {unknown(wanted, 'check', ids, '`ncclprobe checks` lists them', near)}")


def diagnose(
    question: Question,
    snapshots: Sequence[Snapshot],
    run: Facts | None = None,
    missing: Sequence[str] = (),
    notes: Sequence[str] = (),
    left: "JobFiles | None" = None,
) -> Report:
    """Make the report on all nodes of a job and on what it measured.

    `run`: the facts of a measuring run; null: nothing was measured. `missing`: the nodes that could not be looked at.
    `left`: what the files say that a job left.
    """
    if run is not None:
        from ncclprobe.engine import measured  # imports of what was measured, which the doctor does without

        run = measured.concluded(run)
    job = question.job if run is None else measured.job_of(run, question.job)
    snapshots = with_choices(snapshots, question.checks)
    if left is None:
        verdicts = judge(snapshots, question.checks, job, run)
    else:
        from ncclprobe.engine import job_files  # and with it the readers of logs

        notes = (*notes, *job_files.notes(left))
        verdicts = job_files.judged(question.checks, left.facts, job)
    verdicts, suppressed, announced = _without_accepted(question, verdicts)
    if run is not None:
        unused = {s.node: measured.unused_devices(s, run) for s in snapshots}
        verdicts = measured.weighed(verdicts, question.checks, unused, run)
        verdicts = measured.relate(verdicts, question.checks, unused)
    counted = verdicts if run is None else measured.counted(verdicts, question.checks, run)
    status, code = conclude(counted, question.fail_on, inconclusive=bool(missing) and run is None)
    launch = _launch_row(snapshots) if run is None else measured.launch_row(run)
    environment = {s.node: _environment(s) for s in snapshots}
    notes = (*announced, *notes, *_plans(snapshots), *(() if run is None else measured.notes(run)))
    if left is not None:
        said = job_files.sections(left, verdicts, question.checks)
        status, code = job_files.conclusion(said, verdicts)
        code = code if question.gates else ExitCode.OK
        notes = (*notes, *said.pop("slow"))
    else:
        rows = "" if run is None else measured.in_words(run)
        said = {
            "scope": inventory.scope(snapshots, job),
            "areas": inventory.areas(snapshots, verdicts, job, launch.nnodes, rows),
        }
    return Report(
        tool=Tool("ncclprobe", __version__),
        started=question.started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - question.clock, 3),
        command=printable(shlex.join(question.command)),
        status=status,
        exit_code=code,
        launch=launch,
        nodes=_nodes(snapshots, verdicts, question.fail_on) if run is None else measured.node_rows(run, counted),
        missing_nodes=tuple(missing),
        checks=verdicts,
        pages={verdict.id: page(verdict.id) for verdict in verdicts if verdict.findings},
        coverage=coverage(verdicts),
        suppressed=suppressed,
        environment=environment if run is None else measured.environments(run, environment),
        path_rates=_path_rates(snapshots),
        **(_pictures(snapshots, job) if question.pictures and snapshots else {}),
        **({} if run is None else measured.sections(run)),
        **said,
        rails=_rail_ways(snapshots),
        explained=evidence_excerpts.explained(verdicts, question.checks),
        excerpts=evidence_excerpts.of_machines(verdicts, snapshots) if question.pictures else (),
        notes=tuple(dict.fromkeys(notes)),
    )


def _without_accepted(
    question: Question, verdicts: Sequence[Verdict]
) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...], tuple[str, ...]]:
    """Return the verdicts without what --ignore and the site's configuration accept, all that is so accepted, and the
    notes on what is not ncclprobe's own.
    """
    judged, ignored = suppress(verdicts, question.ignore)
    judged, accepted = suppressions.suppress(judged, question.accepted.entries)
    left_out = (Suppression(name, "every subject", "--ignore") for name in question.left_out)
    notes = (*question.accepted.announce(accepted), *site.origins(question.checks))
    return judged, (*ignored, *accepted, *left_out), notes


def _rail_ways(snapshots: Sequence[Snapshot]) -> tuple[RailWay, ...]:
    """Return the report's `rails`: imported only where some were tried."""
    if not any(isinstance(snapshot.facts.get(Rails), Rails) for snapshot in snapshots):
        return ()
    from ncclprobe.engine.rails import rail_ways

    return rail_ways(snapshots)


def _plans(snapshots: Sequence[Snapshot]) -> list[str]:
    """Return what was asked of the fabric, as node 0 planned it."""
    seen = (snapshot.facts.get(Rails) for snapshot in snapshots)
    return [f"rails: {each.plan}" for each in seen if isinstance(each, Rails) and each.plan]


def leaves(report: Report, fail_on: str, whole: bool = False) -> dict[str, Share]:
    """Return with what each node leaves: node 0, and with `whole` every node, with the worst code of all.

    See docs/reference/exit-codes.md.
    """
    names = [node.name for node in report.nodes]
    found = shares(names, report.checks, fail_on)
    code = ExitCode(report.exit_code)
    return found | {name: replace(found[name], exit_code=code) for name in (names if whole else names[:1])}


def launch_of(snapshot: Snapshot) -> Launch:
    """Return how this node's process was started; of kind none where that is not known."""
    launch = snapshot.facts.get(Launch)
    return launch if isinstance(launch, Launch) else Launch()


def _launch_row(snapshots: Sequence[Snapshot]) -> LaunchRow:
    launch = launch_of(snapshots[0]) if snapshots else Launch()
    return LaunchRow(launch.kind, launch.nnodes, launch.world_size)


def _pictures(snapshots: Sequence[Snapshot], job: Job) -> dict[str, Any]:
    """Return the report's `topology` and `choices`, by node: made, and imported, only where a reader will see them."""
    from ncclprobe.nccl.selection import choose
    from ncclprobe.topology.node import layout

    chosen = {s.node: s.facts.get(Choices) or choose(s) for s in snapshots} if job.backend == "nccl" else {}
    return {"topology": {s.node: layout(s) for s in snapshots}, "choices": chosen}


def _path_rates(snapshots: Sequence[Snapshot]) -> tuple[PathRate, ...]:
    said = {s.node: s.facts.get(DataRates) for s in snapshots}
    return tuple(
        replace(row, node=node) for node, rates in said.items() if isinstance(rates, DataRates) for row in rates.rows
    )


def _nodes(snapshots: Sequence[Snapshot], verdicts: Sequence[Verdict], fail_on: str) -> tuple[NodeRow, ...]:
    each = shares([s.node for s in snapshots], verdicts, fail_on)
    return tuple(_node_row(s, place, each[s.node].status) for place, s in enumerate(snapshots))


def _node_row(snapshot: Snapshot, place: int, status: Status) -> NodeRow:
    system = snapshot.facts.get(System)
    hostname = system.hostname if isinstance(system, System) else snapshot.node
    rank = launch_of(snapshot).node_rank
    return NodeRow(snapshot.node, place if rank is None else rank, hostname, status)


def _environment(snapshot: Snapshot) -> NodeEnvironment:
    """Return versions and settings for the report; what is not known is null."""
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
