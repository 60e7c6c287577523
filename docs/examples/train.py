"""A training script that asks before its first step whether the network is as fast as it should be.

``torchrun --nproc-per-node 2 docs/examples/train.py`` (with gloo where there is no GPU).
"""

import os

import torch
import torch.distributed as dist

from ncclprobe import api


def fast_enough() -> bool:
    """Ask on every rank; all get the same report, and so all go on or none does."""
    try:
        report = api.bandwidth(sizes=(1 << 20,), budget_s=0.5, timeout_s=60)
    except api.NcclprobeError as error:  # a rank did not come, or left: nothing is known of the network
        print(f"not measured: {error}", flush=True)
        return False
    if dist.get_rank() == 0:
        print(api.render(report), flush=True)
    return report.status is not api.Status.FAIL


def main() -> None:
    """Train, on GPUs where there are some."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        if fast_enough():
            step(torch.device("cuda" if on_gpu else "cpu"))
    finally:
        dist.destroy_process_group()


def step(device: torch.device) -> None:
    """Stand for the first step: sum a gradient over all ranks."""
    gradient = torch.ones(1024, device=device)
    dist.all_reduce(gradient)
    print(f"rank {dist.get_rank()}: step 1, gradient {gradient[0].item():g}", flush=True)


if __name__ == "__main__":
    main()
