"""The verdict on one row, from its value, its interval, what is expected, and what happened beside it. Pure.

A row is judged alone: an average over sizes or places hides the size that is slow. The rules, in this order:

is shown
    The expectation is too loosely known to judge by (:mod:`ncclprobe.expect.evidence`): unjudged.
falsified
    A setting of a rank (TORCH_DISTRIBUTED_DEBUG=DETAIL, CUDA_LAUNCH_BLOCKING=1) changes what is timed: noise.
too few samples
    Without an interval nobody knows where the median lies: noise.
straddles
    The interval reaches the lowest acceptable value at one end only: noise.
fails
    It lies below at both ends. Three things keep that from being a failure: it was measured again and reached the
    expectation then (something comes and goes), the repetition was itself noise, or something else was seen to
    slow the run down (GPUs throttled, processors busy with other work) by enough to explain it. Where the
    expectation may warn at most, this is a warning.
warns
    It reaches the lowest value, but all of its interval lies below the middle between that and the value expected.
    Not where a user drew the line: what is above that passes, by their own words. Where the expectation may warn at
    most, the warning is for what would else fail, and noise is no verdict.
passes
    All else. Faster than expected is never a failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ncclprobe.model.measurement import Again, Disturbance, Expectation, Measurement

Verdict = Literal["pass", "warn", "fail", "noise", "unjudged"]
TOO_FEW = "too few samples for an interval"
STRADDLES = "its interval reaches the expectation at one end only"
_FAINT = 0.5
"""Where the warning begins: half of the way from the value expected down to the lowest acceptable."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`status` and, where it is noise, why nobody can say."""

    status: Verdict
    why: str = ""


def judge(
    row: Measurement,
    expected: Expectation,
    *,
    again: Again | None = None,
    disturbances: Sequence[Disturbance] = (),
) -> Judgement:
    """What `row` is worth. `again`: it measured a second time; `disturbances` were seen while it was measured."""
    first = once(_ends(row), expected)
    falsified = "; ".join(each.what for each in disturbances if each.falsifies)
    if falsified and first.status != "unjudged":
        return Judgement("noise", f"measured under a setting that falsifies it: {falsified}")
    if first.status != "fail":
        return first
    ends = _ends(row) or (row.busbw_GBps, row.busbw_GBps)
    seen = [each for each in disturbances if max(ends) >= each.left * expected.low]
    if seen:
        words = "; ".join(each.what for each in seen)
        return Judgement("noise", f"slower than expected, and something else slowed this run down: {words}")
    if again is None:
        return first
    second = once(_again_ends(again), expected)
    if second.status == "fail":
        return first
    rate = f"{row.busbw_GBps:.4g} GB/s at first and {again.busbw_GBps:.4g} when measured again"
    if second.status == "noise":
        return Judgement("noise", f"too slow once, and measured again it is noise: {rate}")
    return Judgement("noise", f"comes and goes: {rate}, of at least {expected.low:.4g}")


def once(ends: tuple[float, float] | None, expected: Expectation) -> Judgement:
    """The verdict on a bandwidth that lies between `ends` (GB/s), by itself; None: nobody knows between which."""
    if expected.worst == "unjudged":
        return Judgement("unjudged")
    if expected.worst == "warn":  # an interval that says little leaves such a number unsaid, and the run as it is
        return Judgement("unjudged" if ends is None else "warn" if max(ends) < expected.low else "pass")
    if ends is None:
        return Judgement("noise", TOO_FEW)
    reached = [end >= expected.low for end in ends]
    if not any(reached):
        return Judgement("fail")
    if not all(reached):
        return Judgement("noise", STRADDLES)
    return Judgement("warn" if max(ends) < faint(expected) else "pass")


def faint(expected: Expectation) -> float:
    """GB/s from which on a row passes without a warning."""
    if expected.basis == "user":
        return expected.low
    return expected.value - (expected.value - expected.low) * _FAINT


def _ends(row: Measurement) -> tuple[float, float] | None:
    """Bus bandwidth at both ends of the median's interval, the slower first."""
    if row.interval_us is None:
        return None
    return _rates(row.busbw_GBps, row.time_us.mean, row.interval_us)


def _again_ends(again: Again) -> tuple[float, float] | None:
    return None if again.interval_us is None else _rates(again.busbw_GBps, again.mean_us, again.interval_us)


def _rates(busbw: float, mean_us: float, interval_us: tuple[float, float]) -> tuple[float, float]:
    fast, slow = interval_us
    return busbw * mean_us / slow, busbw * mean_us / fast
