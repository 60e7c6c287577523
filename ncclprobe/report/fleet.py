"""A fleet as text and as JSON: the state of every node, worst first, and the history of one."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ncclprobe.model.fleet import STATES, NodeHistory, NodeStanding, Series, SharedLoss
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import table, wrap
from ncclprobe.model.report import when
from ncclprobe.model.units import plural, printable, three_digits
from ncclprobe.model.values import asdict, grouped

_MOST_LINES, _MOST_EVENTS, _MOST_UNJUDGED = 60, 100, 3
_LEAST_ALARMS = 0.01
_DAY = len("2026-11-19")
_LEAST_ROOM = 30
"""Columns reserved for the evidence, however long the names are."""
FALSE_ALARMS = 0.002
"""Per year and node, for a node that is tested once a day and scatters by 2 % (simulated)."""


def iso(time_s: float) -> str:
    """Format a time as in reports."""
    return datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds")


def lines(nodes: Sequence[NodeStanding], width: int) -> Iterator[str]:
    """Yield the nodes that are not ok, worst and oldest first; nodes with equal evidence share a line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    ill = [each for each in nodes if each.state != "ok"]
    for each in sorted(ill, key=lambda each: (STATES.index(each.state), each.since_s or 0.0)):
        since = when(each.since_s) if each.since_s is not None else "–"
        key = (each.state, since[:_DAY] if each.state == "unknown" else since, each.evidence)
        groups.setdefault(key, []).append(each.name)
    shown = list(groups.items())[:_MOST_LINES]
    rows = [(printable(fold(names)), state, since, evidence) for (state, since, evidence), names in shown]
    if rows:
        yield from _wrap_table([("node", "state", "since (UTC)", "evidence"), *rows], width)
    if more := len(ill) - sum(len(names) for _, names in shown):
        yield f"and {plural(more, 'node')} more, none of them worse; --json has all"
    yield from wrap("", counts(nodes), width)
    unjudged = grouped((each.evidence, each.name) for each in nodes if each.state == "ok" and each.evidence)
    for evidence, names in [*unjudged.items()][:_MOST_UNJUDGED]:
        yield from wrap("  ", f"{printable(fold(names))}: {evidence}", width)


def shared_lines(losses: Sequence[SharedLoss], width: int) -> Iterator[str]:
    """Yield the losses that all nodes share, one line per number."""
    for each in losses:
        yield from wrap("", shared_words(each), width, 2)


def shared_words(loss: SharedLoss) -> str:
    """Return ``all 12 nodes: all_reduce 1 GiB 394 → 353 GB/s (-10 %) since 2026-11-14, when the driver changed …``."""
    who = f"all {loss.of}" if len(loss.nodes) == loss.of else f"{len(loss.nodes)} of {loss.of}"
    rates = f"{three_digits(loss.before)} → {three_digits(loss.after)} {loss.unit}"
    since = when(loss.day * 86400.0)[:_DAY]
    why = f", when {' and '.join(f'the {each}' for each in loss.changed[:2])}" if loss.changed else ""
    lost = f"{100 * (loss.after / loss.before - 1):+.0f} %"
    return f"{who} nodes: {printable(loss.called)} {rates} ({lost}) since {since}{why}"


def counts(nodes: Sequence[NodeStanding]) -> str:
    """Return the number of nodes in each state, good ones first."""
    number = Counter(each.state for each in nodes)
    told = [f"{number[state]:,} {state}" for state in reversed(STATES) if number[state] or state == "ok"]
    alarms = FALSE_ALARMS * len(nodes) / 12
    return " · ".join([*told, *([f"false alarms to expect: {alarms:.1g} a month"] if alarms >= _LEAST_ALARMS else [])])


def _wrap_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table whose last column is wrapped."""
    taken = sum(max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]) - 1))
    room = max(width - taken, _LEAST_ROOM)
    return table([[*row[:-1], "\n".join(wrap("", row[-1], room))] for row in rows])


def as_json(nodes: Sequence[NodeStanding], losses: Sequence[SharedLoss], exit_code: int) -> dict[str, Any]:
    """Return ``ncclprobe.fleet/1``: each node, worst first, with its state, since when and why; shared losses."""
    worst = sorted(nodes, key=lambda each: (STATES.index(each.state), each.since_s or 0.0, each.name))
    shared = [
        {"number": each.called, "unit": each.unit, "nodes": list(each.nodes), "of": each.of, "before": each.before,
         "after": each.after, "since": iso(each.day * 86400.0), "changed": list(each.changed)}
        for each in losses
    ]  # fmt: skip
    return {"shared": shared, "nodes": [_node(each) for each in worst], "exit_code": exit_code}


def _node(each: NodeStanding) -> dict[str, Any]:
    since = None if each.since_s is None else iso(each.since_s)
    told = {"name": each.name, "state": each.state, "since": since, "evidence": each.evidence}
    return {**told, "tests": each.tests, "last": iso(each.last_s)}


def node_lines(history: NodeHistory, width: int) -> Iterator[str]:
    """Yield the history of one node: its state, its rates, what changed and when, and the sources."""
    node = history.standing
    since = f" since {when(node.since_s)} UTC" if node.since_s is not None else ""
    yield from wrap("", f"{node.name}: {node.state}{since}", width)
    yield from wrap("  ", node.evidence, width) if node.evidence else ()
    yield f"{plural(node.tests, 'test')}, {when(history.first_s)} to {when(node.last_s)} UTC"
    if history.series:
        head = ("rate", "unit", "usual", "newest", "tests", "state")
        yield from ("", *_wrap_table([head, *map(_rate, history.series)], width))
    if history.events:
        rows = [(when(each.time_s), each.what) for each in history.events[-_MOST_EVENTS:]]
        yield from ("", *_wrap_table([("when (UTC)", "what changed"), *rows], width))
    if history.added:
        last = history.added[0]
        words = f"the newest report was added {when(last.added_s)} UTC by {last.added_by}: {last.source}"
        yield from ("", *wrap("", words, width))


def _rate(series: Series) -> tuple[str, ...]:
    number, usual = series.number, _usual(series)
    shown = (three_digits(usual) if usual else "–", three_digits(series.drift.recent[-1]), str(series.drift.tests))
    return printable(number.called), printable(number.unit), *shown, _state(series)


def _usual(series: Series) -> float | None:
    """Return the usual value of a number now; None: unknown as yet."""
    drift = series.drift
    return math.exp(drift.mean + drift.shared) if drift.count else None


def _state(series: Series) -> str:
    return max(series.drift.own, series.drift.siblings, key=lambda each: each.height).state


def node_json(history: NodeHistory, exit_code: int) -> dict[str, Any]:
    """Return ``ncclprobe.fleet/1`` of one node."""
    return {
        "nodes": [_node(history.standing)],
        "series": [
            {**asdict(each.number), "tests": each.drift.tests, "newest": each.drift.recent[-1], "usual": _usual(each),
             "state": _state(each)}
            for each in history.series
        ],
        "events": [{"time": iso(each.time_s), "what": each.what} for each in history.events],
        "added": [
            {"time": iso(each.added_s), "by": each.added_by, "source": each.source, "command": each.command}
            for each in history.added
        ],
        "exit_code": exit_code,
    }  # fmt: skip


Rounds = Sequence[Sequence[tuple[str, str]]]
Seen = Mapping[tuple[str, str], tuple[int, float]]
