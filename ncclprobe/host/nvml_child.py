"""NVML in a child process that can be abandoned.

A wedged driver leaves processes in uninterruptible sleep that SIGKILL does not end and whose pipes never close, so NVML
is only ever called in a child (:mod:`ncclprobe.host.nvml_server`). If an answer is late, the child's group is killed,
and neither it nor its pipes are waited for.
"""

import ctypes
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from ncclprobe.host.command import means_here
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Failed, HostError, Missing, TimedOut

_LIBRARY = "libnvidia-ml.so.1"
_SERVER = "ncclprobe.host.nvml_server"


class NvmlChild:
    """Calls functions of nvidia-ml-py, one at a time, in a child that the first call starts."""

    def __init__(self) -> None:
        self._child = LimitedChild(_SERVER, bounds.NVML_ANSWER_BYTES)
        self._dead: HostError | None = None
        self._lock = threading.Lock()

    def call(self, function: str, *arguments: str | int, patience_s: float) -> str:
        """Return the result of ``pynvml.<function>`` as JSON; ``nvmlDevice…`` takes the GPU's index first.

        A text argument, such as ``"0,1,2"``, asks once for each of its numbers: the answer is a list, with
        ``{"refused": …, "why": …}`` in place of a missing value.

        Raises the HostError with the reason in NVML's own words; TimedOut if the child was late, died or sent nonsense.
        Then it is not used again, and every further call raises the same.
        """
        deadline = time.monotonic() + patience_s
        if not self._lock.acquire(timeout=max(0.0, patience_s)):
            raise TimedOut(
                f"NVML {function}: not asked within {patience_s:.3g} s, because another question was running"
            )
        try:
            answer = self._exchange([function, *arguments], deadline - time.monotonic())
        finally:
            self._lock.release()
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        return json.dumps(answer["said"])

    def close(self) -> None:
        """Kill the child's group without waiting for it."""
        self._child.close()

    def _exchange(self, request: Sequence[str | int], patience_s: float) -> dict[str, Any]:
        if self._dead:
            raise self._dead
        what = f"NVML {request[0]}"
        self._dead = TimedOut(f"{what}: interrupted")  # Ctrl-C: a late answer must not meet another question
        try:
            if not self._child.started:
                refuse_without_library()
            answer = decode_answer(self._child.ask(json.dumps(request).encode(), patience_s))
        except TimedOut:
            self._dead = TimedOut(f"{what}: no answer within {max(0.0, patience_s):.3g} s; the driver may be wedged")
        except Failed as error:
            self._dead = TimedOut(f"{what}: {error}; the driver may be broken")
        except HostError as error:
            self._dead = error
        else:
            self._dead = None
            return answer
        self.close()
        raise self._dead


def refuse_without_library() -> None:
    """Raise Missing if NVML is not installed. Loading the library does not contact the driver.

    If the search would include the working directory, only the child looks for it, because it does not search there.
    """
    try:
        if not means_here("LD_LIBRARY_PATH"):
            ctypes.CDLL(_LIBRARY)
    except OSError as error:
        why = "there is none: no NVIDIA driver here, or a container started without GPUs"
        raise Missing(f"NVML ({_LIBRARY}): {why if 'No such file' in str(error) else error}") from None


def decode_answer(said: bytes) -> dict[str, Any]:
    """Decode the answer. Raises Failed if it is malformed."""
    try:
        answer = json.loads(said)
        if isinstance(answer, dict) and ("said" in answer or answer["refused"] in REFUSALS):
            return answer
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise Failed(f"the child process gave an invalid answer: {said[:80]!r}")
