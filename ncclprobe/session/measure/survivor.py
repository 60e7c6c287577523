"""A process that makes the report if the process that should make it was killed, or is stopped.

It reads its standard input, which its owner (rank 0, or the process that ``--nproc`` was given to) holds open. A byte
means that the report is written. An end of file without a byte means that the owner is gone. The ranks that the owner
started are then killed; without such ranks, the survivor looks for the ranks that ended with the owner, before the
others leave because of it. Then the command makes the report of the run log. After `late_s` seconds without a byte or
an end, and ten more if the log has its end, the owner counts as stopped. So does a rank 0 that is the only stopped rank
of its host, for as long as the others wait for it. The report is then made of the samples so far, and made again once
the run ends. `folder`, if any, is removed in the end, with the processes that work in it; whichever of the two outlives
the other removes it. The process leads a session of its own, so that a signal to the owner's group does not reach it,
and imports little.
"""

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ncclprobe.facts.run.samples import LostRank, any_of
from ncclprobe.host.command import abandon
from ncclprobe.host.own_child import start_own
from ncclprobe.host.run_log import CUT_SHORT, RunLog, ends
from ncclprobe.host.scratch import Scratch
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.values import asdict
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.watchdog.ending import gone_with_rank_0, is_stopped
from ncclprobe.session.watchdog.heartbeat import PERIOD_S, SILENT_PERIODS

_DONE = b"."
_GOING_S = 0.1
"""For all ranks to be killed that are. The others leave half a second after rank 0, at the earliest (watchdog.py)."""
_STOPPED_LOOKS = SILENT_PERIODS + 3
"""By then the others have left (watchdog.py)."""
_REPORT_S = 60.0
_LEAVING_S = 2.0
_LATE_S = 10.0
"""Seconds after --timeout for an owner that is not stopped to end the log."""
LOG = "NCCLPROBE_RUN_LOG"
"""The variable that names the run log to a command that makes its report and measures nothing."""


class Survivor:
    """The survivor, as its owner starts and dismisses it."""

    def __init__(
        self,
        log: Path,
        command: Sequence[str],
        timeout_s: float,
        folder: Scratch | None = None,
        *,
        started_ranks: bool = False,
    ) -> None:
        """Start it for a run of at most `timeout_s` seconds whose log is `log`, and whose command line `command`.

        `started_ranks`: the ranks work in `folder`, and end with this process.
        """
        late_s, self._folder = timeout_s + _LATE_S, folder
        path = str(folder.path) if folder else ""
        self._process = start_own(
            f"{__name__}:begin",
            *(str(log), "ranks" if started_ranks else "", str(late_s), path, *command),
            stdin=subprocess.PIPE,
            pass_fds=[folder.lock] if folder and folder.lock is not None else [],
            outlives=True,
        )

    def dismiss(self) -> None:
        """Report that the report is written, and end the survivor, even if it was stopped or killed before."""
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), _DONE)  # type: ignore[union-attr]
        try:
            self._process.wait(_LEAVING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._folder:
            self._folder.remove()


def main(log: Path, started_ranks: bool, late_s: float, folder: str, command: Sequence[str]) -> None:
    """Wait for the owner's byte or its end, and make the report if it left none."""
    if _stands_still(log, late_s, started_ranks):
        _report(log, command)
    if os.read(0, 1) != _DONE:
        if started_ranks:
            rank_files.end_processes_of(folder)
            _foresee(log)
        else:
            time.sleep(_GOING_S)
            _name_lost(log)
        _report(log, command)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _stands_still(log: Path, late_s: float, started_ranks: bool) -> bool:
    """Wait for the owner's byte or its end; return whether it is stopped before. Name a rank 0 that is stopped."""
    late, looks = time.monotonic() + late_s, 0
    while _silent(max(0.0, min(PERIOD_S, late - time.monotonic()))):
        if time.monotonic() >= late:
            return not ends(log) or _silent(_LATE_S)
        looks = looks + 1 if not started_ranks and is_stopped(os.getppid()) else 0
        if looks >= _STOPPED_LOOKS and _name_lost(log, stopped=True):
            return True
    return False


def _silent(seconds: float) -> bool:
    return not select.select([0], [], [], seconds)[0]


def _name_lost(path: Path, *, stopped: bool = False) -> bool:
    """Write which ranks are lost with rank 0, unless the log has its end or names some; return whether it names any."""
    with contextlib.suppress(NcclprobeError):  # there is no log as yet, or a strange one
        log = RunLog.resume(path)
        if log.end is None and not any_of(log, "lost", LostRank):
            for rank in gone_with_rank_0(log, stopped=stopped):
                log.add("lost", asdict(rank))
        return bool(any_of(log, "lost", LostRank))
    return False


def _foresee(path: Path) -> None:
    """Write why the run ended, unless the process that had started the ranks has done it."""
    with contextlib.suppress(NcclprobeError):
        log = RunLog.resume(path)
        if log.end is None and log.foreseen == CUT_SHORT:
            log.foresee("the process that had started the ranks was killed")


def _report(log: Path, command: Sequence[str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process = start_own("ncclprobe.start:program", *command, variables={LOG: str(log)})
        try:
            process.wait(_REPORT_S)
        finally:
            abandon(process)


def begin(log: str, started_ranks: str, late_s: str, folder: str, *command: str) -> None:
    """Be this process."""
    main(Path(log), bool(started_ranks), float(late_s), folder, command)
