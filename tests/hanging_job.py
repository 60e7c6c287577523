"""A real job of three gloo ranks of torch, of which rank 1 hangs or waits in a named way.

``python hanging_job.py WAY PATH`` is one rank, whose number is in RANK; rank 0 writes its store's port to PATH.
"""

import ctypes
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ncclprobe.commands.attach import PREPARE

RANKS, VICTIM, STEPS = 3, 1, 6
START_S, LONG_S = 100.0, 10**6
Job = list["subprocess.Popen[str]"]


@contextmanager
def started(way: str) -> Iterator[Job]:
    """Give the ranks of a job that have made their first steps, and end them. Raises TimeoutError."""
    folder = Path(tempfile.mkdtemp())
    (folder / "prepared.py").write_text(PREPARE)
    job = {"MASTER_ADDR": folder.name, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}  # the name tells it from others
    job |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    ranks = [_rank(way, folder, {**job, "RANK": str(number), "LOCAL_RANK": str(number)}) for number in range(RANKS)]
    try:
        deadline = time.monotonic() + START_S
        for each in ranks:
            assert each.stdout
            if not select.select([each.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{way}: a rank made no step within {START_S:g} s")
            each.stdout.readline()
        yield ranks
    finally:
        for each in ranks:
            os.killpg(each.pid, signal.SIGKILL)
            each.communicate()


def _rank(way: str, folder: Path, variables: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, way, str(folder / "port")], env={**os.environ, **variables}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True)  # fmt: skip


def another_call() -> None:
    """Call another collective than the others."""
    import torch
    import torch.distributed as dist

    dist.all_gather([torch.zeros(8) for _ in range(RANKS)], torch.zeros(8))
    time.sleep(LONG_S)


HANGS: dict[str, Callable[[], object]] = {
    "another collective": another_call, "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "gil held in C": lambda: ctypes.PyDLL(None).sleep(LONG_S)}  # fmt: skip
PAUSES_S = {"fast": 0.0, "rank 1 waits 1 s for data": 1.0}
"""Healthy jobs, and how long rank 1 waits before each step."""


def main(way: str, path: Path) -> None:
    """Be one rank."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=_store(rank, path), rank=rank, world_size=RANKS)
    sys.path.append(str(path.parent))
    kept: Any = importlib.import_module("prepared")
    assert kept
    data = torch.zeros(8)
    for step in range(LONG_S):
        if rank == VICTIM:
            time.sleep(PAUSES_S.get(way, 0.0))
            if step == STEPS:
                HANGS.get(way, lambda: None)()
        dist.all_reduce(data)
        if step == STEPS - 1:
            print("ready", flush=True)
            dist.broadcast(data, 0)


def _store(rank: int, path: Path) -> Any:
    from torch.distributed import TCPStore

    if rank == 0:
        first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        path.with_suffix(".new").write_text(str(first.port))
        path.with_suffix(".new").rename(path)
        return first
    end = time.monotonic() + START_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return TCPStore("127.0.0.1", int(path.read_text()), is_master=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
