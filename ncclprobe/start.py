"""When a run began, from which --timeout counts: with its process where that was started for it, else with its command.

Not the kernel's start time of the process: after ``sleep 3600; exec ncclprobe …`` that is an hour ago.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOADED = time.monotonic()
_BEGAN: ContextVar[float | None] = ContextVar("began", default=None)


@contextmanager
def run(*, own_process: bool) -> Iterator[None]:
    """Let a run begin here, or, with `own_process`, where this process first had to do with ncclprobe."""
    token = _BEGAN.set(_LOADED if own_process else time.monotonic())
    try:
        yield
    finally:
        _BEGAN.reset(token)


def began() -> float:
    """Return the time.monotonic() at which this run began; now where no command was run for it."""
    found = _BEGAN.get()
    return time.monotonic() if found is None else found
