"""Rails as a heat map: nodes in rows, rails in columns, what each sends as a share of the usual."""

from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from ncclprobe.model.pair_results import RailWay
from ncclprobe.report.html import svg
from ncclprobe.report.html.legible import printable, rate
from ncclprobe.report.html.matrix import Map
from ncclprobe.report.rails import RailEnd, by_node, ends, shown

_WIDE, _HIGH, _ABOVE = 58, 26, 24
_SHADES = 10
_LETTER = 7


def maps(rows: Sequence[RailWay]) -> list[Map]:
    """Return the map of all rails; none where none were tried."""
    every = ends(rows)
    rates = [each.rate(each.out) for each in every]
    known = [value for value in rates if value]
    if not every or not known:
        return []
    nodes, usual = by_node(every), median(known)
    kept, numbers = shown(nodes), sorted({each.rail for each in every})
    left = _LETTER * max(map(len, kept)) + 14
    parts = [svg.text(left + (n + 0.5) * _WIDE, _ABOVE - 8, f"rail {rail}", "x") for n, rail in enumerate(numbers)]
    for row, node in enumerate(kept):
        top = _ABOVE + row * _HIGH
        parts.append(svg.text(left - 6, top + _HIGH / 2 + 4, printable(node), "y"))
        for column, rail in enumerate(numbers):
            parts += _cell(nodes[node].get(rail), left + column * _WIDE, top, usual)
    picture = svg.drawing(left + len(numbers) * _WIDE + 8, _ABOVE + len(kept) * _HIGH + 8, "heat", _SPOKEN, parts)
    less = (
        f"{len(nodes) - len(kept):,} of {len(nodes):,} nodes are left out: they are no worse."
        if kept != [*nodes]
        else ""
    )
    return [Map("What each rail sends, GB/s", picture, len(kept), f"{rate(usual)} GB/s", less)]


_SPOKEN = "Heat map of rails by node; the table below has the same numbers"


def _cell(end: RailEnd | None, x: float, y: float, usual: float) -> list[Markup]:
    if end is None:
        return [svg.box(x, y, _WIDE - 2, _HIGH - 2, "unmeasured", "not tried")]
    value = end.rate(end.out) or 0.0
    shade = 0 if end.state != "ok" else round(_SHADES * min(1.0, value / usual))
    words = end.state if end.state != "ok" else rate(value)
    why = "; ".join(dict.fromkeys(way.why for way in end.bad if way.why))
    hover = "\n".join(filter(None, (printable(end.name, 60), printable(end.choices, 200), printable(why, 200))))
    middle = x + _WIDE / 2 - 1
    return [
        svg.box(x, y, _WIDE - 2, _HIGH - 2, f"h{shade}", hover),
        svg.text(middle, y + _HIGH / 2 + 3, words, "cell"),
    ]
