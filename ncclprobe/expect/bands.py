"""The user's own expectations (a TOML file, or an earlier report as baseline), and the verdict on a row.

Each row is judged by itself: an average over sizes or places hides the size that is slow. The rules, in this order:

fails grossly
    From 64 MiB on, a row below a third of the expectation fails even if the expectation is too uncertain to judge by.
is shown
    The expectation is too uncertain to judge by (:mod:`ncclprobe.expect.evidence`): unjudged.
falsified
    A setting of a rank (TORCH_DISTRIBUTED_DEBUG=DETAIL, CUDA_LAUNCH_BLOCKING=1) changes what is timed: inconclusive.
too few samples
    Without an interval the median is unknown: inconclusive.
straddles
    The interval reaches the threshold at one end only: inconclusive.
fails
    Both ends are below the threshold. It is not a failure if a retest reached the expectation (the fault is
    intermittent), if the retest was inconclusive or had no turn although others had one, if launching the calls took
    most of the time and the expectation is not for such calls, or if something else slowed the run down (GPUs
    throttled, processors busy with other work) by enough to explain it. If the expectation may only warn, this is a
    warning.
warns
    It reaches the threshold, but all of its interval is below the middle between threshold and expected value. This
    does not apply to a user's own threshold: a row above it passes. If the expectation may only warn, the warning
    replaces a failure, and inconclusive is not a verdict.
passes
    All other rows. Faster than expected is never a failure.

The file::

    [[expect]]
    op = "all_reduce"
    nbytes = "1G"            # as printed; or min_bytes and max_bytes, a range
    busbw_GBps = 360.0       # 1e9 bytes per second
    threshold_GBps = 330.0         # what still passes; or tolerance = 0.1, a share of the value
    source = "acceptance test of 2026-03-02, rack 7"
    why = "median of 20 nodes"

Each (operation, size) is judged by at most one number, so overlapping entries are refused, not resolved.
"""

import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from ncclprobe.expect import strict
from ncclprobe.facts.run.samples import Expected, Rows
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.measurement import Band, Disturbance, Expectation, Measurement, Retest, conditions
from ncclprobe.model.ops import OPS
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct, replace

RowVerdict = Literal["pass", "warn", "fail", "inconclusive", "unjudged"]
TOO_FEW = "too few samples for an interval"
STRADDLES = "only one end of its interval reaches the expectation"
_OF_THE_SAME_LOOP = ("user", "baseline")
"""Expectations from the same kind of loop as the measured rows; all others come from loops that launch calls faster."""
_FAINT = 0.5
"""Warnings start halfway between the expected value and the threshold."""


class Judgement(Struct, frozen=True):
    """`status` and, if it is inconclusive, why."""

    status: RowVerdict
    why: str = ""


def judge(
    row: Measurement,
    expected: Expectation,
    *,
    retest: Retest | None = None,
    disturbances: Sequence[Disturbance] = (),
    others_repeated: bool = False,
) -> Judgement:
    """Judge `row` against `expected`.

    `retest`: its second measurement. `disturbances`: those seen during the measurement. `others_repeated`: failing rows
    were measured again, but not this one.
    """
    first = once(_ends(row), expected, row.busbw_GBps)
    falsified = "; ".join(each.what for each in disturbances if each.falsifies)
    if falsified and first.status != "unjudged":
        return Judgement("inconclusive", f"measured with a setting that distorts it: {falsified}")
    if first.status != "fail":
        return first
    ends = _ends(row) or (row.busbw_GBps, row.busbw_GBps)
    mark = expected.mark(max(ends))
    seen = [each for each in disturbances if max(ends) >= each.left * mark]
    if seen:
        words = "; ".join(each.what for each in seen)
        return Judgement("inconclusive", f"slower than expected, and another load slowed this run down: {words}")
    if row.launch_bound and expected.basis not in _OF_THE_SAME_LOOP:
        shares = f"enqueueing a call takes {row.issue_us:.3g} of {row.time_us.typical:.3g} us"
        return Judgement("inconclusive", f"launch-bound, so this is not the link's speed: {shares}")
    if retest is None:
        return Judgement("inconclusive", "too slow once, and not retested") if others_repeated else first
    second = once(
        retest.interval_us and _rates(retest.busbw_GBps, retest.time_us, retest.interval_us),
        expected,
        retest.busbw_GBps,
    )
    if second.status == "fail":
        return first
    rate = f"{row.busbw_GBps:.4g} GB/s at first and {retest.busbw_GBps:.4g} when retested"
    if second.status == "inconclusive":
        return Judgement("inconclusive", f"too slow once, and inconclusive when retested: {rate}")
    return Judgement("inconclusive", f"intermittent: {rate}, of at least {mark:.4g}")


