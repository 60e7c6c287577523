"""The whole search in its order: tournament, suspects, retests until each is decided or the steps are used up."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ncclprobe.localise.pairs import retests, rounds
from ncclprobe.localise.pairs.retests import Cast, Meetings
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules
from ncclprobe.localise.pairs.suspects import Localisation, opened, verdict

Aside = Callable[[Sequence[Result]], frozenset[End]]
"""Who plays no more after these results."""
Measure = Callable[[Meetings, int], Iterable[Result]]
"""Measures the pairs of one round at once, in each direction, for so many steps of retests (0: the tournament)."""


def inquire(
    rails: Mapping[str, Sequence[int]],
    measure: Measure,
    layout: Layout | None = None,
    rules: Rules | None = None,
    *,
    count: int | None = None,
    revive: bool = False,
    expected_GBps: float | None = None,
    aside: Aside | None = None,
) -> Localisation:
    """Measure all pairs of nodes, or `count` rounds of them, and find out who is slow.

    `rails` names the rails of each node. A lost pair ends nothing: its ends are set aside, the others go on; with
    `revive` they may be measured again in retests (by whoever can start them anew), else they are only named.
    `aside` says who plays no more, for whoever knows better than that both ends of a lost pair do not.
    Raises ValueError for fewer than two nodes.
    """
    layout, rules = layout or Layout(), rules or Rules()
    out = aside or set_aside
    results: list[Result] = []
    for meetings in tournament(rails, count):
        playing = tuple(pair for pair in meetings if out(results).isdisjoint(pair))
        results += measure(playing, 0) if playing else ()
    case = opened(results, layout, rules)
    found = verdict(results, layout, rules, expected_GBps, case)
    for step in range(1, rules.steps + 1):
        cast = Cast(_left(rails, frozenset() if revive else out(results)), layout)
        suspects = [suspect.cause for suspect in found.suspects[: rules.most_suspects]]
        for meetings in retests.plan(suspects, cast, step):
            playing = meetings if revive else tuple(pair for pair in meetings if out(results).isdisjoint(pair))
            results += measure(playing, step) if playing else ()
        if len(results) == found.tests:
            break
        found = verdict(results, layout, rules, expected_GBps, case)
    return found


def tournament(rails: Mapping[str, Sequence[int]], count: int | None = None) -> Iterable[Meetings]:
    """The rounds of all nodes, in the order they are given: equal rails meet, all rails of two nodes at once."""
    names = list(rails)
    ends = [End(node, rail) for node in names for rail in rails[node]]
    rank = {end: number for number, end in enumerate(ends)}
    nodes = [{rail: rank[End(node, rail)] for rail in rails[node]} for node in names]
    for matches in rounds.by_rail(nodes, count):
        yield tuple((ends[match.first], ends[match.second]) for match in matches)


def set_aside(results: Iterable[Result]) -> frozenset[End]:
    """The ends of pairs that were lost."""
    return frozenset(end for lost in results if isinstance(lost, Lost) for end in (lost.src, lost.dst))


def _left(rails: Mapping[str, Sequence[int]], aside: frozenset[End]) -> dict[str, list[int]]:
    """The rails of each node that still play; a node without any is left out."""
    left = {node: [rail for rail in each if End(node, rail) not in aside] for node, each in rails.items()}
    return {node: each for node, each in left.items() if each}
