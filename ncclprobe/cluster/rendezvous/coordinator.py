"""Rank 0's side of the rendezvous: accept every node, and bound what one connection can cost.

Captures are written to a private folder as they arrive, in chunks; a bounded number of them at once. Every wait for a
peer has a deadline, every message a limit, and every failure is recorded with its peer.
"""

import asyncio
import contextlib
import errno
import os
import resource
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from ncclprobe.cluster.admission import Admission, Caller
from ncclprobe.cluster.rendezvous import messages
from ncclprobe.cluster.rendezvous.messages import Hello, Leave, Refused
from ncclprobe.facts.reach import Gathering, Trouble
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.values import Struct, asdict, field
from ncclprobe.wire import SECRET_BYTES, SMALL_SEGMENT, Key, Wire, WireError, accept, segments_of

_HELLO_S = 10.0
_TRANSFER_S = 20.0
_TRANSFERS = 48
_SPARE_CONNECTIONS = 256  # beyond those of the nodes
_FROM_ONE_ADDRESS = 64  # that have not proved the key, beyond one for each node: they may come through one gateway
_MOST_EXTRA = 16  # beyond one for each node rank
_DUPLICATE_WAIT_S = 3.0
_TRANSIENT = {"reset", "silent"}  # troubles of a peer that may succeed later


