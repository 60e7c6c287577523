"""What all nodes of a fleet lose together, and settled warnings that come with a loss."""

import math
import random
from pathlib import Path

from fleet.made import day_of, filled, lost_by_all
from ncclprobe.fleet import store
from ncclprobe.fleet.shared import change, step
from ncclprobe.model.fleet import SharedLoss
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report.fleet import shared_words


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


def test_chance_is_no_step_and_what_changed_is_what_changed_on_most_nodes() -> None:
    rng = random.Random(3)
    healthy = [[(day, 394.0 * math.exp(rng.gauss(0, 0.01))) for day in range(60)] for _ in range(200)]
    assert [step(each) for each in [*healthy, []]] == [None] * 201
    old, new = {"driver": "1", "kernel": "6"}, {"driver": "2", "kernel": "6"}
    assert change([(old, new), (old, new), (old, old)]) == ("driver changed 1 → 2",)
    assert change([(old, new), (old, old)]) == ()
