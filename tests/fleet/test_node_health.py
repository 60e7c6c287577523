"""How a node stands, in the words of its evidence and of what happened. Kept values have all states and times."""

import random
from collections.abc import Sequence

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, days, readings
from ncclprobe.fleet import drift, node_health
from ncclprobe.fleet.extract import told
from ncclprobe.model.findings import Severity, Status, fail
from ncclprobe.model.fleet import NodeCourse, NodeReport, NodeStanding, Number, Series
from ncclprobe.model.values import replace

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


def test_a_settled_warning_of_the_hardware_is_watched_and_other_warnings_are_not() -> None:
    hot = replace(DOWN, severity=Severity.WARN)
    rows = [
        (hot, "watch"),
        (replace(hot, blame="node"), "watch"),
        (replace(hot, blame="job"), "ok"),
        (replace(hot, blame="image"), "ok"),
        (replace(hot, action="retest"), "ok"),
        (replace(hot, severity=Severity.NOTE), "ok"),
        (replace(DOWN, action="retest"), "watch"),
        (fail("NCCL_IB_HCA", "names no device", blame="job"), "ok"),
        (fail("GPU2", "is lost", blame="node", action="repair"), "failing"),
    ]
    assert [after(days([each])).state for each, _ in rows] == [state for _, state in rows]
