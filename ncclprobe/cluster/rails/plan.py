"""Plan rail tests: how many rounds, how many bytes, how long, decided before any node connects.

In a round each node meets one other: the round-robin of :mod:`ncclprobe.localise.pairs.rounds`, with a bounded number
of
node pairs at once (a *wave*), all of their rails together. Before the first round, each rail is tested alone. Rounds,
waves and bytes follow from the budget, so that a run puts a known load on the fabric.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from ncclprobe.localise.pairs.rounds import AT_ONCE
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.rails import RailDirection, RailTest
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct, grouped, replace

ALL_ROUNDS = 16
"""Up to so many nodes every pair meets."""
FEWEST_ROUNDS = 2
"""With fewer partners, the node at fault cannot be distinguished from the one that it met."""
_WAVE_S = 1.2
"""One wave besides its writes: children start, open ports, connect, exchange small messages."""
_WRITE_S = 0.05
"""Duration of one direction: a port sends what it carries in that time, within NIC_BYTES."""
_UNKNOWN_GBPS = 100.0
"""Assumed rate of a port if unknown."""
_MOST_GBPS = 10_000.0
"""Upper bound of a port's rate, whatever a node reports."""
MESSAGE_BYTES = 1 << 20
_FEWEST_MESSAGES = 8
ROUND_TRIPS = 200
_BOTH: tuple[RailDirection, ...] = ("out", "in", "both")
_ONE_WAY: tuple[RailDirection, ...] = ("out", "in")
_CROSS = RailTest(round_trips=20, message_bytes=64 << 10, messages=4, directions=_ONE_WAY)


class Budget(Struct, frozen=True):
    """Limits of a run: `seconds` for its rounds, `nic_bytes` sent, and as many received, per port, `at_once` node
    pairs,
    `patience_s` for one step of one test.
    """

    seconds: float = 40.0
    nic_bytes: int = 64 << 30
    at_once: int = AT_ONCE
    patience_s: float = 5.0


class Job(Struct, frozen=True):
    """One test of one rail: from `one`, which leads, to `other`; `together` of them run between the two nodes."""

    one: End
    other: End
    test: RailTest
    together: int


Wave = tuple[Job, ...]


class RailPlan(Struct, frozen=True):
    """The size of a run over `nodes` with `rails` each: `rounds` of `waves`, and `alone` waves before the first.

    `messages` of MESSAGE_BYTES go each way in a test. `cross`: rails of different numbers are tested too.
    """

    nodes: int
    rails: int
    rounds: int
    waves: int
    alone: int
    messages: int
    cross: bool
    budget: Budget
    rate_gbps: float

    @property
    def seconds(self) -> float:
        """Duration on a healthy fleet, without retests."""
        return self.rounds * self.waves * self._wave_s(3) + self.alone * self._wave_s(2) + self.cross * _WAVE_S

    @property
    def nic_bytes(self) -> int:
        """Maximum bytes that each port sends, and receives, without retests."""
        return (2 * self.rounds + bool(self.alone)) * self.messages * MESSAGE_BYTES

    @property
    def all_pairs(self) -> bool:
        """Whether every node meets every other."""
        return self.rounds >= self.nodes - 1

    def _wave_s(self, directions: int) -> float:
        return _WAVE_S + directions * self.messages * MESSAGE_BYTES * 8e-9 / self.rate_gbps

    def test(self, *, alone: bool = False) -> RailTest:
        """Return the steps of both ends: one way, the other, and both at once unless rails run alone."""
        return RailTest(
            round_trips=ROUND_TRIPS,
            message_bytes=MESSAGE_BYTES,
            messages=self.messages,
            directions=_ONE_WAY if alone else _BOTH,
            seconds=self.budget.patience_s,
            setup_seconds=self.budget.patience_s,
        )


def plan_rails(nodes: int, rails: int, rate_gbps: float | None, budget: Budget, *, cross: bool = False) -> RailPlan:
    """Return the largest plan within `budget` for `nodes` nodes with at most `rails` rails each.

    Every pair meets up to ALL_ROUNDS nodes; beyond, as many rounds as there is time for, at least FEWEST_ROUNDS.
    """
    rate = min(rate_gbps or _UNKNOWN_GBPS, _MOST_GBPS)
    waves = max(1, math.ceil(nodes // 2 / budget.at_once))
    there_are = max(1, nodes - 1 + nodes % 2)
    alone = rails * waves if rails > 1 else 0
    size = RailPlan(nodes, rails, there_are, waves, alone, 0, cross, budget, rate)
    if nodes > ALL_ROUNDS:
        left_s = budget.seconds - size.alone * _WAVE_S
        if left_s < FEWEST_ROUNDS * waves * _WAVE_S:
            size, left_s = replace(size, alone=0), budget.seconds
        size = replace(size, rounds=min(there_are, max(FEWEST_ROUNDS, int(left_s / (waves * _WAVE_S)))))
    wanted = math.ceil(rate * 1e9 / 8 * _WRITE_S / MESSAGE_BYTES)
    allowed = budget.nic_bytes // ((2 * size.rounds + bool(size.alone)) * MESSAGE_BYTES)
    return replace(size, messages=max(_FEWEST_MESSAGES, min(wanted, allowed)))


def waves(pairs: Sequence[tuple[End, End]], plan: RailPlan, *, alone: bool = False) -> Iterator[Wave]:
    """Yield the tests of one round, at most `at_once` node pairs in each; `alone`: one rail of a node at a time."""
    by_nodes = grouped(((one.node, other.node), (one, other)) for one, other in pairs)
    matches = list(by_nodes.values())
    test = plan.test(alone=alone)
    for start in range(0, len(matches), plan.budget.at_once):
        wave = matches[start : start + plan.budget.at_once]
        if not alone:
            yield tuple(Job(*ends, test, len(match)) for match in wave for ends in match)
            continue
        for place in range(max(map(len, wave))):
            yield tuple(Job(*match[place], test, 1) for match in wave if place < len(match))


def cross_wave(rails: Mapping[str, Sequence[int]], pairs: Sequence[tuple[str, str]], plan: RailPlan) -> Wave:
    """Return a test of each rail with the other node's next rail: for connectivity, not for speed."""
    jobs, test = [], replace(_CROSS, seconds=plan.budget.patience_s, setup_seconds=plan.budget.patience_s)
    for pair in pairs:
        one, other = sorted(pair, key=lambda node: -len(rails[node]))  # so that each rail has its turn
        for place, rail in enumerate(rails[one]):
            next_one = rails[other][(place + 1) % len(rails[other])]
            if next_one != rail:
                jobs.append(Job(End(one, rail), End(other, next_one), test, len(rails[one])))
    return tuple(jobs)


def describe_plan(plan: RailPlan) -> str:
    """Return what the plan asks of the fabric, as a line."""
    met = "every pair of nodes" if plan.all_pairs else f"{plan.rounds} partners for each node"
    return (
        f"{plan.nodes} nodes with {plural(plan.rails, 'rail')} of {plan.rate_gbps:g} Gb/s: {met}, "
        f"{plural(plan.rounds, 'round')} of {plan.waves} x "
        f"{plan.budget.at_once} pairs at once, {plan.messages} MiB each way; each port sends and receives at most "
        f"{plan.nic_bytes / (1 << 30):.3g} GiB; about {plan.seconds:.0f} s if all is well"
    )


def fastest(rates: Collection[float]) -> float | None:
    """Return the rate for planning bytes: the fastest port's; None if none is known."""
    return max((rate for rate in rates if rate > 0), default=None)
