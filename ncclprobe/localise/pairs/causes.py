"""List possible causes, and weigh how strongly samples support each.

Each cause predicts which pairs are slow. Its weight is how many of its samples are slow, and how many healthy.

A sample counts as slow *for a cause* if it is nearer to the loss that the cause shows than to the usual rate. The fleet
itself gives the frequency of such samples among those without any suspected end, so the noise needs no model: if one
transfer in five is slow without reason, a slow one proves little and many are needed; if none is, two partners suffice.

The noise of a run is measured by its own repetitions: each retest against the sample before. A persistent loss is in
both and cancels out, so no part has to be known to be healthy. The spread is robust: a quarter of the repetitions may
be
arbitrarily wild.
"""

import heapq
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

from ncclprobe.localise.pairs.effects import Effects, Way, apart, slow, slow_residuals
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.model.hostlist import fold
from ncclprobe.model.values import Struct, field, grouped

Kind = Literal["node", "rail", "pair"]
Direction = Literal["both", "out", "into"]
DIRECTIONS: tuple[Direction, ...] = ("both", "out", "into")


class Cause(Struct, frozen=True):
    """One part that may be at fault.

    kind: `node`, everything of one node; `rail`, one NIC of a node with its cable; `pair`, the path between two nodes
    (routing), on one rail or on all.

    direction: `out` of or `into` the first of `nodes`, or both. `several`: for a node or a rail, many of its pairs but
    not
    all; for more than two nodes, the path between them and the others; for a rail without nodes, all nodes.
    """

    kind: Kind
    nodes: tuple[str, ...] = ()
    rail: int | None = None
    direction: Direction = "both"
    several: bool = False

    @property
    def shared(self) -> bool:
        """Whether many nodes share the cause, so that no single one is to blame."""
        return self.several and (self.kind == "pair" or not self.nodes)

    def __str__(self) -> str:
        """Describe the cause: ``out of n3 rail 1``."""
        rail = f" rail {self.rail}" if self.rail is not None else ""
        if self.shared:
            return f"{fold(self.nodes)} with the others{rail}" if self.nodes else f"all nodes{rail}"
        heading = {"both": "", "out": "out of ", "into": "into "}[self.direction]
        return f"{heading}{'several pairs of ' if self.several else ''}{' with '.join(self.nodes)}{rail}"


class Entry(Struct, frozen=True):
    """One result as evidence: log ratio to the usual rate of its `way`, -inf for a lost pair."""

    src: End
    dst: End
    log_ratio: float
    step: int = 0
    way: Way = False


class Evidence(Struct, frozen=True):
    """Entries, and their positions by node, end and pair."""

    entries: tuple[Entry, ...]
    places: Mapping[tuple[object, ...], Sequence[int]] = field(default_factory=dict)

    def covered(self, cause: Cause) -> Iterator[int]:
        """Yield the positions of all entries that `cause` would make slow."""
        if cause.kind == "pair":
            one, other = cause.nodes
            for src, dst in [(one, other)] if cause.direction == "out" else [(one, other), (other, one)]:
                yield from self.places.get(("pair", src, dst, cause.rail), ())
            return
        for each in ("out", "into") if cause.direction == "both" else (cause.direction,):
            yield from self.places.get((cause.kind, each, cause.nodes[0], cause.rail), ())


def add_evidence(entries: Iterable[Entry], before: Evidence | None = None) -> Evidence:
    """Index `entries` under every cause that could explain them, after those of `before`, which stays unchanged."""
    places: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    old, kept = before.entries if before else (), tuple(entries)
    for place, entry in enumerate(kept, len(old)):
        for key in _keys(entry):
            places[key].append(place)
    known = before.places if before else {}
    longer = {key: [*known.get(key, ()), *new] for key, new in places.items()}
    return Evidence((*old, *kept), {**known, **longer})


def _keys(entry: Entry) -> Iterator[tuple[object, ...]]:
    src, dst = entry.src, entry.dst
    for direction, end in (("out", src), ("into", dst)):
        yield "node", direction, end.node, None
        yield "rail", direction, end.node, end.rail
    yield "pair", src.node, dst.node, None
    if src.rail == dst.rail:
        yield "pair", src.node, dst.node, src.rail


