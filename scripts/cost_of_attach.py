#!/usr/bin/env python3
"""What does `ncclprobe attach` cost, and what do the ranks that it looks at spend because of it?

    .venv/bin/python scripts/cost_of_attach.py [--ranks N ...] [--runs N] [--calls N] [--alone]
    .venv/bin/python scripts/cost_of_attach.py --steps 1000 [--runs N]

Each job has N ranks of gloo, forked from one process that has imported torch; each runs torch's worker server and has
made so many calls when rank 1 sleeps and the others wait for it. With --alone, for thousands of ranks, they make no
group, for each connects to each, and have no server: rank 1 is stopped. Printed in milliseconds of processor time,
medians:

1. the whole command with all that it starts, also per rank and look, and what the ranks spent while it ran, less what
   they spend in as long without it.
2. in one more run, by what it was for: each kind of question, one after another, what children spend on it included.

With --steps: the seconds of so many steps of two ranks that share one core, without `attach --watch 1` and with it, on
another core, by turns.
"""

import argparse
import compileall
import ctypes
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SLEEPER, LONG_S, START_S = 1, 10**6, 300.0
LINES: list[IO[str]] = []
BARE = (sys.executable, "-c", "pass")
ATTACH = (sys.executable, "-m", "ncclprobe", "attach", "--quiet", "--no-config")


