"""How a run ends before its last row, and how a process leaves it."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from ncclprobe.facts.run.ranks import Arrivals, Attendance
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct

_REPORTING_S = 10.0
"""For writing the report: a file system that hangs must not keep the ranks."""


_RESERVE_S = 5.0


def reserve_s(timeout_s: float) -> float:
    """Return the seconds of --timeout that are kept for deciding who is lost, reporting and leaving.

    A rank decides within a period of the heartbeats, rank 0 stays a second and a half for the others to read that, and
    a rank that is stopped is killed before the report.
    """
    return min(_RESERVE_S, timeout_s / 4)


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


def wait_for_the_end() -> NoReturn:
    """Wait on the main thread: one of the watchdog's two threads ends this process."""
    while True:
        time.sleep(1.0)


def lives(pid: int) -> bool:
    """Return whether process `pid` of this host runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
