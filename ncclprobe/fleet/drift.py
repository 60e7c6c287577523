"""Is a node slower than it was, or than its siblings? A sequential test of one series of numbers.

CUSUM (Page, Biometrika 41, 1954) of logarithms, so that a loss is a share. Each number adds how far it is below the
usual one, in standard deviations, less SLACK; the sum never falls below 0. At 0 the node is as usual. Above a limit it
has
changed, and it did so after the sum was last 0, or small against what one number added: `since` is that time. SLACK is
between a healthy node's wandering and 1.5 standard deviations, the 3 % of numbers that scatter by 2 %. A single number
adds at most CLIP, so that no single odd test condemns a node.

There are two sums: against the node's own past, and against its siblings, the median of other nodes measured alike on
machines of the same driver and firmware, each with its newest number of an earlier day, so that the order of one day's
reports does not matter. A node may always be somewhat slower than its siblings, by as much as their levels differ,
which
are means of a few numbers each. A loss of all siblings is not a node's own loss: its past moves as they do.

Numbers measured in another way, or with other software or settings, are another series and start anew. A new driver or
firmware does not start one: it may be the cause.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from statistics import fmean

from ncclprobe.model.fleet import Drift, Reading, Sum
from ncclprobe.model.values import replace

BURN_IN = 12
"""Numbers that make a usual value, before a node's own past counts."""
SIBLINGS, SPREADS = 8, 4.0
"""Minimum number of other nodes for a median, and by how many of their standard deviations a healthy node may be below
it.
"""
PARTNERS, LOW = 3, 2.0
"""Number of nodes that a number between nodes must be measured with, at once or in turn, before it counts as one node's
own;
and how many standard deviations low it must be with them. With less, chance would name a healthy node.
"""
SLACK, CLIP = 0.9, 3.0
WATCH, DEGRADED = 6.5, 7.0
"""Limits of the sum of a node that has only one: from here it is watched, and degraded."""
USUAL_NOISE, LEAST_NOISE, PRIOR = 0.02, 0.01, 10
"""Assumed day-to-day scatter of a node's numbers as a share, its lower bound, and its weight in numbers."""
DOUBT = 10
"""So many numbers define the usual value as well as a single number scatters."""
REPAIRED, MOST_ODDS = 3.0, 2.0
"""Log odds of the usual level against the lost one at which a node is healthy again; one number adds
at most MOST_ODDS.
"""
EARLY, SIDE, SURE = (8, 24), 3, 5.0
"""A loss is searched among so many first numbers, with at least so many on either side of its start, and by how many of
its
standard deviations it has to differ from none.
"""
REST = 1 / 8
"""Share of a loss that may remain, or as much as a single number scatters; twice as much is not a repair."""
_LEAP = 2.0
"""A number that multiplies the sum, and the loss, by this is the start of the loss."""
_RECENT, _MOST_WAITING, _MOST_SPELLS = 5, 100, 16
_QUARTILES = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


def course(readings: Iterable[Reading], sums: int = 1) -> Drift:
    """Return the state of the test after all `readings`, oldest first, of a node that has this many sums."""
    return reduce(lambda drift, reading: step(drift, reading, sums), readings, Drift())


