"""Groups, steps and ladders of training. Whole plans and times are kept in tests/data/command_values/training.txt."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes.plans import plan as plan_of_ranks

from ncclprobe.model import training
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Band, Conditions, Expectation
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.training import AXES, STRATEGIES, Axis, Collective, Grid, Model, Rung, Strategy, climbed, plan
from ncclprobe.model.values import replace
from tests.each_row import each_row

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


@each_row(
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


def test_a_tensor_parallel_group_larger_than_a_node_or_numbered_round_robin_is_said_to_be_unwise() -> None:
    (said,) = training.advice(Grid(tp=4), ["n0", "n0", "n1", "n1"])
    assert "1 of 1 tensor-parallel groups cross nodes" in said
    assert "a group of 4 is larger than a node of 2" in said
    assert training.advice(Grid(tp=2, dp=2), ["n0", "n1", "n0", "n1"])
    assert training.advice(Grid(tp=2, dp=2), ["n0", "n0", "n1", "n1"]) == ()


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


def test_a_step_that_needs_more_memory_than_a_rank_has_is_refused() -> None:
    pytest.importorskip("torch")
    from ncclprobe.probes.training import Bench, play_strategy

    nobody: Any = None
    bench = Bench(plan_of_ranks(), nobody, lambda phase: None, nobody)
    with pytest.raises(UsageError, match=r"fsdp: its largest call needs .* on every rank and a rank has only 1 GiB"):
        next(play_strategy(bench, nobody, "fsdp", Model(params=10**12, layers=1), 1 << 30))


# The ladder.

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


@each_row(
    ("hosts", "pairs", "rungs"),
    [
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
    assert plan(["a", "b", "a", "b"], pairs=False)[1] == Rung("node", ((0, 2), (1, 3)))
    assert [plan(["a"] * 3, pairs=True)[1].of(rank) for rank in range(3)] == [(0, 1), (0, 1), (2,)]


def test_speed_up_and_efficiency_are_beside_one_rank_of_the_same_work() -> None:
    rows = climbed((ALONE, NODE, JOB), ())
    assert [row.speedup for row in rows] == pytest.approx([1.0, 8 * 2000 / 2200, 12.8])
    assert [row.efficiency for row in rows] == pytest.approx([1.0, 2000 / 2200, 0.8])
    assert {row.status for row in rows} == {"unjudged"}
    assert climbed((NODE, JOB), ()) == (NODE, JOB), "without the lowest rung nothing is compared"


def test_efficiency_is_of_steps_taken_in_turn_and_not_of_medians() -> None:
    """The machine slows down while it is measured: all rungs do, and the ratio does not."""
    slower = tuple(2000.0 * (1 + turn) for turn in range(9))
    one, node = replace(ALONE, samples_us=slower), replace(NODE, samples_us=tuple(2 * each for each in slower))
    (_, row) = climbed((one, node), ())
    assert (row.efficiency, row.interval) == (0.5, (0.5, 0.5))
    (_, few) = climbed((replace(one, samples_us=slower[:2]), replace(node, samples_us=slower[:2])), ())
    assert (few.efficiency, few.interval) == (1.0, None)


@each_row(
    ("busbw", "best", "worst", "ranks", "status"),
    [
        (472.0, 475.0, "fail", 8, "pass"),
        (300.0, 310.0, "fail", 8, "fail"),
        (300.0, 310.0, "warn", 8, "warn"),
        (300.0, 310.0, "unjudged", 8, "unjudged"),
        (300.0, 460.0, "fail", 8, "inconclusive"),
        (None, None, "fail", 8, "unjudged"),
        (300.0, 310.0, "fail", 4, "unjudged"),  # what speaks of other nodes
    ],
)
def test_a_node_is_judged_by_what_a_node_reaches_as_far_as_that_is_known(
    busbw: float | None, best: float | None, worst: Any, ranks: int, status: str
) -> None:
    known = Expectation(480.0, 440.0, "GB/s", "published", "w", "s", worst=worst)
    at = Conditions(ranks, 1, "float32", "sum", "in", "queued", "nccl")
    of_the_job = Band("all_reduce", 1, 1 << 40, Expectation(900.0, 800.0, "GB/s", "user", "w", "s"))
    bands = [of_the_job, Band("all_reduce", 1 << 30, 1 << 30, known, at)]
    rows = climbed((ALONE, replace(NODE, busbw_GBps=busbw, best_GBps=best), JOB), bands)
    assert [row.status for row in rows] == ["unjudged", status, "unjudged"]
