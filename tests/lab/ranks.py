"""Ranks of `ncclprobe bandwidth` on the hosts of a lab, started by hand: one for each card of a host, or one alone."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report import json as as_json

from .hosts import Lab
from .processes import Completed, LabError, Running
from .run import ended

PORT = "29500"


class Ended(Struct, frozen=True):
    """A run that is over: how each rank ended, by rank, and rank 0's report, if it wrote one."""

    ranks: tuple[Completed, ...]
    report: Report | None
    seconds: float

    @property
    def codes(self) -> tuple[int, ...]:
        """The exit codes that there are, each once."""
        return tuple(sorted({each.code for each in self.ranks}))

    @property
    def told(self) -> Report:
        """The report; LabError with rank 0's last words where there is none."""
        if self.report is None:
            words = self.ranks[0].err.strip().splitlines()[-1:]
            raise LabError(f"no report: {self.ranks[0].code} {' '.join(words)}")
        return self.report


def seats(hosts: int, cards: int = 1) -> list[tuple[int, int]]:
    """The host and the card of each rank, in the order of ranks: those of one host stand together."""
    return [(host, card) for host in range(hosts) for card in range(cards)]


def variables(rank: int, ranks: int, card: int, cards: int) -> dict[str, str]:
    """What a launcher would set for a rank that talks over this card."""
    seat = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(card), "LOCAL_WORLD_SIZE": str(cards)}
    own = {"MASTER_ADDR": "n0", "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": f"eth{card}", "OMP_NUM_THREADS": "1"}
    return seat | own


def start(lab: Lab, argv: Sequence[str], env: Mapping[str, str] | None = None, cards: int = 1) -> list[Running]:
    """One rank of python's `argv` for each of so many cards on every host, in the order of ranks."""
    found = seats(len(lab.hosts), cards)
    return [
        lab.hosts[host].start([sys.executable, *argv], {**variables(rank, len(found), card, cards), **(env or {})})
        for rank, (host, card) in enumerate(found)
    ]


def wait(jobs: Sequence[Running], deadline_s: float) -> list[Completed]:
    """How they end, by rank; who still runs at the deadline is killed."""
    done = ended({str(rank): job for rank, job in enumerate(jobs)}, time.monotonic() + deadline_s)
    return [done[str(rank)] for rank in range(len(jobs))]


def begin(lab: Lab, path: Path, *options: str, cards: int = 1, command: str = "bandwidth") -> list[Running]:
    """`ncclprobe bandwidth`, or another `command`, over gloo on every host; rank 0 writes its report to `path`."""
    own = ["-m", "ncclprobe", command, "--backend", "gloo", "--no-color", "--json", str(path)]
    return start(lab, [*own, *options], cards=cards)


def finish(jobs: Sequence[Running], path: Path, deadline_s: float) -> Ended:
    """Wait, and read the report."""
    done = wait(jobs, deadline_s)
    report = as_json.read(str(path)) if path.exists() else None
    return Ended(tuple(done), report, max(each.seconds for each in done))


def measured(
    lab: Lab, path: Path, *options: str, cards: int = 1, deadline_s: float = 120.0, command: str = "bandwidth"
) -> Ended:
    """Both."""
    path.unlink(missing_ok=True)
    return finish(begin(lab, path, *options, cards=cards, command=command), path, deadline_s)
