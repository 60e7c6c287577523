"""Judge samples: what explains the round-robin, and what the retests leave of it.

No part is blamed for a round-robin alone: a suspect must have been measured again and the retests must speak against
it, with enough different partners, until the odds reach the confidence that the rules ask for. A retest with a partner
that is itself slow in its control counts for nothing. What the retests clear is reported as well: it was slow only
while others sent, which is the fabric's load and no fault.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median, median_high
from typing import Literal

from ncclprobe.localise.pairs import leaves, rounds
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
from ncclprobe.localise.pairs.effects import Effects, Way, polish, way
from ncclprobe.localise.pairs.leaves import (
    FEWEST_EQUAL,
    SAME_LOSS,
    equally_slow_nodes,
    leaf_name,
    leaf_of_equally_slow,
    measured_layout,
)
from ncclprobe.localise.pairs.rounds import PairRound, Participants
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules, Sample
from ncclprobe.model.values import Struct, field, grouped, replace

_FEWEST_PAIRS, _SHARE_OF_PAIRS = 3, 0.25
"""So many bad pairs, and such a share of all that were tried, are the node's or the rank's and not the pairs'."""
_SHARE_EQUAL, _MOST_EQUAL = 0.2, 6
"""Nodes that lose one share and are such a share of the fleet, or so many whatever its size, are of another build or on
another leaf."""

_FEWEST_OF_LEAF, _OTHER_SPEED = 4, math.log(0.75)
"""So many neighbours that lose less than a NIC of the next lower speed would (40 of 56 Gb/s and less) share a leaf."""


def many(bad: int, tried: int) -> bool:
    """Return whether so many bad pairs of those tried are the fault of the part that they share."""
    return bad >= _FEWEST_PAIRS and bad >= _SHARE_OF_PAIRS * tried


def gather_pairs(weights: Mapping[Cause, Weight], partners: Mapping[str, Collection[str]]) -> dict[Cause, Weight]:
    """Return the causes with nodes, or NICs, in place of their many bad pairs, the node with most of them first.

    `partners` are the nodes that each was measured with.
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
        found[shared] = _sum(list(its.values()), len(bad[node]))
        pairs = {cause: weight for cause, weight in pairs.items() if cause not in its}
    return {**found, **{cause: weight for cause, weight in weights.items() if cause.kind != "pair"}, **pairs}


def _sum(weights: Sequence[Weight], partners: int) -> Weight:
    """Return the evidence of several pairs of one node as that of the node; its odds are those of the weakest."""
    weakest = min(weights, key=lambda weight: weight.log_odds)
    return replace(
        weakest,
        loss=median(weight.loss for weight in weights),
        slow=sum(weight.slow for weight in weights),
        tests=sum(weight.tests for weight in weights),
        retests=sum(weight.retests for weight in weights),
        partners=partners,
    )


def equally_slow(weights: Mapping[Cause, Weight], nodes: int) -> frozenset[Cause]:
    """Return the nodes, among `weights`, that are slow by one and the same share, where they are many of `nodes`."""
    slow = sorted((weight.loss, str(cause), cause) for cause, weight in weights.items() if cause.kind == "node")
    for start, (loss, _, _) in enumerate(slow):
        same = [cause for other, _, cause in slow[start:] if other - loss <= SAME_LOSS]
        if len(same) >= max(FEWEST_EQUAL, min(_SHARE_EQUAL * nodes, _MOST_EQUAL)):
            return frozenset(same)
    return frozenset()


def slow_leaf(same: Mapping[Cause, Weight], nodes: Collection[str]) -> dict[Cause, Weight]:
    """Return as one leaf the equally slow nodes `same`, if they are neighbours among `nodes` by name; else nothing.

    Nodes of another build are neighbours as well, but NICs of another speed cost them more.
    """
    names = {cause.nodes[0] for cause in same}
    order = sorted(nodes, key=_by_number)
    places = [place for place, node in enumerate(order) if node in names]
    apart = len(places) < _FEWEST_OF_LEAF or places[-1] - places[0] >= len(places)
    if apart or any(weight.loss < _OTHER_SPEED for weight in same.values()):
        return {}
    return {Cause("leaf", leaf=leaf_name(names)): _sum(list(same.values()), len(order) - len(places))}


def _by_number(name: str) -> list[str | int]:
    """Return a key that puts n2 before n10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


_CONTROLS = 4
"""So many samples without a suspect say what is usual while retesting; of fewer the round-robin's level holds."""


