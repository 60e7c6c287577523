"""A report's findings and gaps gathered over nodes: equal ones are one entry with the names of its nodes."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ncclprobe.model.findings import Action, Blame, Finding, Severity, Status
from ncclprobe.model.hostlist import fold
from ncclprobe.model.report import Report

_LOUDEST_FIRST = (Severity.FAIL, Severity.WARN, Severity.NOTE)
_MOST_CHARACTERS = 200

_WHOSE: Mapping[Blame, str] = {
    "node": "this node",
    "link": "a link of this node",
    "fabric": "the network between the nodes",
    "image": "the image or system settings of this node",
    "job": "the job's settings",
    "unknown": "not known",
}
_NEXT: Mapping[Action, str] = {
    "fix-job": "; correct them",
    "fix-image": "; correct the image or system settings",
    "retest": "; test again before you act",
    "repair": "; repair it",
    "restart": "; restart it",
    "none": "",
}


class Problem(NamedTuple):
    """A finding of the check `id`, found on each of `nodes`; none: it is about the job, or names its nodes itself."""

    id: str
    finding: Finding
    nodes: tuple[str, ...]


class Gap(NamedTuple):
    """What could not be looked at: the checks, whether one of them is required, where and why."""

    ids: tuple[str, ...]
    required: bool
    nodes: tuple[str, ...]
    why: str


def blamed(finding: Finding, nodes: Collection[str] = ()) -> str:
    """Say whose fault it is, how sure that is and what to do: ``this node (seen once); test again before you act``.

    `nodes`: where it was found; a finding that names nodes itself is about these.
    """
    whose = _WHOSE[finding.blame]
    if len(finding.nodes or nodes) > 1:
        whose = whose.replace("this node", "these nodes")
    return f"{whose} ({finding.confidence.how}){_NEXT[finding.action]}"


def problems(report: Report) -> list[Problem]:
    """Return every finding once, the worst first."""
    where: dict[tuple[str, Finding], list[str]] = {}
    for verdict in report.checks:
        for finding in verdict.findings:
            where.setdefault((verdict.id, finding), []).extend([verdict.node] if verdict.node else [])
    found = [Problem(name, finding, tuple(nodes)) for (name, finding), nodes in where.items()]
    return sorted(found, key=lambda problem: _LOUDEST_FIRST.index(problem.finding.severity))


def gaps(report: Report) -> list[Gap]:
    """Return what is unknown, by reason and nodes; what is required first."""
    where: dict[tuple[str, str, bool], list[str]] = {}
    for verdict in report.checks:
        if verdict.status is Status.UNKNOWN:
            key = (verdict.why, verdict.id, verdict.required)
            where.setdefault(key, []).extend([verdict.node] if verdict.node else [])
    groups: dict[tuple[str, bool, tuple[str, ...]], list[str]] = {}
    for (why, name, required), nodes in where.items():
        groups.setdefault((why, required, tuple(nodes)), []).append(name)
    found = [Gap(tuple(ids), required, nodes, why) for (why, required, nodes), ids in groups.items()]
    return sorted(found, key=lambda gap: not gap.required)


def passed(report: Report) -> dict[str, str]:
    """Return the checks that passed on every node where they were done, with what holds there."""
    spoiled = {verdict.id for verdict in report.checks if verdict.status not in (Status.PASS, Status.SKIP)}
    fine = (verdict for verdict in report.checks if verdict.status is Status.PASS)
    return {verdict.id: verdict.title for verdict in fine if verdict.id not in spoiled}


def on(nodes: Sequence[str], report: Report) -> str:
    """Where something holds, if there are several nodes: ``n[0-3]``, ``all 8 nodes``; else nothing."""
    if not nodes or len(report.nodes) < 2:
        return ""
    return f"all {len(nodes)} nodes" if len(nodes) == len(report.nodes) else folded(nodes)


def folded(nodes: Sequence[str]) -> str:
    """Return the names on one line of bounded length."""
    text = fold(nodes)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(nodes)} nodes)"
