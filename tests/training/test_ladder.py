"""The rungs from one rank to all, what they bring beside one rank, and which of them is judged by what."""

from typing import Any

import pytest

from ncclprobe.model.measurement import Band, Conditions, Expectation
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.training import Rung, climbed, plan
from ncclprobe.model.values import replace
from tests.each_row import each_row

ALONE = LadderRow(
    rung="rank", ranks=1, groups=16, slowest=(3,), step_bytes=64 << 20, step_us=2000.0, samples_us=(2000.0,) * 9,
    nbytes=1 << 30,
)  # fmt: skip
NODE = replace(
    ALONE, rung="node", ranks=8, groups=2, step_us=2200.0, samples_us=(2200.0,) * 9, busbw_GBps=472.0, best_GBps=475.0
)
JOB = replace(
    NODE, rung="job", ranks=16, groups=1, step_us=2500.0, samples_us=(2500.0,) * 9, busbw_GBps=370.0, best_GBps=371.0
)


def band(ranks: int = 8, **more: Any) -> Band:
    known = Expectation(480.0, 440.0, "GB/s", "published", "w", "s", **more)
    return Band("all_reduce", 1 << 30, 1 << 30, known, Conditions(ranks, 1, "float32", "sum", "in", "queued", "nccl"))


@each_row(
    ("hosts", "pairs", "rungs"),
    [
        ("aaaabbbb", False, [("rank", 1, 8), ("node", 4, 2), ("job", 8, 1)]),
        ("aaaabbbb", True, [("rank", 1, 8), ("pair", 2, 4), ("node", 4, 2), ("job", 8, 1)]),
        ("aaa", True, [("rank", 1, 3), ("pair", 2, 1), ("node", 3, 1)]),
        ("aa", True, [("rank", 1, 2), ("pair", 2, 1)]),
        ("aa", False, [("rank", 1, 2), ("node", 2, 1)]),
        ("abcd", True, [("rank", 1, 4), ("job", 4, 1)]),
        ("a", False, [("rank", 1, 1)]),
    ],
)
def test_each_rung_is_wider_than_the_one_below(hosts: str, pairs: bool, rungs: list[tuple[str, int, int]]) -> None:
    found = plan(list(hosts), pairs=pairs)
    assert [(rung.name, max(map(len, rung.groups)), len(rung.groups)) for rung in found] == rungs


def test_ranks_that_launchers_number_in_turn_are_grouped_by_their_host() -> None:
    assert plan(["a", "b", "a", "b"], pairs=False)[1] == Rung("node", ((0, 2), (1, 3)))


def test_a_rank_without_a_partner_is_by_itself() -> None:
    two = plan(["a"] * 3, pairs=True)[1]
    assert [two.of(rank) for rank in range(3)] == [(0, 1), (0, 1), (2,)]


def test_speed_up_and_efficiency_are_beside_one_rank_of_the_same_work() -> None:
    rows = climbed((ALONE, NODE, JOB), ())
    assert [(row.speedup, row.efficiency) for row in rows] == [
        (1.0, 1.0), (pytest.approx(8 * 2000 / 2200), pytest.approx(2000 / 2200)), (pytest.approx(12.8), 0.8)
    ]  # fmt: skip
    assert {row.status for row in rows} == {"unjudged"}


def test_efficiency_is_of_steps_taken_in_turn_and_not_of_medians() -> None:
    """The machine slows down while it is measured: all rungs do, and the ratio does not."""
    slower = tuple(2000.0 * (1 + turn) for turn in range(9))
    one, node = replace(ALONE, samples_us=slower), replace(NODE, samples_us=tuple(2 * each for each in slower))
    (_, row) = climbed((one, node), ())
    assert (row.efficiency, row.interval) == (0.5, (0.5, 0.5))
    (_, few) = climbed((replace(one, samples_us=slower[:2]), replace(node, samples_us=slower[:2])), ())
    assert (few.efficiency, few.interval) == (1.0, None)


def test_without_the_lowest_rung_nothing_is_compared() -> None:
    assert climbed((NODE, JOB), ()) == (NODE, JOB)


@each_row(
    ("changes", "more", "status"),
    [
        ({}, {}, "pass"),
        ({"busbw_GBps": 300.0, "best_GBps": 310.0}, {}, "fail"),
        ({"busbw_GBps": 300.0, "best_GBps": 310.0}, {"worst": "warn"}, "warn"),
        ({"busbw_GBps": 300.0, "best_GBps": 310.0}, {"worst": "unjudged"}, "unjudged"),
        ({"busbw_GBps": 300.0, "best_GBps": 460.0}, {}, "inconclusive"),
        ({"busbw_GBps": None, "best_GBps": None}, {}, "unjudged"),
    ],
)
def test_a_node_is_judged_by_what_a_node_reaches_as_far_as_that_is_known(
    changes: dict[str, Any], more: dict[str, Any], status: str
) -> None:
    rows = climbed((ALONE, replace(NODE, **changes), JOB), [band(**more)])
    assert [row.status for row in rows] == ["unjudged", status, "unjudged"]


def test_what_speaks_of_other_nodes_or_of_the_job_judges_no_rung() -> None:
    of_the_job = Band("all_reduce", 1, 1 << 40, Expectation(900.0, 800.0, "GB/s", "user", "w", "s"))
    assert {row.status for row in climbed((ALONE, NODE, JOB), [band(ranks=4), of_the_job])} == {"unjudged"}
