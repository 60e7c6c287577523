"""Verification on ideal collectives computed here, for many ranks, and on collectives that are a little wrong."""

import functools
import itertools
from collections.abc import Callable

import torch

from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from ncclprobe.probes.buffers import PERIOD, Pattern, pattern
from ncclprobe.probes.collectives import (
    ROOT,
    Slice,
    all_gather,
    all_to_all,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    sendrecv,
)
from tests.each_row import each_row, some

CPU = torch.device("cpu")
REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def sent(data: Pattern, ranks: int, count: int) -> list[torch.Tensor]:
    """What every rank sends: `count` elements each."""
    buffers = [torch.zeros(count, dtype=data.rows.dtype) for _ in range(ranks)]
    for rank, buffer in enumerate(buffers):
        data.fill(buffer, rank)
    return buffers


def reduced(redop: str, buffers: list[torch.Tensor]) -> torch.Tensor:
    """The reduction in the buffers' own type, one rank after the other, as a ring does it."""
    if redop != "avg":
        return functools.reduce(REDUCTIONS[redop], buffers)
    if buffers[0].is_floating_point():  # NCCL multiplies by a rounded 1/n before it adds
        factor = torch.tensor(1 / len(buffers), dtype=buffers[0].dtype)
        return functools.reduce(torch.add, [buffer * factor for buffer in buffers])
    total = functools.reduce(torch.add, buffers)
    return (total.long() // len(buffers)).to(total.dtype)


def each_pair(*ranks: int) -> list[tuple[str, str, int]]:
    """Return every type with every reduction, the numbers of ranks taking turns."""
    pairs = itertools.product(DTYPES, REDOPS)
    return [(dtype, redop, next_ranks) for (dtype, redop), next_ranks in zip(pairs, itertools.cycle(ranks))]


@each_row(("dtype", "redop", "ranks"), each_pair(1, 2, 3, 300))
def test_every_reduction_is_exact_in_every_type_at_any_scale(dtype: str, redop: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), redop, ranks, CPU)
    result = reduced(redop, sent(data, ranks, 3000 if ranks < 100 else PERIOD))
    assert data.wrong(result, [Slice(None, 0, len(result))]) == 0


@each_row(
    ("dtype", "redop", "ranks"),
    [
        (dtype, redop, ranks)
        for dtype, redop, ranks in each_pair(2, 3, 72)
        if (redop, ranks) != ("avg", 72) or getattr(torch, dtype).is_floating_point  # of small integers: all rounding
    ],
)
def test_a_rank_missing_from_a_reduction_is_noticed(dtype: str, redop: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), redop, ranks, CPU)
    buffers = sent(data, ranks, 3000)
    for lost in (0, ranks - 1):
        present = buffers[:lost] + buffers[lost + 1 :]
        neutral = torch.full_like(buffers[0], {"sum": 0, "avg": 0, "prod": 1}.get(redop, 0))
        padding = [present[0] if redop in ("min", "max") else neutral]
        assert data.wrong(reduced(redop, present + padding), [Slice(None, 0, 3000)]) > 0


@each_row(("dtype", "redop", "ranks"), each_pair(2, 3, 8))
def test_a_reduction_shifted_by_one_element_is_noticed(dtype: str, redop: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), redop, ranks, CPU)
    result = reduced(redop, sent(data, ranks, 3000)).roll(1)
    assert data.wrong(result, [Slice(None, 0, 3000)]) > 0


def test_every_wrong_element_of_moved_data_is_counted() -> None:
    data = pattern(torch.float32, None, 2, CPU)
    received = sent(data, 2, 5000)[1]
    received[[3, 77, 4999]] += 1
    received[100] = float("nan")
    assert data.wrong(received, [Slice(1, 0, 5000)]) == 4


def test_not_a_number_is_wrong_where_there_is_a_tolerance_too() -> None:
    data = pattern(torch.bfloat16, "avg", 3, CPU)
    assert data.wrong(torch.full((10,), float("nan"), dtype=torch.bfloat16), [Slice(None, 0, 10)]) == 10


def test_zeros_are_never_right() -> None:
    for redop in some((None, *REDOPS)):
        data = pattern(torch.float32, redop, 3, CPU)
        assert data.wrong(torch.zeros(100), [Slice(0 if redop is None else None, 0, 100)]) == 100


def test_data_longer_than_one_block_is_verified_to_its_end() -> None:
    count = PERIOD * 1024 + 100
    data = pattern(torch.int32, None, 2, CPU)
    received = sent(data, 2, count)[0]
    assert data.wrong(received, [Slice(0, 0, count)]) == 0
    received[-1] += 1
    assert data.wrong(received, [Slice(0, 0, count)]) == 1


SHARES = {probe.name: probe for probe in (all_gather, all_to_all, gather, scatter, sendrecv)}


