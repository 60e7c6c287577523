"""How often a row is measured: decided by numbers alone."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import stats
from ncclprobe.probes.plan import BATCH_S, MOST_BATCHES, MOST_CALLS, Target, calls_per_batch, more_batches
from tests.each_row import each_row

TARGET = Target(precision=0.02, budget_s=2.0)
times = st.lists(st.floats(1e-6, 10.0), max_size=MOST_BATCHES)


@each_row(("call_s", "calls"), [(BATCH_S / 50, 50), (1.0, 1), (BATCH_S, 1), (1e-8, MOST_CALLS), (0.0, MOST_CALLS)])
def test_a_batch_lasts_long_enough_and_holds_no_more_calls_than_it_may(call_s: float, calls: int) -> None:
    assert calls_per_batch(call_s, Target(0.02, budget_s=0.5)) == calls


def test_batches_are_long_enough_for_all_that_may_be_made_to_last_the_budget() -> None:
    assert calls_per_batch(1e-3, Target(0.02, budget_s=20.0)) * MOST_BATCHES * 1e-3 >= 20.0


def test_the_first_look_needs_as_many_samples_as_an_interval() -> None:
    assert more_batches([], 100.0, TARGET) == stats.MIN_SAMPLES
    assert more_batches([1.0] * 3, 100.0, TARGET) == stats.MIN_SAMPLES - 3


def test_what_is_precise_enough_is_enough() -> None:
    assert more_batches([1.0] * 5, 0.1, TARGET) == 0


def test_it_goes_on_to_where_it_should_be_enough_and_never_further_than_twice_as_far() -> None:
    near = [0.98, 0.98, 1.0, 1.03, 1.03]  # ± 2.5 %: 1.56 times as many should do
    assert more_batches(near, 0.01, TARGET) == 3
    assert more_batches([0.5, 0.7, 1.0, 1.3, 1.5], 0.01, TARGET) == 5


def test_only_what_the_budget_can_pay_for_is_added() -> None:
    wide = [0.5, 0.7, 1.0, 1.3, 1.5]
    assert more_batches(wide, 1.5, TARGET) == 1  # 0.3 s each, and half a second left
    assert more_batches(wide, 1.9, TARGET) == 0
    assert more_batches(wide, 50.0, TARGET) == 0


def test_no_row_grows_without_bound() -> None:
    wide = [1.0, 2.0] * (MOST_BATCHES // 2)
    assert more_batches(wide, 1e-3, TARGET) == 0
    assert more_batches(wide[:-10], 1e-3, TARGET) == 10


@given(times, st.floats(0, 100))
def test_a_decision_never_asks_for_less_than_nothing_or_more_than_fits(samples: list[float], spent_s: float) -> None:
    assert 0 <= more_batches(samples, spent_s, TARGET) <= MOST_BATCHES - len(samples)


def test_the_interval_reached_holds_the_true_median_about_as_often_as_it_says() -> None:
    """Stopping as soon as it looks good costs some of the 95 %; on noise with a tail, not much."""
    draw, held = random.Random(7), 0
    for _ in range(300):
        samples: list[float] = []
        while more := more_batches(samples, 1e-3 * len(samples), TARGET):
            samples += [1.0 + 0.05 * draw.expovariate(1.0) for _ in range(more)]
        low, high = stats.median_interval(samples)
        held += low <= 1.0 + 0.05 * 0.6931471805599453 <= high
    assert held / 300 > 0.85
