"""Pairs as heat maps: senders in rows, receivers in columns, suspects' cells framed."""

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from markupsafe import Markup

from ncclprobe.model.pair_results import Blamed, Localisation, PairRow
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct
from ncclprobe.report.html import svg
from ncclprobe.report.html.legible import micros, printable, rate

MOST_ENDS = 64
"""Rows of a heat map that are distinguishable on a screen."""
SIDE_BY_SIDE = 20
"""Two maps are shown side by side up to this number of rows."""
WORST = 20
_NUMBERS_IN_CELLS = 12
_SHORT = 8
"""Longest name of an end at the axis; a longer one is replaced by the rank."""
_MOST_TICKS = 24
_SHADES = 10
"""Colours between zero and the usual rate."""
_TOLD = frozenset(f"h{shade}" for shade in range(_SHADES - 1))
"""Colours whose cells show their number in a large map: below 85 % of the usual rate."""
_CELL, _SMALL_CELL, _LARGEST_SIDE = 46, 24, 760
_ABOVE = 34


class _Map(Struct, frozen=True):
    """One heat map of `ends` rows; `usual` gives the rates of its full colour, `note` the omissions."""

    title: str
    picture: Markup
    ends: int
    usual: str
    note: str = ""


def maps(rows: Sequence[PairRow], found: Localisation | None) -> list[_Map]:
    """Return maps of the round-robin (retests are in the JSON): one way, and both ways at once if measured."""
    drawn = []
    for both in (False, True):
        chosen = [row for row in rows if row.both is both and not row.step]
        if chosen:
            title = f"{size(chosen[0].nbytes)}, {'both ways at once' if both else 'one way'}, GB/s"
            drawn.append(_map(title, chosen, found))
    return drawn


def worst(rows: Sequence[PairRow]) -> list[PairRow]:
    """Return the slowest directions, as listed in the table under the map."""
    return sorted((row for row in rows if not row.step), key=lambda row: row.GBps)[:WORST]


def _map(title: str, rows: Sequence[PairRow], found: Localisation | None) -> _Map:
    ends = _ends(rows)
    blamed = _culprits_and_suspects(found) if found else []
    shown = _choose_ranks(ends, rows, blamed)
    left = len(ends) - len(shown)
    note = f"{left:,} of {len(ends):,} are left out; the culprits and the slowest are shown." if left else ""
    usual = _usual(rows, found)
    full = " and ".join(f"{rate(each)} GB/s{' within a node' * within}" for within, each in usual.items())
    frames = list(_frames(shown, ends, blamed, found.culprits if found else ()))
    cleared = frozenset(found.cleared) if found else frozenset()
    return _Map(title, _picture(shown, ends, rows, usual, frames, cleared), len(shown), full, note)


def _culprits_and_suspects(found: Localisation) -> list[Blamed]:
    """Return the culprits, then suspects that are more likely than not."""
    return [*found.culprits, *(each for each in found.suspects if each.confidence > 0.5)]


def _ends(rows: Sequence[PairRow]) -> dict[int, str]:
    """Return the name of each rank's end, ordered by rank."""
    named = {row.src: row.src_end for row in rows} | {row.dst: row.dst_end for row in rows}
    return dict(sorted(named.items()))


def _choose_ranks(ends: dict[int, str], rows: Sequence[PairRow], blamed: Sequence[Blamed]) -> list[int]:
    """Return all ranks, or the blamed ones and those with the lowest median."""
    if len(ends) <= MOST_ENDS:
        return list(ends)
    rates: dict[int, list[float]] = {rank: [] for rank in ends}
    for row in rows:
        rates[row.src].append(row.GBps)
        rates[row.dst].append(row.GBps)
    guilty = {rank for rank, end in ends.items() if any(_is_of(end, each) for each in blamed)}
    ranked = sorted(ends, key=lambda rank: (rank not in guilty, statistics.median(rates[rank])))
    return sorted(ranked[:MOST_ENDS])


