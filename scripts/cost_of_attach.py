#!/usr/bin/env python3
"""What does `ncclprobe attach` cost, and what do the ranks that it looks at spend because of it?

    .venv/bin/python scripts/cost_of_attach.py [--ranks N ...] [--runs N] [--alone]

Each job has N ranks of gloo, forked from one process that has imported torch; each runs torch's worker server and has
made CALLS calls when rank 1 sleeps and the others wait for it. With --alone, for thousands of ranks, they make no
group, for each connects to each, and have no server: rank 1 is stopped. Printed are medians of processor time: of the
command with all that it starts, and of the ranks while it ran, less what they spend in as long without it.
"""

import argparse
import compileall
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from child import spent

SLEEPER, LONG_S, CALLS, SETTLE_S = 1, 10**6, 2500, 4.0
ATTACH = (sys.executable, "-m", "ncclprobe", "attach", "--quiet", "--no-config")


def main() -> int:
    """Measure and print, or be the job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 6, 16, 64])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job, options.alone)
        return 0
    compileall.compile_dir(ROOT / "ncclprobe", quiet=2)
    for ranks in options.ranks:
        of_job(ranks, options.runs, options.alone)
    return 0


def of_job(ranks: int, runs: int, alone: bool) -> None:
    """Print what looking at a job of so many ranks costs."""
    with started(ranks, alone) as (pid, pids):
        wholes, theirs, seconds = [], [], []
        for _ in range(runs):
            before = of_ranks(pids)
            cost = spent([*ATTACH, "--pid", str(pid)])
            after = of_ranks(pids)
            time.sleep(cost.seconds)
            theirs.append((after - before) - (of_ranks(pids) - after))
            wholes.append(cost.processor_s)
            seconds.append(cost.seconds)
    whole, own = statistics.median(wholes) * 1e3, statistics.median(theirs) * 1e3
    print(
        f"{ranks} ranks: {whole:.0f} ms in {statistics.median(seconds):.1f} s, {whole / ranks / 2:.1f} per rank and "
        f"look; the ranks {own:.0f} ms, {own / ranks / 2:.2f} per rank and look",
        flush=True,
    )


def of_ranks(pids: Sequence[int]) -> float:
    """Return the processor time of processes, all their threads together."""
    tasks = [each for pid in pids for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


@contextmanager
def started(ranks: int, alone: bool) -> Iterator[tuple[int, list[int]]]:
    """Start a job, and give the process that has started its ranks, and them, when all stand."""
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OF_RANK": " " * 64}
    where = {"MASTER_ADDR": "cost", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, __file__, "--job", str(ranks), *["--alone"] * alone]
    with subprocess.Popen(command, env={**os.environ, **sizes, **where}, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            pids = json.loads(process.stdout.readline())
            for _ in range(ranks):
                process.stdout.readline()
            time.sleep(SETTLE_S)
            yield process.pid, pids
        finally:
            process.kill()


def job(ranks: int, alone: bool) -> None:
    """Start so many ranks, and wait for them."""
    import torch.distributed as dist

    folder, (told, tell) = tempfile.mkdtemp(), os.pipe()
    pids = []
    for rank in range(ranks):
        if not (pid := os.fork()):
            ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
            os.close(tell)
            os.read(told, 1)  # until the numbers of all are told
            name_in_environment(rank)
            if not alone:
                be_rank(rank, dist.FileStore(f"{folder}/store", ranks), ranks)
            print("ready", flush=True)
            if alone and rank == SLEEPER:
                os.kill(os.getpid(), signal.SIGSTOP)
            if not alone and rank != SLEEPER:
                one_more()
            time.sleep(LONG_S)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    os.close(tell)
    os.wait()


def be_rank(rank: int, store: object, ranks: int) -> None:
    """Join, serve what torch's worker server tells, and make the calls."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer

    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    KEPT.append(_WorkerServer("127.0.0.1", 0))
    for _ in range(CALLS):
        one_more()


def one_more() -> None:
    """Make one call."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8))


KEPT: list[object] = []


def name_in_environment(rank: int) -> None:
    """Write this rank's number where the kernel shows the environment that a process was started with."""
    begin = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    at = Path("/proc/self/environ").read_bytes().index(b"OF_RANK=")
    text = b"RANK=%d\0LOCAL_RANK=%d\0" % (rank, rank)
    ctypes.memmove(begin + at, text, len(text))


if __name__ == "__main__":
    sys.exit(main())
