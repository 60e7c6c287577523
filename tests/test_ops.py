"""Byte counts, rounding, bus factors: the numbers of nccl-tests, by its own vectors and by hand."""

import pytest
from conftest import fact_rows
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES, HYPERCUBE, OPS, CallShape, Op, sizes
from tests.each_row import each_row

MiB = 1 << 20


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
        assert shape == CallShape(
            nbytes=vector["printed_size"],
            count=vector["printed_count"],
            send_bytes=vector["send_bytes"],
            recv_bytes=vector["recv_bytes"],
            send_offset=vector["send_inplace_off"],
            recv_offset=vector["recv_inplace_off"],
        ), vector
        expected = (vector["algbw_at_1ms"], vector["busbw_at_1ms"])
        assert op.bandwidth(shape, int(row["nranks"]), 1e-3) == pytest.approx(expected), vector


@each_row(
    ("op", "nbytes", "ranks", "printed", "count"),
    [
        ("all_gather", 1000, 3, 960, 80),  # 250 floats / 3 = 83, rounded down to a multiple of 16 bytes
        ("all_gather", 8, 8, 0, 0),
        ("all_gather", 1 << 30, 72, 1073741184, 3728268),
        ("reduce_scatter", 1000, 3, 960, 80),
        ("all_reduce", 1000, 3, 1000, 250),
        ("all_reduce", 1003, 3, 1000, 250),
        ("sendrecv", 8, 72, 8, 2),
    ],
)
def test_the_printed_size_is_what_the_ranks_really_share(
    op: str, nbytes: int, ranks: int, printed: int, count: int
) -> None:
    shape = OPS[op].shape(nbytes, ranks, 4)
    assert (shape.nbytes, shape.count) == (printed, count)


@each_row("op", OPS.values(), ids=list(OPS))
def test_one_rank_moves_nothing_between_ranks_unless_the_buffer_is_counted_whole(op: Op) -> None:
    busbw = op.bandwidth(op.shape(MiB, 1, 4), 1, 1e-3)[1]
    assert (busbw > 0) == (op.name in {"broadcast", "reduce", "sendrecv"})


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
@given(nbytes=st.integers(1, 1 << 34), ranks=st.integers(1, 2000), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_a_shape_never_exceeds_what_was_asked_for_and_in_place_fits(
    op: Op, nbytes: int, ranks: int, itemsize: int
) -> None:
    shape = op.shape(nbytes, ranks, itemsize)
    assert shape.nbytes <= nbytes
    assert shape.nbytes == max(shape.send_bytes, shape.recv_bytes)
    assert (ranks - 1) * shape.send_offset + shape.send_bytes <= shape.nbytes
    assert (ranks - 1) * shape.recv_offset + shape.recv_bytes <= shape.nbytes
    assert shape.send_bytes % itemsize == shape.recv_bytes % itemsize == 0


def test_torch_does_these_in_place_only() -> None:
    assert {op.name for op in OPS.values() if op.places == ("in",)} == {"all_reduce", "broadcast", "reduce"}
    assert {op.name for op in OPS.values() if len(op.places) == 2} == {"all_gather", "reduce_scatter"}


def test_the_default_data_type_comes_first() -> None:
    assert next(iter(DTYPES)) == "float32"


@each_row(
    ("begin", "end", "factor", "expected"),
    [(8, 64, 2, (8, 16, 32, 64)), (8, 100, 2, (8, 16, 32, 64, 100)), (5, 5, 2, (5,)), (1, 100, 10, (1, 10, 100))],
)
def test_sizes_step_by_the_factor_up_to_the_end_which_is_among_them(
    begin: int, end: int, factor: int, expected: tuple[int, ...]
) -> None:
    assert sizes(begin, end, factor) == expected


@each_row(
    ("begin", "end", "factor", "named"),
    [
        (0, 8, 2, "-b 0"),
        (16, 8, 2, "-b 16 B is above -e 8 B"),
        (8, 16, 1, "-f 1"),
        (8, 16, 0, "-f 0"),
        (-8, 8, 2, "-b -8"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_line(begin: int, end: int, factor: int, named: str) -> None:
    with pytest.raises(UsageError, match=named) as refusal:
        sizes(begin, end, factor)
    assert "\n" not in str(refusal.value)
