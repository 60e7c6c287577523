"""Rank 0's side of a tournament whose ranks are simulated: what is lost, slow inside or corrupted, and who plays on.

planted                                  expected
───────────────────────────────────────  ─────────────────────────────────────────────────────────────────────
nothing                                  every pair once, inside and between; nobody named, nobody set aside
a rank gone before its next pair         it alone is set aside, and its partners play all their other pairs
a rank gone in a pair, partner unharmed  the pair is lost; the rank alone is set aside
the same, partner's connections lost     the same, after all others connected anew
a path that swallows everything          the pair is named, and both ends measure all their other pairs
the same over NCCL                       both are set aside, neither is gone
a rank that hangs with all others        it is set aside after the second, and no other is
lost pairs without end                   the ranks connect anew a bounded number of times
a slow pair inside a node                named, with its node, by ranks
a byte flipped on the way                source, target, offset and bits
the run ends in the middle               what was measured so far, and that it is not complete
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


def test_a_healthy_fleet_plays_every_pair_once_and_nobody_is_named() -> None:
    fleet = Fleet()
    found, rows, dropped = played(fleet)
    assert one_way(rows, inside=False) == between()
    assert one_way(rows, inside=True) == sorted((r, r ^ 1) for r in range(len(HOSTS)))
    assert {row.src_end for row in rows if not row.inside} == {
        f"{host}{rail} (mlx5_{number})" for host in "abcd" for number, rail in enumerate(("", " rail 1"))
    }
    assert {row.src_end for row in rows if row.inside} == {f"rank {rank} on {host}" for rank, host in enumerate(HOSTS)}
    assert (found.kind, found.intra_node, found.excluded_ranks, found.lost, found.wrong, dropped) == (
        "none",
        (),
        (),
        (),
        (),
        [],
    )
    assert set(found.level_GBps) == {"one way", "both ways at once", "inside a node, one way"}
    assert fleet.rank_result[-1] == {"over": True}
    assert found.complete


@each_row("since", [0, 9])
def test_a_rank_that_is_gone_costs_nobody_else_a_pair(since: int) -> None:
    found, rows, dropped = played(Fleet(gone={3: since}))
    assert dropped == [3]
    assert [(each.rank, each.gone) for each in found.excluded_ranks] == [(3, True)]
    played_pairs = one_way(rows, inside=False)
    assert [pair for pair in played_pairs if 3 not in pair] == between(without=[3])
    assert (played_pairs == between(without=[3])) is (since == 0)


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
        if [0, 2] in said["pairs"]:
            at.append(1)
        return {rank: row for rank, row in rows.items() if not (at and rank == 2)}

    fleet.step = step  # type: ignore[method-assign]
    found, rows, dropped = played(fleet)
    assert dropped == [2]
    assert {(lost.src, lost.dst) for lost in found.lost} == {
        ("a (mlx5_0)", "b (mlx5_0)"), ("b (mlx5_0)", "a (mlx5_0)")
    }  # fmt: skip
    assert [(each.rank, each.end, each.gone) for each in found.excluded_ranks] == [(2, "b (mlx5_0)", True)]
    assert set(between(without=[2])) <= set(one_way(rows, inside=False))
    renewed = [said["renew"] for said in fleet.rank_result if "renew" in said]
    assert renewed == ([] if fit else [[rank for rank in range(len(HOSTS)) if rank != 2]])


def swallowing(*dead: set[int]) -> Answer:
    """Paths on which nothing arrives: the first rank runs out of time, and the other hears nothing of it."""

    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        if {first, second} in dead:
            return {first: PairTiming(why="timed out", fit=False), second: PairTiming()}
        return healthy(kind, first, second)

    return answer


def test_a_path_that_swallows_everything_costs_its_ends_no_other_pair() -> None:
    fleet = Fleet(swallowing({1, 5}))
    found, rows, dropped = played(fleet)
    assert (dropped, found.excluded_ranks) == ([], ())
    assert {*between()} - {*one_way(rows, inside=False)} == {(1, 5), (5, 1)}
    assert [(each.where, each.ratio) for each in found.culprits] == [("a with c rail 1", 0.0)]
    assert fleet.rank_result[-1] == {"over": False}  # the first group cannot be closed in good order


def test_ranks_that_cannot_connect_anew_are_both_set_aside() -> None:
    found, rows, dropped = played(Fleet(swallowing({1, 5}), stuck=frozenset((1, 5))))
    assert dropped == []
    assert [(each.rank, each.gone, each.why) for each in found.excluded_ranks] == [
        (1, False, "timed out"), (5, False, "timed out")
    ]  # fmt: skip
    assert set(between(without=[1, 5])) <= set(one_way(rows, inside=False))


def test_a_rank_that_hangs_with_every_other_is_set_aside_after_the_second_and_no_other_is() -> None:
    fleet = Fleet(swallowing({1, 3}, {1, 5}, {1, 7}))
    found, rows, _ = played(fleet)
    assert [(each.rank, each.gone) for each in found.excluded_ranks] == [(1, False)]
    assert set(between(without=[1])) <= set(one_way(rows, inside=False))
    assert len({(lost.src, lost.dst) for lost in found.lost}) == 4


def test_the_ranks_connect_anew_a_bounded_number_of_times() -> None:
    fleet = Fleet(swallowing(*({rank, other} for rank in range(8) for other in range(rank))))
    found, rows, _ = played(fleet)
    assert rows == []
    assert len(found.excluded_ranks) == len(HOSTS)
    assert sum("renew" in said for said in fleet.rank_result) <= 8


def test_a_slow_pair_inside_a_node_is_named_and_the_network_is_not() -> None:
    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        return healthy(kind, first, second, 2e8 if (first, second) == (4, 5) else 1e9)

    found, rows, _ = played(Fleet(answer))
    (slow,) = found.intra_node
    assert (slow.where, slow.kind, slow.node, slow.ranks) == ("rank 4 with rank 5 inside c", "pair", "c", (4, 5))
    assert slow.ratio == pytest.approx(0.2)
    assert slow.tests == 3
    assert (found.kind, found.culprits, found.suspects) == ("none", (), ())
    assert sum(row.inside and (row.src, row.dst) == (4, 5) and not row.both for row in rows) == 3


def test_what_is_slow_inside_only_once_is_nobodys_fault() -> None:
    seen: list[str] = []

    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        slow = (first, second) == (4, 5) and kind not in seen
        seen.append(kind if slow else "")
        return healthy(kind, first, second, 2e8 if slow else 1e9)

    found, _, _ = played(Fleet(answer))
    assert found.intra_node == ()


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
    assert not found.complete
    assert found.tests > 0
    assert found.culprits == ()


@each_row(("transfers", "GBps"), [(1, 2.0), (4, 1.0 / 0.875)])
def test_of_a_reply_a_transfer_loses_its_share(transfers: int, GBps: float) -> None:
    """A reply takes half as long as what a transfer of one byte per nanosecond seems to."""

    def answer(kind: str, first: int, second: int) -> dict[int, PairTiming]:
        rows = healthy(kind, first, second)
        return {first: PairTiming((NBYTES / 2e9,)), second: PairTiming()} if kind == "latency" else rows

    _, rows, _ = played(Fleet(answer, transfers=transfers))
    assert [row.GBps for row in rows if not row.both] == pytest.approx([GBps] * sum(not row.both for row in rows))
