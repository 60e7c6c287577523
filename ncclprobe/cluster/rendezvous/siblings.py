"""Gather the ranks of one node: each hands the facts that only it can see to local rank 0, and leaves on request.

They use a unix socket with an abstract name: it needs no folder, ends with its process, and is visible in this network
namespace only. Its name is derived from the token; each side must prove the token, and be of the same user: unix(7),
SO_PEERCRED.
"""

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Collection
from types import TracebackType

from ncclprobe.cluster.rendezvous.messages import Leave, parse
from ncclprobe.model import bounds
from ncclprobe.model.values import asdict
from ncclprobe.wire import Wire, WireError, accept, hail

_HELLO_S = 5.0
_PAUSE_S = 0.05


def socket_name(token: bytes, node_rank: int) -> str:
    """Return the abstract socket name of local rank 0 of a node."""
    return "\0ncclprobe-" + hmac.digest(token, f"siblings {node_rank}".encode(), hashlib.sha256).hex()[:32]


class Siblings:
    """Local rank 0's side, for ``async with``. `expected`: local ranks that should join."""

    def __init__(self, token: bytes, node_rank: int, expected: Collection[int], deadline: float) -> None:
        self._token, self._name, self._deadline = token, socket_name(token, node_rank), deadline
        self._expected = frozenset(expected)
        self._texts: dict[int, str] = {}
        self._wires: dict[int, Wire] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.AbstractServer | None = None

    async def gather(self, deadline: float) -> dict[int, str]:
        """Return the texts of the local ranks that joined by `deadline`, by local rank."""
        while self._expected - set(self._texts) and (left_s := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return dict(sorted(self._texts.items()))

    async def leave(self, leave: Leave, deadline: float) -> None:
        """Send every rank its exit."""
        await asyncio.gather(*(_dismiss(wire, leave, deadline) for wire in self._wires.values()))

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError):
            _refuse_other_user(writer)
            soon = min(self._deadline, time.monotonic() + _HELLO_S)
            wire = await accept(reader, writer, self._token, soon)
            message = await wire.receive(soon, bounds.SIBLING_BYTES)
            rank, text = parse(message, "local_rank", int), parse(message, "facts", str)
            if rank in self._expected and rank not in self._texts:
                self._texts[rank], self._wires[rank] = text, wire
                self._changed.set()
                return
        writer.transport.abort()

    async def __aenter__(self) -> "Siblings":
        """Start to listen. Raises OSError if another local rank 0 of this run and node listens already."""
        self._server = await asyncio.start_unix_server(self._admit, self._name, limit=1 << 14)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for wire in self._wires.values():
            wire.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn


async def _dismiss(wire: Wire, leave: Leave, deadline: float) -> None:
    with contextlib.suppress(WireError):
        await wire.send({"leave": asdict(leave)}, deadline)


async def hand_over(token: bytes, node_rank: int, local_rank: int, facts: str, deadline: float) -> Leave:
    """Send `facts` from any other rank and wait for the message to leave. Raises WireError."""
    wire = await _connect(token, node_rank, deadline)
    try:
        await wire.send({"local_rank": local_rank, "facts": facts}, deadline)
        return parse(await wire.receive(deadline, bounds.HELLO_BYTES), "leave", Leave)
    finally:
        wire.close()


async def _connect(token: bytes, node_rank: int, deadline: float) -> Wire:
    """Return a connection to local rank 0, which may start later. Raises WireError."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(socket_name(token, node_rank), limit=1 << 14)
            _refuse_other_user(writer)
            return await hail(reader, writer, token, min(deadline, time.monotonic() + _HELLO_S), _HELLO_S)
        if time.monotonic() + _PAUSE_S > deadline:
            raise WireError("refused", "local rank 0 of this node is missing")
        await asyncio.sleep(_PAUSE_S)


def _refuse_other_user(writer: asyncio.StreamWriter) -> None:
    """Hang up and raise WireError if another user's process is at the other side of a unix socket."""
    said = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", said)
    if user != os.geteuid():
        writer.transport.abort()
        raise WireError("stranger", f"user {user} holds this node's rendezvous socket")
