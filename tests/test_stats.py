"""Statistics of samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import stats
from ncclprobe.model import TimeStats

samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


def test_seconds_become_microseconds() -> None:
    summary = stats.summary([1e-6, 2e-6, 3e-6, 4e-6, 10e-6])
    assert summary.mean == pytest.approx(4)
    assert summary.median == pytest.approx(3)
    assert (summary.min, summary.p95, summary.max) == pytest.approx((1, 10, 10))
    assert summary.stdev == pytest.approx(3.5355339)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_too_few_batches_have_a_mean_and_no_spread(count: int) -> None:
    summary = stats.summary([0.25] * count)
    assert summary == TimeStats(mean=250_000)


@pytest.mark.parametrize(
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


def test_the_interval_holds_the_median_and_is_reproducible() -> None:
    ratios = [0.9, 0.97, 1.0, 1.02, 1.04, 1.1, 1.3]
    low, high = stats.bootstrap(ratios)
    assert 0.9 <= low <= 1.02 <= high <= 1.3
    assert stats.bootstrap(ratios) == (low, high)


def test_equal_samples_leave_no_doubt() -> None:
    assert stats.bootstrap([1.0] * 5) == (1.0, 1.0)
