"""Byte counts, rounding, bus factors: the numbers of nccl-tests, by its own vectors and by hand; and statistics."""

import pytest
from conftest import fact_rows
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import stats
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import TimeStats
from ncclprobe.model.ops import DTYPES, HYPERCUBE, OPS, CallShape, Op, sizes
from tests.each_row import each_row


def named(collective: str) -> Op:
    ours = {"alltoall": OPS["all_to_all"], "hypercube": HYPERCUBE}
    return ours.get(collective) or OPS[collective]


def test_all_vectors_of_nccl_tests_come_out() -> None:
    vectors = fact_rows("nccl_tests_vectors.csv")
    assert len(vectors) == 720
    for row in vectors:
        op = named(row["coll"])
        vector = {name: float(value) for name, value in row.items() if name != "coll"}
        shape = op.shape(int(row["req_bytes"]), int(row["nranks"]), int(row["elt"]))
        names = ("printed_size", "printed_count", "send_bytes", "recv_bytes", "send_inplace_off", "recv_inplace_off")
        assert shape == CallShape(*(vector[name] for name in names)), vector  # type: ignore[arg-type]
        expected = (vector["algbw_at_1ms"], vector["busbw_at_1ms"])
        assert op.bandwidth(shape, int(row["nranks"]), 1e-3) == pytest.approx(expected), vector


@each_row(
    ("op", "nbytes", "ranks", "printed", "count"),
    [
        ("all_gather", 1000, 3, 960, 80),  # 250 floats / 3 = 83, rounded down to a multiple of 16 bytes
        ("all_gather", 8, 8, 0, 0),
        ("all_gather", 1 << 30, 72, 1073741184, 3728268),
        ("all_reduce", 1003, 3, 1000, 250),
    ],
)
def test_the_printed_size_is_what_the_ranks_really_share(
    op: str, nbytes: int, ranks: int, printed: int, count: int
) -> None:
    shape = OPS[op].shape(nbytes, ranks, 4)
    assert (shape.nbytes, shape.count) == (printed, count)


@given(
    name=st.sampled_from(sorted(OPS)),
    nbytes=st.integers(1, 1 << 34),
    ranks=st.integers(1, 2000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
)
def test_a_shape_never_exceeds_what_was_asked_for_and_in_place_fits(
    name: str, nbytes: int, ranks: int, itemsize: int
) -> None:
    shape = OPS[name].shape(nbytes, ranks, itemsize)
    assert shape.nbytes == max(shape.send_bytes, shape.recv_bytes) <= nbytes
    assert (ranks - 1) * shape.send_offset + shape.send_bytes <= shape.nbytes
    assert (ranks - 1) * shape.recv_offset + shape.recv_bytes <= shape.nbytes
    assert shape.send_bytes % itemsize == shape.recv_bytes % itemsize == 0


def test_one_rank_moves_nothing_torch_does_some_in_place_only_and_types_have_their_width() -> None:
    alone = {op.name for op in OPS.values() if op.bandwidth(op.shape(1 << 20, 1, 4), 1, 1e-3)[1] > 0}
    assert alone == {"broadcast", "reduce", "sendrecv"}  # whose buffer is counted whole
    assert {op.name for op in OPS.values() if op.places == ("in",)} == {"all_reduce", "broadcast", "reduce"}
    assert {op.name for op in OPS.values() if len(op.places) == 2} == {"all_gather", "reduce_scatter"}
    widths = "float32 4, float64 8, float16 2, bfloat16 2, int8 1, uint8 1, int32 4, int64 8"
    assert ", ".join(f"{name} {width}" for name, width in DTYPES.items()) == widths


def test_sizes_step_by_the_factor_up_to_the_end_which_is_among_them_or_are_refused() -> None:
    steps = {
        (8, 64, 2): (8, 16, 32, 64),
        (8, 100, 2): (8, 16, 32, 64, 100),
        (5, 5, 2): (5,),
        (1, 100, 10): (1, 10, 100),
    }
    assert {each: sizes(*each) for each in steps} == steps
    refused = {(0, 8, 2): "-b 0", (16, 8, 2): "-b 16 B is above -e 8 B", (8, 16, 1): "-f 1", (8, 16, 0): "-f 0"}
    for each, why in {**refused, (-8, 8, 2): "-b -8"}.items():
        with pytest.raises(UsageError, match=f"^[^\n]*{why}[^\n]*$"):
            sizes(*each)


samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


@each_row(
    ("micros", "mean", "median", "ends", "stdev"),
    [
        ([1, 2, 3, 4, 10], 4, 3, (1, 10, 10), 3.5355339),
        # The sum is 120, the squares about 20 are 100, 64, 36, 16, 4 and 900.
        ([14.0, 10.0, 50.0, 12.0, 18.0, 16.0], 20, 15, (10, 50, 50), (1120 / 5) ** 0.5),
    ],
)
def test_each_statistic_of_a_row_is_what_it_is_by_hand(
    micros: list[float], mean: float, median: float, ends: tuple[float, ...], stdev: float
) -> None:
    summary = stats.summary([value / 1e6 for value in micros])
    assert (summary.mean, summary.median, summary.stdev) == pytest.approx((mean, median, stdev))
    assert (summary.min, summary.p95, summary.max) == pytest.approx(ends)
    assert [stats.summary([0.25] * count) for count in (1, 2, 4)] == [TimeStats(mean=250_000)] * 3  # no spread


def test_percentiles_are_nearest_rank_and_the_interval_of_the_median_is_that_by_hand() -> None:
    """At least 3 of 5 draws among the first of 5: 0.058, so even the smallest is not ruled out; 3 of 6: 0.062.

    At least 4 of 7 among the first of 7: 0.010, among the first two: 0.108; 5 of 9: 0.001 and 0.030.
    """
    ranks = {(50, 4): 2, (50, 5): 3, (95, 100): 95, (95, 5): 5, (99, 50): 50, (100, 3): 3, (0, 3): 1}
    assert {each: stats.percentile(list(range(each[1], 0, -1)), each[0]) for each in ranks} == ranks
    intervals = {1: (1, 1), 5: (1, 5), 6: (1, 6), 7: (2, 6), 9: (2, 8)}
    assert {count: stats.median_interval(list(range(count, 0, -1))) for count in intervals} == intervals


@given(samples)
def test_a_percentile_covers_its_share_and_the_interval_holds_the_median(values: list[float]) -> None:
    p95 = stats.percentile(values, 95)
    assert p95 in values
    assert sum(value <= p95 for value in values) >= 0.95 * len(values)
    low, high = stats.median_interval(values)
    assert low <= sorted(values)[len(values) // 2] <= high


def test_precision_is_half_the_interval_as_a_share_of_the_median() -> None:
    assert stats.precision([98, 99, 100, 101, 102]) == pytest.approx(0.02)
    assert stats.precision([1.0] * 4) == stats.precision([0.0] * 5) == float("inf")  # nobody knows
