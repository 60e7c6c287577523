"""The transport that carried the bytes of a run: from NCCL's own log of an untimed pass, and from the NICs' counters.

One rank of each node reads its NICs' counters, once before and once after some calls of each operation.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ncclprobe.facts import traffic
from ncclprobe.facts.traffic import NET, Count, NicKind, Traffic
from ncclprobe.host import Host
from ncclprobe.model import units
from ncclprobe.model.errors import HostError
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.ops import DTYPES, OPS
from ncclprobe.model.registry import discover
from ncclprobe.model.snapshot import Absent, Snapshot, learned
from ncclprobe.model.traffic import OperationTraffic
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl import log
from ncclprobe.nccl.gloo import named
from ncclprobe.nccl.nic_traffic import MOST_DEVICES, Carried, operation_traffic, transport
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.collectives import Probe
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, SweepContext, barrier
from ncclprobe.session.measure import rank_nics
from ncclprobe.session.measure.context import RankContext

_CALLS_S = 0.25
"""Seconds of calls between two readings: long compared with a barrier, short compared with the sweep."""
_LONGEST_CALL_S = 2.0
_MOST_CALLS = 10_000
_SLOW_COUNTERS_S, _SLOW_DRIVERS = 1.1, ("bnxt_en", "bnx2x", "tg3")
"""Drivers whose NICs report their counters once a second (`ethtool -c`: stats-block-usecs 1000000)."""
_IPOIB = "32"
"""ARPHRD_INFINIBAND, in /sys/class/net/<name>/type."""


class Calls(Struct, frozen=True):
    """A number of calls of `nbytes` (as printed) of one operation."""

    op: str
    nbytes: int
    number: int


def count_traffic(
    plan: Plan, wanted: Mapping[str, Calls], exchange: Exchange, set_phase: SetPhase, read_counters: Callable[[], Any]
) -> Iterator[tuple[Calls, Any, Any]]:
    """Make the calls of each operation over the default group, on all ranks, between two `read_counters`.

    Raises ProbeError if a call fails.
    """
    if not wanted:
        return
    device, itemsize = torch.device(plan.device), DTYPES[plan.dtype]
    shapes = {name: OPS[name].shape(calls.nbytes, plan.ranks, itemsize) for name, calls in wanted.items()}
    need = footprint(max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes.values()), 1)
    buffers = allocate(need, getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock_of(device), buffers)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name, calls in wanted.items():
        phase_name = f"{name} {units.size(calls.nbytes)} counted"
        view = context.views(shapes[name], OPS[name].places[0])[0]
        call = probes[name].run(view)
        set_phase(f"{phase_name}, first look")
        before = read_counters()
        barrier(exchange)
        with context.phase(f"{phase_name}, {calls.number} calls"):
            for _ in range(calls.number):
                call()
            context.clock.synchronise()
        set_phase(f"{phase_name}, last look")
        barrier(exchange)
        yield calls, before, read_counters()


class TransportDetection:
    """One rank's part in detecting the transports. Every rank makes the same calls in the same order."""

    def __init__(self, run: RankContext) -> None:
        self._identity, self._host = run.identity, run.host
        self._exchange, self._set_phase = run.exchange, run.set_phase
        self._backend, self._node, self._hosts = run.config.backend, run.node, run.hosts
        self._logs: tuple[log.Log, ...] = ()
        self._sockets: str | None = None
        self._own_names: list[str] | None = None
        self._sizes: dict[str, list[tuple[int, float]]] = {}
        self.note = ""
        """On rank 0: what could not be found, and why."""

    def before(self, plan: Any, deadline_s: float) -> None:
        """Find gloo's interface, or NCCL's own log, before anything is measured."""
        if self._backend == "gloo":
            self._own_names = gloo_interfaces(self._host)
            names = self._exchange.collect(self._own_names)
            if names is not None:
                self._sockets = socket_names(names, self._hosts)
            return
        import torch

        from ncclprobe.session.measure import nccl_debug

        self._set_phase("NCCL_DEBUG pass, in processes of its own")
        torch.cuda.empty_cache()  # the processes of the pass share this rank's GPU
        found = nccl_debug.run_pass(plan, self._identity, self._exchange, deadline_s)
        if found is not None:
            self._logs, self.note = found

    def with_transport(self, row: Measurement) -> Measurement:
        """Add the transport to `row`, if it is known."""
        self._sizes.setdefault(row.op, []).append((row.nbytes, row.time_us.mean / 1e6))
        if self._backend == "gloo":
            return replace(row, transport=Transport(network=self._sockets))
        return replace(row, transport=transport(row, self._logs))

    def count(self, plan: Any) -> tuple[OperationTraffic, ...]:
        """Count the bytes that NICs moved in some calls of each measured operation; rank 0 only.

        On one node no byte should leave it, and nothing is counted.
        """
        self._set_phase("choose the calls to count")
        wanted = self._exchange.share(self._choose_sizes() if self._identity.rank == 0 else None)
        calls = {name: Calls(**one) for name, one in wanted.items()}
        if not calls:
            return ()
        self._set_phase("expected NICs")
        infos = self._exchange.collect(self._rank_info())
        found: list[OperationTraffic] = []
        for made, before, after in count_traffic(plan, calls, self._exchange, self._set_phase, self._look):
            counters = self._exchange.collect([before, after])
            if infos and counters:
                found.append(
                    operation_traffic(made.op, made.nbytes * made.number, bytes_by_node(infos, counters, self._hosts))
                )
        return tuple(found)

    def _choose_sizes(self) -> dict[str, dict[str, Any]]:
        """Choose, for each operation, the largest size whose call is short, and the number of calls."""
        if len(set(self._hosts)) < 2:
            return {}
        found = {}
        for op, timed in self._sizes.items():
            quick = [each for each in timed if each[1] <= _LONGEST_CALL_S] or [min(timed)]
            nbytes, seconds = max(quick)
            number = min(_MOST_CALLS, max(1, math.ceil(_CALLS_S / max(seconds, 1e-6))))
            found[op] = {"op": op, "nbytes": nbytes, "number": number}
        return found

    def _look(self) -> Any:
        """Read this node's counters, as JSON; None on all but one rank of each node."""
        if self._identity.local_rank:
            return None
        if any(_driver(self._host, name) in _SLOW_DRIVERS for name in _listed(self._host, NET)):
            time.sleep(_SLOW_COUNTERS_S)
        return packed(traffic.read(self._host))

    def _rank_info(self) -> dict[str, Any]:
        """Return the NICs that should carry this rank's bytes (None: unknown), and the devices below the node's
        interfaces.

        The latter only on one rank of each node. With NCCL that rank answers for its node; gloo reads each rank's
        variable.
        """
        reads = self._identity.local_rank == 0
        names = [name for name in _listed(self._host, NET) if name != "lo"] if reads else []
        return {
            "expected": self._own_names
            if self._backend == "gloo"
            else nccl_devices(self._node.snapshot())
            if reads
            else [],
            "below": {name: under for name in names if (under := lower_devices(self._host, name))} if reads else None,
        }