class Peer(Struct, eq=False):
    """A node that handed over its capture. `extra`: its node rank is taken, or not one of this job's."""

    hello: Hello
    wire: Wire
    address: str
    capture: Path
    extra: bool
    settled: bool = False
    lost: str = ""
    samples: dict[str, Any] | None = None
    samples_received: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Coordinator:
    """Expects `nnodes` - 1 other nodes. Use with ``async with``, which closes every connection at its end.

    `spool`: private folder for captures; `deadline` (time.monotonic()): end of the whole run. `joined` receives each
    peer
    once its whole capture is there. Call `listen`, `gather`, `open_mesh`, `mesh`, `order` and `leave` in this order.
    `mesh_key` is what nodes prove to each other.
    """

    def __init__(
        self,
        key: Key,
        nnodes: int,
        spool: Path,
        deadline: float,
        *,
        joined: Callable[["Peer"], None] = lambda peer: None,
    ) -> None:
        self.mesh_key = secrets.token_bytes(SECRET_BYTES)
        self._key, self._nnodes, self._spool, self._deadline = key, nnodes, spool, deadline
        self._joined = joined
        self._admission = Admission(self._handle, 0, 0)
        self._transfers = asyncio.Semaphore(_TRANSFERS)
        self._peers: dict[str, Peer] = {}
        self._holders: dict[int, str] = {}  # by node rank, the id of the peer that has it
        self._troubles: dict[tuple[str, str], Trouble] = {}
        self._unfinished: dict[Caller, Hello | None] = {}
        self._captures = 0
        self._open = True
        self._changed = asyncio.Event()

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Nodes that joined, by node rank; extra ones after the one that holds the rank."""
        return tuple(sorted(self._peers.values(), key=lambda peer: (peer.hello.node_rank, peer.extra)))

    async def listen(self, port: int) -> int:
        """Open `port`, and return it. Raises CannotListen."""
        room = room_for(2 * self._nnodes + _SPARE_CONNECTIONS)
        if room < self._nnodes - 1:
            words = f"room for {room} connections, {self._nnodes - 1} are expected; raise ulimit -n"
            self._troubles["", "descriptors"] = Trouble("", "descriptors", words)
        sock = bind_listener(port)
        self._admission = Admission(self._handle, room, self._nnodes + _FROM_ONE_ADDRESS)
        self._admission.listen(sock)
        return int(sock.getsockname()[1])

    async def gather(self, deadline: float, came: Callable[[int], None] = lambda number: None) -> Gathering:
        """Wait until every node rank has joined, at most until `deadline`; refuse nodes afterwards.

        `came` receives the number of nodes, at least twice a second. If as many nodes joined as are expected, but two
        with one node rank, wait only a little longer for the missing one.
        """
        started = time.monotonic()
        while not self._all_joined() and (left_s := deadline - time.monotonic()) > 0:
            if sum(peer.settled for peer in self._peers.values()) >= self._nnodes - 1:
                deadline = min(deadline, time.monotonic() + _DUPLICATE_WAIT_S)
            self._changed.clear()
            came(sum(peer.settled for peer in self._peers.values()))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left_s, 0.5))
        self._open = False
        floods = self._admission.floods
        if floods:  # a node that is late is told so, unless strangers would take the time of all that follows
            self._admission.stop()
        addresses = {peer.address for peer in self._peers.values()}
        every = (*self._troubles.values(), *self._unfinished_peers())
        troubles = [each for each in every if not (each.peer in addresses and each.kind in _TRANSIENT)]
        waited_s = round(time.monotonic() - started, 3)
        return Gathering(self._nnodes - 1, waited_s, tuple(troubles[: bounds.TROUBLES]), floods=floods)

    def _unfinished_peers(self) -> Iterator[Trouble]:
        """Yield the connected peers that have not sent everything."""
        for caller, hello in islice(self._unfinished.items(), bounds.TROUBLES):
            what = "sent an incomplete capture" if hello else "sent nothing that ncclprobe understands"
            words = f"connected, and {what} in {time.monotonic() - caller.since:.0f} s"
            yield Trouble(caller.address, "silent", words, hello.node_rank if hello else None)

    def _all_joined(self) -> bool:
        return sum(peer.settled and not peer.extra for peer in self._peers.values()) >= self._nnodes - 1

    async def open_mesh(self, deadline: float) -> None:
        """Have all peers open their listeners to holders of `mesh_key`, by `deadline`."""
        await asyncio.gather(*(self._open_peer(peer, deadline) for peer in self._peers.values()))

    async def _open_peer(self, peer: Peer, deadline: float) -> None:
        with contextlib.suppress(WireError, asyncio.TimeoutError):
            if not peer.lost:
                await peer.wire.send({"listen": peer.wire.seal(self.mesh_key).hex()}, deadline)
                await asyncio.wait_for(peer.listening.wait(), max(0.0, deadline - time.monotonic()))

    async def mesh(self, plans: Mapping[str, Mapping[str, Any]], deadline: float) -> dict[str, dict[str, Any]]:
        """Send each peer its plan, by id; return the samples that arrived by `deadline`."""
        return await self._ask_all({key: {"plan": plan} for key, plan in plans.items()}, deadline)

    async def order(self, kind: str, orders: Mapping[str, Struct], deadline: float) -> dict[str, dict[str, Any]]:
        """Send each peer an order of this kind, by id: ``data`` for its paths, ``rails`` for its RDMA ports.

        Return the answers that arrived in time. Earlier samples are kept.
        """
        before = {peer.hello.id: peer.samples for peer in self.peers}
        said = await self._ask_all({key: {kind: asdict(order)} for key, order in orders.items()}, deadline)
        for peer in self.peers:
            peer.samples = before[peer.hello.id]
        return said

    async def _ask_all(self, asked: Mapping[str, Mapping[str, Any]], deadline: float) -> dict[str, dict[str, Any]]:
        peers = [peer for peer in self._peers.values() if peer.hello.id in asked]
        await asyncio.gather(*(self._ask(peer, asked[peer.hello.id], deadline) for peer in peers))
        return {peer.hello.id: peer.samples for peer in peers if peer.samples is not None}

    async def _ask(self, peer: Peer, message: Mapping[str, Any], deadline: float) -> None:
        with contextlib.suppress(WireError, asyncio.TimeoutError):
            if not peer.lost:
                peer.samples = None
                peer.samples_received.clear()
                await peer.wire.send(dict(message), deadline)
                await asyncio.wait_for(peer.samples_received.wait(), max(0.0, deadline - time.monotonic()))

    async def leave(self, words: Mapping[str, Leave], deadline: float) -> None:
        """Send each peer its exit, by id; wait until the last one hung up, at most until `deadline`."""
        await asyncio.gather(
            *(self._dismiss(peer, words[peer.hello.id], deadline) for peer in self.peers if peer.hello.id in words)
        )

    async def _dismiss(self, peer: Peer, leave: Leave, deadline: float) -> None:
        with contextlib.suppress(WireError, asyncio.TimeoutError):
            if not peer.gone.is_set():
                await peer.wire.send({"leave": asdict(leave)}, deadline)
                await asyncio.wait_for(peer.gone.wait(), max(0.0, deadline - time.monotonic()))

    async def _handle(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello, peer = None, None
        self._unfinished[caller] = None
        try:
            wire = await accept(reader, writer, self._key, self._soon(_HELLO_S))
            self._admission.proved(caller)
            hello = messages.parse(await wire.receive(self._soon(_HELLO_S), bounds.HELLO_BYTES), "hello", Hello)
            if len(hello.name) > bounds.NAME_CHARACTERS:
                raise WireError("garbled", f"announced a name of {len(hello.name)} characters")
            self._unfinished[caller] = hello
            peer = await self._receive_capture(wire, hello, caller.address)
            del self._unfinished[caller]
            await self._serve(peer)
        except (WireError, Refused) as error:
            self._record_failure(caller.address, error, hello, peer)
        except OSError as error:
            full = WireError("too-big", f"cannot keep its capture: {error.strerror}")
            self._record_failure(caller.address, full, hello, peer)
        finally:
            self._unfinished.pop(caller, None)

    async def _receive_capture(self, wire: Wire, hello: Hello, address: str) -> Peer:
        """Receive the capture; only a peer that sent a whole one has joined."""
        async with self._transfers:
            path = await self._transfer(wire) if self._open else None
        holder = self._holders.get(hello.node_rank, hello.id)
        extra = holder != hello.id or not 0 < hello.node_rank < self._nnodes
        too_many = extra and sum(peer.extra for peer in self._peers.values()) >= self._nnodes + _MOST_EXTRA
        if path is None or too_many or not self._open:
            why = (
                "too many nodes use a rank that another node already has"
                if too_many
                else "too late: rank 0 has stopped waiting"
            )
            if path is not None:
                path.unlink()
            await wire.send({"refused": why}, self._soon(_HELLO_S))
            raise Refused(why)
        peer = Peer(hello, wire, address, path, extra)
        if earlier := self._peers.get(hello.id):  # the same process again, after its connection broke
            earlier.wire.close()
            earlier.capture.unlink()
        self._peers[hello.id] = peer
        if not extra:
            self._holders[hello.node_rank] = hello.id
        self._joined(peer)
        await wire.send({"welcome": True}, self._soon(_HELLO_S))
        return peer

    async def _transfer(self, wire: Wire) -> Path:
        """Return the file with the capture: owner-readable only, removed if incomplete."""
        deadline = self._soon(_TRANSFER_S)
        self._captures += 1
        path = self._spool / f"{self._captures:05}.jsonl"
        await wire.send({"go": True}, deadline)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(path.unlink)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                await self._write(wire, file.write, deadline)
            undo.pop_all()
        return path

    async def _write(self, wire: Wire, write: Any, deadline: float) -> None:
        nchars, more = 0, True
        while more:
            message = await wire.receive(deadline, messages.CHUNK_BYTES)
            text, more = messages.parse(message, "capture", str), messages.parse(message, "more", bool)
            nchars += len(text)
            if nchars > bounds.SENT_CAPTURE_CHARACTERS:
                raise WireError("too-big", f"sent a capture of more than {bounds.SENT_CAPTURE_CHARACTERS} characters")
            write(text.encode("utf-8", "backslashreplace").decode())  # a lone surrogate is no UTF-8

    async def _serve(self, peer: Peer) -> None:
        """Answer a welcomed node's pings and receive its samples, until it hangs up."""
        while True:
            message = await peer.wire.receive(self._deadline, bounds.SAMPLES_BYTES)
            if "ping" in message:
                await peer.wire.send({"pong": message["ping"], "wall_s": time.time()}, self._soon(_HELLO_S))
            elif "ready" in message:
                self._settle(peer)
            elif "listening" in message:
                peer.listening.set()
            elif "late" in message:
                raise WireError("late", "left because rank 0 had not answered in time")
            else:
                peer.samples = messages.parse(message, "samples", dict[str, Any])
                peer.samples_received.set()

    def _settle(self, peer: Peer) -> None:
        peer.settled = True
        self._changed.set()

    def _record_failure(self, address: str, error: WireError | Refused, hello: Hello | None, peer: Peer | None) -> None:
        """Record what failed: with the node, if the caller is one by now, or with the connection."""
        kind = error.kind if isinstance(error, WireError) else "refused"
        if peer is not None:
            peer.lost = peer.lost or f"{kind}: {error}"
            peer.samples_received.set()
            peer.listening.set()
            peer.gone.set()
            self._settle(peer)
        elif len(self._troubles) < bounds.TROUBLES or (address, kind) in self._troubles:
            self._troubles[address, kind] = Trouble(address, kind, str(error), hello.node_rank if hello else None)

    def _soon(self, seconds: float) -> float:
        return min(self._deadline, time.monotonic() + seconds)

    async def __aenter__(self) -> "Coordinator":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.close()
        await self._admission.gone()


