"""Samples of pairs, and the rules to judge them."""

import math
from typing import NamedTuple

from ncclprobe.model.values import Struct, replace


class End(NamedTuple):
    """One end of a pair: the rank of `node` that uses NIC number `rail`.

    If rails are unknown each rank is an End with rail 0. Inside one node the devices take the place of nodes.
    """

    node: str
    rail: int = 0

    def __str__(self) -> str:
        """Return the node, with its rail if that is not the first."""
        return f"{self.node} rail {self.rail}" if self.rail else self.node


class Sample(Struct, frozen=True):
    """The rate from `src` to `dst`: the median of several transfers (five or more), as `GBps` of 1e9 bytes/s.

    `both`: the other direction ran at the same time. `step` is 0 in the round-robin; retests count from 1. Raises
    ValueError
    for a rate that is not positive (a pair that carried nothing is Lost) and for two ends of one node.
    """

    src: End
    dst: End
    GBps: float
    both: bool = False
    step: int = 0

    def __post_init__(self) -> None:
        """Refuse anything but a measurement between two nodes."""
        if not (self.GBps > 0 and math.isfinite(self.GBps)):
            raise ValueError(f"{self.src} to {self.dst}: {self.GBps} GB/s is not a rate; a dead pair is Lost")
        _two_nodes(self.src, self.dst)


class Lost(Struct, frozen=True):
    """A pair that hung or broke: nothing arrived from `src` at `dst` before the deadline; `why` describes it."""

    src: End
    dst: End
    why: str = "timed out"
    step: int = 0

    def __post_init__(self) -> None:
        """Refuse two ends of one node."""
        _two_nodes(self.src, self.dst)


Result = Sample | Lost


class Rules(Struct, frozen=True):
    """When a sample counts as slow, and when a part is blamed. Each number is open to a site's own experience.

    slow_ratio, slow_z: an effect is slow below this ratio to its peers *and* below this modified z (0.6745 (x - median)
        / MAD; -3.5 is the cut of Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993). A part is blamed for a
        loss that is larger than the noise of repeated measurements by the same z.
    mad_floor: no fleet counts as quieter than this relative MAD, or its smallest wrinkle would be an outlier.
    apart_ratio: an end is suspected as well if its fastest sample is below this ratio to the slowest of the others.
    uplink_ratio: the path between nodes and all others is slow below this ratio: to cross a spine costs up to a tenth
        in healthy fleets.
    faults: how many faults of each kind are expected per fleet before anything is measured.
    confidence: the probability a fault must have to be blamed. In a healthy fleet of independent samples some fault of
        one kind then gets it in at most faults x (1 - confidence) / confidence of all cases (Markov's inequality).
    hit: how often a faulty part shows its fault.
    floor: no sample counts for more than if one in 1 / floor healthy ones were as slow; a fleet never proves more.
    inside_ratio, inside_floor: the same as slow_ratio and mad_floor inside nodes, where positions differ by design.
    partners: a node is blamed by no fewer different partners (all, if there are fewer).
    steps, most_suspects: at most so many rounds of retests, each for so many suspects.
    """

    slow_ratio: float = 0.95
    slow_z: float = -3.5
    mad_floor: float = 0.005
    apart_ratio: float = 0.5
    uplink_ratio: float = 0.85
    faults: float = 0.1
    confidence: float = 0.99
    hit: float = 0.9
    floor: float = 0.01
    partners: int = 3
    steps: int = 6
    most_suspects: int = 32
    inside_ratio: float = 0.85
    inside_floor: float = 0.02

    def inside(self) -> "Rules":
        """Return the rules for measurements inside nodes."""
        return replace(self, slow_ratio=self.inside_ratio, mad_floor=self.inside_floor)


def _two_nodes(one: End, other: End) -> None:
    if one.node == other.node:
        raise ValueError(f"{one} and {other} are of one node: pairs inside a node are judged among themselves")
