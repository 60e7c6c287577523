"""The page put together: the template is given data that is cut to what a browser and a reader bear.

Of several reports also pictures: each operation and size class over the dates, and the nodes' states side by side.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ncclprobe.model.findings import Status
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report import trends
from ncclprobe.report.digest import copyable, headline, launcher, none_judged, when
from ncclprobe.report.html import charts, findings, fleet, legible, matrix, svg, tables
from ncclprobe.report.html.findings import Cards, Given
from ncclprobe.report.html.legible import breaks, folded, lasting, micros, micros_tick, printable, rate, typed
from ncclprobe.report.html.tables import ORDER, Row, blind, rows, where
from ncclprobe.report.trends import Past, Series

HERE = Path(__file__).resolve().parent
MOST_ROWS = 400
"""Rows of the table of checks that stand in the page; the filter has more."""
MOST_FILTERED = 20_000
MOST_BLIND = 30
MOST_MEASURED = 500
MOST_LISTED = 60
MOST_SETTINGS = 200
_LONGEST_HEADLINE = 240


def page(report: Report, history: Sequence[Past] = ()) -> str:
    """Return `report`, the newest of `history`, as HTML."""
    script, found, since = read("page.js"), rows(report), trends.since(history)
    cards = findings.cards(report, since)
    return environment().get_template("page.html.j2").render(
        **_about(report, found), **_found(report, found, cards), **_measured(report, history),
        **_nodes(report, found, cards, since), trends=_over_time(history),
        style=Markup(read("style.css")), script=Markup(script), script_rules=hash_of(script),
    )  # fmt: skip


@cache
def environment() -> Environment:
    """Return what templates are read with: everything is escaped."""
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "rate": rate,
        "micros": micros,
        "lasting": lasting,
        "size": size,
        "plural": plural,
        "fold": folded,
        "breaks": breaks,
        "typed": typed,
        "copyable": copyable,
        "launcher": launcher,
    }
    return made


def read(name: str) -> str:
    """Return a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def hash_of(script: str) -> str:
    """Return what the page's policy calls a script that may run."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_VERDICTS = {
    "pass": "Everything required was looked at, and nothing fails.",
    "warn": "Nothing fails; something costs speed or safety.",
    "unknown": "Inconclusive: nothing fails, but not everything required could be judged.",
    "skip": "Nothing was judged.",
}
_UNJUDGED = (
    "Nothing is known to judge these numbers by. Where this run is known to be well, keep it: "
    "`ncclprobe baseline REPORT.json -o site.json`; later runs are judged by it: `{command} --baseline site.json`"
)
_NOTHING = {
    "pass": "No finding fails or warns, and nothing required was left unseen.",
    "unknown": "Nothing fails, and nothing was judged either: the notes say what is lacking.",
    "fail": "The run fails as a whole; what is known of it stands below.",
}


def _verdict(report: Report, found: Sequence[Row]) -> str:
    """Return the run in one sentence, with how much of the fleet is concerned."""
    unjudged = none_judged(report)
    if unjudged and report.status is Status.PASS:
        return ""  # the headline says it
    failing = [row for row in found if row.kind == "fail"]
    bad, sick = {row.id for row in failing}, {name for row in failing for name in row.nodes}
    if report.status is not Status.FAIL or not bad:
        return _VERDICTS.get(report.status.value, "This run fails.")
    of = f", on {len(sick):,} of {plural(len(report.nodes), 'node')}"
    of = of if len(report.nodes) > 1 and all(row.nodes for row in failing) else ""
    return f"{plural(len(bad), 'check')} {'fails' if len(bad) == 1 else 'fail'}{of}."


def _nothing(report: Report) -> tuple[str, str]:
    """Return heading and words where there is no finding: it is good news only where something was judged."""
    said = _NOTHING.get(report.status.value, _VERDICTS["warn"])
    if report.status is Status.PASS and none_judged(report):
        return "Nothing found wrong; speed not judged", _UNJUDGED.format(command=report.command)
    if report.status is Status.SKIP:
        return "Nothing was judged", "No check had anything to judge, and no number was judged."
    return ("Nothing to do" if report.status is Status.PASS else "No finding to act on"), said


def _about(report: Report, found: Sequence[Row]) -> dict[str, Any]:
    order = ("fail", "unknown", "warn", "pass", "skip")
    counted = [(state, report.coverage[state]) for state in order if report.coverage.get(state, 0) > 0]
    return {
        "report": report,
        "unsaid": report.status is Status.PASS and bool(none_judged(report)),
        "headline": headline(report, _LONGEST_HEADLINE),
        "verdict": _verdict(report, found),
        "when": when(report.started),
        "words_of": {"pass": "ok", "skip": "–"},
        "nothing": _nothing(report),
        "coverage": counted,
        "covered": sum(number for _, number in counted),
        "named": folded((node.name for node in report.nodes), 120),
    }


def _found(report: Report, found: Sequence[Row], cards: Cards) -> dict[str, Any]:
    unseen = blind(found)
    places = {node.name: n for n, node in enumerate(report.nodes)}
    counts = [(kind, sum(row.kind == kind for row in found)) for kind in ORDER]
    everywhere = len(report.nodes)
    return {
        "cards": cards.cards,
        "hidden": cards.hidden,
        "shown_places": findings.SHOWN_PLACES,
        "unjudged": _unjudged(report),
        "blind": unseen[:MOST_BLIND],
        "more_blind": len(unseen) - MOST_BLIND,
        "most_listed": MOST_LISTED,
        "rows": [(row, where(row, everywhere), cards.anchors.get(row.key)) for row in found[:MOST_ROWS]],
        "more_rows": max(0, len(found) - MOST_ROWS),
        "beyond_filter": max(0, len(found) - MOST_FILTERED),
        "kinds_of_row": [(kind, number) for kind, number in counts if number],
        "table": legible.data(
            {
                "names": list(places),
                "on": [_spans(row.nodes, places) for row in found[:MOST_ROWS]],
                "said": [row.message[:300] if row.key in cards.anchors else "" for row in found[:MOST_ROWS]],
                "more": [_cells(row, everywhere, places) for row in found[MOST_ROWS:MOST_FILTERED]],
            }
        ),
    }


def _unjudged(report: Report) -> list[tuple[int, str, str]]:
    """Return numbers that could not be judged: (how many, what became of them, why)."""
    words = {
        "unjudged": ("not judged", "no number is known well enough to judge them by"),
        "inconclusive": ("too noisy to judge", "their interval is wider than the band"),
    }
    counted = [(sum(row.status == state for row in report.measurements), *said) for state, said in words.items()]
    return [each for each in counted if each[0]]


def _spans(names: Sequence[str], places: dict[str, int]) -> list[list[int]]:
    """Return the nodes called `names` by their places, as first and last of each run."""
    told = sorted(places[name] for name in names if name in places)
    runs = (list(run) for _, run in groupby(enumerate(told), key=lambda pair: pair[1] - pair[0]))
    return [[run[0][1], run[-1][1]] for run in runs]


def _cells(row: Row, everywhere: int, places: dict[str, int]) -> list[Any]:
    """Return a row beyond those in the page, in the order in which page.js fills a copy of the page's template row."""
    why = (row.evidence, row.see_also, row.remedy, row.blame)
    texts = (row.title, where(row, everywhere), row.subject, row.message, *why)
    short = (legible.printable(text, 300) for text in texts)
    return [row.kind, row.id, *short, _spans(row.nodes, places)]