def once(ends: tuple[float, float] | None, expected: Expectation, rate: float = math.inf) -> Judgement:
    """Judge one bandwidth, `rate`, with the interval `ends` (GB/s; None: the interval is unknown)."""
    if expected.below_gross(max(ends) if ends else rate):
        return Judgement("fail")
    if expected.worst == "unjudged":
        return Judgement("unjudged")
    if expected.worst == "warn":  # an interval that says little leaves such a number unsaid, and the run as it is
        return Judgement("unjudged" if ends is None else "warn" if max(ends) < expected.threshold else "pass")
    if ends is None:
        return Judgement("inconclusive", TOO_FEW)
    reached = [end >= expected.threshold for end in ends]
    if not any(reached):
        return Judgement("fail")
    if not all(reached):
        return Judgement("inconclusive", STRADDLES)
    return Judgement("warn" if max(ends) < warn_threshold(expected) else "pass")


def warn_threshold(expected: Expectation) -> float:
    """Return the lowest GB/s that passes without a warning."""
    if expected.basis == "user":
        return expected.threshold
    return expected.value - (expected.value - expected.threshold) * _FAINT


def _ends(row: Measurement) -> tuple[float, float] | None:
    """Return the bus bandwidth at both ends of the median's interval, the slower first."""
    if row.interval_us is None:
        return None
    return _rates(row.busbw_GBps, row.time_us.typical, row.interval_us)


def _rates(busbw: float, time_us: float, interval_us: tuple[float, float]) -> tuple[float, float]:
    fast, slow = interval_us
    return busbw * time_us / slow, busbw * time_us / fast


TOLERANCE = 0.2
"""The default share by which a number may be below its value: enough for run-to-run noise on a busy fabric."""


class _Entry(Struct, frozen=True):
    """One [[expect]] table."""

    op: strict.Text
    busbw_GBps: strict.Positive
    source: strict.Text
    why: strict.Text
    nbytes: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    threshold_GBps: strict.Positive | None = None
    tolerance: Annotated[float, Meta(ge=0, lt=1)] | None = None


def judged(
    row: Measurement,
    bands: Sequence[Band],
    *,
    retest: Retest | None = None,
    disturbances: Sequence[Disturbance] = (),
    others_repeated: bool = False,
) -> Measurement:
    """Return `row` with its expectation and verdict (`judge`); unchanged if there is no expectation."""
    found = row.expectation or next((band.expectation for band in bands if band.covers(row)), None)
    if found is None:
        return row
    second = retest or row.retest
    said = judge(row, found, retest=second, disturbances=disturbances, others_repeated=others_repeated)
    return replace(row, expectation=found, status=said.status, inconclusive_why=said.why, retest=second)


def judge_rows(rows: Rows, expected: Expected, *, over: bool = True) -> tuple[Measurement, ...]:
    """Return the rows of a run with their verdicts.

    The run's display, its choice of retests, its checks and its report all use this. `over`: no row will be measured
    again.
    """
    return tuple(_judge_repeated(row, rows, expected.bands, over) for row in rows.measured)


def _judge_repeated(row: Measurement, rows: Rows, bands: Sequence[Band], over: bool) -> Measurement:
    """Judge a failing row again by each of its retests until one passes, then by its disturbances.

    Under a setting that falsifies measurements no row is judged, slow or not.
    """
    found = judged(row, bands, disturbances=[each for each in rows.disturbances if each.falsifies])
    for each in rows.retests:
        if found.status == "fail" and (each.op, each.nbytes, each.place) == (row.op, row.nbytes, row.place):
            retest = Retest(each.busbw_GBps, each.time_us.typical, each.interval_us, each.batches)
            found = judged(found, (), retest=retest)
    if found.status != "fail":
        return found
    return judged(found, (), disturbances=rows.disturbances, others_repeated=over and bool(rows.retests))


