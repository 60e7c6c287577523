"""How a node stands by what was told of it: which state, since when, for which reason."""

import random
from collections.abc import Sequence

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, readings
from ncclprobe.fleet import drift, node_health
from ncclprobe.fleet.extract import told
from ncclprobe.model.findings import Finding, Status, fail
from ncclprobe.model.fleet import NodeCourse, NodeReport, NodeStanding, Number, Series
from ncclprobe.model.report import NodeEnvironment
from ncclprobe.model.values import replace

RATE = Number("", "all_reduce 1 GiB", "GB/s", "8 ranks")
UNSETTLED = replace(DOWN, action="retest")


def days(*found: Sequence[Finding] | None) -> list[NodeReport]:
    """A day each of n1 with these findings; None: the check did not look."""
    made = []
    for day, each in enumerate(found):
        report = day_of("n1", day, *(each or ()))
        made += told(report if each is not None else replace(report, checks=()), "r.json")
    return made


def after(tests: Sequence[NodeReport], *series: Series) -> NodeStanding:
    course = NodeCourse()
    for each in tests:
        course = node_health.step(course, each)
    return node_health.standing("n1", course, series)


def lost(loss: float, days: int, *changed: str) -> Series:
    course = drift.course(readings(random.Random(1), [0.0] * 60 + [loss] * days, noise=0.005))
    return Series(RATE, course, FIRST_S, FIRST_S, changed)


def test_a_settled_fault_makes_a_node_fail_since_it_came() -> None:
    found = after(days([], [DOWN], [DOWN]))
    assert (found.state, found.since_s, found.tests) == ("failing", FIRST_S + DAY_S, 3)
    assert found.evidence == "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE (2 tests)"


def test_a_fault_ends_once_its_check_looked_and_found_nothing_and_not_before() -> None:
    assert after(days([DOWN], None)).state == "failing"
    assert after(days([DOWN], None, [])).state == "ok"


def test_the_same_fault_again_and_again_is_flapping_also_while_it_is_not_there() -> None:
    found = after(days(*[[DOWN], []] * 3))
    assert (found.state, found.since_s) == ("flapping", FIRST_S)
    assert found.evidence == "ib.state mlx5_3:1 appeared 3 times in 30 days and disappeared in between"
    assert after(days(*[[DOWN], []] * 2)).state == "ok"
    assert after(days(*[[DOWN], []] * 3, [DOWN])).evidence.endswith("(1 test, seen 4 times in 30 days)")


def counted(*counts: tuple[str, int], name: str = "mlx5_3:1 link_downed") -> list[NodeReport]:
    return [
        NodeReport("n1", FIRST_S + day * DAY_S, boot=boot, counters={name: count})
        for day, (boot, count) in enumerate(counts)
    ]


def test_a_link_that_goes_down_between_looks_flaps_by_its_own_count() -> None:
    found = after(counted(("a", 2), ("a", 3), ("a", 3), ("a", 7), ("a", 8)))
    assert (found.state, found.since_s) == ("flapping", FIRST_S + DAY_S)
    assert found.evidence == "mlx5_3:1 link_downed had risen by 1 since the previous test, 3 times in 30 days"
    assert after(counted(("a", 2), ("a", 3), ("a", 7))).state == "ok"


def test_a_count_of_another_boot_and_one_that_was_set_back_have_not_risen() -> None:
    assert after(counted(("a", 0), ("b", 9), ("c", 18), ("d", 27), ("e", 36))).state == "ok"
    assert after(counted(("a", 9), ("a", 1), ("a", 0), ("a", 0))).state == "ok"
    blind = [replace(each, counters={}) if day % 2 else each for day, each in enumerate(counted(*[("a", 5)] * 8))]
    assert after(blind).state == "ok"
    unread = [replace(each, counters={}) if day % 2 else each for day, each in enumerate(counted(*[("a", 0)] * 8))]
    assert after([*unread, *counted(("a", 5))]).state == "ok"
    events = node_health.events(counted(("a", 2), ("a", 4)), ())
    assert [each.what for each in events][-1] == "mlx5_3:1 link_downed had risen by 2"


