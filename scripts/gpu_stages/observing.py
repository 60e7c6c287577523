"""What can be seen of a running job from outside at one moment: the kernel's view, stacks, RAS, nvidia-smi."""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_stages import processes

_RAS_S = 4.0
_MOST_ANSWER = 4 << 20
_MOST_TASKS = 64
_SMI_S = 10.0
_DUMP_S = 5.0
QUESTIONS = {"txt": "timeout 2\nverbose status\n", "json": "timeout 2\nset format json\nverbose status\n"}
"""To RAS, which answers each line and hangs up after a status (src/ras/client_support.cc)."""


def moment(
    name: str, folder: Path, pids: Mapping[int, int], ports: Sequence[int], variables: Mapping[str, str]
) -> None:
    """Write everything that can be seen now; `pids` by rank, `ports` are those of RAS, by rank too."""
    (folder / "moment").write_text(name)  # the ranks' own threads dump the flight recorder
    for rank, pid in pids.items():
        (folder / f"rank{rank}.{name}.proc.txt").write_text(kernel_view(pid))
        if takes(pid, signal.SIGUSR1):
            os.kill(pid, signal.SIGUSR1)
    ask_ras(name, folder, ports)
    if shutil.which("nvidia-smi", path=variables.get("PATH")):
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]
        processes.run(["nvidia-smi"], folder / f"{name}.nvidia-smi.txt", variables, _SMI_S)
        processes.run(command, folder / f"{name}.nvidia-smi-apps.txt", variables, _SMI_S)
    processes.wait_until(lambda: all(dumped(name, folder, rank, pid) for rank, pid in pids.items()), _DUMP_S)


def ask_ras(name: str, folder: Path, ports: Sequence[int]) -> None:
    """Ask every rank both questions at the same time: a rank that is stopped takes its whole time."""
    jobs = [(rank, port, kind) for rank, port in enumerate(ports) for kind in QUESTIONS]

    def ask(job: tuple[int, int, str]) -> None:
        rank, port, kind = job
        (folder / f"rank{rank}.{name}.ras.{kind}").write_bytes(ras(port, QUESTIONS[kind]))

    with ThreadPoolExecutor(len(jobs) or 1) as pool:
        list(pool.map(ask, jobs))


def dumped(name: str, folder: Path, rank: int, pid: int) -> bool:
    """Whether a rank has written its dumps of this moment, or never will: it has ended, or is stopped."""
    return (folder / f"rank{rank}.{name}.dumped").exists() or state(pid) in ("", "Z", "T")


def state(pid: int) -> str:
    """The kernel's letter for what a process does; empty: it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def takes(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for this signal: one that still starts, or is ending, would be killed by it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def kernel_view(pid: int) -> str:
    """Status of a process, and of each of its threads where in the kernel it waits, as far as we may see it."""
    folder = Path(f"/proc/{pid}")
    lines = [f"== status\n{_read(folder / 'status')}"]
    with contextlib.suppress(OSError):
        for task in sorted((folder / "task").iterdir(), key=lambda path: int(path.name))[:_MOST_TASKS]:
            fields = [f"{name}: {_read(task / name).strip()}" for name in ("comm", "wchan", "syscall")]
            lines.append(f"== task {task.name}\n" + "\n".join(fields) + f"\nstack:\n{_read(task / 'stack')}")
    return "\n".join(lines)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return f"({error.strerror})\n"


def ras(port: int, question: str) -> bytes:
    """What NCCL's RAS answers on this machine's `port`; a line in brackets where it does not."""
    answer = b""
    try:
        with socket.create_connection(("localhost", port), timeout=_RAS_S) as connection:
            connection.sendall(question.encode())
            while len(answer) < _MOST_ANSWER and (chunk := connection.recv(1 << 16)):
                answer += chunk
    except OSError as error:
        answer += f"({error.strerror or error})\n".encode()
    return answer
