"""When this process's run began: --timeout counts from there, whatever is imported and read before it is known.

Not the kernel's start time of the process: after ``sleep 3600; exec ncclprobe …`` that is an hour ago.
"""

import time

_BEGAN: list[float] = []


def begin() -> None:
    """Let the one run of this process begin now."""
    _BEGAN[:] = [time.monotonic()]


def began() -> float:
    """Return the time.monotonic() at which the run began; now in a process that was not started for one."""
    return _BEGAN[0] if _BEGAN else time.monotonic()