def candidates(results: Sequence[Result], effects: Effects, rules: Rules) -> dict[Cause, float]:
    """Return every cause that might explain a slow result, with its log odds before any sample.

    Candidates are ends whose direction is slow by both rules or far below all others, pairs whose residual is slow, and
    the
    causes of lost pairs. `results` are the round-robin's, with samples in the order of `effects.residual`.
    """
    ends = {end for result in results for end in (result.src, result.dst)}
    many_rails = len({end.rail for end in ends}) > 1
    lost = [result for result in results if isinstance(result, Lost)]
    suspects = {end for ways in (effects.out, effects.into) for end in slow(ways, rules)}
    suspects |= {end for result in lost for end in (result.src, result.dst)}
    samples = [result for result in results if isinstance(result, Sample)]
    suspects |= apart(samples, rules)
    outliers: list[Result] = [samples[place] for place in slow_residuals(samples, effects, rules)]
    found: set[Cause] = set()
    alone = len({end.node for end in ends}) == _TWO  # then nothing tells an end from its only partner
    for end in () if alone else suspects:
        found |= set(_end_causes(end, rails=many_rails))
    pairs = [(each.src, each.dst) for each in [*outliers, *lost]]
    pairs += [(each.src, each.dst) for each in samples if alone and many_rails]
    for src, dst in pairs:
        found |= set(_pair_causes(src, dst, rails=many_rails))
    many: dict[Kind, int] = {
        "node": 3 * len({end.node for end in ends}),
        "rail": 3 * len(ends),
        "pair": 3 * len({frozenset((result.src, result.dst)) for result in results}),
    }
    return {cause: _prior(cause, many, rules) for cause in found}


def _end_causes(end: End, rails: bool) -> Iterator[Cause]:
    for direction in DIRECTIONS:
        yield Cause("node", (end.node,), direction=direction)
        if rails:
            yield Cause("rail", (end.node,), end.rail, direction)


def _pair_causes(src: End, dst: End, rails: bool) -> Iterator[Cause]:
    both = tuple(sorted((src.node, dst.node)))
    for rail in (None, src.rail) if rails and src.rail == dst.rail else (None,):
        yield Cause("pair", both, rail)
        yield Cause("pair", (src.node, dst.node), rail, "out")


def _prior(cause: Cause, many: Mapping[Kind, int], rules: Rules) -> float:
    """Return the prior log odds: the expected faults of this kind in a fleet, shared among all possible causes."""
    share = rules.faults / many[cause.kind]
    return math.log(share / (1 - share))


_ENOUGH, _NOISIER = 3, 3.0
"""With so many samples of a quiet way, ways that are so many times noisier do not count for the size of a loss."""
_TWO = 2
_FEW = 6
"""Minimum unsuspected entries for a conclusion."""


class Weight(Struct, frozen=True):
    """The evidence for a cause.

    `loss` is the log ratio that it shows, `limit` the value that it must be below; `slow` of `tests` samples are slow,
    with
    so many `partners`. Log odds: `prior` before all samples, `round_robin_odds`, and `retest_odds`.
    """

    loss: float
    limit: float
    slow: int
    tests: int
    partners: int
    retests: int
    prior: float
    round_robin_odds: float
    retest_odds: float

    @property
    def log_odds(self) -> float:
        """Log odds of all samples together."""
        return self.prior + self.round_robin_odds + self.retest_odds

    @property
    def confidence(self) -> float:
        """The odds as a probability."""
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, self.log_odds))))


