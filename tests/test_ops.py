"""Byte counts, rounding, bus factors: the numbers of nccl-tests, by its own vectors and by hand; and statistics."""

import pytest
from conftest import fact_rows
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model import stats
from ncclprobe.model.ops import HYPERCUBE, OPS, CallShape, Op


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


@given(
    name=st.sampled_from(sorted(OPS)), nbytes=st.integers(1, 1 << 34), ranks=st.integers(1, 2000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_a_shape_never_exceeds_what_was_asked_for_and_in_place_fits(
    name: str, nbytes: int, ranks: int, itemsize: int
) -> None:
    shape = OPS[name].shape(nbytes, ranks, itemsize)
    assert shape.nbytes == max(shape.send_bytes, shape.recv_bytes) <= nbytes
    assert (ranks - 1) * shape.send_offset + shape.send_bytes <= shape.nbytes
    assert (ranks - 1) * shape.recv_offset + shape.recv_bytes <= shape.nbytes
    assert shape.send_bytes % itemsize == shape.recv_bytes % itemsize == 0


samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


@given(samples)
def test_a_percentile_covers_its_share_and_the_interval_holds_the_median(values: list[float]) -> None:
    p95 = stats.percentile(values, 95)
    assert p95 in values
    assert sum(value <= p95 for value in values) >= 0.95 * len(values)
    low, high = stats.median_interval(values)
    assert low <= sorted(values)[len(values) // 2] <= high
