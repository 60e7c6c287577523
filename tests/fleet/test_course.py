"""The course of a node: the test over time, its state in words, and what all nodes lose. Kept values have the rest."""

import math
import random

import pytest

from fleet.made import DAY_S, FIRST_S, readings
from ncclprobe.fleet import drift
from ncclprobe.fleet.shared import change, step
from ncclprobe.model.fleet import Drift, SharedLoss
from ncclprobe.model.values import replace
from ncclprobe.report.fleet import shared_words
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


def test_a_shared_loss_is_said_with_its_nodes_rates_day_and_two_changes_at_most() -> None:
    changes = ("driver changed 1 → 2", "NCCL changed 3 → 4", "torch changed 5 → 6")
    names = tuple(f"n{n}" for n in range(12))
    lost = SharedLoss("all_reduce 1 GiB", "GB/s", names, 12, 394.0, 353.0, 20406, changes)
    both = "when the driver changed 1 → 2 and the NCCL changed 3 → 4"
    loss = "all_reduce 1 GiB 394 → 353 GB/s (-10 %) since 2025-11-14"
    assert shared_words(lost) == f"all 12 nodes: {loss}, {both}"
    assert shared_words(replace(lost, nodes=("n1", "n2"), changed=())) == f"2 of 12 nodes: {loss}"


def test_chance_is_no_step_and_what_changed_is_what_changed_on_most_nodes() -> None:
    rng = random.Random(3)
    healthy = [[(day, 394.0 * math.exp(rng.gauss(0, 0.01))) for day in range(60)] for _ in range(200)]
    assert [step(each) for each in [*healthy, []]] == [None] * 201
    old, new = {"driver": "1", "kernel": "6"}, {"driver": "2", "kernel": "6"}
    assert change([(old, new), (old, new), (old, old)]) == ("driver changed 1 → 2",)
    assert change([(old, new), (old, old)]) == ()
