"""The memory that is measured in: allocated once, cut into views, and refused where it does not fit."""

import re
from collections.abc import Iterator

import torch

from ncclprobe.host import Host
from ncclprobe.model.errors import HostError
from ncclprobe.model.measurement import Place
from ncclprobe.model.ops import CallShape
from ncclprobe.model.values import Struct

_HELD = ("reserved_bytes", "active_bytes", "inactive_split_bytes")
_NCCLS_OWN_BYTES = 2 << 30
"""Of channels, peers and algorithms, all of which connect at their first use."""
_VIEW_ALIGNMENT = 512
"""What torch's CUDA allocator aligns to: a slot is like a buffer of its own."""


class Buffers(Struct, frozen=True):
    """One buffer to send from and one to receive in, both `footprint_bytes` long and of one data type.

    In place, only the second is used.
    """

    send: torch.Tensor
    recv: torch.Tensor

    @property
    def footprint_bytes(self) -> int:
        """Return the bytes over which the views of small messages rotate; the same for every size of a sweep."""
        return int(len(self.recv) * self.recv.itemsize)

    def views(
        self, shape: CallShape, place: Place, rank: int, most: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield views to send from and receive in, one pair per slot, at most `most` pairs.

        Small messages that always used the same bytes would be measured in cache, and nccl-tests does not do that:
        it rotates over ``-e`` bytes (common.cu:543-546), which makes a size depend on the sweep it is part of. The
        footprint here does not depend on the sweep, unless one message is larger.
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
    """Make two buffers of zeros. Written, not only reserved: untouched pages of a host map to one page of zeros."""
    count = footprint_bytes // dtype.itemsize
    send, recv = (torch.empty(count, dtype=dtype, device=device).zero_() for _ in range(2))
    return Buffers(send, recv)


def footprint(largest: int, rotate_bytes: int) -> int:
    """Return the bytes of each buffer: `rotate_bytes`, or the `largest` message where that is more."""
    return _aligned(max(largest, rotate_bytes))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _VIEW_ALIGNMENT) * _VIEW_ALIGNMENT


def free_bytes(device: torch.device, host: Host) -> int | None:
    """Return the memory that could be allocated now on `device`; for the host, within its control group.

    None where the machine does not say.
    """
    if device.type == "cuda":
        return gpu_free_bytes(device)
    readings = (_meminfo_free, _cgroup_free)
    known = [free for read in readings if (free := read(host)) is not None]
    return min(known, default=None)


def gpu_free_bytes(device: torch.device) -> int:
    """Return what tensors may take of a GPU's memory: what is free, and what torch's allocator would give back.

    NCCL allocates its own buffers too, so that much is left to it; of a GPU that is nearly full, half of what is
    free. What the allocator holds in parts (inactive_split) it cannot give back.
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
    """Return the room below the limit of control group v2; the kernel gives back what files occupy."""
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
