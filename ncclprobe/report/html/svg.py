"""Hand-written SVG: logarithmic axes, shapes whose colours are classes of the page, and tooltips.

A picture needs no script, suits light, dark and paper, and is as large as its content.
"""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import printable

WIDE, HIGH = 520, 250
"""Units of a chart; the page scales it to the available space."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 24, 10, 24


class Axis(Struct, frozen=True):
    """A logarithmic axis between two pixels. `ticks`: position of a line, and its label."""

    low: float
    high: float
    first: float
    last: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Return the pixel of `value` (positive); a value outside is drawn at the edge."""
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.first + min(1.0, max(0.0, share)) * (self.last - self.first)


def axes(
    xs: Sequence[float],
    ys: Sequence[float],
    x_ticks: Sequence[tuple[float, str]],
    words: Callable[[float], str] | None = None,
) -> tuple[Axis, Axis]:
    """Return axes that cover all of `xs` and `ys`, which are finite and positive. `words`: label of a tick of `ys`."""
    low, high = _room(xs)
    bottom, top = _room(ys)
    shown = tuple((value, words) for value, words in x_ticks if low <= value <= high)
    x = Axis(low, high, _LEFT, WIDE - _RIGHT, shown)
    ticks = tuple((value, words(value) if words else told) for value, told in _ticks(bottom, top))
    return x, Axis(bottom, top, HIGH - _BOTTOM, _TOP, ticks)


def _room(values: Sequence[float]) -> tuple[float, float]:
    """Return limits a little wider than `values`, at least a factor of two apart."""
    low, high = (min(300.0, max(-300.0, math.log10(each))) for each in (min(values), max(values)))
    room = max(0.06 * (high - low), 0.04, (math.log10(2) - (high - low)) / 2)
    return 10 ** (low - room), 10 ** (high + room)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return 1, 10, 100 … over many decades, 1, 2, 5, 10 … over few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    near = high / low < 8
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if near else (1, 2, 5) if last - first <= 3 else (1,)
    every = 1 + (last - first) // 8
    values = (step * 10.0**power for power in range(first, last + 1, every) for step in steps)
    return [(value, _words(value)) for value in values if low <= value <= high]


def _words(value: float) -> str:
    return f"{value:,g}" if 1e-4 <= value < 1e6 else f"{value:.0e}"


def drawing(width: float, height: float, kind: str, spoken: str, parts: Sequence[Markup]) -> Markup:
    """Return a complete picture; `spoken` is the text for screen readers."""
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" style="--w:{:.0f}px" role="img" aria-label="{}">')
    return (
        head.format(kind, _number(width), _number(height), width, printable(spoken))
        + Markup("").join(parts)
        + Markup("</svg>")
    )


def grid(x: Axis, y: Axis) -> list[Markup]:
    """Return the grid lines of a chart with their labels."""
    parts = []
    for value, words in y.ticks:
        parts += [
            line(x.first, y.at(value), x.last, y.at(value), "grid"),
            text(x.first - 6, y.at(value) + 4, words, "y"),
        ]
    for value, words in x.ticks:
        parts += [line(x.at(value), y.first, x.at(value), y.last, "grid"), text(x.at(value), y.first + 16, words, "x")]
    return parts


def line(x0: float, y0: float, x1: float, y1: float, kind: str) -> Markup:
    """Return a straight line."""
    ends = map(_number, (x0, y0, x1, y1))
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(kind, *ends)


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """Return a line through `points`."""
    told = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(kind, told)


def box(x: float, y: float, width: float, height: float, kind: str, hover: str = "") -> Markup:
    """Return a rectangle; `hover`: its tooltip, lines separated by a newline."""
    shape = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"').format(
        kind, *map(_number, (x, y, max(width, 0.0), max(height, 0.0)))
    )
    return shape + (Markup(">{}</rect>").format(_title(hover)) if hover else Markup("/>"))


def mark(x: float, y: float, kind: str, hover: str) -> Markup:
    """Return a point: a cross if it fails, a diamond if it warns or is uncertain, otherwise a circle."""
    around = Markup('<g class="point {}" transform="translate({} {})">').format(kind, _number(x), _number(y))
    shapes = {"fail": "M-5-5L5 5M-5 5L5-5", "warn": "M0-6L6 0L0 6L-6 0Z", "inconclusive": "M0-6L6 0L0 6L-6 0Z"}
    status = kind.partition(" ")[0]
    shape = Markup('<path d="{}"/>').format(shapes[status]) if status in shapes else Markup('<circle r="3.2"/>')
    room = Markup('<circle class="near" r="9"/>')  # where a pointer counts as being on it
    return around + room + shape + _title(hover) + Markup("</g>")


def text(x: float, y: float, words: str, kind: str, hover: str = "") -> Markup:
    """Return text at a position; `hover`: its tooltip."""
    shape = Markup('<text class="{}" x="{}" y="{}">{}{}</text>')
    return shape.format(kind, _number(x), _number(y), printable(words), _title(hover) if hover else "")


def _title(hover: str) -> Markup:
    """Return the tooltip, with its line breaks."""
    return Markup("<title>{}</title>").format("\n".join(map(printable, hover.split("\n"))))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
