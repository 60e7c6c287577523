"""Find which failed pairs share a cause: a node, one of its directions, an isolated group, or only a path.

All pairs are ordered: ``("n0", "n3")`` is from n0 to n3. Not all pairs need have been tested.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

from ncclprobe.model.values import Struct


class _Named(Protocol):
    """A node's name or rank: ordered, so that results are."""

    def __lt__(self, other: Any, /) -> bool: ...

    def __hash__(self) -> int: ...


A = TypeVar("A", bound=_Named)
Kind = Literal["everything", "split", "node", "into", "out of", "pair", "direction"]

MOSTLY = 0.75
"""A node with this share of bad tests is to blame even if some passed: a fault may be intermittent."""

MOSTLY_PARTNERS = 4
"""For MOSTLY, bad with at least so many others; with fewer, all tests must be bad, with at least two others."""

NEARLY_ALL = 0.9
"""Share of bad tests that no single node explains, if fewer than half of the nodes reach one another."""

SLOW = 0.2
"""The share of the median of all pairs below which a pair is slow. A link that trained one kind lower, as far as a
single stream can show it (1 instead of 10 Gbit/s), is at 0.1; the slowest of healthy pairs was at 0.3 when 16 hosts
shared two busy processors.
"""

LEAST_BYTES, LEAST_S = 4 << 20, 10.0
LEAST_GBPS = LEAST_BYTES * 8 / LEAST_S / 1e9
"""Lowest usable rate of a path: a gradient bucket of torch (25 MB) takes a minute at that rate."""

LOSSY, LOSSY_SEGMENTS, LOSSY_RESENT = 0.01, 100, 5
"""Loss limits. TCP's rate falls with one over the root of the loss (Mathis et al. 1997), and one per cent ruins it.
Tail
probes (RFC 8985) to a peer that is slow to answer are not a loss: healthy pairs resent up to 2 of 200 segments.
"""

DISTANT, DISTANT_S = 10.0, 0.002
"""So many times the median round trip, and so much above it: another rack costs microseconds, another site more."""


class Suspect(Struct, Generic[A], frozen=True):
    """What explains the bad `pairs`, of `tests` that it could have made bad.

    everything: hardly any pair works. split: `nodes` work with each other and not with the rest, which is as large or
    larger. node: no test to or from it works. into, out of: one direction at one node, as with a firewall there. pair:
    both
    directions between two `nodes` are bad, and which of them is to blame is unknown. direction: from the first of two
    `nodes`
    to the second.
    """

    kind: Kind
    nodes: tuple[A, ...]
    pairs: tuple[tuple[A, A], ...]
    tests: int

    @property
    def at_one_node(self) -> bool:
        """Whether one node alone explains all of them."""
        return self.kind in ("node", "into", "out of")

    @property
    def one_way(self) -> bool:
        """Whether the other direction works."""
        return self.kind in ("into", "out of", "direction")


def blame(tested: Collection[tuple[A, A]], bad: Collection[tuple[A, A]]) -> tuple[Suspect[A], ...]:
    """Explain the `bad` ones of the `tested` pairs by the fewest suspects, those that explain most first.

    Partners of a node that is to blame are not suspected for what failed with it.
    """
    tests = frozenset(tested) | frozenset(bad)
    left = frozenset(bad)
    if not left:
        return ()
    if everything := _everything(tests, left):
        return (everything,)
    found: list[Suspect[A]] = []
    for suspects in (_isolated, _one_direction):
        while options := sorted(suspects(tests, left), key=_rank):
            found.append(options[0])
            left -= frozenset(options[0].pairs)
            tests -= _explained_tests(tests, options[0])
    return (*found, *_single(tests, left))


def _rank(suspect: Suspect[A]) -> tuple[int, bool, tuple[A, ...]]:
    return -len(suspect.pairs), suspect.kind == "out of", suspect.nodes


