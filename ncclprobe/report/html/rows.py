"""The checks as rows of one table: equal rows of many nodes are one row that names them."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.pair_results import Blamed
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report import digest
from ncclprobe.report.html.legible import folded
from ncclprobe.report.pairs import description
from ncclprobe.units import plural

ORDER = ("fail", "unknown", "warn", "note", "pass", "skip")
"""Kinds of row, the loudest first: what was not looked at comes before what merely costs speed."""


_OF_THE_RUN = "run."
"""Checks of a measurement: their verdict stands under the first node and speaks of all that took part."""


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
    def prefix(self) -> str:
        """Return what the id begins with: ``ib`` of ``ib.rate``."""
        return self.id.partition(".")[0]


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
    own = (verdict.node,) if verdict.node and not verdict.id.startswith(_OF_THE_RUN) else ()
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


class Step(Struct, frozen=True):
    """Something to do: what is wrong, where, and the remedy. `kind` as of a Row, `nodes` where the head has no room."""

    kind: str
    id: str
    head: str
    text: str
    remedy: str = ""
    nodes: str = ""


def first_steps(report: Report, found: Sequence[Row], most: int = 3) -> tuple[list[Step], int]:
    """Return the `most` things to do first, and how many more there are: lost nodes, failures, then what is not known.

    Rows of one check are one thing: one visit to a machine serves all findings of a check.
    """
    steps = [_absent(report)] if report.missing_nodes else []
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        if row.kind in ("fail", "warn"):
            groups[row.kind, row.id].append(row)
        elif row.kind == "unknown" and row.required:
            groups[row.kind, row.message].append(row)
    ranked = sorted(groups.values(), key=lambda group: (ORDER.index(group[0].kind), -_breadth(group)))
    steps += [_step(group, len(report.nodes)) for group in ranked]
    if report.localisation and not any(step.kind == "fail" for step in steps):
        steps = [*map(_suspect_step, report.localisation.culprits), *steps]
    return steps[:most], max(0, len(steps) - most)


def _breadth(group: Sequence[Row]) -> int:
    return sum(len(row.nodes) or 1 for row in group)


def _absent(report: Report) -> Step:
    missing = report.missing_nodes
    remedy = "see whether they are up and whether the launcher started anything there."
    return Step("unknown", "", f"{plural(len(missing), 'node')} did not report", folded(missing), remedy)


def _suspect_step(blamed: Blamed) -> Step:
    """Where nothing but the pairs themselves says who is slow."""
    return Step(
        "fail",
        "",
        f"Slow: {blamed.where}",
        description(blamed),
        "look at its cable, port and switch; then measure again.",
    )


_SHORT = 60


def _step(group: Sequence[Row], everywhere: int) -> Step:
    row = group[0]
    names = list(dict.fromkeys(name for each in group for name in each.nodes))
    place = where(_on(row, names), everywhere) if names and everywhere > 1 else ""
    short = len(place) <= _SHORT
    on = (
        ""
        if not place or place in row.subject.split()
        else f" on {place}"
        if short
        else f" on {plural(len(names), 'node')}"
    )
    nodes = "" if short else place
    if row.kind == "unknown":
        ids = ", ".join(dict.fromkeys(each.id for each in group))
        return Step("unknown", "", f"Not looked at{on}: {ids}", row.message, "make it readable, then run again.", nodes)
    if len({each.subject for each in group}) == 1:
        more = f" (and {plural(len(group) - 1, 'finding')} like it)" if group[1:] else ""
        return Step(row.kind, row.id, f"{row.subject}{on}", f"{row.message}{more}", row.remedy, nodes)
    text = f"{row.subject} {row.message}; and {plural(len(group) - 1, 'finding')} like it"
    return Step(row.kind, row.id, f"{row.title}{on}", text, row.remedy, nodes)


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
