"""The interfaces on which a node is reached (NCCL's, gloo's, the default route's), and its listeners there.

Each listener names its node to a caller with the run's key, echoes, and receives or sends filler. Only filler (zeros)
is
unsigned: it is counted and dropped. Everything else is a frame of :mod:`ncclprobe.wire`. A caller keeps a connection
for
a minute at most. A port is reserved before the nodes meet, and answers only between :meth:`Listeners.listen` and
:meth:`Listeners.close`.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from ncclprobe import wire
from ncclprobe.cluster.admission import Admission, Caller
from ncclprobe.cluster.mesh.plan import check_other
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.names import OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import Flood, MeshListener, Reach
from ncclprobe.facts.routes import Routes
from ncclprobe.facts.software import Software
from ncclprobe.model import bounds
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import Struct, field
from ncclprobe.nccl.gloo import Device, devices, named
from ncclprobe.nccl.interfaces import find_by
from ncclprobe.wire import Wire, WireError

CHUNK_BYTES = 256 << 10
"""Bytes of filler at a time: larger than any network's packets, so that the path's largest packets are used."""

FILLER = bytes(CHUNK_BYTES)
STREAM_S, WHOLE_S = 3.0, 10.0
"""Seconds for which one caller may keep others waiting: with a stream, and with one that must arrive whole."""
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
    """The listeners of node `me`. `unopened`: why an address could not be bound, by role.

    `visits` takes over the connection of a caller that names a rail test, and returns when the test is over.
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
        """Addresses whose callers were disconnected to make room."""
        return self._admission.floods if self._admission else ()

    def reserve(self, interface: MeshInterface) -> None:
        """Bind another address to a port that the kernel chooses; it refuses callers until `listen`."""
        try:
            sock = _bind(interface.address)
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
        """Receive one stream after earlier ones have ended, so that this end measures each alone."""
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


def _bind(address: str) -> socket.socket:
    """Return a socket bound to a free port of `address`. Raises OSError."""
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
    """Bind a port on all `interfaces` of node `me`, called `name`. Unusable addresses are in `unopened`."""
    listeners = Listeners(me, name)
    for interface in interfaces:
        listeners.reserve(interface)
    return listeners


_MAX_GLOO = 4  # of its devices; more than one are for bandwidth, and rare


def mesh_interfaces(snapshot: Snapshot, backend: str, reach: Reach | None = None) -> list[MeshInterface]:
    """Return a node's interfaces by role. NCCL's are not listed again as ``default``.

    The default interface is that of the default route; without one, the interface that reached rank 0; for gloo, the
    first that its groups would listen on. An address that only gloo groups would use is ``gloo0``, ….
    """
    interfaces, settings = snapshot.facts.get(Interfaces), snapshot.facts.get(Settings)
    if not isinstance(interfaces, Interfaces) or not isinstance(settings, Settings):
        return []
    software = snapshot.facts.get(Software)
    version = software.nccl_version if isinstance(software, Software) else None
    gloos = _gloo_devices(snapshot, interfaces)
    found: list[MeshInterface] = []
    if backend == "nccl":
        selected = find_by(interfaces.addresses, settings, version).interfaces
        found = [MeshInterface(f"nccl{number}", each.name, each.address) for number, each in enumerate(selected)]
    fallback = next(_fallback_candidates(interfaces, snapshot.facts.get(Routes), reach), None)
    if backend == "gloo" and gloos:
        found.append(MeshInterface("default", gloos[0].interface, gloos[0].address))
    elif fallback and fallback.name not in {each.interface for each in found}:
        found.append(MeshInterface("default", fallback.name, fallback.address))
    for number, device in enumerate(gloos):
        if device.address not in {each.address for each in found}:
            found.append(MeshInterface(f"gloo{number}", device.interface, device.address))
    return [each for each in found if each.interface != "lo"]


def _gloo_devices(snapshot: Snapshot, interfaces: Interfaces) -> list[Device]:
    """Return the addresses that this node's gloo groups would listen on and others may reach; none if unknown."""
    environment, own = snapshot.facts.get(Environment), snapshot.facts.get(OwnName)
    ifname = (environment.get("GLOO_SOCKET_IFNAME") or "") if isinstance(environment, Environment) else ""
    known = own if isinstance(own, OwnName) else OwnName()
    if not named(ifname) and not known.name:
        return []
    chosen = devices(interfaces, ifname, known.name, known.addresses)[:_MAX_GLOO]
    return [each for each in chosen if isinstance(each, Device) and not each.loopback]


def _fallback_candidates(
    interfaces: Interfaces, routes: Routes | Absent | None, reach: Reach | None
) -> Iterator[Address]:
    """Yield candidates for the default interface, the best first."""
    running = [each for each in interfaces.addresses if each.running]
    names: list[str] = []
    if isinstance(routes, Routes):
        everywhere = [route for route in routes.main if ip_network(route.destination).prefixlen == 0]
        names += [route.interface for route in sorted(everywhere, key=lambda route: route.metric)]
    names += [reach.interface] if reach else []
    for name in names:
        yield from (each for each in running if each.name == name)
    yield from (each for each in running if each.name != "lo")


def parse_listeners(announced: Sequence[Mapping[str, Any]]) -> tuple[MeshListener, ...]:
    """Parse the listeners that another node announced; drop malformed ones, and any beyond the limit.

    An address that no other node can have, such as loopback, is malformed.
    """
    listeners = []
    for each in announced[: bounds.LISTENERS]:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            listener = MeshListener(str(each["role"]), str(each["interface"]), str(each["address"]), int(each["port"]))
            check_other(listener.address)
            if 0 < listener.port < 1 << 16 and max(map(len, listener[:3])) <= bounds.LISTENER_CHARACTERS:
                listeners.append(listener)
    return tuple(listeners)
