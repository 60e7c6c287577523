"""A site's own expectations: measurements of its healthy machines, with their noise.

``ncclprobe.baseline/1`` is a JSON file with one row per operation, size and way of measuring. Runs are merged: the
value is the median over runs, the noise their median absolute deviation. A number may be below the value by the largest
of three: NOISE_SIGMAS standard deviations over runs (1.4826 MAD, as for normal noise), the uncertainty of single runs'
medians, and a floor that shrinks with the number of runs, because a few runs show little of their spread.

A baseline is only as good as the day it was taken: rows that failed, were inconclusive or carried wrong data are
refused, and so are rows below the model's limit. Otherwise a sick fleet becomes its own norm. Numbers of another
machine, topology or software are refused too, by their fingerprints.

Two sets of rows can also be compared. A row of one side is a value and its interval: the median's interval of one run,
minimum and maximum of several, or the noise that a baseline records. Numbers vary more between runs than within one, so
a single run also gets a tolerance.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import (
    Band,
    Conditions,
    Expectation,
    Fingerprint,
    Measurement,
    Mode,
    Place,
    changes,
    conditions,
)
from ncclprobe.model.units import size
from ncclprobe.model.values import Result, Struct, grouped, replace
from ncclprobe.nccl_tests.rows import Run


def unknown_parts(old: Fingerprint | None, new: Fingerprint | None) -> tuple[str, ...]:
    """Return the parts that only one of the two has, so that a change cannot be ruled out."""
    a, b = _flat(old), _flat(new)
    return tuple(name for name in (*a, *b) if (name in a) != (name in b))


def same_machine(old: Fingerprint | None, new: Fingerprint | None) -> bool:
    """Return whether machine and topology agree in all parts that both know, and at least one machine part is common.

    Software may differ: comparing versions is a common use.
    """
    if old is None or new is None:
        return False
    common = set(old.machine) & set(new.machine)
    return bool(common) and not changes(replace(old, software={}), replace(new, software={}))


def digest_of(devices: Any) -> str:
    """Return twelve hexadecimal digits of `devices`, any JSON, to tell topologies apart."""
    text = json.dumps(devices, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flat(print_: Fingerprint | None) -> dict[str, str]:
    if print_ is None:
        return {}
    topology = {"topology": print_.topology} if print_.topology else {}
    return {**print_.machine, **topology, **print_.software}


NOISE_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826
FLOORS = ((5, 0.05), (2, 0.10), (1, 0.20))
"""From this number of runs on, the tolerance is at least this share: one run does not predict the next."""


def spread(rates: Sequence[float], within: float = 0.0) -> tuple[float, float, float]:
    """Return the median over runs, their median absolute deviation, and the share by which a row may be below the
    median.

    `within`: the uncertainty of single runs' medians, as a share.
    """
    value = median(rates)
    mad = median(abs(rate - value) for rate in rates)
    floor = next(share for least, share in FLOORS if len(rates) >= least)
    return value, mad, max(floor, NOISE_SIGMAS * _MAD_TO_SIGMA * mad / value, within)


_MOST_NOISE = 0.5
"""A number that must drop by half to be noticed is not an expectation."""
SCHEMA = "ncclprobe.baseline/1"
Allowed = Callable[[Measurement], float | None]
"""The lowest GB/s that a model allows a row; None if it cannot say."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run that a baseline is made of."""

    source: str
    started: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expectation for one operation and size. `noise` is the share by which a row may be below the value."""

    op: str
    nbytes: int
    place: Place
    mode: Mode
    backend: str
    dtype: str
    redop: str | None
    ranks: int
    nodes: int
    busbw_GBps: float
    mad_GBps: float
    noise: float
    runs: int

    def conditions(self) -> Conditions:
        """Return how it was measured."""
        return Conditions(self.ranks, self.nodes, self.dtype, self.redop, self.place, self.mode, self.backend)


class Print(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fingerprint as the file stores it."""

    machine: dict[str, str] = {}
    topology: str | None = None
    software: dict[str, str] = {}


