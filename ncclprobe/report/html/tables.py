"""Tables: other measurements than collectives and pairs, the checks, versions and settings, and NCCL's choices."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.model.findings import Finding, Severity, Status, Verdict, own_node
from ncclprobe.model.hostlist import expand, fold
from ncclprobe.model.report import NodeEnvironment, Report
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report import digest, traffic
from ncclprobe.report.html.legible import folded, micros, rate
from ncclprobe.report.rails import RailEnd, ends
from ncclprobe.report.text import choice_rows

MOST = 200
_LOUD = {"fail": 0, "unknown": 1, "warn": 2, "inconclusive": 3, "unjudged": 4, "pass": 5}


class _Table(Struct, frozen=True):
    """A table with its headline.

    `heads`: the title of each column, and whether it holds numbers. `more`: rows that only the JSON report has.
    `muted`: the part that all rows share.
    """

    title: str
    heads: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    more: int = 0
    muted: str = ""


def tables(report: Report) -> list[_Table]:
    """Return the tables that have rows."""
    copies = sorted(report.copies, key=lambda row: _LOUD[row.status])
    advice = tuple(dict.fromkeys(said for row in report.groups for said in row.advice))
    ladder = "Training ladder: the same step on more and more ranks"
    found = [
        _table("Copies within a node", traffic.COPIES, copies),
        _rails(report),
        _table("Groups of a parallel job", traffic.GROUPS, report.groups, advice),
        _table("Training steps", traffic.STEPS, report.steps),
        _table(ladder, traffic.LADDER, report.ladder),
        _table("NICs that carried the data", (*traffic.NICS, _REMARK), traffic.nics(report)),
    ]
    return [each for each in found if each.rows]


_REMARK: traffic.Column = ("remark", lambda of: of[1].why or None)


def _table(
    title: str, columns: Sequence[traffic.Column], rows: Sequence[Any], notes: tuple[str, ...] = (), muted: str = ""
) -> _Table:
    """Return the table; a column is numeric if the first row has a number there."""
    shown = tuple(traffic.cells(columns, row) for row in rows[:MOST])
    heads = tuple((title, bool(shown) and shown[0][at][:1].isdigit()) for at, (title, _) in enumerate(columns))
    return _Table(title, heads, shown, notes, max(0, len(rows) - MOST), muted)


_RAILS: Sequence[traffic.Column] = (
    ("state", lambda row: _state(row[0], row[1])),
    ("rail", lambda row: row[0].name),
    ("sends GB/s", lambda row: rate(row[0].rate(row[0].out))),
    ("receives GB/s", lambda row: rate(row[0].rate(row[0].into))),
    ("latency", lambda row: micros(row[0].latency_us)),
    ("partners", lambda row: len({way.dst for way in row[0].out})),
    ("chosen as NCCL would", lambda row: row[2]),
    ("what is wrong", lambda row: _wrong(row[0], row[1])),
)
_NUMBERS = re.compile(r" rail ([0-9,-]{1,400})")
_MOST_WHY = 300


def _rails(report: Report) -> _Table:
    """Return the rails, those that findings name first; choices that all share are shown once above."""
    every = ends(report.rails)
    findings = [each for each in report.checks if each.id.startswith("rail.")]
    said = {id(end): [f for v in findings for f in v.findings if _names(f, end)] for end in every}
    chosen = [_chosen(end) for end in every]
    common = [part for part in (chosen[0] if len(chosen) > 1 else ()) if all(part in each for each in chosen)]
    rows = [
        (end, said[id(end)], ", ".join(part for part in parts if part not in common))
        for end, parts in zip(every, chosen, strict=True)
    ]
    rows.sort(key=lambda row: _LOUD[_state(row[0], row[1])])
    return _table("Rails", _RAILS, rows, muted=f"All rails: {', '.join(common)}." if common else "")


def _chosen(end: RailEnd) -> list[str]:
    """Return the choices without node and device, which the rail's name has."""
    device = end.name.rpartition("(")[2].rstrip(")")
    return end.choices.removeprefix(f"{end.node} {device}").strip().split(", ")


