"""One path: call a listener from the own interface of that road, ask who it is, and see whether large packets pass."""

import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ncclprobe import wire
from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER
from ncclprobe.cluster.mesh.plan import Call
from ncclprobe.cluster.mesh.tcp import tcp_info
from ncclprobe.errors import NcclprobeError
from ncclprobe.facts.paths import Door, Path
from ncclprobe.wire import Wire, WireError

TRY_S = 2.0
"""For connecting, the handshake and the echoes. A lost SYN is sent again after one second (RFC 6298)."""

LARGE_S = 2.0
"""For 256 KiB each way: a link of 10 Mbit/s takes 0.2 s."""

_ECHOES = 5
_ANSWER_BYTES = 1024
_DETAIL_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Caller:
    """The run's token, and the time by which all calls must be over."""

    token: bytes
    deadline: float

    def limit(self, seconds: float) -> float:
        """The end of something that may take `seconds`."""
        return min(self.deadline, time.monotonic() + seconds)

    def outcome(self, error: WireError, limit: float) -> str:
        """How a path ended; ``late`` where it was our own time that ended: that is never the other side's fault."""
        return "late" if error.kind in ("filtered", "silent") and limit >= self.deadline else error.kind


class Impostor(NcclprobeError):
    """Another node of this run answers at the address."""


class _Stopped(NcclprobeError):
    """The conversation ended: `outcome` says how, the message in words."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


async def walk_path(caller: Caller, call: Call, own: Door) -> Path:
    """Try one path, once. What goes wrong is an outcome, never an error."""
    path = untried(call, own)
    if time.monotonic() >= caller.deadline:
        return path
    path = replace(path, tries=1, detail="")
    if _family(own.address) != _family(call.address):
        return replace(path, outcome="unreachable", detail=f"from {own.address}: IPv4 and IPv6 do not meet")
    limit = caller.limit(TRY_S)
    try:
        talk = await reach(caller, call, own, limit)
    except Impostor as error:
        return replace(path, outcome="wrong-peer", detail=str(error))
    except WireError as error:
        return replace(path, outcome=caller.outcome(error, limit), detail=str(error)[:_DETAIL_CHARACTERS])
    try:
        return await _measured(caller, path, talk)
    finally:
        talk.close()


def untried(call: Call, own: Door) -> Path:
    """The row of a path for which there was no time."""
    return Path(call.to, call.road, own.interface, own.address, call.address, "late", "not tried: no time left", 0)


async def reach(caller: Caller, call: Call, own: Door, deadline: float) -> Wire:
    """A conversation with the node that `call` means. Raises WireError, Impostor."""
    talk = await wire.connect(_scoped(call.address, own), call.port, caller.token, deadline, own.address)
    try:
        who = await talk.receive(deadline, _ANSWER_BYTES)
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        talk.close()
        raise
    if who.get("node") != call.to:
        talk.close()
        raise Impostor(f"node {who.get('node')!s:.20}, {who.get('name')!s:.80}, answers there")
    return talk


async def _measured(caller: Caller, path: Path, talk: Wire) -> Path:
    """Round trips of small messages, then a large one there, then one back."""
    outcome, detail, trips = "ok", "", [float("inf")]
    try:
        await _by(caller, TRY_S, lambda limit: _round_trips(talk, trips, limit))
        await _by(caller, LARGE_S, lambda limit: _there(talk, limit), "stalled-out")
        await _by(caller, LARGE_S, lambda limit: _back(talk, limit), "stalled-back")
    except _Stopped as error:
        outcome, detail = error.outcome, str(error)[:_DETAIL_CHARACTERS]
    kernel = tcp_info(talk)
    return replace(
        path,
        outcome=outcome,
        detail=detail,
        rtt_s=kernel.rtt_s or (trips[-1] if len(trips) > 1 else None),
        path_mtu=kernel.path_mtu,
        resent=kernel.resent,
        segments=kernel.segments,
    )


async def _by(caller: Caller, seconds: float, step: Callable[[float], Awaitable[None]], silent: str = "silent") -> None:
    """Take one step in its time. Raises _Stopped, with the outcome `silent` where nothing came."""
    limit = caller.limit(seconds)
    try:
        await step(limit)
    except WireError as error:
        outcome = caller.outcome(error, limit)
        raise _Stopped(silent if outcome == "silent" else outcome, str(error)) from None


async def _round_trips(talk: Wire, trips: list[float], limit: float) -> None:
    """Keep the shortest so far at the end of `trips`."""
    for number in range(_ECHOES):
        began = time.monotonic()
        await talk.send({"echo": number}, limit)
        if (await talk.receive(limit, _ANSWER_BYTES)).get("echo") != number:
            raise WireError("garbled", "answers something else than it was asked")
        trips.append(min(trips[-1], time.monotonic() - began))


async def _there(talk: Wire, limit: float) -> None:
    await talk.send({"do": "take"}, limit)
    await talk.pour(FILLER, limit)
    await talk.receive(limit, _ANSWER_BYTES)


async def _back(talk: Wire, limit: float) -> None:
    await talk.send({"do": "give"}, limit)
    await talk.swallow(CHUNK_BYTES, limit)


def _family(address: str) -> int:
    return ipaddress.ip_address(address.partition("%")[0]).version


def _scoped(address: str, own: Door) -> str:
    """A link-local address of theirs, with our name of the link."""
    bare = address.partition("%")[0]
    return f"{bare}%{own.interface}" if ipaddress.ip_address(bare).is_link_local and ":" in bare else bare