def step(drift: Drift, reading: Reading, sums: int = 1) -> Drift:
    """Return the state of the test after one more reading.

    With many sums a false alarm comes sooner: the limits rise, so that all together alarm as rarely as a single one.
    """
    level = math.log(reading.value)
    theirs = math.log(reading.siblings) if reading.siblings else None
    first = theirs if drift.siblings_first is None else drift.siblings_first
    shared = drift.shared if theirs is None or first is None else theirs - first
    noise = max(scatter(drift.count, drift.squares), reading.noise)
    more = math.log(max(sums, 1)) / (2 * SLACK)
    own, siblings = drift.own, drift.siblings
    untold = theirs is None and first is not None and not drift.recent  # did all lose by a new driver? Not known yet
    if (drift.count >= BURN_IN or own.state == "degraded") and not untold:
        doubt = math.sqrt(1 + DOUBT / drift.count)
        own = _add_reading(own, reading, level - shared - drift.mean, noise * doubt, more)
    if theirs is not None:
        off = level - theirs - drift.accepted
        siblings = _add_reading(siblings, reading, off, noise, more, SPREADS * reading.spread)
    known = replace(
        drift, tests=drift.tests + 1, recent=(*drift.recent, reading.value)[-_RECENT:], own=own, siblings=siblings,
        siblings_first=first, shared=shared,
    )  # fmt: skip
    if untold:
        return known
    whole = len(drift.first) == drift.tests < EARLY[1] and not reading.partners
    known = replace(known, first=(*drift.first, (reading.time_s, level - shared)) if whole else ())
    return _find_early_loss(known, reading.noise, more) or _learn(known, level - shared)


def _find_early_loss(drift: Drift, noise: float, more: float) -> Drift | None:
    """Return the test of a node that began to lose among its first numbers, before a usual value was known."""
    if len(drift.first) < EARLY[0] or drift.own.state == "degraded":
        return None
    levels = [level for _, level in drift.first]
    splits = [(levels[:at], levels[at:]) for at in range(1, len(levels))]
    before, after = max(splits, key=lambda both: _significance(both[0], both[1], noise))
    few = min(len(before), len(after)) < SIDE  # it may have begun there, or be an odd day
    if few or _significance(before, after, noise) < math.sqrt(SURE**2 + 4 * SLACK * more):
        return None
    at, lost, mean = len(before), fmean(after) - fmean(before), fmean(before)
    own = Sum("degraded", DEGRADED + more, len(after), lost, lost, drift.first[at][0], drift.first[at - 1][0])
    squares = sum((each - mean) ** 2 for each in before)
    return replace(drift, own=own, count=at, mean=mean, squares=squares, waiting=(), first=())


def _significance(before: Sequence[float], after: Sequence[float], noise: float) -> float:
    """Return by how many of its standard deviations a loss differs from none."""
    squares = sum((each - fmean(part)) ** 2 for part in (before, after) for each in part)
    sigma = max(scatter(len(before) + len(after), squares), USUAL_NOISE, noise)
    return (fmean(before) - fmean(after)) / (sigma * math.sqrt(1 / len(before) + 1 / len(after)))


class Siblings:
    """Nodes measured alike: level and newest number of each, as logarithms."""

    def __init__(self, of: Mapping[int, tuple[float, float]]) -> None:
        self._of = of
        self._sorted = [sorted(each[place] for each in of.values()) for place in (0, 1)]

    def beside(self, node: int) -> tuple[float, float]:
        """Return the median of the siblings of `node`, and the share by which they differ; 0: too few.

        The median is over the newest numbers: levels lag behind a loss that all nodes share.
        """
        own, count = self._of.get(node), len(self._of) - (node in self._of)
        if count < SIBLINGS:
            return 0.0, 0.0

        def part(place: int, quarter: int) -> float:  # as if the node's own were not in the list
            these, at = self._sorted[place], count * quarter // 4
            return these[at + (own is not None and at >= bisect_left(these, own[place]))]

        return math.exp(part(1, 2)), max((part(0, 3) - part(0, 1)) / _QUARTILES, LEAST_NOISE)


def accepted(drift: Drift, time_s: float) -> Drift:
    """Restart the test: from here on the node is as usual, also against its siblings. Past losses are kept.

    The numbers since the loss define the usual value, so that a further loss is found.
    """
    below = drift.siblings.lost if drift.siblings.state != "ok" else 0.0
    anew = Drift(
        tests=drift.tests, recent=drift.recent, accepted=drift.accepted + below, own=_restart(drift.own, time_s),
        siblings=_restart(drift.siblings, time_s),
    )  # fmt: skip
    if drift.own.state != "degraded":
        return anew
    level = drift.mean + drift.own.lost + drift.shared
    return replace(anew, count=drift.own.tests, mean=level, squares=drift.squares)


