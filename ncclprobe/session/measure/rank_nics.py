"""The NIC that carries each rank's bytes, and the slowest link between the nodes of a gloo run.

A link's rate is what its interfaces report, or what a TCP stream shows. A virtual interface reports a meaningless
number, so there each node streams briefly to the next ones, over its own listeners, which only this run's token opens
(:mod:`ncclprobe.cluster.mesh`).

With NCCL a rank's NIC is the one nearest to its GPU among those that NCCL chooses; with gloo it is its own interface.
With NCCL one rank per node inspects the node, and rank 0 assigns a NIC to each rank.
"""

import asyncio
import hashlib
import ipaddress
import os
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ncclprobe.expect.sockets import SocketInterface as Speed
from ncclprobe.expect.sockets import SocketLink, slowest, typical
from ncclprobe.facts.interfaces import Interface, interfaces
from ncclprobe.facts.names import OwnName, resolve_own
from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, ParseError
from ncclprobe.model.pair_results import Nic
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.nccl.gloo import Device, devices, named
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.ranks.identity import Backend, RankIdentity
from ncclprobe.session.ranks.store import Exchange

_STREAMS_S = 10.0
"""Limit for all streams together: each takes at most a quarter of a second, twice, one after the other at each end."""
_ROLE = "default"


def slowest_link(exchange: Exchange, identity: RankIdentity, host: Host, name: str) -> SocketLink | None:
    """Return the slowest link, on rank 0; None there if unknown, and on every other rank.

    Every rank of the run calls this at the same time. One rank per node reads its interface and streams.
    """
    leads = identity.local_rank == 0
    own = interface(host, dict(os.environ)) if leads else None
    received = exchange.collect(interface_info(own, name) if leads else None)
    infos = [info for info in received or () if info]
    reported = slowest([Speed(info["node"], info["interface"], info["gbps"], info["virtual"]) for info in infos])
    decision = {"stream": reported is None, "token": secrets.token_hex(16), "seconds": _STREAMS_S}
    decision = exchange.share(decision if identity.rank == 0 else None)
    if not decision["stream"]:
        return reported
    rates = asyncio.run(_streams(exchange, identity, own, name, decision))
    return typical([rate for rates_of_one in rates or () for rate in rates_of_one]) if identity.rank == 0 else None


def interface_info(own: Interface | None, name: str) -> dict[str, Any]:
    gbps = own.speed_mbps / 1000 if own and own.speed_mbps else None
    return {"node": name, "interface": own.name if own else "?", "gbps": gbps, "virtual": own.virtual if own else None}


def interface(host: Host, variables: Mapping[str, str]) -> Interface | None:
    """Return the interface that gloo listens on first, if other nodes may reach it; None if unknown."""
    ifname, hostname = variables.get("GLOO_SOCKET_IFNAME", ""), socket.gethostname()
    try:
        found = interfaces.run(host)
        own = OwnName() if named(ifname) else resolve_own(host, hostname)
    except (HostError, ParseError):
        return None
    first = devices(found, ifname, hostname, own.addresses)[0]
    return found.by_name.get(first.interface) if isinstance(first, Device) and not first.loopback else None


