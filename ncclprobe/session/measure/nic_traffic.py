"""Which way the bytes of a run went: what NCCL says of it in processes of its own, and what the NICs have counted.

One rank of each node reads its NICs' counters, once before and once after some calls of each operation.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclprobe.errors import HostError
from ncclprobe.facts import traffic
from ncclprobe.facts.traffic import NET, Count, NicKind, Traffic
from ncclprobe.host import Host
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.traffic import OperationTraffic
from ncclprobe.model.values import replace
from ncclprobe.nccl import log
from ncclprobe.nccl.nic_traffic import Carried, attribute_bytes, listed, transport
from ncclprobe.session.measure import slowest_link
from ncclprobe.session.measure.look import Look
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.session.ranks.store import Exchange

Beat = Callable[[str], None]

_ENOUGH_S = 0.25
"""Of calls between two looks: long beside a barrier, short beside the sweep."""
_LONGEST_CALL_S = 2.0
_MOST_CALLS = 10_000
_LATE_S, _LATE_DRIVERS = 1.1, ("bnxt_en", "bnx2x", "tg3")
"""Drivers whose cards report their counters once a second (`ethtool -c`: stats-block-usecs 1000000)."""
_IPOIB = "32"
"""ARPHRD_INFINIBAND, in /sys/class/net/<name>/type."""


class TransportDetection:
    """One rank's part in finding the transports. Every rank makes the same calls in the same order."""

    def __init__(
        self, seat: Seat, host: Host, exchange: Exchange, beat: Beat, backend: str, look: Look, hosts: Sequence[str]
    ):
        self._seat, self._host, self._exchange, self._beat = seat, host, exchange, beat
        self._backend, self._node, self._hosts = backend, look, tuple(hosts)
        self._logs: tuple[log.Log, ...] = ()
        self._sockets: str | None = None
        self._own_names: list[str] | None = None
        self._sizes: dict[str, list[tuple[int, float]]] = {}
        self.remark = ""
        """What the reader must know of what could not be found out, on rank 0."""

    def ahead(self, plan: Any, deadline_s: float) -> None:
        """What is known before anything is measured: gloo's interface, or NCCL's own lines."""
        if self._backend == "gloo":
            self._own_names = _gloos(self._host)
            names = self._exchange.collect(self._own_names)
            if names is not None:
                self._sockets = _sockets(names, self._hosts)
            return
        from ncclprobe.session.measure import nccl_debug_pass

        self._beat("what NCCL says, in processes of its own")
        heard = nccl_debug_pass.listen(plan, self._seat, self._exchange, deadline_s)
        if heard is not None:
            self._logs, self.remark = heard

    def told(self, row: Measurement) -> Measurement:
        """`row` with its transport, as far as it is known."""
        self._sizes.setdefault(row.op, []).append((row.nbytes, row.time_us.mean / 1e6))
        if self._backend == "gloo":
            return replace(row, transport=Transport(network=self._sockets))
        return replace(row, transport=transport(row, self._logs))

    def count(self, plan: Any) -> tuple[OperationTraffic, ...]:
        """What NICs moved in some calls of each operation that was measured; on rank 0, nothing elsewhere.

        Within one node nothing is to leave it, and nothing is counted.
        """
        from ncclprobe.probes.nic_counters import Calls, count_traffic

        self._beat("decide what is counted")
        wanted = self._exchange.share(self._wanted() if self._seat.rank == 0 else None)
        calls = {name: Calls(**one) for name, one in wanted.items()}
        if not calls:
            return ()
        self._beat("what the bytes are expected to go over")
        cards = self._exchange.collect(self._card())
        found: list[OperationTraffic] = []
        for made, before, after in count_traffic(plan, calls, self._exchange, self._beat, self._look):
            both = self._exchange.collect([before, after])
            if cards and both:
                found.append(
                    attribute_bytes(made.op, made.nbytes, made.number, self._hosts, _carried(cards, both, self._hosts))
                )
        return tuple(found)

    def _wanted(self) -> dict[str, dict[str, Any]]:
        """Of each operation the largest size whose call does not take long, and how often it is made."""
        if len(set(self._hosts)) < 2:
            return {}
        found = {}
        for op, timed in self._sizes.items():
            quick = [each for each in timed if each[1] <= _LONGEST_CALL_S] or [min(timed)]
            nbytes, seconds = max(quick)
            number = min(_MOST_CALLS, max(1, math.ceil(_ENOUGH_S / max(seconds, 1e-6))))
            found[op] = {"op": op, "nbytes": nbytes, "number": number}
        return found

    def _look(self) -> Any:
        """This node's counters as JSON; None of the other ranks."""
        if self._seat.local_rank:
            return None
        if self._late():
            time.sleep(_LATE_S)
        return packed(traffic.read(self._host))

    def _late(self) -> bool:
        return any(_driver(self._host, name) in _LATE_DRIVERS for name in _listed(self._host, NET))

    def _card(self) -> dict[str, Any]:
        """The NICs that are to carry this rank's bytes (None: not known); of one rank of each node what those stand on.

        By NCCL's rules one rank speaks for its node. gloo goes by each rank's own variable.
        """
        reads = self._seat.local_rank == 0
        names = [name for name in _listed(self._host, NET) if name != "lo"] if reads else []
        return {
            "expected": self._own_names if self._backend == "gloo" else _nccls(self._node.snapshot()) if reads else [],
            "below": {name: under for name in names if (under := _below(self._host, name))} if reads else None,
        }