def _restart(sum_: Sum, time_s: float) -> Sum:
    """Restart a sum; keep each time that the node was degraded."""
    now = ((sum_.since_s or time_s, time_s, sum_.lost),) if sum_.state == "degraded" else ()
    return Sum(spells=(*sum_.spells, *now)[-_MOST_SPELLS:])


def scatter(count: int, squares: float) -> float:
    """Return the standard deviation of single numbers, as a share."""
    return max(math.sqrt((PRIOR * USUAL_NOISE**2 + squares) / (PRIOR + count)), LEAST_NOISE)


def _learn(drift: Drift, level: float) -> Drift:
    """Add one number to the usual value. While the sum is above 0 numbers wait until it is 0."""
    if drift.own.state == "degraded":
        return replace(drift, waiting=())
    waiting = (*drift.waiting, level)[-_MOST_WAITING:]
    if drift.own.height > 0:
        return replace(drift, waiting=waiting)
    count, mean, squares = drift.count, drift.mean, drift.squares
    for each in waiting:
        if count:  # an odd day does not make every later one look usual
            squares += min((each - mean) ** 2 * count / (count + 1), (3 * scatter(count, squares)) ** 2)
        count += 1
        mean += (each - mean) / count
    return replace(drift, count=count, mean=mean, squares=squares, waiting=())


def _add_reading(to: Sum, reading: Reading, off: float, noise: float, more: float, allowed: float = 0.0) -> Sum:
    """Add one number, which is `off` (negative: below) its comparison, to a sum.

    `allowed`: how far below is not yet a loss; `more`: by how much the limits are higher. A number measured with one or
    two
    others counts as degraded only if it was low with at least PARTNERS nodes when last measured. Otherwise a partner
    may be
    the slow one, and the sum waits at a height from which some good numbers with others bring it down.
    """
    time_s = reading.time_s
    if to.state == "degraded":
        return _test_recovery(to, time_s, off, noise, allowed)
    height = max(to.height + max(min(-(off + allowed) / noise, CLIP), -CLIP) - SLACK, 0.0)
    if not height:
        return Sum(good_s=time_s, spells=to.spells)
    fresh = not to.height or (height >= _LEAP * to.height and off <= _LEAP * to.lost)  # what was low before was noise
    tests = 1 if fresh else to.tests + 1
    partners = tuple(each for each in to.partners if each not in reading.partners)
    if -(off + allowed) > LOW * noise:
        partners = (*partners, *reading.partners)[:PARTNERS]
    sure = height >= DEGRADED + more and (not reading.partners or len(partners) >= PARTNERS)
    if reading.partners and not sure:
        height = min(height, DEGRADED + more + CLIP)
    return replace(
        to,
        state="degraded" if sure else "watch" if height >= WATCH + more else "ok",
        partners=partners,
        height=height,
        tests=tests,
        lost=to.lost + (off - to.lost) / tests,
        since_s=time_s if fresh or to.since_s is None else to.since_s,
    )


def _test_recovery(to: Sum, time_s: float, off: float, noise: float, allowed: float) -> Sum:
    """Add one number to the sum of a degraded node, which may show that it has recovered."""
    most = min(to.most, to.lost)
    rest = max(-most * REST, min(-most / 2, noise + allowed))
    odds = max(to.odds + min((off + rest) * -most / noise**2, MOST_ODDS), 0.0)
    if odds >= REPAIRED:
        return Sum(good_s=time_s, spells=(*to.spells, (to.since_s or time_s, time_s, most))[-_MOST_SPELLS:])
    tests = to.tests + 1
    lost = to.lost + max(off - to.lost, -CLIP * noise) / min(tests, _RECENT)
    return replace(to, tests=tests, odds=odds, lost=lost, most=min(most, lost))
