"""Steps of training move the bytes that their papers say, and their times are what a hand computation gives."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes.plans import plan

from ncclprobe.model import training
from ncclprobe.model.errors import UsageError
from ncclprobe.model.training import STRATEGIES, Collective, Model, StepPlan, Strategy

MIB = 1 << 20
models = st.builds(
    Model,
    params=st.integers(1_000, 10**8),  # up to 400 buckets; ten times as many take minutes and say no more
    layers=st.integers(1, 12),
    dtype_bytes=st.sampled_from([2, 4]),
    micro_batches=st.integers(1, 4),
)
strategies = st.sampled_from(STRATEGIES)


def _total_bytes(items: StepPlan) -> Counter[str]:
    """Return the bytes of all calls, by operation."""
    found: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Collective):
            found[item.op] += item.nbytes
    return found


@given(model=models)
def test_sharded_training_moves_three_times_the_parameters_per_micro_batch(model: Model) -> None:
    whole = model.params * model.dtype_bytes * model.micro_batches
    moved = _total_bytes(training.step("fsdp", model))
    assert moved == {"all_gather": 2 * whole, "reduce_scatter": whole}


@given(model=models)
def test_ddp_sums_each_gradient_once_per_step(model: Model) -> None:
    assert _total_bytes(training.step("ddp", model)) == {"all_reduce": model.params * model.dtype_bytes}


def test_ddp_with_three_buckets_takes_what_a_hand_computation_says() -> None:
    """Compute 3 s: forward 1 s, then buckets of 1, 25 and 25 MiB, ready at 1.04, 2.02 and 3 s; a call takes 1 s."""
    model = Model(params=51 * MIB, layers=1, dtype_bytes=1)
    items = training.step("ddp", model)
    overlapped = training.predict(items, 3.0, lambda _: 1.0)
    assert overlapped.step_s == pytest.approx(1 + 2 / 51 + 3)
    assert overlapped.efficiency == pytest.approx(3 / (4 + 2 / 51))
    apart = training.predict(items, 3.0, lambda _: 1.0, overlap=False)
    assert apart.step_s == pytest.approx(6)
    assert apart.calls_s == pytest.approx(3)


def test_a_layer_is_gathered_while_the_one_before_it_computes() -> None:
    """Two layers, compute 6 s (1 + 1 forward, 2 + 2 backward), gathering 1 s and scattering 0.5 s each."""
    items = training.step("fsdp", Model(params=2, layers=2))
    seconds = {"all_gather": 1.0, "reduce_scatter": 0.5}
    found = training.predict(items, 6.0, lambda call: seconds[call.op])
    # gather 0 to 1, forward 0 to 2 while layer 1 is gathered, forward 1 to 3; gather for backward to 4, backward to 6
    # while layer 0 is gathered, its gradients to 6.5, backward of layer 0 to 8, its gradients to 8.5
    assert found.step_s == pytest.approx(8.5)
    assert training.predict(items, 6.0, lambda call: seconds[call.op], overlap=False).step_s == pytest.approx(6 + 4 + 1)


@given(strategy=strategies, model=models, compute_s=st.floats(0.001, 10), call_s=st.floats(0, 1))
def test_overlap_never_costs_and_hides_no_more_than_there_is(
    strategy: Strategy, model: Model, compute_s: float, call_s: float
) -> None:
    items = training.step(strategy, model)
    hidden = training.predict(items, compute_s, lambda _: call_s)
    apart = training.predict(items, compute_s, lambda _: call_s, overlap=False)
    assert max(compute_s, hidden.calls_s) <= hidden.step_s * (1 + 1e-9)
    assert hidden.step_s <= apart.step_s * (1 + 1e-9)
    assert apart.step_s == pytest.approx(compute_s + apart.calls_s)


def test_a_step_that_needs_more_memory_than_a_rank_has_is_refused() -> None:
    pytest.importorskip("torch")
    from ncclprobe.probes.training import Bench, play_strategy

    nobody: Any = None
    bench = Bench(plan(), nobody, lambda phase: None, nobody)
    with pytest.raises(UsageError, match=r"fsdp: its largest call needs .* on every rank and a rank has only 1 GiB"):
        next(play_strategy(bench, nobody, "fsdp", Model(params=10**12, layers=1), 1 << 30))
