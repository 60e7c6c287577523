"""Judge samples: which causes explain the round-robin, and which of them the retests confirm.

No part is blamed for a round-robin alone: a suspect must have been measured again and the retests must speak against
it,
with enough different partners, until the odds reach the confidence of the rules. A retest with a partner that is itself
slow in its control does not count. Cleared suspects are reported as well: they were slow only while others sent, and
the
fabric's load is not a fault.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median, median_high
from typing import Literal

from ncclprobe.localise.pairs import rounds
from ncclprobe.localise.pairs.causes import (
    Cause,
    Entry,
    Evidence,
    Kind,
    Scale,
    Weight,
    add_evidence,
    candidates,
    noise_floor,
    noise_limit,
    retest_noise,
)
from ncclprobe.localise.pairs.effects import Effects, Way, levels, polish
from ncclprobe.localise.pairs.rounds import PairRound, Participants
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.model.values import Struct, field, grouped, replace

_FEWEST_PAIRS, _SHARE_OF_PAIRS = 3, 0.25
"""With so many bad pairs, and such a share of all tested pairs, the node or rank is at fault and not the pairs."""
_FEWEST_NODES = 3
"""Among fewer nodes, what they share cannot be distinguished from the nodes."""
_NEARLY_ALL = 0.75
"""Share of the pairs in a group that must be fast."""
_NEARLY_ALL_OF_RAIL = 0.95
"""Share of the pairs on a rail that must be slow: with four nodes two bad NICs slow all pairs but one of six."""


def many(bad: int, tried: int) -> bool:
    """Return whether `bad` of `tried` pairs are so many that the part they share is at fault."""
    return bad >= _FEWEST_PAIRS and bad >= _SHARE_OF_PAIRS * tried


def gather_pairs(weights: Mapping[Cause, Weight], partners: Mapping[str, Collection[str]]) -> dict[Cause, Weight]:
    """Replace many bad pairs by the node, or NIC, that they share; the node with most of them first.

    `partners`: the nodes that each node was measured with.
    """
    pairs = {cause: weight for cause, weight in weights.items() if cause.kind == "pair"}
    found: dict[Cause, Weight] = {}
    while pairs:
        bad: defaultdict[str, set[str]] = defaultdict(set)
        for cause in pairs:
            for node, other in (cause.nodes, cause.nodes[::-1]):
                bad[node].add(other)
        node = max(bad, key=lambda each: (len(bad[each]), each))
        if not many(len(bad[node]), len(partners.get(node, ()))):
            break
        its = {cause: weight for cause, weight in pairs.items() if node in cause.nodes}
        rails = {cause.rail for cause in its}
        one_rail = len(rails) == 1 and None not in rails
        rail = rails.pop() if one_rail else None
        shared = Cause("rail" if one_rail else "node", (node,), rail, several=True)
        found[shared] = _combine(list(its.values()), len(bad[node]))
        pairs = {cause: weight for cause, weight in pairs.items() if cause not in its}
    return {**found, **{cause: weight for cause, weight in weights.items() if cause.kind != "pair"}, **pairs}


def _combine(weights: Sequence[Weight], partners: int) -> Weight:
    """Combine the evidence of several pairs of one node; the odds are those of the weakest."""
    weakest = min(weights, key=lambda weight: weight.log_odds)
    return replace(
        weakest,
        loss=median(weight.loss for weight in weights),
        slow=sum(weight.slow for weight in weights),
        tests=sum(weight.tests for weight in weights),
        retests=sum(weight.retests for weight in weights),
        partners=partners,
    )


def gather_groups(
    weights: Mapping[Cause, Weight], samples: Iterable[Sample], usual: float, rules: Rules
) -> dict[Cause, Weight]:
    """Replace causes by a group of nodes that are slow with the others and fast with each other.

    No node of it is slow: the shared part between the groups is, a switch or its uplinks, which by design may cost a
    tenth.
    `usual` is the rate of one way, GB/s.
    """
    found = dict(weights)
    logs = grouped(
        ((rail, frozenset((each.src.node, each.dst.node))), math.log(each.GBps / usual))
        for each in samples
        if not each.both
        for rail in (None, each.src.rail)
    )
    for rail in dict.fromkeys(cause.rail for cause in weights if cause.kind != "pair"):
        of_node = grouped((c.nodes[0], c) for c in weights if c.kind != "pair" and c.rail == rail and not c.several)
        loss = {node: max(weights[cause].loss for cause in its) for node, its in of_node.items()}
        met = [pair for (on, pair) in logs if on == rail and pair <= loss.keys()]
        fast = [pair for pair in met if median(logs[rail, pair]) > max(loss[node] for node in pair) / 2]
        if group := _largest_group(fast, met):
            its = [found.pop(cause) for node in sorted(group) for cause in of_node[node]]
            partners = {node for on, pair in logs if on == rail and pair & group for node in pair - group}
            shared = Cause("pair", tuple(sorted(group)), rail, several=True)
            weight = _combine(its, len(partners))
            found = {**({shared: weight} if weight.loss < math.log(rules.uplink_ratio) else {}), **found}
    return found


def _largest_group(fast: Sequence[frozenset[str]], met: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the largest group of nodes whose pairs are nearly all fast; empty if none."""
    group = {node: frozenset((node,)) for pair in fast for node in pair}
    for pair in fast:
        both = frozenset().union(*(group[node] for node in pair))
        group.update(dict.fromkeys(both, both))
    largest = max(group.values(), key=len, default=frozenset[str]())
    within = [pair for pair in met if pair <= largest]
    clear = sum(pair <= largest for pair in fast) >= _NEARLY_ALL * len(within)
    return largest if len(largest) >= _FEWEST_NODES and clear else frozenset()


