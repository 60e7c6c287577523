"""Judge captures: as nodes of one job if they are, otherwise each by itself; and adapt the wording to captures."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ncclprobe.checks.sync.roster import missing
from ncclprobe.engine import doctor
from ncclprobe.engine.collect import replayed
from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.judge import together
from ncclprobe.engine.pasted_causes import NOTHING_SAID, SaidInTexts, said_in
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.host.capture import NOT_SHOWN, is_text
from ncclprobe.model.findings import Evidence, Finding, Verdict
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import Excerpt, Report
from ncclprobe.model.snapshot import Every, Snapshot, learned
from ncclprobe.model.units import plural
from ncclprobe.model.values import replace

if TYPE_CHECKING:
    from ncclprobe.engine.workers import Workers

APART = "judged separately, because nothing shows that these nodes belong to one job; --one-job compares them."
FEW = 64
"""Up to this many captures are judged in this process: workers would take as long to start as they save."""
_NICE = 10
"""Niceness of a live run's workers, which must not disturb the measurement of paths between the nodes."""
_ONE_JOB_S = 3600.0
"""Nodes with the same rendezvous address and port, but with captures further apart in time, belong to
different jobs.
"""
_OF_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def judge_captures(
    question: Question,
    collectors: Sequence[Collector],
    paths: Sequence[Path],
    *,
    one_job: bool = False,
    show: Callable[[str], None] = lambda _: None,
) -> Report:
    """Judge the machines of captures: as nodes of one job if they are, or if `one_job` is set. Raises UsageError."""
    if len(paths) > FEW:
        from ncclprobe.engine import workers  # what only many captures need

        if workers.suits(paths, question.checks):
            return _judge_many(question, paths, one_job, show)
    snapshots = replayed(paths, collectors)
    show(f"read {plural(len(paths), 'capture')}")
    texts = [str(path) for path in paths if is_text(path)]
    pasted = [each for each in snapshots if each.pasted]
    said = said_in(texts, pasted) if texts else NOTHING_SAID
    return judge_snapshots(question, snapshots, one_job=one_job, said=said)


def judge_snapshots(
    question: Question, snapshots: Sequence[Snapshot], *, one_job: bool = False, said: SaidInTexts = NOTHING_SAID
) -> Report:
    """Judge captured machines. `said`: findings in the lines of pasted texts."""
    question, notes = _drop_settings_checks(question, snapshots)
    return _diagnose(question, snapshots, notes, one_job or is_one_job(snapshots), said=said)


def _judge_many(question: Question, paths: Sequence[Path], one_job: bool, show: Callable[[str], None]) -> Report:
    from ncclprobe.engine import workers

    wanted = workers.wanted(question.checks, doctor.SHOWN, question.pictures)
    with workers.Workers([str(path) for path in paths], wanted) as at_work:
        snapshots = at_work.learn()
        show(f"read {plural(len(paths), 'capture')}")
        joined = one_job or is_one_job(snapshots)
        job = question.job if joined else replace(question.job, apart=True)
        snapshots = at_work.judge(workers.Terms(job, together(snapshots, job), len(snapshots)))
        notes = tuple(f"{path}: not judged: {why}" for path, why in at_work.lost.items())
        lost = tuple(Path(path).stem for path in at_work.lost)
    return _diagnose(question, snapshots, notes, joined, lost)


def arrival_workers(question: Question, nodes: int) -> "Workers | None":
    """Return workers that judge the captures of a job with this many nodes as they arrive; None: one
    process is enough.
    """
    if nodes <= FEW:
        return None
    from ncclprobe.engine import workers

    if not workers.suits((), question.checks):
        return None
    wanted = workers.wanted(question.checks, doctor.SHOWN, question.pictures)
    at_work = workers.Workers((), replace(wanted, nice=_NICE))
    at_work.expect(workers.Terms(question.job, nodes, nodes))
    return at_work


def _diagnose(
    question: Question,
    snapshots: Sequence[Snapshot],
    notes: Sequence[str],
    joined: bool,
    lost: Sequence[str] = (),
    said: SaidInTexts = NOTHING_SAID,
) -> Report:
    """Make the report on nodes that are one job, or are not. `lost`: captures that could not be judged."""
    facts: dict[type, Any] = {SaidInTexts: said}
    notes = (*notes, *(f"{each.node}: {each.cut}" for each in snapshots if each.cut))
    if joined:
        alone = question.job.local or all(each.pasted for each in snapshots)
        absent = () if alone else missing(Every({s.node: doctor.launch_of(s) for s in snapshots}))
        return said_of_texts(
            spoken(diagnose(question, snapshots, facts, missing=(*lost, *absent), notes=notes)), snapshots
        )
    checks = tuple(check for check in question.checks if not check.compares)
    question = replace(question, checks=checks, job=replace(question.job, apart=True))
    return said_of_texts(spoken(diagnose(question, snapshots, facts, missing=lost, notes=(*notes, APART))), snapshots)