def _everything(tests: frozenset[tuple[A, A]], bad: frozenset[tuple[A, A]]) -> Suspect[A] | None:
    nodes = _nodes(tests)
    largest = max(map(len, _groups(nodes, tests - bad)))
    if len(nodes) > 2 and (tests == bad or (len(bad) >= NEARLY_ALL * len(tests) and 2 * largest < len(nodes))):
        return Suspect("everything", (), tuple(sorted(bad)), len(tests))
    return None


def _isolated(tests: frozenset[tuple[A, A]], bad: frozenset[tuple[A, A]]) -> Iterator[Suspect[A]]:
    """Yield nodes and groups that fail with every partner, tested with at least two of the largest group."""
    _, *others = sorted(_groups(_nodes(tests), tests - bad), key=lambda group: (-len(group), min(group))) or [set()]
    for group in others:
        across = {pair for pair in tests if (pair[0] in group) != (pair[1] in group)}
        if across and len(_nodes(across) - group) > 1:
            kind: Kind = "node" if len(group) == 1 else "split"
            yield Suspect(kind, tuple(sorted(group)), tuple(sorted(across & bad)), len(across))


def _one_direction(tests: frozenset[tuple[A, A]], bad: frozenset[tuple[A, A]]) -> Iterator[Suspect[A]]:
    """Yield nodes that fail in one direction."""
    ends: tuple[tuple[Kind, tuple[int, ...]], ...] = (("node", (0, 1)), ("into", (1,)), ("out of", (0,)))
    by_end: dict[tuple[A, int], set[tuple[A, A]]] = {}
    for pair in tests:
        by_end.setdefault((pair[0], 0), set()).add(pair)
        by_end.setdefault((pair[1], 1), set()).add(pair)
    for node in _nodes(bad):
        for kind, places in ends:
            mine = set().union(*(by_end.get((node, place), set()) for place in places))
            wrong = mine & bad
            partners = len(_nodes(wrong)) - 1
            mostly = partners >= MOSTLY_PARTNERS and len(wrong) >= MOSTLY * len(mine)
            if partners > 1 and (mostly or wrong == mine):
                yield Suspect(kind, (node,), tuple(sorted(wrong)), len(mine))


def _explained_tests(tests: frozenset[tuple[A, A]], suspect: Suspect[A]) -> frozenset[tuple[A, A]]:
    """Return the tests that give no more information once `suspect` is known."""
    nodes = set(suspect.nodes)
    if suspect.kind == "split":
        return frozenset(pair for pair in tests if (pair[0] in nodes) != (pair[1] in nodes))
    places = {"into": (1,), "out of": (0,)}.get(suspect.kind, (0, 1))
    return frozenset(pair for pair in tests if any(pair[place] in nodes for place in places))


def _single(tests: frozenset[tuple[A, A]], bad: frozenset[tuple[A, A]]) -> Iterator[Suspect[A]]:
    for a, b in sorted(bad):
        back = (b, a)
        if back not in bad:
            yield Suspect("direction", (a, b), ((a, b),), 1)
        elif a < b:
            yield Suspect("pair", (a, b), ((a, b), back), 2)


def _nodes(pairs: Iterable[tuple[A, A]]) -> set[A]:
    return {node for pair in pairs for node in pair}


def _groups(nodes: set[A], good: Iterable[tuple[A, A]]) -> list[set[A]]:
    """Return the groups of nodes that working pairs connect, in either direction."""
    groups = {node: {node} for node in nodes}
    for a, b in good:
        if groups[a] is not groups[b]:
            small, large = sorted((groups[a], groups[b]), key=len)
            large |= small
            groups.update(dict.fromkeys(small, large))
    return list({id(group): group for group in groups.values()}.values())


def lossy(resent: Mapping[tuple[A, A], tuple[int, int]]) -> set[tuple[A, A]]:
    """Return the pairs that retransmit too much, given (resent, segments), by LOSSY."""
    return {
        pair
        for pair, (resent_segments, segments) in resent.items()
        if segments >= LOSSY_SEGMENTS and resent_segments >= LOSSY_RESENT and resent_segments > LOSSY * segments
    }
