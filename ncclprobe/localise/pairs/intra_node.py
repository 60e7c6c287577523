"""Plan and judge pairs inside nodes.

No network is involved, so they are judged separately. A pair is compared with the same positions on the other nodes,
which have the same build, so that two devices far apart in every node are not a fault; with fewer than FEWEST nodes,
with
all pairs inside these. A rank that is slow once is a suspect; it is named if it is slow each time.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Literal

from ncclprobe.localise.pairs.effects import slow
from ncclprobe.localise.pairs.rounds import Match, Round, round_robin
from ncclprobe.localise.pairs.samples import End, Rules
from ncclprobe.localise.pairs.suspects import many
from ncclprobe.model.values import Struct, grouped

FEWEST = 3
"""If two nodes differ, it is unknown which is wrong."""


Way = tuple[int, int]
"""(sending rank, receiving rank)."""
RETESTS = 2
"""How often a slow pair inside a node is measured again."""


def inner_end(rank: int) -> End:
    """Return the end of a rank in measurements within its node."""
    return End(f"rank {rank}")


class Slow(Struct, frozen=True):
    """One slow part inside `node`: most of it, one rank's pairs or one pair; `ratio`: the remaining share
    of the rate.
    """

    kind: Literal["node", "rank", "pair"]
    node: str
    ranks: tuple[int, ...]
    ratio: float
    usual_GBps: float


def plan(nodes: Mapping[str, Sequence[int]], count: int | None = None) -> tuple[Round, ...]:
    """Return rounds in which each node's ranks run a round-robin (or `count` rounds of it), all nodes at once."""
    per_node = [_rounds_among(ranks, count) for ranks in nodes.values() if len(ranks) > 1]
    return tuple(tuple(match for part in parts for match in part) for parts in zip_longest(*per_node, fillvalue=()))


def _rounds_among(ranks: Sequence[int], count: int | None) -> list[Round]:
    planned = round_robin(len(ranks), count)
    return [tuple(Match(ranks[match.first], ranks[match.second]) for match in matches) for matches in planned]


def retest_rounds(rounds: Iterable[Round], suspects: Collection[Way]) -> tuple[Round, ...]:
    """Return the whole rounds of any suspect: under the same load, with the same peers."""
    pairs = {frozenset(way) for way in suspects}
    return tuple(r for r in rounds if any(frozenset((match.first, match.second)) in pairs for match in r))


def suspects(rates: Mapping[Way, float], nodes: Mapping[str, Sequence[int]], rules: Rules) -> dict[Way, float]:
    """Return the ways whose rate (GB/s) is slow compared with their peers, with the ratio to them."""
    found: dict[Way, float] = {}
    # The same positions of each node are compared, if there are enough.
    place = {rank: number for ranks in nodes.values() for number, rank in enumerate(ranks)}
    comparable = grouped(((place[src], place[dst]), (src, dst)) for src, dst in rates)
    enough = [ways for ways in comparable.values() if len(ways) >= FEWEST]
    few = [way for ways in comparable.values() if len(ways) < FEWEST for way in ways]
    for group in [*enough, few] if len(few) >= FEWEST else enough:
        usual = median(rates[way] for way in group)
        logs = {way: math.log(rates[way] / usual) for way in group}
        found |= {way: math.exp(log) for way, log in slow(logs, rules.inside()).items()}
    return found


def slow_each_time(
    rates: Sequence[Mapping[Way, float]], nodes: Mapping[str, Sequence[int]], rules: Rules
) -> dict[Way, float]:
    """Return the ways that were slow in the round-robin, the first of `rates`, and in each retest."""
    ratios = suspects(rates[0], nodes, rules)
    for retest in rates[1:]:
        again = suspects(retest, nodes, rules)
        ratios = {way: max(ratio, again[way]) for way, ratio in ratios.items() if way in again}
    return ratios


def name_slow(
    ratios: Mapping[Way, float], rates: Mapping[Way, float], nodes: Mapping[str, Sequence[int]]
) -> tuple[Slow, ...]:
    """Reduce the ways that were slow each time (`ratios`) to the fewest parts (nodes, ranks, pairs), worst first."""
    found: list[Slow] = []
    for node, ranks in nodes.items():
        bad = {way: ratio for way, ratio in ratios.items() if way[0] in ranks}
        if bad:
            tried = [way for way in rates if way[0] in ranks]
            found += _node_slow(node, ranks, bad, tried, rates)
    return tuple(sorted(found, key=lambda each: each.ratio))


def _node_slow(
    node: str, ranks: Sequence[int], bad: Mapping[Way, float], tried: Sequence[Way], rates: Mapping[Way, float]
) -> Iterable[Slow]:
    def slow_of(kind: Literal["node", "rank", "pair"], slow_ranks: Sequence[int], ways: Collection[Way]) -> Slow:
        usual = median(rates[way] / bad[way] for way in ways)
        return Slow(kind, node, tuple(sorted(slow_ranks)), median(bad[way] for way in ways), usual)

    if len(ranks) > 2 and _most(bad, tried):
        yield slow_of("node", ranks, bad)
        return
    left = dict(bad)
    for rank in sorted(ranks, key=lambda rank: -sum(rank in way for way in bad)) if len(ranks) > 2 else ():
        for end in (0, 1):
            its = [way for way in left if way[end] == rank]
            of_rank = [way for way in tried if way[end] == rank]
            if (len(its) > 1 and _most(its, of_rank)) or many(len(its), len(of_rank)):
                its = [way for way in left if rank in way]
                yield slow_of("rank", (rank,), its)
                left = {way: ratio for way, ratio in left.items() if way not in its}
                break
    for pair in dict.fromkeys(frozenset(way) for way in left):
        yield slow_of("pair", tuple(pair), [way for way in left if frozenset(way) == pair])


def _most(some: Collection[Way], tried: Sequence[Way]) -> bool:
    return 2 * len(some) > len(tried)
