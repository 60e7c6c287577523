"""The test over time, with seeded years: what is found, how soon, and what is not."""

import functools
import math
import random
from collections.abc import Iterator

import pytest

from fleet.made import DAY_S, FIRST_S, readings
from ncclprobe.fleet import drift
from ncclprobe.model.fleet import Drift, Reading
from ncclprobe.model.values import replace
from tests.each_row import each_row

RUNS = 200


def states(losses: list[float], seed: int, **more: float) -> list[str]:
    """The worse state of the two sums after each reading."""
    at, found = Drift(), []
    for each in readings(random.Random(seed), losses, **more):
        at = drift.step(at, each, sums=2)
        both = {at.own.state, at.siblings.state}
        found.append(next(state for state in ("degraded", "watch", "ok") if state in both))
    return found


def delays(loss: float) -> Iterator[int]:
    """After how many tests a loss that begins on day 60 is called so; 100: never."""
    for seed in range(RUNS):
        found = states([0.0] * 60 + [loss] * 60, seed)
        yield found.index("degraded", 60) - 59 if "degraded" in found[60:] else 100


@each_row(("loss", "tests", "share"), [(0.05, 10, 0.95), (0.03, 30, 0.8), (0.3, 5, 1.0)])
def test_a_loss_is_found_in_time(loss: float, tests: int, share: float) -> None:
    assert sum(delay <= tests for delay in delays(loss)) >= share * RUNS


def test_a_node_without_a_loss_is_hardly_ever_even_watched() -> None:
    assert sum(set(states([0.0] * 365, seed)) != {"ok"} for seed in range(RUNS)) <= 0.01 * RUNS


def test_a_repaired_node_is_ok_within_five_tests() -> None:
    ends = [states([0.0] * 60 + [0.05] * 30 + [0.0] * 5, seed) for seed in range(RUNS)]
    degraded = [found for found in ends if found[89] == "degraded"]
    assert len(degraded) > 0.95 * RUNS
    assert sum(found[94] == "ok" for found in degraded) >= 0.95 * len(degraded)


def test_no_single_odd_day_condemns_a_node() -> None:
    assert set(states([0.0] * 60 + [0.9] + [0.0] * 60, 1)) == {"ok"}


def test_a_loss_began_after_the_last_good_test_and_is_as_large_as_it_is() -> None:
    at = drift.course(readings(random.Random(2), [0.0] * 60 + [0.2] * 12, noise=0.005))
    assert (at.own.state, at.own.tests) == ("degraded", 12)
    assert at.own.since_s == FIRST_S + 60 * DAY_S
    assert at.own.good_s == FIRST_S + 59 * DAY_S
    assert math.expm1(at.own.lost) == pytest.approx(-0.2, abs=0.02)


def test_a_loss_among_the_first_tests_is_told_with_its_size_and_start() -> None:
    for good in (4, 6, 9, 11):
        for seed in range(20):
            at = drift.course(readings(random.Random(seed), [0.0] * good + [0.1] * 10))
            assert at.own.state == "degraded", (good, seed)
            assert abs((at.own.since_s or 0.0) - FIRST_S - good * DAY_S) <= DAY_S, (good, seed)
            assert math.expm1(at.own.lost) == pytest.approx(-0.1, abs=0.035), (good, seed)
            assert math.expm1(at.mean) == pytest.approx(390.0, rel=0.03)
    back = drift.course(readings(random.Random(3), [0.0] * 6 + [0.1] * 8 + [0.0] * 8))
    assert (back.own.state, len(back.own.spells)) == ("ok", 1)


@pytest.mark.slow
def test_the_first_tests_of_a_node_that_loses_nothing_are_no_loss() -> None:
    for noise, most in ((0.02, 0.002), (0.04, 0.02)):
        made = (drift.course(readings(random.Random(seed), [0.0] * 24, noise=noise), sums=2) for seed in range(2000))
        assert sum(each.own.state != "ok" for each in made) <= most * 2000, noise
    assert drift.course(readings(random.Random(2), [0.0] * 5 + [0.5] + [0.0] * 8)).own.state == "ok"  # an odd day
    alike = [replace(each, partners=("n2",)) for each in readings(random.Random(2), [0.0] * 4 + [0.3] * 8)]
    assert drift.course(alike).own.state == "ok"  # its partner may be the slow one


def test_what_all_siblings_lose_together_is_no_nodes_loss() -> None:
    def fleet(own: float, all_: float) -> Iterator[Reading]:
        for each in readings(random.Random(3), [0.0] * 60 + [own] * 60):
            lost = all_ if each.time_s >= FIRST_S + 60 * DAY_S else 0.0
            yield Reading(each.time_s, each.value, 0.0, 391.0 * (1 - lost), 0.01)

    assert drift.course(fleet(0.1, 0.1)).own.state == "ok"
    assert drift.course(fleet(0.1, 0.0)).own.state == "degraded"


