"""Find which NICs carried an operation, from their counters, and a row's transport from NCCL's lines."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.traffic import Count, NicKind
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import NicBytes, OperationTraffic
from ncclprobe.model.values import Struct, field
from ncclprobe.nccl.log import Choice, Log

FLOOR_BYTES = 1 << 20
"""Logging, name service and our own store's messages stay below this in the second that an operation takes."""
MOST_DEVICES = 8
_NCCL_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Operations that NCCL chooses an algorithm for; all others are sends and receives."""


class Carried(Struct, frozen=True):
    """The bytes that the NICs of one node moved during an operation.

    `expected`: the NICs that should carry it; None: unknown. `below`: the interfaces beneath a bond, a VLAN or IPoIB,
    which count the same bytes again.
    """

    node: str
    ethernet: Mapping[str, Count | Absent]
    rdma: Mapping[str, Count | Absent]
    expected: frozenset[str] | None = None
    below: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def counts(self) -> Iterator[tuple[str, NicKind, Count | Absent]]:
        """Yield every NIC with its kind and count."""
        for name, count in self.rdma.items():
            yield name, "rdma", count
        for name, count in self.ethernet.items():
            yield name, "ethernet", count

    def carriers(self) -> frozenset[str]:
        """Return the expected NICs, and all interfaces beneath them."""
        found: set[str] = set()
        todo = list(self.expected or ())
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.below.get(name, ())
        return frozenset(found)

    def bottom(self, name: str) -> bool:
        """Return whether no other counted interface is beneath this one."""
        return not any(under in self.ethernet or under in self.rdma for under in self.below.get(name, ()))


def operation_traffic(op: str, nbytes: int, seen: Sequence[Carried]) -> OperationTraffic:
    """Return each NIC's bytes and share during an operation of `nbytes`; `seen` has one entry per node."""
    return OperationTraffic(op, nbytes, tuple(row for each in seen for row in _rows(each)))


def _rows(seen: Carried) -> Iterator[NicBytes]:
    """Yield the NICs worth a line: expected ones, and those that moved something or may have."""
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


def transport(row: Measurement, logs: Sequence[Log]) -> Transport:
    """Read a row's network, devices, GPUDirect, algorithm and channels from NCCL's lines of all ranks.

    `logs` are those of the ranks that left one; without any, everything is unknown.
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
"""Operations for which NCCL logs one rank's share."""


def _network(logs: Sequence[Log], nodes: int) -> str | None:
    """Return ``IB mlx5_0, mlx5_1``; if no channel leaves its node, the transport within it: ``P2P CUMEM``.

    A log that was cut off before its channels names the network, which a single node need not use.
    """
    hops = [hop for log in logs for hop in log.hops]
    if any(hop.how == "NET" for hop in hops):
        name = next((log.network for log in logs if log.network), None) or "a network"
        devices = dict.fromkeys(device for log in logs for device in log.devices())
        return f"{name} {first_of(devices, MOST_DEVICES)}".strip()
    ways = dict.fromkeys(f"{hop.how} {hop.by}".strip() for hop in hops)
    return ", ".join(sorted(ways)) or next((log.network for log in logs if log.network and nodes > 1), None)