def _measured(report: Report, history: Sequence[Past]) -> dict[str, Any]:
    plots, more = charts.charts(report.measurements, charts.of(report, history))
    heat, of_rails = matrix.maps(report.pairs, report.localisation), matrix.rail_maps(report.rails)
    signs = {kind: f'class="{kind}"' for kind in ("confirmed", "suspected", "unmeasured")} | {"cleared": "•"}
    drawn = {kind for kind, sign in signs.items() if any(sign in each.picture for each in heat)}
    return {
        "drawn": drawn | {"untried" for each in of_rails if signs["unmeasured"] in each.picture},
        "charts": plots,
        "more_charts": more,
        "measured": report.measurements[:MOST_MEASURED],
        "more_measured": len(report.measurements) - MOST_MEASURED,
        "maps": heat,
        "rail_maps": of_rails,
        "crowded": any(each.ends > matrix.SIDE_BY_SIDE for each in heat),
        "said": _said_of_pairs(report),
        "worst": matrix.worst(report.pairs),
        "ways": sum(not row.step for row in report.pairs),
        "tables": tables.tables(report),
        "pair_notes": tables.pair_notes(report),
        "fingerprint": tables.fingerprint(report),
    }


def _said_of_pairs(report: Report) -> list[matrix.Words]:
    """Return what the round-robin says beyond its findings, which have cards."""
    found = any(verdict.id == "run.pairs" and verdict.findings for verdict in report.checks)
    said = matrix.words(report.localisation) if report.localisation else iter(())
    return list(islice((each for each in said if not (found and each.kind == "fail")), MOST_LISTED))