def test_the_first_number_on_a_new_driver_waits_for_siblings() -> None:
    at = drift.course(readings(random.Random(9), [0.0] * 30, siblings=391.0, spread=0.01))
    first = Reading(FIRST_S + 30 * DAY_S, 300.0)
    assert drift.step(at, first).own.height > 0
    assert drift.step(replace(at, recent=()), first).own == at.own


def test_a_node_that_was_always_slow_is_found_by_its_siblings_and_one_a_little_slower_is_not() -> None:
    slow, healthy = (
        drift.course(readings(random.Random(4), [loss] * 11, siblings=391.0, spread=0.01)) for loss in (0.12, 0.03)
    )
    assert (slow.siblings.state, slow.own.state) == ("degraded", "ok")
    assert healthy.siblings.state == "ok"


def test_a_reading_with_a_wide_interval_says_less() -> None:
    def noisy(noise: float) -> Iterator[Reading]:
        for each in readings(random.Random(5), [0.0] * 60 + [0.06] * 10):
            yield Reading(each.time_s, each.value, noise)

    assert drift.course(noisy(0.0)).own.state == "degraded"
    assert drift.course(noisy(0.1)).own.state == "ok"


def test_few_siblings_say_nothing() -> None:
    few, enough = (drift.Siblings(dict.fromkeys(range(count), (5.0, 5.0))) for count in (8, 9))
    assert few.beside(0) == (0.0, 0.0)
    assert enough.beside(0)[0] == few.beside(99)[0] == pytest.approx(math.exp(5.0))


@each_row(("remaining", "state"), [(0.12, "degraded"), (0.25, "degraded"), (0.02, "ok")])
def test_half_a_repair_is_none_and_what_is_lost_follows_the_readings(remaining: float, state: str) -> None:
    for seed in range(20):
        losses = [0.0] * 40 + [0.4] * 10 + [remaining] * 12
        at = drift.course(readings(random.Random(seed), losses))
        assert at.own.state == state
        assert state == "ok" or math.expm1(at.own.lost) == pytest.approx(-remaining, abs=0.04)


def test_a_node_that_is_accepted_is_as_usual_from_then_on() -> None:
    more = {"siblings": 391.0, "spread": 0.01}
    before = drift.course(readings(random.Random(6), [0.0] * 40 + [0.2] * 20, **more))
    assert (before.own.state, before.siblings.state) == ("degraded", "degraded")
    days = list(readings(random.Random(7), [0.2] * 40 + [0.4] * 8, **more))
    after = drift.accepted(before, 1e9)
    assert [(since_s, end_s) for since_s, end_s, _ in after.own.spells] == [(before.own.since_s, 1e9)]
    at = functools.reduce(drift.step, days[:40], after)
    assert (at.own.state, at.siblings.state) == ("ok", "ok")
    at = functools.reduce(drift.step, days[40:], at)
    assert (at.own.state, at.siblings.state) == ("degraded", "degraded")


def test_a_further_loss_of_an_accepted_node_is_found_at_once() -> None:
    """The numbers since the loss say what is usual: no other dozen has to pass first."""
    found = []
    for seed in range(20):
        before = drift.course(readings(random.Random(seed), [0.0] * 40 + [0.1] * 20))
        for losses in ([0.1] * 20, [0.1] * 2 + [0.17] * 8):
            more = readings(random.Random(seed + 100), losses)
            found.append(functools.reduce(drift.step, more, drift.accepted(before, 1e9)).own.state == "degraded")
    assert found == [False, True] * 20


def test_a_loss_begins_with_the_number_that_shows_it_and_not_with_noise_before_it() -> None:
    def found(levels: list[float]) -> Drift:
        return drift.course(Reading(FIRST_S + day * DAY_S, 391.0 * each, 0.005) for day, each in enumerate(levels))

    at_once = found([1.0] * 20 + [0.975, 0.985] + [0.9] * 6).own
    assert (at_once.state, at_once.since_s) == ("degraded", FIRST_S + 22 * DAY_S)
    assert math.expm1(at_once.lost) == pytest.approx(-0.1, abs=0.01)
    slowly = found([1.0] * 20 + [1.0 - 0.004 * day for day in range(25)]).own
    assert slowly.since_s is not None
    assert 20 <= (slowly.since_s - FIRST_S) / DAY_S <= 30
