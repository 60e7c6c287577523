"""nvidia-ml-py as a service; it runs only in the child of :mod:`ncclprobe.host.nvml_child`.

A request is the name of a function and its arguments, ``["nvmlDeviceGetName", 0]``, the answer ``{"said": value}`` or
``{"refused": kind, "why": words}``, each prefixed with its length. Nothing of the package is imported, so that the
child starts fast.
"""

import ctypes
import json
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")
_MOST_XIDS, _MOST_EVENTS = 64, 1 << 17
"""The most events of one kind that are reported, so that a storm of one kind does not hide others; and the most
requested from NVML at once.
"""


def serve() -> None:
    """Answer requests from standard input until it closes."""
    answers = _private_stdout()
    library = Library()
    asked = sys.stdin.buffer
    while len(head := asked.read(_LENGTH.size)) == _LENGTH.size:
        answer = json.dumps(library.answer(*json.loads(asked.read(*_LENGTH.unpack(head))))).encode()
        answers.write(_LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _private_stdout() -> BinaryIO:
    """Reserve standard output for the answers; a driver library's output goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


class Library:
    """nvidia-ml-py, initialised by the first question, with a handle for each GPU in use."""

    def __init__(self) -> None:
        self.nvml: Any = None
        self._handles: dict[int, Any] = {}
        self._initialised = False
        self._events: Any = None

    def answer(self, function: str, *arguments: str | int) -> dict[str, Any]:
        """Return the function's result, or why there is none."""
        return self._attempt(lambda: self._call(function, arguments), f"NVML {function}: ")

    def handle(self, index: int) -> Any:
        """Return NVML's handle for a GPU index. Raises NVMLError for a lost GPU."""
        if index not in self._handles:
            self._handles[index] = self.nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]

    def each(self, work: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
        """Apply `work` to each thing; failures become ``{"refused": …, "why": …}``."""
        answers = [self._attempt(lambda thing=thing: work(thing)) for thing in things]  # type: ignore[misc]
        return [answer.get("said", answer) for answer in answers]

    def _call(self, function: str, arguments: Sequence[str | int]) -> Any:
        if not self._initialised:
            import pynvml

            self.nvml = pynvml
            self.nvml.nvmlInit()
            self._initialised = True
        if function == "xids":
            return self._xids()
        if function == "gpusOf":
            return _gpus_of(self, str(arguments[1]))
        if not function.startswith("nvmlDeviceGet") or function == "nvmlDeviceGetCount":
            return getattr(self.nvml, function)(*arguments)
        handle, rest = self.handle(int(arguments[0])), arguments[1:]
        if function in _SPECIAL:
            return _SPECIAL[function](self, handle, *rest)
        ask = getattr(self.nvml, function)
        if rest and isinstance(rest[0], str):
            return self.each(lambda number: ask(handle, number, *rest[1:]), _numbers(rest[0]))
        return ask(handle, *rest)

    def _xids(self) -> list[list[int]]:
        """Return GPU and code of each Xid since the previous call, at most 64 of one kind.

        The first call starts to listen.
        """
        if self._events is None:
            events, kind = self.nvml.nvmlEventSetCreate(), self.nvml.nvmlEventTypeXidCriticalError
            gpus = range(self.nvml.nvmlDeviceGetCount())
            if not gpus:
                raise ValueError("there is no GPU")
            for gpu in gpus:  # where one refuses, nothing is known
                self.nvml.nvmlDeviceRegisterEvents(self.handle(gpu), kind, events)
            self._events = events
        numbers = {_address(handle): index for index, handle in self._handles.items()}
        found: Counter[tuple[int, int]] = Counter()
        try:
            for _ in range(_MOST_EVENTS):
                event = self.nvml.nvmlEventSetWait_v2(self._events, 0)
                known = numbers.get(_address(event.device))
                index = self.nvml.nvmlDeviceGetIndex(event.device) if known is None else known
                found[index, event.eventData] += 1
            raise ValueError(f"more than {_MOST_EVENTS} at once; not all were read")
        except self.nvml.NVMLError as error:
            if not found and not isinstance(error, self.nvml.NVMLError_Timeout):
                raise  # else one that a GPU which falls off the bus ends the wait with, after it told why
        return [[*each] for each, times in found.items() for _ in range(min(times, _MOST_XIDS))]

    def _attempt(self, work: Callable[[], Any], prefix: str = "") -> dict[str, Any]:
        try:
            return {"said": plain(work())}
        except (ImportError, AttributeError, TypeError, ctypes.ArgumentError) as error:  # absent, or another version
            return {"refused": "Missing", "why": f"nvidia-ml-py: {error}"}
        except ValueError as error:  # a name that is not UTF-8, say
            return {"refused": "Failed", "why": f"{prefix}{error}"}
        except self.nvml.NVMLError as error:
            return {"refused": self._kind(error.value), "why": f"{prefix}{error}"}

    def _kind(self, code: int) -> str:
        if code == self.nvml.NVML_ERROR_NO_PERMISSION:
            return "Denied"
        absent = (self.nvml.NVML_ERROR_LIBRARY_NOT_FOUND, self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return "Missing" if code in absent else "Failed"


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _field_values(library: Library, handle: Any, fields: str, scopes: str) -> list[Any]:
    """Return all `fields` of all `scopes` (such as links) in one call: the first field of each scope, then
    the second.
    """
    wanted = [(field, scope) for field in _numbers(fields) for scope in _numbers(scopes)]
    return library.each(lambda v: field_value(library, v), library.nvml.nvmlDeviceGetFieldValues(handle, wanted))


def field_value(library: Library, value: Any) -> int | float:
    """Return the value of one field. Raises NVML's error of that field."""
    if value.nvmlReturn:
        raise library.nvml.NVMLError(value.nvmlReturn)
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # NVML_VALUE_TYPE_… 0 to 6
    if value.valueType >= len(members):
        raise ValueError(f"a value of the unknown type {value.valueType}")
    number: int | float = getattr(value.value, members[value.valueType])
    return number


def _p2p_status(library: Library, handle: Any, peers: str, index: int) -> list[Any]:
    ask = library.nvml.nvmlDeviceGetP2PStatus
    return library.each(lambda peer: ask(handle, library.handle(peer), index), _numbers(peers))


def _remote_pci(library: Library, handle: Any, links: str) -> list[Any]:
    """Return only the address of the other end; the rest of the structure repeats it."""
    ask = library.nvml.nvmlDeviceGetNvLinkRemotePciInfo
    return library.each(lambda link: ask(handle, link).busId, _numbers(links))


def _processes(library: Library, handle: Any) -> list[int | None]:
    """Return only each process's memory: other users' processes are not exposed."""
    return [process.usedGpuMemory for process in library.nvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def _fabric_v(library: Library, handle: Any) -> Any:
    structure = library.nvml.c_nvmlGpuFabricInfo_v2_t()
    library.nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(structure))
    return structure


def _fabric(library: Library, handle: Any) -> Any:
    structure = library.nvml.c_nvmlGpuFabricInfo_t()
    library.nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(structure))
    return structure


def _sram_errors(library: Library, handle: Any) -> Any:
    structure = library.nvml.c_nvmlEccSramErrorStatus_v1_t()
    library.nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(structure))
    return structure


