"""What becomes of the times of all ranks: a row, its interval, its slowest rank."""

import json

import pytest
import torch

from ncclprobe.model.measurement import Measurement, Mismatch
from ncclprobe.model.ops import OPS
from ncclprobe.probes.arrival_skew import Arrival
from ncclprobe.probes.sweep import RankResult, reduce_ranks
from probes.plans import plan
from tests.each_row import each_row


def tallied(rows: dict[int, RankResult], batches: int = 1, precision: float | None = None) -> Measurement:
    """A row for an all_reduce of 1 MB between as many ranks as there are rows."""
    op = OPS["all_reduce"]
    made = plan(ranks=max(2, len(rows)), batches=batches, iters=1, precision=precision)
    return reduce_ranks(made, op, op.shape(1_000_000, made.ranks, 4), "in", 64, 1, rows)


def test_bandwidth_comes_from_the_mean_time_and_not_from_the_mean_of_rates() -> None:
    row = tallied({0: RankResult([1e-3], 1e-3), 1: RankResult([3e-3], 3e-3)})
    assert row.time_us.mean == pytest.approx(2000)
    assert row.algbw_GBps == pytest.approx(0.5)  # the mean of 1 and 1/3 GB/s would be 0.67
    assert row.busbw_GBps == pytest.approx(0.5)


def test_batches_with_different_times_do_not_become_a_mean_of_rates_either() -> None:
    row = tallied({rank: RankResult([1e-3, 9e-3], 1e-3) for rank in range(2)})
    assert row.algbw_GBps == pytest.approx(1e6 / 5e-3 / 1e9)


def test_bandwidth_comes_from_the_median_once_there_are_batches_for_one() -> None:
    times = {rank: RankResult([1e-3] * 4 + [9e-3], 1e-3) for rank in range(2)}
    row = tallied(times, precision=0.02)
    assert row.time_us.mean == pytest.approx(2600)
    assert row.algbw_GBps == pytest.approx(1e6 / 1e-3 / 1e9)


def test_with_a_fixed_number_of_calls_the_mean_is_shown_as_by_nccl_tests_and_the_median_is_kept() -> None:
    row = tallied({rank: RankResult([1e-3] * 4 + [9e-3], 1e-3) for rank in range(2)}, batches=5)
    assert (row.time_us.typical, row.time_us.median) == pytest.approx((2600, 1000))
    assert row.algbw_GBps == pytest.approx(1e6 / 2.6e-3 / 1e9)
    assert row.interval_us is not None
    assert row.interval_us[0] == pytest.approx(1000), "verdicts go by where the median lies"


def test_a_sample_is_the_mean_over_ranks_of_one_batch_and_all_are_kept() -> None:
    times = {0: [1e-3, 2e-3, 3e-3, 4e-3, 5e-3], 1: [3e-3, 4e-3, 5e-3, 6e-3, 7e-3]}
    row = tallied({rank: RankResult(seconds, 1e-6) for rank, seconds in times.items()})
    spread = row.time_us
    assert (spread.min, spread.median, spread.max) == pytest.approx((2000, 4000, 6000))
    assert row.interval_us == pytest.approx((2000, 6000))
    assert row.precision == pytest.approx(0.5)
    assert row.issue_us == pytest.approx(1)
    assert row.samples is not None
    assert row.samples.by_rank == (3000, 5000)
    assert row.samples.by_batch == (2000, 3000, 4000, 5000, 6000)
    assert row.samples.each == ((1000, 2000, 3000, 4000, 5000), (3000, 4000, 5000, 6000, 7000))


def test_of_many_ranks_and_batches_only_the_means_are_kept() -> None:
    row = tallied({rank: RankResult([1e-3] * 11, 0.0) for rank in range(100)})
    assert row.samples is not None
    assert (len(row.samples.by_rank), len(row.samples.by_batch), row.samples.each) == (100, 11, ())


def test_the_slowest_rank_is_named_even_if_another_has_the_worst_batch() -> None:
    rows = {0: [9e-3, 1e-3], 1: [6e-3, 6e-3], 2: [1e-3, 1e-3]}
    assert tallied({rank: RankResult(seconds, 0.0) for rank, seconds in rows.items()}).slowest_rank == 1


def test_too_few_batches_have_a_mean_and_nothing_else() -> None:
    row = tallied({0: RankResult([1e-3] * 4, 1e-3)})
    spread = row.time_us
    assert (spread.median, spread.min, spread.p95, spread.max, spread.stdev) == (None,) * 5
    assert (row.interval_us, row.precision) == (None, None)


@each_row(("each", "wrong"), [((3, 4), 7), ((None, None), None)])
def test_wrong_elements_are_summed_over_ranks_and_null_when_nobody_looked(
    each: tuple[int | None, ...], wrong: int | None
) -> None:
    assert tallied({rank: RankResult([1e-3], 1e-3, wrong=seen) for rank, seen in enumerate(each)}).wrong == wrong


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


def test_a_blocking_call_is_not_launch_bound_although_handing_over_is_all_of_it() -> None:
    assert not tallied({0: RankResult([1e-3], 1e-3)}).launch_bound


def test_another_rank_than_0_speaks_for_itself() -> None:
    assert tallied({3: RankResult([1e-3], 1e-3)}).slowest_rank == 3


def test_what_a_rank_tells_survives_the_way_through_json() -> None:
    mismatch = Mismatch(1, 2, None, "1", "2", "0x1", "0x2")
    said = RankResult([1e-3, 0.1 + 0.2], 1e-6, None, 1, mismatch, [Arrival(1.0, 2.0, 3.0)])
    assert RankResult.unpack(json.loads(json.dumps(said.pack()))) == said
