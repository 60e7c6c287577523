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

from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, Missing
from ncclprobe.model.measurement import Mismatch, Place
from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from ncclprobe.model.registry import discover
from ncclprobe.probes import collectives
from ncclprobe.probes.buffers import PERIOD, Buffers, Pattern, allocate, footprint, free_bytes, pattern
from ncclprobe.probes.collectives import ROOT, Probe, Slice
from tests.each_row import each_row

CPU = torch.device("cpu")
KiB, GiB = 1 << 10, 1 << 30
PROBES = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


@pytest.fixture
def buffers() -> Buffers:
    """64 KiB to send from and to receive in, counting up from 0 and down from -1."""
    buffers = allocate(64 * KiB, torch.float32, CPU)
    torch.arange(16 * KiB, out=buffers.send)
    torch.arange(-1, -16 * KiB - 1, -1, out=buffers.recv)
    return buffers


@each_row(
    ("nbytes", "most", "slots"),
    [(8, 1000, 128), (8, 7, 7), (33 * KiB, 100, 1), (64 * KiB, 100, 1), (32 * KiB, 100, 2), (516, 100, 64)],
)
def test_small_messages_rotate_over_the_whole_footprint(buffers: Buffers, nbytes: int, most: int, slots: int) -> None:
    views = list(buffers.views(OPS["all_reduce"].shape(nbytes, 2, 4), "in", rank=1, most=most))
    assert len(views) == slots
    assert {len(recv) for _, recv in views} == {nbytes // 4}
    stride = -(-nbytes // 512) * 128
    assert [int(recv[0]) for _, recv in views[:3]] == [-1, -1 - stride, -1 - 2 * stride][:slots]


@each_row("nbytes", [1000, 4096, 30000])
@each_row("name", OPS)
def test_slots_are_as_long_as_the_shape_says_and_do_not_overlap(buffers: Buffers, name: str, nbytes: int) -> None:
    op = OPS[name]
    shape = op.shape(nbytes, 3, 4)
    assert op.places
    for place in op.places:
        used: set[int] = set()
        for send, recv in buffers.views(shape, place, rank=2, most=1000):
            assert (len(send) * 4, len(recv) * 4) == (shape.send_bytes, shape.recv_bytes)
            bytes_used = set(range(recv.data_ptr(), recv.data_ptr() + shape.recv_bytes))
            assert not used & bytes_used
            used |= bytes_used


@each_row(
    ("name", "place", "behind"),
    [("all_gather", "in", 3 * 4096), ("all_gather", "out", None), ("reduce_scatter", "in", -3 * 4096),
     ("all_reduce", "in", 0)],
)  # fmt: skip
def test_in_place_a_rank_sends_and_receives_in_its_own_share(
    buffers: Buffers, name: str, place: Place, behind: int | None
) -> None:
    [(send, recv)] = buffers.views(OPS[name].shape(4 * 4096, 4, 4), place, rank=3, most=1)
    inside = abs(send.data_ptr() - recv.data_ptr()) < 64 * KiB and place == "in"
    assert (send.data_ptr() - recv.data_ptr() if inside else None) == behind


@each_row(
    ("largest", "rotate", "expected"), [(8, 64 * KiB, 64 * KiB), (128 * KiB, 64 * KiB, 128 * KiB), (1000, 0, 1024)]
)
def test_the_footprint_is_fixed_unless_one_message_is_larger(largest: int, rotate: int, expected: int) -> None:
    assert footprint(largest, rotate) == expected


MEMINFO = "MemTotal:       32768 kB\nMemFree:          100 kB\nMemAvailable:   16384 kB\n"
NONE = Missing("not there")


@each_row(
    ("meminfo", "limit", "current", "stat", "expected"),
    [
        (MEMINFO, NONE, NONE, NONE, 16384 * KiB),
        (MEMINFO, "max\n", "4096\n", "inactive_file 0\n", 16384 * KiB),
        (MEMINFO, "8192\n", "4096\n", "anon 1\ninactive_file 1024\n", 5120),
        (MEMINFO, "4096\n", "8192\n", NONE, 0),
        (NONE, "8192\n", "4096\n", NONE, 4096),
        (NONE, NONE, NONE, NONE, None),
    ],
)
def test_free_memory_is_the_least_of_what_machine_and_control_group_leave(
    meminfo: str | HostError, limit: str | HostError, current: str | HostError, stat: str | HostError,
    expected: int | None,
) -> None:  # fmt: skip
    group = {"max": limit, "current": current, "stat": stat}
    files = {("read", f"/sys/fs/cgroup/memory.{name}"): text for name, text in group.items()}
    assert free_bytes(CPU, Replay({("read", "/proc/meminfo"): meminfo, **files})) == expected


@each_row(
    ("free", "reserved", "active", "split", "room"),
    [
        (70, None, 0, 0, 68),  # 2 GiB are NCCL's; a process that has allocated nothing yet has no statistics
        (10, 40, 0, 0, 48),  # a sweep before this one has left its buffers to the allocator
        (10, 60, 20, 0, 48),  # a trainer's own tensors are in use
        (10, 60, 20, 8, 40),  # blocks that are in use in part are not given back
        (10, 20, 24, 0, 8),
        (3, 0, 0, 0, 1.5),  # a GPU that is nearly full is still measured with small messages
        (0, 0, 0, 0, 0),
    ],
)
def test_of_a_gpu_what_the_allocator_would_give_back_counts_and_nccls_own_does_not(
    free: int, reserved: int | None, active: int, split: int, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"reserved_bytes": reserved, "active_bytes": active, "inactive_split_bytes": split}
    stats = {f"{name}.all.current": number * GiB for name, number in held.items() if number is not None}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GiB, 80 * GiB))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats if reserved is not None else {})
    assert free_bytes(torch.device("cuda:0"), Replay({})) == room * GiB


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


