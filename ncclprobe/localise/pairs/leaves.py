"""Find the leaves of a fabric that does not tell them: nodes that are fast with each other and slow with the others.

The connected components of the fast pairs come first. Where a rate splits the nodes into groups so that nearly all
pairs within a group are faster and nearly all pairs between groups slower, the groups hang on switches of their own: no
node of them is at fault for what lies between. A slow node is fast with no partner, so it never makes a group.

Where most of a fabric is fast, a leaf whose uplinks are slow is seen by its nodes: they are equally slow, and not with
each other. Of a large fleet few of them have met; they meet once more (:func:`meetings`) before any is suspected.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from ncclprobe.localise.pairs.effects import Effects
from ncclprobe.localise.pairs.samples import Layout, Result, Rules, Sample
from ncclprobe.model.values import Struct, grouped

NodePair = tuple[str, str]
Groups = tuple[frozenset[str], ...]

_FEWEST = 6
"""Of fewer nodes noise alone splits some fleets: the fastest two pairs of four have disjoint ends one time in five."""
_MOST_GAPS = 16
"""Splits are tried at so many of the widest gaps between the rates at which groups merge."""
_GROUPED = 0.75
"""At least this share of the nodes is in a group of two or more."""
_PURE = 0.85
"""At least this share of the pairs between groups, and of those within each group, lie on their own side."""
FEWEST_EQUAL, SAME_LOSS = 3, math.log(1.04)
"""So many nodes that lose the same share, within this ratio, have something in common."""
_AS_FAST = 0.25
"""Every group is as fast inside as the others, up to this share of the split: of two slow nodes none is."""
_LEAST, _NOISE = math.log(1.02), 4.5
"""Groups this close in rate need no levels of their own; nor those within so many median deviations of their like."""


class Split(Struct, frozen=True):
    """Groups of nodes, the pairs within one of them and the pairs of different ones by their median."""

    groups: Groups
    near: float
    far: float


def measured_layout(samples: Iterable[Sample], layout: Layout) -> Layout:
    """Return `layout`; where it tells no leaves, with those that the samples of a round-robin show."""
    if layout.leaf:
        return layout
    logs = _pair_logs(samples)
    split = find_split(logs)
    if split is None:
        return layout
    groups = [group for group in split.groups if len(group) > 1]
    single = [node for group in split.groups if len(group) == 1 for node in group]
    leaf = {node: number for number, group in enumerate(groups) for node in group}
    leaf |= {node: number for node in single if (number := _nearest(node, groups, logs, split)) is not None}
    names = {number: leaf_name([node for node in leaf if leaf[node] == number]) for number in leaf.values()}
    return Layout({node: names[number] for node, number in leaf.items()}, layout.rails, measured=True)


def equally_slow_nodes(effects: Effects, rules: Rules) -> tuple[str, ...]:
    """Return the nodes, FEWEST_EQUAL or more, that are slow both ways by one share: faults rarely agree, leaves do."""
    both = effects.out.keys() & effects.into.keys()
    ways = grouped((end.node, max(effects.out[end], effects.into[end])) for end in both)
    slow = sorted((median(logs), node) for node, logs in ways.items() if median(logs) < math.log(rules.slow_ratio))
    best: list[str] = []
    for place, (log, _) in enumerate(slow):
        same = [node for other, node in slow[place:] if other - log <= max(SAME_LOSS, -log / 2)]
        best = max(best, same, key=len)
    return tuple(best) if len(best) >= FEWEST_EQUAL else ()


def meetings(nodes: Sequence[str], results: Iterable[Result]) -> tuple[tuple[NodePair, ...], ...]:
    """Return two rounds in which `nodes` meet their neighbours in this order, or none where enough of them have met."""
    met = {frozenset((each.src.node, each.dst.node)) for each in results}
    if 2 * sum(pair <= {*nodes} for pair in met) >= len(nodes):
        return ()
    return tuple(tuple(zip(nodes[start::2], nodes[start + 1 :: 2], strict=False)) for start in (0, 1))


def leaf_of_equally_slow(nodes: Collection[str], samples: Iterable[Sample], layout: Layout) -> Layout:
    """Return `layout` with a leaf of `nodes`, if these are fast with each other, and one of all others."""
    logs = _pair_logs(samples)
    within = [log for pair, log in logs.items() if len({*pair} & {*nodes}) == 2]
    across = [log for pair, log in logs.items() if len({*pair} & {*nodes}) == 1]
    others = [log for pair, log in logs.items() if {*pair}.isdisjoint(nodes)]
    if layout.leaf or 2 * len(within) < len(nodes) or not across or not others:
        return layout
    if median(within) < (median(across) + median(others)) / 2:
        return layout
    rest = {node for pair in logs for node in pair} - {*nodes}
    leaf = {node: leaf_name(group) for group in (nodes, rest) for node in group}
    return Layout(leaf, layout.rails, measured=True)


def leaf_name(nodes: Iterable[str]) -> str:
    """Return what a leaf is called of which only the nodes are known: ``n1 (+8)``."""
    first, *others = sorted(nodes)
    return f"{first} (+{len(others)})" if others else first


def find_split(logs: Mapping[NodePair, float]) -> Split | None:
    """Return the split of the nodes into groups that the widest gap of rates makes, or None.

    `logs` are logarithms of the pairs' rates.
    """
    nodes = {node for pair in logs for node in pair}
    if len(nodes) < _FEWEST:
        return None
    merges = _merges(logs)
    gaps = sorted(((after - log, log) for log, after in pairwise(merges)))[:_MOST_GAPS]
    splits = (_judge(_groups_above(log, logs), logs, len(nodes)) for _, log in gaps)
    return next(filter(None, splits), None)


def _nearest(node: str, groups: Sequence[frozenset[str]], logs: Mapping[NodePair, float], split: Split) -> int | None:
    """Return the group that `node`, fast with none, is faster with than with the others by half a split, or None."""
    rates: dict[int, list[float]] = {}
    for number, group in enumerate(groups):
        pairs = ((min(node, other), max(node, other)) for other in group)
        rates[number] = [logs[pair] for pair in pairs if pair in logs]
    order = sorted(((median(those), number) for number, those in rates.items() if those), reverse=True)
    if len(order) < 2 or order[0][0] - order[1][0] < (split.near - split.far) / 2:
        return None
    return order[0][1]


def _pair_logs(samples: Iterable[Sample]) -> dict[NodePair, float]:
    """Return the median of each pair of nodes, of all rails and both directions, while one sends at a time."""
    ends = ((sorted((each.src.node, each.dst.node)), each.GBps) for each in samples if not each.both)
    rates = grouped(((one, other), math.log(GBps)) for (one, other), GBps in ends)
    return {pair: median(those) for pair, those in rates.items()}


def _merges(logs: Mapping[NodePair, float]) -> list[float]:
    """Return each rate at which two components of the faster pairs merge, fastest first."""
    group = {node: frozenset((node,)) for pair in logs for node in pair}
    found = []
    for one, other in sorted(logs, key=lambda pair: -logs[pair]):
        if group[one] is not group[other]:
            both = group[one] | group[other]
            group.update(dict.fromkeys(both, both))
            found.append(logs[one, other])
    return found


def _groups_above(least: float, logs: Mapping[NodePair, float]) -> Groups:
    """Return the components of the pairs that are at least so fast."""
    group = {node: frozenset((node,)) for pair in logs for node in pair}
    for (one, other), log in logs.items():
        if log >= least and group[one] is not group[other]:
            both = group[one] | group[other]
            group.update(dict.fromkeys(both, both))
    return tuple(dict.fromkeys(group.values()))


def _judge(groups: Groups, logs: Mapping[NodePair, float], nodes: int) -> Split | None:
    """Return the split that `groups` make if it is clear: several, most nodes in one, and few pairs on a wrong side."""
    several = [group for group in groups if len(group) > 1]
    if len(several) < 2 or sum(map(len, several)) < _GROUPED * nodes:
        return None
    number = {node: place for place, group in enumerate(several) for node in group}
    within: defaultdict[int, list[float]] = defaultdict(list)
    far: list[float] = []
    for (one, other), log in logs.items():
        if one in number and other in number:
            (within[number[one]] if number[one] == number[other] else far).append(log)
    near = [log for those in within.values() for log in those]
    if not far or len(near) < nodes:
        return None
    usual = median(near)
    spread = median(abs(log - usual) for log in near)
    if usual - median(far) < max(_LEAST, _NOISE * spread):
        return None
    middle = (usual + median(far)) / 2
    least = usual - _AS_FAST * (usual - median(far))
    fast = all(median(those) >= least and _share([log > middle for log in those]) >= _PURE for those in within.values())
    slow = _share([log < middle for log in far]) >= _PURE
    return Split(groups, usual, median(far)) if fast and slow else None


def _share(those: Sequence[bool]) -> float:
    return sum(those) / len(those)
