"""Run another program so that it always ends: at its deadline, and when we are told to stop.

A child gets a process group of its own. Asked to stop, the group has `GRACE_S` to keep what it has (SIGINT), then it is
killed. Nobody waits without a deadline, not even for a killed child: one that hangs in a driver does not die.
"""

import contextlib
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

# Whoever calls us is not bound by requires-python, and the python3 of many clusters is 3.6: all scripts import this
# before anything that 3.6 cannot do.
if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(f"Python {sys.version.split()[0]} is older than 3.10: set PYTHON to a newer one")

ROOT = Path(__file__).resolve().parent.parent
GRACE_S = 10.0

Sink = Callable[[bytes], object]


def run(command: list[str], *, deadline_s: float, sink: Sink | None = None) -> int:
    """Run `command` from the repository's root and return its exit code.

    `sink` takes its stdout and stderr as they come; without one it writes where we write. Raises
    subprocess.TimeoutExpired at the deadline.
    """
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=sink and subprocess.PIPE,
        stderr=sink and subprocess.STDOUT,
        start_new_session=True,
    )
    pump = threading.Thread(target=_pump, args=(child.stdout, sink), daemon=True)
    pump.start()
    try:
        return child.wait(deadline_s)
    finally:
        try:
            if child.poll() is None:
                _signal_group(child, signal.SIGINT)
                child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # at a second Ctrl-C too, and for what an ended child left in its group
            _signal_group(child, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
        pump.join(GRACE_S)  # not for ever: a process that left the group may hold the pipe open


def ask(command: list[str], *, deadline_s: float) -> tuple[int, str]:
    """Run `command`; its exit code and the last line it wrote, to stdout or stderr."""
    code, lines = _lines(command, deadline_s)
    return code, lines[-1] if lines else ""


def ask_json(command: list[str], *, deadline_s: float) -> Any:
    """Run `command` and return the JSON object that it writes on a line; leaves with one line where it failed."""
    code, lines = _lines(command, deadline_s)
    answers = [line for line in lines if line.startswith("{")]  # libraries may write lines of their own
    if code or not answers:
        fail(f"{shlex.join(command)}: exit {code}: {lines[-1] if lines else 'no answer'}")
    return json.loads(answers[-1])


class Spent(NamedTuple):
    """What a command cost with all that it waited for, and what it wrote to both outputs."""

    seconds: float
    processor_s: float
    text: str


def spent(command: list[str], *, deadline_s: float = 600.0) -> Spent:
    """Run `command`; its time by the clock and of processors. Raises subprocess.TimeoutExpired at the deadline."""
    before, began, chunks = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), list[bytes]()
    run(command, deadline_s=deadline_s, sink=chunks.append)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(seconds, processor_s, b"".join(chunks).decode(errors="replace"))


def fail(line: str) -> NoReturn:
    """Leave with one line on stderr and 1, which is never a verdict on the machine."""
    sys.exit(f"{Path(sys.argv[0]).name}: {line}")


def run_script(main: Callable[[], int]) -> NoReturn:
    """Run a script's `main` and leave with its code, or with one line where a child hung or we were told to stop."""
    # A scheduler's SIGTERM unwinds us as Ctrl-C does: children in groups of their own would outlive us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as late:
        fail(f"did not end within {late.timeout:g} s and was stopped: {shlex.join(late.cmd)}")
    except KeyboardInterrupt:
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
        sys.exit(130)


def _lines(command: list[str], deadline_s: float) -> tuple[int, list[str]]:
    chunks: list[bytes] = []
    code = run(command, deadline_s=deadline_s, sink=chunks.append)
    text = b"".join(chunks).decode(errors="replace")
    return code, [line.strip() for line in text.splitlines() if line.strip()]


def _pump(pipe: IO[bytes] | None, sink: Sink | None) -> None:
    if pipe is not None and sink is not None:
        with pipe:  # closed also where the sink fails, so that the child does not wait on a full pipe
            for chunk in iter(lambda: os.read(pipe.fileno(), 1 << 16), b""):
                sink(chunk)


def _signal_group(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
