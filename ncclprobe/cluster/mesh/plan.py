"""Plan which node calls which, in which order: data, made by one node for all.

Up to `limit` nodes every node calls every other. Beyond, it calls the ranks at distance ±1, ±2, ±4, …: the neighbours
of
NCCL's rings, and of its trees, whose edges span powers of two (src/graph/trees.cc).
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

from ncclprobe.facts.reach import OUTCOMES, MeshListener, Path, Paths
from ncclprobe.model import bounds
from ncclprobe.model.values import Struct, field, replace

FULL_MESH_NODES = 64
"""All ordered pairs up to here: 63 calls per node and role."""

RATE_CANDIDATES = 4
"""Nodes ahead in the ring that each node may stream to; the first two that answer are used."""


NCCL = "nccl"
"""Prefix of the roles of interfaces that NCCL would use."""


class Call(Struct, frozen=True):
    """One listener of node `to`, called from the caller's own interface of the same role."""

    to: int
    role: str
    address: str
    port: int


class NodePlan(Struct, frozen=True):
    """One node's task: `calls` in order, then, per role, streams to the first of `rates` that answered.

    `thorough`: a second look at what was bad. Each stream must arrive whole, in ten seconds, and if large messages
    stall
    again, small packets are tried.
    """

    me: int
    names: dict[int, str] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    rates: tuple[Call, ...] = ()
    thorough: bool = False

    def check(self) -> None:
        """Raise ValueError for an impossible call, or more calls than any plan has: a plan comes from another node."""
        for calls in (self.calls, self.rates):
            paths = {(call.to, call.role) for call in calls}
            nodes, roles = {call.to for call in calls}, {call.role for call in calls}
            if len(nodes) >= FULL_MESH_NODES or len(roles) > bounds.LISTENERS or len(paths) < len(calls):
                raise ValueError(f"{len(calls)} calls of {len(nodes)} nodes")
        for call in (*self.calls, *self.rates):
            check_other(call.address)
            if not 0 < call.port < 1 << 16:
                raise ValueError(f"port {call.port}")


def check_other(address: str) -> None:
    """Raise ValueError if `address` cannot be another node's: loopback, multicast and the like."""
    parsed = ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified or address == "255.255.255.255":
        raise ValueError(f"{address} is not another node's address")


def plan_mesh(
    listeners_by_node: Mapping[int, Sequence[MeshListener]],
    limit: int = FULL_MESH_NODES,
    names: Mapping[int, str] | None = None,
) -> dict[int, NodePlan]:
    """Return each node's plan, by rank. At position k of their lists all nodes call different nodes.

    Two nodes call each other in a role only if both listen in it, and, but for NCCL's roles, by one address family: if
    gloo takes IPv4 here and IPv6 there, launch.gloo-group reports it, and a call would add nothing.
    """
    ranks = sorted(listeners_by_node)
    known = {rank: (names or {}).get(rank, f"node {rank}") for rank in ranks}
    plans = {}
    for place, me in enumerate(ranks):
        ahead = [ranks[(place + step) % len(ranks)] for step in steps(len(ranks), limit)]
        ring = [ranks[(place + step) % len(ranks)] for step in range(1, min(len(ranks), RATE_CANDIDATES + 1))]
        mine = {listener.role: listener for listener in listeners_by_node[me]}
        calls = tuple(_calls(ahead, mine, listeners_by_node))
        plans[me] = NodePlan(me, known, calls, tuple(_calls(ring, mine, listeners_by_node)))
    return plans


def answering(plan: NodePlan, answer: Paths) -> Paths:
    """Keep the paths of `answer` that answer the plan with plausible numbers."""
    asked = {(call.to, call.role) for call in plan.calls}
    rows = {(row.to, row.role): row for row in answer.rows if (row.to, row.role) in asked and _can_be(row)}
    return replace(answer, me=plan.me, names=plan.names, rows=tuple(rows.values()))


def _can_be(row: Path) -> bool:
    numbers = (row.rtt_s, row.path_mtu, row.rate_gbps, row.resent, row.segments, row.tries, row.passes)
    return row.outcome in OUTCOMES and all(number is None or number >= 0 for number in numbers)


def steps(nodes: int, limit: int) -> list[int]:
    """Return the ring distances, from 1 up, between each of `nodes` and the nodes that it calls."""
    if nodes <= limit:
        return list(range(1, nodes))
    powers = [1 << k for k in range(nodes.bit_length()) if 1 << k <= nodes // 2]
    return sorted({step for power in powers for step in (power, nodes - power)})


def _calls(
    to: Sequence[int], mine: Mapping[str, MeshListener], listeners: Mapping[int, Sequence[MeshListener]]
) -> Iterator[Call]:
    for node in to:
        for listener in listeners[node]:
            if listener.role in mine and _callable(mine[listener.role], listener):
                yield Call(node, listener.role, listener.address, listener.port)


def _callable(own: MeshListener, other: MeshListener) -> bool:
    return own.role.startswith(NCCL) or (":" in own.address) == (":" in other.address)
