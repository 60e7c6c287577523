"""Starting commands and ranks as each launcher starts them, and leaving nothing behind. Imports nothing of ncclprobe.

Every process leads a session of its own, and all that descends from it carries a mark in its environment by which it is
found and killed at the end, whatever became of its parents.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

DEADLINE_S = 60.0
ENDLESS = ["-b", "1K", "-e", "16M", "-f", "16384", "-n", "2000", "-w", "1", "--batches", "1"]
"""A first row after a second, and a second one that takes minutes: whoever is hit is hit in the middle of it."""
SHORT = ["-b", "1K", "-e", "16K", "-f", "16", "-n", "5", "-w", "1"]
FINISHED = re.compile(r"ncclprobe: [a-z, ]+[a-z](?:, \d+ rows?)?: \d+\.\d s")
MARK = "TEST_LAUNCHER_MARK"
MOST_GENERATIONS = 5
LAUNCHERS_OWN = ("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE")


@dataclass
class Process:
    """One started command and what it wrote. `progress`: the lines of stderr that say which part is finished."""

    popen: "subprocess.Popen[str]"
    out: str = ""
    err: str = ""
    progress: list[str] = field(default_factory=list)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        self.out, told = self.popen.communicate(timeout=deadline_s)
        lines = told.splitlines(keepends=True)
        self.progress = [line for line in lines if FINISHED.fullmatch(line.rstrip("\n"))]
        self.err = "".join(line for line in lines if line not in self.progress)
        return self.popen.returncode


@dataclass
class Launcher:
    """Starts commands and leaves nothing behind."""

    folder: Path
    started: list[Process] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> Process:
        """Start any `command` with `variables` beside ours."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS_OWN)}
        popen = subprocess.Popen(
            command,
            env=ours | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), MARK: self.mark, **(variables or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(Process(popen))
        return self.started[-1]

    def start(self, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> Process:
        """Start Python with `argv`."""
        return self.run([sys.executable, *argv], variables)

    def ranks(
        self, variables: Callable[[int], Mapping[str, str]], *argv: str, count: int = 2, command: str = "bandwidth"
    ) -> list[Process]:
        kept = ("--keep", str(self.folder / "kept"))  # whose run log tells how far they are
        own = ("-m", f"ncclprobe.{command}", "--backend", "gloo", "--json", str(self.report_path), *kept)
        return [self.start([*own, *argv], variables(rank)) for rank in range(count)]

    @property
    def report_path(self) -> Path:
        return self.folder / "report.json"

    def until_rows(self, count: int) -> None:
        """Wait until so many rows have been saved."""
        self.until(lambda: self._saved() >= count, f"no {count} rows")

    def until(self, reached: Callable[[], bool], otherwise: str) -> None:
        """Wait until `reached`. Raises AssertionError with `otherwise`, and what was written, at the deadline."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if reached():
                return
            time.sleep(0.05)
        codes = [process.popen.poll() for process in self.started]
        self.clear()
        raise AssertionError(f"{otherwise}: {codes}: {[process.err for process in self.started]}")

    def _saved(self) -> int:
        return sum(log.read_text().count('{"sample": {"row":') for log in self.folder.rglob("run.jsonl"))

    def rank_of(self, process: Process, rank: int) -> psutil.Process:
        """A rank that `process` has started."""
        found = [child for child in psutil.Process(process.popen.pid).children(recursive=True) if _is(child, rank)]
        (first,) = [child for child in found if child.ppid() not in {other.pid for other in found}]
        return first

    def left(self) -> list[psutil.Process]:
        """All that runs of what was started here, and of what that has started."""
        return [process for process in psutil.process_iter() if self._marked(process)]

    def _marked(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            return bool(process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE)
        return False

    def clear(self) -> None:
        """Kill what is left, until none that was killed could start another, and collect it."""
        for _ in range(MOST_GENERATIONS):
            left = self.left()
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if not left:
                break
        for started in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.popen.pid, signal.SIGKILL)
            with contextlib.suppress(ValueError):  # read already
                started.wait()


def _is(process: psutil.Process, rank: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        said = process.environ()
        return str(rank) in (said.get("RANK"), said.get("OMPI_COMM_WORLD_RANK"))
    return False


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def by_hand(port: str, ranks: int = 2) -> Callable[[int], dict[str, str]]:
    return lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def by_srun(port: str) -> Callable[[int], dict[str, str]]:
    """As srun sets them on one node; the port is given, so that runs side by side do not share a job id's."""
    return lambda rank: {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": port,
    }  # fmt: skip


def by_mpirun(rank: int) -> dict[str, str]:
    """As Open MPI sets them on one node, nothing else: the address and the port are derived."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"test-{os.getpid()}",
    }  # fmt: skip


def ended(process: psutil.Process) -> bool:
    """Whether `process` has ended, collected by a parent or not, within a moment."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        return True
    return False