def _usual(rows: Sequence[PairRow], found: Localisation | None) -> dict[bool, float]:
    """Return the usual rate between nodes and within nodes, as used for judging."""
    rates = {within: [row.GBps for row in rows if row.inside is within] for within in (False, True)}
    both = bool(rows) and rows[0].both
    level = {within: found.usual_GBps(inside=within, both=both) if found else None for within in rates}
    return {within: level[within] or statistics.median(each) for within, each in rates.items() if each}


def _picture(
    shown: Sequence[int],
    ends: Mapping[int, str],
    rows: Sequence[PairRow],
    usual: Mapping[bool, float],
    frames: Sequence["Frame"],
    cleared: frozenset[str],
) -> Markup:
    """Return the map; colours are shares of the usual rate, so that one fast transport does not hide slow pairs."""
    few = len(shown) <= _NUMBERS_IN_CELLS
    side = min(_CELL if few else _SMALL_CELL, _LARGEST_SIDE / len(shown))
    names = _names(shown, ends)
    left = 24 + 7 * max(map(len, names))
    place = {rank: n for n, rank in enumerate(shown)}
    cells = {(place[row.src], place[row.dst]): row for row in rows if row.src in place and row.dst in place}
    marked = [_was_cleared(ends[rank], cleared) for rank in shown]
    names = [f"{name} •" if mark else name for name, mark in zip(names, marked, strict=True)]
    draw = partial(_cells, side=side, usual=usual, cleared=cleared, numbers=few)
    parts: list[Markup] = []
    for y in range(len(shown)):
        parts += draw([cells.get((y, x)) for x in range(len(shown))], y, (left, _ABOVE + y * side))
    step = max(1, math.ceil(len(shown) / _MOST_TICKS))
    for n in range(0, len(shown), step):
        middle = (n + 0.5) * side
        whole = ends[shown[n]]
        parts.append(svg.text(left - 6, _ABOVE + middle + 4, names[n], "y", whole))
        parts.append(svg.text(left + middle, _ABOVE - 6, names[n], "x", whole))
    parts += [svg.box(left + f.x * side, _ABOVE + f.y * side, f.wide * side, f.high * side, f.kind) for f in frames]
    return svg.drawing(left + len(shown) * side + 8, _ABOVE + len(shown) * side + 8, "heat", _SPOKEN, parts)


_SPOKEN = "Heat map; the slowest directions are in the table below"


def _names(shown: Sequence[int], ends: Mapping[int, str]) -> list[str]:
    """Return the labels of the axes: names if all are short, otherwise ranks."""
    names = [printable(ends[rank]) for rank in shown]
    if max(map(len, names)) > _SHORT:  # n2 rail 1 (eth1): n2.1
        names = ["{}.{}".format(*_end(name)) for name in names]
    return names if max(map(len, names)) <= _SHORT and len(set(names)) == len(names) else [str(rank) for rank in shown]


def _was_cleared(end: str, cleared: frozenset[str]) -> bool:
    """Return whether only `end` was slow once but not when measured again: ``into n0``, ``out of n0``, ``n0``."""
    return bool(cleared & {end, f"into {end}", f"out of {end}"})


def _cells(
    row: Sequence[PairRow | None],
    own: int,
    corner: tuple[float, float],
    side: float,
    usual: Mapping[bool, float],
    cleared: frozenset[str],
    *,
    numbers: bool,
) -> Iterator[Markup]:
    """Yield one sender's cells, with `numbers`; without, adjacent cells of one healthy colour become one strip."""
    (left, y), gap = corner, 2 if numbers else 1
    kinds = ["own" if n == own else "unmeasured" if r is None else f"h{_shade(r, usual)}" for n, r in enumerate(row)]
    start = 0
    for kind, run in itertools.groupby(kinds):
        length = len(list(run))
        single = numbers or kind in _TOLD
        for n in range(start, start + length) if single and kind != "own" else ():
            each, x = row[n], left + n * side
            yield svg.box(x, y, side - gap, side - gap, kind, _hover(each, cleared))
            if numbers and each:
                number = f"{each.GBps:.3g}" if each.GBps >= 1 else f"{each.GBps:.2g}"
                yield svg.text(x + side / 2 - 1, y + side / 2 + 3, number, "cell")
        if not single and kind != "own":
            yield svg.box(left + start * side, y, length * side - gap, side - gap, kind)
        start += length


