"""The cheapest localiser: every node's own collective at the same time, and each judged beside the others.

It needs no pair and no second round, and finds what is wrong inside a node before pairs would call it a network fault.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ncclprobe.localise.pairs.effects import modified_z, slow
from ncclprobe.localise.pairs.samples import Rules

FEWEST = 3
"""Of two that differ nobody knows which is wrong."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A node that is slow beside its peers: its `GBps` (1e9 bytes/s), the `ratio` to their median, its modified z."""

    node: str
    GBps: float
    ratio: float
    z: float


def peers(values_by_node: Mapping[str, float], rules: Rules | None = None) -> tuple[Straggler, ...]:
    """The nodes whose bandwidth (GB/s, of one collective at one size) is slow beside their peers, the slowest first.

    They are suspects, not culprits: one sample each. Nobody is suspected among fewer than FEWEST nodes.
    Raises ValueError for a value that is not above zero.
    """
    rules = rules or Rules()
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
