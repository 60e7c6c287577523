"""A process that outlives rank 0: it makes the report where rank 0 was killed before it could.

``python -m ncclprobe.session.measure.survivor LOG OPTION…`` reads its standard input, which rank 0 holds open. A byte
says that the report is written; an end without one, that rank 0 is gone. It leads a session of its own, so that a
signal to rank 0's group does not reach it, and imports what a report takes only then. Not needed under ``--nproc``:
there the process that started the ranks makes the report.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclprobe.session.measure.recorder import Recorder
    from ncclprobe.session.options import Options

_DONE = b"."
LOG = "NCCLPROBE_RUN_LOG"
"""Set for a command that is to make the report of this run log, and to measure nothing."""


class Survivor:
    """Rank 0's end of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: "tempfile.TemporaryDirectory[str] | None") -> None:
        self._process, self._folder = process, folder

    @classmethod
    def start(cls, options: "Options", recorder: "Recorder") -> "Survivor | None":
        """Start one where a file is to hold the report and rank 0 alone could write it."""
        from ncclprobe.session.ranks.rank_files import FOLDER

        wanted = (options.json, options.junit, options.markdown, options.html, options.prometheus)
        if FOLDER in os.environ or not (any(w and w != "-" for w in wanted) or options.nodes_out):
            return None
        folder = None
        if recorder.path is None:
            try:
                folder = tempfile.TemporaryDirectory(prefix="ncclprobe-")
            except OSError:
                return None
            recorder.write_to(Path(folder.name))
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(recorder.path), options.command, *options.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, folder)

    def dismiss(self) -> None:
        """Say that the report is written."""
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), _DONE)  # type: ignore[union-attr]
        if self._folder:
            with contextlib.suppress(OSError):
                self._folder.cleanup()


def main(log: str, argv: list[str]) -> None:
    """Wait for rank 0's word or its end, and have the report made where it left none."""
    if os.read(0, 1) != _DONE:
        own = {**os.environ, LOG: log}
        os.execve(sys.executable, [sys.executable, "-m", "ncclprobe", *argv], own)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
