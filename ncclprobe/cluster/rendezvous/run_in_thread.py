"""Run work that may never return on a thread that nothing waits for, not even the end of the process."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T], deadline: float) -> T:
    """Return the result of `work`. asyncio's own executor would be waited for when the loop ends.

    Raises whatever `work` raises, and TimeoutError at `deadline` (time.monotonic()), or if no thread can be started;
    the
    message distinguishes the two.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], None], outcome: object) -> None:
        if not done.done():
            how(outcome)

    def attempt() -> None:
        how: Callable[[Any], None]
        outcome: object
        try:
            how, outcome = done.set_result, work()
        except BaseException as error:  # noqa: BLE001 - not caught but handed on to the waiting task
            how, outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(settle, how, outcome)

    try:
        threading.Thread(target=attempt, daemon=True).start()
    except RuntimeError as error:  # ulimit -u, ulimit -v, the cgroup's pids.max
        raise TimeoutError(f"this process cannot start a thread ({error})") from None
    try:
        return await asyncio.wait_for(done, max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise TimeoutError from None
