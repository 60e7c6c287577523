"""Test one rail of AWS's EFA by libfabric's fi_pingpong: EFA has no reliable connections, which the verbs engine needs.

The end that is called starts fi_pingpong as a server and tells the other one its port over the channel; the end that
leads calls it, and tells what came of it: once with small messages, for the latency, once with large ones, for the
rate. What it prints and how it fails: util/pingpong.c of libfabric.

Its server listens on all addresses and takes the first caller for its partner, without any proof; it has no option
against either (fi_pingpong(1), libfabric 1.17). So it is started when the other end is there, listens until that one
calls, and is killed with its group when the run is over; where this process is killed itself, timeout(1) ends it.
"""

import asyncio
import contextlib
import errno
import math
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from ncclprobe.host.command import abandon, start
from ncclprobe.model.rails import (
    RailChannel,
    RailDirection,
    RailFailure,
    RailOutcome,
    RailPort,
    RailStepName,
    RailStream,
    RailTest,
)
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.wire import WireError

SMALL_BYTES = 64
_OUTPUT_BYTES = 64 << 10
_LOOK_S = 0.01
_AFTER_S = 1.0
"""Left to the called end's fi_pingpong once the leading one has failed: it may know more."""
_LAST_S = 0.5
"""Before the deadline a run is over, so that its end can still be told."""
_MOST_WORDS = 200
_NOT_FOUND, _SIGNALLED = 127, 128
"""Exit codes of timeout(1): the command is not there; a signal killed it, whose number is added."""
_COLUMNS = 8
"""bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec."""
_OWN_CALLS = frozenset((
    *("fi_getinfo", "fi_fabric", "fi_domain", "fi_eq_open", "fi_cq_open", "fi_av_open", "fi_endpoint", "fi_ep_bind"),
    *("fi_enable", "fi_mr_reg", "fi_getname", "posix_memalign", "socket", "bind", "listen"),
))  # fmt: skip
"""Calls that take no other end: where one fails, this end's device, driver or libfabric is at fault."""
_OWN_KINDS = ("refused", "died", "missing")
"""What the called end says itself once the leading one has failed; the rest may follow from that one's being killed."""
_MARKS = ("ret=-", "[error]")
"""What is in the lines that say what failed."""
_ECHOES = ("remote connection closed", "Connection reset", "Broken pipe")
"""What an end says whose partner has ended; of the reason it knows nothing."""
Before = Callable[[str], Awaitable[None]]


async def run_ping_pong(
    port: RailPort,
    test: RailTest,
    *,
    leads: bool,
    channel: RailChannel,
    deadline: float,
    before: Before | None = None,
    provider: str = "efa",
) -> RailOutcome:
    """Test one rail together with the end that is called with the other value of `leads`. Return what this end saw.

    Of `test` count round trips, messages and seconds; data is not compared. `deadline` is a time.monotonic(). `before`,
    where given, is awaited with the name of each run before it begins. `provider` is libfabric's.
    """
    end = _End(port, test, leads, channel, deadline, provider)
    with contextlib.suppress(_OverError):
        for step, nbytes, count in end.runs():
            if before:
                await before(step)
            await end.run(step, nbytes, count)
    return end.outcome


def message_us(text: str) -> float | None:
    """Return what one message took, µs, by the row that fi_pingpong prints of one size; None: it printed none.

    A row whose messages were not all acknowledged (``=`` before their number) is none.
    """
    lines = iter(text.splitlines())
    header = next((line for line in lines if line.split()[:2] == ["bytes", "#sent"]), None)
    cells = next(lines, "").split() if header else []
    if len(cells) != _COLUMNS or not cells[2].startswith("="):
        return None
    try:
        us = float(cells[6])
    except ValueError:
        return None
    return us if math.isfinite(us) and us > 0 else None


