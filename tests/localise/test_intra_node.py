"""Inside nodes: who plays with whom, and what is named of what is slow there.

planted                              named
───────────────────────────────────  ──────────────────────────────────────────────
nothing                              nobody
one pair of one node, one way        that pair
all pairs of one rank                that rank
most pairs of a node                 that node
the same far-apart places everywhere nobody: their peers are as slow
a pair, on two nodes                 that pair, beside all pairs inside
two ranks on each of two nodes       nobody: too few to compare
"""

from collections.abc import Callable
from itertools import permutations

from ncclprobe.localise.pairs import intra_node
from ncclprobe.localise.pairs.samples import Rules
from tests.each_row import each_row

RULES = Rules()


def nodes(count: int, each: int) -> dict[str, list[int]]:
    return {f"n{number}": list(range(number * each, (number + 1) * each)) for number in range(count)}


def name_slow(on: dict[str, list[int]], rate: Callable[[int, int], float]) -> list[tuple[str, str, tuple[int, ...]]]:
    """What is named where each way has the same rate every time."""
    rates = {way: rate(*way) for ranks in on.values() for way in permutations(ranks, 2)}
    return [
        (each.kind, each.node, each.ranks)
        for each in intra_node.name_slow(intra_node.suspects(rates, on, RULES), rates, on)
    ]


@each_row(
    ("on", "rate", "found"),
    [
        (nodes(4, 4), lambda src, dst: 10.0, []),
        (nodes(4, 4), lambda src, dst: 3.0 if (src, dst) == (5, 6) else 10.0, [("pair", "n1", (5, 6))]),
        (nodes(4, 4), lambda src, dst: 3.0 if 6 in (src, dst) else 10.0, [("rank", "n1", (6,))]),
        (nodes(4, 4), lambda src, dst: 3.0 if dst == 6 else 10.0, [("rank", "n1", (6,))]),
        (nodes(4, 4), lambda src, dst: 3.0 if src in (4, 5, 6, 7) else 10.0, [("node", "n1", (4, 5, 6, 7))]),
        (nodes(4, 4), lambda src, dst: 3.0 if {src % 4, dst % 4} == {0, 3} else 10.0, []),
        (nodes(2, 4), lambda src, dst: 3.0 if {src, dst} == {1, 2} else 10.0, [("pair", "n0", (1, 2))]),
        (nodes(3, 2), lambda src, dst: 3.0 if {src, dst} == {2, 3} else 10.0, [("pair", "n1", (2, 3))]),
        ({"n0": [0, 1]}, lambda src, dst: 3.0 if src else 10.0, []),
        # Two of a rank's seven ways out are its pairs' fault, and five of seven its own.
        (
            nodes(3, 8),
            lambda src, dst: 3.0 if (src, dst) in ((8, 9), (8, 10)) else 10.0,
            [("pair", "n1", (8, 9)), ("pair", "n1", (8, 10))],
        ),
        (nodes(3, 8), lambda src, dst: 3.0 if src == 8 and dst < 14 else 10.0, [("rank", "n1", (8,))]),
        # The worst comes first.
        (
            nodes(4, 4),
            lambda src, dst: {(5, 6): 5.0, (8, 9): 2.0}.get((src, dst), 10.0),
            [("pair", "n2", (8, 9)), ("pair", "n1", (5, 6))],
        ),
    ],
)
def test_what_is_slow_inside_a_node_is_named_in_the_fewest_words(
    on: dict[str, list[int]], rate: Callable[[int, int], float], found: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    assert name_slow(on, rate) == found


def test_every_node_plays_its_own_round_robin_at_the_same_time() -> None:
    on = {**nodes(3, 4), "odd": [12, 13, 14], "lone": [15]}
    rounds = intra_node.plan(on)
    assert len(rounds) == 3
    for matches in rounds:
        busy = [rank for match in matches for rank in (match.first, match.second)]
        assert len(set(busy)) == len(busy)
    played = sorted((match.first, match.second) for matches in rounds for match in matches)
    assert played == sorted(pair for ranks in on.values() for pair in permutations(ranks, 2) if pair[0] < pair[1])


def test_a_suspect_is_measured_again_with_its_whole_round() -> None:
    rounds = intra_node.plan(nodes(3, 4))
    assert intra_node.retest_rounds(rounds, [(1, 0)]) == tuple(
        r for r in rounds if any((m.first, m.second) == (0, 1) for m in r)
    )
    assert intra_node.retest_rounds(rounds, []) == ()
