"""Reach rank 0, layer by layer, until it answers or time is up.

Resolve its name, ask the kernel for the route, connect, check that what answers is ours, prove the token. Rank 0 may
start later, so an unresolved name and a closed port are retried; a service that is not ours is called only a few times
(docs/threat-model.md).
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ncclprobe.cluster.rails.node import RailsOrder
from ncclprobe.cluster.rendezvous.messages import CHUNK_CHARS, Hello, Leave, parse
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts.reach import ClockOffset, Reach
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError
from ncclprobe.model.values import replace
from ncclprobe.wire import SMALL_SEGMENT, STRANGERS_PATIENCE_S, Key, Wire, WireError, connect, segments_of

Resolve = Callable[[str], Sequence[str]]

_CONNECT_S = 3.5
"""For one address: the kernel repeats an unanswered SYN after 1 s and 3 s (tcp_syn_retries, tcp(7))."""
_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
_ENOUGH = {  # calls, a second apart, of something that is there and does not seem to be ours
    "foreign": 3,
    "stranger": 3,
    "garbled": 3,
    "too-big": 3,
    "silent": 8,
}
_LONGER_S = 0.5
"""Extra wait for a greeting after each silent call: rank 0 may only be busy."""
_BY_PATIENCE = ("resolve", "filtered", "silent")
"""Outcomes of a try that begins too late, whatever was there."""
_FARTHER = (
    *("resolve", "route", "address", "denied", "unreachable", "filtered", "refused"),
    *("reset", "hung-up", "silent", "foreign", "garbled", "too-big", "stranger"),
)
"""How far a call got. With several addresses, the one that got farthest is the most informative."""


def addresses_of(name: str) -> Sequence[str]:
    """Return the addresses from getaddrinfo(3), in its order. Raises OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


async def find(
    target: str,
    port: int,
    key: Key,
    deadline: float,
    *,
    interfaces: Mapping[str, str] = MappingProxyType({}),
    resolve: Resolve = addresses_of,
) -> tuple[Wire | None, Reach]:
    """Return an open connection to rank 0 or None, and the steps that led there. Ends by `deadline`, never raises.

    `interfaces`: names of this node's interfaces, by address. `resolve` may hang: it runs on a thread that is
    abandoned.
    """
    started = time.monotonic()
    reach = Reach(target, port, "resolve", "no time was left to try")
    counts: Counter[str] = Counter()
    while time.monotonic() < deadline:
        patience_s = STRANGERS_PATIENCE_S + _LONGER_S * counts["silent"]
        wire, now = await _try_addresses(reach, key, deadline, interfaces, resolve, patience_s)
        cut_short = reach.tries > 0 and now.outcome in _BY_PATIENCE and time.monotonic() >= deadline
        tries = reach.tries + 1
        reach = reach if cut_short else now
        counts[reach.outcome] += 1
        seen = tuple(dict.fromkeys((*reach.seen, reach.outcome)))
        reach = replace(reach, tries=tries, seen=seen, seconds=round(time.monotonic() - started, 3))
        if wire is not None or counts[reach.outcome] >= _ENOUGH.get(reach.outcome, tries + 1):
            return wire, reach
        hurry = tries <= len(_PAUSES_S) and reach.outcome not in _ENOUGH
        pause_s = _PAUSES_S[tries - 1] if hurry else 1.0
        await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
    return None, reach


async def _try_addresses(
    reach: Reach, key: Key, deadline: float, interfaces: Mapping[str, str], resolve: Resolve, patience_s: float
) -> tuple[Wire | None, Reach]:
    """Try every address once."""
    try:
        addresses = tuple(await run_in_thread(lambda: resolve(reach.target), deadline))[: bounds.RESOLVED_ADDRESSES]
        trouble = "resolves to nothing"
    except TimeoutError:
        addresses, trouble = (), "no answer from the resolver"
    except (OSError, ValueError, HostError) as error:  # UnicodeError: a name that no DNS can have
        addresses, trouble = (), getattr(error, "strerror", None) or str(error)
    reach = replace(reach, addresses=addresses)
    rounds = [replace(reach, outcome="resolve", detail=f"{reach.target}: {trouble}", address="", source="")]
    for address in addresses:
        wire, attempt = await _attempt(reach, address, key, deadline, interfaces, patience_s)
        if wire is not None:
            return wire, attempt
        rounds.append(attempt)
    return None, max(rounds, key=lambda each: _FARTHER.index(each.outcome))


