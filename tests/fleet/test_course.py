"""What a report tells of a node, and the course of its numbers. Kept values have single reports, courses and stores."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from report.samples import HEALTHY, SICK

from fleet.made import day_of, readings
from ncclprobe.fleet import drift
from ncclprobe.fleet.extract import told
from ncclprobe.fleet.shared import change, step
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import fail
from ncclprobe.model.fleet import Drift, SharedLoss
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.fleet import shared_words
from tests.each_row import each_row

REPORTS = Path(__file__).parents[2] / "reports"


def rates(made: Report) -> dict[tuple[str, str], float]:
    return {(each.node, number.called): reading.value for each in told(made, "r.json")
            for number, reading in each.numbers.items()}  # fmt: skip


def test_only_the_largest_size_of_an_operation_counts_and_no_doubtful_one() -> None:
    row = day_of("n1", 0).measurements[0]
    small = replace(row, nbytes=1 << 20, busbw_GBps=90.0)
    rows: list[tuple[list[Measurement], list[float]]] = [
        ([small, row], [391.0]),
        ([small, replace(row, status="inconclusive")], [90.0]),
        ([replace(row, wrong=3)], []),
        ([replace(row, nodes=2, ranks=16)], []),
        ([replace(row, busbw_GBps=0.0)], []),
    ]
    found = [list(rates(day_of("n1", 0, measurements=tuple(each))).values()) for each, _ in rows]
    assert found == [wanted for _, wanted in rows]
    ((number, _),) = told(day_of("n1", 0), "r.json")[0].numbers.items()
    assert "550.54.15" not in number.how  # a driver may be the cause of a change, and begins no new series


@each_row("path", sorted(REPORTS.glob("*.json")), ids=lambda path: path.name)
def test_every_report_of_ours_tells_something_or_is_refused_in_words(path: Path) -> None:
    made = as_json.read(str(path))
    if made.files:
        with pytest.raises(UsageError, match="a report of `explain`"):
            told(made, path.name)
        return
    for each in told(made, path.name):
        assert each.looked
        assert all(reading.value > 0 for reading in each.numbers.values())


def test_what_has_no_node_or_no_time_or_explains_a_job_is_refused() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"nodes": ()}, "names no node"),
        ({"started": "yesterday"}, "is not a time"),
        ({"files": ("a.log",)}, "a report of `explain`"),
        ({"nodes": HEALTHY.nodes * 2}, "twice"),
    ]
    for more, why in changes:
        with pytest.raises(UsageError, match=why):
            told(replace(HEALTHY, **more), "r.json")


def test_no_text_of_a_report_forges_a_row_or_is_kept_whole() -> None:
    (copy, *_) = SICK.copies
    found = fail("mlx5_0\nn9  failing", "bad \x1b[2J" + "x" * 999, blame="node")
    copy = replace(copy, node="n1", device="GPU3\nn9  failing" * 99)
    made = day_of("n1", 0, found, driver="550\n560", copies=(copy,))
    (one,) = told(made, "r.json")
    texts = [*one.machine.values(), one.faults[0].subject, one.faults[0].message]
    texts += [text for number in one.numbers for text in (number.part, number.name, number.how)]
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)
    assert "GPU3\\nn9  failing" in "".join(texts)


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
