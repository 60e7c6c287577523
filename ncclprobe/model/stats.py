"""Statistics of samples: plain numbers in, plain numbers out. This defines the numbers of a row:

sample
    One batch: `iters` calls behind a common barrier, timed together on the wall clock, divided by `iters`; the mean
    over ranks. A call in the middle of a batch has no time of its own, because nothing waits for it.
median (p50)
    The middle sample, or the mean of the two in the middle. Bandwidths and verdicts use it, because one hiccup does
    not move it. Rates are never averaged: a mean of rates overstates the fast samples.
mean
    The arithmetic mean of the samples, which nccl-tests prints. Bandwidths use it if there are fewer than
    MIN_SAMPLES.
interval
    The 95 % bootstrap interval of the median, see :func:`median_interval`. None below MIN_SAMPLES samples.
precision
    Half the width of the interval, as a share of the median: 0.02 is ±2 %.
min, max, p95
    Samples. Percentiles are nearest-rank, ``sorted[ceil(n * p / 100) - 1]``, as nccl-tests computes them
    (src/util.cu:530-557 at a0b82b2); with fewer than 20 samples p95 is the largest.
stdev
    The spread of single samples: divided by n - 1 (nccl-tests divides by n).
verdict
    A bandwidth passes if it reaches its threshold at both ends of the interval, and fails if it does at neither. It
    is inconclusive if the ends disagree or there is no interval.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from ncclprobe.model.measurement import TimeStats

MIN_SAMPLES = 5
"""Fewer samples have a mean, but no spread worth printing."""

LAUNCH_BOUND = 0.8
"""From this share of the time on, launching the call takes most of it, not the link."""


def summary(seconds: Sequence[float]) -> TimeStats:
    """Convert `seconds` per operation, one value per batch, to microseconds; all but the mean are None below
    MIN_SAMPLES.
    """
    from statistics import fmean, stdev

    micros = [value * 1e6 for value in seconds]
    mean = fmean(micros)
    if len(micros) < MIN_SAMPLES:
        return TimeStats(mean)
    return TimeStats(
        mean=mean,
        median=median(micros),
        min=min(micros),
        p95=percentile(micros, 95),
        max=max(micros),
        stdev=stdev(micros),
    )


def median(values: Iterable[float]) -> float:
    """Return the middle of `values`, or the mean of the two in the middle.

    The module `statistics` has the same function, but loads fractions and random numbers at every start.
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def median_low(values: Iterable[float]) -> float:
    """Return the middle of `values`, or the lower of the two in the middle."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest of `samples` that at least `percent` % of them do not exceed."""
    nearest = math.ceil(len(samples) * percent / 100)
    return sorted(samples)[max(nearest, 1) - 1]


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median in closed form, without resampling.

    A resample of n has its m-th smallest value at or below the k-th of the samples if at least m of n draws, each with
    chance k / n, fall among the first k (Maritz and Jarrett, JASA 73, 1978). For an even n the interval reaches from
    the lowest place of the lower of the two middle values to the highest of the upper: too wide by at most one sample.
    """
    ordered, number, tail = sorted(samples), len(samples), (1 - confidence) / 2
    places = range(1, number + 1)

    def reached(middle: int) -> Callable[[int], float]:
        return lambda place: _chance_of_at_least(middle, number, place / number)

    low = bisect_left(places, tail, key=reached((number + 1) // 2))
    high = bisect_left(places, 1 - tail, key=reached(number // 2 + 1))
    return ordered[low], ordered[min(high, number - 1)]


def _chance_of_at_least(wins: int, draws: int, chance: float) -> float:
    """Return the probability of at least `wins` wins in `draws` draws."""
    return math.fsum(
        math.comb(draws, won) * chance**won * (1 - chance) ** (draws - won) for won in range(wins, draws + 1)
    )


def precision(samples: Sequence[float]) -> float:
    """Return half the width of the median's interval as a share of the median; infinite below MIN_SAMPLES samples."""
    if len(samples) < MIN_SAMPLES:
        return math.inf
    low, high = median_interval(samples)
    middle = median(samples)
    return (high - low) / 2 / middle if middle > 0 else math.inf
