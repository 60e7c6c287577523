"""``python -m gpu_stages.failure_job FAULT FOLDER BACKEND``: one job that fails, and all that is seen of it.

Writes into FOLDER: of each rank its output, NCCL's log, Python's stacks, and at three moments (before the fault, soon
after it, and once the watchdog has had its time) the kernel's view, the flight recorder's dumps and RAS's answers;
job.json says what was done, end.json how the ranks ended.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from gpu_stages import machine, observing, processes
from gpu_stages.faults import BY_NAME, MASTER_PORT, RANKS, STEPS, TIMEOUT_S, VICTIM, Fault
from gpu_stages.processes import Started
from gpu_stages.steps import Refused

START_S = 40.0
"""For the ranks to import torch, meet and make their first steps."""
SOON_S = 2.0
IMPORT_S = 20.0
"""What a job that cannot start may take beside, of which importing torch is the most."""
END_S = TIMEOUT_S + 12.0
"""For torch to notice, dump its recorder, and end."""
MOMENTS = ("before", "soon", "late")
_SYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING,COLL,RAS"
_KERNEL_LINES = re.compile(r"NVRM|Xid|oom|segfault|traps", re.IGNORECASE)
_COMMAND_S = 20.0


def main() -> None:
    """Play the job and look at it."""
    fault, folder, backend = BY_NAME[sys.argv[1]], Path(sys.argv[2]), sys.argv[3]
    port = network(fault)
    ranks = start(fault, folder, backend, port)
    pids = {rank: program.pid for rank, program in enumerate(ranks)}
    ports = [machine.RAS_PORT + rank for rank in pids] if backend == "nccl" else []
    describe(fault, folder, backend, pids)
    started = not fault.at_start and processes.wait_until(lambda: ready(folder, ranks), START_S)
    if fault.at_start:
        time.sleep(SOON_S)
    observing.moment(MOMENTS[0], folder, pids, ports, os.environ)
    (folder / "go").touch()
    processes.wait_until(lambda: over(ranks), SOON_S)
    observing.moment(MOMENTS[1], folder, pids, ports, os.environ)
    processes.wait_until(lambda: over(ranks), END_S + (IMPORT_S if fault.at_start else 0.0))
    observing.moment(MOMENTS[2], folder, pids, ports, os.environ)
    codes = [end.code for end in processes.wait(ranks, 0.0)]
    (folder / "kernel.txt").write_text(kernel_lines())
    (folder / "end.json").write_text(json.dumps({"codes": codes, "started": started}))
    for path in (
        folder / "moment",
        folder / "go",
        *folder.glob("*.imported"),
        *folder.glob("*.ready"),
        *folder.glob("*.dumped"),
    ):
        path.unlink(missing_ok=True)


def ready(folder: Path, ranks: list[Started]) -> bool:
    """Whether all ranks wait for the step of the fault, or one has ended before."""
    return all((folder / f"rank{rank}.ready").exists() for rank in range(len(ranks))) or bool(
        [program for program in ranks if program.popen.poll() is not None]
    )


def over(ranks: list[Started]) -> bool:
    """Whether every rank has ended by itself."""
    return all(program.popen.poll() is not None for program in ranks)


def start(fault: Fault, folder: Path, backend: str, port: int) -> list[Started]:
    """Start the ranks."""
    command = [sys.executable, "-m", "gpu_stages.failure_rank", fault.name, folder, backend]
    return [
        processes.start(command, folder / f"rank{rank}.log", variables(fault, folder, rank, port))
        for rank in range(RANKS)
    ]


def variables(fault: Fault, folder: Path, rank: int, port: int) -> dict[str, str]:
    """The environment of a rank: its rank, NCCL's log, torch's recorder, and what the fault sets."""
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _SYSTEMS, "NCCL_DEBUG_FILE": str(folder / f"rank{rank}.nccl.log")}
    recorder = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "watchdog.fr.pickle."),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "4000",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30",
    }
    given = {**fault.everywhere, **(fault.variables if rank == VICTIM else {})}
    return {**os.environ, **machine.rank_variables(rank, RANKS, port), **log, **recorder, **given}


def describe(fault: Fault, folder: Path, backend: str, pids: Mapping[int, int]) -> None:
    """Write what is done to whom."""
    job = {**asdict(fault), "backend": backend, "ranks": RANKS, "victim": VICTIM, "steps": STEPS, "pids": pids}
    job |= {"timeout_s": TIMEOUT_S, "moments": MOMENTS, "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (folder / "job.json").write_text(json.dumps(job, indent=1))


def kernel_lines() -> str:
    """The kernel's last words on drivers and faults; a line in brackets where we may not see them."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})\n"
    return "\n".join(line for line in done.stdout.splitlines()[-500:] if _KERNEL_LINES.search(line)) + "\n"


def network(fault: Fault) -> int:
    """Close the ports that `fault` closes, in a network of our own; the port to meet at. Raises Refused."""
    if not fault.network:
        return machine.free_port()
    closed = blocked_range() if fault.network == "ephemeral" else (MASTER_PORT, MASTER_PORT)
    if machine.own_network() and drop(*closed):
        with contextlib.suppress(OSError):  # connections give up after 7 s instead of two minutes
            Path("/proc/sys/net/ipv4/tcp_syn_retries").write_text("2")
        return MASTER_PORT
    if fault.network == "master":
        return silent_port()
    raise Refused("packets can be dropped neither by nft nor by iptables, or not in a network of our own")


def blocked_range() -> tuple[int, int]:
    """Linux' ephemeral ports."""
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


def drop(low: int, high: int) -> bool:
    """Have the kernel drop what would open a connection to these ports; whether it does."""
    rule = f"tcp dport {low}-{high} tcp flags & (fin|syn|rst|ack) == syn drop"
    nft = f"table inet closed {{\n chain arriving {{\n type filter hook input priority 0;\n {rule}\n }}\n}}\n"
    old = ["iptables", "-A", "INPUT", "-p", "tcp", "--syn", "--dport", f"{low}:{high}", "-j", "DROP"]
    for command, text in ((["nft", "-f", "-"], nft), (old, "")):
        if shutil.which(command[0]):
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_S)
            if done.returncode == 0:
                return True
    return False


_silent: list[socket.socket] = []
"""What keeps a port silent, as long as this process lives."""


def silent_port() -> int:
    """A port that answers no caller: its queue is full, so Linux drops what comes, as a firewall would."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = int(server.getsockname()[1])
    _silent.append(server)
    for _ in range(4):
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex(("127.0.0.1", port))
        _silent.append(caller)
    return port


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        print(f"refused: {refusal}")
        sys.exit(3)