class Site(Result, frozen=True, forbid_unknown_fields=True):
    """A baseline file."""

    tool: str
    written: str
    fingerprint: Print | None
    runs: list[Origin]
    rows: list[Row]
    schema: Literal["ncclprobe.baseline/1"] = "ncclprobe.baseline/1"

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<Baseline of {len(self.runs)} runs: {len(self.rows)} rows>"

    def print(self) -> Fingerprint | None:
        """Return the fingerprint of the machine that was measured."""
        mine = self.fingerprint
        return Fingerprint(mine.machine, mine.topology, mine.software) if mine else None


class Kept(Struct, frozen=True):
    """The outcome of merging runs: the rows kept, and which were refused and why."""

    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    flagged: tuple[str, ...] = ()


def keep(runs: Sequence[Run], allowed: Allowed | None = None, *, accept_low: bool = False) -> Kept:
    """Merge `runs`. With `accept_low`, rows below `allowed` are kept and flagged. Raises UsageError."""
    _refuse_strangers(runs)
    refused: list[str] = []
    values: dict[tuple[str, int, Conditions], list[Measurement]] = {}
    for run in runs:
        if run.failed:
            refused.append(f"{run.source}: {run.failed}")
            continue
        for row in run.rows:
            why = _unfit_reason(row)
            if why:
                refused.append(f"{run.source}: {row.op} {size(row.nbytes)}: {why}")
            else:
                values.setdefault((row.op, row.nbytes, conditions(row)), []).append(row)
    rows: list[Row] = []
    flagged: list[str] = []
    for rowset in values.values():
        kept, problem, low = _merge_rows(rowset, allowed)
        if problem and not (low and accept_low):
            refused.append(problem)
        else:
            rows.append(kept)
            flagged += [problem] if problem else []
    return Kept(tuple(rows), tuple(refused), tuple(flagged))


def distinct(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return `runs` without copies of earlier ones, and one line about each copy."""
    kept: list[Run] = []
    copies: list[str] = []
    for run in runs:
        same = next((each for each in kept if (each.started, each.rows) == (run.started, run.rows)), None)
        if same:
            copies.append(f"{run.source}: the same run as {same.source}, counted once")
        else:
            kept.append(run)
    return kept, copies


def _refuse_strangers(runs: Sequence[Run]) -> None:
    """Raise UsageError if two runs have different machines or software."""
    known = [run for run in runs if run.fingerprint]
    for run in known[1:]:
        changed = changes(known[0].fingerprint, run.fingerprint)
        if changed:
            words = "; ".join(changed[:3])
            raise UsageError(f"{run.source}: not of the same machine and software as {known[0].source}: {words}")


def _unfit_reason(row: Measurement) -> str:
    """Return why `row` is not evidence of a healthy machine; empty if it is."""
    if row.wrong:
        return f"{row.wrong} elements were wrong"
    if row.status in ("fail", "inconclusive"):
        return "the run itself called it slow" if row.status == "fail" else "the run itself called it inconclusive"
    return "" if row.busbw_GBps >= bounds.LEAST_GBPS else "no bandwidth was measured"


def _merge_rows(rows: Sequence[Measurement], allowed: Allowed | None) -> tuple[Row, str, bool]:
    """Merge `rows` into one row; return it, why it is not an expectation (empty: it is), and whether the reason is a
    low value.
    """
    first, rates = rows[0], [row.busbw_GBps for row in rows]
    value, mad, noise = spread(rates, median(row.precision or 0.0 for row in rows))
    kept = Row(
        first.op,
        first.nbytes,
        first.place,
        first.mode,
        first.backend,
        first.dtype,
        first.redop,
        first.ranks,
        first.nodes,
        round(value, 6),
        round(mad, 6),
        round(noise, 4),
        len(rows),
    )
    name = f"{first.op} {size(first.nbytes)}, {first.place} of place" if first.place == "out" else ""
    name = name or f"{first.op} {size(first.nbytes)}, in place"
    if noise > _MOST_NOISE:
        return kept, f"{name}: too noisy for a baseline: its runs vary by ±{noise:.0%}", False
    least = allowed(first) if allowed else None
    if least is not None and value < least:
        return kept, f"{name}: {value:.4g} GB/s, and this machine should reach {least:.4g} at least", True
    return kept, "", False


def bands(site: Site, path: str, changed: str = "") -> tuple[Band, ...]:
    """Return the expectations of `site`, read from `path`. `changed`, if set, ends the reason: how this run differs."""
    rows = site.rows
    return tuple(Band(row.op, row.nbytes, row.nbytes, _expected(row, path, changed), row.conditions()) for row in rows)


def _expected(row: Row, path: str, changed: str) -> Expectation:
    runs = "1 run" if row.runs == 1 else f"the median of {row.runs} runs"
    why = f"{runs} of this site, less the {row.noise:.0%} that is noise{changed}"
    confidence: Literal["high", "medium", "low"] = "high" if row.runs >= FLOORS[0][0] else "medium"
    return Expectation(row.busbw_GBps, row.busbw_GBps * (1 - row.noise), "GB/s", "baseline", why, path, confidence)


def render(site: Site) -> str:
    """`site` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(site), indent=2).decode() + "\n"


