"""NVML in a child process that can be abandoned.

A wedged driver leaves processes in uninterruptible sleep that SIGKILL does not end and whose pipes never close,
so NVML is only ever called in a child (:mod:`ncclprobe.host.nvml_server`): one JSON request per line on its standard
input, one JSON answer per line back. When an answer is late the child's group is killed, and neither it nor its pipes
are waited for.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from ncclprobe.host.command import abandon, means_here
from ncclprobe.host.own_child import start_own
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, HostError, Missing, TimedOut

_LIBRARY = "libnvidia-ml.so.1"
_SERVE = "ncclprobe.host.nvml_server:serve"


class NvmlChild:
    """Calls functions of nvidia-ml-py in a child that starts with the first call, one call at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._dead: HostError | None = None
        self._lock = threading.Lock()

    def call(self, function: str, *arguments: str | int, patience_s: float) -> str:
        """Return what ``pynvml.<function>`` returns, as JSON; ``nvmlDevice…`` takes the GPU's index first.

        An argument that is text, such as ``"0,1,2"``, asks once for each of its numbers: the answer is a list, in which
        ``{"refused": …, "why": …}`` stands where there was no value.

        Raises the HostError that says why not, NVML's own words in it; TimedOut if the child was late, died or talked
        nonsense, after which it is not asked again: every further call raises the same.
        """
        deadline = time.monotonic() + patience_s
        if not self._lock.acquire(timeout=max(0.0, patience_s)):
            raise TimedOut(f"NVML {function}: not asked within {patience_s:.3g} s, for another question is under way")
        try:
            answer = self._exchange([function, *arguments], deadline - time.monotonic())
        finally:
            self._lock.release()
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        return json.dumps(answer["said"])

    def close(self) -> None:
        """Kill the child's group without waiting for it."""
        if self._process:
            abandon(self._process)
            self._process = None

    def _exchange(self, request: Sequence[str | int], patience_s: float) -> dict[str, Any]:
        if self._dead:
            raise self._dead
        self._process = self._process or _start()
        try:
            _send(self._process, request)
            return _understand(_receive(self._process, f"NVML {request[0]}", patience_s))
        except BaseException as error:  # Ctrl-C included: an answer that comes late must not meet another question
            self._dead = error if isinstance(error, HostError) else TimedOut(f"NVML {request[0]}: interrupted")
            self.close()
            raise


def _start() -> "subprocess.Popen[bytes]":
    """Return a new child, where there is an NVML at all. Loading the library asks the driver nothing.

    Where it would be looked for in the working directory too, only the child looks for it, which does not do that.
    """
    try:
        if not means_here("LD_LIBRARY_PATH"):
            ctypes.CDLL(_LIBRARY)
        return start_own(_SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        why = "there is none: no NVIDIA driver here, or a container started without GPUs"
        raise Missing(f"NVML ({_LIBRARY}): {why if 'No such file' in str(error) else error}") from None


def _send(process: "subprocess.Popen[bytes]", request: Sequence[str | int]) -> None:
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # a child that is gone is noticed on reading
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()


def _receive(process: "subprocess.Popen[bytes]", what: str, patience_s: float) -> bytes:
    """Return the next line. It is all there may be: the child speaks only when asked."""
    assert process.stdout
    deadline = time.monotonic() + patience_s
    pipe = process.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimedOut(f"{what}: no answer within {max(0.0, patience_s):.3g} s; the driver may be wedged")
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            raise TimedOut(f"{what}: the process that asked died ({_end(process)}); the driver may be broken")
        line += chunk
        if len(line) > bounds.NVML_ANSWER_BYTES:
            raise TimedOut(f"{what}: an answer of more than {bounds.NVML_ANSWER_BYTES >> 20} MiB was not waited for")
    return line


def _end(process: "subprocess.Popen[bytes]") -> str:
    try:
        code = process.wait(0.5)
    except subprocess.TimeoutExpired:
        return "it cannot end"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _understand(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
        if isinstance(answer, dict) and ("said" in answer or answer["refused"] in REFUSALS):
            return answer
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise TimedOut(f"NVML: the process that asks it talks nonsense: {line[:80]!r}")
