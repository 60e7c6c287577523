"""Find which NICs carried an operation: NIC counters against what must have moved, and NCCL's lines for each row.

Pure. No algorithm moves fewer bytes than :func:`least_bytes` says, so NICs that were to carry them and show less prove
that bytes went another way. Traffic of others on another NIC proves nothing, and is never named for being there.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.traffic import Count, NicKind
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import NicBytes, OperationTraffic
from ncclprobe.model.values import Struct, field
from ncclprobe.nccl.log import Choice, Log

WORTH = 0.1
"""Of what must have moved: less over a wrong NIC costs less than rows differ between two runs."""
FLOOR_BYTES = 1 << 20
"""Logging, name service and our own store's messages stay below this in the second that an operation takes."""
_ARRIVED = 0.5
"""Of what a NIC sent, how much the other nodes' unexpected NICs must have received for it to be traffic among nodes."""
_ROOT = 0
MOST_DEVICES = 8
_NCCL_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Those that NCCL chooses an algorithm for; the others are sends and receives."""


class Carried(Struct, frozen=True):
    """What the NICs of one node moved while an operation was at work.

    `expected`: the names that were to carry it; None: not known. `below`: of an interface that stands on others
    (a bond, a VLAN, IPoIB), those, which count the same bytes again.
    """

    node: str
    ethernet: Mapping[str, Count | Absent]
    rdma: Mapping[str, Count | Absent]
    expected: frozenset[str] | None = None
    below: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def counts(self) -> Iterator[tuple[str, NicKind, Count | Absent]]:
        """Yield every NIC."""
        for name, count in self.rdma.items():
            yield name, "rdma", count
        for name, count in self.ethernet.items():
            yield name, "ethernet", count

    def carriers(self) -> frozenset[str]:
        """Return the expected names, and all that those stand on."""
        found: set[str] = set()
        todo = list(self.expected or ())
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.below.get(name, ())
        return frozenset(found)

    def bottom(self, name: str) -> bool:
        """Return whether an interface stands on no other that is counted here."""
        return not any(under in self.ethernet or under in self.rdma for under in self.below.get(name, ()))


def least_bytes(op: str, nbytes: int, nodes: Sequence[str]) -> dict[str, Count]:
    """Return the fewest bytes that any algorithm sends from, and brings to, each node for a call of printed `nbytes`.

    `nodes` is the node of each rank. Of a reduction a node's own part leaves it, or the result does; of the rest, what
    the other nodes are to have. A ring of more than two nodes moves up to twice as much.
    """
    ranks = len(nodes)
    ranks_on_node = {node: nodes.count(node) for node in nodes}
    if len(ranks_on_node) < 2:
        return {node: Count(0, 0) for node in ranks_on_node}
    found = {}
    for node, ranks_here in ranks_on_node.items():
        part, rest, root = nbytes * ranks_here // ranks, nbytes * (ranks - ranks_here) // ranks, node == nodes[_ROOT]
        sends = sum(1 for rank in range(ranks) if nodes[rank] == node != nodes[(rank + 1) % ranks])
        receives = sum(1 for rank in range(ranks) if nodes[rank] == node != nodes[rank - 1])
        found[node] = {
            "all_reduce": Count(nbytes, nbytes),
            "all_gather": Count(part, rest),
            "reduce_scatter": Count(rest, part),
            "all_to_all": Count(rest * ranks_here, rest * ranks_here),
            "broadcast": Count(nbytes, 0) if root else Count(0, nbytes),
            "reduce": Count(0, nbytes) if root else Count(nbytes, 0),
            "gather": Count(0, rest) if root else Count(part, 0),
            "scatter": Count(rest, 0) if root else Count(0, part),
            "sendrecv": Count(nbytes * sends, nbytes * receives),
        }[op]
    return found


def attribute_bytes(
    op: str, nbytes: int, calls: int, nodes: Sequence[str], seen: Sequence[Carried]
) -> OperationTraffic:
    """Return the share of each NIC in `calls` of `nbytes` each, and the NICs that carried other NICs' bytes.

    `nodes` is the node of each rank; `seen` one entry per node.
    """
    must = {node: Count(one.sent * calls, one.received * calls) for node, one in least_bytes(op, nbytes, nodes).items()}
    rows = tuple(row for each in seen for row in _rows(each))
    strays = tuple(f"{each.node} {name}" for each in seen for name in _strays(each, must, seen))
    return OperationTraffic(op, nbytes * calls, sum(one.sent for one in must.values()), rows, strays)


def _rows(seen: Carried) -> Iterator[NicBytes]:
    """Yield the NICs worth a line: those expected, and those that moved something or may have."""
    carriers = seen.carriers()
    known = {name: count for name, _, count in seen.counts() if isinstance(count, Count)}
    unread = any(name in carriers and isinstance(count, Absent) for name, _, count in seen.counts())
    total = 0 if unread else sum(count.sent for name, count in known.items() if seen.bottom(name))
    for name, kind, count in seen.counts():
        expected = None if seen.expected is None else name in carriers
        if isinstance(count, Absent):
            if expected is not False:
                yield NicBytes(seen.node, name, kind, None, None, None, expected, count.why)
        elif expected or max(count.sent, count.received) >= FLOOR_BYTES:
            share = round(count.sent / total, 4) if total and seen.bottom(name) else None
            yield NicBytes(seen.node, name, kind, count.sent, count.received, share, expected)


def _strays(seen: Carried, must: Mapping[str, Count], everywhere: Sequence[Carried]) -> Iterator[str]:
    """Yield the unexpected NICs of a node with a part worth naming, and proof that it was of this job."""
    need = must.get(seen.node)
    if seen.expected is None or need is None:
        return
    lacking, others = _lacking(seen, need), _unexpected_elsewhere(seen, everywhere)
    for name, count in _unexpected(seen).items():
        out = _worth(count.sent, need.sent) and (lacking.sent or others.received >= _ARRIVED * count.sent)
        into = _worth(count.received, need.received) and (lacking.received or others.sent >= _ARRIVED * count.received)
        if (out or into) and seen.bottom(name) | _above_expected(seen, name):
            yield name


def _worth(moved: int, needed: int) -> bool:
    return needed > 0 and moved >= max(FLOOR_BYTES, WORTH * needed)


def _unexpected(seen: Carried) -> dict[str, Count]:
    carriers = seen.carriers()
    return {name: c for name, _, c in seen.counts() if name not in carriers and isinstance(c, Count)}


def _above_expected(seen: Carried, name: str) -> bool:
    """Return whether an unexpected interface stands on an expected NIC: IPoIB, where RDMA was to be."""
    return bool(seen.carriers() & set(seen.below.get(name, ())))


def _lacking(seen: Carried, need: Count) -> Count:
    """Return the bytes that the expected NICs are short of; zero where their counters do not say."""
    carriers = seen.carriers()
    counts = [c for name, _, c in seen.counts() if name in carriers and seen.bottom(name)]
    if any(isinstance(count, Absent) for count in counts):
        return Count(0, 0)
    stacked = [c for name, c in _unexpected(seen).items() if _above_expected(seen, name)]
    sent = sum(c.sent for c in counts if isinstance(c, Count)) - sum(c.sent for c in stacked)
    received = sum(c.received for c in counts if isinstance(c, Count)) - sum(c.received for c in stacked)
    return Count(_short(need.sent, sent), _short(need.received, received))


def _short(needed: int, moved: int) -> int:
    lacks = needed - moved
    return lacks if _worth(lacks, needed) else 0


def _unexpected_elsewhere(seen: Carried, everywhere: Sequence[Carried]) -> Count:
    """Return the bytes that the other nodes moved over unexpected NICs."""
    counts = [
        count
        for other in everywhere
        if other.node != seen.node and other.expected is not None
        for name, count in _unexpected(other).items()
        if other.bottom(name)
    ]
    return Count(sum(c.sent for c in counts), sum(c.received for c in counts))


def transport(row: Measurement, logs: Sequence[Log]) -> Transport:
    """Read from NCCL's lines of all ranks a row's network with its devices, GPUDirect, algorithm and channels.

    `logs` are those of the ranks that left one; without any, nothing is known.
    """
    directs = [log.gdr for log in logs if log.gdr is not None]
    choice = next((found for log in logs if (found := _chosen(row, log))), None)
    common = next((log.channels for log in logs if log.channels), None)
    return Transport(
        network=_network(logs, row.nodes),
        gdr=all(directs) if directs else None,
        algorithm=choice.algorithm if choice else None,
        protocol=choice.protocol if choice else None,
        channels=(choice.channels or common) if choice else None,
    )


def _chosen(row: Measurement, log: Log) -> Choice | None:
    name = _NCCL_NAMES.get(row.op)
    if name is None:
        return None
    return log.chosen(row.nbytes // row.ranks, name) if row.op in _SHARED else log.chosen(row.nbytes, name)


_SHARED = ("all_gather", "reduce_scatter")
"""Of these NCCL logs one rank's share."""


def _network(logs: Sequence[Log], nodes: int) -> str | None:
    """Return ``IB mlx5_0, mlx5_1``; where no channel leaves its node, the transport within it: ``P2P CUMEM``.

    A log that was cut before its channels says what network there is, which one node need not use.
    """
    hops = [hop for log in logs for hop in log.hops]
    if any(hop.how == "NET" for hop in hops):
        name = next((log.network for log in logs if log.network), None) or "a network"
        devices = dict.fromkeys(device for log in logs for device in log.devices())
        return f"{name} {first_of(devices, MOST_DEVICES)}".strip()
    ways = dict.fromkeys(f"{hop.how} {hop.by}".strip() for hop in hops)
    return ", ".join(sorted(ways)) or next((log.network for log in logs if log.network and nodes > 1), None)
