"""Pairs as a heat map: who sends in rows, who receives in columns, the suspects' cells framed."""

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ncclprobe.model.pair_results import Blamed, Localisation, PairRow
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import micros, printable, rate
from ncclprobe.report.pairs import description
from ncclprobe.units import plural, size

MOST_ENDS = 64
"""Rows of a heat map that can be told apart on a screen."""
SIDE_BY_SIDE = 20
"""Up to that many rows two maps stand side by side."""
WORST = 20
_NUMBERS_IN_CELLS = 12
_SHORT = 8
"""Characters of an end's name up to which it stands at the axis, where else the rank does."""


class Map(Struct, frozen=True):
    """One heat map; `usual` says which rates have its full colour, `note` what it leaves out."""

    name: str
    title: str
    figure: dict[str, Any]
    usual: str
    note: str = ""


class Words(Struct, frozen=True):
    """One sentence about who is slow: `kind` is fail, warn, pass or note."""

    kind: str
    label: str
    text: str


def maps(rows: Sequence[PairRow], found: Localisation | None) -> list[Map]:
    """Return the round-robin (retests are in the JSON): one way, and both ways at once where that was measured."""
    drawn = []
    for both in (False, True):
        chosen = [row for row in rows if row.both is both and not row.step]
        if chosen:
            title = f"{size(chosen[0].nbytes)}, {'both ways at once' if both else 'one way'}, GB/s"
            drawn.append(_map(f"pairs{int(both)}", title, chosen, found))
    return drawn


def worst(rows: Sequence[PairRow]) -> list[PairRow]:
    """Return the slowest directions, as the table under the map lists them."""
    return sorted((row for row in rows if not row.step), key=lambda row: row.GBps)[:WORST]


def words(found: Localisation) -> Iterator[Words]:
    """Who is slow, in the words of the terminal's report."""
    usual = ", ".join(f"{value:.3g} GB/s {way}" for way, value in found.level_GBps.items()) or "nothing came through"
    tests = f"{plural(found.tests, 'test')} and {plural(found.steps, 'round')} of retests; usual: {usual}"
    if found.all_slow:
        yield Words("fail", "everything", f"All pairs are slower than expected ({tests}).")
    elif not found.culprits:
        yield Words("pass", "none", f"No node, NIC or pair is confirmed as slow ({tests}).")
    yield from (Words("fail", "confirmed", description(each)) for each in found.culprits)
    yield from (Words("warn", "suspected", description(each)) for each in found.suspects if each.confidence > 0.5)
    for each in found.intra_node[:WORST]:
        text = (
            f"{each.where}: {100 * each.ratio:.0f} % of the usual {each.usual_GBps:.3g} GB/s, in each of {each.tests}"
        )
        yield Words("fail", "inside", f"{text} tests inside the node, where no network is in the way")
    for src, dst in list(dict.fromkeys((lost.src, lost.dst) for lost in found.lost))[:WORST]:
        yield Words("fail", "lost", f"{src} to {dst}: not everything came before the deadline")
    if found.cleared:
        yield Words("note", "cleared", f"Slow once, and not when measured again: {', '.join(found.cleared[:WORST])}")


def _map(name: str, title: str, rows: Sequence[PairRow], found: Localisation | None) -> Map:
    ends = _ends(rows)
    blamed = _blamed(found) if found else []
    shown = _chosen(ends, rows, blamed)
    left = len(ends) - len(shown)
    note = f"{left:,} of {len(ends):,} are left out: shown are the blamed and the slowest." if left else ""
    usual = _usual(rows)
    full = " and ".join(f"{rate(each)} GB/s{' within a node' * within}" for within, each in usual.items())
    frames = list(_frames(shown, ends, blamed, found.culprits if found else ()))
    figure = {"data": [_heat(shown, rows, usual)], "layout": _layout(shown, ends, frames)}
    return Map(name, title, figure, full, note)


def _blamed(found: Localisation) -> list[Blamed]:
    """Who is confirmed, then who is more likely than not."""
    return [*found.culprits, *(each for each in found.suspects if each.confidence > 0.5)]


def _ends(rows: Sequence[PairRow]) -> dict[int, str]:
    """Return the name of each rank's end, in the order of ranks."""
    named = {row.src: row.src_end for row in rows} | {row.dst: row.dst_end for row in rows}
    return dict(sorted(named.items()))


def _chosen(ends: dict[int, str], rows: Sequence[PairRow], blamed: Sequence[Blamed]) -> list[int]:
    """Return all ranks, or those that are blamed and those whose median is lowest."""
    if len(ends) <= MOST_ENDS:
        return list(ends)
    rates: dict[int, list[float]] = {rank: [] for rank in ends}
    for row in rows:
        rates[row.src].append(row.GBps)
        rates[row.dst].append(row.GBps)
    guilty = {rank for rank, end in ends.items() if any(_is_of(end, each) for each in blamed)}
    ranked = sorted(ends, key=lambda rank: (rank not in guilty, statistics.median(rates[rank])))
    return sorted(ranked[:MOST_ENDS])


def _usual(rows: Sequence[PairRow]) -> dict[bool, float]:
    """Return the median rate between nodes and, apart, within nodes, where the transport is another."""
    rates = {within: [row.GBps for row in rows if row.inside is within] for within in (False, True)}
    return {within: statistics.median(each) for within, each in rates.items() if each}


