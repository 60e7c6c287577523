"""What may be broken in a simulated fleet, and which links that slows down."""

import random
from collections.abc import Sequence

from fleets.fabric import Fabric, Link
from ncclprobe.localise.pairs.causes import Cause, Kind
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.values import Struct

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

    def named_by(self, cause: Cause, fabric: Fabric) -> bool:
        """Whether `cause` blames just this, by its right name."""
        rail = self.rail if fabric.rails > 1 else None
        nic: Kind = "rail" if fabric.rails > 1 else "node"
        expected = {
            "node": Cause("node", self.nodes),
            "nic": Cause(nic, self.nodes, rail),
            "direction": Cause(nic, self.nodes, rail, "out" if self.out else "into"),
            "pair": Cause("pair", tuple(sorted(self.nodes)), rail),
        }
        if self.kind in expected:
            return cause == expected[self.kind]
        return cause.shared and {*cause.nodes} == self._members(fabric)

    def _members(self, fabric: Fabric) -> set[str]:
        """The nodes of its leaf."""
        return {node for node in fabric.names if fabric.leaf(node) == self.leaf}

    def touches(self, cause: Cause, fabric: Fabric) -> bool:
        """Whether `cause` is about the place of this fault, whatever it calls it: its nodes, or those of its leaf."""
        about = self._members(fabric) if self.kind in _OF_LEAVES else {*self.nodes}
        return not about.isdisjoint(cause.nodes)


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
