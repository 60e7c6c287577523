"""A leaf-and-spine fabric: which links a flow crosses, and what each flow gets when many share them.

Each rail has switches of its own: on rail r a node hangs on leaf r of its block, and the leaves of a rail meet in its
spines. Rates are in GB/s (1e9 bytes/s), max-min fair: nobody can get more without somebody poorer getting less
(Bertsekas and Gallager, Data Networks, 1992, 6.5.2). Transport, queues and congestion control are not modelled.
"""

import random
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from ncclprobe.localise.pairs.samples import End
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
