"""Several reports as pictures: each operation and size class over the dates, and the nodes' states side by side."""

import math
from collections.abc import Sequence
from datetime import datetime, timezone

from markupsafe import Markup

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report import trends as of_reports
from ncclprobe.report.html import svg
from ncclprobe.report.html.legible import folded, micros, micros_tick, printable, rate
from ncclprobe.report.trends import Past, Series

MOST_OPS = 24
MOST_LINES = 40
MOST_COLUMNS = 30
"""Reports of the table of nodes: the newest."""
_DAY_S = 86400.0
_SIGNS = {"fail": "×", "missing": "–", "unknown": "?", "warn": "!", "pass": "·", "skip": "·"}
_LOUD = ("fail", "missing", "unknown", "warn")


class Small(Struct, frozen=True):
    """One picture of a row of small ones: what it is of, how the newest value compares, the picture."""

    title: str
    change: str
    picture: Markup


class Line(Struct, frozen=True):
    """One report in the list: when, which file, its verdict in a word, its headline."""

    when: str
    source: str
    status: str
    headline: str


class NodeLine(Struct, frozen=True):
    """Nodes with one history: their state in each report that is shown, and its sign."""

    nodes: str
    cells: tuple[tuple[str, str], ...]


class Trends(Struct, frozen=True):
    """Everything that the section on several reports shows."""

    reports: tuple[Line, ...]
    ops: tuple[tuple[str, tuple[Small, ...]], ...]
    more_ops: int
    nodes: tuple[NodeLine, ...]
    columns: tuple[str, ...]
    steady: int
    more_nodes: int
    changed: tuple[tuple[str, str], ...]


def trends(history: Sequence[Past]) -> Trends | None:
    """Return the section on `history`, oldest first; None for less than two reports."""
    if len(history) < 2:
        return None
    by_op = grouped((one.op, _small(one, history)) for one in of_reports.series(history))
    nodes, steady, more = _nodes(history)
    shown = list(by_op.items())[:MOST_OPS]
    return Trends(
        tuple(Line(each.when, each.source, each.verdict, each.headline) for each in history),
        tuple((op, tuple(each)) for op, each in shown), len(by_op) - len(shown), nodes,
        tuple(of_reports.names(history[-MOST_COLUMNS:])), steady, more,
        tuple(of_reports.changed(history)),
    )  # fmt: skip


def _nodes(history: Sequence[Past]) -> tuple[tuple[NodeLine, ...], int, int]:
    """Return the nodes not always well, today's loudest first; how many always were, and how many are not shown."""
    shown = history[-MOST_COLUMNS:]
    every = dict.fromkeys(name for each in reversed(shown) for name in each.states)
    groups = grouped((tuple(each.states.get(name, "") for each in shown), name) for name in every)
    ailing = {states: names for states, names in groups.items() if not {*states}.isdisjoint(_LOUD)}
    ranked = sorted(ailing.items(), key=lambda each: (*map(_loudness, reversed(each[0])), -len(each[1])))
    lines = tuple(
        NodeLine(folded(names), tuple((state, _SIGNS.get(state, "")) for state in states))
        for states, names in ranked[:MOST_LINES]
    )
    steady = sum(map(len, groups.values())) - sum(map(len, ailing.values()))
    return lines, steady, sum(len(names) for _, names in ranked[MOST_LINES:])


def _loudness(state: str) -> int:
    return _LOUD.index(state) if state in _LOUD else len(_LOUD)


def _small(one: Series, history: Sequence[Past]) -> Small:
    way = "in place" if one.like.place == "in" else "out of place"
    title = f"{size(one.nbytes)}, {way}, {one.like.ranks} ranks"
    return Small(title, _change(one), _picture(one, history))


