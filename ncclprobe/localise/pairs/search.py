"""Run the whole search in its order: round-robin, suspects, retests until each is decided or the steps are used up."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ncclprobe.localise.pairs import retests, rounds
from ncclprobe.localise.pairs.retests import PairRound, Participants
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules
from ncclprobe.localise.pairs.suspects import Localisation, open_case, verdict

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
    retry_lost: bool = False,
    expected_GBps: float | None = None,
    excluded: Excluded | None = None,
) -> Localisation:
    """Measure all pairs of nodes, or `count` rounds of them, and find out which part is slow.

    `rails` names the rails of each node. A lost pair ends nothing: its ends are excluded, the others go on; with
    `retry_lost` they may be measured again in retests (by a caller that can restart them), else they are only named.
    `excluded` returns the ends no longer measured, for a caller that knows better than both ends of a lost pair. Raises
    ValueError for fewer than two nodes.
    """
    layout, rules = layout or Layout(), rules or Rules()
    exclude = excluded or ends_of_lost_pairs
    results: list[Result] = []
    for pairs in round_robin(rails, count):
        remaining_pairs = tuple(pair for pair in pairs if exclude(results).isdisjoint(pair))
        results += measure(remaining_pairs, 0) if remaining_pairs else ()
    case = open_case(results, layout, rules)
    found = verdict(results, layout, rules, expected_GBps, case)
    for step in range(1, rules.steps + 1):
        participants = Participants(_remaining(rails, frozenset() if retry_lost else exclude(results)), case.layout)
        suspects = [suspect.cause for suspect in found.suspects[: rules.most_suspects]]
        for pairs in retests.plan(suspects, participants, step):
            remaining_pairs = (
                pairs if retry_lost else tuple(pair for pair in pairs if exclude(results).isdisjoint(pair))
            )
            results += measure(remaining_pairs, step) if remaining_pairs else ()
        if len(results) == found.tests:
            break
        found = verdict(results, layout, rules, expected_GBps, case)
    return found


def round_robin(rails: Mapping[str, Sequence[int]], count: int | None = None) -> Iterable[PairRound]:
    """Yield the rounds of all nodes, in the order given: equal rails are paired, all rails of two nodes at once."""
    names = list(rails)
    ends = [End(node, rail) for node in names for rail in rails[node]]
    rank = {end: number for number, end in enumerate(ends)}
    nodes = [{rail: rank[End(node, rail)] for rail in rails[node]} for node in names]
    for matches in rounds.by_rail(nodes, count):
        yield tuple((ends[match.first], ends[match.second]) for match in matches)


def ends_of_lost_pairs(results: Iterable[Result]) -> frozenset[End]:
    """Return the ends of pairs that were lost."""
    return frozenset(end for lost in results if isinstance(lost, Lost) for end in (lost.src, lost.dst))


def _remaining(rails: Mapping[str, Sequence[int]], excluded: frozenset[End]) -> dict[str, list[int]]:
    """Return the rails of each node that are still measured; a node without any is left out."""
    remaining = {node: [rail for rail in each if End(node, rail) not in excluded] for node, each in rails.items()}
    return {node: each for node, each in remaining.items() if each}
