"""One fleet searched, and many: what was planted, what was found, and the sums that a table is made of."""

import random
import time
from collections.abc import Iterable, Sequence

from fleets.fabric import Fabric
from fleets.faults import Fault, plant
from fleets.fleet import NOISES, Fleet
from ncclprobe.localise.pairs.rounds import AT_ONCE
from ncclprobe.localise.pairs.samples import Rules
from ncclprobe.localise.pairs.search import localise_slowness, round_robin
from ncclprobe.localise.pairs.suspects import Localisation
from ncclprobe.model.values import Struct

PER_LEAF = {8: 4, 64: 8, 256: 16, 1024: 32}
WIDE = ("leaf", "uplink")
ECMP = "ecmp"
DEFAULT = Rules()


class Trial(Struct, frozen=True):
    """One fleet: how large, how noisy, what is planted, and from which seed. `kind` is empty for a healthy one."""

    nodes: int
    noise: str
    kind: str
    seed: int = 0
    left: float = 0.6
    count: int = 0
    rules: Rules = DEFAULT


class Outcome(Struct, frozen=True):
    """What became of it: faults planted, named and placed; culprits, those that hit a faulty place; rounds."""

    planted: int
    named: int
    placed: int
    blamed: int
    just: int
    round_robin: int
    retests: int
    unsure: int
    seconds: float


class Tally(Struct, frozen=True):
    """The sums over the fleets of seeds 0 … `fleets` - 1, where `asked` were wanted.

    `alarms` and `unsure` count fleets in which anybody is blamed or undecided; rounds and seconds are sums.
    """

    asked: int
    fleets: int
    alarms: int
    unsure: int
    planted: int
    named: int
    placed: int
    blamed: int
    just: int
    round_robin: int
    retests: int
    seconds: float


def fabric_of(trial: Trial) -> Fabric:
    """Two rails; leaves as in the table, else a quarter of the nodes each."""
    per_leaf = PER_LEAF.get(trial.nodes, max(2, trial.nodes // 4))
    return Fabric(trial.nodes, per_leaf, rails=2, ecmp=trial.noise == ECMP or trial.kind == "link")


def faults_of(trial: Trial, fabric: Fabric) -> tuple[Fault, ...]:
    """What the seed plants: of leaves fewer than half, for a majority is what is usual."""
    draw = random.Random(trial.seed)
    count = trial.count or draw.randint(1, 3)
    leaves = -(-fabric.nodes // fabric.per_leaf)
    if trial.kind in (*WIDE, "link"):
        count = min(count, max(1, (leaves - 1) // 2))
    if trial.kind == "pair":
        rounds = list(round_robin({node: range(fabric.rails) for node in fabric.names}))
        played = [draw.choice(draw.choice(rounds)) for _ in range(count)]
        return tuple(Fault("pair", trial.left, (one.node, other.node), one.rail) for one, other in played)
    return plant(trial.kind, count, trial.left, fabric, draw) if trial.kind else ()


def play(trial: Trial) -> Outcome:
    """Search one fleet, and see what was found."""
    fabric = fabric_of(trial)
    planted = faults_of(trial, fabric)
    at_once = fabric.nodes if trial.kind in WIDE else AT_ONCE
    fleet = Fleet(fabric, NOISES["usual" if trial.noise == ECMP else trial.noise], planted, trial.seed, at_once)
    started = time.process_time()
    found = localise_slowness(fleet.rails, fleet.measure, fleet.layout, trial.rules)
    return outcome(found, planted, fabric, fleet, time.process_time() - started)


def outcome(found: Localisation, planted: Sequence[Fault], fabric: Fabric, fleet: Fleet, seconds: float) -> Outcome:
    """Count."""
    causes = [suspect.cause for suspect in found.confirmed]
    named = sum(any(fault.named_by(cause, fabric) for cause in causes) for fault in planted)
    placed = sum(any(fault.touches(cause, fabric) for cause in causes) for fault in planted)
    just = sum(any(fault.touches(cause, fabric) for fault in planted) for cause in causes)
    asked = fleet.asked
    rounds = (asked["tournament"], asked["retests"])
    return Outcome(len(planted), named, placed, len(causes), just, *rounds, len(found.unsure), seconds)


def tally(seen: Iterable[Outcome], asked: int) -> Tally:
    """Add up."""
    kept = list(seen)
    return Tally(
        asked,
        len(kept),
        sum(bool(each.blamed) for each in kept),
        sum(bool(each.unsure) for each in kept),
        sum(each.planted for each in kept),
        sum(each.named for each in kept),
        sum(each.placed for each in kept),
        sum(each.blamed for each in kept),
        sum(each.just for each in kept),
        sum(each.round_robin for each in kept),
        sum(each.retests for each in kept),
        sum(each.seconds for each in kept),
    )
