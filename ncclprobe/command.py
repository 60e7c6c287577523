"""Running a command without ever being held by it.

A command gets a process group of its own, which is killed as a whole; nobody waits for a process that survives
SIGKILL in uninterruptible sleep, nor for its pipes.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from ncclprobe.errors import Denied, Failed, HostError, Missing, TimedOut

MAX_OUTPUT_BYTES = 16 << 20
_DYING_S = 0.5


def run(argv: Sequence[str], patience_s: float) -> str:
    """Standard output of a command that ends with 0 within `patience_s` seconds; its whole group is killed if not."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise as_host_error(error, argv[0]) from None
    try:
        out, err = process.communicate(timeout=max(0.0, patience_s))
    except subprocess.TimeoutExpired:
        abandon(process)
        raise TimedOut(f"{' '.join(argv)}: no answer within {max(0.0, patience_s):.3g} s") from None
    except BaseException:  # Ctrl-C included: no process is left behind
        abandon(process)
        raise
    text = out[:MAX_OUTPUT_BYTES].decode(errors="replace")
    if process.returncode:
        words = " ".join((err.decode(errors="replace") or text).split())[:300]
        raise Failed(f"{' '.join(argv)}: exit code {process.returncode}: {words}")
    return text


def abandon(process: "subprocess.Popen[bytes]") -> None:
    """Kill `process` with its whole group, let go of its pipes, and wait no longer than dying normally takes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):  # unsent input of a broken pipe
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DYING_S)


def as_host_error(error: BaseException, what: str) -> HostError:
    """The HostError that says what the operating system said of `what`."""
    if isinstance(error, HostError):
        return error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(f"{what}: not there")
    if isinstance(error, PermissionError):
        return Denied(f"{what}: permission denied")
    return Failed(f"{what}: {getattr(error, 'strerror', None) or error}")
