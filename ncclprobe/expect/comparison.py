"""Two sets of measured rows side by side, and what their noise lets us say of the difference. Pure.

A row of one side is a value and the ends between which it lies: the median's interval of one run, the least and the
most of several, or what a baseline keeps as noise. Between two runs numbers move by more than within one, so a single
run is given a tolerance besides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

from ncclprobe import bounds
from ncclprobe.expect.baselines import Site
from ncclprobe.model.measurement import Conditions, Measurement, conditions
from ncclprobe.model.values import Struct

Trend = Literal["slower", "faster", "same", "unsure"]
RowKey = tuple[str, int, Conditions]
TOLERANCE = 0.1
"""What a single run may differ from another without anything being different."""
_BLIND = 2.0
"""Times the tolerance where a side has one number and no interval, as a run of nccl-tests does."""


class Point(Struct, frozen=True):
    """Bus bandwidth in GB/s: `value` between `low` and `high`. `blind`: one number, with an unknown error.

    `settled`: the ends hold all noise already, so that no tolerance is due.
    """

    value: float
    low: float
    high: float
    blind: bool = False
    settled: bool = False


class RowDifference(Struct, frozen=True):
    """One row on both sides. `share` is new / old - 1, and lies between `low` and `high`."""

    op: str
    nbytes: int
    how: Conditions
    old: Point
    new: Point
    share: float
    low: float
    high: float
    change: Trend


def of_rows(rows: Iterable[Measurement]) -> dict[RowKey, Point]:
    """The points of measured rows; those of one key are runs of the same thing. Wrong data counts for nothing."""
    found: dict[RowKey, list[Measurement]] = {}
    for row in rows:
        if row.busbw_GBps >= bounds.LEAST_GBPS and not row.wrong:
            found.setdefault((row.op, row.nbytes, conditions(row)), []).append(row)
    return {key: _point(same) for key, same in found.items()}


def of_site(site: Site) -> dict[RowKey, Point]:
    """The points of a baseline."""
    return {
        (row.op, row.nbytes, row.conditions()): Point(
            row.busbw_GBps, row.busbw_GBps * (1 - row.noise), row.busbw_GBps * (1 + row.noise), settled=True
        )
        for row in site.rows
    }


def _point(rows: Sequence[Measurement]) -> Point:
    rates = [row.busbw_GBps for row in rows]
    if len(rows) > 1:
        return Point(median(rates), min(rates), max(rates))
    row = rows[0]
    if row.interval_us is None:
        return Point(rates[0], rates[0], rates[0], blind=True)
    fast, slow = row.interval_us
    whole = row.busbw_GBps * row.time_us.typical
    return Point(rates[0], whole / slow, whole / fast)


def differences(old: Mapping[RowKey, Point], new: Mapping[RowKey, Point], tolerance: float) -> Iterator[RowDifference]:
    """Every row that both sides have, in the order of `new`."""
    for key, point in new.items():
        if key in old:
            yield _difference(key, old[key], point, tolerance)


def _difference(key: RowKey, old: Point, new: Point, tolerance: float) -> RowDifference:
    low, high = new.low / old.high - 1, new.high / old.low - 1
    share = new.value / old.value - 1
    due = 0.0 if old.settled or new.settled else tolerance * (_BLIND if old.blind or new.blind else 1.0)
    own = [1 - each.low / each.value for each in (old, new) if each.settled]
    return RowDifference(*key, old, new, share, low, high, _change(share, low, high, due, max(own, default=due)))


def _change(share: float, low: float, high: float, due: float, usual: float) -> Trend:
    """Slower where even the best case is, beyond what is `due` to chance besides; unsure where only the middle is.

    `usual`: how far the middle may be off unremarked.
    """
    if high < -due:
        return "slower"
    if low > due:
        return "faster"
    return "unsure" if share < -usual else "same"
