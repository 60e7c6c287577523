"""From samples to a culprit, or to nobody: what explains the tournament, and what the retests leave of it.

Nobody is blamed for a tournament alone: a suspect must have been measured again and the retests must speak against it,
beside enough different partners, until the odds reach the confidence that the rules ask for. A retest beside a partner
that is itself slow in its control counts for nothing. What the retests clear is said as well: it was slow beside
others only, which is the fabric's load and nobody's fault.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Literal

from ncclprobe.localise.pairs.causes import Book, Cause, Entry, Kind, book, candidates
from ncclprobe.localise.pairs.effects import Effects, Way, polish, way
from ncclprobe.localise.pairs.likelihood import Scale, Weight
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules, Sample

_CONTROLS = 4
"""So many samples of nobody suspected say what is usual while retesting; of fewer the tournament's level holds."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A cause with what is known of it.

    `ratio`: what it leaves of the usual bandwidth, 0 where nothing arrives. `confidence`: its odds as a probability,
    which trusts that samples are independent. `slow` of `tests` samples speak for it, `retests` of these were taken
    after it was suspected, beside `partners` different nodes in all.
    """

    cause: Cause
    ratio: float
    confidence: float
    slow: int
    tests: int
    retests: int
    partners: int


@dataclass(frozen=True, slots=True)
class Localisation:
    """What pair samples say about who is slow.

    `culprits` are blamed, the likeliest first; `suspects` are undecided, most of them may be noise; `cleared` were slow
    in the tournament and are not when measured again. `lost` are the pairs through which nothing came: their ends are
    named whoever is to blame. `level` is what is usual, GB/s (1e9 bytes/s) by way; `everything`: that itself is below
    what was expected. `tests` counts all samples and lost pairs, `steps` the rounds of retests.
    """

    culprits: tuple[Culprit, ...] = ()
    suspects: tuple[Culprit, ...] = ()
    cleared: tuple[Cause, ...] = ()
    lost: tuple[Lost, ...] = ()
    level: Mapping[Way, float] | None = None
    everything: bool = False
    tests: int = 0
    steps: int = 0

    @property
    def unsure(self) -> tuple[Culprit, ...]:
        """The suspects that are rather at fault than not, and still not sure enough."""
        return tuple(suspect for suspect in self.suspects if suspect.confidence > 0.5)

    @property
    def kind(self) -> Kind | Literal["everything", "several", "nobody"]:
        """In one word."""
        if self.everything:
            return "everything"
        kinds = {culprit.cause.kind for culprit in self.culprits}
        if len(self.culprits) == 1:
            return kinds.pop()
        return "several" if kinds else "nobody"


@dataclass(frozen=True, slots=True)
class Case:
    """What a tournament says alone: the same for every step of retests, so that it is worked out once.

    `usual` are the places of those entries of `tournament` in which no suspected end takes part; `weighed` is every
    candidate alone, `suspected` what the tournament is best explained by.
    """

    effects: Effects
    layout: Layout
    rules: Rules
    nodes: int
    candidates: Mapping[Cause, float]
    tournament: Book
    usual: Sequence[int]
    weighed: Mapping[Cause, Weight]
    suspected: Mapping[Cause, Weight]


def opened(first: Sequence[Result], layout: Layout, rules: Rules) -> Case:
    """The case that the results of a tournament make."""
    effects = polish([result for result in first if isinstance(result, Sample)], layout)
    causes = candidates(first, effects, layout, rules)
    evidence = book(_entries(first, effects.level, layout), layout)
    usual = _unsuspected(evidence, causes)
    scale = Scale(evidence, usual, rules)
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
    """Who is slow, by all `results` so far: the tournament's (step 0) and the retests' (steps from 1).

    `suspects` are whom to measure again (:func:`ncclprobe.localise.pairs.retests.plan`). `expected_GBps` is what a
    healthy pair reaches; without it nobody can say that everything is slow. `case` is what the tournament's results
    make (:func:`opened`), for whoever asks again after each step.
    """
    layout, rules = layout or Layout(), rules or Rules()
    again = [result for result in results if result.step]
    case = case or opened([result for result in results if not result.step], layout, rules)
    effects, suspected = case.effects, case.suspected
    weights = _explain(_fair(again, suspected, case), case) if again else suspected
    decided = {cause: _decide(weight, cause, case) for cause, weight in weights.items()}
    return Localisation(
        culprits=tuple(_culprit(cause, weights[cause]) for cause, how in decided.items() if how == "blamed"),
        suspects=tuple(_culprit(cause, weights[cause]) for cause, how in decided.items() if how == "suspected"),
        cleared=tuple(cause for cause in {**suspected, **weights} if decided.get(cause, "cleared") == "cleared"),
        lost=tuple(result for result in results if isinstance(result, Lost)),
        level=effects.level,
        everything=_everything(effects.level, expected_GBps, rules),
        tests=len(results),
        steps=max((result.step for result in again), default=0),
    )


def _entries(results: Iterable[Result], level: Mapping[Way, float], layout: Layout) -> list[Entry]:
    """Results as evidence. One on a way that the tournament never took says nothing."""
    entries = []
    for result in results:
        if isinstance(result, Lost):
            entries.append(Entry(result.src, result.dst, -math.inf, result.step))
        elif (usual := level.get(way(result, layout))) is not None:
            entries.append(Entry(result.src, result.dst, math.log(result.GBps / usual), result.step))
    return entries


def _explain(again: Sequence[Entry], case: Case) -> dict[Cause, Weight]:
    """What the tournament and the retests are best explained by, the likeliest first."""
    scale = Scale(book(again, case.layout, case.tournament), case.usual, case.rules)
    return scale.explain(case.candidates, scale.weigh_all(case.candidates, case.weighed))


def _unsuspected(evidence: Book, causes: Collection[Cause]) -> list[int]:
    """The places of the tournament's entries in which no suspected end takes part."""
    nodes = {cause.nodes[0] for cause in causes if cause.kind == "node"}
    ends = {(cause.nodes[0], cause.rail) for cause in causes if cause.kind == "rail"}

    def usual(end: End) -> bool:
        return end not in ends if ends else end.node not in nodes  # without rails to tell apart there are none of them

    return [place for place, entry in enumerate(evidence.entries) if usual(entry.src) and usual(entry.dst)]


