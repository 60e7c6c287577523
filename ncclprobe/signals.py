"""Start and exit of ncclprobe as a program, and its handling of SIGINT, SIGTERM and SIGHUP.

A signal ends the program without a traceback, with 128 + its number (130, 143, 129), as a shell reports it. While a
command runs it is an exception, so that temporary files and processes of the run are removed. Before and after that,
and at a second signal, the process ends at once. Only a program does this: importing ncclprobe changes no handler.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False  # typing, and the enumerations of signal, take milliseconds in which a signal prints a traceback
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import NoReturn
else:
    import _signal as signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_MEMORY = "no memory is left to this process (raise ulimit -v, or the limit of its cgroup)"
_INCONCLUSIVE = 3  # of model.findings.ExitCode, which takes too long to import here
_LONGEST_S = 1e7  # of a --timeout that means anything; inf: there is none
_CLEANING_S = 2.0
"""Time for removing what the run made. After it, or if the exception is lost, the process ends."""


LAST: list[Callable[[], None]] = []
"""Called by this process at the very end, which must take milliseconds: possibly from a signal handler."""


class Interrupted(KeyboardInterrupt):
    """The signal `number` ends this run."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_BEGAN: list[float] = []


class _State:
    raising = False  # whether an exception would be caught
    received = 0  # the first signal


def begin() -> None:
    """Start the clock of this process's run: --timeout counts from here, before anything is imported.

    Not the kernel's start time of the process: after ``sleep 3600; exec ncclprobe …`` that is an hour ago.
    """
    _BEGAN[:] = [time.monotonic()]


def began() -> float:
    """Return the time.monotonic() at which the run began; now, in a process that was not started for a run."""
    return _BEGAN[0] if _BEGAN else time.monotonic()


def take_over() -> None:
    """Let the signals of ENDING end this process quietly; ignored ones (nohup) stay ignored. Main thread only."""
    sys.unraisablehook = _report_unraisable
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _received)


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> NoReturn:
    """Run `main` with `argv`, and end this process with the exit code that it returns."""
    try:
        _State.raising = True
        code = main(argv)
        _State.raising = False
    except Interrupted as interrupted:
        end_now(interrupted.number)
    except SystemExit as left:  # argparse: --help, and wrong usage
        _State.raising = False
        code = left.code if isinstance(left.code, int) else 0
    leave(code)


def leave(code: int) -> NoReturn:
    """Flush output and end this process at once, whatever other threads hold.

    An orderly exit of Python would wait for a thread that a dead file system blocks, and stop others in the middle of C
    code, which may crash. It would also remove the signal handlers first, and torchrun sends SIGTERM as soon as one
    rank has ended: the exit code would be lost.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: the reader is gone
            stream.flush()
    _exit(code)


def end_now(number: int) -> NoReturn:
    """Report that signal `number` interrupted this run, and end this process. A rank leaves that to its starter."""
    with contextlib.suppress(OSError):
        if "NCCLPROBE_FOLDER" not in os.environ:  # of session.ranks.rank_files, which cannot be imported here
            os.write(2, b"ncclprobe: interrupted; nothing was judged\n")
    _exit(128 + number)


def end_by(seconds: float) -> None:
    """End this process, if it is a program, with exit code 3 after `seconds`, whatever blocks it.

    The last resort: Python waits without a limit for a thread that had no memory to begin with. Main thread only.
    """
    if _State.raising and seconds < _LONGEST_S:
        signal.signal(signal.SIGALRM, _raise_out_of_time)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _raise_out_of_time(_number: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"ncclprobe: --timeout ran out, and something kept this process; nothing was judged\n")
    _exit(_INCONCLUSIVE)


def _exit(code: int) -> NoReturn:
    for work in LAST:
        work()
    os._exit(code)


def _received(number: int, _frame: FrameType | None) -> None:
    if _State.received or not _State.raising:
        end_now(_State.received or number)
    _State.received = number
    signal.signal(signal.SIGALRM, _received)
    signal.setitimer(signal.ITIMER_REAL, _CLEANING_S)
    raise Interrupted(number)


def _report_unraisable(what: sys.UnraisableHookArgs) -> None:
    """Print unraisable exceptions, except an interruption in a callback, and a thread without memory."""
    if not _State.received and not issubclass(what.exc_type, MemoryError):
        sys.__unraisablehook__(what)