def _names(finding: Finding, end: RailEnd) -> bool:
    """Return whether `finding` blames this rail: by number, or its whole node. A pair's ends are not blamed."""
    subject = finding.subject
    if finding.severity is Severity.NOTE or end.node not in finding.nodes or "->" in subject or "<->" in subject:
        return False
    found = _NUMBERS.search(subject)
    return not found or str(end.rail) in expand(f"[{found[1]}]")


def _state(end: RailEnd, said: Sequence[Finding]) -> str:
    """Return the worst status in findings on a rail; without any, the state of most of its ways."""
    if any(each.severity is Severity.FAIL for each in said):
        return "fail"
    own = {"ok": "pass", "untried": "unknown"}.get(end.state, "fail")
    return "warn" if said and own == "pass" else own


def _wrong(end: RailEnd, said: Sequence[Finding]) -> str:
    return "; ".join([*dict.fromkeys(each.message for each in said), *_failure_reasons(end)])[:_MOST_WHY]


def _failure_reasons(end: RailEnd) -> Iterator[str]:
    """Yield why ways of this rail are not ok, each reason once, with the partners."""
    partners: dict[str, dict[str, None]] = {}
    for way in end.bad:
        other = way.dst if way.src == end.node else way.src
        for part in way.why.split("; "):
            reason = part.removeprefix(f"{way.src}: ").removeprefix(f"{way.dst}: ")
            partners.setdefault(reason, {})[other] = None
    yield from (f"{reason} (with {fold(names)})" for reason, names in partners.items() if reason)


def fingerprint(report: Report) -> list[tuple[str, str]]:
    """Return what the numbers depend on, by name."""
    mark = report.fingerprint
    if mark is None:
        return []
    told = [*mark.machine.items(), *mark.software.items()]
    return [*told, ("topology", mark.topology)] if mark.topology else told


ORDER = ("fail", "unknown", "warn", "note", "pass", "skip")
"""Kinds of row, worst first: unexamined things precede those that only cost speed."""


class Row(Struct, frozen=True):
    """One line of the table. `nodes`: the nodes with the finding; empty: the run as a whole.

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
        """Return the key of the row's card."""
        return self.kind, self.id, self.subject, self.message


def rows(report: Report) -> list[Row]:
    """Return all rows, worst first, then by number of nodes."""
    where_found: dict[Row, list[str]] = defaultdict(list)
    for verdict in report.checks:
        for row, names in _said(verdict):
            where_found[row].extend(names)
    kept = [_mark_row(row, names) for row, names in where_found.items()]
    return sorted(kept, key=lambda row: (ORDER.index(row.kind), not row.required, -len(row.nodes), row.id))


def where(row: Row, everywhere: int) -> str:
    """Describe the nodes of `row`; `everywhere` is the report's number of nodes."""
    if not row.nodes:
        return "whole run"
    if everywhere > 1 and len(row.nodes) == everywhere:
        return f"all {everywhere:,} nodes"
    return folded(row.nodes)


def _mark_row(row: Row, names: Sequence[str]) -> Row:
    return Row(
        row.kind, row.id, row.title, tuple(dict.fromkeys(names)), row.subject, row.message, row.evidence, row.remedy,
        _blame_word(row.blame) if len(set(names)) > 1 else row.blame, row.required,
        row.see_also,
    )  # fmt: skip


def _blame_word(blame: str) -> str:
    return blame.replace("This node is", "These nodes are").replace("this node", "these nodes")


