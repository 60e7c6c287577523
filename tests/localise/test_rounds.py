"""The tournament as data."""

from itertools import chain, combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.localise.pairs import intra_node, suspects
from ncclprobe.localise.pairs.rounds import ALL_PAIRS, SOME_ROUNDS, Nic, place_ranks, round_robin
from ncclprobe.localise.pairs.samples import End
from tests.each_row import each_row

players = st.integers(2, 80)


@given(players, st.integers(1, 100) | st.none())
def test_nobody_plays_twice_in_a_round_and_one_at_most_sits_out(count: int, rounds: int | None) -> None:
    for matches in round_robin(count, rounds):
        playing = [player for match in matches for player in (match.first, match.second)]
        assert len(set(playing)) == len(playing) == count - count % 2
        assert set(playing) <= set(range(count))


@given(st.integers(2, ALL_PAIRS))
def test_every_pair_meets_exactly_once(count: int) -> None:
    met = [(match.first, match.second) for match in chain(*round_robin(count))]
    assert sorted(met) == list(combinations(range(count), 2))


@given(st.integers(ALL_PAIRS + 1, 300), st.integers(1, 20))
def test_a_chosen_number_of_rounds_repeats_no_pair(count: int, rounds: int) -> None:
    chosen = round_robin(count, rounds)
    assert len(chosen) == rounds
    met = list(chain(*chosen))
    assert len(set(met)) == len(met)


def test_beyond_all_pairs_each_gets_some_partners_and_more_rounds_than_there_are_give_all() -> None:
    assert len(round_robin(1024)) == SOME_ROUNDS
    partners = {match.second for match in chain(*round_robin(1024)) if match.first == 0}
    assert len(partners) == SOME_ROUNDS
    assert round_robin(6, 1000) == round_robin(6)


@each_row(("count", "rounds"), [(1, None), (0, None), (8, 0), (8, -1)])
def test_what_has_no_pairs_is_refused(count: int, rounds: int | None) -> None:
    with pytest.raises(ValueError, match="no pairs"):
        round_robin(count, rounds)


def test_rails_meet_their_like_in_the_same_round_and_one_that_only_one_node_has_sits_out() -> None:
    one = (End("a", 1), End("b", 1))
    assert [*suspects.round_robin({"a": [0, 1], "b": [0, 1]})] == [((End("a", 0), End("b", 0)), one)]
    assert [*suspects.round_robin({"a": [0, 1], "b": [1, 5]})] == [(one,)]


@given(st.integers(2, 20), st.integers(1, 8))
def test_an_end_is_in_one_pair_of_a_round_with_its_own_rail(nodes: int, rails: int) -> None:
    for pairs in suspects.round_robin({f"n{node}": range(rails) for node in range(nodes)}):
        playing = [end for pair in pairs for end in pair]
        assert len(set(playing)) == len(playing)
        assert all(one.rail == other.rail for one, other in pairs)


def test_inside_nodes_each_plays_its_own_rounds_at_once_and_a_suspect_is_measured_again_with_its_whole_round() -> None:
    on = {**{f"n{node}": [*range(node * 4, node * 4 + 4)] for node in range(3)}, "odd": [12, 13, 14], "lone": [15]}
    rounds = intra_node.plan(on)
    assert len(rounds) == 3
    for matches in rounds:
        busy = [rank for match in matches for rank in (match.first, match.second)]
        assert len(set(busy)) == len(busy)
    played = sorted((match.first, match.second) for matches in rounds for match in matches)
    assert played == sorted(pair for ranks in on.values() for pair in permutations(ranks, 2) if pair[0] < pair[1])
    again = tuple(each for each in rounds if any((match.first, match.second) == (0, 1) for match in each))
    assert intra_node.retest_rounds(rounds, [(1, 0)]) == again
    assert intra_node.retest_rounds(rounds, []) == ()


TWO = ["a", "a", "b", "b"]


def nic(index: int, stem: str = "mlx5_") -> Nic:
    return Nic(f"{stem}{index}", index)


def test_a_rail_is_the_number_of_the_nic_where_each_rank_has_its_own() -> None:
    placement = place_ranks(TWO, [nic(1), nic(0), nic(0), nic(1)])
    assert placement.ends == (End("a", 1), End("a", 0), End("b", 0), End("b", 1))
    assert [placement.names[end] for end in placement.ends] == [
        "a rail 1 (mlx5_1)", "a (mlx5_0)", "b (mlx5_0)", "b rail 1 (mlx5_1)"
    ]  # fmt: skip
    assert placement.rails == {"a": [1, 0], "b": [0, 1]}
    assert not placement.note


def test_ranks_that_share_a_nic_or_could_never_meet_are_told_apart_by_place_and_named_without_an_unknown_nic() -> None:
    shared, apart = place_ranks(TWO, [nic(0, "eth")] * 4), place_ranks(TWO, [nic(0), nic(1), nic(2), nic(3)])
    assert shared.ends == apart.ends == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))
    assert (shared.names[End("b", 1)], "share NICs" in shared.note) == ("b rail 1 (eth0)", True)
    names = place_ranks(TWO, [nic(0), None, nic(0), nic(1)]).names
    assert (names[End("a", 1)], names[End("b", 1)]) == ("a rail 1", "b rail 1 (mlx5_1)")


def test_on_a_single_node_every_rank_plays_for_itself() -> None:
    placement = place_ranks(["h", "h"], [nic(0), nic(1)])
    assert placement.ends == (End("rank 0"), End("rank 1"))
    assert placement.single
    assert placement.names[End("rank 1")] == "rank 1"
    assert placement.nodes == {"h": [0, 1]}