_SM, _NVLINK_BYTES, _ALL_LINKS = 1, "138,139", str(0xFFFFFFFF)
"""nvmlClockType_t; NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB, whose scope UINT_MAX is the sum of links."""


def _gpus_of(library: Library, pids: str) -> list[dict[str, Any]]:
    """Return each GPU's activity, and which of `pids` compute on it; other processes are not exposed."""
    nvml, ours = library.nvml, {*_numbers(pids)}
    wanted: dict[str, Callable[[Any], Any]] = {
        "pci": lambda gpu: nvml.nvmlDeviceGetPciInfo(gpu).busId,
        "pids": lambda gpu: [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu) if each.pid in ours],
        "busy_percent": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "clock_MHz": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, _SM),
        "most_MHz": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, _SM),
        "power_mW": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu),
        "reasons": lambda gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        "nvlink_KiB": lambda gpu: _field_values(library, gpu, _NVLINK_BYTES, _ALL_LINKS),
    }
    return [
        {"index": index, **dict(zip(wanted, _ask_gpu(library, index, [*wanted.values()]), strict=True))}
        for index in range(nvml.nvmlDeviceGetCount())
    ]


def _ask_gpu(library: Library, index: int, wanted: Sequence[Callable[[Any], Any]]) -> list[Any]:
    return library.each(lambda ask: ask(library.handle(index)), wanted)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetGpuFabricInfo": _fabric,
    "nvmlDeviceGetGpuFabricInfoV": _fabric_v,
    "nvmlDeviceGetNvLinkRemotePciInfo": _remote_pci,
    "nvmlDeviceGetP2PStatus": _p2p_status,
    "nvmlDeviceGetSramEccErrorStatus": _sram_errors,
}
"""Functions whose arguments or results are not plain numbers and structures."""


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def plain(value: Any) -> Any:
    """Convert NVML's structures to objects, arrays to lists, bytes to text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | ctypes.Array):
        return [plain(item) for item in value]
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return value
