"""The slowest link between the nodes of a gloo run: what their interfaces report, or what a TCP stream carries.

A virtual interface reports a number that means nothing, so there each node streams for a moment to the next ones, over
listeners of its own that only this run's token opens (:mod:`ncclprobe.cluster.mesh`).
"""

import asyncio
import hashlib
import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ncclprobe.errors import HostError, ParseError
from ncclprobe.expect.sockets import SocketInterface as Speed
from ncclprobe.expect.sockets import SocketLink, slowest, typical
from ncclprobe.facts.interfaces import Interface, interfaces
from ncclprobe.facts.names import OwnName, resolve_own
from ncclprobe.host import Host
from ncclprobe.nccl.gloo import Device, devices, named
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange

_STREAMS_S = 10.0
"""For all streams together: each takes a quarter of a second at most, twice, one after the other at each end."""
_ROLE = "default"


def slowest_link(exchange: Exchange, identity: RankIdentity, host: Host, name: str) -> SocketLink | None:
    """Return the slowest link, on rank 0; None there where it is not known, and on every other rank.

    Every rank of the run calls this at the same time. One rank per node reads its interface and streams.
    """
    leads = identity.local_rank == 0
    own = interface(host, dict(os.environ)) if leads else None
    received = exchange.collect(_interface_info(own, name) if leads else None)
    infos = [info for info in received or () if info]
    reported = slowest([Speed(info["node"], info["interface"], info["gbps"], info["virtual"]) for info in infos])
    decision = {"stream": reported is None, "token": secrets.token_hex(16), "seconds": _STREAMS_S}
    decision = exchange.share(decision if identity.rank == 0 else None)
    if not decision["stream"]:
        return reported
    rates = asyncio.run(_streams(exchange, identity, own, name, decision))
    return typical([rate for rates_of_one in rates or () for rate in rates_of_one]) if identity.rank == 0 else None


def _interface_info(own: Interface | None, name: str) -> dict[str, Any]:
    gbps = own.speed_mbps / 1000 if own and own.speed_mbps else None
    return {"node": name, "interface": own.name if own else "?", "gbps": gbps, "virtual": own.virtual if own else None}


def interface(host: Host, variables: Mapping[str, str]) -> Interface | None:
    """Return the interface that gloo listens on first, if other nodes may reach it; None where it is not known."""
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
    from ncclprobe.cluster.mesh import MeshInterface, plan_mesh, reserve_listeners, walk
    from ncclprobe.cluster.mesh.interfaces import parse_listeners

    token = hashlib.sha256(str(decision["token"]).encode()).digest()
    interfaces_out = (
        [MeshInterface(_ROLE, own.name, address)]
        if own and (address := _address(own)) and identity.local_rank == 0
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


def _address(own: Interface) -> str | None:
    """Return the address to reach, IPv4 first."""
    ordered: Sequence[str] = sorted(
        (each.address for each in own.addresses), key=lambda text: ipaddress.ip_address(text.partition("%")[0]).version
    )
    return ordered[0] if ordered else None