def rail_shares(samples: Sequence[Sample], level: Mapping[Way, float], rules: Rules) -> dict[int, float]:
    """Return the remaining share of the usual rate on rails that are slow for nearly all node pairs: no single node's
    fault.

    With two nodes each rail has a single path, so that a pair is named instead.
    """
    if False not in level or len({sample.src.node for sample in samples}) < _FEWEST_NODES:
        return {}
    found = {}
    for rail, those in grouped((each.src.rail, each) for each in samples if not each.both).items():
        limit = rules.slow_ratio * level[False]
        usual = levels(those)[False]
        if usual < limit and sum(each.GBps < limit for each in those) >= _NEARLY_ALL_OF_RAIL * len(those):
            found[rail] = usual / level[False]
    return found


_CONTROLS = 4
"""Minimum samples without a suspect to define the usual rate in retests; with fewer the round-robin's level holds."""


class Suspect(Struct, frozen=True):
    """A cause with its evidence.

    `ratio`: what it leaves of the usual bandwidth, 0 if nothing arrives. `confidence`: its odds as a probability,
    assuming
    independent samples. `slow` of `tests` samples speak for it, `retests` of them taken after it was suspected, with
    `partners` different nodes in all.
    """

    cause: Cause
    ratio: float
    confidence: float
    slow: int
    tests: int
    retests: int
    partners: int


