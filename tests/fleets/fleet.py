"""A leaf-and-spine fabric whose flows share links, with faults planted or none, behind the call of a real measurement.

Each rail has switches of its own: on rail r a node hangs on leaf r of its block, and the leaves of a rail meet in its
spines. Rates are in GB/s (1e9 bytes/s), max-min fair: nobody can get more without somebody poorer getting less
(Bertsekas and Gallager, Data Networks, 1992, 6.5.2). Transport, queues and congestion control are not modelled. Every
number comes from a seed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ncclprobe.localise.pairs.rounds import PairRound
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.model.values import Struct

Link = tuple[Hashable, ...]
Route = tuple[Link, ...]
_ALIKE = 1e-9


class Fabric(Struct, frozen=True):
    """Nodes below leaves below spines.

    `oversubscription`: what the nodes of a leaf could send over what its uplinks carry. `ecmp`: each flow is hashed to
    one uplink and may collide there; else (adaptive routing) flows spread over all, which then act as one.
    """

    nodes: int
    per_leaf: int
    rails: int = 1
    oversubscription: float = 1.0
    ecmp: bool = False
    nic_GBps: float = 48.0

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes, in their order."""
        return tuple(f"n{number}" for number in range(self.nodes))

    def leaf(self, node: str) -> int:
        """The number of the leaf (the same on every rail) that a node hangs on."""
        return int(node[1:]) // self.per_leaf

    @property
    def spines(self) -> int:
        """Uplinks of a leaf, each as fast as a NIC."""
        return max(1, round(self.per_leaf / self.oversubscription))

    def route(self, src: End, dst: End, draw: random.Random) -> Route:
        """The links from one node to another on a rail, the last of them the pair's own path."""
        here, there = self.leaf(src.node), self.leaf(dst.node)
        nics: Route = (("out", src.node, src.rail), ("in", dst.node, dst.rail), ("path", src, dst))
        if here == there:
            return nics
        spine = draw.randrange(self.spines) if self.ecmp else -1
        return (*nics, ("up", here, src.rail, spine), ("down", there, dst.rail, spine))

    def capacity(self, link: Link) -> float:
        """What a healthy link carries, GB/s."""
        bundle = link[0] in ("up", "down") and link[3] == -1
        return self.nic_GBps * (self.per_leaf / self.oversubscription if bundle else 1)


def fair_share(routes: Sequence[Route], capacity: Mapping[Link, float]) -> list[float]:
    """The max-min fair rate of each flow: fill all alike, stop those whose link is full, go on with the others."""
    if (alone := _unshared(routes, capacity)) is not None:
        return alone
    rates = [0.0] * len(routes)
    flows: defaultdict[Link, set[int]] = defaultdict(set)
    for flow, route in enumerate(routes):
        for link in route:
            flows[link].add(flow)
    left = {link: capacity[link] for link in flows}
    while flows:
        share = min(left[link] / len(those) for link, those in flows.items())
        full = [link for link, those in flows.items() if left[link] / len(those) <= share + _ALIKE]
        for flow in set().union(*(flows[link] for link in full)):
            rates[flow] = share
            for link in routes[flow]:
                flows[link].discard(flow)
                left[link] -= share
        flows = defaultdict(set, {link: those for link, those in flows.items() if those})
    return rates


def _unshared(routes: Sequence[Route], capacity: Mapping[Link, float]) -> list[float] | None:
    """What each flow would get alone, where all together fit through every link; else None."""
    if not all(routes):
        return None
    wanted = [min([capacity[link] for link in route]) for route in routes]
    left = dict[Link, float]()
    for route, rate in zip(routes, wanted, strict=True):
        for link in route:
            left[link] = rest = left.get(link, capacity[link]) - rate
            if rest < -_ALIKE:
                return None
    return wanted


_OF_LEAVES = ("leaf", "uplink", "link")
KINDS = ("node", "nic", "direction", "pair", *_OF_LEAVES)


