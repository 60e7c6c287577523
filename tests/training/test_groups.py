"""Groups partition the world, are numbered as Megatron numbers them, and unwise ones are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import training
from ncclprobe.model.errors import UsageError
from ncclprobe.model.training import AXES, Axis, Grid

sizes = st.integers(1, 5)
grids = st.builds(Grid, tp=sizes, dp=sizes, pp=sizes)


@given(grid=grids, kind=st.sampled_from(AXES))
def test_the_groups_of_every_kind_are_a_partition_of_the_world(grid: Grid, kind: Axis) -> None:
    found = grid.groups(kind)
    assert sorted(rank for group in found for rank in group) == list(range(grid.ranks))
    assert {len(group) for group in found} == {grid.along(kind)}


@given(grid=grids)
def test_what_is_written_is_read_back(grid: Grid) -> None:
    assert training.parse(str(grid)) == grid


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp=2,tp=4", "tp is given twice"),
        ("xp=2", "'xp' is not a known kind of group; choose from tp, dp, pp"),
        ("tp=0", "must be a whole number above zero"),
        ("tp", "must be a whole number above zero"),
        ("tp=-2", "must be a whole number"),
        ("", "is not a known kind of group"),
        ("tp=9999999,dp=9999999", "ranks are too many"),
    ],
)
def test_groups_that_make_no_sense_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--groups") as error:
        training.parse(text)
    assert said in str(error.value)


def test_a_product_that_is_not_the_world_is_refused_with_what_would_fit() -> None:
    with pytest.raises(UsageError, match=r"is 4 ranks, but this job has 8; the groups must use all ranks; dp=4 would"):
        training.fit(Grid(tp=2, dp=2), 8)
    with pytest.raises(UsageError, match="8 is not a multiple of 3"):
        training.fit(Grid(tp=3), 8)
    assert training.fit(Grid(tp=2, dp=4), 8).ranks == 8


def test_a_tensor_parallel_group_larger_than_a_node_is_measured_and_said_to_be_unwise() -> None:
    (said,) = training.advice(Grid(tp=4), ["n0", "n0", "n1", "n1"])
    assert "1 of 1 tensor-parallel groups cross nodes" in said
    assert "a group of 4 is larger than a node of 2" in said


def test_ranks_numbered_round_robin_over_nodes_are_told_and_node_by_node_are_not() -> None:
    grid = Grid(tp=2, dp=2)
    assert training.advice(grid, ["n0", "n1", "n0", "n1"])
    assert training.advice(grid, ["n0", "n0", "n1", "n1"]) == ()
