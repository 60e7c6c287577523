"""Heartbeats that a test makes up, step by step, without clocks, stores or processes."""

from collections.abc import Callable, Iterable

from ncclprobe.model.values import replace
from ncclprobe.session.watchdog.heartbeat import SILENT_PERIODS, FailureDetector, Heartbeat

PATIENCE, S = 30, SILENT_PERIODS
SIGTERM = "signal SIGTERM ended it"


class Ranks:
    """Three ranks whose heartbeats a test turns into whatever it needs. On a host of `running` processes are seen."""

    def __init__(self, running: Iterable[str] = ()) -> None:
        self.detector = FailureDetector(3, PATIENCE, lambda heartbeat: heartbeat.host in running)
        self.heartbeats = {rank: Heartbeat(rank, f"h{rank}", 100 + rank, 0, 1, "timing") for rank in range(3)}
        self.detector.receive(self.heartbeats)

    def leaves(self, rank: int, why: str, *blames: int) -> None:
        old = self.heartbeats[rank]
        self.heartbeats[rank] = replace(old, count=old.count + 1, left=why, blames=blames)


Step = Callable[[Ranks], object]


def on(periods: int, silent: Iterable[int] = (), standing: Iterable[int] = ()) -> Step:
    """Time passes; `silent` ranks write nothing, `standing` ones live on in the same phase."""

    def step(ranks: Ranks) -> None:
        for _ in range(periods):
            for rank, old in ranks.heartbeats.items():
                if rank not in silent:
                    ranks.heartbeats[rank] = replace(old, count=old.count + 1, step=old.step + (rank not in standing))
            ranks.detector.receive(ranks.heartbeats)

    return step


def leaves(rank: int, why: str, *blames: int) -> Step:
    return lambda ranks: ranks.leaves(rank, why, *blames)


def signalled(*others: int) -> Step:
    """Rank 0 was signalled, and then `others`."""

    def step(ranks: Ranks) -> None:
        ranks.leaves(0, SIGTERM)
        ranks.detector.receive(ranks.heartbeats)
        ranks.detector.note_signal()
        for rank in others:
            ranks.leaves(rank, SIGTERM)

    return step


def paused(ranks: Ranks) -> None:
    ranks.detector.paused(10.0)


def exclude(*gone: int) -> Step:
    return lambda ranks: ranks.detector.exclude(gone)
