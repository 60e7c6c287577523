"""What all nodes of a fleet have lost together: no single node's loss, and still one that its owner has to know of.

A number is lost by all if its daily mean over the fleet fell by LEAST between some days and those after, is not back,
and most nodes that were measured before and after have lost at least half of that themselves.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from ncclprobe.model.fleet import SharedLoss

LEAST = 0.05
"""A share: what fewer than some nodes lose by chance on the same days."""
NODES, BEFORE, AFTER, MOST = 3, 3, 2, 0.8
"""Nodes and days on either side of a change without which nothing is said, and which part of the nodes is all."""
_WINDOW = 14


def step(means: Sequence[tuple[int, float]]) -> int | None:
    """Return the day since which a number is lowest, of its mean on each day in their order; None: it is not lost."""
    best: tuple[float, int | None] = (math.log1p(-LEAST), None)
    for at in range(BEFORE, len(means) - AFTER + 1):
        before = median(value for _, value in means[max(at - _WINDOW, 0) : at])
        after = [value for _, value in means[at:]]
        lost = math.log(median(after[:_WINDOW]) / before)
        still = math.log(median(after[-BEFORE:]) / before)
        edge = math.log(means[at][1] / before)
        if max(still, edge) < best[0] / 2 and lost < best[0] - 1e-9:
            best = lost, means[at][0]
    return best[1]


def loss(name: str, unit: str, day: int, readings: Mapping[str, Sequence[tuple[int, float]]]) -> SharedLoss | None:
    """Return what most nodes have lost of a number since `day`, of whose nodes `readings` are (day, value)."""
    both: dict[str, tuple[float, float]] = {}
    for node, values in readings.items():
        before, after = ([value for at, value in values if (at < day) == early] for early in (True, False))
        if before and after:
            both[node] = median(before[-_WINDOW:]), median(after)
    if len(both) < NODES:
        return None
    was, is_ = (median(each[side] for each in both.values()) for side in (0, 1))
    lost = math.log(is_ / was)
    losers = tuple(sorted(node for node, (old, new) in both.items() if math.log(new / old) <= lost / 2))
    if lost > math.log1p(-LEAST) or len(losers) < MOST * len(both):
        return None
    return SharedLoss(name, unit, losers, len(both), was, is_, day)


def change(machines: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> tuple[str, ...]:
    """Return in words what changed on most of these machines, each before and after."""
    found = Counter(
        f"{name} changed {old[name]} → {new[name]}"
        for old, new in machines
        for name in old.keys() & new.keys()
        if old[name] != new[name]
    )
    return tuple(words for words, count in found.most_common() if count > len(machines) / 2)