def _nodes(report: Report, found: Sequence[Row], cards: Cards, since: Given) -> dict[str, Any]:
    kinds, more_kinds, more_nodes = fleet.kinds(report, found, cards.anchors)
    shown, hidden = fleet.tiles(report)
    groups, ungrouped = fleet.groups(report, cards.cards, since)
    settings = tables.settings(report.environment)
    choices, unshown = tables.equal_choices(report)
    return {
        "tiles": shown,
        "hidden_tiles": hidden,
        "tiles_named": len(shown) <= fleet.NAMED_TILES,
        "groups": groups,
        "ungrouped": ungrouped,
        "ailing": len(report.nodes) + len(report.missing_nodes) > 1 and any(each.why for each in groups),
        "kinds": kinds,
        "more_kinds": more_kinds,
        "more_nodes": more_nodes,
        "versions": tables.versions(report.environment),
        "settings": settings[:MOST_SETTINGS],
        "more_settings": len(settings) - MOST_SETTINGS,
        "choices": choices,
        "choices_left": unshown,
    }


MOST_OPS = 24
MOST_LINES = 40
MOST_COLUMNS = 30
"""Reports of the table of nodes: the newest."""
_DAY_S = 86400.0
_SIGNS = {"fail": "×", "missing": "–", "unknown": "?", "warn": "!", "pass": "·", "skip": "·"}
_LOUD = ("fail", "missing", "unknown", "warn")


class _Small(Struct, frozen=True):
    """One picture of a row of small ones: what it is of, how the newest value compares, the picture."""

    title: str
    change: str
    picture: Markup


class _Line(Struct, frozen=True):
    """One report in the list: when, which file, its verdict in a word, its headline."""

    when: str
    source: str
    status: str
    headline: str


class _NodeLine(Struct, frozen=True):
    """Nodes with one history: their state in each report that is shown, and its sign."""

    nodes: str
    cells: tuple[tuple[str, str], ...]


class _Trends(Struct, frozen=True):
    """Everything that the section on several reports shows."""

    reports: tuple[_Line, ...]
    ops: tuple[tuple[str, tuple[_Small, ...]], ...]
    more_ops: int
    nodes: tuple[_NodeLine, ...]
    columns: tuple[str, ...]
    steady: int
    more_nodes: int
    changed: tuple[tuple[str, str], ...]


def _over_time(history: Sequence[Past]) -> _Trends | None:
    """Return the section on `history`, oldest first; None for less than two reports."""
    if len(history) < 2:
        return None
    by_op = grouped((one.op, _small(one, history)) for one in trends.series(history))
    nodes, steady, more = _node_lines(history)
    shown = list(by_op.items())[:MOST_OPS]
    return _Trends(
        tuple(_Line(each.when, each.source, each.verdict, each.headline) for each in history),
        tuple((op, tuple(each)) for op, each in shown), len(by_op) - len(shown), nodes,
        tuple(trends.names(history[-MOST_COLUMNS:])), steady, more,
        tuple(trends.changed(history)),
    )  # fmt: skip


def _node_lines(history: Sequence[Past]) -> tuple[tuple[_NodeLine, ...], int, int]:
    """Return the nodes not always well, today's loudest first; how many always were, and how many are not shown."""
    shown = history[-MOST_COLUMNS:]
    every = dict.fromkeys(name for each in reversed(shown) for name in each.states)
    groups = grouped((tuple(each.states.get(name, "") for each in shown), name) for name in every)
    ailing = {states: names for states, names in groups.items() if not {*states}.isdisjoint(_LOUD)}
    ranked = sorted(ailing.items(), key=lambda each: (*map(_loudness, reversed(each[0])), -len(each[1])))
    lines = tuple(
        _NodeLine(folded(names), tuple((state, _SIGNS.get(state, "")) for state in states))
        for states, names in ranked[:MOST_LINES]
    )
    steady = sum(map(len, groups.values())) - sum(map(len, ailing.values()))
    return lines, steady, sum(len(names) for _, names in ranked[MOST_LINES:])


def _loudness(state: str) -> int:
    return _LOUD.index(state) if state in _LOUD else len(_LOUD)


def _small(one: Series, history: Sequence[Past]) -> _Small:
    way = "in place" if one.like.place == "in" else "out of place"
    title = f"{size(one.nbytes)}, {way}, {one.like.ranks} ranks"
    return _Small(title, _change(one), _picture(one, history))


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
