"""Statistics of samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import stats
from ncclprobe.model.measurement import TimeStats
from tests.each_row import each_row

samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


def test_seconds_become_microseconds() -> None:
    summary = stats.summary([1e-6, 2e-6, 3e-6, 4e-6, 10e-6])
    assert summary.mean == pytest.approx(4)
    assert summary.median == pytest.approx(3)
    assert (summary.min, summary.p95, summary.max) == pytest.approx((1, 10, 10))
    assert summary.stdev == pytest.approx(3.5355339)


@each_row("count", [1, 2, 4])
def test_too_few_batches_have_a_mean_and_no_spread(count: int) -> None:
    summary = stats.summary([0.25] * count)
    assert summary == TimeStats(mean=250_000)


@each_row(
    ("percent", "count", "expected"),
    [(50, 4, 2), (50, 5, 3), (95, 100, 95), (95, 5, 5), (99, 50, 50), (100, 3, 3), (0, 3, 1)],
)
def test_percentiles_are_nearest_rank(percent: float, count: int, expected: float) -> None:
    assert stats.percentile(list(range(count, 0, -1)), percent) == expected


@given(samples)
def test_a_percentile_is_one_of_the_samples_and_covers_its_share(values: list[float]) -> None:
    p95 = stats.percentile(values, 95)
    assert p95 in values
    assert sum(value <= p95 for value in values) >= 0.95 * len(values)


def test_each_statistic_of_a_row_is_what_it_is_by_hand() -> None:
    """Of 10, 12, 14, 16, 18 and 50 us: the sum is 120, the squares about 20 are 100, 64, 36, 16, 4 and 900."""
    micros = [14.0, 10.0, 50.0, 12.0, 18.0, 16.0]
    summary = stats.summary([value / 1e6 for value in micros])
    assert summary.mean == pytest.approx(20)
    assert summary.median == pytest.approx(15)  # of 14 and 16
    assert (summary.min, summary.p95, summary.max) == pytest.approx((10, 50, 50))
    assert summary.stdev == pytest.approx((1120 / 5) ** 0.5)


@each_row(
    ("count", "low", "high"),
    [
        (5, 1, 5),  # at least 3 of 5 draws among the first of 5: 0.058, so even the smallest is not ruled out
        (7, 2, 6),  # at least 4 of 7 among the first of 7: 0.010, among the first two: 0.108
        (9, 2, 8),  # at least 5 of 9 among the first of 9: 0.001, among the first two: 0.030
        (6, 1, 6),  # at least 3 of 6 among the first of 6: 0.062
        (1, 1, 1),
    ],
)
def test_the_interval_of_the_median_by_hand(count: int, low: int, high: int) -> None:
    assert stats.median_interval(list(range(count, 0, -1))) == (low, high)


@given(samples)
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high = stats.median_interval(values)
    assert low <= sorted(values)[len(values) // 2] <= high


def test_precision_is_half_the_interval_as_a_share_of_the_median() -> None:
    assert stats.precision([98, 99, 100, 101, 102]) == pytest.approx(0.02)
    assert stats.precision([1.0] * 4) == float("inf")  # nobody knows
    assert stats.precision([0.0] * 5) == float("inf")
