"""``python -m ncclprobe.session.measure.nccl_debug_rank TASK``: make each call of a sweep once, with NCCL's log.

TASK is the JSON of :class:`ncclprobe.session.measure.nccl_debug_pass.Task`.
"""

import json
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from ncclprobe.model.registry import discover
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.plan import TORCH_REDOPS
from ncclprobe.probes.probe import BufferView, Probe
from ncclprobe.session.measure.nccl_debug_pass import Task
from ncclprobe.session.ranks import rank_files


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
    largest = max(max(shape.send_bytes, shape.recv_bytes) for _, shape in shapes)
    buffers = allocate(footprint(largest, 1), getattr(torch, task.dtype), device)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for op, shape in shapes:
        if shape.nbytes:
            send, recv = next(buffers.views(shape, OPS[op].places[0], task.rank, 1))
            probes[op].run(BufferView(send, recv, task.rank, task.ranks, TORCH_REDOPS[task.redop]))()
            clock.synchronise()
    clock.barrier()  # rank 0 serves the store, so it waits for all others
    dist.destroy_process_group()


def main(backend: str = "nccl") -> None:
    """Run the task of the command line; print one line on standard error where torch refuses it."""
    rank_files.end_with_parent(signal.SIGKILL)  # a rank that is killed leaves no process behind
    task = Task(**json.loads(sys.argv[1]))
    try:
        play(task, backend)
    except (RuntimeError, TypeError, ValueError) as error:
        sys.exit(str(error).strip().partition("\n")[0])


if __name__ == "__main__":
    main()