def test_what_a_report_counts_is_told() -> None:
    seen = NodeEnvironment({}, boot="1d82dc7e", counters={"mlx5_3:1 link_downed": 7, "GPU3 uncorrectable ECC": -1})
    (node,) = told(day_of("n1", 0, environment={"n1": seen}), "r.json")
    assert (node.boot, node.counters) == ("1d82dc7e", {"mlx5_3:1 link_downed": 7})


def test_a_node_flaps_no_more_after_thirty_quiet_days() -> None:
    assert after(days(*[[DOWN], []] * 3, *[[]] * 31)).state == "ok"


def test_what_is_not_settled_is_watched_and_a_users_fault_is_nothing() -> None:
    assert after(days([UNSETTLED])).state == "watch"
    assert after(days([fail("NCCL_IB_HCA", "names no device", blame="job")])).state == "ok"


def test_a_lost_rate_is_told_with_what_changed_at_that_time() -> None:
    found = after(days([]), lost(0.2, 12, "driver 550 → 560"))
    assert (found.state, found.since_s) == ("degraded", FIRST_S + 60 * DAY_S)
    assert found.evidence.startswith("all_reduce 1 GiB: 391 → 31")
    assert found.evidence.endswith("GB/s (-20 %, 12 tests); changed at the same time: driver 550 → 560")


def test_of_several_losses_the_greatest_is_told_and_the_others_are_counted() -> None:
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
    series = lost(0.3, 12)
    tests = days(*[[]] * 32)
    assert after(tests[:31], series).state == "degraded"
    assert after(tests, series).state == "ok"
    assert node_health.events(tests[:31], [series])[-1].what.startswith("degraded")
    told_of = [(each.time_s, each.what) for each in node_health.events(tests, [series])]
    assert (FIRST_S + 30 * DAY_S, "not measured for 30 days: all_reduce 1 GiB") in told_of


def test_a_number_that_is_measured_with_other_software_is_still_measured() -> None:
    old, tests = lost(0.3, 12), days(*[[]] * 32)
    new = replace(old, number=replace(RATE, how=f"{RATE.how}, NCCL 2.30"), first_s=FIRST_S, last_s=tests[-1].time_s)
    told_of = [each.what for each in node_health.events(tests, [old, new])]
    assert any("measured with NCCL 2.30" in each for each in told_of), told_of
    assert not any("not measured" in each for each in told_of), told_of


def test_the_worst_state_is_the_nodes() -> None:
    assert after(days([UNSETTLED]), lost(0.2, 12)).state == "degraded"
    assert after(days([DOWN]), lost(0.2, 12)).state == "failing"


def test_a_node_that_could_not_be_looked_at_or_was_not_for_long_is_not_ok() -> None:
    (blind,) = told(replace(day_of("n1", 0), nodes=(replace(day_of("n1", 0).nodes[0], status=Status.UNKNOWN),)), "r")
    assert after([blind]).state == "unknown"
    found = after(days([], []))
    assert node_health.aged(found, FIRST_S + 20 * DAY_S).state == "ok"
    old = node_health.aged(found, FIRST_S + 40 * DAY_S)
    assert (old.state, old.since_s) == ("unknown", FIRST_S + DAY_S)
    ahead = node_health.aged(found, FIRST_S - 400 * DAY_S)
    assert (ahead.state, "in the future: set its clock" in ahead.evidence) == ("unknown", True)
    ill = node_health.aged(after(days([DOWN])), FIRST_S + 40 * DAY_S)
    assert (ill.state, ill.since_s) == ("unknown", FIRST_S)
    assert ill.evidence == (
        "was failing: ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE (1 test); "
        "not tested for 30 days; add a newer report of it"
    )


def test_what_changed_is_told_in_the_order_of_time() -> None:
    tests = [*days([], [DOWN], []), *told(day_of("n1", 3, driver="560.28.03"), "r.json")]
    other = replace(lost(0.0, 1), number=replace(RATE, how="8 ranks, NCCL_ALGO=Ring"), first_s=FIRST_S + 9 * DAY_S)
    found = node_health.events(tests, [lost(0.2, 12), other])
    assert [each.what for each in found] == [
        "fail ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE",
        "gone: ib.state mlx5_3:1",
        "driver 550.54.15 → 560.28.03",
        "measured with NCCL_ALGO=Ring, before with less",
        found[4].what,
    ]
    assert found[4].what.startswith("degraded: all_reduce 1 GiB: 391 → ")
