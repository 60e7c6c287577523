"""Connections between the ranks of a running job, at both looks: over which nothing arrives, and by which NIC."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.job.looks import Connection, JobLook, JobLooks, LiveRank
from ncclprobe.facts.traffic import Count, moved
from ncclprobe.localise.job.activity import Seen
from ncclprobe.model.findings import Evidence, seen
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace
from ncclprobe.units import plural, size

_LOOPBACK = ("127.", "[::1]", "::1")


class Wire(Struct, frozen=True):
    """A connection of `rank` at both looks. `peer` is the rank at its other end, None: none that was looked at.

    `nic` is the interface of its own address, empty where it is not known.
    """

    rank: int
    peer: int | None
    nic: str
    first: Connection
    second: Connection

    @property
    def silent(self) -> bool:
        """Return whether the peer acknowledged nothing between the looks, though the kernel sent it again or asked."""
        states = (self.first, self.second)
        waits = all(each.unacknowledged_bytes or each.state == "connecting" for each in states)
        asked = self.second.retransmits or self.second.probes
        return bool(waits and asked and self.sent_bytes == 0)

    @property
    def sent_bytes(self) -> int:
        """Return what the peer acknowledged between the looks."""
        return self.second.acknowledged_bytes - self.first.acknowledged_bytes

    def __str__(self) -> str:
        """Return what is known of it, as a sentence."""
        at = self.second
        to = f"rank {self.peer}" if self.peer is not None else at.peer
        sent = f"rank {self.rank} sends to {to}{f' over {self.nic}' if self.nic else ''} ({at.local} to {at.peer})"
        if not self.silent:
            return sent
        again = f"the kernel tried again {plural(max(at.retransmits, at.probes), 'time')}"
        return f"{sent}: {size(at.unacknowledged_bytes)} wait, nothing was acknowledged between the looks, and {again}"


def wires(nodes: Mapping[str, JobLooks], ranks: Mapping[int, Seen]) -> tuple[Wire, ...]:
    """Return the connections of the ranks that were there at both looks."""
    numbers = {(rank.node, rank.process.pid): number for number, rank in ranks.items() if rank.process}
    ends = {
        _ends(node, each.local, each.peer): numbers.get((node, each.pid))
        for node, looks in nodes.items()
        for each in _known(looks.second.connections)
    }
    found = []
    for node, looks in nodes.items():
        before = {(each.pid, each.local, each.peer): each for each in _known(looks.first.connections)}
        for at in _known(looks.second.connections):
            first, number = before.get((at.pid, at.local, at.peer)), numbers.get((node, at.pid))
            if first is not None and number is not None:
                found.append(Wire(number, ends.get(_ends(node, at.peer, at.local)), _nic(looks, at), first, at))
    return tuple(found)


def with_peers(at: LiveRank | Absent, look: JobLook) -> LiveRank | Absent:
    """Return a rank's state with the peers of the sockets in whose calls it and its children are, in place of files."""
    if isinstance(at, Absent):
        return at
    peers = {
        f"socket:[{each.inode}]": f"a connection to {each.peer}, silent for {each.heard_s:.0f} s"
        for each in _known(look.connections)
    }
    children = tuple(replace(child, file=peers.get(child.file, child.file)) for child in at.children)
    return replace(at, file=peers.get(at.file, at.file), children=children)


def _known(connections: Sequence[Connection] | Absent) -> Sequence[Connection]:
    return () if isinstance(connections, Absent) else connections


def _ends(node: str, local: str, peer: str) -> tuple[str, str, str]:
    """Return what tells a connection from all others; an address of the loopback is of one node."""
    return (node if local.startswith(_LOOPBACK) else "", local, peer)


def _nic(looks: JobLooks, at: Connection) -> str:
    address = at.local.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
    return "" if isinstance(looks.interfaces, Absent) else looks.interfaces.get(address, "")


def counted(node: str, looks: JobLooks) -> Iterator[Evidence]:
    """Yield how much the NICs of a node moved between the looks."""
    words = [
        f"{name} {size(each.sent + each.received)}" if isinstance(each, Count) else f"{name}: {each.why}"
        for kind in ("ethernet", "rdma")
        for name, each in moved(looks.first.traffic, looks.second.traffic, kind).items()
    ]
    if words:
        yield seen(f"{node}:/sys/class", f"moved between the looks: {', '.join(words)}")
