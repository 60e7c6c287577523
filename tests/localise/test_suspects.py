"""From samples to a culprit: what is planted is named, who is healthy is not, who is lost does not stop the others."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations

import pytest
from fleets.fabric import Fabric
from fleets.faults import Fault, plant
from fleets.fleet import NOISES, Fleet

from ncclprobe.facts.run.samples import MeasuredPairs
from ncclprobe.localise.pairs.causes import Cause
from ncclprobe.localise.pairs.rounds import PairRound, Participants, plan_retests
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.localise.pairs.suspects import LOST_PARTNERS, Localisation, localise_slowness, verdict
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.pair_results import Aside, LostTransfer, PairRow, RankNics
from tests.each_row import each_row, some

Rate = Callable[[End, End], float]


def measured(rate: Rate) -> Callable[[PairRound, int], Iterator[Result]]:
    """A fleet that gives what `rate` says, and loses what gets 0."""

    def measure(meetings: PairRound, step: int) -> Iterator[Result]:
        for one, other in meetings:
            for src, dst in ((one, other), (other, one)):
                got = rate(src, dst)
                yield Sample(src, dst, got, step=step) if got else Lost(src, dst, step=step)

    return measure


def search(nodes: Sequence[str], rate: Rate, **how: bool | float | None) -> Localisation:
    return localise_slowness(dict.fromkeys(nodes, (0,)), measured(rate), **how)  # type: ignore[arg-type]


def causes(found: Localisation) -> list[str]:
    return [str(suspect.cause) for suspect in found.confirmed]


def simulated(
    fabric: Fabric, faults: Sequence[Fault], noise: str = "usual", seed: int = 1, at_once: int = 16
) -> Localisation:
    fleet = Fleet(fabric, NOISES[noise], faults, seed, at_once)
    return localise_slowness(fleet.rails, fleet.measure)


@each_row(
    ("slow", "named"),
    [
        (lambda s, d: "c" in (s.node, d.node), ["c"]),
        (lambda s, d: s.node == "c", ["out of c"]),
        (lambda s, d: d.node == "c", ["into c"]),
        (lambda s, d: {s.node, d.node} == {"b", "e"}, ["b with e"]),
        (lambda s, d: (s.node, d.node) == ("e", "b"), ["out of e with b"]),
        (lambda s, d: {"a", "f"} & {s.node, d.node}, ["a", "f"]),
        (lambda s, d: False, []),
    ],
)
def test_what_is_slow_is_named_by_its_kind(slow: Callable[[End, End], bool], named: list[str]) -> None:
    found = search("abcdefgh", lambda s, d: 20.0 if slow(s, d) else 40.0)
    assert sorted(causes(found)) == named
    assert all(suspect.ratio == pytest.approx(0.5) for suspect in found.confirmed)
    assert all(suspect.confidence >= 0.99 and suspect.retests for suspect in found.confirmed)
    assert all(suspect.confidence <= 0.5 for suspect in found.suspects)


def test_one_rail_of_a_node_is_not_the_node() -> None:
    ends = {node: range(4) for node in "abcdef"}
    bad = End("b", 2)
    found = localise_slowness(ends, measured(lambda s, d: 20.0 if bad in (s, d) else 40.0))
    assert causes(found) == ["b rail 2"]
    assert found.confirmed[0].cause == Cause("rail", ("b",), 2)


@each_row("nodes", ["abc", "abcdef"])
def test_one_rail_of_all_nodes_is_its_switch_and_nobodys_node(nodes: str) -> None:
    ends = {node: range(4) for node in nodes}
    found = localise_slowness(ends, measured(lambda s, d: 20.0 if s.rail == 1 else 40.0))
    assert (causes(found), dict(found.slow_rails)) == ([], {1: pytest.approx(0.5)})
    bad = End("b", 1)
    found = localise_slowness(ends, measured(lambda s, d: (0.5 if s.rail == 1 else 1) * (20 if bad in (s, d) else 40)))
    assert (causes(found), dict(found.slow_rails)) == (["b rail 1"], {1: pytest.approx(0.5)})


def test_two_bad_nics_on_one_rail_are_not_the_rail() -> None:
    bad = {End("a", 1), End("b", 1)}
    found = localise_slowness({n: range(4) for n in "abcd"}, measured(lambda s, d: 20.0 if bad & {s, d} else 40.0))
    assert dict(found.slow_rails) == {}


def test_between_two_nodes_a_slow_rail_is_their_path() -> None:
    found = localise_slowness({n: range(4) for n in "ab"}, measured(lambda s, d: 20.0 if s.rail == 1 else 40.0))
    assert (causes(found), dict(found.slow_rails)) == (["a with b rail 1"], {})


@each_row(("group", "rest"), [("abcd", "efghijkl"), ("abc", "defghij")])
def test_nodes_that_are_slow_with_the_others_only_are_blamed_for_what_lies_between(group: str, rest: str) -> None:
    found = search(group + rest, lambda s, d: 20.0 if (s.node in group) != (d.node in group) else 40.0)
    assert causes(found) == [f"{group[0]},{','.join(group[1:])} with the others"]
    assert found.kind == "pair"
    assert found.confirmed[0].ratio == pytest.approx(0.5)


def test_what_lies_between_may_cost_a_tenth_by_design() -> None:
    found = search("abcdefghijkl", lambda s, d: 36.0 if (s.node in "abcd") != (d.node in "abcd") else 40.0)
    assert found.confirmed == ()


def test_a_sick_node_beside_such_a_group_is_named_by_itself() -> None:
    def rate(src: End, dst: End) -> float:
        between = (src.node in "abcd") != (dst.node in "abcd")
        return 40.0 * (0.5 if between else 1) * (0.5 if "h" in (src.node, dst.node) else 1)

    assert causes(search("abcdefghijkl", rate)) == ["a,b,c,d with the others", "h"]


def test_nodes_that_are_slow_with_each_other_too_are_no_group() -> None:
    found = search("abcdefghijkl", lambda s, d: 20.0 if {s.node, d.node} & {*"abc"} else 40.0)
    assert sorted(causes(found)) == ["a", "b", "c"]


def test_everything_is_slow_only_beside_what_was_expected() -> None:
    assert search("abcd", lambda s, d: 20.0).kind == "none"
    assert search("abcd", lambda s, d: 20.0, expected_GBps=40.0).kind == "everything"
    assert search("abcd", lambda s, d: 41.0, expected_GBps=40.0).kind == "none"
    assert search("abcd", lambda s, d: 20.0, expected_GBps=0.0).kind == "none"  # an expectation that judges nothing


def test_nobody_is_blamed_for_the_tournament_alone() -> None:
    rates = [
        Sample(End(s), End(d), 20.0 if "c" in (s, d) else 40.0)
        for a, b in combinations("abcdef", 2)
        for s, d in ((a, b), (b, a))
    ]
    found = verdict(rates)
    assert found.confirmed == ()
    assert [str(suspect.cause) for suspect in found.suspects] == ["c"]


def test_what_is_fast_when_measured_again_is_cleared() -> None:
    first = iter([True] * 14)

    def rate(src: End, dst: End) -> float:
        return 20.0 if "c" in (src.node, dst.node) and next(first, False) else 40.0

    found = search("abcdefgh", rate)
    assert found.confirmed == ()
    assert [str(cause) for cause in found.cleared] == ["c"]


def test_two_nodes_have_nobody_to_compare_with() -> None:
    assert search("ab", lambda s, d: 20.0 if s.node == "a" else 40.0).confirmed == ()
    assert search("ab", lambda s, d: 20.0).kind == "none"


def test_of_three_nodes_the_one_that_both_others_miss_is_named() -> None:
    assert causes(search("abc", lambda s, d: 20.0 if "b" in (s.node, d.node) else 40.0)) == ["b"]


def test_one_sample_blames_nobody() -> None:
    assert verdict([Sample(End("a"), End("b"), 1.0)]).kind == "none"
    assert verdict([]).tests == 0


def test_missing_samples_are_no_evidence() -> None:
    rates = [Sample(End(s), End(d), 40.0) for s, d in ("ab", "cd", "ef", "ac", "be", "df") if s != d]
    assert verdict(rates).suspects == ()


def test_a_dead_pair_takes_neither_of_its_ends_out() -> None:
    dead = {"b", "e"}
    met = []

    def rate(src: End, dst: End) -> float:
        met.append((src.node, dst.node))
        return 0.0 if {src.node, dst.node} == dead else 36.0 if "c" in (src.node, dst.node) else 40.0

    found = search("abcdefgh", rate)
    assert {(lost.src.node, lost.dst.node) for lost in found.lost} == {("b", "e"), ("e", "b")}
    assert {frozenset(pair) for pair in met} == {frozenset(pair) for pair in combinations("abcdefgh", 2)}
    assert sorted(causes(found)) == ["b with e", "c"]


def test_a_dead_node_is_measured_no_more_after_its_second_partner_and_costs_no_other() -> None:
    met = []

    def rate(src: End, dst: End) -> float:
        met.append((src.node, dst.node))
        return 0.0 if "e" in (src.node, dst.node) else 40.0

    found = search("abcdefgh", rate)
    assert len({frozenset(pair) for pair in met if "e" in pair}) == LOST_PARTNERS
    others = {frozenset(pair) for pair in met if "e" not in pair}
    assert others == {frozenset(pair) for pair in combinations("abcdfgh", 2)}
    assert causes(found) == ["e"]


@each_row(
    ("dead", "named"),
    [(lambda s, d: "b" in (s.node, d.node), "b"), (lambda s, d: {s.node, d.node} == {"b", "e"}, "b with e")],
)
def test_a_dead_node_and_a_dead_pair_are_told_apart(dead: Callable[[End, End], bool], named: str) -> None:
    found = search("abcdefgh", lambda s, d: 0.0 if dead(s, d) else 40.0)
    assert causes(found) == [named]
    assert found.confirmed[0].ratio == 0


def test_a_retest_beside_a_slow_partner_counts_for_nothing() -> None:
    pairs = [(s, d) for a, b in combinations("abcdefgh", 2) for s, d in ((a, b), (b, a))]
    first = [Sample(End(s), End(d), 20.0 if "a" in (s, d) else 40.0) for s, d in pairs]
    slow = [Sample(End(s), End(d), 20.0, step=1) for s, d in (*(("a", "b"), ("b", "a")), ("b", "c"), ("c", "b"))]
    assert verdict([*first, *slow]).confirmed == ()
    fine = [Sample(End(s), End(d), 40.0, step=1) for s, d in (("b", "c"), ("c", "b"))]
    assert causes(verdict([*first, *slow[:2], *fine])) == ["a"]


def test_retests_plan_two_partners_and_their_control() -> None:
    participants = Participants(dict.fromkeys("abcdef", (0,)))
    rounds = plan_retests([Cause("node", ("c",))], participants, 1)
    met = [{one.node, other.node} for meetings in rounds for one, other in meetings]
    partners = {node for pair in met if "c" in pair for node in pair} - {"c"}
    assert len(partners) == 2
    assert sorted(map(sorted, met)) == sorted([*(sorted({"c", partner}) for partner in partners), sorted(partners)])
    assert plan_retests([Cause("node", ("c",))], participants, 2) != rounds


def test_retests_of_a_pair_exchange_each_of_its_ends() -> None:
    participants = Participants(dict.fromkeys("abcdef", (0,)))
    met = [
        {a.node, b.node} for meetings in plan_retests([Cause("pair", ("a", "b"))], participants, 1) for a, b in meetings
    ]
    [third] = {node for pair in met for node in pair} - {"a", "b"}
    assert met == [{"a", "b"}, {"a", third}, {third, "b"}]


def test_no_node_has_two_partners_in_a_round_of_retests() -> None:
    suspects = [Cause("node", (f"n{number}",)) for number in range(5)] + [Cause("pair", ("n7", "n9"))]
    participants = Participants({f"n{number}": range(2) for number in range(20)})
    for meetings in some(plan_retests(suspects, participants, 1)):
        pairs = {(one.node, other.node) for one, other in meetings}
        nodes = [node for pair in pairs for node in pair]
        assert len(set(nodes)) == len(nodes)


def test_a_suspect_that_no_longer_answers_is_not_planned_for() -> None:
    participants = Participants(dict.fromkeys("abde", (0,)))
    assert plan_retests([Cause("node", ("c",)), Cause("pair", ("a", "c"))], participants, 1) == ()


@each_row("noise", NOISES)
@each_row("nodes", [8, 32, 96])
def test_a_healthy_fleet_blames_nobody(nodes: int, noise: str) -> None:
    for seed in range(3):
        found = simulated(Fabric(nodes, per_leaf=8), (), noise, seed)
        assert found.confirmed == ()
        assert found.kind == "none"


@each_row("noise", NOISES)
@each_row("kind", ["node", "nic", "direction", "pair"])
def test_a_planted_fault_is_named(kind: str, noise: str) -> None:
    fabric = Fabric(16, per_leaf=4, rails=2)
    faults = plant(kind, 1, 0.5, fabric, random.Random(7))
    found = simulated(fabric, faults, noise)
    assert [faults[0].named_by(suspect.cause, fabric) for suspect in found.confirmed] == [True]


def test_planted_uplinks_are_named_by_the_nodes_below_them() -> None:
    fabric = Fabric(32, per_leaf=8)
    faults = plant("uplink", 1, 0.4, fabric, random.Random(3))
    found = simulated(fabric, faults, at_once=32)
    assert [faults[0].named_by(suspect.cause, fabric) for suspect in found.confirmed] == [True]


def test_an_oversubscribed_fabric_is_nobodys_fault() -> None:
    assert simulated(Fabric(32, per_leaf=8, oversubscription=4.0), (), at_once=32).confirmed == ()


def test_the_same_seed_gives_the_same_answer() -> None:
    fabric = Fabric(12, per_leaf=4, ecmp=True)
    faults = plant("node", 2, 0.5, fabric, random.Random(5))
    assert simulated(fabric, faults, "bimodal", 9) == simulated(fabric, faults, "bimodal", 9)


def test_where_nothing_but_lost_pairs_is_known_they_are_named_and_nobody_blamed() -> None:
    found = verdict([Lost(End("a"), End("b"), "reset")])
    assert found.confirmed == ()
    assert [lost.why for lost in found.lost] == ["reset"]


def test_the_two_ends_of_one_lost_pair_are_no_two_partners() -> None:
    """Both ways of it are lost, and nobody measured it again."""
    found = verdict([Lost(End("a"), End("b"), "timed out", 0), Lost(End("b"), End("a"), "timed out", 0)])
    assert found.confirmed == ()
    assert [str(each.cause) for each in found.suspects] == ["a with b"]


def of_ranks(ranks: int, lost: Sequence[tuple[int, int]], gone: Sequence[int]) -> MeasuredPairs:
    """Ranks of one node whose pairs are well, but for the `lost`."""
    rows = [
        PairRow(src=src, dst=dst, src_end=f"rank {src}", dst_end=f"rank {dst}", nbytes=4, latency_nbytes=8,
                latency_us=1.5, GBps=20.0, time_us=1.0, min_us=0.5, max_us=2.0, samples_us=(1.0,))
        for src, dst in permutations(range(ranks), 2)
        if (src, dst) not in lost
    ]  # fmt: skip
    transfers = tuple(LostTransfer(src, dst, "timed out", 0, False) for src, dst in lost)
    asides = tuple(Aside(rank, f"rank {rank}", "it did not answer", True) for rank in gone)
    return MeasuredPairs(RankNics(("h",) * ranks, (None,) * ranks), tuple(rows), transfers, asides, True)


@each_row("ranks", [2, 4])
def test_a_rank_that_stands_still_says_nothing_of_its_links(ranks: int) -> None:
    lost = [pair for pair in permutations(range(ranks), 2) if ranks - 1 in pair]
    found = localise(of_ranks(ranks, lost, gone=[ranks - 1]))
    assert (found.culprits, found.suspects) == ((), ())
    assert {(each.src, each.dst) for each in found.lost} == {(f"rank {src}", f"rank {dst}") for src, dst in lost}


def test_an_end_that_answers_and_reaches_nobody_is_still_named() -> None:
    found = localise(of_ranks(4, [(3, 0), (0, 3), (3, 1), (1, 3)], gone=[]))
    assert [each.where for each in found.culprits] == ["rank 3"]
