"""Measure the noise of a run by its own repetitions: what was measured again, against what it was the last time.

A loss that lasts is in both and cancels out, so that no healthy part need be known. The spread is robust: a quarter of
the repetitions may be as wild as they like.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from ncclprobe.localise.pairs.effects import Way, way
from ncclprobe.localise.pairs.samples import End, Layout, Result, Rules, Sample

_MAD_TO_SIGMA = 1.4826
_OF_MEDIAN = 1.2533
"""The error of a median of n samples is this times their sigma, divided by the root of n."""
_FEWEST = 6
"""Of fewer repetitions a spread says nothing."""


def retest_noise(results: Iterable[Result], layout: Layout, rules: Rules) -> dict[Way, float]:
    """Return the sigma of the logarithm of one sample of each way, by the repetitions among `results`.

    No fleet counts as quieter than the rules' floor; a way of which too little was repeated is not in it.
    """
    logs: defaultdict[tuple[Way, End, End], list[float]] = defaultdict(list)
    for result in results:
        if isinstance(result, Sample):
            logs[way(result, layout), result.src, result.dst].append(math.log(result.GBps))
    changes: defaultdict[Way, list[float]] = defaultdict(list)
    for (key, _, _), those in logs.items():
        changes[key] += [after - before for before, after in pairwise(those)]
    return {key: max(floor(rules), _sigma(those)) for key, those in changes.items() if len(those) >= _FEWEST}


def floor(rules: Rules) -> float:
    """Return the least sigma that counts."""
    return _MAD_TO_SIGMA * rules.mad_floor


def _sigma(changes: Sequence[float]) -> float:
    middle = median(changes)
    return _MAD_TO_SIGMA * median(abs(change - middle) for change in changes) / math.sqrt(2)


def limit(count: int, sigma: float, rules: Rules) -> float:
    """Return the logarithm of the ratio below which the median of `count` samples is slow, with this noise."""
    noise = rules.slow_z * sigma * min(1.0, _OF_MEDIAN / math.sqrt(max(1, count)))
    return min(math.log(rules.slow_ratio), noise)
