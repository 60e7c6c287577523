"""Test one rail: this node's end of it, in step with the other node's end, over the channel between them.

Both ends make the same steps and send each other the result after each; no step waits for an end that failed. A failed
connection is remade for the next step, because a queue pair is unusable after its first error: so each direction is
tried, and the data that arrived at one end shows what the other end's error does not.

The verbs library is loaded only in a child, so that a hanging driver blocks nothing else. A child that is late is
killed
with its process group and not waited for; the name of its last call is in memory that both share.
"""

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from ncclprobe.host.command import abandon
from ncclprobe.host.limited_child import LENGTH, framed
from ncclprobe.host.own_child import start_own
from ncclprobe.model import bounds
from ncclprobe.model.rails import RailAddress, RailChannel, RailDirection, RailFailure, RailOutcome, RailPort, RailTest
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes.verbs.library import VerbsError
from ncclprobe.probes.verbs.messages import BROKEN, PLACE_BYTES, Answer, Request
from ncclprobe.wire import WireError

START_S = 90.0
"""Seconds to start: Python on a file server is slow if all nodes start together."""
GRACE_S = 3.0
"""Extra time beyond the child's own deadline: until then its answer says more than that it was late."""


class VerbsChild:
    """A child that answers one request at a time. Raises VerbsError if it hangs or dies; then it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._place: mmap.mmap | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self, patience_s: float) -> None:
        """Start the process, unless it was started, and wait until it answers. Raises VerbsError."""
        if self._process or self._ended:
            return
        self._streams = await asyncio.open_unix_connection(sock=self._popen())
        try:
            await asyncio.wait_for(_answer(self._streams[0]), patience_s)
        except (asyncio.TimeoutError, TimeoutError):
            self.close()
            why = f"a Python process did not start within {patience_s:.0f} s, so the NIC was not asked"
            raise VerbsError("late", why) from None
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            raise self._lost("died") from None

    def _popen(self) -> socket.socket:
        """Start the process; return this side of the socket. Raises VerbsError."""
        ours, theirs = socket.socketpair()
        descriptor = os.memfd_create("ncclprobe-rail")
        os.ftruncate(descriptor, PLACE_BYTES)
        self._place = mmap.mmap(descriptor, PLACE_BYTES)
        serve, number = "ncclprobe.probes.verbs.server:serve", str(descriptor)
        try:
            self._process = start_own(serve, number, stdin=theirs.fileno(), pass_fds=(descriptor,))
        except OSError as error:
            ours.close()
            raise VerbsError("died", f"no process could be started: {error.strerror}") from None
        finally:
            theirs.close()
            os.close(descriptor)
        return ours

    async def ask(self, request: Request) -> Answer:
        """Return the answer to `request`, within its seconds and GRACE_S."""
        if not self._streams:
            raise VerbsError("died", "the process that calls the verbs library had already ended")
        reader, writer = self._streams
        try:
            writer.write(framed(msgspec.json.encode(request)))
            return await asyncio.wait_for(_answer(reader), request.seconds + GRACE_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise self._lost("hangs") from None
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            raise self._lost("died") from None
        except BaseException:  # a late answer must not meet another request
            self.close()
            raise

    def stop(self) -> None:
        """End the current step: its answer follows soon, with the results so far."""
        if self._streams:
            self._streams[1].write(framed(msgspec.json.encode(Request(do="stop"))))

    def close(self) -> None:
        """Kill the process with its group, and wait no longer than dying takes."""
        if self._streams:
            self._streams[1].transport.abort()
            self._streams = None
        self._ended = True
        if self._process:
            abandon(self._process)
            self._process = None  # its number may be another's now

    def _lost(self, kind: Literal["hangs", "died"]) -> VerbsError:
        assert self._process
        assert self._place
        call = self._place[:].rstrip(b"\0").decode(errors="replace") or "its start"
        ended = _ending(self._process) if kind == "died" else ""
        self.close()
        if ended == f"exit code {BROKEN}":
            return VerbsError("channel", f"broke after {call}: a bug of ncclprobe, not of this machine", call=call)
        if kind == "died":
            return VerbsError("died", f"the process ended at {call}: {ended}", call=call)
        return VerbsError("hangs", f"{call} does not return: the NIC's driver may be wedged", call=call)


async def _answer(reader: asyncio.StreamReader) -> Answer:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > bounds.RAIL_MESSAGE_BYTES:
        raise ConnectionError(f"an answer of {length} bytes")
    return msgspec.json.decode(await reader.readexactly(length), type=Answer)


def _ending(process: "subprocess.Popen[bytes]") -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return "it cannot end"


_AFTER_S = 0.5
"""Time for data in flight, once the other end has failed."""
_ENDS = frozenset(("hangs", "died", "missing", "channel"))
"""Failures after which an end can do nothing more."""
Before = Callable[[str], Awaitable[None]]


async def run_rail(
    port: RailPort,
    test: RailTest,
    *,
    leads: bool,
    channel: RailChannel,
    deadline: float,
    before: Before | None = None,
) -> RailOutcome:
    """Test one rail together with the end that is called with the other value of `leads`. Return this end's outcome.

    `deadline` is on time.monotonic(). `before`, if given, is awaited with the name of each step (``latency``, ``out``,
    ``in``, ``both``) before it begins, so that all rails of a node can begin it together.
    """
    end = _End(port, test, leads, channel, deadline, before)
    with contextlib.suppress(_OverError):
        await end.run()
    return end.outcome


class _OverError(Exception):
    """The test is over; the outcome holds the reason."""


class _End:
    """This end. After each step the other end sends its failure, if any, and its address, if it has one."""

    def __init__(
        self, port: RailPort, test: RailTest, leads: bool, channel: RailChannel, deadline: float, before: Before | None
    ) -> None:
        self._test, self._leads, self._channel = test, leads, channel
        self._deadline, self._before = deadline, before
        self._child = VerbsChild()
        self._connected = False  # by queue pairs that have seen no error
        self.outcome = RailOutcome(asked=port)

    async def run(self) -> None:
        """Make all steps, then kill the child. Raises _OverError."""
        try:
            opening = Request(
                do="open", step="open", seconds=self._test.setup_seconds, port=self.outcome.asked, test=self._test
            )
            await self._connect(opening)
            if self._test.round_trips:
                await self._latency()
            for direction in self._test.directions:
                await self._write(direction)
        finally:
            self._child.close()

    # Steps.

    async def _connect(self, first: Request) -> None:
        """Have queue pairs made by `first`, exchange addresses and connect.

        The leading end sends its address first and receives the other's afterwards, so that the other end can adapt to
        what the leading device offers, as NCCL's do (ibv_set_ece).
        """
        failure, made = await self._ask(first)
        self._note(own=made.address)
        if self._leads:
            await self._tell(failure, made.address)
        theirs, peer = await self._hear(None)
        self._note(peer=peer)
        self._blame(theirs, unless=failure)
        if not failure and not theirs and peer:
            failure, connected = await self._ask(
                Request(do="connect", step="connect", seconds=self._test.setup_seconds, peer=peer)
            )
            self._note(own=connected.address)
        if not self._leads:
            await self._tell(failure, self.outcome.own)
        elif not theirs:
            await self._tell(failure)
        if failure or theirs or not peer:
            raise _OverError
        if not self._leads:
            theirs, _ = await self._hear(self._test.setup_seconds + 2 * GRACE_S)
            self._blame(theirs)
            if theirs:
                raise _OverError
        self._connected = True

    async def _latency(self) -> None:
        await self._begin("latency", None)
        seconds = self._seconds(waits=not self._leads)
        request = Request(do="ping", step="latency", seconds=seconds, leads=self._leads)
        answer = await self._together(request)
        self.outcome = replace(self.outcome, half_round_trip_us=answer.half_round_trip_us)

    async def _write(self, direction: RailDirection) -> None:
        """Write, receive, or both, and check the data that arrived, even after an error of either end."""
        writes = direction == "both" or (direction == "out") == self._leads
        reads = direction == "both" or not writes
        if not self._connected:
            await self._connect(Request(do="renew", step="connect", seconds=self._test.setup_seconds))
        preparing = Request(
            do="prepare", step="prepare", seconds=self._test.setup_seconds, direction=direction, leads=self._leads
        )
        failure, _ = await self._ask(preparing)
        await self._begin(direction, failure)
        seconds = self._seconds(waits=not writes)
        request = Request(do="stream", step="write", seconds=seconds, direction=direction, writes=writes, reads=reads)
        answer = await self._together(request)
        if answer.stream:
            self.outcome = replace(self.outcome, streams=(*self.outcome.streams, answer.stream))
        if reads:
            looking = Request(
                do="verify", step="verify", seconds=self._test.setup_seconds, direction=direction, leads=self._leads
            )
            failure, looked = await self._ask(looking)
            if looked.arrival:
                self.outcome = replace(self.outcome, arrivals=(*self.outcome.arrivals, looked.arrival))

    async def _begin(self, name: str, failure: RailFailure | None) -> None:
        """Wait until both ends are ready. Raises _OverError if one cannot be."""
        if self._before and not failure:
            await self._before(name)
        await self._tell(failure)
        theirs, _ = await self._hear(None)
        self._blame(theirs, unless=failure)
        if failure or theirs:
            raise _OverError

    async def _together(self, request: Request) -> Answer:
        """Make a step that the other end makes as well, and receive its result. Raises _OverError."""
        asking = asyncio.ensure_future(self._ask(request))
        hearing = asyncio.ensure_future(self._hear(self._seconds(waits=True) + 2 * GRACE_S))
        try:
            await asyncio.wait({asking, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done() and not asking.done() and (hearing.exception() or hearing.result()[0]):
                await asyncio.wait({asking}, timeout=_AFTER_S)
                self._child.stop()
            failure, answer = await asking
            await self._tell(failure)
            theirs, _ = await hearing
        finally:
            asking.cancel()
            hearing.cancel()
        self._blame(theirs, unless=failure)
        self._connected = not (failure or theirs or answer.stopped)
        if any(each and each.kind in _ENDS for each in (failure, theirs)):
            raise _OverError
        return answer

    # The child, and the other end.

    def _seconds(self, *, waits: bool) -> float:
        """Return the time limit of a step; an end that only waits has longer, because the other one can say why."""
        return self._test.seconds + (2 * GRACE_S if waits else 0.0)

    async def _ask(self, request: Request) -> tuple[RailFailure | None, Answer]:
        """Return the answer to `request` here; record its failure and its time."""
        began = time.monotonic()
        left_s = max(0.0, self._deadline - began - GRACE_S)
        try:
            await self._child.start(min(START_S, left_s))
            answer = await self._child.ask(replace(request, seconds=min(request.seconds, left_s)))
        except VerbsError as error:
            answer = Answer(failure=error.failure(request.step, direction=request.way))
        took = (request.step, round(time.monotonic() - began, 6))
        self.outcome = replace(
            self.outcome, steps=(*self.outcome.steps, took), events=answer.events or self.outcome.events
        )
        if answer.failure:
            self._failed(answer.failure)
        return answer.failure, answer

    async def _tell(self, failure: RailFailure | None, address: RailAddress | None = None) -> None:
        message = {"failure": failure and asdict(failure), "address": address and asdict(address)}
        try:
            await self._channel.send(message, self._deadline)
        except WireError as error:
            raise self._fail_alone(str(error)) from None

    async def _hear(self, seconds: float | None) -> tuple[RailFailure | None, RailAddress | None]:
        """Return the other end's message, within `seconds`; None: until the deadline, because it may wait for
        others.
        """
        until = self._deadline if seconds is None else min(self._deadline, time.monotonic() + seconds)
        try:
            message = await self._channel.receive(until)
            failure = msgspec.convert(message.get("failure"), RailFailure | None)
            address = msgspec.convert(message.get("address"), RailAddress | None)
            if address and len(bytes.fromhex(address.gid)) != 16:
                raise ValueError(f"a GID of {address.gid[:80]}")
            if address and len(address.queue_pairs) != self.outcome.asked.queue_pairs:
                raise ValueError(f"{len(address.queue_pairs)} queue pairs for {self.outcome.asked.queue_pairs}")
        except WireError as error:
            raise self._fail_alone(str(error)) from None
        except (msgspec.ValidationError, ValueError) as error:
            raise self._fail_alone(f"sent an invalid message: {str(error)[:200]}") from None
        return failure, address

    def _blame(self, theirs: RailFailure | None, *, unless: RailFailure | None = None) -> None:
        """Record that the other end failed, unless this end failed itself: it would be reported twice."""
        if theirs and not unless:
            text = f"the other end: {theirs.text}"
            self._failed(RailFailure(step=theirs.step, kind="peer", text=text, direction=theirs.direction))

    def _fail_alone(self, why: str) -> _OverError:
        step = self.outcome.steps[-1][0] if self.outcome.steps else "open"
        self._failed(RailFailure(step=step, kind="channel", text=f"the other end {why}"))
        return _OverError()

    def _failed(self, failure: RailFailure) -> None:
        self.outcome = replace(self.outcome, failures=(*self.outcome.failures, failure))

    def _note(self, *, own: RailAddress | None = None, peer: RailAddress | None = None) -> None:
        self.outcome = replace(self.outcome, own=own or self.outcome.own, peer=peer or self.outcome.peer)
