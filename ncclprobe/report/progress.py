"""Progress on stderr: on a terminal one line that is overwritten, otherwise an occasional line."""

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

from ncclprobe.model.units import plural

CLEAR = "\r\x1b[K"
"""Move to the beginning of the line, and clear it."""
_FIRST_S, _EVERY_S = 0.3, 0.5  # of a line that a person waits for
_QUIET_S, _RARELY_S = 2.0, 15.0  # of lines in a log


class Waiting:
    """Shows the current activity and its duration, drawn by a separate thread.

    Not while something is measured in this process: the thread would disturb the timing. `lines`: without a terminal,
    print an occasional line.
    """

    def __init__(self, what: str, *, wanted: bool, lines: bool = False) -> None:
        self._what = what
        self._terminal = wanted and sys.stderr.isatty()
        self._lines = wanted and lines and not self._terminal
        self._began, self._next = time.monotonic(), time.monotonic() + _QUIET_S
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Waiting":
        self.begin(self._what)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def begin(self, what: str) -> None:
        """Draw `what`, on a terminal, until :meth:`end`."""
        self._what, self._began = what, time.monotonic()
        if self._terminal and self._thread is None:
            self._over = threading.Event()
            self._thread = threading.Thread(target=self._loop, args=(self._over,), name="progress", daemon=True)
            self._thread.start()

    def say(self, what: str) -> None:
        """Show `what` from now on."""
        self._what = what
        if self._lines and time.monotonic() >= self._next:
            self._next = time.monotonic() + _RARELY_S
            print(f"ncclprobe: {what}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        self._over.set()
        if self._thread is not None:
            with self._drawing:
                _write(CLEAR)
            self._thread = None

    def _loop(self, over: threading.Event) -> None:
        wait_s = _FIRST_S
        while not over.wait(wait_s):
            with self._drawing:
                if not over.is_set():
                    _write(CLEAR + _fit_line(f"… {self._what}  {time.monotonic() - self._began:.0f} s"))
            wait_s = _EVERY_S


class Progress:
    """The line of a measuring run, drawn at each phase: a thread that redraws it would disturb the timing."""

    def __init__(self, wanted: bool) -> None:
        self._live: Any = None
        self._wanted = wanted
        self._terminal = wanted and sys.stderr.isatty()
        self._rows = self._expected = 0
        self._row, self._reached = "", 0.0
        self._began = self._part_began = time.monotonic()

    def expect(self, rows: int) -> None:
        """Start counting rows, of which `rows` will follow."""
        self._rows, self._expected, self._began = 0, rows, time.monotonic()

    def count(self) -> None:
        """Count a measured row."""
        self._rows += 1

    def reach(self, row: str, precision: float) -> None:
        """Show the precision of the median of `row`: half its interval, as a share of it."""
        self._row, self._reached = row, precision

    def say(self, text: str) -> None:
        """Print a message for the reader in a line that stays."""
        if self._wanted:
            _write(f"ncclprobe: {text}\n")

    def show(self, phase: str) -> None:
        """Replace the line: ``[7/13] all_reduce 32 KiB in place  ±4.1 %  ~18 s``."""
        if self._terminal and self._live is None:
            from rich.console import Console  # at a terminal alone
            from rich.live import Live

            _write(CLEAR)  # of the process that started this one
            console, ours = Console(stderr=True, highlight=False), sys.stdout.isatty()
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=ours)
            self._live.start()
        if self._live is not None:
            place = f"\\[{min(self._rows + 1, self._expected)}/{self._expected}] " if self._expected else ""
            self._live.update(f"… {place}{self._shorten_phase(phase)}{self._left()}", refresh=True)

    def finish(self, part: str) -> None:
        """Report that `part` is finished, and how long it took, if there is no terminal with a line to redraw."""
        now = time.monotonic()
        if self._wanted and not self._terminal:
            rows = f", {plural(self._rows, 'row')}" if self._rows else ""
            print(f"ncclprobe: {part}{rows}: {now - self._part_began:.1f} s", file=sys.stderr, flush=True)
        self._part_began, self._rows, self._expected = now, 0, 0

    def stop(self) -> None:
        """Remove the line and show the cursor again."""
        self._terminal = False
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _shorten_phase(self, phase: str) -> str:
        """Return the phase; for a row with an interval only the row and the interval's width."""
        if not self._row or not phase.startswith(f"{self._row} "):
            return phase
        share = 100 * self._reached
        return f"{self._row}  ±{share:.2g} %" if share < 99.5 else f"{self._row}  ±{share:.0f} %"

    def _left(self) -> str:
        """Return the estimated time for the remaining rows, based on those before."""
        left = self._expected - self._rows
        if not self._rows or left <= 0:
            return ""
        return f"  ~{left * (time.monotonic() - self._began) / self._rows:.0f} s"


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # the terminal is gone, and its reader
        return


def _fit_line(text: str) -> str:
    """Cut `text` to one line of the terminal."""
    try:
        return text[: max(os.get_terminal_size(sys.stderr.fileno()).columns - 1, 20)]
    except (OSError, ValueError):
        return text[:79]