def _said(verdict: Verdict) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Yield the rows that `verdict` adds to, and the nodes it adds. A finding's row represents its verdict."""
    own = own_node(verdict)
    for finding in verdict.findings:
        yield _finding_row(verdict, finding), finding.nodes or own
    if verdict.status in (Status.PASS, Status.SKIP, Status.UNKNOWN):
        required = verdict.required and verdict.status is Status.UNKNOWN
        yield (
            Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why, required=required),
            own,
        )
    elif not verdict.findings:  # a report of ours has none such; one that was edited must still show it
        yield Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why), own


def _finding_row(verdict: Verdict, finding: Finding) -> Row:
    blame = "" if finding.severity is Severity.NOTE else digest.blamed(finding)
    return Row(
        finding.severity.value, verdict.id, verdict.title, (), finding.subject, finding.message, finding.seen,
        finding.remedy, blame, verdict.required, finding.see_also,
    )  # fmt: skip


def device(subject: str) -> tuple[str, ...]:
    """Return the devices in a finding's subject: ``mlx5_0:1`` is a port of mlx5_0."""
    return tuple(part.partition(":")[0] for part in re.split(r",|\s+and\s+|\s+", subject) if part)


_OWN = ("RANK", "_PROCID", "_LOCALID", "_NODEID", "_TASK_PID", "_NODENAME")


class _Value(Struct, frozen=True):
    """One value of a name and the nodes that have it. `usual`: most nodes have it."""

    text: str
    nodes: str
    number: int
    usual: bool


class _Name(Struct, frozen=True):
    """A version or setting, with its values, most frequent first. More than one: the nodes differ."""

    name: str
    values: tuple[_Value, ...]
    more: int = 0

    @property
    def differs(self) -> bool:
        """Return whether nodes differ that should be equal; a rank is each process's own."""
        return len(self.values) > 1 and not self.name.endswith(_OWN)


MOST_VALUES = 8
_UNSET = "not set"


def versions(environment: Mapping[str, NodeEnvironment]) -> list[_Name]:
    """Return the versions by name; differing ones first."""
    return _differing({node: _texts(each.versions) for node, each in environment.items()}, "unknown")


def settings(environment: Mapping[str, NodeEnvironment]) -> list[_Name]:
    """Return each variable with value and origin; differing ones first. A node may lack it."""
    return _differing(
        {
            node: {s.name: f"{'(not recorded)' if s.value is None else s.value}  [{s.origin}]" for s in each.settings}
            for node, each in environment.items()
        },
        _UNSET,
    )


def _texts(told: Mapping[str, str | None]) -> dict[str, str]:
    return {name: "unknown" if value is None else value for name, value in told.items()}


def _differing(by_node: Mapping[str, Mapping[str, str]], lacking: str) -> list[_Name]:
    names = dict.fromkeys(name for told in by_node.values() for name in told)
    found = [_name(name, {node: told.get(name, lacking) for node, told in by_node.items()}) for name in names]
    return sorted(found, key=lambda each: not each.differs)


def _name(name: str, by_node: Mapping[str, str]) -> _Name:
    nodes = grouped((text, node) for node, text in by_node.items())
    ranked = sorted(nodes.items(), key=lambda pair: -len(pair[1]))
    most = len(ranked[0][1])
    alone = sum(len(who) == most for _, who in ranked) == 1
    values = tuple(
        _Value(text, folded(who), len(who), alone and len(who) == most) for text, who in ranked[:MOST_VALUES]
    )
    return _Name(name, values, len(ranked) - len(values))


MOST_KINDS = 4


def equal_choices(report: Report) -> tuple[list[tuple[str, str, list[tuple[str, str]]]], int]:
    """Return groups of nodes with equal choices, most frequent first, with their NCCL and the parts of the choice.

    Also return the number of nodes left out.
    """
    groups = grouped((made, node) for node, made in report.choices.items())
    ranked = sorted(groups.items(), key=lambda each: -len(each[1]))
    left = sum(len(nodes) for _, nodes in ranked[MOST_KINDS:])
    return [(folded(nodes), made.nccl or "", [*choice_rows(made)]) for made, nodes in ranked[:MOST_KINDS]], left
