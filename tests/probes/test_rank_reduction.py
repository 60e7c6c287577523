"""How often a row is measured, and what becomes of the times of all ranks: a row, its interval, its slowest rank.

What is decided for more samples is kept in tests/data/command_values/plans.txt.
"""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import stats
from ncclprobe.model.measurement import Measurement, Mismatch
from ncclprobe.model.ops import OPS
from ncclprobe.probes.arrival_skew import Arrival
from ncclprobe.probes.plan import BATCH_S, MOST_BATCHES, MOST_CALLS, Target, calls_per_batch, more_batches
from ncclprobe.probes.sweep import RankResult, reduce_ranks
from probes.plans import plan
from tests.each_row import each_row

TARGET = Target(precision=0.02, budget_s=2.0)
WIDE = [0.5, 0.7, 1.0, 1.3, 1.5]


@each_row(
    ("call_s", "budget_s", "calls"),
    [
        (BATCH_S / 50, 0.5, 50), (1.0, 0.5, 1), (BATCH_S, 0.5, 1), (1e-8, 0.5, MOST_CALLS), (0.0, 0.5, MOST_CALLS),
        (1e-3, 20.0, 20_000 // MOST_BATCHES),  # all that may be made last the budget
    ],
)  # fmt: skip
def test_a_batch_lasts_long_enough_and_holds_no_more_calls_than_it_may(
    call_s: float, budget_s: float, calls: int
) -> None:
    assert calls_per_batch(call_s, Target(0.02, budget_s)) == calls


@each_row(
    ("samples", "spent_s", "more"),
    [
        ([], 100.0, stats.MIN_SAMPLES),  # as many as an interval needs
        ([1.0] * 3, 100.0, stats.MIN_SAMPLES - 3),
        ([1.0] * 5, 0.1, 0),  # precise enough
        ([0.98, 0.98, 1.0, 1.03, 1.03], 0.01, 3),  # ± 2.5 %: 1.56 times as many should do
        (WIDE, 0.01, 5),  # never further than twice as far
        (WIDE, 1.5, 1),  # 0.3 s each, and half a second left
        (WIDE, 1.9, 0),
        (WIDE, 50.0, 0),
        ([1.0, 2.0] * (MOST_BATCHES // 2), 1e-3, 0),
        (([1.0, 2.0] * (MOST_BATCHES // 2))[:-10], 1e-3, 10),
    ],
)
def test_batches_are_added_until_the_median_is_precise_or_the_budget_is_spent(
    samples: list[float], spent_s: float, more: int
) -> None:
    assert more_batches(samples, spent_s, TARGET) == more


@given(st.lists(st.floats(1e-6, 10.0), max_size=MOST_BATCHES), st.floats(0, 100))
def test_a_decision_never_asks_for_less_than_nothing_or_more_than_fits(samples: list[float], spent_s: float) -> None:
    assert 0 <= more_batches(samples, spent_s, TARGET) <= MOST_BATCHES - len(samples)


def tallied(rows: dict[int, list[float]], batches: int = 1, precision: float | None = None, **more: Any) -> Measurement:
    """A row for an all_reduce of 1 MB between as many ranks as there are rows of milliseconds."""
    op = OPS["all_reduce"]
    made = plan(ranks=max(2, len(rows)), batches=batches, iters=1, precision=precision)
    results = {rank: RankResult([each / 1e3 for each in ms], 1e-6, **more) for rank, ms in rows.items()}
    return reduce_ranks(made, op, op.shape(1_000_000, made.ranks, 4), "in", 64, 1, results)


@each_row(
    ("rows", "precision", "mean_us", "median_us", "GBps"),
    [
        ({0: [1], 1: [3]}, None, 2000, None, 0.5),  # the mean of the rates 1 and 1/3 GB/s would be 0.67
        ({0: [1, 9], 1: [1, 9]}, None, 5000, None, 0.2),
        ({0: [1] * 4 + [9], 1: [1] * 4 + [9]}, 0.02, 2600, 1000, 1.0),  # a median, once there are batches for one
        ({0: [1] * 4 + [9], 1: [1] * 4 + [9]}, None, 2600, 1000, 1 / 2.6),  # the mean, as nccl-tests shows
    ],
)
def test_bandwidth_comes_from_the_mean_or_median_time_and_not_from_rates(
    rows: dict[int, list[float]], precision: float | None, mean_us: float, median_us: float | None, GBps: float
) -> None:
    row = tallied(rows, len(rows[0]), precision)
    assert row.time_us.mean == pytest.approx(mean_us)
    assert row.time_us.median == (median_us and pytest.approx(median_us))
    assert (row.algbw_GBps, row.busbw_GBps) == pytest.approx((GBps, GBps))
    assert (row.interval_us is None) is (median_us is None)
    assert not row.interval_us or row.interval_us[0] == pytest.approx(1000), "verdicts go by where the median lies"


def test_a_sample_is_the_mean_over_ranks_of_one_batch_and_all_are_kept() -> None:
    row = tallied({0: [1, 2, 3, 4, 5], 1: [3, 4, 5, 6, 7]})
    spread = row.time_us
    assert (spread.min, spread.median, spread.max) == pytest.approx((2000, 4000, 6000))
    assert row.interval_us == pytest.approx((2000, 6000))
    assert (row.precision, row.issue_us) == pytest.approx((0.5, 1))
    assert row.samples is not None
    assert row.samples.by_rank == (3000, 5000)
    assert row.samples.by_batch == (2000, 3000, 4000, 5000, 6000)
    assert row.samples.each == ((1000, 2000, 3000, 4000, 5000), (3000, 4000, 5000, 6000, 7000))


@each_row(("batches", "kept"), [(10, 100), (11, 0)])
def test_of_many_ranks_and_batches_only_the_means_are_kept(batches: int, kept: int) -> None:
    samples = tallied({rank: [1] * batches for rank in range(100)}).samples
    assert samples is not None
    assert (len(samples.by_rank), len(samples.by_batch), len(samples.each)) == (100, batches, kept)


@each_row(
    ("rows", "slowest"),
    [({0: [9, 1], 1: [6, 6], 2: [1, 1]}, 1), ({3: [1]}, 3)],  # another than 0 speaks for itself
)
def test_the_slowest_rank_is_named_even_if_another_has_the_worst_batch(
    rows: dict[int, list[float]], slowest: int
) -> None:
    assert tallied(rows).slowest_rank == slowest


def test_too_few_batches_have_a_mean_and_nothing_else() -> None:
    row = tallied({0: [1] * 4})
    spread = row.time_us
    assert (spread.median, spread.min, spread.p95, spread.max, spread.stdev) == (None,) * 5
    assert (row.interval_us, row.precision, row.launch_bound, row.device_us) == (None, None, False, None)


@each_row(("each", "wrong"), [(3, 6), (0, 0), (None, None)])
def test_wrong_elements_are_summed_over_ranks_and_null_when_nobody_looked(each: int | None, wrong: int | None) -> None:
    mismatch = Mismatch(1, 2, None, "1", "2", "0x1", "0x2") if each else None
    row = tallied({0: [1], 1: [1]}, wrong=each, mismatch=mismatch)
    assert (row.wrong, len(row.mismatches)) == (wrong, 2 if each else 0)
    assert len(tallied({rank: [1] for rank in range(9)}, wrong=each, mismatch=mismatch).mismatches) == (
        8 if each else 0
    )


@each_row(("mode", "issue_us", "bound"), [("queued", 800, True), ("queued", 790, False)])
def test_a_row_whose_time_is_handing_over_is_launch_bound(
    mode: str, issue_us: float, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    op = OPS["all_reduce"]
    made = plan(backend="nccl", mode=mode)
    row = reduce_ranks(made, op, op.shape(8, 2, 4), "in", 64, 1, {0: RankResult([1e-3], issue_us / 1e6, device_s=2e-4)})
    assert row.launch_bound is bound
    assert row.device_us == pytest.approx(200)


def test_what_a_rank_tells_survives_the_way_through_json() -> None:
    mismatch = Mismatch(1, 2, None, "1", "2", "0x1", "0x2")
    said = RankResult([1e-3, 0.1 + 0.2], 1e-6, None, 1, mismatch, [Arrival(1.0, 2.0, 3.0)])
    assert RankResult.unpack(json.loads(json.dumps(said.pack()))) == said
