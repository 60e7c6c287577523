"""The tournament as data."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.localise.pairs.rounds import (
    ALL_PAIRS,
    AT_ONCE,
    SOME_ROUNDS,
    Match,
    by_rail,
    round_robin,
    transfers,
    waves,
    without,
)

players = st.integers(2, 80)


def test_four_players_need_three_rounds() -> None:
    assert round_robin(4) == (
        (Match(0, 3), Match(1, 2)),
        (Match(0, 2), Match(1, 3)),
        (Match(0, 1), Match(2, 3)),
    )


def test_of_three_players_one_sits_out_in_each_round() -> None:
    assert round_robin(3) == ((Match(1, 2),), (Match(0, 2),), (Match(0, 1),))


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


def test_beyond_all_pairs_each_gets_some_partners() -> None:
    assert len(round_robin(1024)) == SOME_ROUNDS
    partners = {match.second for match in chain(*round_robin(1024)) if match.first == 0}
    assert len(partners) == SOME_ROUNDS


def test_more_rounds_than_there_are_give_all() -> None:
    assert round_robin(6, 1000) == round_robin(6)


@pytest.mark.parametrize(("count", "rounds"), [(1, None), (0, None), (8, 0), (8, -1)])
def test_what_has_no_pairs_is_refused(count: int, rounds: int | None) -> None:
    with pytest.raises(ValueError, match="no pairs"):
        round_robin(count, rounds)


def test_rails_meet_their_like_in_the_same_round() -> None:
    [only] = by_rail([{0: 0, 1: 1}, {0: 2, 1: 3}])
    assert only == (Match(0, 2), Match(1, 3))


def test_a_rail_that_only_one_node_has_sits_out() -> None:
    [only] = by_rail([{0: 0, 1: 1}, {1: 2, 5: 3}])
    assert only == (Match(1, 2),)


@given(st.integers(2, 20), st.integers(1, 8))
def test_a_rank_is_in_one_pair_of_a_round_on_every_rail(nodes: int, rails: int) -> None:
    ranks = [{rail: node * rails + rail for rail in range(rails)} for node in range(nodes)]
    for matches in by_rail(ranks):
        playing = [rank for match in matches for rank in (match.first, match.second)]
        assert len(set(playing)) == len(playing)
        assert all(match.first % rails == match.second % rails for match in matches)


def test_both_directions_are_sent_apart_and_together() -> None:
    ways = list(transfers((Match(0, 1), Match(2, 3))))
    assert [[(t.src, t.dst, t.both) for t in way] for way in ways] == [
        [(0, 1, False), (2, 3, False)],
        [(1, 0, False), (3, 2, False)],
        [(0, 1, True), (2, 3, True), (1, 0, True), (3, 2, True)],
    ]
    assert len(list(transfers((Match(0, 1),), bidirectional=False))) == 2


@given(st.integers(2, 200), st.integers(1, 64))
def test_waves_hold_the_round_in_order(count: int, at_once: int) -> None:
    matches = round_robin(count, 1)[0]
    pieces = list(waves(matches, at_once))
    assert tuple(chain(*pieces)) == matches
    assert all(0 < len(piece) <= at_once for piece in pieces)


def test_no_more_than_sixteen_pairs_send_at_once_by_default() -> None:
    assert max(map(len, waves(round_robin(1024)[0]))) == AT_ONCE


def test_waves_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="measure nothing"):
        list(waves((Match(0, 1),), 0))


@given(players, st.sets(st.integers(0, 79)))
def test_those_set_aside_play_no_more_and_the_others_go_on(count: int, aside: set[int]) -> None:
    planned = round_robin(count)
    left = list(chain(*without(planned, aside)))
    assert left == [match for match in chain(*planned) if not {match.first, match.second} & aside]
    assert all(without(planned, aside))
