"""Buffers for measurements: allocated once, cut into views, refused if they do not fit.

Also the contents for verification, and the count of wrong elements. Every element depends on its sender and its
position, so that a missing rank, swapped shares and a shifted share all show. Every value and every partial reduction,
in any order, is exact in the data type, so any difference is an error. Only the average of floating-point numbers has
a tolerance, because NCCL multiplies by a rounded 1/n before it sums (hostToDevRedOp in nccl src/enqueue.cc): see
_average_tolerance. None of this belongs inside a timed window.
"""

import math
import re
from collections.abc import Iterator, Sequence

import torch

from ncclprobe.host import Host
from ncclprobe.model.errors import HostError
from ncclprobe.model.measurement import Mismatch, Place
from ncclprobe.model.ops import CallShape
from ncclprobe.model.values import Struct
from ncclprobe.probes.collectives import Slice

_HELD = ("reserved_bytes", "active_bytes", "inactive_split_bytes")
_NCCLS_OWN_BYTES = 2 << 30
"""Memory for NCCL's channels, peers and algorithms, which it allocates at first use."""
_VIEW_ALIGNMENT = 512
"""Alignment of torch's CUDA allocator: every slot is aligned like a buffer of its own."""


class Buffers(Struct, frozen=True):
    """A send and a receive buffer, both `footprint_bytes` long and of one data type. In place, only the
    second is used.
    """

    send: torch.Tensor
    recv: torch.Tensor

    @property
    def footprint_bytes(self) -> int:
        """Bytes that the views of small messages rotate over; the same for every size of a sweep."""
        return int(len(self.recv) * self.recv.itemsize)

    def views(
        self, shape: CallShape, place: Place, rank: int, most: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (send, receive) views, one pair per slot, at most `most` pairs.

        A small message at a fixed address would be measured in cache. nccl-tests avoids that by rotating over ``-e``
        bytes
        (common.cu:543-546), which makes the result of a size depend on the sweep around it. The footprint here does not
        depend on the sweep, unless one message is larger.
        """
        itemsize = self.recv.itemsize
        stride = _aligned(max(shape.send_bytes, shape.recv_bytes)) // itemsize
        send_count, recv_count = shape.send_bytes // itemsize, shape.recv_bytes // itemsize
        send_from, recv_from = rank * shape.send_offset // itemsize, rank * shape.recv_offset // itemsize
        for start in range(0, min(len(self.recv) // stride, most) * stride, stride):
            if place == "in":
                view = self.recv[start : start + stride]
                yield view[send_from : send_from + send_count], view[recv_from : recv_from + recv_count]
            else:
                yield self.send[start : start + send_count], self.recv[start : start + recv_count]


def allocate(footprint_bytes: int, dtype: torch.dtype, device: torch.device) -> Buffers:
    """Allocate two zeroed buffers. Zeroing touches the pages: a host maps untouched ones to a single page of zeros."""
    count = footprint_bytes // dtype.itemsize
    send, recv = (torch.empty(count, dtype=dtype, device=device).zero_() for _ in range(2))
    return Buffers(send, recv)


def footprint(largest: int, rotate_bytes: int) -> int:
    """Return the bytes of each buffer: `rotate_bytes`, or `largest` if that is more."""
    return _aligned(max(largest, rotate_bytes))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _VIEW_ALIGNMENT) * _VIEW_ALIGNMENT


def free_bytes(device: torch.device, host: Host) -> int | None:
    """Return the memory that can be allocated on `device`; for the host, within its cgroup. None if unknown."""
    if device.type == "cuda":
        return gpu_free_bytes(device)
    readings = (_meminfo_free, _cgroup_free)
    known = [free for read in readings if (free := read(host)) is not None]
    return min(known, default=None)


def gpu_free_bytes(device: torch.device) -> int:
    """Return the bytes that tensors may use on a GPU: free memory, and what torch's allocator can give back.

    Some of it is reserved for NCCL's own buffers: half of the free memory on a nearly full GPU. The allocator cannot
    give
    back split blocks (inactive_split).
    """
    free = int(torch.cuda.mem_get_info(device)[0])
    held = torch.cuda.memory_stats(device)
    reserved, active, split = (int(held.get(f"{name}.all.current", 0)) for name in _HELD)
    free += max(0, reserved - active - split)
    return free - min(_NCCLS_OWN_BYTES, free // 2)


def _meminfo_free(host: Host) -> int | None:
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(host, "/proc/meminfo"), re.MULTILINE)
    return int(available[1]) * 1024 if available else None


def _cgroup_free(host: Host) -> int | None:
    """Return the bytes below the limit of cgroup v2; inactive page cache counts as free."""
    limit = _read(host, "/sys/fs/cgroup/memory.max").strip()
    used = _read(host, "/sys/fs/cgroup/memory.current").strip()
    files = re.search(r"^inactive_file (\d+)$", _read(host, "/sys/fs/cgroup/memory.stat"), re.MULTILINE)
    if not (limit.isdigit() and used.isdigit()):
        return None
    return max(0, int(limit) - int(used) + (int(files[1]) if files else 0))


def _read(host: Host, path: str) -> str:
    try:
        return host.ask("read", path)
    except HostError:
        return ""


PERIOD = 1021
"""Elements after which values repeat: a prime, so that no share of a buffer is a multiple of it by accident."""

_BLOCK = PERIOD * 1024
"""Elements handled at once: bounds the extra memory of verification."""

_EXACT_BELOW = {torch.int8: 127, torch.uint8: 255, torch.bfloat16: 256, torch.float16: 2048}
_EXACT_EXPONENT = {torch.int8: 6, torch.uint8: 7, torch.float16: 15}
_FLOAT_AVERAGE_BELOW = 16
_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Pattern(Struct, frozen=True):
    """What each rank sends (`rows[rank]`, one period) and the reduction over all ranks (`total`)."""

    rows: torch.Tensor
    total: torch.Tensor
    tolerance: float = 0.0

    def fill(self, buffer: torch.Tensor, rank: int) -> None:
        """Write to `buffer` what `rank` sends."""
        for start, piece in _blocks(buffer):
            piece.copy_(_repeat(self.rows[rank], start, len(piece)))

    def wrong(self, received: torch.Tensor, parts: Sequence[Slice]) -> int:
        """Count the elements of `received` that differ from `parts`."""
        count = torch.zeros((), dtype=torch.int64, device=received.device)
        for part, _, piece, expected in self._compare_pieces(received, parts):
            count += self._mask_wrong(piece, expected, part.source is None).sum()
        return int(count)

    def first_wrong(self, received: torch.Tensor, parts: Sequence[Slice], rank: int) -> Mismatch | None:
        """Return the first element received by `rank` that :meth:`wrong` counts."""
        for part, begin, piece, expected in self._compare_pieces(received, parts):
            found = self._mask_wrong(piece, expected, part.source is None).nonzero()
            if len(found):
                at = int(found[0])
                right, got = expected[at : at + 1].cpu(), piece[at : at + 1].cpu()
                texts = repr(right.item()), repr(got.item()), _hex_bits(right), _hex_bits(got)
                return Mismatch(rank, begin + at, part.source, *texts)
        return None

    def _compare_pieces(
        self, received: torch.Tensor, parts: Sequence[Slice]
    ) -> Iterator[tuple[Slice, int, torch.Tensor, torch.Tensor]]:
        """Yield each piece: its part, its offset in `received`, the actual and the expected values."""
        begin = 0
        for part in parts:
            period = self.total if part.source is None else self.rows[part.source]
            for offset, piece in _blocks(received[begin : begin + part.count]):
                yield part, begin + offset, piece, _repeat(period, part.start + offset, len(piece))
            begin += part.count

    def _mask_wrong(self, got: torch.Tensor, expected: torch.Tensor, reduced: bool) -> torch.Tensor:
        """Mask the elements that differ by more than the tolerance."""
        if not (reduced and self.tolerance):
            return got != expected
        error = (got.double() - expected.double()).abs()
        return ~(error <= self.tolerance * expected.double())  # NaN is never within the tolerance


def _hex_bits(element: torch.Tensor) -> str:
    """Return the bit pattern of a tensor of one element: ``0x3f800000`` for 1.0 in float32."""
    size = element.element_size()
    return f"0x{int(element.view(_INTEGER[size]).item()) % (1 << 8 * size):0{2 * size}x}"


def pattern(dtype: torch.dtype, redop: str | None, ranks: int, device: torch.device) -> Pattern:
    """Return the test data for a reduction, or, for `redop` None, for an operation that only moves data."""
    limit = _EXACT_BELOW.get(dtype, 1 << 20)
    tolerance = 0.0
    if redop is None:
        rows = 1 + _pseudo_random_rows(ranks) % limit
        total = rows[0]
    elif redop == "sum":
        rows = _bounded_summands(ranks, limit)
        total = rows.sum(0)
    elif redop == "prod":
        exponents = _bounded_summands(ranks, _EXACT_EXPONENT.get(dtype, 30))
        rows, total = 1 << exponents, 1 << exponents.sum(0)
    elif redop == "avg" and dtype.is_floating_point:
        rows = _bounded_summands(ranks, _FLOAT_AVERAGE_BELOW)
        total = rows.sum(0).double() / ranks
        # Half a unit in the last place to one `eps`, relative to the average.
        roundings = min(ranks, _FLOAT_AVERAGE_BELOW // 2) + 2
        tolerance = math.expm1(roundings * math.log1p(float(torch.finfo(dtype).eps) / 2))
    elif redop == "avg":
        rows = _bounded_summands(ranks, limit)
        total = rows.sum(0) // ranks
    else:
        # Positive numbers up to `limit`; the ranks take turns to have the only largest (or smallest) one.
        half = limit // 2
        raised = (_turn_order(ranks) == 0) == (redop == "max")
        rows = 1 + _pseudo_random_rows(ranks) % half + half * raised
        total = rows.amax(0) if redop == "max" else rows.amin(0)
    return Pattern(rows.to(dtype).to(device), total.to(dtype).to(device), tolerance)


def _pseudo_random_rows(ranks: int) -> torch.Tensor:
    """Return non-negative pseudo-random numbers, one row of PERIOD per rank."""
    place = torch.arange(ranks * PERIOD, dtype=torch.int64).view(ranks, PERIOD)
    return (place + 4099).square() % 65521


def _turn_order(ranks: int) -> torch.Tensor:
    """Return 0 for the rank whose turn it is, counting up from there; each column starts at another rank."""
    return (torch.arange(ranks).unsqueeze(1) - torch.arange(PERIOD)) % ranks


def _bounded_summands(ranks: int, limit: int) -> torch.Tensor:
    """Return positive numbers whose sum over ranks never exceeds `limit`."""
    highest = max(2, limit // ranks)
    contributes = _turn_order(ranks) < limit // highest
    return torch.where(contributes, 1 + _pseudo_random_rows(ranks) % highest, 0)


def _blocks(buffer: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the blocks of `buffer` with their offsets."""
    for start in range(0, len(buffer), _BLOCK):
        yield start, buffer[start : start + _BLOCK]


def _repeat(period: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Return `count` elements of the periodic sequence, from element `start`."""
    phase = start % PERIOD
    times = -(-(phase + count) // PERIOD)
    return period.repeat(times)[phase : phase + count]
