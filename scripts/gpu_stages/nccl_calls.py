"""NCCL through ctypes: communicators without torch, and its own estimate of a call (ncclGroupSimulateEnd, since 2.22).

Layouts and numbers are those of nccl.h 2.30: the id is 128 bytes passed by value, ncclFloat32 is 7, ncclSum is 0.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FLOAT32, _SUM, _ROOT = 7, 0, 0
_ID_BYTES = 128
_MAGIC = 0x74685283
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Those of which NCCL has a model."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_ubyte * _ID_BYTES),)


class SimInfo(ctypes.Structure):
    """ncclSimInfo_t."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("estimated_time", ctypes.c_float),
    )


class NcclError(RuntimeError):
    """A call that NCCL refused, with its code."""


class Nccl:
    """One libnccl, loaded into this process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def version(self) -> int:
        """NCCL's number of itself: 22907 is 2.29.7."""
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        return number.value

    def unique_id(self) -> bytes:
        """A new id. Rank 0 listens from here on."""
        found = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found.internal)

    def communicator(self, name: bytes, rank: int, ranks: int) -> ctypes.c_void_p:
        """Meet the others of `name`; returns once all have come."""
        found, given = ctypes.c_void_p(), UniqueId.from_buffer_copy(name)
        self._call("ncclCommInitRank", ctypes.byref(found), ctypes.c_int(ranks), given, ctypes.c_int(rank))
        return found

    def abort(self, communicator: ctypes.c_void_p) -> None:
        """End it without asking the others."""
        self._call("ncclCommAbort", communicator)

    def estimate_us(self, op: str, nbytes: int, ranks: int, communicator: ctypes.c_void_p, buffer: int) -> float:
        """What NCCL expects `op` of `nbytes` (as nccl-tests counts them) to take. Nothing is run."""
        info = SimInfo(ctypes.sizeof(SimInfo), _MAGIC, self.version(), -1.0)
        self._call("ncclGroupStart")
        try:
            self._calls(communicator, ctypes.c_void_p(buffer))[op](max(1, nbytes // 4), ranks)
        finally:
            self._call("ncclGroupSimulateEnd", ctypes.byref(info))
        return float(info.estimated_time)

    def _calls(self, comm: ctypes.c_void_p, buffer: ctypes.c_void_p) -> dict[str, Callable[[int, int], None]]:
        number, add, root, none = ctypes.c_int(_FLOAT32), ctypes.c_int(_SUM), ctypes.c_int(_ROOT), ctypes.c_void_p()

        def call(name: str, count: int, *more: Any) -> None:
            self._call(name, buffer, buffer, ctypes.c_size_t(count), number, *more, comm, none)

        return {
            "all_reduce": lambda count, ranks: call("ncclAllReduce", count, add),
            "all_gather": lambda count, ranks: call("ncclAllGather", max(1, count // ranks)),
            "reduce_scatter": lambda count, ranks: call("ncclReduceScatter", max(1, count // ranks), add),
            "broadcast": lambda count, ranks: call("ncclBroadcast", count, root),
            "reduce": lambda count, ranks: call("ncclReduce", count, add, root),
        }

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise NcclError(f"{name} returned {code}")
