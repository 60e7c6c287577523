"""NCCL's own log of a run, from an untimed pass: one process per rank, each with its own log file.

NCCL reads NCCL_DEBUG once per process, and writing lines costs time, so a measured rank never sets it. The processes
use their own store and make every call of the sweep once.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ncclprobe.facts.environment import measuring_environment
from ncclprobe.host import own_child
from ncclprobe.host.command import abandon, start
from ncclprobe.host.scratch import scratch
from ncclprobe.model import units
from ncclprobe.model.errors import TAKEN, reason
from ncclprobe.model.ops import DTYPES, OPS, CallShape
from ncclprobe.model.registry import discover
from ncclprobe.model.values import Struct, asdict
from ncclprobe.nccl import log
from ncclprobe.nccl.log import Log
from ncclprobe.probes.buffers import allocate, footprint, gpu_free_bytes
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.collectives import BufferView, Probe
from ncclprobe.probes.plan import TORCH_REDOPS
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange, free_port

SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"
_RANK = "ncclprobe.session.measure.nccl_debug:begin"
_MOST_LOG_BYTES = 16 << 20
_MOST_CHARACTERS = 600
_SECOND = ": they come from a second process, which a GPU in the compute mode EXCLUSIVE_PROCESS does not take"


class Task(Struct, frozen=True):
    """The task of one such process. `calls` are operations with the sizes of their calls."""

    rank: int
    ranks: int
    address: str
    port: int
    device: str
    dtype: str
    redop: str
    calls: Sequence[tuple[str, Sequence[int]]]
    timeout_s: float


def run_pass(
    plan: Any, identity: RankIdentity, exchange: Exchange, deadline_s: float, command: Sequence[str] = ()
) -> tuple[tuple[Log, ...], str] | None:
    """Return the logs of the ranks that wrote one, and a note on the others; None except on rank 0.

    Every rank of the run calls this at the same time. `command` runs the task, which is its last argument.
    """
    port = exchange.share(free_port() if identity.rank == 0 else None)
    calls = [(op, list(plan.sizes)) for op in plan.ops]
    task = Task(
        identity.rank, identity.ranks, identity.address, port, plan.device, plan.dtype, plan.redop, calls, deadline_s
    )
    found, why = run_task(task, command or own_child.command(_RANK), deadline_s)
    received = exchange.collect([msgspec.to_builtins(found) if found else None, why])
    if received is None:
        return None
    logs = tuple(msgspec.convert(each, Log) for each, _ in received if each)
    missing = [f"rank {rank}: {why}{_SECOND * (TAKEN in why)}" for rank, (_, why) in enumerate(received) if why]
    return logs, f"NCCL's own log lines are missing, so its transport is unknown: {missing[0]}" if missing else ""


def run_task(task: Task, command: Sequence[str], deadline_s: float) -> tuple[Log | None, str]:
    """Return NCCL's log of a process that ran `task`, or None and why.

    Its process group is killed at the deadline; what it had written by then counts.
    """
    with scratch() as folder:
        path, errors = folder / "nccl.log", folder / "errors"
        with errors.open("wb") as stderr:
            process = start([*command, json.dumps(asdict(task))], stderr=stderr, variables=variables(os.environ, path))
            why = _end(process, deadline_s)
        found = log.read(_text(path))
        if found.network or found.hops:
            return found, ""
        words = _text(errors).strip().rpartition("\n")[2][:_MOST_CHARACTERS]
        return None, words or why or "it wrote no NCCL log line"


def _end(process: "subprocess.Popen[bytes]", deadline_s: float) -> str:
    """Wait for the process and kill the rest of its group; return why it failed, or ""."""
    try:
        code = process.wait(deadline_s)
        return f"it ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"it had not ended after {deadline_s:g} s"
    finally:
        abandon(process)


def variables(mine: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the environment of such a process: this rank's own, with NCCL's log in `path`."""
    ours = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": str(path)}
    return {**measuring_environment(mine), **ours, "TORCH_CPP_LOG_LEVEL": "FATAL"}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return stream.read(_MOST_LOG_BYTES).decode(errors="replace")
    return ""


def make_calls(task: Task, backend: str) -> None:
    """Join the other processes and make the calls. Raises torch's exceptions."""
    wait = timedelta(seconds=task.timeout_s)
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore(task.address, task.port, is_master=task.rank == 0, timeout=wait, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=task.rank, world_size=task.ranks, timeout=wait)
    itemsize, clock = DTYPES[task.dtype], clock_of(device)
    shapes = [(op, OPS[op].shape(nbytes, task.ranks, itemsize)) for op, sizes in task.calls for nbytes in sizes]
    shapes = fitting(shapes, _room(task, store, device))
    buffers = allocate(max(_footprint(shape) for _, shape in shapes), getattr(torch, task.dtype), device)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for op, shape in shapes:
        if shape.nbytes:
            send, recv = next(buffers.views(shape, OPS[op].places[0], task.rank, 1))
            probes[op].run(BufferView(send, recv, task.rank, task.ranks, TORCH_REDOPS[task.redop]))()
            clock.synchronise()
    clock.barrier()  # rank 0 serves the store, so it waits for all others
    dist.destroy_process_group()


def _room(task: Task, store: dist.Store, device: torch.device) -> int | None:
    """Return the bytes that tensors may use on the fullest rank's GPU, on every rank; None: no GPU is used.

    The sweep leaves out what does not fit. The measured rank holds memory too, so that less may fit here.
    """
    if device.type != "cuda":
        return None
    store.set(f"room/{task.rank}", str(gpu_free_bytes(device)))
    return min(int(store.get(f"room/{rank}")) for rank in range(task.ranks))


def fitting(shapes: list[tuple[str, CallShape]], room: int | None) -> list[tuple[str, CallShape]]:
    """Return the calls whose two buffers fit into `room` bytes (None: all do). Raises ValueError if none does."""
    found = [(op, shape) for op, shape in shapes if room is None or 2 * _footprint(shape) <= room]
    if not found:
        raise ValueError(f"no call of the sweep fits into the free memory, {units.size(room or 0)}")
    return found


def _footprint(shape: CallShape) -> int:
    return footprint(max(shape.send_bytes, shape.recv_bytes), 1)


def begin(task_json: str, backend: str = "nccl") -> None:
    """Run a task, given as JSON of `Task`; print one line on standard error if torch rejects it."""
    task = Task(**json.loads(task_json))
    try:
        make_calls(task, backend)
    except (RuntimeError, TypeError, ValueError) as error:
        sys.exit(reason(error))
