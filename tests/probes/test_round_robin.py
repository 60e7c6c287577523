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
from ncclprobe.localise.pairs.samples import End
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


ALL = swallowing(*({rank, other} for rank in range(8) for other in range(rank)))


@each_row(
    ("fleet", "aside", "missed", "renewals"),
    [
        # A rank that is gone costs nobody else a pair: before its first one, or later.
        (Fleet(gone={3: 0}), [(3, True, "it did not answer after round 1: latency")], set(), 0),
        (Fleet(gone={3: 9}), [(3, True, "it did not answer after round 3: latency")], set(), 0),
        # A path that swallows everything costs its ends no other pair, unless they cannot connect anew, as over NCCL.
        (Fleet(swallowing({1, 5})), [], {(1, 5), (5, 1)}, 2),
        (
            Fleet(swallowing({1, 5}), stuck=frozenset((1, 5))),
            [(1, False, "timed out"), (5, False, "timed out")],
            set(),
            1,
        ),
        # One that hangs with every other is set aside after the second, and no other is.
        (Fleet(swallowing({1, 3}, {1, 5}, {1, 7})), [(1, False, "timed out")], set(), 2),
        # The ranks connect anew a bounded number of times.
        (Fleet(ALL), [(rank, False, "timed out") for rank in range(8)], set(), 1),
    ],
)
def test_who_is_gone_or_stuck_is_set_aside_and_the_others_play_all_their_pairs(
    fleet: Fleet, aside: list[tuple[int, bool, str]], missed: set[tuple[int, int]], renewals: int
) -> None:
    found, rows, dropped = played(fleet)
    assert [(each.rank, each.gone, each.why) for each in found.excluded_ranks] == aside
    assert dropped == [rank for rank, gone, _ in aside if gone]
    assert {*between(without=[rank for rank, *_ in aside])} - {*one_way(rows, inside=False)} == missed
    assert sum("renew" in said for said in fleet.rank_result) == renewals
    assert fleet.rank_result[-1] == {"over": not (aside or missed)}, "can the first group be closed?"


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


def test_a_slow_pair_inside_a_node_is_named_and_the_network_is_not_and_once_slow_is_nobodys_fault() -> None:
    found, rows, _ = played(Fleet(at_rate(2e8, (4, 5))))
    ends = {f"{host}{rail} (mlx5_{number})" for host in "abcd" for number, rail in enumerate(("", " rail 1"))}
    assert {row.src_end for row in rows if not row.inside} == ends
    assert {row.src_end for row in rows if row.inside} == {f"rank {rank} on {host}" for rank, host in enumerate(HOSTS)}
    (slow,) = found.intra_node
    assert (slow.where, slow.kind, slow.node, slow.ranks) == ("rank 4 with rank 5 inside c", "pair", "c", (4, 5))
    assert (slow.ratio, slow.tests) == (pytest.approx(0.2), 3)
    assert (found.kind, found.culprits, found.suspects) == ("none", (), ())
    assert sum(row.inside and (row.src, row.dst) == (4, 5) and not row.both for row in rows) == 3
    seen: list[str] = []

    def once(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        slow = (first, second) == (4, 5) and kind not in seen
        seen.append(kind if slow else "")
        return healthy(kind, first, second, 2e8 if slow else 1e9)

    assert played(Fleet(once))[0].intra_node == ()


def test_a_byte_flipped_on_the_way_is_named_by_source_target_offset_and_bits() -> None:
    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        rows = healthy(kind, first, second)
        if (kind, first, second) == ("forth", 0, 4):
            rows[4] = PairTiming(wrong=3, mismatch=FLIPPED)
        return rows

    found, rows, _ = played(Fleet(answer))
    (wrong,) = found.wrong
    assert (wrong.src, wrong.dst, wrong.src_end, wrong.dst_end) == (0, 4, "a (mlx5_0)", "c (mlx5_0)")
    assert (wrong.wrong, wrong.first) == (3, FLIPPED)
    assert [(row.src, row.dst, row.both) for row in rows if row.wrong] == [(0, 4, False)]


def test_a_run_that_ends_in_the_middle_says_what_it_has_and_that_it_is_not_all() -> None:
    kept: list[Kept] = []
    with pytest.raises(RuntimeError, match="the run ends"):
        Fleet(stop_after=10).round_robin(kept, []).run()
    found = localised(kept, complete=False)
    assert (found.complete, found.tests > 0, found.culprits) == (False, True, ())


@each_row(("transfers", "GBps"), [(1, 2.0), (4, 1.0 / 0.875)])
def test_of_a_reply_a_transfer_loses_its_share(transfers: int, GBps: float) -> None:
    """A reply takes half as long as what a transfer of one byte per nanosecond seems to."""

    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        rows = healthy(kind, first, second)
        return {first: PairTiming((NBYTES / 2e9,)), second: PairTiming()} if kind == "latency" else rows

    _, rows, _ = played(Fleet(answer, transfers=transfers))
    rates = [row.GBps for row in rows if not row.both]
    assert rates == pytest.approx([GBps] * len(rates))


def test_ranks_of_one_node_play_for_themselves_and_ranks_of_several_by_rail() -> None:
    assert place_ranks(["h", "h"]).ends == (End("rank 0"), End("rank 1"))
    assert place_ranks(["a", "a", "b", "b"]).ends == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))