def moved(op: str, buffers: list[torch.Tensor], rank: int, ranks: int) -> torch.Tensor:
    """What an ideal data movement leaves on `rank`."""
    if op in ("all_gather", "gather"):
        return torch.cat(buffers)
    if op == "sendrecv":
        return buffers[rank - 1].clone()
    shares = [buffer.view(ranks, -1) for buffer in buffers]
    return shares[ROOT][rank].clone() if op == "scatter" else torch.cat([share[rank] for share in shares])


@each_row("ranks", [2, 3])
@each_row("op", SHARES)
@each_row("dtype", ["float32", "int8"])
def test_moved_data_is_right_on_the_rank_it_is_for_and_wrong_elsewhere(dtype: str, op: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), None, ranks, CPU)
    share = 512  # a power of two, as nearly always
    buffers = sent(data, ranks, share * ranks if OPS[op].sends_all else share)
    parts = [SHARES[op].result(rank, ranks, share) for rank in range(ranks)]
    received = [moved(op, buffers, rank, ranks) for rank in range(ranks)]
    assert [data.wrong(received[rank], parts[rank]) for rank in range(ranks)] == [0] * ranks
    if not OPS[op].receives_all:
        assert data.wrong(received[0], parts[1]) > share // 2


@each_row("op", ["all_gather", "all_to_all", "gather"])
def test_swapped_shares_are_wrong(op: str) -> None:
    data = pattern(torch.bfloat16, None, 3, CPU)
    buffers = sent(data, 3, 512 * 3 if OPS[op].sends_all else 512)
    swapped = moved(op, buffers, ROOT, 3).view(3, 512)[[1, 0, 2]].flatten()
    assert data.wrong(swapped, SHARES[op].result(ROOT, 3, 512)) > 512


def test_what_a_reduce_leaves_beside_the_root_is_nobodys_business() -> None:
    assert list(reduce.result(1, 2, 100)) == []
    data = pattern(torch.float32, "sum", 2, CPU)
    assert data.wrong(torch.full((100,), 7.0), reduce.result(1, 2, 100)) == 0


def test_a_rank_holding_its_neighbours_share_of_a_reduction_is_wrong() -> None:
    data = pattern(torch.float32, "sum", 4, CPU)
    total = reduced("sum", sent(data, 4, 4 * 512)).view(4, 512)
    assert data.wrong(total[1], reduce_scatter.result(1, 4, 512)) == 0
    assert data.wrong(total[2], reduce_scatter.result(1, 4, 512)) > 256


@each_row(
    ("dtype", "right", "wrong"),
    [("float32", "0x3f800000", "0x40000000"), ("bfloat16", "0x3f80", "0x4000"), ("int8", "0x01", "0x02")],
)
def test_the_first_wrong_element_is_shown_with_its_bits_and_who_sent_it(dtype: str, right: str, wrong: str) -> None:
    data = Pattern(*(torch.ones(shape, dtype=getattr(torch, dtype)) for shape in ((3, PERIOD), (PERIOD,))))
    received = torch.ones(4000, dtype=data.rows.dtype)
    received[[2500, 3999]] = 2
    found = data.first_wrong(received, [Slice(0, 0, 2000), Slice(1, 7, 2000)], rank=2)
    assert found is not None
    assert (found.rank, found.offset, found.source) == (2, 2500, 1)
    assert (found.expected_bits, found.got_bits) == (right, wrong)
    assert (float(found.expected), float(found.got)) == (1, 2)


def test_a_flipped_sign_bit_of_zero_looks_equal_and_of_anything_else_does_not() -> None:
    data = pattern(torch.float64, "sum", 2, CPU)
    received = reduced("sum", sent(data, 2, 3000))
    assert data.first_wrong(received, [Slice(None, 0, 3000)], rank=0) is None
    received[17] *= -1
    found = data.first_wrong(received, [Slice(None, 0, 3000)], rank=0)
    assert found is not None
    assert (found.offset, found.source) == (17, None)
    assert int(found.expected_bits, 16) ^ int(found.got_bits, 16) == 1 << 63


def test_an_element_beyond_the_first_block_has_its_own_offset() -> None:
    count = PERIOD * 1024 + 100
    data = pattern(torch.int64, None, 2, CPU)
    received = sent(data, 2, count)[0]
    received[-1] += 1
    found = data.first_wrong(received, [Slice(0, 0, count)], rank=1)
    assert found is not None
    assert found.offset == count - 1


@each_row("ranks", [2, 3, 8, 300])
@each_row("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_average_that_is_off_by_more_than_its_roundings_is_wrong(dtype: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), "avg", ranks, CPU)
    eps = torch.finfo(data.total.dtype).eps
    off = data.total * (1 + (min(ranks, 8) + 5) / 2 * eps)
    assert data.wrong(off, [Slice(None, 0, PERIOD)]) > PERIOD // 2
