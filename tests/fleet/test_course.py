"""The course of a node: the test over time, its state in words, and what all nodes lose. Kept values have the rest."""

import math
import random
from collections.abc import Sequence

import pytest

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, days, readings
from ncclprobe.fleet import drift, node_health
from ncclprobe.fleet.extract import told
from ncclprobe.fleet.shared import change, step
from ncclprobe.model.findings import Status
from ncclprobe.model.fleet import Drift, NodeCourse, NodeReport, NodeStanding, Number, Series, SharedLoss
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


RATE = Number("", "all_reduce 1 GiB", "GB/s", "8 ranks")
FAULT = "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE"


def after(tests: Sequence[NodeReport], *series: Series) -> NodeStanding:
    course = NodeCourse()
    for each in tests:
        course = node_health.step(course, each)
    return node_health.standing("n1", course, series)


def lost(loss: float, days: int, *changed: str) -> Series:
    course = drift.course(readings(random.Random(1), [0.0] * 60 + [loss] * days, noise=0.005))
    return Series(RATE, course, FIRST_S, FIRST_S, changed)


def test_the_evidence_says_what_is_wrong_since_when_and_how_often() -> None:
    flaps = "appeared 3 times in 30 days and disappeared in between"
    rose = "mlx5_3:1 link_downed had risen by 1 since the previous test, 3 times in 30 days"
    counts = [NodeReport("n1", FIRST_S + day * DAY_S, boot="a", counters={"mlx5_3:1 link_downed": count})
              for day, count in enumerate((2, 3, 3, 7, 8))]  # fmt: skip
    rows = [
        (after(days([], [DOWN], [DOWN])), ("failing", 1, f"{FAULT} (2 tests)")),
        (after(days(*[[DOWN], []] * 3)), ("flapping", 0, f"ib.state mlx5_3:1 {flaps}")),
        (after(days(*[[DOWN], []] * 3, [DOWN])), ("failing", 6, f"{FAULT} (1 test, seen 4 times in 30 days)")),
        (after(counts), ("flapping", 1, rose)),
        (after(days([DOWN]), lost(0.2, 12)), ("failing", 0, f"{FAULT} (1 test)")),
    ]
    assert [(each.state, (each.since_s or 0) / DAY_S - FIRST_S / DAY_S, each.evidence) for each, _ in rows] == [
        wanted for _, wanted in rows
    ]


def test_a_lost_rate_is_told_with_what_changed_and_of_several_losses_the_greatest_speaks() -> None:
    found = after(days([]), lost(0.2, 12, "driver 550 → 560"))
    assert (found.state, found.since_s) == ("degraded", FIRST_S + 60 * DAY_S)
    assert found.evidence.startswith("all_reduce 1 GiB: 391 → 31")
    assert found.evidence.endswith("GB/s (-20 %, 12 tests); changed at the same time: driver 550 → 560")
    other = replace(lost(0.1, 20), number=replace(RATE, name="all_gather 1 GiB"))
    since = replace(other.drift.own, since_s=FIRST_S + DAY_S)  # longer ago
    found = after(days([]), replace(other, drift=replace(other.drift, own=since)), lost(0.3, 12))
    assert "(-30 %" in found.evidence
    assert found.evidence.endswith("; and 1 more number")
    assert found.since_s == FIRST_S + 60 * DAY_S
    both = lost(0.3, 12)
    both = replace(both, drift=replace(both.drift, siblings=both.drift.own))
    assert "more" not in after(days([]), both).evidence


def test_a_number_that_is_measured_no_more_makes_no_node_degraded() -> None:
    series, tests = lost(0.3, 12), days(*[[]] * 32)
    assert [after(each, series).state for each in (tests[:31], tests)] == ["degraded", "ok"]
    told_of = [(each.time_s, each.what) for each in node_health.events(tests, [series])]
    assert (FIRST_S + 30 * DAY_S, "not measured for 30 days: all_reduce 1 GiB") in told_of


def test_a_node_that_could_not_be_looked_at_or_was_not_for_long_is_not_ok() -> None:
    (blind,) = told(replace(day_of("n1", 0), nodes=(replace(day_of("n1", 0).nodes[0], status=Status.UNKNOWN),)), "r")
    assert after([blind]).state == "unknown"
    ahead = node_health.aged(after(days([], [])), FIRST_S - 400 * DAY_S)
    assert (ahead.state, "in the future: set its clock" in ahead.evidence) == ("unknown", True)
    ill = node_health.aged(after(days([DOWN])), FIRST_S + 40 * DAY_S)
    assert (ill.state, ill.since_s) == ("unknown", FIRST_S)
    assert ill.evidence == f"was failing: {FAULT} (1 test); not tested for 30 days; add a newer report of it"


def test_what_changed_is_told_in_the_order_of_time() -> None:
    tests = [*days([], [DOWN], []), *told(day_of("n1", 3, driver="560.28.03"), "r.json")]
    other = replace(lost(0.0, 1), number=replace(RATE, how="8 ranks, NCCL_ALGO=Ring"), first_s=FIRST_S + 9 * DAY_S)
    *found, last = (each.what for each in node_health.events(tests, [lost(0.2, 12), other]))
    assert found == [
        f"fail {FAULT}",
        "gone: ib.state mlx5_3:1",
        "driver 550.54.15 → 560.28.03",
        "measured with NCCL_ALGO=Ring, before with less",
    ]
    assert last.startswith("degraded: all_reduce 1 GiB: 391 → ")


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
