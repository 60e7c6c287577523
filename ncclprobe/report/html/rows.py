"""The checks as rows of one table: equal rows of many nodes are one row that names them."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report import digest
from ncclprobe.report.html.legible import folded

ORDER = ("fail", "unknown", "warn", "note", "pass", "skip")
"""Kinds of row, the loudest first: what was not looked at comes before what merely costs speed."""


class Row(Struct, frozen=True):
    """One line of the table. `nodes`: those on which it was found; empty, of the run as a whole.

    `kind` is one of ORDER; `required`: the run is inconclusive without it.
    """

    kind: str
    id: str
    title: str
    nodes: tuple[str, ...]
    subject: str = ""
    message: str = ""
    evidence: str = ""
    remedy: str = ""
    blame: str = ""
    required: bool = False
    see_also: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what the row's card knows it by."""
        return self.kind, self.id, self.subject, self.message


def rows(report: Report) -> list[Row]:
    """Return all rows, the loudest first, and of these what is on most nodes first."""
    where_found: dict[Row, list[str]] = defaultdict(list)
    for verdict in report.checks:
        for row, names in _said(verdict):
            where_found[row].extend(names)
    kept = [_on(row, names) for row, names in where_found.items()]
    return sorted(kept, key=lambda row: (ORDER.index(row.kind), not row.required, -len(row.nodes), row.id))


def where(row: Row, everywhere: int) -> str:
    """Return the nodes of `row` in words; `everywhere` is how many nodes the report has."""
    if not row.nodes:
        return "whole run"
    if everywhere > 1 and len(row.nodes) == everywhere:
        return f"all {everywhere:,} nodes"
    return folded(row.nodes)


def _on(row: Row, names: Sequence[str]) -> Row:
    return Row(
        row.kind, row.id, row.title, tuple(dict.fromkeys(names)), row.subject, row.message, row.evidence, row.remedy,
        _of_several(row.blame) if len(set(names)) > 1 else row.blame, row.required,
        row.see_also,
    )  # fmt: skip


def _of_several(blame: str) -> str:
    return blame.replace("This node is", "These nodes are").replace("this node", "these nodes")


def _said(verdict: Verdict) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Yield the rows that `verdict` adds to, and the nodes it adds. A finding's row stands for the verdict that it
    made.
    """
    own = digest.own_node(verdict)
    for finding in verdict.findings:
        yield _found(verdict, finding), finding.nodes or own
    if verdict.status in (Status.PASS, Status.SKIP, Status.UNKNOWN):
        required = verdict.required and verdict.status is Status.UNKNOWN
        yield (
            Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why, required=required),
            own,
        )
    elif not verdict.findings:  # a report of ours has none such; one that was edited must still show it
        yield Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why), own


def _found(verdict: Verdict, finding: Finding) -> Row:
    blame = "" if finding.severity is Severity.NOTE else digest.blamed(finding)
    return Row(
        finding.severity.value, verdict.id, verdict.title, (), finding.subject, finding.message, finding.seen,
        finding.remedy, blame, verdict.required, finding.see_also,
    )  # fmt: skip


def blind(found: Sequence[Row]) -> list[tuple[str, bool, tuple[str, ...], tuple[str, ...]]]:
    """Return what could not be looked at, by reason: (why, whether required, ids, nodes), what is required first."""
    groups: dict[tuple[str, bool], tuple[dict[str, None], dict[str, None]]] = {}
    for row in found:
        if row.kind == "unknown":
            ids, nodes = groups.setdefault((row.message, row.required), ({}, {}))
            ids[row.id] = None
            nodes.update(dict.fromkeys(row.nodes))
    kept = [(why, must, tuple(ids), tuple(nodes)) for (why, must), (ids, nodes) in groups.items()]
    return sorted(kept, key=lambda each: (not each[1], -len(each[3]) * len(each[2])))


def device(subject: str) -> tuple[str, ...]:
    """Return the devices that a finding's subject names: ``mlx5_0:1`` is a port of mlx5_0."""
    return tuple(part.partition(":")[0] for part in re.split(r",|\s+and\s+|\s+", subject) if part)
