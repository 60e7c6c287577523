"""Open a node's own listeners: each names its node to a caller with the run's token, echoes, and takes or sends filler.

Filler (zeros) is the one thing that travels unsigned: it is counted and dropped. Everything else is a frame of
:mod:`ncclprobe.wire`. A caller holds a connection for at most a minute, and one of 256.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from ncclprobe import wire
from ncclprobe.facts.paths import MeshListener
from ncclprobe.model.values import Struct, field
from ncclprobe.wire import Wire, WireError

CHUNK_BYTES = 256 << 10
"""Bytes of filler at a time: larger than the packets of any network, so that the path's largest packets are used."""

FILLER = bytes(CHUNK_BYTES)
MAX_STREAM_BYTES = 64 << 20
STREAM_S = 3.0  # that one caller may keep the others waiting
_MESSAGE_BYTES = 4096
_CALLERS = 256
_HANDSHAKE_S = 5.0
_VISIT_S = 60.0


class MeshInterface(Struct, frozen=True):
    """An interface to listen on; `name` is its role: ``nccl0`` is the first that NCCL would use."""

    name: str
    interface: str
    address: str


class Listeners(Struct):
    """The listeners of node `me`, open until close(). `unopened` holds, by role, why one could not be opened."""

    me: int
    name: str
    token: bytes
    addresses: tuple[MeshListener, ...] = ()
    unopened: dict[str, str] = field(default_factory=dict)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        """Stop listening and close all connections. Never waits."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    async def open(self, interface: MeshInterface) -> None:
        """Listen on one more address, at a port that the kernel chooses."""
        try:
            server = await asyncio.start_server(self._handle, interface.address, 0, backlog=_CALLERS)
        except OSError as error:
            self.unopened[interface.name] = error.strerror or str(error)
            return
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self.addresses += (MeshListener(interface.name, interface.interface, interface.address, port),)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= _CALLERS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            # What a caller did wrong is its own to tell; being cancelled is how close() ends a visit.
            with contextlib.suppress(WireError, asyncio.CancelledError):
                connection = await wire.accept(reader, writer, self.token, time.monotonic() + _HANDSHAKE_S)
                await self._serve(connection)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, connection: Wire) -> None:
        until = time.monotonic() + _VISIT_S
        await connection.send({"node": self.me, "name": self.name}, until)
        while True:
            asked = await connection.receive(until, _MESSAGE_BYTES)
            if asked.get("do") == "take":
                await connection.discard(CHUNK_BYTES, until)
                await connection.send({"took": CHUNK_BYTES}, until)
            elif asked.get("do") == "give":
                await connection.send_filler(FILLER, until)
            elif asked.get("do") == "stream":
                await self._stream(connection, until)
            else:
                await connection.send({"echo": asked.get("echo")}, until)

    async def _stream(self, connection: Wire, until: float) -> None:
        """Receive one stream after earlier ones have ended, so that each is measured alone at this end."""
        try:
            await asyncio.wait_for(self._turn.acquire(), max(0.0, until - time.monotonic()))
        except asyncio.TimeoutError:
            return
        try:
            await connection.send({"go": True}, until)
            until = min(until, time.monotonic() + STREAM_S)
            nbytes, began = 0, None
            while (await connection.receive(until, _MESSAGE_BYTES)).get("do") == "take" and nbytes < MAX_STREAM_BYTES:
                began = began or time.monotonic()
                await connection.discard(CHUNK_BYTES, until)
                nbytes += CHUNK_BYTES
            seconds = time.monotonic() - began if began else 0.0
            await connection.send({"nbytes": nbytes, "seconds": seconds}, until)
        finally:
            self._turn.release()


async def open_listeners(interfaces: Sequence[MeshInterface], me: int, name: str, token: bytes) -> Listeners:
    """Listen on all `interfaces` of node `me`, called `name`. An address that cannot be used is in `unopened`."""
    listeners = Listeners(me, name, token)
    for interface in interfaces:
        await listeners.open(interface)
    return listeners