def gloo_interfaces(host: Host) -> list[str] | None:
    """Return gloo's interfaces on this rank: those of GLOO_SOCKET_IFNAME, otherwise that of the host's own name."""
    names = named(os.environ.get("GLOO_SOCKET_IFNAME", ""))
    own = None if names else rank_nics.interface(host, dict(os.environ))
    return list(names) or ([own.name] if own else None)


def socket_names(names: Sequence[list[str] | None], hosts: Sequence[str]) -> str:
    """Describe gloo's transport; between ranks of one node the kernel uses loopback for any address."""
    if len(set(hosts)) < 2:
        return "gloo tcp lo"
    known = dict.fromkeys(name for each in names if each for name in each)
    return f"gloo tcp {first_of(known, MOST_DEVICES)}" if all(names) else "gloo tcp"


def nccl_devices(snapshot: Snapshot) -> list[str] | None:
    """Return NCCL's choice: HCA ports (for a port without counters its interface too), otherwise interfaces."""
    from ncclprobe.facts.infiniband import Fabric
    from ncclprobe.nccl.selection import choose

    made, fabric = choose(snapshot), learned(snapshot.facts, Fabric)
    if made.hcas.chosen is None:
        return None
    ports = [each.port for each in made.hcas.chosen]
    if not ports:
        return [each.name for each in made.sockets.chosen] if made.sockets.chosen is not None else None
    gids = [
        gid
        for port in (fabric.ports if fabric else ())
        if port.name in ports and not port.counters and not isinstance(port.gids, Absent)
        for gid in port.gids
    ]
    return [*ports, *dict.fromkeys(gid.netdev for gid in gids if gid.netdev)]


def lower_devices(host: Host, name: str) -> list[str]:
    """Return the devices below an interface: a bond's or VLAN's NICs, the port under IPoIB."""
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
    """Convert counters to JSON: two numbers each, or the reason why there are none."""
    kinds: tuple[NicKind, ...] = ("ethernet", "rdma")
    return {
        kind: {n: c.why if isinstance(c, Absent) else [c.sent, c.received] for n, c in seen.of(kind).items()}
        for kind in kinds
    }


def unpacked(received: Mapping[str, Mapping[str, Any]]) -> Traffic:
    """Convert counters from JSON."""
    return Traffic(*({n: _count(c) for n, c in received[kind].items()} for kind in ("ethernet", "rdma")))


def _count(received: Any) -> Count | Absent:
    return Absent(received) if isinstance(received, str) else Count(*received)


def bytes_by_node(infos: Sequence[Any], counters: Sequence[Any], hosts: Sequence[str]) -> list[Carried]:
    """Return what each node carried. Two nodes with the same name are indistinguishable, so neither counts."""
    found: dict[str, list[Carried]] = {}
    for node, info, (before, after) in zip(hosts, infos, counters, strict=True):
        if before is None:
            continue
        first, last = unpacked(before), unpacked(after)
        moved = traffic.moved(first, last, "ethernet"), traffic.moved(first, last, "rdma")
        found.setdefault(node, []).append(Carried(node, *moved, _expected(infos, hosts, node), info["below"]))
    return [each[0] for each in found.values() if len(each) == 1]


def _expected(infos: Sequence[Any], hosts: Sequence[str], node: str) -> frozenset[str] | None:
    """Return the NICs that the ranks of `node` expect; None if one of them does not know."""
    received = [info["expected"] for info, host in zip(infos, hosts, strict=True) if host == node]
    return None if None in received else frozenset(name for names in received for name in names)
