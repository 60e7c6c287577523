"""Slots and memory: where calls work, and what is refused before anything is allocated."""

import pytest
import torch

from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, Missing
from ncclprobe.model.measurement import Place
from ncclprobe.model.ops import OPS
from ncclprobe.probes.buffers import Buffers, allocate, footprint, free_bytes
from tests.each_row import each_row, some

CPU = torch.device("cpu")
KiB = 1 << 10


@pytest.fixture
def buffers() -> Buffers:
    """64 KiB to send from and to receive in, counting up from 0 and down from -1."""
    buffers = allocate(64 * KiB, torch.float32, CPU)
    torch.arange(16 * KiB, out=buffers.send)
    torch.arange(-1, -16 * KiB - 1, -1, out=buffers.recv)
    return buffers


def test_small_messages_rotate_over_the_whole_footprint(buffers: Buffers) -> None:
    views = list(buffers.views(OPS["all_reduce"].shape(8, 2, 4), "in", rank=0, most=1000))
    assert len(views) == 64 * KiB // 512
    assert {len(recv) for _, recv in views} == {2}
    assert [int(recv[0]) for _, recv in views[:3]] == [-1, -129, -257]


def test_no_more_slots_are_cut_than_are_called(buffers: Buffers) -> None:
    assert len(list(buffers.views(OPS["all_reduce"].shape(8, 2, 4), "in", rank=0, most=7))) == 7


@pytest.mark.parametrize("nbytes", [64 * KiB, 33 * KiB])
def test_a_message_of_more_than_half_the_footprint_has_one_slot(buffers: Buffers, nbytes: int) -> None:
    assert len(list(buffers.views(OPS["all_reduce"].shape(nbytes, 2, 4), "in", rank=1, most=100))) == 1


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
@pytest.mark.parametrize("nbytes", [1000, 4096, 30000])
def test_slots_are_as_long_as_the_shape_says_and_do_not_overlap(buffers: Buffers, op: object, nbytes: int) -> None:
    op = OPS[op.name]  # type: ignore[attr-defined]
    shape = op.shape(nbytes, 3, 4)
    for place in some(op.places):
        used: set[int] = set()
        for send, recv in buffers.views(shape, place, rank=2, most=1000):
            assert (len(send) * 4, len(recv) * 4) == (shape.send_bytes, shape.recv_bytes)
            bytes_used = set(range(recv.data_ptr(), recv.data_ptr() + shape.recv_bytes))
            assert not used & bytes_used
            used |= bytes_used


@pytest.mark.parametrize(("place", "overlap"), [("in", True), ("out", False)])
def test_an_all_gather_in_place_sends_its_own_share_of_the_result(
    buffers: Buffers, place: Place, overlap: bool
) -> None:
    shape = OPS["all_gather"].shape(4096, 4, 4)
    [(send, recv)] = buffers.views(shape, place, rank=3, most=1)
    assert (send.data_ptr() == recv.data_ptr() + 3 * shape.send_bytes) == overlap


def test_a_reduce_scatter_in_place_receives_in_its_own_share(buffers: Buffers) -> None:
    shape = OPS["reduce_scatter"].shape(4096, 4, 4)
    [(send, recv)] = buffers.views(shape, "in", rank=3, most=1)
    assert recv.data_ptr() == send.data_ptr() + 3 * shape.recv_bytes


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
    meminfo: str | HostError,
    limit: str | HostError,
    current: str | HostError,
    stat: str | HostError,
    expected: int | None,
) -> None:
    host = Replay(
        {
            ("read", "/proc/meminfo"): meminfo,
            ("read", "/sys/fs/cgroup/memory.max"): limit,
            ("read", "/sys/fs/cgroup/memory.current"): current,
            ("read", "/sys/fs/cgroup/memory.stat"): stat,
        }
    )
    assert free_bytes(CPU, host) == expected


GiB = 1 << 30


@each_row(
    ("free", "reserved", "active", "split", "room"),
    [
        (70, 0, 0, 0, 68),  # 2 GiB are NCCL's
        (10, 40, 0, 0, 48),  # a sweep before this one has left its buffers to the allocator
        (10, 60, 20, 0, 48),  # a trainer's own tensors are in use
        (10, 60, 20, 8, 40),  # blocks that are in use in part are not given back
        (10, 20, 24, 0, 8),
        (3, 0, 0, 0, 1.5),  # a GPU that is nearly full is still measured with small messages
        (0, 0, 0, 0, 0),
    ],
)
def test_of_a_gpu_what_the_allocator_would_give_back_counts_and_nccls_own_does_not(
    free: int, reserved: int, active: int, split: int, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"reserved_bytes": reserved, "active_bytes": active, "inactive_split_bytes": split}
    stats = {f"{name}.all.current": number * GiB for name, number in held.items()}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GiB, 80 * GiB))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    assert free_bytes(torch.device("cuda:0"), Replay({})) == room * GiB


def test_a_process_that_has_allocated_nothing_yet_has_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * GiB, 80 * GiB))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
    assert free_bytes(torch.device("cuda:0"), Replay({})) == 68 * GiB
