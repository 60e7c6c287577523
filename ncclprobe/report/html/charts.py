"""Curves of a sweep: bandwidth and time over sizes, with the expectation, as pictures without scripts.

Bandwidth is busbw of the median time, the number that is judged; the bar at a point is the median's 95 % interval. The
expectation is drawn in steps where it is known, with gaps elsewhere.
"""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from ncclprobe.model.measurement import Measurement, operation
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report.html import svg
from ncclprobe.report.html.legible import micros, micros_tick, printable, rate
from ncclprobe.report.html.svg import Axis

MOST_OPS = 24
MOST_POINTS = 400
"""Points of one curve: more are indistinguishable."""
_MOST_CURVES = 8
_COLOURS = 4
_MOST_SIZE_TICKS = 6
_STEP = math.sqrt(2)
"""Half of the way to the next size, if sizes double: the width of a step without a neighbour."""

Curve = Sequence[Measurement]
Value = Callable[[Measurement], float | None]


class _Chart(Struct, frozen=True):
    """The two pictures of one collective. `names`: curve names, in the order of their colours."""

    op: str
    bandwidth: Markup
    latency: Markup
    names: tuple[str, ...]
    expected: bool
    judged: tuple[str, ...]


def charts(rows: Sequence[Measurement]) -> tuple[list[_Chart], int]:
    """Return a chart per operation and reduction, in the order of the rows, and how many more there would be."""
    by_op = grouped((operation(row.op, row.redop), row) for row in rows)
    shown = list(by_op.items())[:MOST_OPS]
    return [_chart(name, each) for name, each in shown], len(by_op) - len(shown)


def _chart(op: str, rows: Curve) -> _Chart:
    curves = dict(list(_curves(rows).items())[:_MOST_CURVES])
    best = max(rows, key=lambda row: row.busbw_GBps)
    spoken = f"{op}: at most {rate(best.busbw_GBps)} GB/s, at {size(best.nbytes)}; all numbers are in the table below"
    names = tuple(name for name in curves if name)
    known = (row.expectation for row in rows if row.expectation)
    said = dict.fromkeys(f"{e.basis}: {e.why} ({e.source}; confidence {e.confidence})" for e in known)
    return _Chart(
        op,
        _picture(list(curves.values()), _bandwidth, f"{spoken}; bus bandwidth"),
        _picture(list(curves.values()), _latency, f"{spoken}; time per call"),
        names if len(curves) > 1 else (),
        any(_expected(row, _bandwidth) for row in rows),
        tuple(said)[:3],
    )


def _curves(rows: Curve) -> dict[str, Curve]:
    """Group the rows into curves, sorted by size. A curve's name distinguishes it from the others of the chart."""
    parts: list[Callable[[Measurement], str]] = [
        lambda row: f"{row.place} of place" if row.place == "out" else "in place",
        lambda row: row.dtype,
        lambda row: row.mode,
        lambda row: f"{row.ranks} ranks",
        lambda row: row.backend,
    ]
    telling = [part for part in parts if len({part(row) for row in rows}) > 1]
    curves = grouped((printable(", ".join(part(row) for part in telling), 80), row) for row in rows)
    return {name: sorted(each, key=lambda row: row.nbytes)[:MOST_POINTS] for name, each in curves.items()}


def _bandwidth(row: Measurement) -> float | None:
    return _drawable(row.busbw_GBps)


def _latency(row: Measurement) -> float | None:
    return _drawable(row.time_us.typical)


