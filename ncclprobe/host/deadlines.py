"""Waiting for the operating system no longer than one is willing to: on threads that are left behind if need be."""

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
"""Seconds for a kind of question, or for one kind of it; 2 for all others."""


class _Worker:
    """A thread that does one thing after another. One that does not come back is not asked again."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        _thread.start_new_thread(self._serve, ())  # threading waits for ever for one that has no memory to begin with

    def do(self, work: Callable[[], Any], patience_s: float) -> tuple[Any, BaseException | None]:
        """Return what `work` returned, or what it raised. Raises Empty if it takes longer."""
        self._work.put(work)
        return self._done.get(timeout=max(0.0, patience_s))

    def end(self) -> None:
        """Let the thread end, once it comes back."""
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
"""Workers that came back. There are never more than were needed at once; a thread for every question of the hundred and
more would cost more than the answers."""
os.register_at_fork(after_in_child=_IDLE.clear)  # a fork has none of these threads


def within(patience_s: float, work: Callable[[], T], what: str) -> T:
    """Return what `work` returns, or TimedOut after `patience_s` seconds; operating-system errors become HostErrors.

    OutOfTime if there is no thread to ask with.

    A thread in uninterruptible sleep (a frozen local file system; NFS can be killed) delays only the end of this
    process: the report is written by then, and the shell waits until the kernel releases the thread.
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
    """Return or raise what `work` does; TimeoutError at `deadline` (time.monotonic()), leaving the thread behind."""
    if deadline == math.inf:
        return work()
    found, error = outcome(deadline, work)
    if error:
        raise error
    return cast(T, found)


def outcome(deadline: float, work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return what `work` returns, or what it raises, whatever that is. Raises TimeoutError as :func:`until` does."""
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
    """Run each on a thread, and wait for all: each has a deadline of its own."""
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
        raise OutOfTime(f"{what}: not asked, for {error} (raise ulimit -u, -v, or the cgroup's pids.max)") from None


def _attempt(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except (OSError, HostError, ValueError, MemoryError) as error:
        return None, error
