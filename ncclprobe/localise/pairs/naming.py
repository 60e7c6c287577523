"""Name few parts rather than many: a node instead of its bad pairs, and no node where several are slow by design."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from ncclprobe.localise.pairs.causes import Cause
from ncclprobe.localise.pairs.leaves import FEWEST_EQUAL, SAME_LOSS, leaf_name
from ncclprobe.localise.pairs.likelihood import Weight
from ncclprobe.model.values import replace

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
