"""Start ncclprobe as a program. Signals are taken over first: whatever is imported takes time, and one may come."""

from __future__ import annotations

import sys

from ncclprobe import interrupt, run_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def program(*command: str) -> NoReturn:
    """Run the command line after the words `command`, and end this process with its exit code."""
    run_clock.begin()
    interrupt.take_over()
    from ncclprobe.__main__ import main

    interrupt.run(main, [*command, *sys.argv[1:]])
