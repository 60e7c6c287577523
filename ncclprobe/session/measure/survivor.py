"""A process that makes the report where the process that should make it was killed.

``python -m ncclprobe.session.measure.survivor LOG WAIT_S FOLDER COMMAND OPTION…`` reads its standard input, which its
owner (rank 0, or the process that ``--nproc`` was given to) holds open. A byte says that the report is written; an end
of file without one, that the owner is gone: then the run log is given WAIT_S seconds to end, for ranks may still be
leaving, and the command makes the report of it. FOLDER, if any, is removed in the end. The process leads a session of
its own, so that a signal to the owner's group does not reach it, and imports next to nothing.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_DONE = b"."
_POLL_S = 0.1
_REPORT_S = 60.0
LOG = "NCCLPROBE_RUN_LOG"
"""The variable that names the run log to a command that makes its report and measures nothing."""


class Survivor:
    """The survivor, as its owner starts and dismisses it."""

    def __init__(self, log: Path, command: Sequence[str], *, folder: str = "", wait_s: float = 0.0) -> None:
        own = [sys.executable, "-m", __name__, str(log), str(wait_s), folder, *command]
        self._process = subprocess.Popen(
            own,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Say that the report is written."""
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), _DONE)  # type: ignore[union-attr]


def main(log: Path, wait_s: float, folder: str, command: Sequence[str]) -> None:
    """Wait for the owner's byte or its end, and make the report where it left none."""
    if os.read(0, 1) != _DONE:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not _has_end(log):
            time.sleep(_POLL_S)
        _report({**os.environ, LOG: str(log)}, command)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _has_end(log: Path) -> bool:
    from ncclprobe.host.run_log import ends

    return ends(log)


def _report(variables: Mapping[str, str], command: Sequence[str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-m", "ncclprobe", *command], env=variables, timeout=_REPORT_S, check=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