def _change(one: Series) -> str:
    """Return the newest value, and by how much it differs from the median of the others: beyond noise, or within."""
    *before, now = (one.value(point.row) for point in one.points)
    shown = micros(now) if one.timed else f"{rate(now)} GB/s"
    if not before:
        return shown
    usual = sorted(before)[len(before) // 2]
    last = one.points[-1].row
    noise = max(last.precision or 0.0, 0.01)
    share = now / usual - 1 if usual > 0 else 0.0
    if abs(share) <= noise:
        return f"{shown}, as before"
    worse = (share > 0) is one.timed
    return f"{shown}, {100 * abs(share):.1f} % {'worse' if worse else 'better'} than the median before"


def _picture(one: Series, history: Sequence[Past]) -> Markup:
    values = [one.value(point.row) for point in one.points]
    bounds = [_threshold(one, point.row) or 0.0 for point in one.points]
    top = max((each for each in (*values, *bounds) if math.isfinite(each)), default=1.0) or 1.0
    x = svg.Linear(history[0].time_s, history[-1].time_s, 58.0, svg.SMALL_WIDE - 42.0)
    y = svg.Linear(0.0, 1.08 * top, svg.SMALL_HIGH - 24.0, 8.0)
    parts = svg.small_grid(x, y, _dates(history), lambda value: _axis(one, value))
    places = [(x.at(history[point.place].time_s), y.at(one.value(point.row))) for point in one.points]
    for point, (across, _) in zip(one.points, places, strict=True):
        least = _threshold(one, point.row)
        if least is not None:
            parts.append(svg.line(across - 9, y.at(least), across + 9, y.at(least), "least"))
    parts.append(svg.path(places, "curve1"))
    for point, (across, up) in zip(one.points, places, strict=True):
        if ends := _interval(one, point.row):
            parts.append(svg.line(across, y.at(ends[0]), across, y.at(ends[1]), "interval curve1"))
        parts.append(svg.mark(across, up, f"{point.row.status} curve1", _hover(one, history[point.place], point.row)))
    spoken = f"{one.op}, {size(one.nbytes)} over {len(one.points)} reports: {_change(one)}"
    return svg.drawing(svg.SMALL_WIDE, svg.SMALL_HIGH, "chart small", spoken, parts)


def _axis(one: Series, value: float) -> str:
    return micros_tick(value) if one.timed else f"{value:,.4g}"


def _threshold(one: Series, row: Measurement) -> float | None:
    """Return the least accepted bandwidth, or of a small call the longest time that it leaves."""
    least = row.expectation.mark(row.busbw_GBps) if row.expectation and row.status != "unjudged" else 0.0
    if least <= 0:
        return None
    return row.busbw_GBps * row.time_us.typical / least if one.timed else least


def _interval(one: Series, row: Measurement) -> tuple[float, float] | None:
    if not row.interval_us or row.interval_us[0] <= 0:
        return None
    low, high = row.interval_us
    whole = row.busbw_GBps * row.time_us.typical
    return (low, high) if one.timed else (whole / high, whole / low)


def _hover(one: Series, each: Past, row: Measurement) -> str:
    ends = _interval(one, row)
    shown = micros if one.timed else (lambda value: f"{rate(value)} GB/s")
    lines = [f"{each.when}: {row.status}", f"median {shown(one.value(row))}"]
    lines += [f"between {shown(ends[0])} and {shown(ends[1])} (95 %)"] if ends else []
    least = _threshold(one, row)
    lines += [f"{'at most' if one.timed else 'at least'} {shown(least)} is accepted"] if least is not None else []
    return "\n".join((*lines, printable(each.source, 80)))


def _dates(history: Sequence[Past]) -> list[tuple[float, str]]:
    """Return the first, the last and up to two dates in between."""
    first, last = history[0].time_s, history[-1].time_s
    return [(first + (last - first) * part / 3, _date(first + (last - first) * part / 3, history)) for part in range(4)]


def _date(time_s: float, history: Sequence[Past]) -> str:
    """Return the day; within two days the time as well."""
    time = datetime.fromtimestamp(time_s, timezone.utc)
    return time.strftime("%m-%d %H:%M" if history[-1].time_s - history[0].time_s < 2 * _DAY_S else "%m-%d")
