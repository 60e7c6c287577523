"""From facts to the report: the only place where one is made. Nothing here looks at a machine, and nothing is written.

A **question** names its sources: the doctor's is a machine, a measuring run's the machine and its own samples. A check
runs if the sources of all its needs are among them. Each source has a **topic**, which learns, judges, weighs and
concludes; the last one concludes for all.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from ncclprobe import __version__, page, signals
from ncclprobe.engine import evidence_excerpts, site, suppressions
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.judge import Share, coverage, selected, shares, suppress
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.findings import TREND, ExitCode, Suppression, Verdict
from ncclprobe.model.registry import Check, Source, discover
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.units import printable
from ncclprobe.model.values import Struct, field, replace

MACHINE: frozenset[Source] = frozenset({"machine"})
MEASURED: frozenset[Source] = frozenset({"machine", "run"})
LEFT: frozenset[Source] = frozenset({"files", "job"})
HISTORY: frozenset[Source] = frozenset({"history"})


class Judging(Struct, frozen=True):
    """Options that all judging commands share.

    `pictures`: the report has everything that its JSON has. `gates`: findings determine the exit code; when a job is
    explained they do so only on request. `fleet`: the store that the nodes are also judged by.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    config: Path | None = suppressions.NO_FILE
    fail_on: str = "fail"
    pictures: bool = True
    gates: bool = True
    fleet: Path | None = None


class Question(Struct, frozen=True):
    """A command's request: which checks judge what, since when, and what a site accepts.

    `command` is the command line, `left_out` the ids of --ignore, `accepted` the entries of ncclprobe.toml.
    `pictures`: whether the report has topology and NCCL's choices; the last line of accept has widths.
    """

    command: tuple[str, ...]
    sources: frozenset[Source]
    checks: tuple[Check, ...]
    left_out: tuple[str, ...]
    accepted: suppressions.Accepted
    judging: Judging
    job: Job
    pictures: bool
    started: datetime
    clock: float


def ask(judging: Judging, command: Sequence[str], job: Job, sources: frozenset[Source] = MACHINE) -> Question:
    """Build the question of `judging` to `sources`, in the run that has begun. Raises UsageError."""
    clock = signals.began()
    sources |= HISTORY if judging.fleet else frozenset()
    started = datetime.now(timezone.utc) - timedelta(seconds=time.monotonic() - clock)
    accepted = accepted_by(judging.config)
    for pattern in (*judging.select, *judging.ignore) if judging.fleet is None else ():
        if pattern.startswith(TREND):
            raise UsageError(f"{pattern[:80]} needs a store of reports; pass --fleet PATH")
    found = every_check(sources, accepted.checks)
    for option, patterns in (("--select", judging.select), ("--ignore", judging.ignore)):
        _refuse_unknown(option, patterns, found)
    checks, wanted = selected(found, judging.select, judging.ignore), selected(found, judging.select)
    return Question(
        command=("ncclprobe", *without_secrets(command)),
        sources=sources,
        checks=checks,
        left_out=tuple(dict.fromkeys(c.id for c in wanted if c not in checks)),
        accepted=accepted,
        judging=judging,
        job=job,
        pictures=judging.pictures or command[:1] == ("accept",),
        started=started,
        clock=clock,
    )


SECRET_OPTIONS = ("--redact-key",)
"""Their values are never shown: the holder of the key can match originals with pseudonyms."""


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """Replace the value of each of SECRET_OPTIONS in a command line by `…`."""
    told: list[str] = []
    for word in command:
        option = word.partition("=")[0]
        if told and told[-1] in SECRET_OPTIONS:
            told.append("…")
        else:
            told.append(f"{option}=…" if word != option and option in SECRET_OPTIONS else word)
    return tuple(told)


def accepted_by(config: Path | None) -> suppressions.Accepted:
    """Return what the configuration file at `config` accepts (None: the working directory's file, if there is one).

    Raises UsageError for a malformed file, or an untrusted folder of checks.
    """
    return suppressions.load(config, lambda folder: every_check(None, folder))


def every_check(sources: frozenset[Source] | None = None, folder: str = "") -> tuple[Check, ...]:
    """Return the checks whose needs all come from `sources` (None: any), ordered by id, then a site's.

    A site's checks are in installed distributions and in `folder`. Raises UsageError for an untrusted folder.
    """
    found = discover("ncclprobe.checks", Check) if sources is None else discover("ncclprobe.checks", Check, sources)
    return (*sorted(found, key=attrgetter("key")), *site.checks(sources, folder))


def _refuse_unknown(option: str, patterns: Sequence[str], checks: Sequence[Check]) -> None:
    """Raise UsageError for a pattern that matches no check: a misspelt one would judge, or suppress, nothing."""
    for pattern in patterns:
        if not selected(checks, [pattern.partition("=")[0]]):
            wanted, ids = pattern.partition("=")[0], [*dict.fromkeys(check.id for check in checks)]
            near = [f"'{wanted}.*'"] if any(each.startswith(f"{wanted}.") for each in ids) else []
            raise UsageError(f"{option}: {unknown(wanted, 'check', ids, '`ncclprobe checks` lists all checks', near)}")


