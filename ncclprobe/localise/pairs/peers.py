"""Compare every node's own collective, run at the same time, with those of the other nodes: the cheapest search.

It needs no pair and no second round, and finds what is wrong inside a node before pairs would call it a network fault.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from ncclprobe.localise.pairs.effects import modified_z, slow
from ncclprobe.localise.pairs.samples import Rules
from ncclprobe.model.values import Struct

FEWEST = 3
"""Of two nodes that differ it is unknown which is wrong."""
TURNS = 3
"""A node is named that is slow in each of so many turns."""


class Straggler(Struct, frozen=True):
    """A node slower than its peers: its `GBps` (1e9 bytes/s), the `ratio` to their median, its modified z."""

    node: str
    GBps: float
    ratio: float
    z: float


def peers(values_by_node: Mapping[str, float], rules: Rules | None = None) -> tuple[Straggler, ...]:
    """Return the nodes whose bandwidth (GB/s, of one collective at one size) is slow, the slowest first.

    They are suspects, not confirmed: one sample each. No node is suspected among fewer than FEWEST nodes. Raises
    ValueError for a value that is not above zero.
    """
    rules = (rules or Rules()).inside()
    for node, value in values_by_node.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{node}: {value} GB/s is no rate; a node that did not answer is left out")
    if len(values_by_node) < FEWEST:
        return ()
    usual = median(values_by_node.values())
    logs = {node: math.log(value / usual) for node, value in values_by_node.items()}
    scores = modified_z(logs, rules.mad_floor)
    found = sorted(slow(logs, rules), key=lambda node: logs[node])
    return tuple(Straggler(node, values_by_node[node], math.exp(logs[node]), scores[node]) for node in found)


def slow_each_turn(
    turns: Sequence[Mapping[str, float]], rules: Rules | None = None
) -> dict[str, tuple[Straggler, ...]]:
    """Return the nodes that were slow in each of `turns` so far, GB/s by node, with what was seen in each."""
    slow: dict[str, tuple[Straggler, ...]] = {}
    for number, values in enumerate(turns):
        found = peers(values, rules)
        slow = {each.node: (*slow.get(each.node, ()), each) for each in found if number == 0 or each.node in slow}
    return slow
