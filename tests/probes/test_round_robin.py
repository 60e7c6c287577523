"""Rank 0's side of a tournament whose ranks are simulated: what is lost, slow inside or corrupted, and who plays on.

The whole results of more tournaments are kept in tests/data/command_values/ranks.txt.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest
from fake_pairs import Kept, measured

from ncclprobe.localise.pairs.rounds import place_ranks
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.pair_results import Localisation, Nic, PairRow

pytest.importorskip("torch")

from ncclprobe.probes.pairs import PairTiming
from ncclprobe.probes.round_robin import RoundRobin
from tests.each_row import each_row

HOSTS = ["a", "a", "b", "b", "c", "c", "d", "d"]
NICS = [Nic(f"mlx5_{rank % 2}", rank % 2) for rank in range(len(HOSTS))]
NBYTES = 1 << 20
Answer = Callable[[str, int, int], dict[int, PairTiming]]
FLIPPED = Mismatch(4, 17, 0, "7", "6", "0x07", "0x06")


def healthy(kind: str, first: int, second: int, rate: float = 1e9) -> dict[int, PairTiming]:
    """What both ranks of a pair tell of a step; a word takes no time."""
    if kind == "latency":
        return {first: PairTiming((0.0,)), second: PairTiming()}
    times = (NBYTES / rate,) * 5
    sends, comes = (second, first) if kind == "back" else (first, second)
    if kind == "both":
        return {first: PairTiming(times, wrong=0), second: PairTiming(times, wrong=0)}
    return {sends: PairTiming(times), comes: PairTiming(wrong=0)}


@dataclass
class Fleet:
    """Stands for the ranks: answers every step at once. `gone`: who answers no more, from the step of that number.
    `stuck`: who cannot connect anew."""

    answer: Answer = healthy
    gone: dict[int, int] = field(default_factory=dict)
    sizes: tuple[int, int] = (8, NBYTES)
    rank_result: list[Any] = field(default_factory=list)
    stop_after: int | None = None
    stuck: frozenset[int] = frozenset()
    transfers: int = 1

    @property
    def exchange(self) -> "Fleet":
        return self

    def share(self, value: Any) -> Any:
        self.rank_result.append(value)
        return value

    def step(self, said: Any) -> dict[int, PairTiming]:
        if self.stop_after is not None and len(self.rank_result) > self.stop_after:
            raise RuntimeError("the run ends")
        rows = {rank: PairTiming() for rank in range(len(HOSTS))}
        if "renew" in said:
            rows |= {rank: PairTiming(why="stuck", fit=False) for rank in self.stuck}
        for first, second in said["pairs"]:
            rows |= self.answer(said["kind"], first, second)
        return {rank: row for rank, row in rows.items() if len(self.rank_result) < self.gone.get(rank, 10**9)}

    def round_robin(self, kept: list[Kept], dropped: list[int]) -> RoundRobin:
        def note(ranks: Collection[int]) -> None:
            dropped.extend(ranks)

        return RoundRobin(self, place_ranks(HOSTS, NICS), kept.append, None, note)  # type: ignore[arg-type]


def played(fleet: Fleet) -> tuple[Localisation, list[PairRow], list[int]]:
    kept: list[Kept] = []
    dropped: list[int] = []
    fleet.round_robin(kept, dropped).run()
    return localised(kept), [each for each in kept if isinstance(each, PairRow)], dropped


def localised(kept: Sequence[Kept], complete: bool = True) -> Localisation:
    return localise(measured(HOSTS, kept, nics=NICS, complete=complete))


def one_way(rows: list[PairRow], inside: bool) -> list[tuple[int, int]]:
    return sorted((row.src, row.dst) for row in rows if not row.both and not row.step and row.inside is inside)


def between(without: Collection[int] = ()) -> list[tuple[int, int]]:
    """The pairs of ranks on equal rails of two nodes."""
    ranks = [rank for rank in range(len(HOSTS)) if rank not in without]
    return sorted((src, dst) for src, dst in permutations(ranks, 2) if src % 2 == dst % 2)


def swallowing(*dead: set[int]) -> Answer:
    """Paths on which nothing arrives: the first rank runs out of time, and the other hears nothing of it."""

    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        if {first, second} in dead:
            return {first: PairTiming(why="timed out", fit=False), second: PairTiming()}
        return healthy(kind, first, second)

    return answer


def at_rate(rate: float, *pairs: tuple[int, int]) -> Answer:
    return lambda kind, one, other: healthy(kind, one, other, rate if (one, other) in pairs else 1e9)


def flipped(kind: str, first: int, second: int) -> dict[int, PairTiming]:
    """A byte that changes on one way."""
    wrong = {4: PairTiming(wrong=3, mismatch=FLIPPED)} if (kind, first, second) == ("forth", 0, 4) else {}
    return healthy(kind, first, second) | wrong


def late(kind: str, first: int, second: int) -> dict[int, PairTiming]:
    """A reply takes half as long as what a transfer of one byte per nanosecond seems to."""
    rows = healthy(kind, first, second)
    return {first: PairTiming((NBYTES / 2e9,)), second: PairTiming()} if kind == "latency" else rows


ALL = swallowing(*({rank, other} for rank in range(8) for other in range(rank)))


@each_row("fit", [True, False])
def test_a_partner_of_a_rank_that_goes_plays_on_if_its_connections_are_whole(fit: bool) -> None:
    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        if {first, second} == {0, 2}:
            return {0: PairTiming(why="Connection closed by peer", fit=fit)}
        return healthy(kind, first, second)

    fleet = Fleet(answer)
    honest = fleet.step
    at: list[int] = []

    def step(said: Any) -> dict[int, PairTiming]:
        rows = honest(said)
        at.extend([1] * ([0, 2] in said["pairs"]))
        return {rank: row for rank, row in rows.items() if not (at and rank == 2)}

    fleet.step = step  # type: ignore[method-assign]
    found, rows, dropped = played(fleet)
    assert dropped == [2]
    ends = ("a (mlx5_0)", "b (mlx5_0)")
    assert {(lost.src, lost.dst) for lost in found.lost} == {ends, ends[::-1]}
    assert [(each.rank, each.end, each.gone) for each in found.excluded_ranks] == [(2, "b (mlx5_0)", True)]
    assert set(between(without=[2])) <= set(one_way(rows, inside=False))
    renewed = [said["renew"] for said in fleet.rank_result if "renew" in said]
    assert renewed == ([] if fit else [[rank for rank in range(len(HOSTS)) if rank != 2]])


def test_a_run_that_ends_in_the_middle_says_what_it_has_and_that_it_is_not_all() -> None:
    kept: list[Kept] = []
    with pytest.raises(RuntimeError, match="the run ends"):
        Fleet(stop_after=10).round_robin(kept, []).run()
    found = localised(kept, complete=False)
    assert (found.complete, found.tests > 0, found.culprits) == (False, True, ())
