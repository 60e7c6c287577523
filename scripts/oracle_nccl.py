"""NCCL through ctypes: communicators without torch. The id is 128 bytes, passed by value (nccl.h 2.30)."""

import ctypes
from pathlib import Path
from typing import Any

_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_ubyte * _ID_BYTES),)


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

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise NcclError(f"{name} returned {code}")