@each_row("redop", [None, *REDOPS])
def test_zeros_are_never_right(redop: str | None) -> None:
    data = pattern(torch.float32, redop, 3, CPU)
    assert data.wrong(torch.zeros(100), [Slice(0 if redop is None else None, 0, 100)]) == 100


@each_row("at", [[], [3], [3, 77, 4999], [PERIOD * 1024 - 1], [PERIOD * 1024], [PERIOD * 1024 + 99]])
def test_every_wrong_element_of_moved_data_is_counted_and_the_first_has_its_place(at: list[int]) -> None:
    count = PERIOD * 1024 + 100  # more than one block
    data = pattern(torch.int64, None, 2, CPU)
    received = sent(data, 2, count)[1]
    received[at] += 1
    assert data.wrong(received, [Slice(1, 0, count)]) == len(at)
    found = data.first_wrong(received, [Slice(1, 0, count)], rank=1)
    assert [found.offset] == at[:1] if found else not at


@each_row(
    ("dtype", "right", "wrong", "texts"),
    [
        ("float32", "0x3f800000", "0x40000000", ("1.0", "2.0")),
        ("bfloat16", "0x3f80", "0x4000", ("1.0", "2.0")),
        ("int8", "0x01", "0x02", ("1", "2")),
    ],
)
def test_the_first_wrong_element_is_shown_with_its_bits_and_who_sent_it(
    dtype: str, right: str, wrong: str, texts: tuple[str, str]
) -> None:
    data = Pattern(*(torch.ones(shape, dtype=getattr(torch, dtype)) for shape in ((3, PERIOD), (PERIOD,))))
    received = torch.ones(4000, dtype=data.rows.dtype)
    received[[2500, 3999]] = 2
    found = data.first_wrong(received, [Slice(0, 0, 2000), Slice(1, 7, 2000)], rank=2)
    assert found == Mismatch(2, 2500, 1, *texts, right, wrong)
    flipped = pattern(torch.float64, "sum", 2, CPU)
    total = flipped.total.clone()
    total[17] *= -1
    sign = flipped.first_wrong(total, [Slice(None, 0, PERIOD)], rank=0)
    assert sign is not None
    assert (sign.offset, sign.source, int(sign.expected_bits, 16) ^ int(sign.got_bits, 16)) == (17, None, 1 << 63)


def moved(op: str, buffers: list[torch.Tensor], rank: int, ranks: int) -> torch.Tensor:
    """What an ideal data movement leaves on `rank`."""
    if op in ("all_gather", "gather"):
        return torch.cat(buffers)
    if op == "sendrecv":
        return buffers[rank - 1].clone()
    shares = [buffer.view(ranks, -1) for buffer in buffers]
    return shares[ROOT][rank].clone() if op == "scatter" else torch.cat([share[rank] for share in shares])


@each_row("ranks", [2, 3])
@each_row("op", ["all_gather", "all_to_all", "gather", "scatter", "sendrecv"])
def test_moved_data_is_right_on_the_rank_it_is_for_and_wrong_elsewhere_and_swapped(op: str, ranks: int) -> None:
    data = pattern(torch.float32, None, ranks, CPU)
    share = 512  # a power of two, as nearly always
    buffers = sent(data, ranks, share * ranks if OPS[op].sends_all else share)
    parts = [PROBES[op].result(rank, ranks, share) for rank in range(ranks)]
    received = [moved(op, buffers, rank, ranks) for rank in range(ranks)]
    assert [data.wrong(received[rank], parts[rank]) for rank in range(ranks)] == [0] * ranks
    if not OPS[op].receives_all:
        assert data.wrong(received[0], parts[1]) > share // 2
    if op in ("all_gather", "all_to_all", "gather"):
        swapped = received[ROOT].view(ranks, share)[[1, 0, *range(2, ranks)]].flatten()
        assert data.wrong(swapped, parts[ROOT]) > share


def test_a_share_of_a_reduction_is_right_on_its_own_rank_and_what_a_reduce_leaves_beside_the_root_is_nobodys() -> None:
    data = pattern(torch.float32, "sum", 4, CPU)
    total = reduced("sum", sent(data, 4, 4 * 512)).view(4, 512)
    scattered, reduces = PROBES["reduce_scatter"].result, PROBES["reduce"].result
    assert data.wrong(total[1], scattered(1, 4, 512)) == 0
    assert data.wrong(total[2], scattered(1, 4, 512)) > 256
    assert [list(reduces(rank, 2, 100)) for rank in (0, 1)] == [[Slice(None, 0, 100)], []]
    assert data.wrong(torch.full((100,), 7.0), reduces(1, 2, 100)) == 0


@each_row("name", OPS)
def test_what_a_probe_says_must_be_received_fills_the_receive_buffer_or_nothing(name: str) -> None:
    shape = OPS[name].shape(4096, 4, 4)
    for rank in range(4):
        expected = sum(part.count for part in PROBES[name].result(rank, 4, shape.count))
        assert expected in (shape.recv_bytes // 4, 0)
        assert expected or rank != 0


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
