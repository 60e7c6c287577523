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
from ncclprobe.host import Host
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.session.ranks.store import Exchange

_STREAMS_S = 10.0
"""For all streams together: each takes a quarter of a second at most, twice, one after the other at each end."""
_ROAD = "default"


def slowest_link(exchange: Exchange, seat: Seat, host: Host, name: str) -> SocketLink | None:
    """The link that decides, on rank 0; None there where it is not known, and on every other rank.

    Every rank of the run calls this at the same time. One rank per node looks and streams.
    """
    leads = seat.local_rank == 0
    own = interface(host, dict(os.environ)) if leads else None
    said = exchange.collect(_card(own, name) if leads else None)
    cards = [card for card in said or () if card]
    reported = slowest([Speed(card["node"], card["interface"], card["gbps"], card["virtual"]) for card in cards])
    note = {"stream": reported is None, "token": secrets.token_hex(16), "seconds": _STREAMS_S}
    note = exchange.share(note if seat.rank == 0 else None)
    if not note["stream"]:
        return reported
    rates = asyncio.run(_streams(exchange, seat, own, name, note))
    return typical([rate for rates_of_one in rates or () for rate in rates_of_one]) if seat.rank == 0 else None


def _card(own: Interface | None, name: str) -> dict[str, Any]:
    gbps = own.speed_mbps / 1000 if own and own.speed_mbps else None
    return {"node": name, "interface": own.name if own else "?", "gbps": gbps, "virtual": own.virtual if own else None}


def interface(host: Host, variables: Mapping[str, str]) -> Interface | None:
    """The interface that gloo takes: the one GLOO_SOCKET_IFNAME names, else that of this host's own name."""
    try:
        found = interfaces.run(host).all
    except (HostError, ParseError):
        return None
    named = variables.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if named:
        return next((each for each in found if each.name == named), None)
    try:
        own = {row[4][0] for row in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return None
    mine = (i for i in found if not i.loopback and {a.address.partition("%")[0] for a in i.addresses} & own)
    return next(mine, None)


async def _streams(
    exchange: Exchange, seat: Seat, own: Interface | None, name: str, note: Mapping[str, Any]
) -> list[list[float]] | None:
    """What this node's streams carried, in Gb/s; on rank 0 those of all nodes."""
    from ncclprobe.cluster.mesh import MeshInterface, plan_mesh, reserve_listeners, walk
    from ncclprobe.cluster.mesh.interfaces import parse_listeners

    token = hashlib.sha256(str(note["token"]).encode()).digest()
    reached = (
        [MeshInterface(_ROAD, own.name, address)] if own and (address := _address(own)) and seat.local_rank == 0 else []
    )
    doors = reserve_listeners(reached, seat.rank, name)
    doors.listen(token)
    try:
        said = await asyncio.to_thread(exchange.collect, [door._asdict() for door in doors.addresses])
        listening = await asyncio.to_thread(exchange.share, said)
        everywhere = {rank: parse_listeners(each) for rank, each in enumerate(listening) if each}
        rates: list[float] = []
        if seat.rank in everywhere and len(everywhere) > 1:
            plan = plan_mesh(everywhere)[seat.rank]
            few = type(plan)(plan.me, plan.names, plan.rates, plan.rates)
            seen = await walk(few, doors, time.monotonic() + float(note["seconds"]))
            rates = [row.rate_gbps for row in seen.rows if row.rate_gbps]
        everyones = await asyncio.to_thread(exchange.collect, rates)
        await asyncio.to_thread(exchange.share, None)  # nobody closes a door before all have streamed
        return everyones
    finally:
        doors.close()


def _address(own: Interface) -> str | None:
    """IPv4 first: every node has one where any has."""
    ordered: Sequence[str] = sorted(
        (each.address for each in own.addresses), key=lambda text: ipaddress.ip_address(text.partition("%")[0]).version
    )
    return ordered[0] if ordered else None
