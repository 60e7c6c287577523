"""Weigh how strongly samples speak for a cause: how many of those it covers are slow, and how often healthy ones are.

A sample counts as slow *for a cause* if it lies nearer to the loss that the cause shows than to the usual; for a leaf,
whose loss depends on how many send through it, also if it is slow by the general rule. How often a sample without any
suspected end lies there is counted in the fleet itself. So the noise needs no model: where one transfer in five is slow
without reason, a slow one proves little and many are needed, and where none is, two partners suffice.
"""

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median_high

from ncclprobe.localise.pairs.causes import Cause, Evidence
from ncclprobe.localise.pairs.samples import End, Rules
from ncclprobe.model.values import Struct
from ncclprobe.stats import percentile

_MOST_ENDS = 80
"""Per cent of its ends that a leaf, an uplink or a plane must slow down to be blamed instead of them."""
_WIDE = {"leaf", "uplink", "plane"}


class Weight(Struct, frozen=True):
    """What speaks for a cause.

    `loss` is the logarithm of the ratio it shows, `slow` of `tests` samples are slow, with so many `partners`; `prior`,
    `round_robin_odds` and `retest_odds` are log odds: before all samples, from the round-robin, and from retests.
    """

    loss: float
    slow: int
    tests: int
    partners: int
    retests: int
    prior: float
    round_robin_odds: float
    retest_odds: float

    @property
    def log_odds(self) -> float:
        """Return the log odds of all samples together."""
        return self.prior + self.round_robin_odds + self.retest_odds

    @property
    def confidence(self) -> float:
        """Return the odds as a probability."""
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, self.log_odds))))


class Scale:
    """Weighs causes by entries. `usual` are the positions of entries in which no suspected end takes part."""

    def __init__(self, evidence: Evidence, usual: Collection[int], rules: Rules) -> None:
        self._evidence, self._rules, self._usual = evidence, rules, frozenset(usual)
        self._limit = math.log(rules.slow_ratio)
        self._logs = [entry.log_ratio for entry in evidence.entries]
        self._pool = sorted(self._logs[place] for place in self._usual)

    def weigh(self, cause: Cause, prior: float, taken: Collection[int] = ()) -> Weight:
        """Weigh `cause` by the entries it covers, without those `taken` by another."""
        places = [place for place in self._evidence.covered(cause) if place not in taken]
        loss = self._loss(cause, places)
        limit = max(loss / 2, self._limit) if cause.kind in _WIDE else loss / 2
        chance = self._chance(limit, places)
        for_it = math.log(self._rules.hit / chance)
        against = math.log((1 - self._rules.hit) / (1 - chance))
        entries = [self._evidence.entries[place] for place in places]
        retest_slow = [entry.log_ratio <= limit for entry in entries if entry.step]
        slow, slow_retests = sum(self._logs[place] <= limit for place in places), sum(retest_slow)
        partners = {entry.dst.node if entry.src.node in cause.nodes else entry.src.node for entry in entries}
        round_robin_odds = (slow - slow_retests) * for_it + (
            len(places) - len(retest_slow) - slow + slow_retests
        ) * against
        retest_odds = slow_retests * for_it + (len(retest_slow) - slow_retests) * against
        return Weight(loss, slow, len(places), len(partners), len(retest_slow), prior, round_robin_odds, retest_odds)

    def _loss(self, cause: Cause, places: Sequence[int]) -> float:
        """Return what is typical of the entries; of a wide cause what nearly all of its ends show."""
        if cause.kind not in _WIDE:
            return sorted(map(self._logs.__getitem__, places))[len(places) // 2] if places else 0.0
        by_end: defaultdict[End, list[float]] = defaultdict(list)
        leaf, entries = self._evidence.layout.leaf, self._evidence.entries
        for place in places:
            entry = entries[place]
            for end in (entry.src, entry.dst):
                if not cause.leaf or leaf.get(end.node) == cause.leaf:
                    by_end[end].append(entry.log_ratio)
        if len({end.node for end in by_end}) < 2:
            return 0.0
        return percentile([median_high(logs) for logs in by_end.values()], _MOST_ENDS)

    def _chance(self, limit: float, places: Sequence[int]) -> float:
        """Return how often an uncovered entry is as slow as `limit`; by Laplace's rule, never quite 0 or 1."""
        covered_logs = [self._logs[place] for place in places if place in self._usual]
        as_slow = bisect_right(self._pool, limit) - sum([log <= limit for log in covered_logs])
        among = len(self._pool) - len(covered_logs)
        return min(max((as_slow + 1) / (among + 2), self._rules.floor), 1 - self._rules.floor)

    def weigh_all(self, candidates: Mapping[Cause, float], before: Mapping[Cause, Weight]) -> dict[Cause, Weight]:
        """Weigh all of them, from the prior log odds of each; reuse the weight of one with no more entries."""
        found = {}
        for cause, prior in candidates.items():
            known = before.get(cause)
            same = known and len(list(self._evidence.covered(cause))) == known.tests
            found[cause] = known if known and same else self.weigh(cause, prior)
        return found

    def explain(self, candidates: Mapping[Cause, float], weighed: Mapping[Cause, Weight]) -> dict[Cause, Weight]:
        """Choose the likeliest cause, then the likeliest of what it leaves unexplained, and so on while any is likely.

        `candidates`: each with its prior log odds; `weighed`: each by all that it covers. Those whose samples are not
        slow, or speak against it, are left out.
        """
        taken: set[int] = set()
        chosen: dict[Cause, Weight] = {}
        order = {cause: number for number, cause in enumerate(sorted(candidates, key=str))}
        weights = dict(weighed)
        heap = [(-weight.log_odds, order[cause], cause) for cause, weight in weights.items()]
        heapq.heapify(heap)
        while heap:
            before, _, cause = heapq.heappop(heap)
            weight = weights[cause]
            if not taken.isdisjoint(self._evidence.covered(cause)):  # else it is the same
                weight = weights[cause] = self.weigh(cause, candidates[cause], taken)
            if not weight.slow or weight.loss > self._limit or weight.log_odds <= weight.prior:
                continue
            if heap and -weight.log_odds > max(before, heap[0][0]) + 1e-9:
                heapq.heappush(heap, (-weight.log_odds, order[cause], cause))
                continue
            chosen[cause] = weight
            taken |= set(self._evidence.covered(cause))
        return chosen
