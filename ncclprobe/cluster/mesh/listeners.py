"""A node's own listeners: each says who it is to whoever has the run's token, echoes, and takes or sends filler.

Filler (zeros) is the one thing that travels unsigned: it is counted and dropped. Everything else is a frame of
:mod:`ncclprobe.wire`. Whatever a caller does, it holds a connection for at most a minute, and one of 256.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclprobe import wire
from ncclprobe.facts.paths import Door
from ncclprobe.wire import Wire, WireError

CHUNK_BYTES = 256 << 10
"""Of filler at a time: larger than the packets of any network, so that the path's largest packets are used."""

FILLER = bytes(CHUNK_BYTES)
MAX_STREAM_BYTES = 64 << 20
STREAM_S = 3.0  # that one caller may keep the others waiting
_MESSAGE_BYTES = 4096
_CALLERS = 256
_HANDSHAKE_S = 5.0
_VISIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Road:
    """An interface to listen on: ``nccl0`` is the first that NCCL would use."""

    name: str
    interface: str
    address: str


@dataclass(slots=True)
class Doors:
    """The listeners of node `me`, open until close(). `unopened` says of each road that has none why."""

    me: int
    name: str
    token: bytes
    addresses: tuple[Door, ...] = ()
    unopened: dict[str, str] = field(default_factory=dict)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _visits: "set[asyncio.Task[Any]]" = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        """Stop listening and hang up on whoever is there. Never waits."""
        for server in self._servers:
            server.close()
        for visit in self._visits:
            visit.cancel()

    async def open(self, road: Road) -> None:
        """Listen on one more address, at a port that the kernel chooses."""
        try:
            server = await asyncio.start_server(self._visit, road.address, 0, backlog=_CALLERS)
        except OSError as error:
            self.unopened[road.name] = error.strerror or str(error)
            return
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self.addresses += (Door(road.name, road.interface, road.address, port),)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._visits) >= _CALLERS:
            writer.transport.abort()
            return
        self._visits.add(task)
        try:
            # What a caller did wrong is its own to tell; being cancelled is how close() ends a visit.
            with contextlib.suppress(WireError, asyncio.CancelledError):
                talk = await wire.accept(reader, writer, self.token, time.monotonic() + _HANDSHAKE_S)
                await self._serve(talk)
        finally:
            self._visits.discard(task)
            writer.transport.abort()

    async def _serve(self, talk: Wire) -> None:
        until = time.monotonic() + _VISIT_S
        await talk.send({"node": self.me, "name": self.name}, until)
        while True:
            asked = await talk.receive(until, _MESSAGE_BYTES)
            if asked.get("do") == "take":
                await talk.swallow(CHUNK_BYTES, until)
                await talk.send({"took": CHUNK_BYTES}, until)
            elif asked.get("do") == "give":
                await talk.pour(FILLER, until)
            elif asked.get("do") == "stream":
                await self._stream(talk, until)
            else:
                await talk.send({"echo": asked.get("echo")}, until)

    async def _stream(self, talk: Wire, until: float) -> None:
        """Take one stream, when those that came before have ended: so each is measured alone at this end."""
        try:
            await asyncio.wait_for(self._turn.acquire(), max(0.0, until - time.monotonic()))
        except asyncio.TimeoutError:
            return
        try:
            await talk.send({"go": True}, until)
            until = min(until, time.monotonic() + STREAM_S)
            nbytes, began = 0, None
            while (await talk.receive(until, _MESSAGE_BYTES)).get("do") == "take" and nbytes < MAX_STREAM_BYTES:
                began = began or time.monotonic()
                await talk.swallow(CHUNK_BYTES, until)
                nbytes += CHUNK_BYTES
            seconds = time.monotonic() - began if began else 0.0
            await talk.send({"nbytes": nbytes, "seconds": seconds}, until)
        finally:
            self._turn.release()


async def open_doors(roads: Sequence[Road], me: int, name: str, token: bytes) -> Doors:
    """Listeners on all `roads` of node `me`, called `name`. An address that cannot be used is in `unopened`."""
    doors = Doors(me, name, token)
    for road in roads:
        await doors.open(road)
    return doors
