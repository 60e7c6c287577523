"""Plan the round-robin as data: which ranks are paired in which round, decided before any rank connects.

Each rank is in at most one pair of a round, so that no measurement disturbs another at its ends. The schedule is the
circle method of round-robin tournaments (one player stays, the others turn): n - 1 rounds for even n, n rounds with a
bye each for odd n, every pair exactly once.
"""

from collections.abc import Mapping, Sequence

from ncclprobe.model.values import Struct

ALL_PAIRS = 64
"""Up to so many ranks or nodes every pair is measured; beyond, SOME_ROUNDS of the rounds unless more are asked for."""
SOME_ROUNDS = 6
"""Six partners each: with two bad ones among them a good node still is as fast as usual with most."""
AT_ONCE = 16
"""Pairs of nodes that send at the same time, unless full bisection is asked for: a doctor does not load a fabric."""

Round = tuple["Match", ...]


class Match(Struct, frozen=True, order=True):
    """One pair: its ranks, or the numbers of its nodes."""

    first: int
    second: int


def round_robin(count: int, rounds: int | None = None) -> tuple[Round, ...]:
    """Return `rounds` rounds of 0 … `count` - 1: by default all rounds up to ALL_PAIRS players, else SOME_ROUNDS.

    More rounds than there are gives all. Those chosen lie evenly over the whole schedule, so that partners are not all
    neighbours. Raises ValueError for fewer than two players or one round.
    """
    if count < 2 or (rounds is not None and rounds < 1):
        raise ValueError(f"a tournament of {count} players and {rounds} rounds has no pairs")
    there_are = count - 1 + count % 2
    wanted = rounds or (there_are if count <= ALL_PAIRS else SOME_ROUNDS)
    wanted = min(wanted, there_are)
    return tuple(_circle(count, number * there_are // wanted) for number in range(wanted))


def _circle(count: int, turn: int) -> Round:
    """Return the pairs after `turn` turns: the last position stays and the others are paired across the circle."""
    positions = count + count % 2  # the empty seat of an odd number is a bye
    turning = positions - 1
    pairs = [(turn, positions - 1)] + [((turn + k) % turning, (turn - k) % turning) for k in range(1, positions // 2)]
    return tuple(sorted(Match(min(pair), max(pair)) for pair in pairs if max(pair) < count))


def by_rail(nodes: Sequence[Mapping[int, int]], rounds: int | None = None) -> tuple[Round, ...]:
    """Return the round-robin of nodes, run by their ranks: rail i with rail i, all rails of two nodes in one round.

    `nodes` gives for each node the rank of each of its rails. A rail that only one of two nodes has sits out.
    """
    return tuple(
        tuple(
            Match(nodes[match.first][rail], nodes[match.second][rail])
            for match in matches
            for rail in sorted(nodes[match.first].keys() & nodes[match.second].keys())
        )
        for matches in round_robin(len(nodes), rounds)
    )