def _fair(again: Sequence[Result], suspected: Collection[Cause], case: Case) -> list[Entry]:
    """The retests as evidence: beside what their controls reach, and without those whose partner fails its control."""
    evidence = book([Entry(r.src, r.dst, 0.0, r.step) for r in again], case.layout)
    about = {place for cause in suspected for place in evidence.covered(cause)}
    controls = [result for place, result in enumerate(again) if place not in about]
    rates: defaultdict[Way, list[float]] = defaultdict(list)
    for result in controls:
        if isinstance(result, Sample):
            rates[way(result, case.layout)].append(result.GBps)
    usual = {key: median_high(values) for key, values in rates.items() if len(values) >= _CONTROLS}
    level = {**case.effects.level, **usual}
    ends = {node for cause in suspected for node in cause.nodes}
    limit = math.log(case.rules.slow_ratio)
    failed = {
        (entry.step, end.node)
        for entry in _entries(controls, level, case.layout)
        for end in (entry.src, entry.dst)
        if entry.log_ratio < limit and end.node not in ends
    }
    kept = [r for r in again if failed.isdisjoint(((r.step, r.src.node), (r.step, r.dst.node)))]
    return _entries(kept, level, case.layout)


def _decide(weight: Weight, cause: Cause, case: Case) -> Literal["blamed", "suspected", "cleared"]:
    if weight.retests and weight.again <= 0:
        return "cleared"
    enough = min(case.rules.partners, case.nodes - 1) if cause.kind in ("node", "rail") else 1
    sure = weight.retests and weight.partners >= enough and weight.confidence >= case.rules.confidence
    return "blamed" if sure else "suspected"


def _culprit(cause: Cause, weight: Weight) -> Culprit:
    ratio = math.exp(weight.loss)
    return Culprit(cause, ratio, weight.confidence, weight.slow, weight.tests, weight.retests, weight.partners)


def _everything(level: Mapping[Way, float], expected_GBps: float | None, rules: Rules) -> bool:
    """Whether even the best of the ways that send in one direction stays below what was expected."""
    single = [usual for (_, both), usual in level.items() if not both]
    return bool(single) and expected_GBps is not None and max(single) < rules.slow_ratio * expected_GBps
