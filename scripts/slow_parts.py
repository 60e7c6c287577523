#!/usr/bin/env python3
"""Leaves and pairs in simulated fleets: how often they are named, by the size of the fleet.

    .venv/bin/python scripts/slow_parts.py [SEEDS]    print the tables at the end of reports/localise.md

The fleets are those of tests/fleets, with the noise of the recorded cluster that the rules had not seen.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

from fleets.fleet import Fleet
from fleets.recorded import HELD_BACK
from fleets.trials import Trial, fabric_of, faults_of, noise_of, play, tally
from tables import table

from ncclprobe.localise.pairs.rounds import AT_ONCE
from ncclprobe.localise.pairs.suspects import localise_slowness

NODES, LOSSES, SEEDS = (8, 12, 16, 17, 20, 24, 32), (0.1, 0.2), 20
PAIRS = (1, 2, 3, 4)


def leaves(seeds: int) -> Iterator[tuple[object, ...]]:
    """A slow leaf, slow inside as well: named as a leaf, or its nodes told as equally slow."""
    for nodes in NODES:
        for loss in LOSSES:
            trials = [Trial(nodes, HELD_BACK, "leaf", loss, seed) for seed in range(seeds)]
            seen, alike = tally(map(play, trials)), sum(map(equally_slow, trials))
            size = fabric_of(trials[0]).per_leaf
            yield nodes, size, f"{loss:.0%}", f"{seen.named} of {seen.planted}", f"{alike} of {seeds}", seen.wrong


def equally_slow(trial: Trial) -> bool:
    """Whether just the nodes of the slow leaf are told as equally slow."""
    fabric = fabric_of(trial)
    planted = faults_of(trial, fabric)
    fleet = Fleet(fabric, noise_of(trial), planted, trial.seed, max(fabric.nodes, AT_ONCE), 1.0)
    found = {node for each in localise_slowness(fleet.rails, fleet.measure).equally_slow for node in each.cause.nodes}
    return found == {node for node in fabric.names if fabric.leaf(node) == planted[0].leaf}


def pairs(seeds: int) -> Iterator[tuple[object, ...]]:
    """Several slow pairs at once: each named, or placed at its nodes under another name."""
    for nodes in (8, 17, 24):
        for count in PAIRS:
            for loss in LOSSES:
                seen = tally(play(Trial(nodes, HELD_BACK, "pair", loss, seed, count=count)) for seed in range(seeds))
                yield nodes, count, f"{loss:.0%}", f"{seen.named} of {seen.planted}", seen.placed, seen.wrong


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print(*table(("nodes", "of a leaf", "loses", "named", "equally slow", "others blamed"), leaves(number)), sep="\n")
    print(*table(("nodes", "slow pairs", "loses", "named", "placed", "others blamed"), pairs(number)), sep="\n")
