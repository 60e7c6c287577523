"""Open a node's own listeners: each names its node to a caller with the run's key, echoes, and takes or sends filler.

Filler (zeros) is the one thing that travels unsigned: it is counted and dropped. Everything else is a frame of
:mod:`ncclprobe.wire`. A caller holds a connection for at most a minute. A port is reserved before the nodes meet, and
answers only from :meth:`Listeners.listen` to :meth:`Listeners.close`.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

from ncclprobe import bounds, wire
from ncclprobe.cluster.admission import Admission, Caller
from ncclprobe.facts.reach import Flood, MeshListener
from ncclprobe.model.values import Struct, field
from ncclprobe.wire import Wire, WireError

CHUNK_BYTES = 256 << 10
"""Bytes of filler at a time: larger than the packets of any network, so that the path's largest packets are used."""

FILLER = bytes(CHUNK_BYTES)
STREAM_S, WHOLE_S = 3.0, 10.0
"""That one caller may keep the others waiting: with a stream, and with one of which all must arrive."""
_MESSAGE_BYTES = 4096
_CALLERS = 256
_FROM_ONE_ADDRESS = 32  # that have not proved the key: a node calls with AT_ONCE at a time
_HANDSHAKE_S = 5.0
_VISIT_S = 60.0


class MeshInterface(Struct, frozen=True):
    """An interface to listen on; `name` is its role: ``nccl0`` is the first that NCCL would use."""

    name: str
    interface: str
    address: str


class Listeners(Struct):
    """The listeners of node `me`. `unopened` holds, by role, why an address could not be had.

    `visits` takes over the connection of a caller that names a test of a rail, and returns when that is over.
    """

    me: int
    name: str
    key: bytes = b""
    addresses: tuple[MeshListener, ...] = ()
    unopened: dict[str, str] = field(default_factory=dict)
    visits: Callable[[object, Wire], Awaitable[None]] | None = None
    _sockets: list[socket.socket] = field(default_factory=list)
    _admission: Admission | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def floods(self) -> tuple[Flood, ...]:
        """Return the addresses that had to be hung up on to have room."""
        return self._admission.floods if self._admission else ()

    def reserve(self, interface: MeshInterface) -> None:
        """Take a port of one more address, which the kernel chooses; it refuses callers until `listen`."""
        try:
            sock = _bound(interface.address)
        except OSError as error:
            self.unopened[interface.name] = error.strerror or str(error)
            return
        self._sockets.append(sock)
        port = sock.getsockname()[1]
        self.addresses += (MeshListener(interface.name, interface.interface, interface.address, port),)

    def listen(self, key: bytes) -> None:
        """Answer callers that prove `key`."""
        self.key = key
        self._admission = self._admission or Admission(self._handle, _CALLERS, _FROM_ONE_ADDRESS)
        while self._sockets:
            sock = self._sockets.pop()
            sock.listen(_CALLERS)
            self._admission.listen(sock)

    def close(self) -> None:
        """Stop listening and close all connections. Never waits."""
        for sock in self._sockets:
            sock.close()
        if self._admission:
            self._admission.close()

    async def _handle(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError):  # what a caller did wrong is its own to tell
            connection = await wire.accept(reader, writer, self.key, time.monotonic() + _HANDSHAKE_S)
            if self._admission:
                self._admission.proved(caller)
            await self._serve(connection)

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
                await self._stream(connection, until, WHOLE_S if asked.get("whole") is True else STREAM_S)
            elif asked.get("do") == "rail":
                if self.visits:
                    await self.visits(asked.get("number"), connection)
                return
            else:
                await connection.send({"echo": asked.get("echo")}, until)

    async def _stream(self, connection: Wire, until: float, seconds: float) -> None:
        """Receive one stream after earlier ones have ended, so that each is measured alone at this end."""
        try:
            await asyncio.wait_for(self._turn.acquire(), max(0.0, until - time.monotonic()))
        except asyncio.TimeoutError:
            return
        try:
            await connection.send({"go": True}, until)
            until = min(until, time.monotonic() + seconds)
            nbytes, began, most = 0, None, bounds.STREAM_BYTES
            while (await connection.receive(until, _MESSAGE_BYTES)).get("do") == "take" and nbytes < most:
                began = began or time.monotonic()
                await connection.discard(CHUNK_BYTES, until)
                nbytes += CHUNK_BYTES
            seconds = time.monotonic() - began if began else 0.0
            await connection.send({"nbytes": nbytes, "seconds": seconds}, until)
        finally:
            self._turn.release()


def _bound(address: str) -> socket.socket:
    """Return a socket with a port of `address`. Raises OSError."""
    flags = socket.AI_NUMERICHOST | socket.AI_PASSIVE
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=flags)[0]
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(family, kind))
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(where)
        undo.pop_all()
    return sock


def reserve_listeners(interfaces: Sequence[MeshInterface], me: int, name: str) -> Listeners:
    """Take a port on all `interfaces` of node `me`, called `name`. An address that cannot be used is in `unopened`."""
    listeners = Listeners(me, name)
    for interface in interfaces:
        listeners.reserve(interface)
    return listeners
