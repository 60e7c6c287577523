"""Starting ranks as each launcher starts them, and leaving nothing behind.

Every process leads a group of its own, which is killed at the end whatever happens.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

DEADLINE_S = 60.0
ENDLESS = ["-b", "1K", "-e", "16M", "-f", "16384", "-n", "2000", "-w", "1", "--batches", "1"]
"""A first row after a second, and a second one that takes minutes: whoever is hit is hit in the middle of it."""
SHORT = ["-b", "1K", "-e", "16K", "-f", "16", "-n", "5", "-w", "1"]


@dataclass
class Process:
    """One started command and what it wrote."""

    popen: "subprocess.Popen[str]"
    out: str = ""
    err: str = ""

    def wait(self) -> int:
        self.out, self.err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode


@dataclass
class Lab:
    """Starts commands and leaves nothing behind."""

    folder: Path
    started: list[Process] = field(default_factory=list)

    def start(self, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> Process:
        ours = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE"))
        }
        popen = subprocess.Popen(
            [sys.executable, *argv],
            env=ours | {"OMP_NUM_THREADS": "1", **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(Process(popen))
        return self.started[-1]

    def ranks(self, variables: Callable[[int], Mapping[str, str]], *argv: str, count: int = 2) -> list[Process]:
        own = ("-m", "ncclprobe.bandwidth", "--backend", "gloo", "--json", str(self.report_path))
        return [self.start([*own, *argv], variables(rank)) for rank in range(count)]

    @property
    def report_path(self) -> Path:
        return self.folder / "report.json"

    def report(self) -> Report:
        return as_json.read(str(self.report_path))

    def until_rows(self, count: int) -> None:
        """Wait until rank 0 has saved so many rows."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self.report_path.exists() and len(self.report().measurements) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"no {count} rows: {[process.popen.poll() for process in self.started]}")

    def rank_of(self, process: Process, rank: int) -> psutil.Process:
        """A rank that `process` has started."""
        children = psutil.Process(process.popen.pid).children(recursive=True)
        (found,) = [child for child in children if child.environ().get("RANK") == str(rank)]
        return found

    def clear(self) -> None:
        for process in self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.popen.pid).children(recursive=True):
                    child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.communicate()


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


def findings(report: Report, check: str) -> list[tuple[str, str]]:
    return [(f.subject, f.message) for v in report.checks if v.id == check for f in v.findings]


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
