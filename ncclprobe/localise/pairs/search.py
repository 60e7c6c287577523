"""Run the whole search in its order: round-robin, suspects, retests until each is decided or the steps are used up."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ncclprobe.localise.pairs import leaves, rounds
from ncclprobe.localise.pairs.rounds import PairRound, Participants
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules
from ncclprobe.localise.pairs.suspects import Localisation, open_case, verdict

LOST_PARTNERS = 2
"""An end that lost its pairs with so many partners is measured no more: each costs a deadline."""
Excluded = Callable[[Sequence[Result]], frozenset[End]]
"""The ends that are no longer measured after these results."""
Measure = Callable[[PairRound, int], Iterable[Result]]
"""Measures the pairs of one round at once, in each direction, for so many steps of retests (0: the round-robin)."""


def localise_slowness(
    rails: Mapping[str, Sequence[int]],
    measure: Measure,
    layout: Layout | None = None,
    rules: Rules | None = None,
    *,
    count: int | None = None,
    expected_GBps: float | None = None,
    excluded: Excluded | None = None,
) -> Localisation:
    """Measure all pairs of nodes, or `count` rounds of them, and find out which part is slow.

    `rails` names the rails of each node. A lost pair ends nothing: its two ends go on with others and are measured
    again like any suspect, until an end was lost with a second partner. `excluded` returns the ends no longer measured,
    for a caller that knows better. Raises ValueError for fewer than two nodes.
    """
    layout, rules = layout or Layout(), rules or Rules()
    exclude = excluded or lost_with_several
    results: list[Result] = []

    def play(planned: Iterable[PairRound], step: int) -> None:
        for pairs in planned:
            gone = exclude(results)
            remaining = tuple(pair for pair in pairs if gone.isdisjoint(pair))
            results.extend(measure(remaining, step) if remaining else ())

    play(round_robin(rails, count), 0)
    case = open_case(results, layout, rules)
    if equal := leaves.equally_slow_nodes(case.effects, rules) if not case.layout.leaf else ():
        participants = Participants(rails, layout)
        play(participants.rounds(leaves.meetings(equal, results)), 0)
        case = open_case(results, layout, rules)
    found = verdict(results, layout, rules, expected_GBps, case)
    for step in range(1, rules.steps + 1):
        participants = Participants(_remaining(rails, exclude(results)), case.layout)
        suspects = [suspect.cause for suspect in found.suspects[: rules.most_suspects]]
        play(rounds.plan_retests(suspects, participants, step), step)
        if len(results) == found.tests:
            break
        found = verdict(results, layout, rules, expected_GBps, case)
    return found


def round_robin(rails: Mapping[str, Sequence[int]], count: int | None = None) -> tuple[PairRound, ...]:
    """Return the rounds of all nodes, in the order given: equal rails are paired, all rails of two nodes at once."""
    names = list(rails)
    matches = rounds.round_robin(len(names), count)
    return Participants(rails, Layout()).rounds([(names[m.first], names[m.second]) for m in each] for each in matches)


def lost_with_several(results: Iterable[Result]) -> frozenset[End]:
    """Return the ends of which pairs with two or more partners were lost: one lost pair may be the path's."""
    partners: defaultdict[End, set[str]] = defaultdict(set)
    for lost in results:
        if isinstance(lost, Lost):
            partners[lost.src].add(lost.dst.node)
            partners[lost.dst].add(lost.src.node)
    return frozenset(end for end, those in partners.items() if len(those) >= LOST_PARTNERS)


def _remaining(rails: Mapping[str, Sequence[int]], excluded: frozenset[End]) -> dict[str, list[int]]:
    """Return the rails of each node that are still measured; a node without any is left out."""
    remaining = {node: [rail for rail in each if End(node, rail) not in excluded] for node, each in rails.items()}
    return {node: each for node, each in remaining.items() if each}