class Scale:
    """Weighs causes by entries. `usual`: positions of entries without a suspected end.

    `sigma`: noise of one sample of each way (:func:`retest_noise`), which a cause must exceed.
    """

    def __init__(self, evidence: Evidence, usual: Collection[int], rules: Rules, sigma: Mapping[Way, float]) -> None:
        self._evidence, self._rules, self._usual = evidence, rules, frozenset(usual)
        self._sigma = {entry.way: sigma.get(entry.way, noise_floor(rules)) for entry in evidence.entries}
        self._logs = [entry.log_ratio for entry in evidence.entries]
        self._pool: defaultdict[Way, list[float]] = defaultdict(list)
        self._all: defaultdict[Way, list[float]] = defaultdict(list)
        for place in sorted(range(len(self._logs)), key=self._logs.__getitem__):
            self._all[evidence.entries[place].way].append(self._logs[place])
            if place in self._usual:
                self._pool[evidence.entries[place].way].append(self._logs[place])

    def weigh(self, cause: Cause, prior: float, taken: Collection[int] = ()) -> Weight:
        """Weigh `cause` by the entries that it covers, except those `taken` by another."""
        places = [place for place in self._evidence.covered(cause) if place not in taken]
        quiet, sigma = self._quiet(places)
        loss = sorted(map(self._logs.__getitem__, quiet))[len(quiet) // 2] if quiet else 0.0
        slowest = noise_limit(len(quiet), sigma, self._rules)
        by_way = grouped((self._evidence.entries[place].way, place) for place in places)
        odds = [0.0, 0.0]
        slow = retests = 0
        for each, those in by_way.items():
            chance, hit = self._chance(loss / 2, each, those), self._rules.hit
            for_it, against = math.log(hit / chance), math.log((1 - hit) / (1 - chance))
            for place in those:
                is_slow, is_retest = self._logs[place] <= loss / 2, bool(self._evidence.entries[place].step)
                odds[is_retest] += for_it if is_slow else against
                slow += is_slow
                retests += is_retest
        entries = [self._evidence.entries[place] for place in places]
        partners = {entry.dst.node if entry.src.node in cause.nodes else entry.src.node for entry in entries}
        return Weight(loss, slowest, slow, len(places), len(partners), retests, prior, odds[0], odds[1])

    def _quiet(self, places: Sequence[int]) -> tuple[Sequence[int], float]:
        """Return the `places` whose way is not much noisier than the quietest, and their noise."""
        ways = Counter(self._evidence.entries[place].way for place in places)
        enough = [way for way, count in ways.items() if count >= _ENOUGH] or list(ways)
        most = _NOISIER * min((self._sigma[way] for way in enough), default=0.0)
        quiet = [place for place in places if self._sigma[self._evidence.entries[place].way] <= most]
        return quiet, max((self._sigma[self._evidence.entries[place].way] for place in quiet), default=0.0)

    def _chance(self, limit: float, way: Way, places: Sequence[int]) -> float:
        """Return how often an uncovered entry is as slow as `limit`; by Laplace's rule, never quite 0 or 1.

        If nearly every end is a suspect, all entries that the cause does not cover are counted, slow ones as well.
        No healthy pair is lost by chance.
        """
        if limit == -math.inf:
            return self._rules.floor
        pool = self._pool[way]
        covered_logs = [self._logs[place] for place in places if place in self._usual]
        if len(pool) - len(covered_logs) < _FEW:
            pool, covered_logs = self._all[way], [self._logs[place] for place in places]
        as_slow = bisect_right(pool, limit) - sum([log <= limit for log in covered_logs])
        among = len(pool) - len(covered_logs)
        return min(max((as_slow + 1) / (among + 2), self._rules.floor), 1 - self._rules.floor)

    def weigh_all(self, candidates: Mapping[Cause, float], before: Mapping[Cause, Weight]) -> dict[Cause, Weight]:
        """Weigh all candidates, given their prior log odds; reuse the weight of one without new entries."""
        found = {}
        for cause, prior in candidates.items():
            known = before.get(cause)
            same = known and len(list(self._evidence.covered(cause))) == known.tests
            found[cause] = known if known and same else self.weigh(cause, prior)
        return found

    def explain(self, candidates: Mapping[Cause, float], weighed: Mapping[Cause, Weight]) -> dict[Cause, Weight]:
        """Choose the likeliest cause, then the likeliest for what is left unexplained, and so on while any is likely.

        `candidates`: prior log odds by cause; `weighed`: each cause by all that it covers. Causes whose samples are not
        slow, or
        speak against them, are left out.
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
            if not weight.slow or weight.loss > weight.limit or weight.log_odds <= weight.prior:
                continue
            if heap and -weight.log_odds > max(before, heap[0][0]) + 1e-9:
                heapq.heappush(heap, (-weight.log_odds, order[cause], cause))
                continue
            chosen[cause] = weight
            taken |= set(self._evidence.covered(cause))
        return chosen


_MAD_TO_SIGMA = 1.4826
_OF_MEDIAN = 1.2533
"""The error of a median of n samples is this times their sigma, divided by the root of n."""
_FEWEST = 6
"""Minimum repetitions for a spread."""


def retest_noise(results: Iterable[Result], rules: Rules) -> dict[Way, float]:
    """Return the sigma of the log rate of one sample, by way, from the repetitions among `results`.

    No fleet counts as quieter than the rules' floor; a way with too few repetitions is left out.
    """
    samples = (each for each in results if isinstance(each, Sample))
    logs = grouped(((each.both, each.src, each.dst), math.log(each.GBps)) for each in samples)
    changes: defaultdict[Way, list[float]] = defaultdict(list)
    for (key, _, _), those in logs.items():
        changes[key] += [after - before for before, after in pairwise(those)]
    return {key: max(noise_floor(rules), _sigma(those)) for key, those in changes.items() if len(those) >= _FEWEST}


def noise_floor(rules: Rules) -> float:
    """Return the least sigma that counts."""
    return _MAD_TO_SIGMA * rules.mad_floor


def _sigma(changes: Sequence[float]) -> float:
    middle = median(changes)
    return _MAD_TO_SIGMA * median(abs(change - middle) for change in changes) / math.sqrt(2)


def noise_limit(count: int, sigma: float, rules: Rules) -> float:
    """Return the log ratio below which the median of `count` samples with this noise is slow."""
    noise = rules.slow_z * sigma * min(1.0, _OF_MEDIAN / math.sqrt(max(1, count)))
    return min(math.log(rules.slow_ratio), noise)