def _shade(row: PairRow, usual: Mapping[bool, float]) -> int:
    """Return the colour of a rate: 0 for nothing, 10 for the usual rate."""
    full = usual.get(row.inside, 0.0)
    share = row.GBps / full if full and math.isfinite(row.GBps) else 0.0
    return round(_SHADES * min(1.0, max(share, 0.0)))


def _hover(row: PairRow | None, cleared: frozenset[str]) -> str:
    """Return the text of a cell, including why a slow one is not held against an end."""
    if row is None:
        return "not measured"
    fine = [end for end in (row.src_end, row.dst_end) if _was_cleared(end, cleared)]
    again = f"{printable(' and '.join(fine), 120)}: slow once, but not when retested\n" if fine else ""
    return (
        f"{printable(row.src_end, 60)} to {printable(row.dst_end, 60)}\n{rate(row.GBps)} GB/s, {size(row.nbytes)}\n"
        f"latency {micros(row.latency_us)}\n{again}"
        f"{micros(row.min_us)} – {micros(row.max_us)} in {plural(len(row.samples_us), 'sample')}"
    )


_END = re.compile(r"(.*?)(?: rail (\d{1,6}))?(?: \(.*\))?", re.DOTALL)


def _end(text: str) -> tuple[str, int]:
    """Parse node and rail of an end: ``n3 rail 1 (mlx5_1)``. The first rail is not written."""
    match = _END.fullmatch(text)
    return (match[1], int(match[2] or 0)) if match else (text, 0)


def _is_of(end: str, blamed: Blamed) -> bool:
    """Return whether `end` belongs to the blamed part."""
    node, rail = _end(end)
    return (not blamed.nodes or node in blamed.nodes) and blamed.rail in (None, rail)


class Frame(Struct, frozen=True):
    """A rectangle around cells, in cells from the upper left; `kind` is confirmed or suspected."""

    x: int
    y: int
    wide: int
    high: int
    kind: str


def _frames(
    shown: Sequence[int], ends: dict[int, str], blamed: Sequence[Blamed], confirmed: Sequence[Blamed]
) -> Iterator[Frame]:
    """Yield a frame around each row (sent) and column (received) with blame attached."""
    for each in blamed[:8]:
        yield from _framed(shown, ends, each, "confirmed" if each in confirmed else "suspected")


def _framed(shown: Sequence[int], ends: dict[int, str], blamed: Blamed, kind: str) -> Iterator[Frame]:
    mine = [n for n, rank in enumerate(shown) if _is_of(ends[rank], blamed)]
    if blamed.kind == "pair":
        yield from (Frame(x, y, 1, 1, kind) for y in mine for x in mine if x != y and _goes(shown, ends, blamed, y, x))
        return
    for n in mine:
        if blamed.direction != "into":
            yield Frame(0, n, len(shown), 1, kind)
        if blamed.direction != "out":
            yield Frame(n, 0, 1, len(shown), kind)


def _goes(shown: Sequence[int], ends: dict[int, str], blamed: Blamed, src: int, dst: int) -> bool:
    """Return whether the cell is in the blamed direction of a pair, seen from its first node."""
    first = [ends[shown[n]].partition(" (")[0].partition(" rail ")[0] == blamed.nodes[0] for n in (src, dst)]
    wanted = {"out": first[0], "into": first[1], "both": True}
    return first[0] != first[1] and wanted[blamed.direction]