def failure_of(text: str, code: int, step: RailStepName) -> RailFailure:
    """Return why a run failed that printed `text` and ended with `code`."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    said = next((line for line in lines if any(mark in line for mark in _MARKS)), "")
    words = f"fi_pingpong: {(said or ' '.join(lines[:1]) or 'said nothing')[:_MOST_WORDS]}"
    call = said.partition("():")[0].partition("(")[0] if "():" in said else ""
    if "failed to connect" in said:  # the device was not asked
        return RailFailure(step="open", kind="channel", text=f"{words}, on its own connection over TCP")
    if call in _OWN_CALLS:
        return RailFailure(step="open", kind="refused", text=words, call=call, errno=_errno(said))
    if said:
        echo = any(each in said for each in _ECHOES)
        return RailFailure(step=step, kind="peer" if echo else "completion", text=words, call=call)
    number = -code if code < 0 else code - _SIGNALLED
    if number in {each.value for each in signal.Signals}:
        return RailFailure(step=step, kind="died", text=f"fi_pingpong ended by {signal.Signals(number).name}")
    text = f"{words} (exit code {code})"
    return RailFailure(step="open", kind="missing" if code == _NOT_FOUND else "refused", text=text)


def _errno(line: str) -> int:
    number = line.partition("ret=-")[2].partition(" ")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0


class _OverError(Exception):
    """Nothing more can be done; the outcome says why."""


class _Said(Struct, frozen=True):
    """What an end says: where its fi_pingpong listens; what a message took, µs; why there is neither."""

    port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    failure: RailFailure | None = None


class _End:
    """This end of the test."""

    def __init__(
        self, port: RailPort, test: RailTest, leads: bool, channel: RailChannel, deadline: float, provider: str
    ) -> None:
        self._test, self._leads, self._channel, self._deadline = test, leads, channel, deadline
        self._peer = channel.peer.removeprefix("::ffff:")
        self._ipv6 = ":" in self._peer
        domain = f"{port.device}-rdm" if provider == "efa" else port.device  # EFA's provider names it by the endpoints
        family = ["-6"] if self._ipv6 else []
        self._command = [port.program, "-p", provider, "-e", "rdm", "-d", domain, *family]
        self.outcome = RailOutcome(asked=port)

    def runs(self) -> Iterator[tuple[RailStepName, int, int]]:
        """Yield the runs: the step, the bytes of a message, and how many of them go each way."""
        if self._test.round_trips:
            yield "latency", SMALL_BYTES, self._test.round_trips
        if self._test.directions:
            yield "write", self._test.message_bytes, self._test.messages

    async def run(self, step: RailStepName, nbytes: int, count: int) -> None:
        """Have the fi_pingpong of both ends exchange `count` messages of `nbytes`. Raises _OverError."""
        began, size = time.monotonic(), ["-S", str(nbytes), "-I", str(count)]
        with _Program() as program:
            try:
                us = await (self._call if self._leads else self._serve)(program, step, size)
            except OSError as error:
                text = f"timeout {self._command[0]}: {error.strerror}"
                raise await self._give_up(RailFailure(step="open", kind="missing", text=text)) from None
        took = (step, round(time.monotonic() - began, 6))
        self.outcome = replace(self.outcome, steps=(*self.outcome.steps, took))
        self._note(step, nbytes, count, us)

    def _note(self, step: RailStepName, nbytes: int, count: int, us: float) -> None:
        """Note what a message took: as the rate in the direction in which this end sends, or as the latency."""
        if step == "write":
            way: RailDirection = "out" if self._leads else "in"
            sent = RailStream(
                direction=way, nbytes=nbytes * count, seconds=us * count / 1e6, chain_bytes=0, chain_us=(), work_s=0.0
            )
            self.outcome = replace(self.outcome, streams=(*self.outcome.streams, sent))
        elif self._leads:
            self.outcome = replace(self.outcome, half_round_trip_us=(us,))

    async def _call(self, program: "_Program", step: RailStepName, size: Sequence[str]) -> float:
        """Call the other end's fi_pingpong, and tell what came of it. Raises _OverError, OSError."""
        port = (await self._hear()).port
        await program.start(self._argv(*size, "-P", str(port), self._peer))
        text, code = await program.output(min(self._test.seconds, self._left_s))
        us = message_us(text)
        if us is None:
            raise await self._give_up(self._why(text, code, step))
        await self._tell(_Said(us=us))
        return us

    def _why(self, text: str, code: int | None, step: RailStepName) -> RailFailure:
        """Return why a run failed: where the first one does, nothing passes, so its step is ``connect``."""
        at: RailStepName = step if self.outcome.steps else "connect"
        if code is not None:
            return failure_of(text, code, at)
        words = f"fi_pingpong did not end within {self._test.seconds:g} s, and was killed"
        return RailFailure(step=at, kind="late", text=words)

    async def _serve(self, program: "_Program", step: RailStepName, size: Sequence[str]) -> float:
        """Start a server, tell where, and hear from the other end what came of it. Raises _OverError, OSError."""
        until = time.monotonic() + min(self._test.setup_seconds, self._left_s)
        with _reserved(socket.AF_INET6 if self._ipv6 else socket.AF_INET) as (port, taken):
            await program.start(self._argv(*size, "-B", str(port)))
            while not taken() and program.lives and time.monotonic() < until:
                await asyncio.sleep(_LOOK_S)
            if not taken():
                raise await self._give_up(await self._not_listening(program))
            await self._tell(_Said(port))
            said = await self._hear(quiet=True)
            if said.failure is None:
                return said.us
            if taken() and said.failure.kind == "late":
                text = f"fi_pingpong of the other end never came to TCP port {port} of this one: is there a firewall?"
                raise self._over(RailFailure(step="open", kind="channel", text=text))
        raise self._over(self._first(said.failure, *await program.output(_AFTER_S), step))

    def _first(self, theirs: RailFailure, text: str, code: int | None, step: RailStepName) -> RailFailure:
        """Return what this end, which was called, has to say of a run that failed at the other end for `theirs`."""
        said = code or any(mark in text for mark in _MARKS)  # it may not have ended yet
        own = self._why(text, code or 0, step) if said else None
        if own and own.kind != "peer" and (own.kind in _OWN_KINDS or theirs.kind == "peer"):
            return own
        if theirs.kind != "peer":
            return _heard(theirs)
        return RailFailure(step="open", kind="channel", text="fi_pingpong ended at both ends, and neither says why")

    async def _not_listening(self, program: "_Program") -> RailFailure:
        text, code = await program.output(_LOOK_S)
        if code is not None:
            return failure_of(text, code, "open")
        words = f"fi_pingpong did not listen within {self._test.setup_seconds:g} s, and was killed"
        return RailFailure(step="open", kind="hangs", text=words)

    @property
    def _left_s(self) -> float:
        return max(0.0, self._deadline - _LAST_S - time.monotonic())

    def _argv(self, *arguments: str) -> list[str]:
        return ["timeout", "-s", "KILL", str(math.ceil(self._left_s + 1)), *self._command, *arguments]

    async def _tell(self, said: _Said) -> None:
        try:
            await self._channel.send(asdict(said), self._deadline)
        except WireError as error:
            raise self._alone(str(error)) from None

    async def _hear(self, *, quiet: bool = False) -> _Said:
        """Return what the other end says. Raises _OverError where that is a failure, but not if `quiet`."""
        try:
            said = msgspec.convert(await self._channel.receive(self._deadline), _Said)
        except WireError as error:
            raise self._alone(str(error)) from None
        except msgspec.ValidationError as error:
            raise self._alone(f"sent what no end of a rail sends: {str(error)[:_MOST_WORDS]}") from None
        if said.failure and not quiet:
            raise self._over(_heard(said.failure))
        if not said.failure and not (said.us if quiet else said.port):
            raise self._alone("sent what no end of a rail sends")
        return said

    async def _give_up(self, failure: RailFailure) -> _OverError:
        over = self._over(failure)
        await self._tell(_Said(failure=failure))
        return over

    def _over(self, failure: RailFailure) -> _OverError:
        """Note why nothing more can be done. A ping-pong goes both ways, so a large one that fails is told of both."""
        ways: tuple[RailDirection | None, ...] = ("out", "in") if failure.step == "write" else (None,)
        told = tuple(replace(failure, direction=way) for way in ways)
        self.outcome = replace(self.outcome, failures=(*self.outcome.failures, *told))
        return _OverError()

    def _alone(self, why: str) -> _OverError:
        return self._over(RailFailure(step="open", kind="channel", text=f"the other end {why}"))


