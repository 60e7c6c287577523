"""One fleet searched, and many: what was planted, what was named, who was blamed for it without reason.

`Trial` is a simulated fleet, `Again` a recorded one. The table of cases is in test_trials.py.
"""

import random
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from fleets.fabric import Fabric
from fleets.faults import Fault, plant
from fleets.fleet import NOISES, Draw, Fleet, Recorded
from fleets.recorded import RecordedSet, Replay, recorded_sets
from ncclprobe.localise.pairs.causes import Cause, Direction
from ncclprobe.localise.pairs.rounds import AT_ONCE
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.pairs.suspects import localise_slowness, many, round_robin
from ncclprobe.model.values import Struct

PER_LEAF = {8: 4, 17: 9, 64: 8, 256: 16, 1024: 32}
UNDER_LOAD = ("leaf", "uplink", "oversubscribed")
ECMP, CROSSING, OVERSUBSCRIBED, BUILDS = "ecmp", "crossing", "oversubscribed", "builds"
_CONTENDED = "cluster00 all_to_all 8"
"""Not a noise for other fleets: its uplinks are crowded, which is a fault of its own."""


class Trial(Struct, frozen=True):
    """One simulated fleet: how large, whose noise, what loses which share, from which seed.

    noise: a name of NOISES, or a cluster, whose sets take turns. kind: a kind of fault; `dead`, a dead pair and a slow
    node; empty, nothing. `fabric`: ``ecmp``, flows are hashed to uplinks; ``crossing``, leaves cost a tenth by design;
    ``oversubscribed``, uplinks carry a quarter; ``builds``, a third of the nodes has NICs of half the rate.
    """

    nodes: int
    noise: str
    kind: str = ""
    loss: float = 0.0
    seed: int = 0
    count: int = 1
    fabric: str = ""


class Outcome(Struct, frozen=True):
    """What became of it: faults planted, named, placed (the right node or leaf under another name); innocent causes
    that were blamed, in words; how many rounds it took, and how long."""

    planted: int
    named: int
    placed: int
    innocent: tuple[str, ...]
    retests: int
    seconds: float


class Tally(Struct, frozen=True):
    """The sums over fleets; `wrong` counts those in which anything innocent was blamed."""

    fleets: int
    planted: int
    named: int
    placed: int
    wrong: int
    retests: int
    seconds: float


