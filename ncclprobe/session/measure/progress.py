"""A line with the current phase on a terminal's stderr; nothing where stderr is no terminal."""

import sys
from typing import Any


class Progress:
    """The line, drawn at each phase: a thread that redraws would disturb the timing."""

    def __init__(self, wanted: bool) -> None:
        self._live: Any = None
        self._wanted = wanted and sys.stderr.isatty()

    def show(self, phase: str) -> None:
        """Replace the line."""
        if self._wanted and self._live is None:
            self._start()
        if self._live is not None:
            self._live.update(f"… {phase}", refresh=True)

    def stop(self) -> None:
        """Remove the line and show the cursor again."""
        self._wanted = False
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        from rich.console import Console  # at a terminal alone
        from rich.live import Live

        console, ours = Console(stderr=True), sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=ours)
        self._live.start()
