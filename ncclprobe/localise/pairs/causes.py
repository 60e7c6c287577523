"""List what could be wrong: each cause names the pairs it would make slow, so that samples speak for or against it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Literal

from ncclprobe.localise.pairs.effects import Effects, Way, apart, slow, slow_residuals
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Result, Rules, Sample
from ncclprobe.model.values import Struct, field

Kind = Literal["node", "rail", "pair", "leaf", "uplink", "plane"]
Direction = Literal["both", "out", "into"]
DIRECTIONS: tuple[Direction, ...] = ("both", "out", "into")


class Cause(Struct, frozen=True):
    """One part that may be at fault.

    kind: `node`, everything of one node; `rail`, one NIC of a node with its cable; `pair`, the path between two nodes
    (routing), on one rail or on all; `leaf`, everything that touches a leaf; `uplink`, what leaves or enters it;
    `plane`, one rail of all nodes (its switches).

    direction: `out` of or `into` the first of `nodes` or the leaf, or both. `other`: of an uplink, the leaf at the far
    end, where only what goes between the two is meant. `several`: of a node or a rail, many of its pairs and not all.
    """

    kind: Kind
    nodes: tuple[str, ...] = ()
    rail: int | None = None
    direction: Direction = "both"
    leaf: str = ""
    other: str = ""
    several: bool = False

    @property
    def ends(self) -> tuple[str, str]:
        """Return the two leaves of an uplink between them."""
        return self.leaf, self.other

    def __str__(self) -> str:
        """Return the cause in words: ``out of n3 rail 1``."""
        rail = f" rail {self.rail}" if self.rail is not None else ""
        if self.other:
            return f"uplinks between {self.leaf} and {self.other}{rail}"
        where = {"pair": " with ".join(self.nodes), "plane": "all nodes"}.get(
            self.kind, self.leaf or "".join(self.nodes)
        )
        prefix = {"leaf": "leaf ", "uplink": "uplinks of leaf "}.get(self.kind, "")
        heading = {"both": "", "out": "out of ", "into": "into "}[self.direction]
        prefix = "several pairs of " if self.several else prefix
        return f"{heading}{prefix}{where}{rail}"


class Entry(Struct, frozen=True):
    """One result as evidence: the logarithm of its ratio to the usual of its `way`, -inf for a pair that was lost.

    `crossing`: compared with what is near, evidence for what lies between two leaves and for no other part.
    """

    src: End
    dst: End
    log_ratio: float
    step: int = 0
    way: Way = (False, False)
    crossing: bool = False


class Evidence(Struct, frozen=True):
    """Entries, and the positions of those of each node, end, pair and leaf."""

    entries: tuple[Entry, ...]
    layout: Layout
    places: Mapping[tuple[object, ...], Sequence[int]] = field(default_factory=dict)

    def covered(self, cause: Cause) -> Iterator[int]:
        """Yield the positions of all entries that `cause` would make slow."""
        ways = ("out", "into") if cause.direction == "both" else (cause.direction,)
        if cause.kind == "plane":
            yield from self.places.get(("plane", cause.rail), ())
        elif cause.kind == "pair":
            one, other = cause.nodes
            for src, dst in [(one, other)] if cause.direction == "out" else [(one, other), (other, one)]:
                yield from self.places.get(("pair", src, dst, cause.rail), ())
        elif cause.other:
            yield from self.places.get(("between", cause.leaf, cause.other), ())
        elif cause.kind == "leaf":
            yield from self.places.get(("leaf", cause.leaf), ())
        else:
            for each in ways:
                yield from self.places.get((cause.kind, each, cause.leaf or cause.nodes[0], cause.rail), ())


def add_evidence(entries: Iterable[Entry], layout: Layout, before: Evidence | None = None) -> Evidence:
    """Index `entries` under every cause that could explain them, after those of `before`, which stays unchanged."""
    places: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    old, kept = before.entries if before else (), tuple(entries)
    comparable = _comparable(layout)
    for place, entry in enumerate(kept, len(old)):
        for key in _keys(entry, layout, comparable):
            places[key].append(place)
    known = before.places if before else {}
    longer = {key: [*known.get(key, ()), *new] for key, new in places.items()}
    return Evidence((*old, *kept), layout, {**known, **longer})


def _comparable(layout: Layout) -> bool:
    """Return whether traffic across the fabric tells leaves apart: of two leaves, each crossing touches both."""
    return layout.leaves > 2


def _keys(entry: Entry, layout: Layout, comparable: bool) -> Iterator[tuple[object, ...]]:
    src, dst = entry.src, entry.dst
    here, there = layout.leaf.get(src.node), layout.leaf.get(dst.node)
    if layout.crosses(src, dst) and entry.crossing != comparable:
        yield "between", *sorted((layout.leaf[src.node], layout.leaf[dst.node]))
    if entry.crossing:
        return
    for way, end in (("out", src), ("into", dst)):
        yield "node", way, end.node, None
        yield "rail", way, end.node, end.rail
    yield "pair", src.node, dst.node, None
    if src.rail == dst.rail:
        yield "pair", src.node, dst.node, src.rail
        yield "plane", src.rail
    if here == there or comparable:
        for leaf in {here, there} - {None}:
            yield "leaf", leaf
    if here != there and comparable:
        yield "uplink", "out", here, None
        yield "uplink", "into", there, None


def candidates(results: Sequence[Result], effects: Effects, layout: Layout, rules: Rules) -> dict[Cause, float]:
    """Return every cause that might explain a slow result, with its log odds before any sample.

    Ends whose way out or in is slow by both rules or apart from all others, pairs whose residual is slow, those of lost
    pairs, and each leaf and plane: there are few. `results` are those of the round-robin, its samples in the order of
    `effects.residual`.
    """
    ends = {end for result in results for end in (result.src, result.dst)}
    many_rails = len({end.rail for end in ends}) > 1
    lost = [result for result in results if isinstance(result, Lost)]
    suspects = {end for ways in (effects.out, effects.into) for end in slow(ways, rules)}
    suspects |= {end for result in lost for end in (result.src, result.dst)}
    samples = [result for result in results if isinstance(result, Sample)]
    suspects |= apart(samples, layout, rules)
    outliers = [samples[place] for place in slow_residuals(samples, effects, layout, rules)]
    found: set[Cause] = set(_of_fabric(ends, layout))
    for end in suspects:
        found |= set(_of_end(end, rails=many_rails))
    for src, dst in [(each.src, each.dst) for each in outliers] + [(each.src, each.dst) for each in lost]:
        found |= set(_of_pair(src, dst, rails=many_rails))
    many = _count_per_kind(ends, results, layout)
    return {cause: _prior(cause, many, rules) for cause in found}


def _of_end(end: End, rails: bool) -> Iterator[Cause]:
    for direction in DIRECTIONS:
        yield Cause("node", (end.node,), direction=direction)
        if rails:
            yield Cause("rail", (end.node,), end.rail, direction)


def _of_pair(src: End, dst: End, rails: bool) -> Iterator[Cause]:
    both = tuple(sorted((src.node, dst.node)))
    for rail in (None, src.rail) if rails and src.rail == dst.rail else (None,):
        yield Cause("pair", both, rail)
        yield Cause("pair", (src.node, dst.node), rail, "out")


def _of_fabric(ends: Iterable[End], layout: Layout) -> Iterator[Cause]:
    leaves = {layout.leaf[end.node] for end in ends if end.node in layout.leaf}
    rails = {end.rail for end in ends}
    if len(leaves) > 1 and not layout.measured:  # those are fast inside, by how they were found
        yield from (Cause("leaf", leaf=leaf) for leaf in leaves)
    if _comparable(layout):
        yield from (Cause("uplink", direction=way, leaf=leaf) for leaf, way in product(leaves, DIRECTIONS))
    yield from (Cause("uplink", leaf=one, other=other) for one, other in combinations(sorted(leaves), 2))
    if layout.rails and len(rails) > 1:
        yield from (Cause("plane", rail=rail) for rail in rails)


def _count_per_kind(ends: set[End], results: Sequence[Result], layout: Layout) -> dict[Kind, int]:
    """Count the causes of each kind, directions included."""
    leaves = len(set(layout.leaf.values()))
    return {
        "node": 3 * len({end.node for end in ends}),
        "rail": 3 * len(ends),
        "pair": 3 * len({frozenset((result.src, result.dst)) for result in results}),
        "leaf": leaves,
        "uplink": 3 * leaves + leaves * (leaves - 1) // 2,
        "plane": len({end.rail for end in ends}),
    }


def _prior(cause: Cause, many: Mapping[Kind, int], rules: Rules) -> float:
    """Return the log odds: the expected faults of this kind in a fleet, shared among all it could be."""
    share = rules.faults / many[cause.kind]
    return math.log(share / (1 - share))
