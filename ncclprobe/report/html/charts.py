"""Curves of a sweep as plotly figures: plain dictionaries, data only. Colours are names of the page's own variables
(``--fail``), which the page's script fills in, so that one figure suits light, dark and paper.

Bandwidth is busbw, of the median time, which is what is judged. The short bars are its 95 % interval: a
point next to its bar says that a few slow calls made the mean.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import micros, printable, rate
from ncclprobe.units import plural, size

MOST_OPS = 24
MOST_POINTS = 400
"""Points of one curve: more cannot be told apart."""
_MOST_CURVES = 8

_COLOUR = {"pass": "", "warn": "--warn", "fail": "--fail", "inconclusive": "--unknown", "unjudged": ""}
_SYMBOL = {"pass": "circle", "warn": "diamond", "fail": "x", "inconclusive": "diamond-open", "unjudged": "circle"}
_CURVE = ("--curve1", "--curve2", "--curve3", "--curve4")
_DASH = ("solid", "dash", "dot", "dashdot")

Figure = dict[str, Any]
Curve = Sequence[Measurement]


class Chart(Struct, frozen=True):
    """The two figures of one collective, called `name` in the page. `spoken`: its text for screen readers."""

    name: str
    op: str
    bandwidth: Figure
    latency: Figure
    spoken: str
    judged: tuple[str, ...]


def charts(rows: Sequence[Measurement]) -> tuple[list[Chart], int]:
    """A chart per operation and reduction, in the order of the rows, and how many more there would be."""
    by_op: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in rows:
        redop = row.redop if row.redop not in (None, "sum") else ""
        by_op[row.op, redop or ""].append(row)
    shown = list(by_op.items())[:MOST_OPS]
    drawn = [_chart(f"op{n}", " ".join(filter(None, key)), each) for n, (key, each) in enumerate(shown)]
    return drawn, len(by_op) - len(drawn)


def _chart(name: str, op: str, rows: Curve) -> Chart:
    curves = dict(list(_curves(rows).items())[:_MOST_CURVES])
    best = max(rows, key=lambda row: row.busbw_GBps)
    spoken = f"{op}: at most {rate(best.busbw_GBps)} GB/s, at {size(best.nbytes)}; all numbers are in the table below"
    return Chart(
        name,
        op,
        _figure(curves, _bandwidth, _median_bandwidth, "bus bandwidth"),
        _figure(curves, _latency, _median_latency, "time per call"),
        spoken,
        _grounds(rows),
    )


def _grounds(rows: Curve) -> tuple[str, ...]:
    """What the band stands on, each once."""
    known = (row.expectation for row in rows if row.expectation)
    said = dict.fromkeys(f"{e.basis}: {e.why} ({e.source}; confidence {e.confidence})" for e in known)
    return tuple(said)[:3]


def _curves(rows: Curve) -> dict[str, Curve]:
    """Rows of one curve each, by size. Its name, escaped as plotly wants it, tells it from the others of the chart."""
    parts: list[Callable[[Measurement], str]] = [
        lambda row: f"{row.place} of place" if row.place == "out" else "in place",
        lambda row: row.dtype,
        lambda row: row.mode,
        lambda row: f"{row.ranks} ranks",
        lambda row: row.backend,
    ]
    telling = [part for part in parts if len({part(row) for row in rows}) > 1]
    curves: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        curves[escape(printable(", ".join(part(row) for part in telling), 80))].append(row)
    return {name: sorted(each, key=lambda row: row.nbytes)[:MOST_POINTS] for name, each in curves.items()}


def _bandwidth(row: Measurement) -> float | None:
    return _drawn(row.busbw_GBps)


def _latency(row: Measurement) -> float | None:
    return _drawn(row.time_us.typical)


def _median_latency(row: Measurement) -> tuple[float | None, ...]:
    low, high = row.interval_us or (None, None)
    return _drawn(row.time_us.median), _drawn(low), _drawn(high)


def _median_bandwidth(row: Measurement) -> tuple[float | None, ...]:
    """The same as rates: the longer the time, the lower the rate."""
    median, low, high = _median_latency(row)
    return tuple(_as_rate(row, time) for time in (median, high, low))


def _as_rate(row: Measurement, time: float | None) -> float | None:
    whole = row.busbw_GBps * row.time_us.typical
    return _drawn(whole / time) if time else None


def _drawn(value: float | None) -> float | None:
    """`value` if it has a place on a logarithmic axis."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


Point = Callable[[Measurement], float | None]
Spread = Callable[[Measurement], tuple[float | None, ...]]