def main() -> int:
    """Measure and print, or be the job or the run that is taken apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 6, 16, 64])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2500)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job, options.calls, options.alone, options.steps or 0)
    elif options.parts:
        print(json.dumps(parts(options.parts)))
    elif options.steps:
        for _ in range(options.runs):
            pair = [of_steps(options.steps, watched) for watched in (False, True)]
            print(", ".join(f"{taken_s:.1f} s, {own_s:.1f} s of the ranks" for taken_s, own_s in pair), flush=True)
    else:
        compileall.compile_dir(ROOT / "ncclprobe", quiet=2)
        print(f"interpreter: {statistics.median(spent(BARE) for _ in range(options.runs)) * 1e3:.0f} ms")
        for ranks in options.ranks:
            of_job(ranks, options.runs, options.calls, options.alone)
    return 0


def of_job(ranks: int, runs: int, calls: int, alone: bool) -> None:
    """Print what looking at a job of so many ranks costs."""
    with started(ranks, calls, alone) as (pid, pids):
        wholes, theirs, seconds = [], [], []
        for _ in range(runs):
            before, began = of_ranks(pids), time.monotonic()
            wholes.append(spent((*ATTACH, "--pid", str(pid))))
            after, took_s = of_ranks(pids), time.monotonic() - began
            time.sleep(took_s)
            theirs.append((after - before) - (of_ranks(pids) - after))
            seconds.append(took_s)
        if alone:
            print(f"{ranks} ranks: {statistics.median(wholes) * 1e3:.0f} ms in {statistics.median(seconds):.1f} s")
            return
        command = [sys.executable, __file__, "--parts", str(pid)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S).stdout)
    whole, own = statistics.median(wholes) * 1e3, statistics.median(theirs) * 1e3
    print(
        f"{ranks} ranks: {whole:.0f} ms in {statistics.median(seconds):.1f} s, {whole / ranks / 2:.1f} per rank and "
        f"look; the ranks {own:.0f} ms, {own / ranks / 2:.2f} per rank and look"
    )
    print("  " + ", ".join(f"{name} {ms:.0f}" for name, ms in found.items()), flush=True)


def of_steps(steps: int, watched: bool) -> tuple[float, float]:
    """Return how long the steps of a job take on one core, looked at from another or not, and its processor time."""
    own, other = sorted(os.sched_getaffinity(0))[:2]
    with started(2, 0, steps=steps, on=f"taskset -c {own}") as (pid, pids):
        before, watch = (
            of_ranks(pids),
            [*f"taskset -c {other}".split(), *ATTACH, "--watch", "1", "--timeout", "3000", "--pid", str(pid)],
        )
        out = subprocess.DEVNULL
        with subprocess.Popen(watch if watched else BARE, stdout=out, stderr=out, cwd=ROOT) as process:
            taken_s = float(LINES.pop().readline())
            own_s = of_ranks(pids) - before
            process.kill()
    return taken_s, own_s


def spent(command: Sequence[str]) -> float:
    """Return the processor time of a command and of what it waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, timeout=START_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def of_ranks(pids: Sequence[int]) -> float:
    """Return the processor time of processes, all their threads together."""
    tasks = [each for pid in pids for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


class Account:
    """Processor time of this process, of its children and of those that have ended, by what it was spent for."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self.lock = threading.Lock()
        self.last = self._now()

    def _now(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        children = [pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
        return time.process_time() + ended.ru_utime + ended.ru_stime + of_ranks(list(map(int, children)))

    def to(self, what: str) -> None:
        """Book what was spent since the last booking."""
        now = self._now()
        self.ms[what] = self.ms.get(what, 0.0) + (now - self.last) * 1e3
        self.last = now


def parts(pid: int) -> dict[str, float]:
    """Return the milliseconds that looking at the job of process `pid` takes, by what they are spent for."""
    account = Account()
    account.last = 0.0
    from ncclprobe.commands import attach
    from ncclprobe.engine import running
    from ncclprobe.host.live import LiveHost
    from ncclprobe.report import delivery

    account.to("imports")
    ask, judge = LiveHost.ask, running.stands

    def asked(self: LiveHost, *question: str | int) -> str:
        with account.lock:
            account.to("rest")
            try:
                return ask(self, *question)
            finally:
                account.to({"ranks": "finding ranks", "process": "/proc"}.get(str(question[0]), str(question[0])))

    def stands(*of: object) -> object:
        account.to("rest")
        try:
            return judge(*of)  # type: ignore[arg-type]
        finally:
            account.to("judging")

    LiveHost.ask, running.stands = asked, stands  # type: ignore[method-assign, assignment]
    deliver = delivery.deliver

    def delivered(*of: object) -> object:
        account.to("judging")
        try:
            return deliver(*of)  # type: ignore[arg-type]
        finally:
            account.to("writing")

    delivery.deliver = delivered  # type: ignore[assignment]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        attach.main(["--quiet", "--no-config", "--pid", str(pid)])
    return account.ms


@contextmanager
def started(
    ranks: int, calls: int, alone: bool = False, steps: int = 0, on: str = ""
) -> Iterator[tuple[int, list[int]]]:
    """Start a job, and give the process that has started its ranks, and them, when all stand."""
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OF_RANK": " " * 64}
    where = {"MASTER_ADDR": "cost", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [*on.split(), sys.executable, __file__, "--job", str(ranks), "--calls", str(calls), *["--alone"] * alone]
    command += ["--steps", str(steps)] if steps else []
    with subprocess.Popen(command, env={**os.environ, **sizes, **where}, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            pids = json.loads(process.stdout.readline())
            for _ in range(ranks):
                process.stdout.readline()
            LINES.append(process.stdout)
            time.sleep(0.0 if steps else 4.0)
            yield process.pid, pids
        finally:
            process.kill()


def job(ranks: int, calls: int, alone: bool, steps: int) -> None:
    """Start so many ranks, and wait for them."""
    import torch.distributed as dist

    folder, (told, tell) = tempfile.mkdtemp(), os.pipe()
    pids = []
    for rank in range(ranks):
        if not (pid := os.fork()):
            ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
            os.close(tell)
            os.read(told, 1)  # until the numbers of all are told
            if alone:
                stand_alone(rank)
            be_rank(rank, ranks, calls, dist.FileStore(f"{folder}/store", ranks), steps)
            os._exit(0)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    os.close(tell)
    os.wait()


def stand_alone(rank: int) -> None:
    """Do nothing for ever, or be stopped."""
    name_in_environment(rank)
    print("ready", flush=True)
    if rank == SLEEPER:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(LONG_S)


def be_rank(rank: int, ranks: int, calls: int, store: object, steps: int) -> None:
    """Make so many calls and one more, for which the others wait for one rank."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer

    name_in_environment(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    server = _WorkerServer("127.0.0.1", 0)
    data = torch.ones(8)
    for _ in range(calls):
        dist.all_reduce(data)
    print("ready", flush=True)
    if steps:
        weights, began = torch.rand(640, 640), time.monotonic()
        for _ in range(steps):
            weights = torch.nn.functional.normalize(weights @ weights)
            dist.all_reduce(data)
        if rank == 0:
            print(time.monotonic() - began, flush=True)
        time.sleep(LONG_S)
    if rank == SLEEPER:
        time.sleep(LONG_S)
    dist.all_reduce(data)
    del server


def name_in_environment(rank: int) -> None:
    """Write this rank's number where the kernel shows the environment that a process was started with."""
    begin = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    at = Path("/proc/self/environ").read_bytes().index(b"OF_RANK=")
    text = b"RANK=%d\0LOCAL_RANK=%d\0" % (rank, rank)
    ctypes.memmove(begin + at, text, len(text))


if __name__ == "__main__":
    sys.exit(main())
