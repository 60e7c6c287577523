"""Start programs that always end: each leads a process group of its own, which is killed at its deadline.

What a program starts in further groups carries the mark of its stage in its environment, and is found by it: nothing
that a stage began outlives the stage. Nobody waits for a killed process: one that hangs in a driver does not die.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "GPU_HOUR_STAGE"
"""The variable that every process of a stage carries; its value is the stage's own."""
_POLL_S = 0.05
_REAP_S = 1.0
_GENERATIONS = 5


@dataclass(frozen=True, slots=True)
class Started:
    """A running program, and the file that holds what it wrote to both outputs."""

    popen: "subprocess.Popen[bytes]"
    log: Path
    since: float

    @property
    def pid(self) -> int:
        """The leader of its group."""
        return self.popen.pid


@dataclass(frozen=True, slots=True)
class End:
    """How a program ended: its exit code, negative by a signal; None where it was killed at its deadline."""

    code: int | None
    seconds: float
    log: Path

    @property
    def text(self) -> str:
        """What it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def __str__(self) -> str:
        how = "was killed at its deadline" if self.code is None else f"exit {self.code}"
        return f"{self.log.stem}: {how} after {self.seconds:.1f} s: {last_line(self.text)}"


def last_line(text: str) -> str:
    """The last line of `text` that says something, cut to a readable length."""
    return last_line_whole(text).strip()[:200] or "it wrote nothing"


def last_line_whole(text: str) -> str:
    """The last line of `text` that says something, uncut."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def start(command: Sequence[object], log: Path, env: Mapping[str, str]) -> Started:
    """Start `command` in a group of its own; both its outputs go to `log`. Raises OSError where it cannot start."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        popen = subprocess.Popen(
            list(map(str, command)),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(popen, log, time.monotonic())


def end(program: Started) -> End:
    """Kill what is left of its group, and say how it ended."""
    code = program.popen.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.popen.wait(_REAP_S)
    return End(code, time.monotonic() - program.since, program.log)


def wait(programs: Sequence[Started], deadline_s: float) -> list[End]:
    """The ends of all `programs`, those that run longer than `deadline_s` killed; in their order."""
    ends: dict[int, End] = {}
    until = time.monotonic() + deadline_s
    while len(ends) < len(programs):
        late = time.monotonic() >= until
        for number, program in enumerate(programs):
            if number not in ends and (late or program.popen.poll() is not None):
                ends[number] = end(program)
        if len(ends) < len(programs):
            time.sleep(_POLL_S)
    return [ends[number] for number in range(len(programs))]


def run(command: Sequence[object], log: Path, env: Mapping[str, str], deadline_s: float) -> End:
    """Start `command` and wait for it, no longer than `deadline_s`."""
    return wait([start(command, log, env)], deadline_s)[0]


def wait_until(reached: Callable[[], bool], deadline_s: float) -> bool:
    """Wait until `reached`, no longer than `deadline_s`; whether it was."""
    late = time.monotonic() + deadline_s
    while not reached():
        if time.monotonic() >= late:
            return False
        time.sleep(_POLL_S)
    return True


def marked(mark: str) -> list[int]:
    """The processes that carry `mark`, but this one, and but those that have ended and were not collected."""
    found = []
    exact, below = f"{MARK}={mark}".encode(), f"{MARK}={mark}/".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                entries = (folder / "environ").read_bytes().split(b"\0")
                if any(entry == exact or entry.startswith(below) for entry in entries):
                    found.append(int(folder.name))
    return found


def kill_marked(mark: str) -> int:
    """Kill what carries `mark`, until none that was killed could start another; how many there were at first."""
    first = marked(mark)
    left = first
    for _ in range(_GENERATIONS):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        wait_until(lambda: not marked(mark), _REAP_S)
        left = marked(mark)
    return len(first)