class JudgedNodes(Struct, frozen=True):
    """What a report is made from: each node's facts, and `facts` of the run or job.

    `missing`: nodes that could not be examined. `verdicts`: of the topics that have judged.
    """

    question: Question
    job: Job
    snapshots: tuple[Snapshot, ...] = ()
    facts: Facts = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


def unchanged(known: JudgedNodes) -> JudgedNodes:
    """Return `known`: a step that adds nothing."""
    return known


class Topic(Struct, frozen=True):
    """What is judged together, in steps that each add to what is known.

    `learn`: facts that follow from others. `judge`: verdicts. `weigh`: how verdicts count, and what explains them,
    without those that the site accepts. `conclude`: fields of the report; ``status``, ``exit_code`` and ``notes`` are
    always present.
    """

    judge: Callable[[JudgedNodes], JudgedNodes]
    conclude: Callable[[JudgedNodes], dict[str, Any]]
    learn: Callable[[JudgedNodes], JudgedNodes] = unchanged
    weigh: Callable[[JudgedNodes], JudgedNodes] = unchanged


_TOPICS: Mapping[Source, str] = {"machine": "doctor", "run": "measured", "files": "job_files", "job": "job_files"}
"""The module of each source's topic, after those it builds on; imported on demand."""


def diagnose(
    question: Question,
    snapshots: Sequence[Snapshot] = (),
    facts: Facts | None = None,
    missing: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Make the report on all nodes of a job, on a run's measurements, or on a job's files.

    `facts`: those of the run, or of the files. `missing`: nodes that could not be examined. A store, if given, adds the
    nodes' earlier states to a first report.
    """
    without = replace(question, checks=tuple(check for check in question.checks if not check.id.startswith(TREND)))
    if question.judging.fleet is None or not snapshots or without.checks == question.checks:
        return _diagnosed(without, snapshots, facts, missing, notes)
    first = _diagnosed(replace(without, pictures=False), snapshots, facts, missing, notes)
    from ncclprobe.engine.history import add_history  # what only --fleet needs

    return _diagnosed(question, add_history(snapshots, first, question.judging.fleet), facts, missing, notes)


def _diagnosed(
    question: Question, snapshots: Sequence[Snapshot], facts: Facts | None, missing: Sequence[str], notes: Sequence[str]
) -> Report:
    names = dict.fromkeys(name for source, name in _TOPICS.items() if source in question.sources)
    topics: list[Topic] = [import_module(f"ncclprobe.engine.{name}").TOPIC for name in names]
    known = JudgedNodes(question, question.job, tuple(snapshots), facts or {}, tuple(missing))
    for topic in topics:
        known = topic.learn(known)
    for topic in topics:
        known = topic.judge(known)
    verdicts, suppressed, announced = _drop_accepted(question, known.verdicts)
    known = replace(known, verdicts=verdicts)
    for topic in topics:
        known = topic.weigh(known)
    said = topics[-1].conclude(known)
    notes = (*announced, *notes, *said.pop("notes"))
    return Report(
        tool=Tool("ncclprobe", __version__),
        started=question.started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - question.clock, 3),
        command=printable(shlex.join(question.command)),
        missing_nodes=tuple(missing),
        checks=known.verdicts,
        pages={verdict.id: page(verdict.id) for verdict in known.verdicts if verdict.findings},
        coverage=coverage(known.verdicts),
        suppressed=suppressed,
        explained=evidence_excerpts.explained(known.verdicts, question.checks),
        excerpts=evidence_excerpts.machine_excerpts(known.verdicts, snapshots) if question.pictures else (),
        notes=tuple(dict.fromkeys(notes)),
        **said,
    )


def _drop_accepted(
    question: Question, verdicts: Sequence[Verdict]
) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...], tuple[str, ...]]:
    """Drop findings that --ignore and the site's configuration accept; also return these, and notes on
    foreign checks.
    """
    judged, ignored = suppress(verdicts, question.judging.ignore)
    judged, accepted = suppressions.suppress(judged, question.accepted.entries)
    left_out = (Suppression(name, "every subject", "--ignore") for name in question.left_out)
    notes = (*question.accepted.announce(accepted, "".join(question.command[1:2])), *site.origins(question.checks))
    return judged, (*ignored, *accepted, *left_out), notes


def leaves(report: Report, fail_on: str, whole: bool = False) -> dict[str, Share]:
    """Return each node's exit: node 0, and with `whole` every node, gets the worst code of all.

    See docs/reference/exit-codes.md.
    """
    names = [node.name for node in report.nodes]
    found = shares(names, report.checks, fail_on)
    code = ExitCode(report.exit_code)
    return found | {name: replace(found[name], exit_code=code) for name in (names if whole else names[:1])}
