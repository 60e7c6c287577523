"""How long a row takes with an asked precision, beside fixed calls: ranks of scripts/bench.py over some link."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from ncclprobe.model.values import Struct

from . import faults
from .hosts import Lab
from .processes import LabError, Running, start
from .ranks import wait

BENCH = Path(__file__).parents[2] / "scripts/bench.py"
DEADLINE_S = 600.0


class Link(Struct, frozen=True):
    """What two ranks talk over: loopback, or two hosts of the lab whose cards are held to `mbits`."""

    mbits: int = 0

    def __str__(self) -> str:
        return f"{self.mbits} Mbit/s" if self.mbits else "loopback"


class Asked(Struct, frozen=True):
    """One size over one link: the ratio of the times with its interval, and what came of both (scripts/bench.py)."""

    link: Link
    nbytes: int
    pairs: int
    time: tuple[float, float, float]
    reached: float
    precision: float
    ours: float
    fixed: float
    ours_s: float
    fixed_s: float


def read(text: str, link: Link) -> list[Asked]:
    """What scripts/bench.py left, by size."""
    return [
        Asked(
            link,
            row["nbytes"],
            row["pairs"],
            (row["time"]["median"], row["time"]["low"], row["time"]["high"]),
            *(row[key] for key in ("reached", "precision", "ours", "fixed", "ours_s", "fixed_s")),
        )
        for row in json.loads(text)["asked"]
    ]


def play(link: Link, sizes: Sequence[str], pairs: int) -> list[Asked]:
    """So many pairs of rows at each size. Raises LabError for ranks that did not come through."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launch = _in_lab(link, stack) if link.mbits else _here(folder)
        command = [sys.executable, str(BENCH), "--ranks", "2", "--sizes", ",".join(sizes), "--pairs", str(pairs)]
        jobs = [launch(rank, [*command, "--only-rank", str(rank), "--meet", str(folder)]) for rank in range(2)]
        done = wait(jobs, DEADLINE_S)
        if any(each.code for each in done):
            raise LabError(f"{link}: {[(each.code, each.timed_out, each.err[-300:]) for each in done]}")
        return read((folder / "found.json").read_text(), link)


def _in_lab(link: Link, stack: ExitStack) -> Callable[[int, Sequence[str]], Running]:
    lab = stack.enter_context(Lab(hosts=2))
    for host in lab.hosts:
        stack.enter_context(faults.shaped(host, float(link.mbits)))
    own = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    return lambda rank, argv: lab.hosts[rank].start(argv, own)


def _here(folder: Path) -> Callable[[int, Sequence[str]], Running]:
    own = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return lambda rank, argv: start(argv, folder / f"rank{rank}", own)
