"""Many nodes on one screen: the number in each state, and the number each check objects to, before any details."""

from collections.abc import Iterator, Sequence

from ncclprobe.model.findings import Severity
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import Style, shorten
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped
from ncclprobe.report import digest
from ncclprobe.report.digest import Problem

MOST_DETAILED = 12
"""Problems shown in full for nodes that were judged apart: the first of each check, up to this number."""
_WORST_FIRST = ("missing", "fail", "unknown", "warn", "pass", "skip")


def lines(report: Report, found: Sequence[Problem], width: int, style: Style) -> list[str]:
    """Return the nodes by state, then the failing checks with their nodes; empty for one node or one problem.

    Findings are counted by check and severity. One that names no node concerns the whole job.
    """
    loud = [each for each in found if each.finding.severity is not Severity.NOTE]
    if len(report.nodes) < 2 or len(loud) < 2:
        return []
    states = grouped((state, node) for node, state in digest.node_states(report).items())
    rows = [(state, "", states[state]) for state in _WORST_FIRST if state in states]
    rows += [(severity, name, nodes) for (severity, name), nodes in _checks(loud).items()]
    longest = max(len(name) for _, name, _ in rows)
    return list(_table(rows, longest, width, style))


def _checks(loud: Sequence[Problem]) -> dict[tuple[str, str], list[str]]:
    named = (
        ((each.finding.severity.value, each.id), node)
        for each in loud
        for node in each.finding.nodes or each.nodes or ("",)
    )
    return {key: list(filter(None, dict.fromkeys(nodes))) for key, nodes in grouped(named).items()}


def _table(rows: Sequence[tuple[str, str, Sequence[str]]], longest: int, width: int, style: Style) -> Iterator[str]:
    for state, name, nodes in rows:
        word = state if state in ("pass", "skip", "missing", "unknown") else state.upper()
        count = plural(len(nodes), "node") if nodes else "the job"
        lead = f"{word:<8}{name:<{longest}}  {count:<10} "
        text = (lead + (shorten(fold(nodes), max(width - len(lead), 20)) if nodes else "")).rstrip()
        yield style(word, state) + text[len(word) :]


def first_of_each(loud: Sequence[Problem]) -> list[Problem]:
    """Return the costliest problem of each check, as many as fit on a few screens."""
    firsts = {each.id: each for each in reversed(loud)}
    return [each for each in loud if firsts[each.id] is each][:MOST_DETAILED]


def left_out(found: Sequence[Problem], shown: Sequence[Problem]) -> list[str]:
    """Say how many problems are not shown in full."""
    left = sum(each.finding.severity is not Severity.NOTE for each in found) - len(shown)
    return [f"{plural(left, 'finding')} more: -v shows each, --json PATH has all"] if left else []


def names(report: Report) -> str:
    """Return the names of the report's nodes, or their number if they are many."""
    folded = fold(node.name for node in report.nodes)
    return folded if len(folded) <= _LONGEST else plural(len(report.nodes), "node")


_LONGEST = 60
_FEW_NODES = 8


def areas_help(report: Report) -> bool:
    """Return whether the areas are useful: if many nodes were judged apart, each is another machine."""
    return not report.scope.apart or len(report.nodes) <= _FEW_NODES
