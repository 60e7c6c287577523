"""Wait for the operating system with a deadline: on threads that are abandoned if necessary."""

import _thread
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from ncclprobe.host.command import as_host_error
from ncclprobe.model.errors import Failed, HostError, OutOfTime, TimedOut

T = TypeVar("T")
STACKS_S = 2.0
QUESTION_S = {
    "run": 10.0,
    "run nvidia-smi": 60.0,  # without persistence mode it takes 1-3 s per GPU to start (checks.md, Corrections)
    "nvml": 60.0,
    "nvml gpusOf": 6.0,  # of a running job, whose driver is at work: initialising it takes less
    "psutil": 10.0,  # the first question imports it, from whatever the environment lies on
    "resolve": 5.0,
    "data": 10.0,
    "packages": 10.0,
    "interpreter": 10.0,
    "tree": 20.0,
    "mapped": 10.0,
    "kernel_log": 15.0,
    "elf_texts": 10.0,
    "elf_symbols": 10.0,
    "elf_objects": 10.0,
    "ranks": 20.0,  # without it there is nothing to look at, and a node that swaps or is overloaded takes so long
    "process": 2.0,
    "server": 1.5,
    "dump": 13.0,  # torch looks at its pipe once a second, and looks up the names of its stacks
    "ras": 4.0,
    "stacks": STACKS_S + 1.0,
    "wait": 60.0,
    "files": 10.0,  # a NIC's firmware is asked for each of its counters
}
"""Timeouts in seconds by kind of question, or for a specific one; 2 for all others."""


class _Worker:
    """A thread that runs one task after another. A thread that does not return is not used again."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        _thread.start_new_thread(self._serve, ())  # threading waits for ever for one that has no memory to begin with

    def do(self, work: Callable[[], Any], patience_s: float) -> tuple[Any, BaseException | None]:
        """Return the result or exception of `work`. Raises Empty if it takes longer."""
        self._work.put(work)
        return self._done.get(timeout=max(0.0, patience_s))

    def end(self) -> None:
        """Stop the thread once it returns."""
        self._work.put(None)

    def _serve(self) -> None:
        while work := self._work.get():
            outcome = _BROKE
            try:
                outcome = _attempt(work)
            finally:
                self._done.put(outcome)


_BROKE: tuple[Any, BaseException | None] = (None, Failed("its reader failed; the reason is on stderr"))
_IDLE: deque[_Worker] = deque()
"""Idle workers. There are never more than were needed at once; a new thread for each of the hundred and more questions
would cost more than the answers.
"""
os.register_at_fork(after_in_child=_IDLE.clear)  # a fork has none of these threads


def within(patience_s: float, work: Callable[[], T], what: str) -> T:
    """Return the result of `work`, or raise TimedOut after `patience_s` seconds; OSErrors become HostErrors.

    Raises OutOfTime if no thread is available. A thread in uninterruptible sleep (a frozen local file system; NFS can
    be killed) delays only the end of this process: the report is written by then, and the shell waits until the kernel
    releases the thread.
    """
    try:
        worker = _IDLE.pop()
    except IndexError:
        worker = _hired(what)
    try:
        outcome = worker.do(work, patience_s)
    except Empty:
        worker.end()
        raise TimedOut(f"{what}: no answer within {max(0.0, patience_s):.3g} s") from None
    if outcome is not _BROKE:
        _IDLE.append(worker)
    answer, refusal = outcome
    if refusal:
        raise as_host_error(refusal, what)
    return cast(T, answer)


def until(deadline: float, work: Callable[[], T]) -> T:
    """Return or raise what `work` does; raise TimeoutError at `deadline` (time.monotonic()) and abandon the thread."""
    if deadline == math.inf:
        return work()
    found, error = outcome(deadline, work)
    if error:
        raise error
    return cast(T, found)


def outcome(deadline: float, work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result or exception of `work`. Raises TimeoutError as :func:`until` does."""
    done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def attempt() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - not caught but handed on to the waiting thread
            done.put((None, error))

    try:
        _thread.start_new_thread(attempt, ())
    except RuntimeError:  # no thread is left to this process, and so no way to leave the work behind
        attempt()
    try:
        return done.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        raise TimeoutError from None


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Run each task on its own thread, and wait for all; each has its own deadline."""
    threads = []
    for each in work:
        thread = threading.Thread(target=each, daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # no thread is left to this process: one after the other, then
            each()
    for thread in threads:
        thread.join()


def _hired(what: str) -> _Worker:
    try:
        return _Worker()
    except RuntimeError as error:
        raise OutOfTime(f"{what}: not asked, because {error} (raise ulimit -u, -v, or the cgroup's pids.max)") from None


def _attempt(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except (OSError, HostError, ValueError, MemoryError) as error:
        return None, error
