"""How many calls and batches an asked precision takes. Pure: rank 0 decides by this, and the others do as it says.

Calls per batch are settled once per row, so that a batch lasts long against the barrier before it. Batches are added
until the median's interval (ncclprobe.stats) is narrow enough, the budget is spent, or there are too many. That the
interval decides when to stop makes it a little too narrow now and then; a verdict looks at it, so a band should leave
more room than that.
"""

import math
from collections.abc import Sequence

from ncclprobe import stats
from ncclprobe.model.values import Struct

BATCH_S = 5e-3
"""How long a batch should last: a hundred times what ranks leave a barrier apart, for that is part of its time."""
MOST_CALLS = 2000
"""Calls of one batch, however short they are."""
MOST_BATCHES = 400
"""Batches of one row: more would not fit a report, and what they leave undecided is not noise but change."""


class Target(Struct, frozen=True):
    """What is asked of every row: half the interval as a share of the median, and the seconds it may take.

    The first MIN_SAMPLES batches are made whatever the budget: with fewer there is no interval.
    """

    precision: float
    budget_s: float


def calls_per_batch(call_s: float, target: Target) -> int:
    """Return how many calls of about `call_s` seconds make a batch; few batches must last the budget."""
    batch_s = max(BATCH_S, target.budget_s / MOST_BATCHES)
    return max(1, min(MOST_CALLS, round(batch_s / max(call_s, 1e-9))))


def more_batches(samples: Sequence[float], spent_s: float, target: Target) -> int:
    """Return how many batches to add to `samples`, which took `spent_s` seconds in all; 0: stop."""
    number = len(samples)
    if number < stats.MIN_SAMPLES:
        return stats.MIN_SAMPLES - number
    reached = stats.precision(samples)
    if reached <= target.precision:
        return 0
    affordable = math.floor((target.budget_s - spent_s) / max(spent_s / number, 1e-9))
    excess = min(2.0, (reached / target.precision) ** 2)
    wanted = max(1, math.ceil(number * (excess - 1)))
    return max(0, min(wanted, affordable, MOST_BATCHES - number))
