"""Groups, steps and ladders of training. Whole plans and times are kept in tests/data/command_values/training.txt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import training
from ncclprobe.model.training import AXES, STRATEGIES, Axis, Collective, Grid, Model, Strategy

MIB = 1 << 20
sizes = st.integers(1, 5)
grids = st.builds(Grid, tp=sizes, dp=sizes, pp=sizes)


@given(grid=grids, kind=st.sampled_from(AXES))
def test_the_groups_of_every_kind_are_a_partition_of_the_world_and_what_is_written_is_read_back(
    grid: Grid, kind: Axis
) -> None:
    found = grid.groups(kind)
    assert sorted(rank for group in found for rank in group) == list(range(grid.ranks))
    assert {len(group) for group in found} == {grid.along(kind)}
    assert training.parse(str(grid)) == grid


# One step.


@given(
    strategy=st.sampled_from(STRATEGIES),
    model=st.builds(
        Model,
        params=st.integers(1_000, 10**8),  # up to 400 buckets; ten times as many take minutes and say no more
        layers=st.integers(1, 12),
        dtype_bytes=st.sampled_from([2, 4]),
        micro_batches=st.integers(1, 4),
    ),
    compute_s=st.floats(0.001, 10),
    call_s=st.floats(0, 1),
)
def test_a_step_moves_the_bytes_of_its_paper_and_overlap_never_costs_and_hides_no_more_than_there_is(
    strategy: Strategy, model: Model, compute_s: float, call_s: float
) -> None:
    items = training.step(strategy, model)
    moved: dict[str, int] = {}
    for item in items:
        if isinstance(item, Collective):
            moved[item.op] = moved.get(item.op, 0) + item.nbytes
    whole = model.params * model.dtype_bytes
    sharded = {"all_gather": 2 * whole * model.micro_batches, "reduce_scatter": whole * model.micro_batches}
    assert strategy == "tp" or moved == {"ddp": {"all_reduce": whole}, "fsdp": sharded}[strategy]
    hidden = training.predict(items, compute_s, lambda _: call_s)
    apart = training.predict(items, compute_s, lambda _: call_s, overlap=False)
    assert max(compute_s, hidden.calls_s) <= hidden.step_s * (1 + 1e-9)
    assert hidden.step_s <= apart.step_s * (1 + 1e-9)
    assert apart.step_s == pytest.approx(compute_s + apart.calls_s)


def test_steps_take_what_a_hand_computation_says() -> None:
    """DDP, 3 s: forward 1 s, then buckets of 1, 25 and 25 MiB, ready at 1.04, 2.02 and 3 s; a call takes 1 s.

    FSDP, two layers, 6 s (1 + 1 forward, 2 + 2 backward), gathering 1 s and scattering 0.5 s each: gather 0 to 1,
    forward 0 to 2 while layer 1 is gathered, forward 1 to 3; gather for backward to 4, backward to 6 while layer 0 is
    gathered, its gradients to 6.5, backward of layer 0 to 8, its gradients to 8.5.
    """
    found = training.predict(training.step("ddp", Model(params=51 * MIB, layers=1, dtype_bytes=1)), 3.0, lambda _: 1.0)
    assert (found.step_s, found.efficiency) == pytest.approx((1 + 2 / 51 + 3, 3 / (4 + 2 / 51)))
    seconds = {"all_gather": 1.0, "reduce_scatter": 0.5}
    sharded = training.step("fsdp", Model(params=2, layers=2))
    assert training.predict(sharded, 6.0, lambda call: seconds[call.op]).step_s == pytest.approx(8.5)
    assert training.predict(sharded, 6.0, lambda call: seconds[call.op], overlap=False).step_s == pytest.approx(11)
