"""A rank of somebody's training job with NCCL: ``job.py WORD``; rank 1 does in the fourth step what WORD says."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS, STRUCK, VICTIM = 6, 4, 1
ELEMENTS, TIMEOUT_S = 100_000, 15.0


def main():
    word, rank = sys.argv[1], int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S), device_id=device)
    tensor = torch.ones(ELEMENTS, device=device)
    for step in range(1, STEPS + 1):
        struck = step == STRUCK and rank == VICTIM and word in FAULTS
        (FAULTS[word] if struck else dist.all_reduce)(tensor)
        dist.broadcast(tensor[:16], 0)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"step {step} loss {1 / step:.3f}", flush=True)
    print(f"rank {rank}: done", flush=True)
    dist.destroy_process_group()


def _raise(tensor):
    raise ValueError("loss is not a number")


def _late(tensor):
    time.sleep(2 * TIMEOUT_S)
    dist.all_reduce(tensor)


def _no_memory(tensor):
    torch.empty(200 << 30, dtype=torch.uint8, device=tensor.device)


FAULTS = {
    "other-operation": lambda tensor: dist.all_gather_into_tensor(tensor.repeat(dist.get_world_size()), tensor),
    "other-size": lambda tensor: dist.all_reduce(tensor[: ELEMENTS // 2]),
    "other-type": lambda tensor: dist.all_reduce(tensor.double()),
    "absent-step": lambda tensor: time.sleep(4 * TIMEOUT_S), "late": _late, "raises": _raise,
    "out-of-memory": _no_memory, "exits": lambda tensor: os._exit(3),
    "killed": lambda tensor: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda tensor: os.kill(os.getpid(), signal.SIGSEGV),
    "stopped": lambda tensor: os.kill(os.getpid(), signal.SIGSTOP),
}  # fmt: skip

if __name__ == "__main__":
    main()