def is_one_job(snapshots: Sequence[Snapshot]) -> bool:
    """Return whether captured nodes belong to one job.

    They have the same job id, or rendezvous at one port with distinct ranks at about the same time.
    """
    if len(snapshots) < 2 or frozenset.intersection(*map(_job_ids, snapshots)):
        return True
    launches = [doctor.launch_of(each) for each in snapshots]
    masters = {(each.master_addr, each.master_port) for each in launches}
    ranks = {each.rank if each.node_rank is None else each.node_rank for each in launches}
    times = [datetime.fromisoformat(each.taken).timestamp() for each in snapshots if each.taken]
    if times and max(times) - min(times) > _ONE_JOB_S:
        return False
    return len(masters) == 1 and all(next(iter(masters))) and None not in ranks and len(ranks) == len(snapshots)


def _job_ids(snapshot: Snapshot) -> frozenset[str]:
    environment = learned(snapshot.facts, Environment)
    found = {environment.get(name) for name in _OF_SCHEDULERS} if environment else set()
    return frozenset(each for each in (*found, doctor.launch_of(snapshot).run_id.strip(".")) if each)


def _drop_settings_checks(question: Question, snapshots: Sequence[Snapshot]) -> tuple[Question, tuple[str, ...]]:
    """Drop checks of settings if pasted texts show none, and return the question with a note that says so."""
    settings = [learned(each.facts, Settings) for each in snapshots if each.pasted]
    if len(settings) < len(snapshots) or any(each and (each.effective or each.skipped) for each in settings):
        return question, ()
    checks = tuple(check for check in question.checks if not check.id.startswith("env."))
    return replace(question, checks=checks), ("No settings were pasted: NCCL's defaults are assumed.",)


Cited = TypeVar("Cited", Evidence, Excerpt)
_OF_CALLS = (
    (re.compile(r"statvfs |getrlimit\(|getaddrinfo\(|getifaddrs\(3\): "), "in the pasted text"),
    (re.compile(r"nvml\w+.*|NVML\b.*"), "nvidia-smi in the pasted text"),
)
"""Calls that evidence cites, and what stands for them if the answer was pasted."""
_ONE_RANK = "one rank of each node reported, and it is unknown whether the others run"


def said_of_texts(report: Report, snapshots: Sequence[Snapshot]) -> Report:
    """Name the pasted text where a report on texts alone cites a call, or a rank that reported."""
    if not all(each.pasted for each in snapshots):
        return report
    checks = tuple(
        replace(
            verdict,
            why=NOT_SHOWN if verdict.why == _ONE_RANK else verdict.why,
            findings=tuple(replace(f, evidence=tuple(map(_of_text, f.evidence))) for f in verdict.findings),
        )
        for verdict in report.checks
    )
    return replace(report, checks=checks, excerpts=tuple(map(_of_text, report.excerpts)))


def _of_text(cited: Cited) -> Cited:
    for call, form in _OF_CALLS:
        if call.match(cited.source):
            rest = call.sub("", cited.source, count=1).rstrip(")")
            return replace(cited, source=f"{rest} {form}".strip())
    return cited


_HERE = r"\b([Tt])his (?:node|machine)\b(?! type)"


def spoken(report: Report) -> Report:
    """Replace "this node" and "this machine" by the name of the report's only node; if there are several, by "the
    node".

    A title says "the node": it is never redacted.
    """
    name = report.nodes[0].name if len(report.nodes) == 1 else ""

    @cache
    def say(text: str) -> str:
        return re.sub(_HERE, lambda found: name or ("The node" if found[1] == "T" else "the node"), text)

    return replace(report, checks=tuple(_verdict_spoken(verdict, say) for verdict in report.checks))


def _verdict_spoken(verdict: Verdict, say: Callable[[str], str]) -> Verdict:
    title = re.sub(_HERE, lambda found: "The node" if found[1] == "T" else "the node", verdict.title)
    why = say(verdict.why)
    findings = tuple(_finding_spoken(each, say) for each in verdict.findings)
    if (title, why, findings) == (verdict.title, verdict.why, verdict.findings):
        return verdict
    return replace(verdict, title=title, why=why, findings=findings)


def _finding_spoken(finding: Finding, say: Callable[[str], str]) -> Finding:
    how = replace(finding.confidence, how=say(finding.confidence.how))
    words = {"message": say(finding.message), "remedy": say(finding.remedy), "headline": say(finding.headline)}
    return replace(finding, confidence=how, **words)