def from_report(report: Report, path: str, tolerance: float = TOLERANCE) -> tuple[Band, ...]:
    """Return bands from an earlier run: its bus bandwidths, less `tolerance`. Raises UsageError if it has none.

    Rows with wrong data, and rows that the run itself called failed or inconclusive, are not used.
    """
    right = [m for m in report.measurements if not m.wrong and m.busbw_GBps >= bounds.LEAST_GBPS]
    usable = [m for m in right if m.status not in ("fail", "inconclusive")]
    if not usable:
        raise UsageError(f"{path}: contains no measurement for a baseline")
    why = f"earlier run of {report.started}, less a tolerance of {tolerance:.0%}"
    rates = [(m, m.busbw_GBps, m.busbw_GBps * (1 - tolerance)) for m in usable]
    return tuple(
        Band(m.op, m.nbytes, m.nbytes, Expectation(rate, low, "GB/s", "baseline", why, path), conditions(m))
        for m, rate, low in rates
    )


def from_toml(text: str, path: str, tolerance: float = TOLERANCE) -> tuple[Band, ...]:
    """Parse bands written in TOML. Raises UsageError naming `path`, the key and the reason."""
    document = strict.document(text, path)
    entries = document.pop("expect", None)
    if document:
        raise UsageError(f"{path}: unknown key {next(iter(document))!r}; it should contain [[expect]] tables")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: contains no [[expect]] table")
    bands = tuple(_band(entry, f"{path}: expect {n}", tolerance) for n, entry in enumerate(entries, start=1))
    _refuse_overlaps(bands, path)
    return bands


def _band(table: Mapping[str, Any], where: str, tolerance: float) -> Band:
    entry = strict.converted(table, _Entry, where)
    if entry.op not in OPS:
        raise UsageError(f"{where}: op: {unknown(entry.op, 'operation', OPS)}")
    low_bytes, high_bytes = _sizes(entry, where)
    value, low, why = _limits(entry, where, tolerance)
    expectation = Expectation(value, low, "GB/s", "user", why, f"{where}: {entry.source}")
    return Band(entry.op, low_bytes, high_bytes, expectation)


def _sizes(entry: _Entry, where: str) -> tuple[int, int]:
    ends = entry.min_bytes, entry.max_bytes
    if (entry.nbytes is None) == (ends == (None, None)):
        raise UsageError(f"{where}: give nbytes, or min_bytes and max_bytes")
    if entry.nbytes is not None:
        return entry.nbytes, entry.nbytes
    low, high = entry.min_bytes or 1, entry.max_bytes or sys.maxsize
    if low > high:
        raise UsageError(f"{where}: min_bytes {low} is above max_bytes {high}")
    return low, high


def _limits(entry: _Entry, where: str, tolerance: float) -> tuple[float, float, str]:
    """Return value, threshold and reason; the reason says so if the threshold was not given."""
    value, low = entry.busbw_GBps, entry.threshold_GBps
    if low is not None and entry.tolerance is not None:
        raise UsageError(f"{where}: give threshold_GBps or tolerance, not both")
    if low is None:
        share = tolerance if entry.tolerance is None else entry.tolerance
        return value, value * (1 - share), f"{entry.why}, less a tolerance of {share:.0%}"
    if low > value:
        raise UsageError(f"{where}: threshold_GBps {low:g} must be above zero and at most busbw_GBps {value:g}")
    return value, low, entry.why


def _refuse_overlaps(bands: Sequence[Band], path: str) -> None:
    ordered = sorted(enumerate(bands, start=1), key=lambda pair: (pair[1].op, pair[1].low_bytes))
    for (first, band), (second, following) in itertools.pairwise(ordered):
        if band.op == following.op and following.low_bytes <= band.high_bytes:
            raise UsageError(f"{path}: expect {first} and expect {second} overlap for {band.op}; keep one per size")


def parse_tolerance(text: str) -> float:
    """Parse a share from 0 to below 1. Raises UsageError."""
    if not re.fullmatch(r"0?\.\d+|0", text):
        raise UsageError(f"--tolerance {text!r}: must be at least 0 and less than 1, such as 0.1")
    return float(text)
