"""Statistics of samples: plain numbers in, plain numbers out.

Percentiles are nearest-rank, ``sorted[ceil(n * p / 100) - 1]``, as nccl-tests computes them (src/util.cu:530-557 at
a0b82b2), so that its p95 and ours agree on the same samples.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence

from ncclprobe.model import TimeStats

MIN_SAMPLES = 5
"""Fewer samples have a mean, but no spread worth printing."""


def summary(seconds: Sequence[float]) -> TimeStats:
    """`seconds` per operation, one value per batch, as microseconds; all but the mean null below MIN_SAMPLES."""
    micros = [value * 1e6 for value in seconds]
    mean = statistics.fmean(micros)
    if len(micros) < MIN_SAMPLES:
        return TimeStats(mean)
    return TimeStats(
        mean=mean,
        median=statistics.median(micros),
        min=min(micros),
        p95=percentile(micros, 95),
        max=max(micros),
        stdev=statistics.stdev(micros),
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest of `samples` that at least `percent` % of them do not exceed."""
    nearest = math.ceil(len(samples) * percent / 100)
    return sorted(samples)[max(nearest, 1) - 1]


def bootstrap(
    samples: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 1,
) -> tuple[float, float]:
    """The percentile bootstrap interval of `statistic`: where it would lie had we drawn the samples again.

    The same samples give the same interval (`seed`), so that a report can be reproduced.
    """
    draw = random.Random(seed)
    drawn = [statistic(draw.choices(samples, k=len(samples))) for _ in range(resamples)]
    tail = (1 - confidence) / 2 * 100
    return percentile(drawn, tail), percentile(drawn, 100 - tail)
