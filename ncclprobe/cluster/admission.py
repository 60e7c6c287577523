"""Admit callers to the listeners of a run, and bound the cost of callers that have not proved to belong to it.

The network has strangers: port scanners, broken jobs, processes that hold connections open. A caller without proof of
the run's key keeps its place only until its address, or all callers together, need it: then the oldest is disconnected,
so that a node gets its turn however many strangers there are. Every step has constant cost.
"""

import asyncio
import contextlib
import errno
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from ncclprobe.facts.reach import Flood
from ncclprobe.model.values import Struct, field

_PAUSE_S = 0.1  # where this process may open no more files
MOST_SOURCES = 64  # that are counted by their address
_MOST_TOLD = 8
_ESTABLISHED = b"\x01"  # tcpi_state, the first byte of struct tcp_info
_OTHERS = "other addresses"


class Caller(Struct, eq=False):
    """A connection: its address, and the time.monotonic() since which it exists."""

    address: str
    since: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None


Serve = Callable[[Caller, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Admission:
    """Serves at most `room` callers, and at most `quota` unproven ones per address.

    `quota` are accepted before every other task has its turn: all nodes of a job may call at the same moment.
    """

    def __init__(self, serve: Serve, room: int, quota: int) -> None:
        self._serve, self._room, self._quota = serve, room, quota
        self._sockets: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproven: dict[Caller, None] = {}  # the oldest first
        self._by_address: dict[str, dict[Caller, None]] = {}
        self._hung_up: Counter[str] = Counter()
        self._members: set[str] = set()  # addresses from which a process of the run came

    @property
    def floods(self) -> tuple[Flood, ...]:
        """Addresses whose callers were disconnected to make room, most connections first.

        A node that was among them a few times, and proved itself in the end, is not flooding.
        """
        every = [Flood(address, count) for address, count in self._hung_up.most_common()]
        crowds = [each for each in every if each.connections > self._quota or each.address not in self._members]
        return tuple((crowds or every)[:_MOST_TOLD])

    @property
    def callers(self) -> int:
        """Number of connections being served."""
        return len(self._tasks)

    def listen(self, sock: socket.socket) -> None:
        """Serve the callers of this listening, non-blocking socket."""
        self._sockets.add(sock)
        asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def proved(self, caller: Caller) -> None:
        """Keep `caller` until it leaves: it belongs to the run."""
        self._members.add(caller.address)
        self._forget(caller)

    def _forget(self, caller: Caller) -> None:
        self._unproven.pop(caller, None)
        mine = self._by_address.get(caller.address, {})
        mine.pop(caller, None)
        if not mine:
            self._by_address.pop(caller.address, None)

    def stop(self) -> None:
        """Stop listening. Never waits."""
        for sock in self._sockets:
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def close(self) -> None:
        """Stop listening, and disconnect all callers. Never waits."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def gone(self) -> None:
        """Wait for the end of all connections after `close`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(self._quota):
            try:
                connection, address = sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(sock)
                return  # none is waiting, or the caller has gone
            connection.setblocking(False)
            # The caller hung up while it waited in the kernel's queue: that costs no task.
            if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _ESTABLISHED:
                connection.close()
                continue
            self._admit(connection, str(address[0]).removeprefix("::ffff:"))

    def _pause(self, sock: socket.socket) -> None:
        """Ignore `sock` for a moment: retrying at once would keep the loop busy."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.call_later(_PAUSE_S, lambda: sock in self._sockets and loop.add_reader(sock, self._accept, sock))

    def _admit(self, connection: socket.socket, address: str) -> None:
        caller = Caller(address)
        mine = self._by_address.setdefault(caller.address, {})
        if len(mine) >= self._quota:
            self._hang_up(next(iter(mine)))
        elif len(self._tasks) >= self._room:
            if not self._unproven:
                self._count(address)
                connection.close()
                return
            self._hang_up(next(iter(self._unproven)))
        self._by_address.setdefault(caller.address, mine)[caller] = self._unproven[caller] = None
        caller.task = asyncio.get_running_loop().create_task(self._run(caller, connection))
        self._tasks.add(caller.task)
        caller.task.add_done_callback(lambda task: self._ended(task, caller, connection))

    def _hang_up(self, caller: Caller) -> None:
        self._count(caller.address)
        self._forget(caller)
        if caller.task is not None:
            caller.task.cancel()

    def _count(self, address: str) -> None:
        known = address in self._hung_up or len(self._hung_up) < MOST_SOURCES
        self._hung_up[address if known else _OTHERS] += 1

    async def _run(self, caller: Caller, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 14)
        except OSError:  # it has gone
            return
        try:
            await self._serve(caller, reader, writer)
        finally:
            writer.transport.abort()

    def _ended(self, task: "asyncio.Task[None]", caller: Caller, connection: socket.socket) -> None:
        self._tasks.discard(task)
        self._forget(caller)
        connection.close()  # also where the task was cancelled before its first step
