"""Whom to measure again beside whom, before anybody is blamed: as data, in rounds.

A suspect meets two partners nobody suspects, and these meet each other: the swap control, in which only the suspect is
exchanged. If the suspect is slow with both and they are not slow together, it is the suspect. Of a suspected pair each
meets a third: if both are fast there, it is what lies between them. A leaf or its uplinks show their fault under load
only: its nodes meet as many outside at once, and the nodes of another leaf the same ones after them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ncclprobe.localise.pairs.causes import Cause
from ncclprobe.localise.pairs.rounds import AT_ONCE
from ncclprobe.localise.pairs.samples import End, Layout

Meeting = tuple[End, End]
Meetings = tuple[Meeting, ...]
_ENOUGH = 3
_CROSSING = 2  # pairs of nodes over the uplinks of one leaf at the same time
_LINKED = ("leaf", "uplink")


@dataclass(frozen=True, slots=True)
class Cast:
    """Who can play: the rails of each node that still answers, and what is known of their places."""

    rails: Mapping[str, Sequence[int]]
    layout: Layout

    def meet(self, one: str, other: str, rail: int | None = None) -> Meetings:
        """Both nodes on all rails that they share, or on one of them."""
        shared = sorted({*self.rails[one]} & {*self.rails[other]})
        return tuple((End(one, each), End(other, each)) for each in shared if rail in (None, each))


@dataclass(slots=True)
class _Round:
    """A round being filled: lightly, so that whoever is slow under load only is not slow here."""

    busy: set[str] = field(default_factory=set)
    meetings: list[Meeting] = field(default_factory=list)
    crossing: Counter[str] = field(default_factory=Counter)

    def fits(self, meetings: Meetings, layout: Layout) -> bool:
        """Whether both nodes are free, and the uplinks of their leaves nearly so."""
        leaves = _crossed(meetings, layout)
        crowded = any(self.crossing[leaf] >= _CROSSING for leaf in leaves)
        return not crowded and self.busy.isdisjoint(_nodes(meetings)) and len(self.busy) < 2 * AT_ONCE

    def add(self, meetings: Meetings, layout: Layout) -> None:
        """One more pair of nodes, on all of its rails."""
        self.busy |= _nodes(meetings)
        self.meetings += meetings
        self.crossing.update(_crossed(meetings, layout))


def plan(suspects: Sequence[Cause], cast: Cast, step: int) -> tuple[Meetings, ...]:
    """Rounds in which each suspect is measured again, no node with more than one other in a round.

    `step` counts from 1; each step brings other partners where there are more. Where nobody is left to compare with,
    or a suspect no longer answers, there is nothing to plan.
    """
    rounds: list[_Round] = []
    good = partners(suspects, cast)
    for number, cause in enumerate(suspects):
        turn = 2 * step + 3 * number
        if cause.kind in _LINKED:
            rounds += [_Round({*cast.rails}, list(block)) for block in _blocks(cause, good, cast, turn)]
            continue
        for meetings in filter(None, _encounters(cause, good, cast, turn)):
            free = next((each for each in rounds if each.fits(meetings, cast.layout)), None)
            if free is None:
                rounds.append(free := _Round())
            free.add(meetings, cast.layout)
    return tuple(tuple(each.meetings) for each in rounds if each.meetings)


def partners(suspects: Sequence[Cause], cast: Cast) -> tuple[str, ...]:
    """The nodes that nothing is suspected of; where those are too few, also those with nothing but a slow pair."""
    leaves = {cause.leaf for cause in suspects if cause.leaf}
    ends = {node for cause in suspects if cause.kind in ("node", "rail") for node in cause.nodes}
    ends |= {node for node in cast.rails if cast.layout.leaf.get(node) in leaves}
    paired = {node for cause in suspects for node in cause.nodes}
    clean = tuple(node for node in cast.rails if node not in ends | paired)
    return clean if len(clean) >= _ENOUGH else tuple(node for node in cast.rails if node not in ends)


def _nodes(meetings: Meetings) -> set[str]:
    return {end.node for meeting in meetings for end in meeting}


def _crossed(meetings: Meetings, layout: Layout) -> set[str]:
    """The leaves that these meetings leave or enter."""
    leaves = {layout.leaf[node] for node in _nodes(meetings) if node in layout.leaf}
    return leaves if len(leaves) > 1 else set()


def _encounters(cause: Cause, good: Sequence[str], cast: Cast, turn: int) -> Iterator[Meetings]:
    if not all(node in cast.rails for node in cause.nodes):
        return
    if cause.kind == "plane":
        turned = _turned(good, turn)
        for one, other in zip(turned[0:6:2], turned[1:6:2], strict=False):
            yield cast.meet(one, other)
        return
    others = [node for node in _turned(good, turn) if node not in cause.nodes]
    if cause.kind == "pair":
        one, other = cause.nodes
        yield cast.meet(one, other, cause.rail)
        for third in others[:1]:
            yield cast.meet(one, third, cause.rail)
            yield cast.meet(third, other, cause.rail)
        return
    [suspect] = cause.nodes
    chosen = _two(suspect, others, cast.layout)
    for partner in chosen:
        yield cast.meet(suspect, partner, cause.rail)
    if len(chosen) > 1:
        yield cast.meet(chosen[0], chosen[1], cause.rail)


def _two(suspect: str, others: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """Two partners: where leaves are known one below the same leaf, one elsewhere."""
    near = [node for node in others if layout.near(End(suspect), End(node))]
    far = [node for node in others if node not in near]
    return tuple((near[:1] + far + near[1:])[:2])


def _blocks(cause: Cause, good: Sequence[str], cast: Cast, turn: int) -> Iterator[Meetings]:
    """All of a leaf with nodes outside at once, then those of another leaf with the same: the leaf is exchanged."""
    leaf = cast.layout.leaf
    members = _turned([node for node in cast.rails if leaf.get(node) == cause.leaf], turn)[:AT_ONCE]
    elsewhere = sorted({leaf[node] for node in good if node in leaf and leaf[node] != cause.leaf})
    if not elsewhere:
        return
    other = elsewhere[turn % len(elsewhere)]
    outside = _turned([node for node in good if leaf.get(node) != other], turn) if len(elsewhere) > 1 else []
    outside = outside or [node for node in good if leaf.get(node) == other]
    control = [node for node in good if leaf.get(node) == other and node not in outside]
    for team in (members, control):
        yield tuple(meeting for pair in zip(team, outside, strict=False) for meeting in cast.meet(*pair))
    if cause.kind == "leaf":
        yield tuple(meeting for pair in zip(members[::2], members[1::2], strict=False) for meeting in cast.meet(*pair))


def _turned(nodes: Sequence[str], turn: int) -> list[str]:
    start = turn % len(nodes) if nodes else 0
    return [*nodes[start:], *nodes[:start]]
