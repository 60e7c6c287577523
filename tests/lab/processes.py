"""Commands that always end: each in a session of its own, its output in files, so that nobody blocks on a full pipe."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ncclprobe.model.values import Struct

GRACE_S = 5.0
STEP_S = 0.01


class LabError(Exception):
    """The lab itself could not do what was asked: never a verdict on what is tested in it."""


class Completed(Struct, frozen=True):
    """A command that has ended. `code` is negative where a signal ended it, as subprocess has it."""

    code: int
    out: str
    err: str
    seconds: float
    timed_out: bool = False


@dataclass(slots=True)
class Running:
    """A command and all that it started."""

    argv: Sequence[str]
    popen: "subprocess.Popen[bytes]"
    paths: tuple[Path, Path]
    began_s: float = field(default_factory=time.monotonic)
    over: bool = False  # collected: its number may be another's by now

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def out(self) -> str:
        """What it wrote so far."""
        return self.paths[0].read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.paths[1].read_text(errors="replace")

    def stop(self) -> None:
        """Freeze it, as a hung driver or a debugger does."""
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the command and all that it started, also what left its group (torchrun's ranks do)."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.over:
            return
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, timeout_s: float) -> Completed:
        """Wait for its end; at the deadline it is killed, and `timed_out` says so."""
        late = False
        try:
            self.popen.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            late = True
        finally:  # also at Ctrl-C, and for what an ended command left in its group
            self.kill()
            self.popen.wait(GRACE_S)
            self.over = True
        return Completed(self.popen.returncode, self.out, self.err, time.monotonic() - self.began_s, late)

    def until_says(self, text: str, timeout_s: float = 10.0) -> None:
        """Wait until stdout has `text`; LabError when it ends before, or at the deadline."""
        end_s = time.monotonic() + timeout_s
        while text not in self.out:
            if self.popen.poll() is not None or time.monotonic() > end_s:
                raise LabError(f"{' '.join(self.argv)} did not say {text!r}: {self.popen.returncode} {self.err}")
            time.sleep(STEP_S)


def start(argv: Sequence[str], stem: Path, env: Mapping[str, str] | None = None) -> Running:
    """Start `argv`; its stdout and stderr go to `stem`.out and `stem`.err."""
    paths = stem.with_suffix(".out"), stem.with_suffix(".err")
    with paths[0].open("wb") as out, paths[1].open("wb") as err:
        popen = subprocess.Popen(
            list(argv), env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    return Running(argv, popen, paths)


def must(argv: Sequence[str], text: str = "", timeout_s: float = 20.0) -> str:
    """Run one of the lab's own tools with `text` on stdin; LabError with its words where it fails."""
    try:
        done = subprocess.run(list(argv), input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(str(error)) from error
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