async def _attempt(
    reach: Reach, address: str, key: Key, deadline: float, interfaces: Mapping[str, str], patience_s: float
) -> tuple[Wire | None, Reach]:
    reach = replace(reach, address=address, source="", interface="")
    try:
        source = source_towards(address, reach.port)
    except OSError as error:
        outcome = "address" if error.errno == errno.EINVAL else "route"
        return None, replace(reach, outcome=outcome, detail=f"{address}: {os.strerror(error.errno or 0)}")
    reach = replace(reach, source=source, interface=interfaces.get(source, ""))
    try:
        until = min(deadline, time.monotonic() + _CONNECT_S)
        wire = await connect(address, reach.port, key, until, options=segments_of(SMALL_SEGMENT), patience_s=patience_s)
    except WireError as error:
        return None, replace(reach, outcome=error.kind, detail=str(error))
    return wire, replace(reach, outcome="ok", detail="")


def source_towards(address: str, port: int) -> str:
    """Return this node's address that the kernel would use towards `address`; send nothing. Raises OSError."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    family, kind, _, _, to = found[0]
    with contextlib.closing(socket.socket(family, kind)) as probe:
        probe.connect(to)
        name = probe.getsockname()
    if family == socket.AF_INET6:  # with its scope, as getifaddrs has it
        return socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    return str(name[0])


_PINGS = 8
_GOODBYE_S = 0.2


class Worker:
    """One node's connection to rank 0, over `wire`. Every method raises WireError if rank 0 is lost or late."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def join(self, hello: Hello, capture: str, deadline: float) -> None:
        """State this node's identity and hand over `capture`. Raises Refused if rank 0 refuses it."""
        listeners = list(hello.listeners)
        fields = {"id": hello.id, "node_rank": hello.node_rank, "name": hello.name, "listeners": listeners}
        await self._wire.send({"hello": fields}, deadline)
        await self._expect("go", bool, deadline)
        for at in range(0, max(1, len(capture)), CHUNK_CHARS):
            more = at + CHUNK_CHARS < len(capture)
            await self._wire.send({"capture": capture[at : at + CHUNK_CHARS], "more": more}, deadline)
        await self._expect("welcome", bool, deadline)

    async def clock(self, deadline: float) -> ClockOffset:
        """Measure this node's clock offset to rank 0: at the middle of the shortest of several round trips."""
        await self._ping(0, deadline)  # the first is slow: caches, and a coordinator with others to welcome
        best = min([await self._ping(number, deadline) for number in range(1, _PINGS)], key=lambda seen: seen.rtt_s)
        await self._wire.send({"ready": True}, deadline)
        return best

    async def _ping(self, number: int, deadline: float) -> ClockOffset:
        wall_s, started = time.time(), time.monotonic()
        await self._wire.send({"ping": number}, deadline)
        theirs_s = await self._expect("wall_s", float, deadline)
        rtt_s = time.monotonic() - started
        return ClockOffset(offset_s=wall_s + rtt_s / 2 - theirs_s, rtt_s=rtt_s)

    async def next_instruction(self, deadline: float) -> bytes | dict[str, Any] | RailsOrder | Leave:
        """Return this node's next task: listen for this key, run a plan, test rails, or leave."""
        message = await self._wire.receive(deadline, bounds.PLAN_BYTES)
        if "listen" in message:
            try:
                return self._wire.seal(bytes.fromhex(parse(message, "listen", str)))
            except ValueError:
                raise WireError("garbled", "sent an invalid key") from None
        if "rails" in message:
            return parse(message, "rails", RailsOrder)
        return parse(message, "plan", dict[str, Any]) if "plan" in message else parse(message, "leave", Leave)

    async def listening(self, deadline: float) -> None:
        """Report that this node listens."""
        await self._wire.send({"listening": True}, deadline)

    async def report(self, samples: Mapping[str, Any], deadline: float) -> None:
        """Send the measured samples, by name."""
        await self._wire.send({"samples": dict(samples)}, deadline)

    async def _expect(self, key: str, kind: Any, deadline: float) -> Any:
        return parse(await self._wire.receive(deadline, bounds.HELLO_BYTES), key, kind)

    async def give_up(self) -> None:
        """Report that this node lives, but leaves because rank 0 did not answer in time; a dead node is silent."""
        with contextlib.suppress(WireError):
            await self._wire.send({"late": True}, time.monotonic() + _GOODBYE_S)

    def close(self) -> None:
        """Hang up."""
        self._wire.close()
