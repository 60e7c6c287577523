"""How far a run is, on stderr: on a terminal a line with the current phase, else a line per part that is finished."""

import sys
import time
from typing import Any

from ncclprobe.units import plural


class Progress:
    """The line is drawn at each phase: a thread that redraws would disturb the timing."""

    def __init__(self, wanted: bool) -> None:
        self._live: Any = None
        self._wanted = wanted
        self._terminal = wanted and sys.stderr.isatty()
        self._rows = self._expected = 0
        self._began = self._part_began = time.monotonic()

    def expect(self, rows: int) -> None:
        """Count rows from here on: so many are to come."""
        self._rows, self._expected, self._began = 0, rows, time.monotonic()

    def count(self) -> None:
        """Count a row that is measured."""
        self._rows += 1

    def show(self, phase: str) -> None:
        """Replace the line: ``[7/13] all_reduce 32 KiB batch 3  ~18 s``."""
        if self._terminal and self._live is None:
            self._start()
        if self._live is not None:
            self._live.update(f"… {self._place()}{phase}{self._left()}", refresh=True)

    def finish(self, part: str) -> None:
        """Say that `part` is finished, and how long it took, where there is no terminal to redraw a line on."""
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

    def _place(self) -> str:
        return f"\\[{min(self._rows + 1, self._expected)}/{self._expected}] " if self._expected else ""

    def _left(self) -> str:
        """Return how long the rows that are left take, if they take as long as those before."""
        left = self._expected - self._rows
        if not self._rows or left <= 0:
            return ""
        return f"  ~{left * (time.monotonic() - self._began) / self._rows:.0f} s"

    def _start(self) -> None:
        from rich.console import Console  # at a terminal alone
        from rich.live import Live

        console, ours = Console(stderr=True), sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=ours)
        self._live.start()