def _drawable(value: float | None) -> float | None:
    """Return `value` if it can be drawn on a logarithmic axis."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _value_at_time(row: Measurement, time_us: float | None, value: Value) -> float | None:
    """Return `value` for a call of `time_us`: the longer the time, the lower the rate."""
    if value is _latency:
        return _drawable(time_us)
    return _drawable(row.busbw_GBps * row.time_us.typical / time_us) if _drawable(time_us) and time_us else None


def _expected(row: Measurement, value: Value) -> tuple[float, float] | None:
    """Return threshold and expected value, in the unit of `value`."""
    known = row.expectation
    if known is None or known.unit != "GB/s":
        return None
    rates = _drawable(known.threshold), _drawable(known.value)
    if value is _latency:
        whole = row.busbw_GBps * row.time_us.typical
        rates = tuple(_drawable(whole / each) if each else None for each in rates)  # type: ignore[assignment]
    low, high = rates
    return (low, high) if low and high else None


def _picture(curves: Sequence[Curve], value: Value, spoken: str) -> Markup:
    rows = [row for curve in curves for row in curve if row.nbytes > 0 and value(row)]
    if not rows:
        return Markup("")
    sizes = sorted({row.nbytes for row in rows})
    bounds = [end for row in rows for end in _expected(row, value) or ()]
    heights = [*(value(row) or 1.0 for row in rows), *bounds]
    x, y = svg.axes(sizes, heights, _size_ticks(sizes), micros_tick if value is _latency else None)
    parts = svg.grid(x, y) + _steps(curves[0], x, y, value)
    for number, curve in enumerate(curves):
        parts += _curve([row for row in curve if row in rows], number, x, y, value)
    return svg.drawing(svg.WIDE, svg.HIGH, "chart", spoken, parts)


def _steps(rows: Curve, x: Axis, y: Axis, value: Value) -> list[Markup]:
    """Return the expectation as steps: each reaches half of the way to its neighbours."""
    parts = []
    sizes = sorted({row.nbytes for row in rows if row.nbytes > 0})
    done: set[int] = set()
    for row in rows:
        ends = _expected(row, value)
        if ends and row.nbytes in sizes and row.nbytes not in done:
            done.add(row.nbytes)
            place = sizes.index(row.nbytes)
            before = math.sqrt(sizes[place - 1] * row.nbytes) if place else row.nbytes / _STEP
            after = math.sqrt(sizes[place + 1] * row.nbytes) if place + 1 < len(sizes) else row.nbytes * _STEP
            left, right = x.at(before), x.at(after)
            least, usual = (y.at(end) for end in ends)
            parts += [
                svg.box(left, min(least, usual), right - left, abs(least - usual), "band"),
                svg.line(left, least, right, least, "least"),
                svg.line(left, usual, right, usual, "usual"),
            ]
    return parts


def _curve(rows: Curve, number: int, x: Axis, y: Axis, value: Value) -> list[Markup]:
    colour = f"curve{number % _COLOURS + 1}" + (" dashed" if number >= _COLOURS else "")
    places = [(x.at(row.nbytes), y.at(value(row) or 1.0)) for row in rows]
    bars, points = [], []
    for row, (across, up) in zip(rows, places, strict=True):
        ends = [_value_at_time(row, time, value) for time in row.interval_us or ()]
        if len(ends) == 2 and all(ends):
            bars.append(svg.line(across, y.at(ends[0] or 1.0), across, y.at(ends[1] or 1.0), f"interval {colour}"))
        points.append(svg.mark(across, up, f"{row.status} {colour}", _hover(row)))
    return [svg.path(places, colour), *bars, *points]


def _hover(row: Measurement) -> str:
    """Return everything about a point, one line each."""
    lines = [
        f"{size(row.nbytes)}, {'in place' if row.place == 'in' else 'out of place'}: {row.status}",
        f"bus {rate(row.busbw_GBps)} GB/s, algorithm {rate(row.algbw_GBps)} GB/s",
        f"median {micros(row.time_us.median)}, mean {micros(row.time_us.mean)}",
    ]
    if row.interval_us:
        lines.append(f"median lies in {micros(row.interval_us[0])} – {micros(row.interval_us[1])} (95 %)")
    if row.expectation:
        e = row.expectation
        least = "" if row.status == "unjudged" else f", at least {rate(e.mark(row.busbw_GBps))}"
        lines.append(f"expected {rate(e.value)}{least} GB/s ({e.basis})")
    lines.append(f"{plural(row.batches, 'batch').replace('batchs', 'batches')} of {plural(row.iters, 'call')}")
    if row.launch_bound:
        lines.append("launch-bound: the link hardly matters")
    if row.wrong:
        lines.append(plural(row.wrong, "wrong element"))
    return "\n".join(lines)


def _size_ticks(sizes: Sequence[int]) -> list[tuple[float, str]]:
    """Return a few tick sizes, each a power of two."""
    first, last = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    step = max(1, math.ceil((last - first) / _MOST_SIZE_TICKS))
    return [(2.0**power, size(2**power)) for power in range(first, last + 1, step)]
