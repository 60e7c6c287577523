"""How a run ends before its last row, and how a process leaves it."""

import contextlib
import os
import sys
import threading
from typing import NoReturn

from ncclprobe.facts.run.ranks import Arrivals, Attendance
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct

_REPORTING_S = 10.0
"""For writing the report: a file system that hangs must not keep the ranks."""


class Ending(Struct, frozen=True):
    """Why a run ends before its last row. `why` is empty where the facts tell it.

    `code` is for ranks that must leave without rank 0's exit code: FAIL, because a rank is lost, unless set.
    """

    arrivals: Arrivals | None = None
    attendance: Attendance | None = None
    why: str = ""
    code: ExitCode = ExitCode.FAIL


def limit_reporting() -> None:
    """End this process with code 1 where it is still there after 10 s, in which the report is to be written."""
    threading.Timer(_REPORTING_S, _force_exit).start()


def _force_exit() -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"ncclprobe: the report could not be written within {_REPORTING_S:.0f} s\n".encode())
    os._exit(ExitCode.BROKEN)


def leave(code: int) -> NoReturn:
    """Flush what was written and end this process at once, whatever other threads hold.

    An orderly end would take the signal handlers down first, and torchrun sends SIGTERM as soon as one rank has
    ended: the exit code would be lost.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: the reader is gone
            stream.flush()
    os._exit(code)
