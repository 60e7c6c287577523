"""Memory that the NIC reads and writes: the host's, or a GPU's through CUDA's driver library, without torch.

It is freed with the process, which is that of one test.
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

from ncclprobe.model.rails import RailPort
from ncclprobe.probes.verbs.library import VerbsError

_CUDA = "libcuda.so.1"
_BLOCK = 2 << 20
"""What CUDA maps at once: an allocation of whole blocks shares none, so it can be exported as a DMA-BUF."""
_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_SYNC_MEMOPS = 6  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: what GPUDirect RDMA asks of memory that a NIC writes


def allocate(port: RailPort, nbytes: int, announce: Callable[[str], None]) -> "HostMemory | GpuMemory":
    """Return memory of the kind that `port` asks for. Raises VerbsError."""
    if port.memory == "host":
        return HostMemory(nbytes)
    return GpuMemory(port.gpu or 0, nbytes, announce)


class HostMemory:
    """Anonymous memory of this process, beginning at a page."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.map = mmap.mmap(-1, nbytes)
        self._first = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._first)

    def write(self, offset: int, data: bytes) -> None:
        """Put `data` at `offset`."""
        self.map[offset : offset + len(data)] = data

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return what lies there."""
        return self.map[offset : offset + nbytes]


class GpuMemory:
    """Memory of the GPU with NVML's index `gpu`, in its primary context.

    NVML counts all GPUs in the order of their addresses; CUDA does so too where it is told, and told to leave none out.
    """

    def __init__(self, gpu: int, nbytes: int, announce: Callable[[str], None]) -> None:
        self.nbytes = -(-nbytes // _BLOCK) * _BLOCK
        self._announce = announce
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            announce(f"loading {_CUDA}")
            self._cuda = ctypes.CDLL(_CUDA)
        except OSError as error:
            raise VerbsError("missing", f"{error}: no driver of NVIDIA's here") from None
        device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), gpu)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes))
        self.address = pointer.value
        self._call("cuPointerSetAttribute", ctypes.byref(ctypes.c_uint(1)), _SYNC_MEMOPS, pointer)

    def write(self, offset: int, data: bytes) -> None:
        """Copy `data` to the GPU."""
        self._call("cuMemcpyHtoD_v2", self._at(offset), data, ctypes.c_size_t(len(data)))

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copy it from the GPU."""
        found = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", found, self._at(offset), ctypes.c_size_t(nbytes))
        return found.raw

    @contextlib.contextmanager
    def exported(self) -> Iterator[int]:
        """Yield a file descriptor of a DMA-BUF for all of it, to be registered. Raises VerbsError."""
        handle = ctypes.c_int(-1)
        size, no_flags = ctypes.c_size_t(self.nbytes), ctypes.c_ulonglong(0)
        self._call("cuMemGetHandleForAddressRange", ctypes.byref(handle), self._at(0), size, _DMA_BUF_FD, no_flags)
        try:
            yield handle.value
        finally:
            os.close(handle.value)

    def _at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.address + offset)

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of CUDA's driver library. Raises VerbsError where it is missing, or says no."""
        self._announce(name)
        try:
            code = getattr(self._cuda, name)(*arguments)
        except AttributeError:
            raise VerbsError("missing", f"{_CUDA} has no {name}: the driver is too old", call=name) from None
        if code:
            words = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(words))
            text = (words.value or b"an unknown error").decode(errors="replace")
            raise VerbsError("refused", f"{name}: {text} ({code})", call=name)