class Fault(Struct, frozen=True):
    """Something that carries only `left` of its bandwidth.

    kind: `node`, all of its NICs; `nic`, one in both directions (with its cable); `direction`, one NIC one way; `pair`,
    the path between two nodes on one rail; `leaf`, all NICs and uplinks below a leaf; `uplink`, all uplinks of a leaf;
    `link`, a single one of them, over which part of the flows go.
    """

    kind: str
    left: float
    nodes: tuple[str, ...] = ()
    rail: int = 0
    leaf: int = 0
    out: bool = True

    @property
    def _ways(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.nodes, self.nodes[::-1]

    def slows(self, link: Link, fabric: Fabric) -> bool:
        """Whether this link is one of those."""
        what, where = link[0], link[1]
        if self.kind == "pair":
            return link in [("path", End(one, self.rail), End(other, self.rail)) for one, other in self._ways]
        if what in ("up", "down"):
            whole = self.kind in ("leaf", "uplink")
            return where == self.leaf and (whole or (self.kind == "link" and link[2:] == (0, 0)))
        if what == "path":
            return False
        if self.kind == "leaf":
            return fabric.leaf(str(where)) == self.leaf
        rail = self.kind == "node" or link[2] == self.rail
        return where in self.nodes and rail and (self.kind != "direction" or what == ("out" if self.out else "in"))


def plant(kind: str, count: int, left: float, fabric: Fabric, draw: random.Random) -> tuple[Fault, ...]:
    """`count` faults of one kind in different places. Raises ValueError for places that the fabric has not."""
    if kind in _OF_LEAVES:
        leaves = draw.sample(range(fabric.leaf(fabric.names[-1]) + 1), count)
        return tuple(Fault(kind, left, leaf=leaf) for leaf in leaves)
    each = 2 if kind == "pair" else 1
    nodes: Sequence[str] = draw.sample(fabric.names, count * each)
    rails = [draw.randrange(fabric.rails) for _ in range(count)]
    return tuple(
        Fault(kind, left, tuple(nodes[n * each : (n + 1) * each]), rails[n], out=draw.random() < 0.5)
        for n in range(count)
    )


TIMEOUT_GBps = 0.01
"""Below this nothing arrives before the deadline."""


Draw = Callable[[End, End, bool, random.Random], float]
"""What one measurement shows of the true rate, as a share, from one end to another that is near or far."""


class Noise(Struct, frozen=True):
    """What a median of several transfers still shows: a relative `sigma`, and now and then a slow one without reason.

    `slow`: the share of samples that get only between `low` and `high` of their rate, independently of each other.
    """

    sigma: float
    slow: float = 0.0
    low: float = 0.5
    high: float = 0.75

    def __call__(self, src: End, dst: End, near: bool, draw: random.Random) -> float:
        """Return one measurement's share."""
        unlucky = draw.random() < self.slow
        return (draw.uniform(self.low, self.high) if unlucky else 1.0) * draw.lognormvariate(0, self.sigma)


NOISES = {"quiet": Noise(0.005), "usual": Noise(0.02), "loud": Noise(0.05), "bimodal": Noise(0.02, slow=0.2)}


@dataclass(slots=True)
class Fleet:
    """`measure` is a search's. The same seed gives the same samples.

    `crossing`: what every transfer between two leaves gets of its rate, by the fabric's design.
    """

    fabric: Fabric
    noise: Draw
    faults: Sequence[Fault] = ()
    seed: int = 0
    at_once: int = 16
    crossing: float = 1.0
    _draw: random.Random = field(init=False)
    _carries: dict[Link, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at the seed."""
        self._draw = random.Random(self.seed)

    @property
    def rails(self) -> dict[str, range]:
        """The rails of each node, as an inquiry wants them."""
        return {node: range(self.fabric.rails) for node in self.fabric.names}

    def measure(self, meetings: PairRound, step: int) -> Iterator[Result]:
        """One round: `at_once` pairs of nodes at a time, on all of their rails, first one way, then back."""
        pairs = sorted({(one.node, other.node) for one, other in meetings})
        self._draw.shuffle(pairs)
        numbers = {pair: number for number, pair in enumerate(pairs)}
        for start in range(0, len(pairs), self.at_once):
            now = range(start, start + self.at_once)
            flows = [(one, other) for one, other in meetings if numbers[one.node, other.node] in now]
            yield from self._send(flows, step)
            yield from self._send([(other, one) for one, other in flows], step)

    def _send(self, flows: Sequence[tuple[End, End]], step: int) -> Iterator[Result]:
        routes = [self.fabric.route(src, dst, self._draw) for src, dst in flows]
        for link in {link for route in routes for link in route if link not in self._carries}:
            left = [fault.left for fault in self.faults if fault.slows(link, self.fabric)]
            self._carries[link] = self.fabric.capacity(link) * min(left, default=1.0)
        for (src, dst), rate in zip(flows, fair_share(routes, self._carries), strict=True):
            yield self._sample(src, dst, rate, step)

    def _sample(self, src: End, dst: End, rate: float, step: int) -> Result:
        if rate < TIMEOUT_GBps:
            return Lost(src, dst, step=step)
        near = self.fabric.leaf(src.node) == self.fabric.leaf(dst.node)
        rate *= self.noise(src, dst, near, self._draw) * (1.0 if near else self.crossing)
        return Sample(src, dst, rate, step=step)
