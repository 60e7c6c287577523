"""Measure the noise of a run by its own repetitions: what was measured again, against what it was the last time.

A loss that lasts is in both and cancels out, so that no healthy part need be known. The spread is robust: a quarter of
the repetitions may be as wild as they like.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from ncclprobe.localise.pairs.samples import End, Result, Rules, Sample

_MAD_TO_SIGMA = 1.4826
_OF_MEDIAN = 1.2533
"""The error of a median of n samples is this times their sigma, divided by the root of n."""
_FEWEST = 4
"""Of fewer repetitions a spread says nothing."""


def retest_noise(results: Iterable[Result], rules: Rules) -> float:
    """Return the sigma of the logarithm of one sample, by the repetitions of one direction alone among `results`.

    No fleet counts as quieter than the rules' floor; where too little was repeated the floor is returned.
    """
    logs: defaultdict[tuple[End, End], list[float]] = defaultdict(list)
    for result in results:
        if isinstance(result, Sample) and not result.both:
            logs[result.src, result.dst].append(math.log(result.GBps))
    changes = [after - before for those in logs.values() for before, after in pairwise(those)]
    floor = _MAD_TO_SIGMA * rules.mad_floor
    if len(changes) < _FEWEST:
        return floor
    middle = median(changes)
    spread = _MAD_TO_SIGMA * median(abs(change - middle) for change in changes)
    return max(floor, spread / math.sqrt(2))


def limit(count: int, sigma: float, rules: Rules) -> float:
    """Return the logarithm of the ratio below which the median of `count` samples is slow, with this noise."""
    noise = rules.slow_z * sigma * min(1.0, _OF_MEDIAN / math.sqrt(max(1, count)))
    return min(math.log(rules.slow_ratio), noise)

