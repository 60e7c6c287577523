#!/usr/bin/env python3
"""Play healthy runs, and the same with one rank killed, on a machine that is busy: 4 must mean that something is dead.

    .venv/bin/python scripts/under_load.py --runs 50 --load 20 --seed 1

Each run measures with three ranks and gloo, while so many processes per processor compute. A healthy one may end with
0, or with 3 where the time was too short; one of whose ranks was killed, at a random moment of it, ends with
4. Not in CI: it takes minutes, and the machine. Exit code 1 where a run ended otherwise.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil
from launching import Launcher, Process

RANKS = 3
_RUN = ("-m", "ncclprobe", "bandwidth", "--backend", "gloo", "--nproc", str(RANKS), "-b", "1K", "-e", "64K", "-q")
_GRACE_S = 30.0
_STARTED_S = 120.0
_LATEST_S = 10.0
"""After this rank has begun: it imports torch, meets the others, or measures."""
_ENDS = {False: (0, 3), True: (4,)}
"""Exit codes of a healthy run, and of one with a rank killed."""
_COMPUTE = "while True: sum(range(10000))"


@contextmanager
def busy(per_cpu: float) -> Iterator[int]:
    """Keep so many processes per processor computing; they end with this one."""
    count = round(per_cpu * (os.cpu_count() or 1))
    started = [subprocess.Popen([sys.executable, "-c", _COMPUTE], start_new_session=True) for _ in range(count)]
    try:
        yield count
    finally:
        for each in started:
            each.kill()
            each.wait()


def play(folder: Path, timeout_s: float, kill: bool, dice: random.Random) -> tuple[int, str]:
    """Return the exit code of one run, and the one line that it printed."""
    launcher = Launcher(folder)
    try:
        run = launcher.start([*_RUN, "--timeout", str(timeout_s), "--budget", "0.2"])
        if kill:
            _kill_one(launcher, run, dice)
        code = run.wait(timeout_s + _GRACE_S)
        return code, " ".join((run.out + run.err).split())
    finally:
        launcher.clear()


def _kill_one(launcher: Launcher, run: Process, dice: random.Random) -> None:
    """Kill a random rank at a random moment after its start."""
    rank, until = dice.randrange(RANKS), time.monotonic() + _STARTED_S
    while time.monotonic() < until and run.popen.poll() is None:
        try:
            found = launcher.rank_of(run, rank)
            time.sleep(dice.uniform(0.0, _LATEST_S))
            found.send_signal(signal.SIGKILL)
        except (ValueError, psutil.NoSuchProcess):
            time.sleep(0.1)
        else:
            return


def main() -> int:
    """Play all runs; return 1 where one ended otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="Play so many of each kind (default: %(default)s).")
    parser.add_argument("--load", type=float, default=20.0, metavar="N",
        help="Keep N processes per processor computing (default: %(default)g).")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=120.0, help="--timeout of each run (default: %(default)g).")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["healthy", "killed"], help="Play one kind alone.")
    given = parser.parse_args()
    dice, wrong = random.Random(given.seed), 0
    with busy(given.load) as count, tempfile.TemporaryDirectory() as name:
        for kill in (False, True):
            if given.only == ("healthy" if kill else "killed"):
                continue
            codes: Counter[int] = Counter()
            for number in range(given.runs):
                folder = Path(name, f"{kill}{number}")
                folder.mkdir()
                code, said = play(folder, given.timeout, kill, dice)
                codes[code] += 1
                wrong += code not in _ENDS[kill]
                mark = "" if code in _ENDS[kill] else "  WRONG"
                print(f"{'killed' if kill else 'healthy'} run {number}: exit {code}{mark}: {said[:300]}", flush=True)
            ends = ", ".join(f"{times} x {code}" for code, times in sorted(codes.items()))
            kind = "with one rank killed" if kill else "healthy"
            print(f"{given.runs} runs {kind} beside {count} busy processes: exit codes {ends}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
