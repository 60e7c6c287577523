"""How a run ends before its last row, and how a process exits."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import Arrivals, Attendance
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct, replace
from ncclprobe.session.ranks.identity import RankIdentity, identify
from ncclprobe.session.ranks.rank_files import environment

_REPORTING_S = 10.0
"""Time for writing the report: a hanging file system must not keep the ranks."""


_RESERVE_S = 5.0
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h
_KILLED = 1 << 8  # SIGKILL, in a set of signals of proc(5)
_STILL = ("", "Z", "X", "T", "t")
"""States in proc(5) of a process that runs no more: none, a zombie, dead, stopped by a signal or a debugger."""


def reserve_s(timeout_s: float) -> float:
    """Return the seconds of --timeout reserved for deciding who is lost, reporting and exiting.

    A rank decides within one heartbeat period, rank 0 stays a second and a half for the others to read that, and a
    stopped rank is killed before the report.
    """
    return min(_RESERVE_S, timeout_s / 4)


class Ending(Struct, frozen=True):
    """Why a run ends before its last row. `why` is empty if the facts show it.

    `code` is for ranks that must exit without rank 0's exit code: FAIL, because a rank is lost, unless set.
    """

    arrivals: Arrivals | None = None
    attendance: Attendance | None = None
    why: str = ""
    code: ExitCode = ExitCode.FAIL


def limit_reporting() -> None:
    """Exit with code 1 if this process is still running after 10 s, the time allowed for the report."""
    threading.Timer(_REPORTING_S, _force_exit).start()


def _force_exit() -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"ncclprobe: the report could not be written within {_REPORTING_S:.0f} s\n".encode())
    os._exit(ExitCode.BROKEN)


def wait_for_the_end() -> NoReturn:
    """Block the main thread: one of the watchdog's two threads ends this process."""
    while True:
        time.sleep(1.0)


def lives(pid: int) -> bool:
    """Return whether process `pid` of this host exists and has not been killed, even if it has not exited yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return False
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return not (flags & _EXITING or any(each & _KILLED for each in pending))


def runs(pid: int) -> bool:
    """Return whether process `pid` of this host exists and is not stopped."""
    return _state(Path(f"/proc/{pid}"))[0] not in _STILL


def running_siblings(own: RankIdentity) -> frozenset[int]:
    """Return the other running ranks of this job that its launcher started on this host.

    If the launcher starts each rank from a separate process, there are no siblings, and nothing is known about the
    others.
    """
    parent, found = str(os.getppid()), set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        state, started_by = _state(process)
        if started_by == parent and state not in _STILL:
            with contextlib.suppress(UsageError):
                variables = environment(process / "environ")
                other = identify(detect(variables), variables)
                if other and replace(other, rank=own.rank, local_rank=own.local_rank) == own:
                    found.add(other.rank)
    return frozenset(found)


def _state(process: Path) -> tuple[str, str]:
    """Return the state and parent of a process in /proc; both empty if it does not exist."""
    try:
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", ""
    return state, parent
