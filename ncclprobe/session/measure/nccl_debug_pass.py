"""NCCL's own lines of a run, from a pass that nobody times: one process per rank, each with a log file of its own.

NCCL reads NCCL_DEBUG once per process, and writing lines costs time, so none of the ranks that are measured does it.
The processes meet at a store of their own and make every call of the sweep once.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.model.values import Struct, asdict
from ncclprobe.nccl import log
from ncclprobe.nccl.log import Log
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.session.ranks.store import Exchange

SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"
_MOST_LOG_BYTES = 16 << 20
_MOST_TOLD = 256
"""Lines of a kind that travel to rank 0: of channels as many as differ, of choices one per row."""
_LAST_WORDS = 200


class Task(Struct, frozen=True):
    """What one such process does. `calls` are operations with the bytes of each of their calls."""

    rank: int
    ranks: int
    address: str
    port: int
    device: str
    dtype: str
    redop: str
    calls: Sequence[tuple[str, Sequence[int]]]
    timeout_s: float


def listen(
    plan: Any, seat: Seat, exchange: Exchange, deadline_s: float, command: Sequence[str] = ()
) -> tuple[tuple[Log, ...], str] | None:
    """The logs of those ranks that left one, and what the reader must know of the others; on rank 0, else None.

    Every rank of the run calls this at the same time. `command` is what plays the task, given as its last argument.
    """
    port = exchange.share(_free_port() if seat.rank == 0 else None)
    calls = [(op, list(plan.sizes)) for op in plan.ops]
    task = Task(seat.rank, seat.ranks, seat.address, port, plan.device, plan.dtype, plan.redop, calls, deadline_s)
    heard, why = said(task, command or (sys.executable, "-m", "ncclprobe.session.measure.nccl_debug_rank"), deadline_s)
    told = exchange.collect([_packed(heard) if heard else None, why])
    if told is None:
        return None
    logs = tuple(_unpacked(each) for each, _ in told if each)
    gaps = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(told) if why]
    return logs, f"NCCL's own lines are missing, so its transport is not known: {gaps[0]}" if gaps else ""


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def said(task: Task, command: Sequence[str], deadline_s: float) -> tuple[Log | None, str]:
    """What NCCL wrote in a process that played `task`, and why there is nothing where there is nothing.

    Its group is killed at the deadline; what it had written by then counts.
    """
    with tempfile.TemporaryDirectory(prefix="ncclprobe-") as folder:
        path, errors = Path(folder, "nccl.log"), Path(folder, "errors")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, json.dumps(asdict(task))],
                env=variables(os.environ, path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            why = _end(process, deadline_s)
        heard = log.read(_text(path))
        if heard.network or heard.hops:
            return heard, ""
        words = _text(errors).strip().rpartition("\n")[2][:_LAST_WORDS]
        return None, words or why or "it wrote no line of NCCL's"


def _end(process: "subprocess.Popen[bytes]", deadline_s: float) -> str:
    """Wait for it, and kill what is left of its group; why it did not come to its own end, if so."""
    try:
        code = process.wait(deadline_s)
        return f"it ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"it had not ended after {deadline_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a wedged driver keeps it: nobody waits for that
            process.wait(1.0)


def variables(mine: Mapping[str, str], path: Path) -> dict[str, str]:
    """The environment of such a process: this rank's own, with NCCL told to speak into `path`."""
    ours = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": str(path)}
    torchs = {"TORCH_CPP_LOG_LEVEL": "FATAL", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    return {**mine, **ours, **torchs}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return stream.read(_MOST_LOG_BYTES).decode(errors="replace")
    return ""


def _packed(heard: Log) -> dict[str, Any]:
    """As JSON, as far as transports need it: one hop of each way, and each choice once."""
    hops = {(h.how, h.by, h.device, h.gdr): asdict(h) for h in heard.hops}
    choices = {(c.op, c.nbytes): asdict(c) for c in heard.choices}
    return {
        "version": heard.version,
        "network": heard.network,
        "channels": heard.channels,
        "interfaces": [asdict(each) for each in heard.interfaces[:_MOST_TOLD]],
        "hcas": [asdict(each) for each in heard.hcas[:_MOST_TOLD]],
        "hops": list(hops.values())[:_MOST_TOLD],
        "choices": list(choices.values())[:_MOST_TOLD],
    }


def _unpacked(told: dict[str, Any]) -> Log:
    return Log(
        version=told["version"],
        network=told["network"],
        channels=told["channels"],
        interfaces=tuple(log.Device(**each) for each in told["interfaces"]),
        hcas=tuple(log.Device(**each) for each in told["hcas"]),
        hops=tuple(log.Hop(**each) for each in told["hops"]),
        choices=tuple(log.Choice(**each) for each in told["choices"]),
    )