def _heard(failure: RailFailure) -> RailFailure:
    return RailFailure(step=failure.step, kind="peer", text=f"the other end: {failure.text}")


@contextlib.contextmanager
def _reserved(family: socket.AddressFamily) -> Iterator[tuple[int, Callable[[], bool]]]:
    """Yield a free port, and what tells whether a process listens on it.

    While it is held no other process is given it; fi_pingpong binds it all the same, for both share it
    (SO_REUSEADDR, socket(7)), which Linux allows until one listens. So binding it once more tells that.
    """
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        port = held.getsockname()[1]

        def taken() -> bool:
            with socket.socket(family) as another:
                another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    another.bind(("", port))
                except OSError as error:
                    return error.errno == errno.EADDRINUSE
            return False

        yield port, taken


class _Program:
    """A program in a group of its own; what it prints comes over one socket."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._printed = bytearray()

    def __enter__(self) -> "_Program":
        return self

    def __exit__(self, *ended: object) -> None:
        """Kill it with its group."""
        if self._streams:
            self._streams[1].transport.abort()
        if self._process:
            abandon(self._process)

    async def start(self, argv: Sequence[str]) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            said = theirs.fileno()
            self._process = start(argv, stdout=said, stderr=said, variables={"LC_ALL": "C"})
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._streams = await asyncio.open_unix_connection(sock=ours)

    @property
    def lives(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def output(self, seconds: float) -> tuple[str, int | None]:
        """Return what it printed, and its exit code; None: it has not ended within `seconds`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended(), seconds)
        code = self._process.poll() if self._process else None
        return self._printed.decode(errors="replace"), code

    async def _ended(self) -> None:
        assert self._streams
        while len(self._printed) < _OUTPUT_BYTES and (chunk := await self._streams[0].read(_OUTPUT_BYTES)):
            self._printed += chunk
        while self.lives:
            await asyncio.sleep(_LOOK_S)
