"""Show rows as they come, then write and show the report. A broken terminal never costs the report."""

import contextlib
import os
import sys
from collections.abc import Callable

from ncclprobe.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.report import delivery, rows
from ncclprobe.report import json as as_json
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.rank_files import FOLDER


class Publisher:
    """Standard output and the files that the options name."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mute = False
        self._op = ""

    @property
    def shows_rows(self) -> bool:
        """Return whether rows are shown as they come."""
        return not self._options.quiet and not delivery.on_stdout(self._options)

    def row(self, row: Measurement) -> None:
        """Show a row, the first one under its header."""
        if self.shows_rows:
            wide, style = delivery.width(), delivery.style(self._options.no_color)
            head = "" if self._op else f"{rows.header(row, wide)}\n"
            line = rows.row(row, wide, style, self._op)
            self._print(lambda: print(f"{head}{line}", flush=True))
        self._op = row.op

    def write(self, report: Report) -> None:
        """Write the JSON report, where one is wanted. Raises UsageError where it cannot be written."""
        if self._options.json and self._options.json != "-":
            as_json.write(report, self._options.json)

    def publish(self, report: Report) -> int:
        """Write `report` wherever it is wanted, then show it; returns the exit code."""
        code = report.exit_code
        try:
            self.write(report)
            delivery.write_others(report, self._options)
        except UsageError as error:  # the other ranks wait for an exit code
            self._complain(str(error))
            code = ExitCode.USAGE
        return int(code if self._show(report) else ExitCode.BROKEN)

    def _show(self, report: Report) -> bool:
        """Show the report; return whether standard output got the format that was asked of it."""
        o = self._options
        if alone := delivery.on_stdout(o):
            return self._print(lambda: delivery.write(alone, report, "-"))
        if report.measurements and self.shows_rows:
            self._print(lambda: print(flush=True))
        shown = {"quiet": o.quiet, "verbose": o.verbose, "no_color": o.no_color, "measured": not self.shows_rows}
        self._print(lambda: delivery.show(report, **shown))
        return True

    def _print(self, show: Callable[[], None]) -> bool:
        """Return whether `show` could write to standard output. After a failure it is not tried again."""
        if self._mute:
            return False
        try:
            show()
        except BrokenPipeError:  # `… | head`: the reader has left
            self._mute = True
        except (OSError, ValueError) as error:  # full, closed, of another encoding, or too narrow for any text
            self._mute = True
            if FOLDER not in os.environ:  # else the parent of this rank fails in the same way, and prints that
                self._complain(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")
        if self._mute:
            _silence_stdout()
        return not self._mute

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(f"ncclprobe: {text}", file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    """Discard what is buffered for standard output: Python would try to write it again at exit, and fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