def _gloos(host: Host) -> list[str] | None:
    """The interfaces of this rank's gloo: those of its variable, else that of the host's own name."""
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    own = None if named else slowest_link.interface(host, dict(os.environ))
    return named or ([own.name] if own else None)


def _sockets(names: Sequence[list[str] | None], hosts: Sequence[str]) -> str:
    """gloo's transport in words; between ranks of one node the kernel takes the short one, whatever the address."""
    if len(set(hosts)) < 2:
        return "gloo tcp lo"
    known = dict.fromkeys(name for each in names if each for name in each)
    return f"gloo tcp {listed(known)}" if all(names) else "gloo tcp"


def _nccls(snapshot: Snapshot) -> list[str] | None:
    """What NCCL takes by its own rules: ports of HCAs (of one without counters its interface too), else interfaces."""
    from ncclprobe.facts.infiniband import Fabric
    from ncclprobe.nccl.selection import choose

    made, fabric = choose(snapshot), snapshot.facts.get(Fabric)
    if made.hcas.chosen is None:
        return None
    ports = [each.port for each in made.hcas.chosen]
    if not ports:
        return [each.name for each in made.sockets.chosen] if made.sockets.chosen is not None else None
    gids = [
        gid
        for port in (fabric.ports if isinstance(fabric, Fabric) else ())
        if port.name in ports and not port.counters and not isinstance(port.gids, Absent)
        for gid in port.gids
    ]
    return [*ports, *dict.fromkeys(gid.netdev for gid in gids if gid.netdev)]


def _below(host: Host, name: str) -> list[str]:
    """What an interface stands on: a bond's or VLAN's NICs, the port under IPoIB."""
    under = [entry[6:] for entry in _listed(host, f"{NET}/{name}") if entry.startswith("lower_")]
    with contextlib.suppress(HostError, ValueError):
        if host.ask("read", f"{NET}/{name}/type").strip() == _IPOIB:
            port = int(host.ask("read", f"{NET}/{name}/dev_port")) + 1
            under += [f"{device}:{port}" for device in _listed(host, f"{NET}/{name}/device/infiniband")]
    return under


def _driver(host: Host, name: str) -> str:
    with contextlib.suppress(HostError):
        return host.ask("link", f"{NET}/{name}/device/driver").rpartition("/")[2]
    return ""


def _listed(host: Host, folder: str) -> list[str]:
    with contextlib.suppress(HostError, ValueError):
        return [str(name) for name in json.loads(host.ask("list", folder))]
    return []


def packed(seen: Traffic) -> dict[str, dict[str, Any]]:
    """Counters as JSON: two numbers each, or why there are none."""
    kinds: tuple[NicKind, ...] = ("ethernet", "rdma")
    return {
        kind: {n: c.why if isinstance(c, Absent) else [c.sent, c.received] for n, c in seen.of(kind).items()}
        for kind in kinds
    }


def unpacked(told: Mapping[str, Mapping[str, Any]]) -> Traffic:
    """Back from JSON."""
    return Traffic(*({n: _count(c) for n, c in told[kind].items()} for kind in ("ethernet", "rdma")))


def _count(told: Any) -> Count | Absent:
    return Absent(told) if isinstance(told, str) else Count(*told)


def _carried(cards: Sequence[Any], both: Sequence[Any], hosts: Sequence[str]) -> list[Carried]:
    """By node, from those ranks that read for theirs. Two nodes of one name cannot be told apart: neither counts."""
    found: dict[str, list[Carried]] = {}
    for node, card, (before, after) in zip(hosts, cards, both, strict=True):
        if before is None:
            continue
        first, last = unpacked(before), unpacked(after)
        moved = traffic.moved(first, last, "ethernet"), traffic.moved(first, last, "rdma")
        found.setdefault(node, []).append(Carried(node, *moved, _expected(cards, hosts, node), card["below"]))
    return [each[0] for each in found.values() if len(each) == 1]


def _expected(cards: Sequence[Any], hosts: Sequence[str], node: str) -> frozenset[str] | None:
    """All that the ranks of one node expect; None where one of them does not know."""
    told = [card["expected"] for card, host in zip(cards, hosts, strict=True) if host == node]
    return None if None in told else frozenset(name for names in told for name in names)