class Localisation(Struct, frozen=True):
    """The conclusion from pair samples about slow parts.

    `confirmed` are blamed, the likeliest first; `suspects` are undecided, most of them may be noise; `cleared` were
    slow in
    the round-robin and not when measured again. `lost`: pairs without any data; their ends are named whichever is to
    blame.
    `level`: usual rate by way, GB/s (1e9 bytes/s); `all_slow`: that itself is below the expected one. `slow_rails`:
    rails
    that are slow on all nodes, with the remaining share of the usual rate. `tests` counts all samples and lost pairs,
    `steps` the rounds of retests.
    """

    confirmed: tuple[Suspect, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    cleared: tuple[Cause, ...] = ()
    lost: tuple[Lost, ...] = ()
    level: Mapping[Way, float] | None = None
    all_slow: bool = False
    slow_rails: Mapping[int, float] = field(default_factory=dict)
    tests: int = 0
    steps: int = 0

    @property
    def kind(self) -> Kind | Literal["everything", "several", "none"]:
        """The localisation in one word."""
        if self.all_slow:
            return "everything"
        kinds = {suspect.cause.kind for suspect in self.confirmed}
        if len(self.confirmed) == 1:
            return kinds.pop()
        return "several" if kinds else "none"


class Case(Struct, frozen=True):
    """The result of a round-robin alone: computed once, because it is the same for every step of retests.

    `usual`: positions of the entries of `round_robin` without a suspected end. `weighed`: every candidate alone;
    `suspected`: the best explanation of the round-robin. `slow_rails` are compared with themselves.
    """

    effects: Effects
    slow_rails: Mapping[int, float]
    rules: Rules
    nodes: int
    candidates: Mapping[Cause, float]
    round_robin: Evidence
    usual: Sequence[int]
    weighed: Mapping[Cause, Weight]
    suspected: Mapping[Cause, Weight]


def open_case(first: Sequence[Result], rules: Rules) -> Case:
    """Return the case of a round-robin's results."""
    samples = [result for result in first if isinstance(result, Sample)]
    shares = rail_shares(samples, levels(samples), rules)
    first = [_scale_to_rail(result, shares) for result in first]
    effects = polish([result for result in first if isinstance(result, Sample)])
    causes = candidates(first, effects, rules)
    evidence = add_evidence(_entries(first, effects.level))
    usual = _unsuspected(evidence, causes)
    scale = Scale(evidence, usual, rules, {})
    weighed = scale.weigh_all(causes, {})
    nodes = len({end.node for result in first for end in (result.src, result.dst)})
    return Case(effects, shares, rules, nodes, causes, evidence, usual, weighed, scale.explain(causes, weighed))


def _scale_to_rail(result: Result, shares: Mapping[int, float]) -> Result:
    """Scale `result` as if a rail that is slow on all nodes were as fast as the others."""
    if isinstance(result, Lost) or result.src.rail not in shares:
        return result
    return replace(result, GBps=result.GBps / shares[result.src.rail])


def verdict(
    results: Sequence[Result],
    rules: Rules | None = None,
    expected_GBps: float | None = None,
    case: Case | None = None,
) -> Localisation:
    """Judge which part is slow, by all `results` so far: the round-robin's (step 0) and the retests' (steps from 1).

    The returned `suspects` should be measured again (:func:`ncclprobe.localise.pairs.rounds.plan_retests`).
    `expected_GBps`
    is the least that a healthy pair reaches; without it a uniformly slow fleet is not recognised. `case` is the
    round-robin's
    :func:`open_case`, for a caller that asks again after each step.
    """
    rules = rules or Rules()
    case = case or open_case([result for result in results if not result.step], rules)
    results = [_scale_to_rail(result, case.slow_rails) for result in results]
    retests = [result for result in results if result.step]
    effects, suspected = case.effects, case.suspected
    sigma = retest_noise(results, rules)
    weights = _explain(_retest_evidence(retests, suspected, sigma, case), sigma, case) if retests else suspected
    decided = {cause: _decide(weight, cause, case) for cause, weight in weights.items()}
    blamed = {cause: weights[cause] for cause, how in decided.items() if how == "blamed"}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for result in results:
        found[result.src.node].add(result.dst.node)
        found[result.dst.node].add(result.src.node)
    blamed = gather_pairs(blamed, found)
    samples = [result for result in results if isinstance(result, Sample)]
    blamed = gather_groups(blamed, samples, effects.level.get(False, 1.0), rules)
    single = [usual for both, usual in effects.level.items() if not both]
    return Localisation(
        confirmed=tuple(_suspect(cause, weight) for cause, weight in blamed.items()),
        suspects=tuple(_suspect(cause, weights[cause]) for cause, how in decided.items() if how == "suspected"),
        cleared=tuple(cause for cause in {**suspected, **weights} if decided.get(cause, "cleared") == "cleared"),
        lost=tuple(result for result in results if isinstance(result, Lost)),
        level=effects.level,
        all_slow=bool(single) and expected_GBps is not None and max(single) < expected_GBps,
        slow_rails=case.slow_rails,
        tests=len(results),
        steps=max((result.step for result in retests), default=0),
    )


def _entries(results: Iterable[Result], level: Mapping[Way, float]) -> list[Entry]:
    """Turn results into evidence, except those on a way that the round-robin did not take."""
    entries = []
    for result in results:
        if isinstance(result, Lost):
            entries.append(Entry(result.src, result.dst, -math.inf, result.step))
        elif (usual := level.get(result.both)) is not None:
            log = math.log(result.GBps / usual)
            entries.append(Entry(result.src, result.dst, log, result.step, result.both))
    return entries


def _explain(retests: Sequence[Entry], sigma: Mapping[Way, float], case: Case) -> dict[Cause, Weight]:
    """Return the best explanation of the round-robin and the retests, the likeliest first."""
    scale = Scale(add_evidence(retests, case.round_robin), case.usual, case.rules, sigma)
    return scale.explain(case.candidates, scale.weigh_all(case.candidates, case.weighed))


def _unsuspected(evidence: Evidence, causes: Collection[Cause]) -> list[int]:
    """Return the positions of the round-robin's entries without a suspected end."""
    nodes = {cause.nodes[0] for cause in causes if cause.kind == "node"}
    ends = {(cause.nodes[0], cause.rail) for cause in causes if cause.kind == "rail"}

    def usual(end: End) -> bool:
        return end not in ends if ends else end.node not in nodes  # without rails to tell apart there are none of them

    entries = enumerate(evidence.entries)
    return [place for place, entry in entries if usual(entry.src) and usual(entry.dst)]


def _retest_evidence(
    retests: Sequence[Result], suspected: Collection[Cause], sigma: Mapping[Way, float], case: Case
) -> list[Entry]:
    """Turn retests into evidence: relative to their controls, without those whose partner fails its control."""
    evidence = add_evidence([Entry(r.src, r.dst, 0.0, r.step) for r in retests])
    about = {place for cause in suspected for place in evidence.covered(cause)}
    controls = [result for place, result in enumerate(retests) if place not in about]
    rates = grouped((result.both, result.GBps) for result in controls if isinstance(result, Sample))
    usual = {key: median_high(values) for key, values in rates.items() if len(values) >= _CONTROLS}
    level = {**case.effects.level, **usual}
    ends = {node for cause in suspected for node in cause.nodes}
    limit = {key: noise_limit(1, each, case.rules) for key, each in sigma.items()}
    quietest = noise_limit(1, noise_floor(case.rules), case.rules)
    failed = {
        (entry.step, end.node)
        for entry in _entries(controls, level)
        for end in (entry.src, entry.dst)
        if entry.log_ratio < limit.get(entry.way, quietest) and end.node not in ends
    }
    kept = [r for r in retests if failed.isdisjoint(((r.step, r.src.node), (r.step, r.dst.node)))]
    return _entries(kept, level)


def _decide(weight: Weight, cause: Cause, case: Case) -> Literal["blamed", "suspected", "cleared"]:
    if weight.retests and weight.retest_odds <= 0:
        return "cleared"
    of_end = cause.kind in ("node", "rail")  # a pair's partners are its own two ends
    dead = of_end and weight.loss == -math.inf and weight.partners > 1  # nothing ever came: it is measured no more
    enough = min(case.rules.partners, case.nodes - 1) if of_end and not dead else 1
    sure = (weight.retests or dead) and weight.partners >= enough and weight.confidence >= case.rules.confidence
    return "blamed" if sure else "suspected"


def _suspect(cause: Cause, weight: Weight) -> Suspect:
    ratio = math.exp(weight.loss)
    return Suspect(cause, ratio, weight.confidence, weight.slow, weight.tests, weight.retests, weight.partners)


LOST_PARTNERS = 2
"""An end that lost its pairs with so many partners is not measured any more: each costs a deadline."""
Excluded = Callable[[Sequence[Result]], frozenset[End]]
"""The ends not to measure any more after these results."""
Measure = Callable[[PairRound, int], Iterable[Result]]
"""Measures the pairs of one round at once, in each direction, for one step of retests (0: the round-robin)."""


def localise_slowness(
    rails: Mapping[str, Sequence[int]],
    measure: Measure,
    rules: Rules | None = None,
    *,
    count: int | None = None,
    expected_GBps: float | None = None,
    excluded: Excluded | None = None,
) -> Localisation:
    """Measure all pairs of nodes, or `count` rounds of them, and find the slow part.

    `rails`: the rails of each node. A lost pair ends nothing: its two ends continue with others and are measured again
    like
    any suspect, until an end was lost with a second partner. `excluded` returns the ends not to measure any more, for a
    caller
    that knows better. Raises ValueError for fewer than two nodes.
    """
    rules = rules or Rules()
    exclude = excluded or lost_with_several
    results: list[Result] = []

    def play(planned: Iterable[PairRound], step: int) -> None:
        for pairs in planned:
            gone = exclude(results)
            remaining = tuple(pair for pair in pairs if gone.isdisjoint(pair))
            results.extend(measure(remaining, step) if remaining else ())

    play(round_robin(rails, count), 0)
    case = open_case(results, rules)
    found = verdict(results, rules, expected_GBps, case)
    for step in range(1, rules.steps + 1):
        participants = Participants(_remaining(rails, exclude(results)))
        suspects = [suspect.cause for suspect in found.suspects[: rules.most_suspects]]
        play(rounds.plan_retests(suspects, participants, step), step)
        if len(results) == found.tests:
            break
        found = verdict(results, rules, expected_GBps, case)
    return found


def round_robin(rails: Mapping[str, Sequence[int]], count: int | None = None) -> tuple[PairRound, ...]:
    """Return the rounds of all nodes, in the given order: equal rails are paired, all rails of two nodes at once."""
    names = list(rails)
    matches = rounds.round_robin(len(names), count)
    return Participants(rails).rounds([(names[m.first], names[m.second]) for m in each] for each in matches)


def lost_with_several(results: Iterable[Result]) -> frozenset[End]:
    """Return the ends that lost pairs with two or more partners: one lost pair may be the path's fault."""
    partners: defaultdict[End, set[str]] = defaultdict(set)
    for lost in results:
        if isinstance(lost, Lost):
            partners[lost.src].add(lost.dst.node)
            partners[lost.dst].add(lost.src.node)
    return frozenset(end for end, those in partners.items() if len(those) >= LOST_PARTNERS)


def _remaining(rails: Mapping[str, Sequence[int]], excluded: frozenset[End]) -> dict[str, list[int]]:
    """Return the rails of each node that are still measured, without nodes that have none."""
    remaining = {node: [rail for rail in each if End(node, rail) not in excluded] for node, each in rails.items()}
    return {node: each for node, each in remaining.items() if each}
