"""Rank 0's side: everybody who comes is heard, nobody can cost more than the own connection.

Captures go to files of a private folder as they arrive, in pieces; a bounded number of them at once. Every wait for a
peer has its deadline, everything a peer may send its limit, and what went wrong with whom is kept.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ncclprobe.cluster.rendezvous import messages
from ncclprobe.cluster.rendezvous.listener import BACKLOG, listening, room_for
from ncclprobe.cluster.rendezvous.messages import Hello, Leave, Refused
from ncclprobe.facts.reach import Gathering, Trouble
from ncclprobe.wire import Wire, WireError, accept

_HELLO_S = 10.0
_TRANSFER_S = 20.0
_TRANSFERS = 48
_SPARE_CONNECTIONS = 256
_MAX_TROUBLES = 256
_MOST_EXTRA = 16  # beyond one for each seat
_SECOND_THOUGHTS_S = 3.0
_PASSING = {"reset", "silent"}  # troubles that one who came in the end may have had before


@dataclass(slots=True, eq=False)
class Guest:
    """A node that handed over its capture. `extra`: its rank is taken, or not one of this job's."""

    hello: Hello
    wire: Wire
    address: str
    capture: Path
    extra: bool
    settled: bool = False
    lost: str = ""
    samples: dict[str, Any] | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Where `nnodes` - 1 other nodes are expected. ``async with``: at its end every connection is closed.

    `spool` is a private folder for captures; `deadline` (time.monotonic()) the end of the whole run.
    `listen`, `gather`, `mesh` and `leave` follow each other.
    """

    def __init__(self, token: bytes, nnodes: int, spool: Path, deadline: float) -> None:
        self._token, self._nnodes, self._spool, self._deadline = token, nnodes, spool, deadline
        self._room = nnodes + _SPARE_CONNECTIONS
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._transfers = asyncio.Semaphore(_TRANSFERS)
        self._guests: dict[str, Guest] = {}
        self._troubles: dict[tuple[str, str], Trouble] = {}
        self._unfinished: dict[asyncio.StreamWriter, tuple[str, float, Hello | None]] = {}
        self._captures = 0
        self._open = True
        self._changed = asyncio.Event()

    @property
    def guests(self) -> tuple[Guest, ...]:
        """Who came, by node rank; extra ones after the one that has the seat."""
        return tuple(sorted(self._guests.values(), key=lambda guest: (guest.hello.node_rank, guest.extra)))

    async def listen(self, port: int) -> int:
        """Open `port`, and return it. Raises CannotListen."""
        self._room = room_for(self._nnodes + _SPARE_CONNECTIONS)
        if self._room < self._nnodes - 1:
            words = f"room for {self._room} connections, {self._nnodes - 1} are expected; raise ulimit -n"
            self._troubles["", "descriptors"] = Trouble("", "descriptors", words)
        sock = listening(port)
        self._server = await asyncio.start_server(self._admit, sock=sock, backlog=BACKLOG, limit=1 << 14)
        return int(sock.getsockname()[1])

    async def gather(self, deadline: float) -> Gathering:
        """Wait until every seat is taken, at most until `deadline`, and let nobody in afterwards.

        Where as many came as there are seats, but two for one of them, the missing one is not waited for much longer.
        """
        started = time.monotonic()
        while not self._all_seated() and (left_s := deadline - time.monotonic()) > 0:
            if sum(guest.settled for guest in self._guests.values()) >= self._nnodes - 1:
                deadline = min(deadline, time.monotonic() + _SECOND_THOUGHTS_S)
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left_s, 0.5))
        self._open = False
        came = {guest.address for guest in self._guests.values()}
        every = (*self._troubles.values(), *self._stuck())
        troubles = [each for each in every if not (each.peer in came and each.kind in _PASSING)]
        return Gathering(self._nnodes - 1, round(time.monotonic() - started, 3), tuple(troubles))

    def _stuck(self) -> Iterator[Trouble]:
        """Those that are connected and have not come to an end with what they have to say."""
        for peer, since, hello in self._unfinished.values():
            what = "sent no whole capture" if hello else "said nothing that is ours"
            words = f"connected, and {what} in {time.monotonic() - since:.0f} s"
            yield Trouble(peer, "silent", words, hello.node_rank if hello else None)

    def _all_seated(self) -> bool:
        return sum(guest.settled and not guest.extra for guest in self._guests.values()) >= self._nnodes - 1

    async def mesh(self, plans: Mapping[str, Mapping[str, Any]], deadline: float) -> dict[str, dict[str, Any]]:
        """Hand each guest its plan, by its id, and return the samples of those that sent some by `deadline`."""
        asked = [guest for guest in self._guests.values() if guest.hello.id in plans]
        await asyncio.gather(*(self._ask(guest, plans[guest.hello.id], deadline) for guest in asked))
        return {guest.hello.id: guest.samples for guest in asked if guest.samples is not None}

    async def _ask(self, guest: Guest, plan: Mapping[str, Any], deadline: float) -> None:
        with contextlib.suppress(WireError, asyncio.TimeoutError):
            if not guest.lost:
                guest.samples = None
                guest.heard.clear()
                await guest.wire.send({"plan": plan}, deadline)
                await asyncio.wait_for(guest.heard.wait(), max(0.0, deadline - time.monotonic()))

    async def leave(self, words: Mapping[str, Leave], deadline: float) -> None:
        """Tell each guest how to end, by its id, and wait until the last one hung up, at most until `deadline`."""
        await asyncio.gather(
            *(self._dismiss(guest, words[guest.hello.id], deadline) for guest in self.guests if guest.hello.id in words)
        )

    async def _dismiss(self, guest: Guest, leave: Leave, deadline: float) -> None:
        with contextlib.suppress(WireError, asyncio.TimeoutError):
            if not guest.gone.is_set():
                await guest.wire.send({"leave": asdict(leave)}, deadline)
                await asyncio.wait_for(guest.gone.wait(), max(0.0, deadline - time.monotonic()))

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._talks) >= self._room and not self._hang_up_on_the_oldest():
            writer.transport.abort()
            return
        talk = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    def _hang_up_on_the_oldest(self) -> bool:
        """Make room: of those that have not proved the token, who had the most time for it goes."""
        nameless = [(since, writer) for writer, (_, since, hello) in self._unfinished.items() if hello is None]
        if nameless:
            min(nameless, key=lambda pair: pair[0])[1].transport.abort()
        return bool(nameless)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, hello, guest = _number(writer), None, None
        since = time.monotonic()
        self._unfinished[writer] = peer, since, None
        try:
            wire = await accept(reader, writer, self._token, self._soon(_HELLO_S))
            hello = messages.parse(await wire.receive(self._soon(_HELLO_S), messages.MAX_HELLO_BYTES), "hello", Hello)
            if len(hello.name) > messages.MAX_NAME:
                raise WireError("garbled", f"calls itself by a name of {len(hello.name)} characters")
            self._unfinished[writer] = peer, since, hello
            guest = await self._received(wire, hello, peer)
            del self._unfinished[writer]
            await self._attend(guest)
        except (WireError, Refused) as error:
            self._failed(peer, error, hello, guest)
        except OSError as error:
            self._failed(peer, WireError("too-big", f"cannot keep its capture: {error.strerror}"), hello, guest)
        finally:
            self._unfinished.pop(writer, None)
            writer.transport.abort()

    async def _received(self, wire: Wire, hello: Hello, peer: str) -> Guest:
        """Take the capture; only who handed over a whole one has a seat."""
        async with self._transfers:
            path = await self._transfer(wire) if self._open else None
        extra = self._is_extra(hello)
        crowded = extra and sum(guest.extra for guest in self._guests.values()) >= self._nnodes + _MOST_EXTRA
        if path is None or crowded or not self._open:
            why = "too many nodes with ranks that others have" if crowded else "too late: rank 0 has stopped waiting"
            if path is not None:
                path.unlink()
            await wire.send({"refused": why}, self._soon(_HELLO_S))
            raise Refused(why)
        guest = Guest(hello, wire, peer, path, extra)
        if before := self._guests.get(hello.id):  # the same process again, after its connection broke
            before.wire.close()
            before.capture.unlink()
        self._guests[hello.id] = guest
        await wire.send({"welcome": True}, self._soon(_HELLO_S))
        return guest

    def _is_extra(self, hello: Hello) -> bool:
        others = (guest for guest in self._guests.values() if guest.hello.id != hello.id and not guest.extra)
        return not 0 < hello.node_rank < self._nnodes or hello.node_rank in {each.hello.node_rank for each in others}

    async def _transfer(self, wire: Wire) -> Path:
        """The file with what `wire` brings: readable by its owner only, and gone if it does not come whole."""
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
            message = await wire.receive(deadline, messages.MAX_CHUNK_BYTES)
            text, more = messages.parse(message, "capture", str), messages.parse(message, "more", bool)
            nchars += len(text)
            if nchars > messages.MAX_CAPTURE_CHARS:
                raise WireError("too-big", f"sent a capture of more than {messages.MAX_CAPTURE_CHARS} characters")
            write(text.encode("utf-8", "backslashreplace").decode())  # a lone surrogate is no UTF-8

    async def _attend(self, guest: Guest) -> None:
        """Answer a welcomed node's pings, and take its samples, until it hangs up."""
        while True:
            message = await guest.wire.receive(self._deadline, messages.MAX_SAMPLES_BYTES)
            if "ping" in message:
                await guest.wire.send({"pong": message["ping"], "wall_s": time.time()}, self._soon(_HELLO_S))
            elif "ready" in message:
                self._settle(guest)
            else:
                guest.samples = messages.parse(message, "samples", dict[str, Any])
                guest.heard.set()

    def _settle(self, guest: Guest) -> None:
        guest.settled = True
        self._changed.set()

    def _failed(self, peer: str, error: WireError | Refused, hello: Hello | None, guest: Guest | None) -> None:
        """Remember what was wrong: with the node, if it is one by now, or with the connection."""
        kind = error.kind if isinstance(error, WireError) else "refused"
        if guest is not None:
            guest.lost = guest.lost or f"{kind}: {error}"
            guest.heard.set()
            guest.gone.set()
            self._settle(guest)
        elif len(self._troubles) < _MAX_TROUBLES or (peer, kind) in self._troubles:
            self._troubles[peer, kind] = Trouble(peer, kind, str(error), hello.node_rank if hello else None)

    def _soon(self, seconds: float) -> float:
        return min(self._deadline, time.monotonic() + seconds)

    async def __aenter__(self) -> "Hub":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        talks = tuple(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn


def _number(writer: asyncio.StreamWriter) -> str:
    """The caller's address: an IPv4 one without the ``::ffff:`` that a socket for both puts before it."""
    name = writer.get_extra_info("peername")
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""
