"""NVML in a child process that can be abandoned.

A wedged driver leaves processes in uninterruptible sleep that SIGKILL does not end and whose pipes never close,
so NVML is only ever called in a child: one JSON request per line on its standard input, one JSON answer per line
back. When an answer is late the child's group is killed, and neither it nor its pipes are waited for.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from ncclprobe.command import abandon
from ncclprobe.errors import REFUSALS, HostError, Missing, TimedOut

_LIBRARY = "libnvidia-ml.so.1"


class NvmlChild:
    """Calls functions of nvidia-ml-py in a child that starts with the first call."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._dead: HostError | None = None
        self._buffer = b""

    def call(self, function: str, *arguments: int, patience_s: float) -> str:
        """What ``pynvml.<function>`` returns, as JSON; a function ``nvmlDevice…`` takes the GPU's index first.

        Raises the HostError that says why not, NVML's own words in it.
        """
        if self._dead:
            raise self._dead
        try:
            self._send([function, *arguments])
            return self._receive(patience_s, function)
        except TimedOut as error:
            self._dead = error
            self.close()
            raise

    def close(self) -> None:
        """Kill the child's group without waiting for it."""
        if self._process:
            abandon(self._process)
            self._process = None

    def _send(self, request: list[str | int]) -> None:
        if self._process is None:
            _require_library()
            command = [sys.executable, "-m", "ncclprobe.nvml_child"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with contextlib.suppress(BrokenPipeError):  # a child that is gone is noticed on reading
            assert self._process.stdin
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, patience_s: float, function: str) -> str:
        assert self._process
        assert self._process.stdout
        deadline = time.monotonic() + patience_s
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimedOut(f"NVML {function}: no answer within {patience_s:.3g} s; the driver may be wedged")
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                raise TimedOut(f"NVML {function}: the process that asked died; the driver may be broken")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        return json.dumps(answer["said"])


def _require_library() -> None:
    """Refuse early, without a child, where there is no NVML at all. Loading it asks the driver nothing."""
    import ctypes

    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise Missing(f"NVML: {error}") from None


def serve() -> None:
    """Answer requests from standard input until it closes. Runs in the child only."""
    import pynvml

    handles: dict[int, Any] = {}
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        try:
            said = _call(pynvml, handles, function, arguments)
            answer = {"said": _plain(said)}
        except pynvml.NVMLError as error:
            answer = {"refused": _refusal(pynvml, error), "why": f"NVML {function}: {error}"}
        except (AttributeError, TypeError) as error:  # nvidia-ml-py older or newer than this caller
            answer = {"refused": "Missing", "why": f"nvidia-ml-py: {error}"}
        print(json.dumps(answer), flush=True)


def _call(nvml: Any, handles: dict[int, Any], function: str, arguments: list[int]) -> Any:
    if not handles:
        nvml.nvmlInit()
        handles[-1] = None
    if not function.startswith("nvmlDeviceGet") or function == "nvmlDeviceGetCount":
        return getattr(nvml, function)(*arguments)
    index, *rest = arguments
    if index not in handles:
        handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
    return getattr(nvml, function)(handles[index], *rest)


def _refusal(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return "Denied"
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return "Missing"
    return "Failed"


def _plain(value: Any) -> Any:
    """NVML's structures as objects, its bytes as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    return value


if __name__ == "__main__":
    serve()