BACKLOG = 4096  # what Linux allows since 5.4 (net.core.somaxconn)
_OTHER_FILES = 256


class CannotListen(NcclprobeError):
    """The port is not available. ``kind``: taken, denied (below 1024), or address."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def bind_listener(port: int) -> socket.socket:
    """Return a socket that listens on `port` (0: any) of every address. Raises CannotListen."""
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise _cannot(port, error) from None
    try:
        return _bound(socket.AF_INET, "0.0.0.0", port)  # a kernel without IPv6
    except OSError as error:
        raise _cannot(port, error) from None


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(family))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last run's TIME_WAITs
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(
            *segments_of(SMALL_SEGMENT)[0]
        )  # so that what nodes know arrives where large packets are lost, and the mesh can say so
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
        undo.pop_all()
    return sock


def _cannot(port: int, error: OSError) -> CannotListen:
    kinds = {errno.EADDRINUSE: "taken", errno.EACCES: "denied"}
    words = {"taken": "another process listens on it", "denied": "this user may not"}
    kind = kinds.get(error.errno or 0, "address")
    return CannotListen(kind, f"cannot listen on port {port}: {words.get(kind) or os.strerror(error.errno or 0)}")


def room_for(connections: int) -> int:
    """Raise the soft limit of open files as far as needed; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if now == resource.RLIM_INFINITY else max(0, min(connections, now - _OTHER_FILES))
