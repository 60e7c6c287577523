"""``python -m gpu_stages.failure_rank FAULT FOLDER BACKEND``: one rank of a job that fails as FAULT says.

It makes small all_reduces. Before the step of the fault all ranks wait for the file `go`, so that the job can be looked
at while it is well. Whenever a file `moment` names a new moment, a thread writes what torch's flight recorder holds.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_stages.faults import FAULT_STEP, LATE_S, RANKS, STEPS, TIMEOUT_S, VICTIM

ELEMENTS = 1 << 16
_GO_S = 60.0
_IMPORTED_S = 30.0
_POLL_S = 0.05


def main() -> None:
    """Be the rank."""
    fault, folder, backend = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    rank = int(os.environ["RANK"])
    stacks = (folder / f"rank{rank}.stacks.txt").open("w")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    threading.Thread(target=record, args=(folder, rank, backend), daemon=True).start()
    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    (folder / f"rank{rank}.imported").touch()
    wait_for(lambda: len(list(folder.glob("*.imported"))) == RANKS, _IMPORTED_S)
    eager = {"device_id": device} if backend == "nccl" else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S), **eager)
    train(fault if rank == VICTIM else "", folder, rank, device)
    dist.destroy_process_group()


def train(fault: str, folder: Path, rank: int, device: torch.device) -> None:
    """Make the steps; `fault` is what this rank does in place of one of them, empty: nothing."""
    tensor = torch.ones(ELEMENTS, device=device)
    for step in range(1, STEPS + 1):
        if step == FAULT_STEP:
            (folder / f"rank{rank}.ready").touch()
            wait_for((folder / "go").exists, _GO_S)
        act = FAULTS.get(fault) if step == FAULT_STEP else None
        print(f"step {step}: {fault if act else 'all_reduce'}", flush=True)
        if act:
            act(tensor)
        else:
            dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()


def wait_for(true: Callable[[], bool], seconds: float) -> None:
    """Return once `true()`, or after so many seconds.

    Before init_process_group the ranks wait for the one that imports torch longest: its timeout, TIMEOUT_S, is theirs
    to notice a fault, and on a busy machine shorter than an import.
    """
    late = time.monotonic() + seconds
    while not true() and time.monotonic() < late:
        time.sleep(_POLL_S)


def record(folder: Path, rank: int, backend: str) -> None:
    """Write the flight recorder's dumps of every moment that is called out, for ever."""
    written = ""
    while True:
        moment = _text(folder / "moment")
        if moment != written:
            written = moment
            for name, dump in dumps(backend).items():
                (folder / f"rank{rank}.{moment}.fr.{name}").write_bytes(dump())
            (folder / f"rank{rank}.{moment}.dumped").touch()
        time.sleep(_POLL_S)


def dumps(backend: str) -> dict[str, Callable[[], bytes]]:
    """What dumps the recorder of `backend`, as JSON and as pickled bytes; of stacks the watchdog's own dump tells."""
    c10d = torch._C._distributed_c10d
    names = ("_dump_nccl_trace", "_dump_fr_trace") if backend == "nccl" else ("_dump_fr_trace",)
    name = next((name for name in names if hasattr(c10d, name)), "")
    if not name:
        return {}
    pickled = getattr(c10d, name)
    return {"json": getattr(c10d, f"{name}_json"), "pickle": lambda: pickled(True, False)}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _kill(tensor: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(tensor: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(tensor: Any) -> None:
    raise ValueError("loss is not a number")


def _skip(tensor: Any) -> None:
    """Do nothing."""


def _late(tensor: Any) -> None:
    time.sleep(LATE_S)
    dist.all_reduce(tensor)


class _Beyond:
    """Memory that begins where `tensor` does and ends where nothing is mapped."""

    def __init__(self, tensor: Any) -> None:
        data = (tensor.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (1 << 38,), "typestr": "|u1", "data": data, "version": 2}


def _illegal_address(tensor: Any) -> None:
    """On a GPU the kernel is launched well and fails later; a CPU has the segmentation fault at once."""
    if tensor.is_cuda:
        torch.as_tensor(_Beyond(tensor), device=tensor.device)[-1:].add_(1)
        torch.cuda.synchronize()
    else:
        ctypes.memset(8, 0, 1)


def _out_of_memory(tensor: Any) -> None:
    """Allocate without end: the allocator of a GPU has one, and a CPU's refuses what no address space holds."""
    size = 1 << 30 if tensor.is_cuda else 1 << 60
    kept = []
    while True:
        kept.append(torch.empty(size, dtype=torch.uint8, device=tensor.device))


FAULTS: dict[str, Callable[[Any], None]] = {
    "sigkill": _kill,
    "sigstop": _stop,
    "raised": _raise,
    "skipped": _skip,
    "other-op": lambda tensor: dist.broadcast(tensor, 0),
    "other-size": lambda tensor: dist.all_reduce(tensor[: ELEMENTS // 2]),
    "other-dtype": lambda tensor: dist.all_reduce(tensor.double()),
    "illegal-address": _illegal_address,
    "out-of-memory": _out_of_memory,
    "late": _late,
}

if __name__ == "__main__":
    main()
