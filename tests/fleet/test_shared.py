"""What all nodes of a fleet lose together, and settled warnings that come with a loss."""

import math
import random
from pathlib import Path

from fleet.made import DAY_S, FIRST_S, day_of, filled, lost_by_all
from ncclprobe.fleet import store
from ncclprobe.fleet.extract import told
from ncclprobe.fleet.node_health import standing
from ncclprobe.fleet.node_health import step as one_more
from ncclprobe.fleet.shared import change, loss, step
from ncclprobe.model.findings import Severity, fail, warn
from ncclprobe.model.fleet import Drift, NodeCourse, Number, Series, SharedLoss, Sum
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report.fleet import shared_words

HOT = warn("GPU2", "too hot: the hardware has lowered its clocks", blame="node", action="repair")


def test_no_shared_loss_is_told_of_a_healthy_fleet_a_repaired_one_or_a_single_node(tmp_path: Path) -> None:
    def shared(name: str, *of: Report) -> int:
        filled(tmp_path / name, *of)
        with store.opened(tmp_path / name, 60) as kept:
            return len(kept.shared())

    lost = list(lost_by_all(6, 20, 10, 0.10))
    repaired = [*lost, *(day_of(f"w{node}", 20 + day, rate=394.0) for day in range(6) for node in range(6))]
    alone = [*lost_by_all(6, 20, 99, 0.0), *(day_of("w9", day, rate=394.0 if day < 10 else 200.0) for day in range(20))]
    rows = {
        "healthy": shared("a.db", *lost_by_all(6, 30, 99, 0.0)),
        "new driver": shared("b.db", *lost_by_all(6, 30, 15, 0.0)),
        "repaired": shared("c.db", *repaired),
        "one node": shared("d.db", *alone),
        "two nodes": shared("e.db", *lost_by_all(2, 30, 15, 0.10)),
        "two per cent": shared("f.db", *lost_by_all(6, 30, 15, 0.02)),
        "one day": shared("g.db", *lost_by_all(6, 16, 15, 0.10)),
    }
    assert len(rows) >= 7
    assert not [name for name, number in rows.items() if number]
    assert shared("h.db", *lost) == 1


def test_what_changed_is_said_of_a_roll_out_that_takes_days(tmp_path: Path) -> None:
    rng, made = random.Random(5), []
    for day in range(30):
        for node in range(6):
            lost = day >= 15 + node // 2
            rate = 394.0 * (1 - 0.1 * lost) * math.exp(rng.gauss(0, 0.01))
            made.append(day_of(f"w{node}", day + node / 100, rate=rate, driver="560.35.03" if lost else "550.127.08"))
    filled(tmp_path / "fleet.db", *made)
    with store.opened(tmp_path / "fleet.db", 60) as kept:
        (found,) = kept.shared()
    assert (len(found.nodes), found.changed) == (6, ("driver changed 550.127.08 → 560.35.03",))


def test_a_shared_loss_is_said_with_its_nodes_rates_day_and_two_changes_at_most() -> None:
    all_of_them = SharedLoss("all_reduce 1 GiB", "GB/s", tuple(f"n{n}" for n in range(12)), 12, 394.0, 353.0, 20406,
                             ("driver changed 1 → 2", "NCCL changed 3 → 4", "torch changed 5 → 6"))  # fmt: skip
    words = shared_words(all_of_them)
    assert words.startswith("all 12")
    assert "394 → 353 GB/s" in words
    assert "-10 %" in words
    assert "since 2025-11-14" in words
    assert ("the driver changed 1 → 2 and the NCCL changed 3 → 4" in words, "torch" in words) == (True, False)
    some = shared_words(replace(all_of_them, nodes=("n1", "n2"), changed=()))
    assert some.startswith("2 of 12")
    assert "when" not in some


def test_the_day_of_a_step_is_found_and_chance_is_none() -> None:
    rng = random.Random(3)
    for since in (4, 10, 17):
        means = [(day, 394.0 * (1 - 0.08 * (day >= since)) * math.exp(rng.gauss(0, 0.003))) for day in range(20)]
        assert step(means) == since
    healthy = [[(day, 394.0 * math.exp(rng.gauss(0, 0.01))) for day in range(60)] for _ in range(200)]
    assert [step(each) for each in healthy] == [None] * len(healthy)
    assert step([]) is None


def test_a_loss_is_of_all_only_if_most_nodes_have_it() -> None:
    lost, kept = [(0, 100.0), (1, 90.0)], [(0, 100.0), (1, 100.0)]
    most = loss("x", "GB/s", 1, {**{f"n{n}": lost for n in range(9)}, "n9": kept})
    assert most is not None
    assert (len(most.nodes), most.of) == (9, 10)
    half = {**{f"n{n}": lost for n in range(6)}, **{f"m{n}": kept for n in range(5)}}
    assert loss("x", "GB/s", 1, half) is None
    old, new = {"driver": "1", "kernel": "6"}, {"driver": "2", "kernel": "6"}
    assert change([(old, new), (old, new), (old, old)]) == ("driver changed 1 → 2",)
    assert change([(old, new), (old, old)]) == ()


def test_a_settled_warning_of_the_hardware_is_watched_and_other_warnings_are_not() -> None:
    rows = [
        (HOT, "watch"),
        (replace(HOT, blame="link"), "watch"),
        (replace(HOT, blame="job"), "ok"),
        (replace(HOT, blame="image"), "ok"),
        (replace(HOT, action="retest"), "ok"),
        (replace(HOT, severity=Severity.NOTE), "ok"),
        (fail("GPU2", "is lost", blame="node", action="repair"), "failing"),
    ]
    found = [standing("n1", one_more(NodeCourse(), told(day_of("n1", 0, each), "f")[0]), ()).state for each, _ in rows]
    assert found == [state for _, state in rows]


def test_a_warning_that_came_with_a_loss_is_told_with_it() -> None:
    number = Number("", "all_reduce 1 GiB", "GB/s", "")
    for came, since, linked in ((5, 5, True), (4, 5, True), (5, 4, False), (2, 5, False)):
        course = one_more(NodeCourse(), told(day_of("n1", came, HOT), "f")[0])
        lost = Drift(12, 12, 6.0, recent=(300.0,), own=Sum("degraded", 9.0, 5, -0.2, since_s=FIRST_S + since * DAY_S))
        words = standing("n1", course, [Series(number, lost, 0.0, course.last_s)]).evidence
        assert ("in the same report ib.state GPU2" in words) == linked, (came, since)
