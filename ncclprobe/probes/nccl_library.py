"""Identify the NCCL that this process calls.

torch reports the release that it was compiled with (``torch.cuda.nccl.version()`` is a constant of the build,
torch/csrc/cuda/python_nccl.cpp), but LD_LIBRARY_PATH, LD_PRELOAD or a file put over the wheel's decide what is mapped.
So this asks the function that torch itself calls, resolved by the loader as for torch.
"""

import ctypes
import os
from functools import cache

from ncclprobe.facts.software import Version, parse_version
from ncclprobe.model.values import Struct

_CALLER = "libtorch_cuda.so"


class LoadedNccl(Struct, frozen=True):
    """The version and file (empty: unknown) of the loaded NCCL, and the version that torch was compiled with."""

    version: Version
    path: str
    compiled: Version

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def note(self) -> str:
        """State which version is mapped if torch was compiled with another; empty if they agree."""
        if self.version == self.compiled:
            return ""
        compiled = ".".join(map(str, self.compiled))
        return f"NCCL {self} is loaded, from {self.path}; torch was compiled with {compiled}"


@cache
def loaded() -> LoadedNccl | None:
    """Return the NCCL that torch calls in this process; None if torch has none."""
    import torch

    if not torch.distributed.is_nccl_available():
        return None
    compiled: Version = torch.cuda.nccl.version()
    return called_by(_CALLER, compiled) or LoadedNccl(compiled, "", compiled)


def called_by(library: str, compiled: Version) -> LoadedNccl | None:
    """Return the NCCL that `library`, loaded by this process, calls; None if the loader does not report it."""
    number, place = ctypes.c_int(), _Place()
    try:
        function = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).ncclGetVersion
        found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(place))
    except (OSError, AttributeError):
        return None
    if function(ctypes.byref(number)) or not found:
        return None
    return LoadedNccl(parse_version(number.value), os.path.realpath(os.fsdecode(place.file)), compiled)


class _Place(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )
