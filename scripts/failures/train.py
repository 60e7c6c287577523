"""``train.py FAULT``: one rank of a small job over gloo that fails as FAULT says; any other word is no fault.

When a rank raises, or has waited too long, all that live write what torch's flight recorder holds, as the watchdog of
ProcessGroupNCCL has them do for NCCL.
"""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, FAULT_STEP, VICTIM = 6, 4, 2
ELEMENTS = 4096
TIMEOUT_S = float(os.environ.get("JOB_TIMEOUT_S", "6"))
FOLDER = Path(os.environ.get("JOB_FOLDER", "."))
_POLL_S = 0.05
_WRITE_S = 1.5
_writing = threading.Lock()


def main() -> None:
    """Be the rank."""
    fault = sys.argv[1]
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    threading.Thread(target=watch, args=(rank,), daemon=True).start()
    limit = timedelta(seconds=TIMEOUT_S)
    pairs = [dist.new_group([0, 1], timeout=limit) for _ in range(2)] if fault == "crossed" else []
    try:
        train(fault, rank, pairs)
    except BaseException:
        (FOLDER / "failed").touch()
        write(rank)
        time.sleep(_WRITE_S)
        raise
    print(f"rank {rank}: done", flush=True)
    dist.destroy_process_group()


def train(fault: str, rank: int, pairs: list[dist.ProcessGroup]) -> None:
    """Make the steps; the victim does something else in one of them."""
    tensor = torch.ones(ELEMENTS)
    for step in range(1, STEPS + 1):
        if step == FAULT_STEP and fault == "recorded":
            write(rank)
        if step == FAULT_STEP and pairs and rank < 2:
            cross(pairs, rank, tensor)
        if step == FAULT_STEP and rank == VICTIM and fault in FAULTS:
            FAULTS[fault](tensor)
        else:
            synchronise(tensor)
        evaluate(tensor)
        if rank == 0:
            print(f"step {step} loss {1 / step:.3f}", flush=True)


def synchronise(tensor: torch.Tensor) -> None:
    """Sum the gradients."""
    dist.all_reduce(tensor)


def evaluate(tensor: torch.Tensor) -> None:
    """Let all know the result of rank 0."""
    dist.broadcast(tensor[:16], 0)


def cross(pairs: list[dist.ProcessGroup], rank: int, tensor: torch.Tensor) -> None:
    """Call two groups in another order on each rank."""
    for group in pairs if rank == 0 else reversed(pairs):
        dist.all_reduce(tensor, group=group)


def watch(rank: int) -> None:
    """Write the recorder once any rank has failed. A process that gloo ends itself leaves none."""
    while not (FOLDER / "failed").exists():
        time.sleep(_POLL_S)
    write(rank)


def write(rank: int) -> None:
    """Write what the flight recorder holds."""
    with _writing:
        part = FOLDER / f"fr_trace_rank_{rank}.part"
        part.write_bytes(torch._C._distributed_c10d._dump_fr_trace())
        part.rename(part.with_suffix(""))


def _raise(tensor: torch.Tensor) -> None:
    raise ValueError("loss is not a number")


def _late(tensor: torch.Tensor) -> None:
    time.sleep(2 * TIMEOUT_S)
    synchronise(tensor)


def _swap(tensor: torch.Tensor) -> None:
    dist.broadcast(tensor[:16], 0, async_op=True)
    synchronise(tensor)


def _one_more(tensor: torch.Tensor) -> None:
    dist.barrier()
    synchronise(tensor)


def _ends_early(tensor: torch.Tensor) -> None:
    print(f"rank {VICTIM}: no more data, done", flush=True)
    time.sleep(_WRITE_S)
    os._exit(0)


def _fills_memory(tensor: torch.Tensor) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    kept = []
    while True:
        kept.append(torch.ones(1 << 24))


def _opens_files(tensor: torch.Tensor) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    while True:
        kept.append(Path("/dev/null").open())  # noqa: SIM115 - to use up descriptors


FAULTS: dict[str, Callable[[torch.Tensor], None]] = {
    "other-operation": lambda tensor: dist.all_gather_into_tensor(torch.empty(4 * ELEMENTS), tensor),
    "other-size": lambda tensor: dist.all_reduce(tensor[: ELEMENTS // 2]),
    "other-type": lambda tensor: dist.all_reduce(tensor.double()),
    "other-order": _swap,
    "skips-one": lambda tensor: None,
    "one-more": _one_more,
    "ends-early": _ends_early,
    "late": _late,
    "raises": _raise,
    "exits": lambda tensor: os._exit(3),
    "killed": lambda tensor: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda tensor: os.kill(os.getpid(), signal.SIGSEGV),
    "stopped": lambda tensor: os.kill(os.getpid(), signal.SIGSTOP),
    "host-memory": _fills_memory,
    "files-opened": _opens_files,
}

if __name__ == "__main__":
    main()
