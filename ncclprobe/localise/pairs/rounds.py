"""Plan as data, before any rank connects, the places of ranks and the pairs of each round.

Each rank is in at most one pair of a round, so that measurements do not disturb each other at their ends. The schedule
is
the circle method of round-robin tournaments (one player stays, the others rotate): n - 1 rounds for even n, n rounds
with
a bye each for odd n, every pair exactly once.

A part is measured again before it is blamed. A suspect is paired with two unsuspected partners, and these with each
other: the swap control, which exchanges only the suspect. If the suspect is slow with both and they are not slow
together, it is the suspect. Each end of a suspected pair is paired with a third node: if both are fast there, it is the
path between them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ncclprobe.localise.pairs.causes import Cause
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.pair_results import Nic
from ncclprobe.model.values import Struct, field, grouped


class Placement(Struct, frozen=True):
    """The end of each rank, each rank's name, and the ranks of each node.

    `note`: what the reader must know about the numbering of rails.
    """

    hosts: tuple[str, ...]
    ends: tuple[End, ...]
    names: Mapping[End, str]
    note: str = ""

    @property
    def nodes(self) -> dict[str, list[int]]:
        """Ranks by node, in the order of the nodes."""
        return grouped((host, rank) for rank, host in enumerate(self.hosts))

    @property
    def single(self) -> bool:
        """Whether there is only one node, so that its ranks take the place of nodes."""
        return len(set(self.hosts)) == 1

    @property
    def rails(self) -> dict[str, list[int]]:
        """Return the rails of each node, or of each rank if ranks take the place of nodes."""
        return grouped((end.node, end.rail) for end in self.ends)


def place_ranks(hosts: Sequence[str], nics: Sequence[Nic | None] = ()) -> Placement:
    """Return the placement of ranks on `hosts`, with these NICs (empty: unknown).

    The rail is the NIC's number if every rank has a NIC of its own and all nodes have the same numbers (others could
    never
    meet); otherwise the rank's position on its node.
    """
    if len(set(hosts)) == 1:
        ends_of_ranks = tuple(End(f"rank {rank}") for rank in range(len(hosts)))
        return Placement(tuple(hosts), ends_of_ranks, {end: str(end) for end in ends_of_ranks})
    known = [nic for nic in nics if nic is not None]
    numbers = _order_by_nic(hosts, known) if known and len(known) == len(hosts) else None
    ends = tuple(End(host, rail) for host, rail in zip(hosts, numbers or _places(hosts), strict=True))
    names = {end: str(end) for end in ends}
    if nics:
        names = {end: f"{end} ({nic.name})" if nic else str(end) for end, nic in zip(ends, nics, strict=True)}
    shared = bool(known) and numbers is None
    several = max(end.rail for end in ends) > 0
    note = (
        "here a rail is a rank's position on its node, because ranks share NICs or their NICs are not known "
        "on every node"
    )
    return Placement(tuple(hosts), ends, names, note if shared and several else "")


def _order_by_nic(hosts: Sequence[str], nics: Sequence[Nic]) -> list[int] | None:
    numbers = grouped((host, nic.index) for host, nic in zip(hosts, nics, strict=True))
    distinct = all(len(set(each)) == len(each) for each in numbers.values())
    same_numbers = len({tuple(sorted(each)) for each in numbers.values()}) == 1
    return [nic.index for nic in nics] if distinct and same_numbers else None


def _places(hosts: Sequence[str]) -> list[int]:
    seen: defaultdict[str, int] = defaultdict(int)
    places = []
    for host in hosts:
        places.append(seen[host])
        seen[host] += 1
    return places


ALL_PAIRS = 64
"""Up to so many ranks or nodes every pair is measured; beyond, SOME_ROUNDS of the rounds unless more are requested."""
SOME_ROUNDS = 6
"""Six partners each: with two bad ones among them a good node is still fast with most."""
AT_ONCE = 16
"""Node pairs that send at the same time, unless full bisection is requested: a doctor does not load a fabric."""

Round = tuple["Match", ...]
EndPair = tuple[End, End]
PairRound = tuple[EndPair, ...]
_ENOUGH = 3


class Match(Struct, frozen=True, order=True):
    """One pair: its ranks, or the numbers of its nodes."""

    first: int
    second: int


def round_robin(count: int, rounds: int | None = None) -> tuple[Round, ...]:
    """Return `rounds` rounds of 0 … `count` - 1: by default all rounds up to ALL_PAIRS players, otherwise SOME_ROUNDS.

    `rounds` beyond the whole schedule gives all of it. A selection is spread evenly over the schedule, so that partners
    are
    not all neighbours. Raises ValueError for fewer than two players or one round.
    """
    if count < 2 or (rounds is not None and rounds < 1):
        raise ValueError(f"a tournament of {count} players and {rounds} rounds has no pairs")
    there_are = count - 1 + count % 2
    wanted = rounds or (there_are if count <= ALL_PAIRS else SOME_ROUNDS)
    wanted = min(wanted, there_are)
    return tuple(_circle(count, number * there_are // wanted) for number in range(wanted))


def _circle(count: int, turn: int) -> Round:
    """Return the pairs after `turn` turns: the last position stays, the others are paired across the circle."""
    positions = count + count % 2  # the empty seat of an odd number is a bye
    turning = positions - 1
    pairs = [(turn, positions - 1)] + [((turn + k) % turning, (turn - k) % turning) for k in range(1, positions // 2)]
    return tuple(sorted(Match(min(pair), max(pair)) for pair in pairs if max(pair) < count))


class Participants(Struct, frozen=True):
    """The rails of each node that still answers."""

    rails: Mapping[str, Sequence[int]]

    def shared_rails(self, one: str, other: str, rail: int | None = None) -> PairRound:
        """Return the pairs of both nodes on all rails that they share, or on one of them."""
        shared = sorted({*self.rails[one]} & {*self.rails[other]})
        return tuple((End(one, each), End(other, each)) for each in shared if rail in (None, each))

    def rounds(self, matches: Iterable[Iterable[tuple[str, str]]]) -> tuple[PairRound, ...]:
        """Return the rounds of node pairs with all of their rails."""
        return tuple(tuple(pair for nodes in each for pair in self.shared_rails(*nodes)) for each in matches)


class _Round(Struct):
    """A round being filled: lightly, so that a part that is slow under load only is not slow here."""

    busy: set[str] = field(default_factory=set)
    pairs: list[EndPair] = field(default_factory=list)

    def fits(self, pairs: PairRound) -> bool:
        """Return whether both nodes are free."""
        return self.busy.isdisjoint(_nodes(pairs)) and len(self.busy) < 2 * AT_ONCE

    def add(self, pairs: PairRound) -> None:
        """Add a pair of nodes, on all of its rails."""
        self.busy |= _nodes(pairs)
        self.pairs += pairs


def plan_retests(suspects: Sequence[Cause], participants: Participants, step: int) -> tuple[PairRound, ...]:
    """Return rounds that measure each suspect again, each node with at most one other per round.

    `step` counts from 1; each step uses other partners if there are more. Without partners to compare with, or if a
    suspect
    no longer answers, there is nothing to plan.
    """
    rounds: list[_Round] = []
    unsuspected = partners(suspects, participants)
    for number, cause in enumerate(suspects):
        turn = 2 * step + 3 * number
        for pairs in filter(None, _retest_pairs(cause, unsuspected, participants, turn)):
            free = next((each for each in rounds if each.fits(pairs)), None)
            if free is None:
                rounds.append(free := _Round())
            free.add(pairs)
    return tuple(tuple(each.pairs) for each in rounds if each.pairs)


def partners(suspects: Sequence[Cause], participants: Participants) -> tuple[str, ...]:
    """Return the unsuspected nodes; if those are too few, also nodes with only a slow pair."""
    ends = {node for cause in suspects if cause.kind in ("node", "rail") for node in cause.nodes}
    paired = {node for cause in suspects for node in cause.nodes}
    clean = tuple(node for node in participants.rails if node not in ends | paired)
    return clean if len(clean) >= _ENOUGH else tuple(node for node in participants.rails if node not in ends)


def _nodes(pairs: PairRound) -> set[str]:
    return {end.node for pair in pairs for end in pair}


def _retest_pairs(
    cause: Cause, unsuspected: Sequence[str], participants: Participants, turn: int
) -> Iterator[PairRound]:
    if not all(node in participants.rails for node in cause.nodes):
        return
    others = [node for node in _rotated(unsuspected, turn) if node not in cause.nodes]
    if cause.kind == "pair":
        one, other = cause.nodes
        yield participants.shared_rails(one, other, cause.rail)
        for third in others[:1]:
            yield participants.shared_rails(one, third, cause.rail)
            yield participants.shared_rails(third, other, cause.rail)
        return
    [suspect] = cause.nodes
    selected = others[:2]
    for partner in selected:
        yield participants.shared_rails(suspect, partner, cause.rail)
    if len(selected) > 1:
        yield participants.shared_rails(selected[0], selected[1], cause.rail)


def _rotated(nodes: Sequence[str], turn: int) -> list[str]:
    start = turn % len(nodes) if nodes else 0
    return [*nodes[start:], *nodes[:start]]
