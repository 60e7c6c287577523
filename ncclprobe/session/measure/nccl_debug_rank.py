"""What runs in a process of :mod:`.nccl_debug_pass`: each call of a sweep once, with NCCL's log."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from ncclprobe.model import units
from ncclprobe.model.errors import reason
from ncclprobe.model.ops import DTYPES, OPS, CallShape
from ncclprobe.model.registry import discover
from ncclprobe.probes.buffers import allocate, footprint, gpu_free_bytes
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.collectives import BufferView, Probe
from ncclprobe.probes.plan import TORCH_REDOPS
from ncclprobe.session.measure.nccl_debug_pass import Task


def play(task: Task, backend: str) -> None:
    """Meet the other processes and make the calls. Raises what torch raises."""
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
    """Return the bytes that tensors may take on the fullest rank's GPU, on every rank; None: no GPU is used.

    The sweep leaves out what does not fit. The rank that is measured holds memory too, so that less may fit here.
    """
    if device.type != "cuda":
        return None
    store.set(f"room/{task.rank}", str(gpu_free_bytes(device)))
    return min(int(store.get(f"room/{rank}")) for rank in range(task.ranks))


def fitting(shapes: list[tuple[str, CallShape]], room: int | None) -> list[tuple[str, CallShape]]:
    """Return the calls whose two buffers fit into `room` bytes (None: all do). Raises ValueError where none does."""
    found = [(op, shape) for op, shape in shapes if room is None or 2 * _footprint(shape) <= room]
    if not found:
        raise ValueError(f"no call of the sweep fits into the memory that is free, {units.size(room or 0)}")
    return found


def _footprint(shape: CallShape) -> int:
    return footprint(max(shape.send_bytes, shape.recv_bytes), 1)


def begin(task_json: str, backend: str = "nccl") -> None:
    """Run a task, which is JSON of `Task`; print one line on standard error where torch refuses it."""
    task = Task(**json.loads(task_json))
    try:
        play(task, backend)
    except (RuntimeError, TypeError, ValueError) as error:
        sys.exit(reason(error))