class Suspect(Struct, frozen=True):
    """A cause with what is known of it.

    `ratio`: what it leaves of the usual bandwidth, 0 where nothing arrives. `confidence`: its odds as a probability,
    which trusts that samples are independent. `slow` of `tests` samples speak for it, `retests` of these were taken
    after it was suspected, with `partners` different nodes in all.
    """

    cause: Cause
    ratio: float
    confidence: float
    slow: int
    tests: int
    retests: int
    partners: int


class Localisation(Struct, frozen=True):
    """What pair samples say about which part is slow.

    `confirmed` are blamed, the likeliest first; `suspects` are undecided, most of them may be noise; `cleared` were
    slow in the round-robin and are not when measured again. `lost` are the pairs through which nothing came: their ends
    are named whichever is to blame. `level` is the usual rate, GB/s (1e9 bytes/s) by way; `all_slow`: that itself is
    below what was expected. `tests` counts all samples and lost pairs, `steps` the rounds of retests. `equally_slow`
    are nodes that lose one share, too many for faults, and not blamed; `layout` is the fabric that samples were
    compared in, its leaves measured where the site told none.
    """

    confirmed: tuple[Suspect, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    cleared: tuple[Cause, ...] = ()
    equally_slow: tuple[Suspect, ...] = ()
    lost: tuple[Lost, ...] = ()
    level: Mapping[Way, float] | None = None
    all_slow: bool = False
    tests: int = 0
    steps: int = 0
    layout: Layout = field(default_factory=Layout)

    @property
    def kind(self) -> Kind | Literal["everything", "several", "none"]:
        """Return the localisation in one word."""
        if self.all_slow:
            return "everything"
        kinds = {suspect.cause.kind for suspect in self.confirmed}
        if len(self.confirmed) == 1:
            return kinds.pop()
        return "several" if kinds else "none"


class Case(Struct, frozen=True):
    """What a round-robin says alone: the same for every step of retests, so that it is worked out once.

    `usual` are the positions of those entries of `round_robin` in which no suspected end takes part; `weighed` is every
    candidate alone, `suspected` what best explains the round-robin.
    """

    effects: Effects
    layout: Layout
    rules: Rules
    nodes: int
    candidates: Mapping[Cause, float]
    round_robin: Evidence
    usual: Sequence[int]
    weighed: Mapping[Cause, Weight]
    suspected: Mapping[Cause, Weight]


def open_case(first: Sequence[Result], layout: Layout, rules: Rules) -> Case:
    """Return the case that the results of a round-robin make."""
    samples = [result for result in first if isinstance(result, Sample)]
    layout = measured_layout(samples, layout)
    effects = polish(samples, layout)
    if equal := equally_slow_nodes(effects, rules) if not layout.leaf else ():
        layout = leaf_of_equally_slow(equal, samples, layout)
        effects = polish(samples, layout) if layout.leaf else effects
    causes = candidates(first, effects, layout, rules)
    evidence = add_evidence(_entries(first, effects.level, layout), layout)
    usual = _unsuspected(evidence, causes)
    scale = Scale(evidence, usual, rules, {})
    weighed = scale.weigh_all(causes, {})
    nodes = len({end.node for result in first for end in (result.src, result.dst)})
    return Case(effects, layout, rules, nodes, causes, evidence, usual, weighed, scale.explain(causes, weighed))


def verdict(
    results: Sequence[Result],
    layout: Layout | None = None,
    rules: Rules | None = None,
    expected_GBps: float | None = None,
    case: Case | None = None,
) -> Localisation:
    """Judge which part is slow, by all `results` so far: the round-robin's (step 0) and the retests' (steps from 1).

    `suspects` are to be measured again (:func:`ncclprobe.localise.pairs.rounds.plan_retests`). `expected_GBps` is the
    least that a healthy pair reaches; without it a uniformly slow fleet is not recognised. `case` is what the
    round-robin's results make (:func:`open_case`), for a caller that asks again after each step.
    """
    layout, rules = layout or Layout(), rules or Rules()
    retests = [result for result in results if result.step]
    case = case or open_case([result for result in results if not result.step], layout, rules)
    effects, suspected = case.effects, case.suspected
    sigma = retest_noise(results, case.layout, rules)
    weights = _explain(_retest_evidence(retests, suspected, sigma, case), sigma, case) if retests else suspected
    decided = {cause: _decide(weight, cause, case) for cause, weight in weights.items()}
    blamed = {cause: weights[cause] for cause, how in decided.items() if how == "blamed"}
    partners = _partners(results)
    blamed = gather_pairs(blamed, partners)
    equal = equally_slow(blamed, case.nodes)
    same = {cause: weight for cause, weight in blamed.items() if cause in equal}
    leaf = slow_leaf(same, partners)
    own = {cause: weight for cause, weight in blamed.items() if cause not in same}
    return Localisation(
        confirmed=tuple(_suspect(cause, weight) for cause, weight in {**leaf, **own}.items()),
        equally_slow=() if leaf else tuple(_suspect(cause, weight) for cause, weight in same.items()),
        suspects=tuple(_suspect(cause, weights[cause]) for cause, how in decided.items() if how == "suspected"),
        cleared=tuple(cause for cause in {**suspected, **weights} if decided.get(cause, "cleared") == "cleared"),
        lost=tuple(result for result in results if isinstance(result, Lost)),
        level=effects.level,
        all_slow=_all_slow(effects.level, expected_GBps),
        tests=len(results),
        steps=max((result.step for result in retests), default=0),
        layout=_with_leaf(case.layout, leaf, same),
    )


def _with_leaf(layout: Layout, leaf: Collection[Cause], nodes: Collection[Cause]) -> Layout:
    """Return `layout` with the one leaf that its equally slow nodes tell."""
    told = {node: cause.leaf for cause in leaf for each in nodes for node in each.nodes}
    return Layout(told, layout.rails, measured=True) if told else layout


def _partners(results: Iterable[Result]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for result in results:
        found[result.src.node].add(result.dst.node)
        found[result.dst.node].add(result.src.node)
    return found


def _entries(results: Iterable[Result], level: Mapping[Way, float], layout: Layout) -> list[Entry]:
    """Turn results into evidence. One on a way that the round-robin never took says nothing.

    Between the only two leaves a result is evidence twice: of its ends, compared with others that cross, and of what
    lies between the leaves, compared with what is near.
    """
    entries = []
    two = layout.leaves == 2
    for result in results:
        if isinstance(result, Lost):
            entries.append(Entry(result.src, result.dst, -math.inf, result.step))
        elif (usual := level.get(way(result, layout))) is not None:
            entries.append(
                Entry(result.src, result.dst, math.log(result.GBps / usual), result.step, way(result, layout))
            )
            near = level.get((True, result.both))
            if two and near is not None and layout.crosses(result.src, result.dst):
                ratio = math.log(result.GBps / near)
                entries.append(Entry(result.src, result.dst, ratio, result.step, (True, result.both), crossing=True))
    return entries


def _explain(retests: Sequence[Entry], sigma: Mapping[Way, float], case: Case) -> dict[Cause, Weight]:
    """Return what best explains the round-robin and the retests, the likeliest first."""
    scale = Scale(add_evidence(retests, case.layout, case.round_robin), case.usual, case.rules, sigma)
    return scale.explain(case.candidates, scale.weigh_all(case.candidates, case.weighed))


def _unsuspected(evidence: Evidence, causes: Collection[Cause]) -> list[int]:
    """Return the positions of the round-robin's entries in which no suspected end takes part."""
    nodes = {cause.nodes[0] for cause in causes if cause.kind == "node"}
    ends = {(cause.nodes[0], cause.rail) for cause in causes if cause.kind == "rail"}

    def usual(end: End) -> bool:
        return end not in ends if ends else end.node not in nodes  # without rails to tell apart there are none of them

    entries = enumerate(evidence.entries)
    return [place for place, entry in entries if not entry.crossing and usual(entry.src) and usual(entry.dst)]


def _retest_evidence(
    retests: Sequence[Result], suspected: Collection[Cause], sigma: Mapping[Way, float], case: Case
) -> list[Entry]:
    """Turn retests into evidence: relative to their controls, without those whose partner fails its control."""
    evidence = add_evidence([Entry(r.src, r.dst, 0.0, r.step) for r in retests], case.layout)
    about = {place for cause in suspected for place in evidence.covered(cause)}
    between = any(cause.other for cause in suspected)
    about |= {place for place, r in enumerate(retests) if between and case.layout.crosses(r.src, r.dst)}
    controls = [result for place, result in enumerate(retests) if place not in about]
    rates = grouped((way(result, case.layout), result.GBps) for result in controls if isinstance(result, Sample))
    usual = {key: median_high(values) for key, values in rates.items() if len(values) >= _CONTROLS}
    level = {**case.effects.level, **usual}
    ends = {node for cause in suspected for node in cause.nodes}
    limit = {key: noise_limit(1, each, case.rules) for key, each in sigma.items()}
    quietest = noise_limit(1, noise_floor(case.rules), case.rules)
    failed = {
        (entry.step, end.node)
        for entry in _entries(controls, level, case.layout)
        for end in (entry.src, entry.dst)
        if entry.log_ratio < limit.get(entry.way, quietest) and end.node not in ends
    }
    kept = [r for r in retests if failed.isdisjoint(((r.step, r.src.node), (r.step, r.dst.node)))]
    return _entries(kept, level, case.layout)


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


def _all_slow(level: Mapping[Way, float], expected_GBps: float | None) -> bool:
    """Return whether even the best of the ways that send in one direction stays below the least expected."""
    single = [usual for (_, both), usual in level.items() if not both]
    return bool(single) and expected_GBps is not None and max(single) < expected_GBps


LOST_PARTNERS = 2
"""An end that lost its pairs with so many partners is measured no more: each costs a deadline."""
Excluded = Callable[[Sequence[Result]], frozenset[End]]
"""The ends that are no longer measured after these results."""
Measure = Callable[[PairRound, int], Iterable[Result]]
"""Measures the pairs of one round at once, in each direction, for so many steps of retests (0: the round-robin)."""


def localise_slowness(
    rails: Mapping[str, Sequence[int]],
    measure: Measure,
    layout: Layout | None = None,
    rules: Rules | None = None,
    *,
    count: int | None = None,
    expected_GBps: float | None = None,
    excluded: Excluded | None = None,
) -> Localisation:
    """Measure all pairs of nodes, or `count` rounds of them, and find out which part is slow.

    `rails` names the rails of each node. A lost pair ends nothing: its two ends go on with others and are measured
    again like any suspect, until an end was lost with a second partner. `excluded` returns the ends no longer measured,
    for a caller that knows better. Raises ValueError for fewer than two nodes.
    """
    layout, rules = layout or Layout(), rules or Rules()
    exclude = excluded or lost_with_several
    results: list[Result] = []

    def play(planned: Iterable[PairRound], step: int) -> None:
        for pairs in planned:
            gone = exclude(results)
            remaining = tuple(pair for pair in pairs if gone.isdisjoint(pair))
            results.extend(measure(remaining, step) if remaining else ())

    play(round_robin(rails, count), 0)
    case = open_case(results, layout, rules)
    if equal := leaves.equally_slow_nodes(case.effects, rules) if not case.layout.leaf else ():
        participants = Participants(rails, layout)
        play(participants.rounds(leaves.meetings(equal, results)), 0)
        case = open_case(results, layout, rules)
    found = verdict(results, layout, rules, expected_GBps, case)
    for step in range(1, rules.steps + 1):
        participants = Participants(_remaining(rails, exclude(results)), case.layout)
        suspects = [suspect.cause for suspect in found.suspects[: rules.most_suspects]]
        play(rounds.plan_retests(suspects, participants, step), step)
        if len(results) == found.tests:
            break
        found = verdict(results, layout, rules, expected_GBps, case)
    return found


def round_robin(rails: Mapping[str, Sequence[int]], count: int | None = None) -> tuple[PairRound, ...]:
    """Return the rounds of all nodes, in the order given: equal rails are paired, all rails of two nodes at once."""
    names = list(rails)
    matches = rounds.round_robin(len(names), count)
    return Participants(rails, Layout()).rounds([(names[m.first], names[m.second]) for m in each] for each in matches)


def lost_with_several(results: Iterable[Result]) -> frozenset[End]:
    """Return the ends of which pairs with two or more partners were lost: one lost pair may be the path's."""
    partners: defaultdict[End, set[str]] = defaultdict(set)
    for lost in results:
        if isinstance(lost, Lost):
            partners[lost.src].add(lost.dst.node)
            partners[lost.dst].add(lost.src.node)
    return frozenset(end for end, those in partners.items() if len(those) >= LOST_PARTNERS)


def _remaining(rails: Mapping[str, Sequence[int]], excluded: frozenset[End]) -> dict[str, list[int]]:
    """Return the rails of each node that are still measured; a node without any is left out."""
    remaining = {node: [rail for rail in each if End(node, rail) not in excluded] for node, each in rails.items()}
    return {node: each for node, each in remaining.items() if each}