def parse(text: str, path: str) -> Site:
    """Parse a baseline. Raises UsageError for unknown or duplicate keys and numbers that are out of range or not
    finite.
    """
    try:
        document = json.loads(text, object_pairs_hook=_no_doubles, parse_constant=_no_constant)
        site: Site = msgspec.convert(document, type=Site)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        remedy = "give what `ncclprobe baseline` wrote"
        raise UsageError(f"{path}: not a {SCHEMA} file: {str(error)[:200]}; {remedy}") from None
    for number, row in enumerate(site.rows, start=1):
        sane = 0 < row.nbytes < 1 << 63 and 0 < row.runs < 1 << 31 and 0 < row.nodes <= row.ranks < 1 << 31
        if not (sane and bounds.LEAST_GBPS < row.busbw_GBps < bounds.MOST_GBPS and 0 <= row.noise < 0.999):
            raise UsageError(f"{path}: row {number}: a number is out of range")
    return site


def _no_doubles(pairs: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:40]!r} appears twice")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def recognises(text: str) -> bool:
    """Return whether `text` is a baseline as written by :func:`render`."""
    try:
        parse(text, "")
    except UsageError:
        return False
    return True


def load(path: str) -> dict[str, Site]:
    """Load the baseline in the file `path`, or all in a folder, keyed by path. Raises UsageError."""
    where = Path(path)
    paths = sorted(where.glob("*.json"))[: bounds.BASELINES] if where.is_dir() else [where]
    if not paths:
        raise UsageError(
            f"{path}: contains no baseline; write one with `ncclprobe baseline REPORT -o {path}/site.json`"
        )
    return {str(each): parse(files.read(each, limit=bounds.RUN_FILE_BYTES), str(each)) for each in paths}


Trend = Literal["slower", "faster", "same", "unsure"]
RowKey = tuple[str, int, Conditions]
TOLERANCE = 0.1
"""Two single runs may differ by this share although nothing has changed."""
_BLIND = 2.0
"""Multiplies the tolerance if a side has one number and no interval, as a run of nccl-tests has."""


class Point(Struct, frozen=True):
    """Bus bandwidth in GB/s: `value` between `low` and `high`. `blind`: a single number with an unknown error.

    `settled`: the interval already includes all noise, so no tolerance is added.
    """

    value: float
    low: float
    high: float
    blind: bool = False
    settled: bool = False


class RowDifference(Struct, frozen=True):
    """One row on both sides. `share` is new / old - 1, in the interval from `low` to `high`."""

    op: str
    nbytes: int
    how: Conditions
    old: Point
    new: Point
    share: float
    low: float
    high: float
    change: Trend


def row_points(rows: Iterable[Measurement]) -> dict[RowKey, Point]:
    """Return the points of measured rows; rows of one key are runs of the same case. Rows with wrong data
    are ignored.
    """
    sound = [row for row in rows if row.busbw_GBps >= bounds.LEAST_GBPS and not row.wrong]
    found = grouped(((row.op, row.nbytes, conditions(row)), row) for row in sound)
    return {key: _point(same) for key, same in found.items()}


def site_points(site: Site) -> dict[RowKey, Point]:
    """Return the points of a baseline."""
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
    """Yield the difference of every row that both sides have, in the order of `new`."""
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
    """Classify a change: slower if even the best case is slower than chance explains (`due`); unsure if only the middle
    is.

    `usual`: the middle may be off by this share without a remark.
    """
    if high < -due:
        return "slower"
    if low > due:
        return "faster"
    return "unsure" if share < -usual else "same"
