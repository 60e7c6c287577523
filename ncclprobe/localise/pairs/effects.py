"""Fit how much each end, and each pair beyond its ends, deviates from the usual: median polish on log bandwidth.

log(sample) = level + effect of the source's way out + effect of the destination's way in + residual, fitted by medians
(J. W. Tukey, Exploratory Data Analysis, 1977, ch. 11), so that a bad minority does not affect the others. A median
between two samples is the higher one: an end that is fast with half of its partners is not slow. Pairs that send one
way
and pairs that send both ways at once have separate levels.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_high
from typing import TypeVar

from ncclprobe.localise.pairs.samples import End, Rules, Sample
from ncclprobe.model.values import Struct, grouped

K = TypeVar("K")
Way = bool
"""Whether a pair sent both ways at once."""

_SWEEPS = 10
_SETTLED = 1e-4
_MAD_TO_SIGMA = 0.6745
_ENOUGH = 3
_NOISIER = 3.0


class Effects(Struct, frozen=True):
    """Log ratios to the usual: of each end's way `out` and `into` it, and of each sample beyond its ends.

    `level`: usual rate by way, in GB/s (1e9 bytes/s); `residual` has the order of the samples.
    """

    level: Mapping[Way, float]
    out: Mapping[End, float]
    into: Mapping[End, float]
    residual: tuple[float, ...]


def levels(samples: Iterable[Sample]) -> dict[Way, float]:
    """Return the usual rate of each way, GB/s: the median over nodes of each node's median.

    Counting nodes rather than samples keeps the level right if fewer than half of the nodes are bad, although most
    samples
    then touch a bad one.
    """
    by_node: defaultdict[Way, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for end in (sample.src, sample.dst):
            by_node[sample.both][end.node].append(sample.GBps)
    return {way: median_high(map(median_high, nodes.values())) for way, nodes in by_node.items()}


def polish(samples: Sequence[Sample]) -> Effects:
    """Fit the samples of a round-robin. Without samples everything is empty.

    If some ways are much noisier than others (both directions), only the quiet ones fit the ends.
    """
    level = levels(samples)
    ways = [sample.both for sample in samples]
    ratios = [math.log(sample.GBps / level[key]) for sample, key in zip(samples, ways, strict=True)]
    places = range(len(samples))
    quiet = _quiet(samples, ratios, ways)
    out, into = _fit(samples, ratios, places, 1)
    if len(quiet) < len(set(ways)):
        by_quiet = _fit(samples, ratios, [place for place in places if ways[place] in quiet], _ENOUGH)
        out, into = out | by_quiet[0], into | by_quiet[1]
    return Effects(level, out, into, tuple(_residuals(samples, ratios, out, into, places)))


def _fit(
    samples: Sequence[Sample], ratios: Sequence[float], places: Iterable[int], fewest: int
) -> tuple[dict[End, float], dict[End, float]]:
    """Return the out and in effects of ends with at least `fewest` of the samples at `places`."""
    sources, targets = defaultdict[End, list[int]](list), defaultdict[End, list[int]](list)
    for place in places:
        sources[samples[place].src].append(place)
        targets[samples[place].dst].append(place)
    out, into = dict.fromkeys(sources, 0.0), dict.fromkeys(targets, 0.0)
    for _ in range(_SWEEPS):
        before = (out, into)
        out = _centre({end: median_high(ratios[n] - into[samples[n].dst] for n in at) for end, at in sources.items()})
        into = _centre({end: median_high(ratios[n] - out[samples[n].src] for n in at) for end, at in targets.items()})
        if _change(before[0], out) < _SETTLED and _change(before[1], into) < _SETTLED:
            break
    out = {end: effect for end, effect in out.items() if len(sources[end]) >= fewest}
    return out, {end: effect for end, effect in into.items() if len(targets[end]) >= fewest}


def _residuals(
    samples: Sequence[Sample],
    ratios: Sequence[float],
    out: Mapping[End, float],
    into: Mapping[End, float],
    places: Iterable[int],
) -> list[float]:
    return [ratios[n] - out[samples[n].src] - into[samples[n].dst] for n in places]


def _quiet(samples: Sequence[Sample], ratios: Sequence[float], ways: Sequence[Way]) -> set[Way]:
    """Return the ways, each fitted alone, whose residual spread is at most a few times the least."""
    by_way = grouped((key, place) for place, key in enumerate(ways))
    if len(by_way) < 2:
        return set(by_way)
    spread = {}
    for key, places in by_way.items():
        if len(places) >= _ENOUGH * len({samples[place].src for place in places}):
            residual = _residuals(samples, ratios, *_fit(samples, ratios, places, 1), places)
            spread[key] = median(map(abs, residual))
    most = max(_NOISIER * min(spread.values(), default=0.0), _SETTLED)
    return {key for key, value in spread.items() if value <= most} or set(by_way)


def _centre(effects: Mapping[End, float]) -> dict[End, float]:
    """Shift `effects` so that the typical end is at zero: what all ends share belongs to the level."""
    middle = median_high(effects.values()) if effects else 0.0
    return {end: effect - middle for end, effect in effects.items()}


def _change(before: Mapping[End, float], after: Mapping[End, float]) -> float:
    return max((abs(before[end] - after[end]) for end in after), default=0.0)


def modified_z(logs: Mapping[K, float], floor: float) -> dict[K, float]:
    """Return each log's distance from their median: 0.6745 (x - median) / MAD, MAD no less than `floor`."""
    if not logs:
        return {}
    middle = median(logs.values())
    spread = max(median(abs(value - middle) for value in logs.values()), floor)
    return {key: _MAD_TO_SIGMA * (value - middle) / spread for key, value in logs.items()}


def slow_residuals(samples: Sequence[Sample], effects: Effects, rules: Rules) -> list[int]:
    """Return the positions of samples that are slow beyond their ends, each compared within its own way."""
    by_way: defaultdict[Way, dict[int, float]] = defaultdict(dict)
    for place, sample in enumerate(samples):
        by_way[sample.both][place] = effects.residual[place]
    return [place for logs in by_way.values() for place in slow(logs, rules)]


def slow(logs: Mapping[K, float], rules: Rules) -> dict[K, float]:
    """Return the `logs` (log ratios to the usual) that are slow by both rules."""
    limit = math.log(rules.slow_ratio)
    scores = modified_z(logs, rules.mad_floor)
    return {key: value for key, value in logs.items() if value < limit and scores[key] < rules.slow_z}


def apart(samples: Iterable[Sample], rules: Rules) -> set[End]:
    """Return the ends whose every sample out, or every sample in, is far below all samples without their node.

    The effects of few nodes on a busy machine differ so much that none is an outlier, however steady and slow one of
    them is;
    this rule needs no spread. Samples of one way are compared, and such an end has the slowest of them.
    """
    by_way = grouped((sample.both, sample) for sample in samples)
    found = set()
    for those in by_way.values():
        slowest = min(those, key=lambda sample: sample.GBps)
        for end in (slowest.src, slowest.dst):
            least = min((s.GBps for s in those if end.node not in (s.src.node, s.dst.node)), default=0.0)
            for its in ([s.GBps for s in those if s.src == end], [s.GBps for s in those if s.dst == end]):
                if len(its) >= rules.partners and max(its) < rules.apart_ratio * least:
                    found.add(end)
    return found
