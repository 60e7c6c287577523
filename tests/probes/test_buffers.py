"""Buffers: their slots, the memory that they may take, and what ideal and slightly wrong collectives leave in them.

The test data of each type, reduction and number of ranks is kept in tests/data/command_values/patterns.txt.
"""

import functools
import itertools
import runpy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ncclprobe.model.ops import DTYPES, REDOPS
from ncclprobe.probes import collectives
from ncclprobe.probes.buffers import PERIOD, Pattern, pattern
from ncclprobe.probes.collectives import Slice
from tests.each_row import each_row

CPU = torch.device("cpu")
KiB, GiB = 1 << 10, 1 << 30
REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip


# What is sent, and what must be received.


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


@each_row(("dtype", "redop", "ranks"), [*each_pair(2, 3, 8), *each_pair(300, 1)[::5]])
def test_a_reduction_is_exact_in_every_type_and_one_that_misses_a_rank_or_is_shifted_is_noticed(
    dtype: str, redop: str, ranks: int
) -> None:
    data = pattern(getattr(torch, dtype), redop, ranks, CPU)
    buffers = sent(data, ranks, 3000 if ranks < 100 else PERIOD)
    whole = [Slice(None, 0, len(buffers[0]))]
    result = reduced(redop, buffers)
    assert data.wrong(result, whole) == 0
    if ranks > 8 or ranks == 1:
        return
    assert data.wrong(result.roll(1), whole) > 0
    neutral = torch.full_like(buffers[0], {"sum": 0, "avg": 0, "prod": 1}.get(redop, 0))
    for lost in (0, ranks - 1):
        present = buffers[:lost] + buffers[lost + 1 :]
        padding = [present[0] if redop in ("min", "max") else neutral]
        assert data.wrong(reduced(redop, present + padding), whole) > 0


@each_row("ranks", [2, 3, 8, 300])
@each_row("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_average_that_is_off_by_more_than_its_roundings_is_wrong(dtype: str, ranks: int) -> None:
    data = pattern(getattr(torch, dtype), "avg", ranks, CPU)
    eps = torch.finfo(data.total.dtype).eps
    off = data.total * (1 + (min(ranks, 8) + 5) / 2 * eps)
    assert data.wrong(off, [Slice(None, 0, PERIOD)]) > PERIOD // 2
    nothing = torch.full((10,), float("nan"), dtype=data.total.dtype)
    assert data.wrong(nothing, [Slice(None, 0, 10)]) == 10


@each_row(
    ("bound", "old", "new"),
    [
        ("_all_gather", "all_gather_into_tensor", "all_gather_single"),
        ("_reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    ],
)
def test_the_new_name_of_torchs_is_called_where_there_is_one_and_the_old_one_elsewhere(
    monkeypatch: pytest.MonkeyPatch, bound: str, old: str, new: str
) -> None:
    monkeypatch.setattr(dist, old, "the old one", raising=False)
    monkeypatch.setattr(dist, new, "the new one", raising=False)
    assert runpy.run_path(collectives.__file__)[bound] == "the new one"
    monkeypatch.delattr(dist, new)
    assert runpy.run_path(collectives.__file__)[bound] == "the old one"
