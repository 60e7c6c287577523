"""Show rows as they come, then write and show the report. A broken terminal never costs the report."""

import os
from collections.abc import Sequence

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
        self._shown: bool | None = None
        self._lost = False
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
            self._print(f"{head}{line}")
        self._op = row.op

    def write(self, report: Report) -> None:
        """Write the JSON report, where one is wanted. Raises UsageError where it cannot be written."""
        if self._options.json and self._options.json != "-":
            as_json.write(report, self._options.json)

    def publish(self, report: Report) -> int:
        """Write `report` wherever it is wanted, then show it; returns the exit code."""
        code = delivery.deliver(report, self._options, measured=not self.shows_rows, shown=self._shown)
        return int(ExitCode.USAGE if self._lost and code != ExitCode.FAIL else code)

    def lose(self, whys: Sequence[str]) -> None:
        """Say why files that are wanted besides the report could not be written."""
        for why in whys:
            self._lost = True
            delivery.complain(why)

    def _print(self, text: str) -> None:
        """Print `text`. After a failure nothing more is tried on standard output."""
        if self._shown is not None:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:  # `… | head`: the reader has left
            self._shown = True
        except (OSError, ValueError) as error:  # full, closed, of another encoding, or too narrow for any text
            self._shown = False
            if FOLDER not in os.environ:  # else the parent of this rank fails in the same way, and prints that
                delivery.complain(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")
        if self._shown is not None:
            delivery.silence_stdout()