async def _streams(
    exchange: Exchange, identity: RankIdentity, own: Interface | None, name: str, decision: Mapping[str, Any]
) -> list[list[float]] | None:
    """Stream to other nodes; return the rates in Gb/s, on rank 0 those of all nodes."""
    from ncclprobe.cluster.mesh.listeners import MeshInterface, parse_listeners, reserve_listeners
    from ncclprobe.cluster.mesh.plan import plan_mesh
    from ncclprobe.cluster.mesh.walk import walk

    token = hashlib.sha256(str(decision["token"]).encode()).digest()
    interfaces_out = (
        [MeshInterface(_ROLE, own.name, address)]
        if own and (address := address_of(own)) and identity.local_rank == 0
        else []
    )
    listeners = reserve_listeners(interfaces_out, identity.rank, name)
    listeners.listen(token)
    try:
        received = await asyncio.to_thread(exchange.collect, [listener._asdict() for listener in listeners.addresses])
        listening = await asyncio.to_thread(exchange.share, received)
        everywhere = {rank: parse_listeners(each) for rank, each in enumerate(listening) if each}
        rates: list[float] = []
        if identity.rank in everywhere and len(everywhere) > 1:
            plan = plan_mesh(everywhere)[identity.rank]
            short = type(plan)(plan.me, plan.names, plan.rates, plan.rates)
            seen = await walk(short, listeners, time.monotonic() + float(decision["seconds"]))
            rates = [row.rate_gbps for row in seen.rows if row.rate_gbps]
        all_rates = await asyncio.to_thread(exchange.collect, rates)
        await asyncio.to_thread(exchange.share, None)  # close no listener before all have streamed
        return all_rates
    finally:
        listeners.close()


def address_of(own: Interface) -> str | None:
    """Return the address for reaching it, IPv4 first."""
    ordered: Sequence[str] = sorted(
        (each.address for each in own.addresses), key=lambda text: ipaddress.ip_address(text.partition("%")[0]).version
    )
    return ordered[0] if ordered else None


def rank_info(backend: Backend, host: Host, gpu: str | None, look: NodeSnapshot | None) -> dict[str, Any]:
    """Build a rank's report to rank 0, as JSON: the identity of its GPU; the rank with the `look` adds its node.

    With gloo each rank names its own interface, because GLOO_SOCKET_IFNAME may differ between ranks.
    """
    if backend == "gloo":
        found = interface(host, dict(os.environ))
        return {"gpu": gpu, "own": found.name if found else ""}
    return {"gpu": gpu, "node": snapshot_nics(look.snapshot())} if look else {"gpu": gpu}


def nics(hosts: Sequence[str], infos: Sequence[Mapping[str, Any]]) -> tuple[Nic | None, ...]:
    """Return the NIC of each rank, by rank; None if unknown."""
    nodes = {host: each["node"] for host, each in zip(hosts, infos, strict=True) if each.get("node")}
    before: defaultdict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    found: list[Nic | None] = []
    own: defaultdict[str, list[str]] = defaultdict(list)
    for host, name in sorted({(host, each["own"]) for host, each in zip(hosts, infos, strict=True) if each.get("own")}):
        own[host].append(name)
    for host, each in zip(hosts, infos, strict=True):
        if each.get("own"):
            found.append(Nic(each["own"], own[host].index(each["own"])))
            continue
        node = nodes.get(host, {"nics": (), "near": {}})
        near = tuple(node["near"].get(each["gpu"], ()))
        turn = before[host, near]  # GPUs that are equally near to the same NICs take them in turn
        before[host, near] += 1
        name = near[turn % len(near)] if near else ""
        found.append(Nic(name, node["nics"].index(name)) if name in node["nics"] else None)
    return tuple(found)


def snapshot_nics(snapshot: Snapshot) -> dict[str, Any]:
    """Return the NICs that NCCL chooses on a node, in its order, and those nearest to each GPU, by its identity.

    Without an HCA all GPUs share the interface of NCCL's sockets.
    """
    from ncclprobe.facts.nvml import Gpus
    from ncclprobe.nccl.selection import choose

    gpus: Gpus | Absent = snapshot.facts.get(Gpus, Absent("never collected"))
    if isinstance(gpus, Absent):
        return {"nics": [], "near": {}}
    made = choose(snapshot)
    taken = list(dict.fromkeys(port.port.partition(":")[0] for port in made.hcas.chosen or ()))
    if taken:
        nearest = {each.gpu: each.nics for each in made.gpudirect.chosen or ()}
    else:
        taken = [each.name for each in (made.sockets.chosen or ())[:1]]
        nearest = {f"GPU{gpu.index}": tuple(taken) for gpu in gpus.all}
    return {"nics": taken, "near": {key: list(nearest.get(name, ())) for key, name in gpus.names.items()}}