def _heat(shown: Sequence[int], rows: Sequence[PairRow], usual: dict[bool, float]) -> dict[str, Any]:
    """Return the heat map; colours are shares of what is usual, so that one fast transport does not hide slow pairs."""
    place = {rank: n for n, rank in enumerate(shown)}
    z: list[list[float | None]] = [[None] * len(shown) for _ in shown]
    text = [[""] * len(shown) for _ in shown]
    number = [[""] * len(shown) for _ in shown]
    for row in rows:
        if row.src in place and row.dst in place:
            x, y = place[row.dst], place[row.src]
            z[y][x] = 100 * row.GBps / usual[row.inside] if usual[row.inside] else None
            text[y][x], number[y][x] = _hover(row), f"{row.GBps:.3g}" if row.GBps >= 1 else f"{row.GBps:.2g}"
    few = len(shown) <= _NUMBERS_IN_CELLS
    return {
        "type": "heatmap",
        "z": z,
        "hovertext": text,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2 if len(shown) <= 40 else 0,
        "ygap": 2 if len(shown) <= 40 else 0,
        "zmin": 0,
        "zmax": 100,
        "colorscale": [[0, "--heat0"], [0.5, "--heat1"], [1, "--heat2"]],
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": " %"},
        **({"text": number, "texttemplate": "%{text}"} if few else {}),
    }


def _hover(row: PairRow) -> str:
    """Return the hover text; plotly reads a few elements in it, so names are escaped here too."""
    src, dst = escape(printable(row.src_end, 60)), escape(printable(row.dst_end, 60))
    return (
        f"<b>{src} to {dst}</b><br>{rate(row.GBps)} GB/s, {size(row.nbytes)}<br>"
        f"latency {micros(row.latency_us)} µs<br>"
        f"{micros(row.min_us)} – {micros(row.max_us)} µs in {plural(len(row.samples_us), 'sample')}"
    )


def _layout(shown: Sequence[int], ends: dict[int, str], frames: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the map; `height` is the most, and the page makes the map square, as far as its width allows."""
    names = [printable(ends[rank]) for rank in shown]
    short = max(map(len, names)) <= _SHORT
    told = [escape(name) for name in names] if short else [str(rank) for rank in shown]
    step = max(1, math.ceil(len(shown) / 24))
    ticks = {"tickvals": list(range(0, len(shown), step)), "ticktext": told[::step]}
    what = "" if short else " rank"
    return {
        "height": min(760, max(300, 130 + 34 * len(shown))),
        "margin": {"l": 30 + 7 * max(map(len, told)), "r": 10, "t": 46, "b": 12},
        "xaxis": {
            "title": {"text": f"to{what}", "standoff": 6}, "side": "top", "constrain": "domain",
            "constraintoward": "left", **ticks,
        },
        "yaxis": {
            "title": {"text": f"from{what}"}, "autorange": "reversed", "scaleanchor": "x", "constrain": "domain",
            "constraintoward": "top", **ticks,
        },
        "shapes": list(frames),
    }  # fmt: skip


_END = re.compile(r"(.*?)(?: rail (\d{1,6}))?(?: \(.*\))?", re.DOTALL)


def _end(text: str) -> tuple[str, int]:
    """Return node and rail of an end: ``n3 rail 1 (mlx5_1)``. The first rail is not written."""
    match = _END.fullmatch(text)
    return (match[1], int(match[2] or 0)) if match else (text, 0)


def _is_of(end: str, blamed: Blamed) -> bool:
    """Return whether `end` is one of those that are blamed."""
    node, rail = _end(end)
    return (not blamed.nodes or node in blamed.nodes) and blamed.rail in (None, rail)


def _frames(
    shown: Sequence[int], ends: dict[int, str], blamed: Sequence[Blamed], confirmed: Sequence[Blamed]
) -> Iterator[dict[str, Any]]:
    """Yield a frame around each row (what goes out) and column (what comes in) to which blame is attached."""
    for each in blamed[:8]:
        line = {"color": "--fail", "width": 3} if each in confirmed else {"color": "--warn", "width": 3, "dash": "dot"}
        yield from ({**frame, "line": line} for frame in _framed(shown, ends, each))


def _framed(shown: Sequence[int], ends: dict[int, str], blamed: Blamed) -> Iterator[dict[str, Any]]:
    last = len(shown) - 0.5
    mine = [n for n, rank in enumerate(shown) if _is_of(ends[rank], blamed)]
    if blamed.kind == "pair":
        yield from (_frame(x, y, x, y) for y in mine for x in mine if x != y and _goes(shown, ends, blamed, y, x))
        return
    for n in mine:
        if blamed.direction != "into":
            yield _frame(-0.5, n, last, n)
        if blamed.direction != "out":
            yield _frame(n, -0.5, n, last)


def _goes(shown: Sequence[int], ends: dict[int, str], blamed: Blamed, src: int, dst: int) -> bool:
    """Return whether the cell lies on the blamed way of a pair, which `out` and `into` name from its first node."""
    first = [ends[shown[n]].partition(" (")[0].partition(" rail ")[0] == blamed.nodes[0] for n in (src, dst)]
    wanted = {"out": first[0], "into": first[1], "both": True}
    return first[0] != first[1] and wanted[blamed.direction]


def _frame(x0: float, y0: float, x1: float, y1: float) -> dict[str, Any]:
    """Return a rectangle around cells, which are numbered by their middle; -0.5 and n - 0.5 are the map's own edges."""

    def edge(value: float, way: float) -> float:
        return value if value % 1 else value + way

    return {"type": "rect", "x0": edge(x0, -0.5), "y0": edge(y0, -0.5), "x1": edge(x1, 0.5), "y1": edge(y1, 0.5)}
