"""The verdict on one row, from its value, its interval, its expectation, and disturbances. Pure.

A row is judged alone: an average over sizes or places hides the size that is slow. The rules, in this order:

fails grossly
    From 64 MiB on, what lies below a third of the expectation fails even where that is too loosely known to judge by.
is shown
    The expectation is too loosely known to judge by (:mod:`ncclprobe.expect.evidence`): unjudged.
falsified
    A setting of a rank (TORCH_DISTRIBUTED_DEBUG=DETAIL, CUDA_LAUNCH_BLOCKING=1) changes what is timed: inconclusive.
too few samples
    Without an interval it is not known where the median lies: inconclusive.
straddles
    The interval reaches the lowest acceptable value at one end only: inconclusive.
fails
    It lies below at both ends. What keeps that from being a failure: it was measured again and reached the expectation
    then (something comes and goes), or the repetition was itself inconclusive, or had no turn where others had one;
    handing the calls over took most of the time, and the expectation is not of such calls; or something else was seen
    to slow the run down (GPUs throttled, processors busy with other work) by enough to explain it. Where the
    expectation may warn at most, this is a warning.
warns
    It reaches the lowest value, but all of its interval lies below the middle between that and the value expected.
    Not where a user drew the line: what is above that passes, by their own words. Where the expectation may warn at
    most, the warning is for what would else fail, and inconclusive is no verdict.
passes
    All else. Faster than expected is never a failure.
"""

import math
from collections.abc import Sequence
from typing import Literal

from ncclprobe.model.measurement import Disturbance, Expectation, Measurement, Retest
from ncclprobe.model.values import Struct

RowVerdict = Literal["pass", "warn", "fail", "inconclusive", "unjudged"]
TOO_FEW = "too few samples for an interval"
STRADDLES = "its interval reaches the expectation at one end only"
_OF_THE_SAME_LOOP = ("user", "baseline")
"""Expectations of rows that were measured as these are; the others are of loops that hand calls over faster."""
_FAINT = 0.5
"""Where the warning begins: half of the way from the value expected down to the lowest acceptable."""


class Judgement(Struct, frozen=True):
    """`status` and, where it is inconclusive, why."""

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
    """What `row` is worth. `retest`: it measured a second time; `disturbances` were seen while it was measured;
    `others_repeated`: rows that failed were measured again, and this one had no turn.
    """
    first = once(_ends(row), expected, row.busbw_GBps)
    falsified = "; ".join(each.what for each in disturbances if each.falsifies)
    if falsified and first.status != "unjudged":
        return Judgement("inconclusive", f"measured under a setting that falsifies it: {falsified}")
    if first.status != "fail":
        return first
    ends = _ends(row) or (row.busbw_GBps, row.busbw_GBps)
    mark = expected.mark(max(ends))
    seen = [each for each in disturbances if max(ends) >= each.left * mark]
    if seen:
        words = "; ".join(each.what for each in seen)
        return Judgement("inconclusive", f"slower than expected, and something else slowed this run down: {words}")
    if row.launch_bound and expected.basis not in _OF_THE_SAME_LOOP:
        shares = f"handing a call over takes {row.issue_us:.3g} of {row.time_us.typical:.3g} us"
        return Judgement("inconclusive", f"launch-bound, which is not the link's speed: {shares}")
    if retest is None:
        return Judgement("inconclusive", "too slow once, and not measured again") if others_repeated else first
    second = once(_retest_ends(retest), expected, retest.busbw_GBps)
    if second.status == "fail":
        return first
    rate = f"{row.busbw_GBps:.4g} GB/s at first and {retest.busbw_GBps:.4g} when measured again"
    if second.status == "inconclusive":
        return Judgement("inconclusive", f"too slow once, and measured again it is inconclusive: {rate}")
    return Judgement("inconclusive", f"comes and goes: {rate}, of at least {mark:.4g}")


def once(ends: tuple[float, float] | None, expected: Expectation, rate: float = math.inf) -> Judgement:
    """Judge a single bandwidth, `rate`, that lies between `ends` (GB/s; None: not known between which)."""
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
    """GB/s from which on a row passes without a warning."""
    if expected.basis == "user":
        return expected.threshold
    return expected.value - (expected.value - expected.threshold) * _FAINT


def _ends(row: Measurement) -> tuple[float, float] | None:
    """Bus bandwidth at both ends of the median's interval, the slower first."""
    if row.interval_us is None:
        return None
    return _rates(row.busbw_GBps, row.time_us.typical, row.interval_us)


def _retest_ends(retest: Retest) -> tuple[float, float] | None:
    return None if retest.interval_us is None else _rates(retest.busbw_GBps, retest.time_us, retest.interval_us)


def _rates(busbw: float, time_us: float, interval_us: tuple[float, float]) -> tuple[float, float]:
    fast, slow = interval_us
    return busbw * time_us / slow, busbw * time_us / fast
