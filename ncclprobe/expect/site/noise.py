"""How far runs of the same thing scatter, and what may be missing without anything being wrong."""

from collections.abc import Sequence
from statistics import median

NOISE_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826
FLOORS = ((5, 0.05), (2, 0.10), (1, 0.20))
"""From so many runs on, at least such a share may be missing: one run says nothing of what the next will do."""


def spread(rates: Sequence[float], within: float = 0.0) -> tuple[float, float, float]:
    """Return the median over runs, their median absolute deviation, and the share of the value that may be missing.

    `within`: how well single runs knew their own medians, as a share.
    """
    value = median(rates)
    mad = median(abs(rate - value) for rate in rates)
    floor = next(share for least, share in FLOORS if len(rates) >= least)
    return value, mad, max(floor, NOISE_SIGMAS * _MAD_TO_SIGMA * mad / value, within)
