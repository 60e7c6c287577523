"""The machines: looked at here or replayed from captures, judged, and what a report shows of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.checks.sync.roster import missing
from ncclprobe.engine import inventory
from ncclprobe.engine.collect import with_choices
from ncclprobe.engine.diagnose import Known, Question, Topic, diagnose
from ncclprobe.engine.judge import conclude, judge, shares
from ncclprobe.engine.observe import observed, replayed
from ncclprobe.errors import OutOfTime
from ncclprobe.facts.data_paths import DataRates
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.reach import Rails
from ncclprobe.facts.software import Software
from ncclprobe.facts.system import System
from ncclprobe.host.patience import until
from ncclprobe.model.findings import Verdict
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import LaunchRow, NodeEnvironment, NodeRow, Report, Setting
from ncclprobe.model.snapshot import Every, Snapshot, learned
from ncclprobe.model.values import replace


def look_s(timeout_s: float) -> float:
    """Return how much of --timeout may go into looking, so that what was seen by then is judged within it."""
    return timeout_s - min(max(timeout_s / 10, 1.0), timeout_s / 2)


def within(question: Question, timeout_s: float, judge: Callable[[], Report]) -> Report:
    """Return what `judge` makes within --timeout. Raises OutOfTime, and leaves it behind, where time is over."""
    try:
        return until(question.clock + timeout_s, judge)
    except TimeoutError:
        raise OutOfTime("no time was left to judge within --timeout") from None


def of_this_machine(question: Question, collectors: Sequence[Collector], timeout_s: float) -> Report:
    """Look at this machine, and judge it. Raises OutOfTime."""
    snapshot, _ = observed(collectors, question.clock + look_s(timeout_s))
    return within(question, timeout_s, lambda: diagnose(question, [snapshot]))


def of_captures(question: Question, collectors: Sequence[Collector], paths: Sequence[Path]) -> Report:
    """Judge the machines of captures. Raises UsageError."""
    snapshots = replayed(paths, collectors)
    absent = () if question.job.local else missing(Every({s.node: _launch(s) for s in snapshots}))
    return diagnose(question, snapshots, missing=absent)


def _launch(snapshot: Snapshot) -> Launch:
    """Return how this node's process was started; of kind none where that is not known."""
    return learned(snapshot.facts, Launch) or Launch()


def _learn(known: Known) -> Known:
    return replace(known, snapshots=tuple(with_choices(known.snapshots, known.question.checks)))


def _judge(known: Known) -> Known:
    """Judge each node, then compare the nodes and, in the order of the checks, what they measured."""
    return replace(known, verdicts=judge(known.snapshots, known.question.checks, known.job, known.facts))


def _conclude(known: Known) -> dict[str, Any]:
    fail_on, first = known.question.judging.fail_on, _launch(known.snapshots[0]) if known.snapshots else Launch()
    status, code = conclude(known.verdicts, fail_on, inconclusive=bool(known.missing))
    return {
        "status": status,
        "exit_code": code,
        "launch": LaunchRow(first.kind, first.nnodes, first.world_size),
        "nodes": _nodes(known.snapshots, known.verdicts, fail_on),
        "areas": inventory.areas(known.snapshots, known.verdicts, known.job, first.nnodes),
        **sections(known),
    }


def sections(known: Known) -> dict[str, Any]:
    """Return the fields of a report that show the machines. Pictures are made, and imported, only where a reader will
    see them.
    """
    snapshots, paths = known.snapshots, {s.node: learned(s.facts, DataRates) for s in known.snapshots}
    rails = [seen for s in snapshots if (seen := learned(s.facts, Rails))]
    said = {
        "scope": inventory.scope(snapshots, known.job),
        "environment": {s.node: _environment(s) for s in snapshots},
        "path_rates": tuple(replace(row, node=node) for node, seen in paths.items() if seen for row in seen.rows),
        "notes": [f"rails: {each.plan}" for each in rails if each.plan],
    }
    if rails:
        from ncclprobe.engine.rails import rail_ways

        said["rails"] = rail_ways(snapshots)
    if known.question.pictures and snapshots:
        from ncclprobe.nccl.selection import choose
        from ncclprobe.topology.node import layout

        nccl = known.job.backend == "nccl"
        said["topology"] = {s.node: layout(s) for s in snapshots}
        said["choices"] = {s.node: s.facts.get(Choices) or choose(s) for s in snapshots} if nccl else {}
    return said


def _nodes(snapshots: Sequence[Snapshot], verdicts: Sequence[Verdict], fail_on: str) -> tuple[NodeRow, ...]:
    each = shares([s.node for s in snapshots], verdicts, fail_on)
    rows = []
    for place, snapshot in enumerate(snapshots):
        system, rank = learned(snapshot.facts, System), _launch(snapshot).node_rank
        hostname = system.hostname if system else snapshot.node
        rows.append(NodeRow(snapshot.node, place if rank is None else rank, hostname, each[snapshot.node].status))
    return tuple(rows)


def _environment(snapshot: Snapshot) -> NodeEnvironment:
    """Return versions and settings for the report; what is not known is null."""
    settings = learned(snapshot.facts, Settings)
    rows: tuple[Setting, ...] = tuple(settings.effective.values()) if settings else ()
    return NodeEnvironment(_versions(snapshot.facts), rows)


def _versions(facts: Mapping[type, Any]) -> dict[str, str | None]:
    versions: dict[str, str | None] = {"kernel": None, "torch": None, "nccl": None, "driver": None}
    if system := learned(facts, System):
        versions |= {"kernel": system.kernel, "distribution": system.distribution or None}
    if software := learned(facts, Software):
        nccl = ".".join(map(str, software.nccl_version or ()))
        versions |= {**software.packages, "nccl": nccl or "none found"}
    if gpus := learned(facts, Gpus):
        versions |= {"driver": gpus.driver, "cuda": ".".join(map(str, gpus.cuda))}
    return versions


TOPIC = Topic(_judge, _conclude, learn=_learn)