def _figure(curves: dict[str, Curve], point: Point, spread: Spread, title: str) -> Figure:
    traces: list[Figure] = []
    for rows in curves.values():
        band = list(_band(rows, point, not traces))
        traces += [] if band and band[0]["y"] in [trace["y"] for trace in traces] else band
    for n, (name, rows) in enumerate(curves.items()):
        traces += [_medians(rows, spread, n), _curve(rows, point, name or title, n)]
    sizes = sorted({row.nbytes for rows in curves.values() for row in rows if row.nbytes > 0})
    heights = [y for trace in traces for y in trace["y"] if y is not None]
    legend = len(curves) > 1 or any(trace.get("fill") for trace in traces)
    layout = {
        "height": 280,
        "margin": {"l": 58, "r": 12, "t": 26 if legend else 8, "b": 26},
        "xaxis": {"type": "log", **_size_ticks(sizes), "range": _range(sizes)},
        "yaxis": {"type": "log", **_ticks(heights), "range": _range(heights)},
        "showlegend": legend,
        "legend": {"orientation": "h", "y": 1.0, "x": 1.0, "xanchor": "right", "yanchor": "bottom"},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def _curve(rows: Curve, point: Point, name: str, number: int) -> Figure:
    colour = _CURVE[number % len(_CURVE)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [row.nbytes for row in rows],
        "y": [point(row) for row in rows],
        "text": [_hover(row) for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": colour, "width": 2, "dash": _DASH[number // len(_CURVE) % len(_DASH)]},
        "marker": {
            "color": [_COLOUR[row.status] or colour for row in rows],
            "symbol": [_SYMBOL[row.status] for row in rows],
            "size": [10 if row.status in ("fail", "warn") else 6 for row in rows],
            "line": {"width": 0},
            "opacity": 1,
        },
    }


def _medians(rows: Curve, spread: Spread, number: int) -> Figure:
    kept = [(row.nbytes, *known) for row in rows if None not in (known := spread(row))]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "median, 95 %",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": [nbytes for nbytes, *_ in kept],
        "y": [median for _, median, *_ in kept],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - median for _, median, _, high in kept],  # type: ignore[operator]
            "arrayminus": [median - low for _, median, low, _ in kept],  # type: ignore[operator]
            "color": _CURVE[number % len(_CURVE)],
            "thickness": 1.2,
            "width": 4,
        },
        "marker": {"symbol": "line-ew-open", "size": 6, "color": _CURVE[number % len(_CURVE)]},
    }


def _band(rows: Curve, point: Point, first: bool) -> Iterator[Figure]:
    """From the smallest acceptable value to the expected one, where there is an expectation."""
    judged = [
        row for row in rows if row.expectation and _drawn(row.expectation.threshold) and row.expectation.unit == "GB/s"
    ]
    if not judged:
        return
    for edge in ("threshold", "value"):
        bound = [getattr(row.expectation, edge) for row in judged]
        if point is _latency:
            bound = [_as_rate(row, each) for row, each in zip(judged, bound, strict=True)]
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "expected",
            "x": [row.nbytes for row in judged],
            "y": [_drawn(each) for each in bound],
            "line": {"color": "--band-edge", "width": 1, "dash": "solid" if edge == "threshold" else "dot"},
            "hoverinfo": "skip",
            "legendgroup": "expected",
            "showlegend": first and edge == "value",
            **({"fill": "tonexty", "fillcolor": "--band"} if edge == "value" else {}),
        }


def _hover(row: Measurement) -> str:
    """Everything about a point. No text of the report: numbers, and words of the model's own choice."""
    lines = [
        f"<b>{size(row.nbytes)}</b>  {'in place' if row.place == 'in' else 'out of place'}  <b>{row.status}</b>",
        f"bus {rate(row.busbw_GBps)} GB/s, algorithm {rate(row.algbw_GBps)} GB/s",
        f"median {micros(row.time_us.median)} µs, mean {micros(row.time_us.mean)} µs",
    ]
    if row.interval_us:
        lines.append(f"median lies in {micros(row.interval_us[0])} – {micros(row.interval_us[1])} µs (95 %)")
    if row.expectation:
        e = row.expectation
        least = "" if row.status == "unjudged" else f", at least {rate(e.threshold)}"
        lines.append(f"expected {rate(e.value)}{least} GB/s ({e.basis})")
    lines.append(f"{plural(row.batches, 'batch').replace('batchs', 'batches')} of {plural(row.iters, 'call')}")
    if row.launch_bound:
        lines.append("launch-bound: says little of the link")
    if row.wrong:
        lines.append(f"<b>{plural(row.wrong, 'wrong element')}</b>")
    return "<br>".join(lines)


def _size_ticks(sizes: Sequence[int]) -> Figure:
    """At most seven sizes, each a power of two."""
    if not sizes:
        return {}
    first, last = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    step = max(1, math.ceil((last - first) / 6))
    powers = range(first, last + 1, step)
    return {"tickvals": [2**power for power in powers], "ticktext": [size(2**power) for power in powers]}


def _ticks(heights: Iterable[float]) -> Figure:
    """1, 10, 100 … over many decades, 1, 2, 5, 10 … over few."""
    drawn = list(heights)
    if not drawn:
        return {}
    low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
    near = max(drawn) / min(drawn) < 8
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if near else (1, 2, 5) if high - low <= 2 else (1,)
    every = 1 + (high - low) // 8
    powers = range(max(low - 1, -300), min(high + 2, 308), every)  # a report may hold any number that a float can be
    values = [step * 10.0**power for power in powers for step in steps]
    return {"tickvals": values, "ticktext": [f"{value:,g}" if value < 1e6 else f"{value:.0e}" for value in values]}


def _range(values: Sequence[float]) -> list[float] | None:
    """The axis in powers of ten, a little wider than what stands on it, and never less than a factor of two."""
    if not values:
        return None
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.06 * (high - low), 0.04, (math.log10(2) - (high - low)) / 2)
    return [low - room, high + room]
