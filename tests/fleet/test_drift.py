"""The test over time, with seeded years: what is found, how soon, and what is not. Kept values have single courses."""

import math
import random

import pytest

from fleet.made import DAY_S, FIRST_S, readings
from ncclprobe.fleet import drift
from ncclprobe.model.fleet import Drift
from tests.each_row import each_row

RUNS = 100


def states(losses: list[float], seed: int) -> list[str]:
    """The worse state of the two sums after each reading."""
    at, found = Drift(), []
    for each in readings(random.Random(seed), losses):
        at = drift.step(at, each, sums=2)
        both = {at.own.state, at.siblings.state}
        found.append(next(state for state in ("degraded", "watch", "ok") if state in both))
    return found


@each_row(("loss", "tests", "share"), [(0.05, 10, 0.95), (0.03, 30, 0.8), (0.3, 5, 1.0)])
def test_a_loss_is_found_in_time(loss: float, tests: int, share: float) -> None:
    found = ["degraded" in states([0.0] * 60 + [loss] * tests, seed)[60:] for seed in range(RUNS)]
    assert sum(found) >= share * RUNS


def test_a_node_without_a_loss_is_hardly_ever_even_watched_and_a_repaired_one_is_ok_within_five_tests() -> None:
    assert sum(set(states([0.0] * 365, seed)) != {"ok"} for seed in range(RUNS)) <= 0.01 * RUNS
    ends = [states([0.0] * 60 + [0.05] * 30 + [0.0] * 5, seed) for seed in range(RUNS)]
    degraded = [found for found in ends if found[89] == "degraded"]
    assert len(degraded) > 0.95 * RUNS
    assert sum(found[94] == "ok" for found in degraded) >= 0.95 * len(degraded)


def test_a_loss_among_the_first_tests_is_told_with_its_size_and_start() -> None:
    for good in (4, 6, 9, 11):
        for seed in range(20):
            at = drift.course(readings(random.Random(seed), [0.0] * good + [0.1] * 10))
            assert at.own.state == "degraded", (good, seed)
            assert abs((at.own.since_s or 0.0) - FIRST_S - good * DAY_S) <= DAY_S, (good, seed)
            assert math.expm1(at.own.lost) == pytest.approx(-0.1, abs=0.035), (good, seed)


@pytest.mark.slow
def test_the_first_tests_of_a_node_that_loses_nothing_are_no_loss() -> None:
    for noise, most in ((0.02, 0.002), (0.04, 0.02)):
        made = (drift.course(readings(random.Random(seed), [0.0] * 24, noise=noise), sums=2) for seed in range(2000))
        assert sum(each.own.state != "ok" for each in made) <= most * 2000, noise