def fabric_of(trial: Trial) -> Fabric:
    """Two rails; leaves as in the table, else a quarter of the nodes each."""
    per_leaf = PER_LEAF.get(trial.nodes, max(2, trial.nodes // 4))
    crowded = 4.0 if trial.fabric == OVERSUBSCRIBED else 1.0
    ecmp = trial.fabric == ECMP or trial.kind == "link"
    return Fabric(trial.nodes, per_leaf, rails=2, ecmp=ecmp, oversubscription=crowded)


def faults_of(trial: Trial, fabric: Fabric) -> tuple[Fault, ...]:
    """What the seed plants. A pair is one of those that the round-robin measures."""
    draw, left = random.Random(trial.seed), 1 - trial.loss
    if trial.fabric == BUILDS:
        return tuple(Fault("node", 0.5, (node,)) for node in fabric.names[: max(3, fabric.nodes // 3)])
    if trial.kind == "dead":
        [dead, slow] = [*_played(1, 0.0, fabric, draw), *plant("node", 1, left, fabric, draw)]
        return (dead, slow)
    if trial.kind == "pair":
        return _played(trial.count, left, fabric, draw)
    return plant(trial.kind, trial.count, left, fabric, draw) if trial.kind else ()


def _played(count: int, left: float, fabric: Fabric, draw: random.Random) -> tuple[Fault, ...]:
    rounds = list(round_robin({node: range(fabric.rails) for node in fabric.names}))
    pairs = [draw.choice(draw.choice(rounds)) for _ in range(count)]
    return tuple(Fault("pair", left, (one.node, other.node), one.rail) for one, other in pairs)


def noise_of(trial: Trial) -> Draw:
    """The noise that this seed has."""
    if trial.noise in NOISES:
        return NOISES[trial.noise]
    sets = [name for name in recorded_sets() if name.startswith(trial.noise) and name != _CONTENDED]
    return Recorded(recorded_sets()[sets[trial.seed % len(sets)]])


def play(trial: Trial) -> Outcome:
    """Search one simulated fleet, of which no leaf is told."""
    fabric = fabric_of(trial)
    planted = faults_of(trial, fabric)
    at_once = fabric.nodes if {trial.kind, trial.fabric} & {*UNDER_LOAD} else AT_ONCE
    crossing = 0.9 if trial.fabric == CROSSING else 1.0
    fleet = Fleet(fabric, noise_of(trial), planted, trial.seed, at_once, crossing)
    started = time.process_time()
    found = localise_slowness(fleet.rails, fleet.measure)
    seconds = time.process_time() - started
    causes = [suspect.cause for suspect in found.confirmed]
    counted = () if trial.fabric == BUILDS else planted
    named = sum(any(fault.named_by(cause, fabric) for cause in causes) for fault in counted)
    placed = sum(any(fault.touches(cause, fabric) for cause in causes) for fault in counted)
    innocent = [str(cause) for cause in causes if not any(fault.touches(cause, fabric) for fault in planted)]
    return Outcome(len(counted), named, placed, tuple(innocent), fleet.asked["retests"], seconds)


class Again(Struct, frozen=True):
    """A recorded set, with a fault at the nodes with these numbers (of the order of their names).

    kind: `node`, one or two; `out`, what the node sends; `pair`; `dead`, the pair of the first two, and the third is
    slow; empty, nothing.
    """

    recorded: str
    kind: str = ""
    loss: float = 0.0
    at: tuple[int, ...] = ()
    seed: int = 0


def replay(again: Again) -> Outcome:
    """Search one recorded fleet."""
    recorded = recorded_sets()[again.recorded]
    nodes = [recorded.nodes[number % len(recorded.nodes)] for number in again.at]
    fleet = Replay(recorded, partial(_left, again.kind, 1 - again.loss, nodes), again.seed)
    started = time.process_time()
    found = localise_slowness(fleet.rails, fleet.measure)
    seconds = time.process_time() - started
    expected = _expected(again.kind, nodes)
    causes = [suspect.cause for suspect in found.confirmed]
    guilty = {node for cause in expected for node in cause.nodes}
    innocent = [str(c) for c in causes if guilty.isdisjoint(c.nodes) and not _recorded_so(c, recorded)]
    placed = sum(any({*cause.nodes} & {*each.nodes} for each in causes) for cause in expected)
    return Outcome(len(expected), len(expected & {*causes}), placed, tuple(innocent), found.steps, seconds)


def _left(kind: str, left: float, nodes: Sequence[str], src: End, dst: End) -> float:
    both = {src.node, dst.node}
    if kind == "dead":
        return 0.0 if both == {*nodes[:2]} else left if nodes[2] in both else 1.0
    hit = {"out": src.node in nodes, "pair": both == {*nodes}}.get(kind, not both.isdisjoint(nodes))
    return left if hit else 1.0


def _expected(kind: str, nodes: Sequence[str]) -> set[Cause]:
    pair = Cause("pair", tuple(sorted(nodes[:2])))
    if kind == "dead":
        return {pair, Cause("node", (nodes[2],))}
    way: Direction = "out" if kind == "out" else "both"
    return {pair} if kind == "pair" else {Cause("node", (node,), direction=way) for node in nodes}


def _recorded_so(cause: Cause, recorded: RecordedSet) -> bool:
    """Whether what is blamed was slow as it was recorded: a pair, a node with many such, crowded uplinks."""
    sick = recorded.sick()
    if cause.kind == "pair":
        return not sick.isdisjoint({cause.nodes, cause.nodes[::-1]})
    [node] = cause.nodes or [""]
    return many(sum(node in pair for pair in sick), len(recorded.nodes) - 1)


def tally(seen: Iterable[Outcome]) -> Tally:
    """Add up."""
    kept: Collection[Outcome] = list(seen)
    return Tally(
        len(kept),
        sum(each.planted for each in kept),
        sum(each.named for each in kept),
        sum(each.placed for each in kept),
        sum(bool(each.innocent) for each in kept),
        sum(each.retests for each in kept),
        sum(each.seconds for each in kept),
    )
