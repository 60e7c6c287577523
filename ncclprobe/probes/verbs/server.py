"""The child process of :mod:`ncclprobe.probes.verbs.pair`: one end of a rail test, step by step.

Its standard input is a socket for requests and answers. The name of its current call is in memory shared with its
parent, so that the parent can name a call that hangs.
"""

import contextlib
import ctypes
import mmap
import os
import select
import socket
import sys
import time

import msgspec

from ncclprobe.host.limited_child import LENGTH, framed
from ncclprobe.model import bounds
from ncclprobe.model.values import replace
from ncclprobe.probes.verbs import abi, pattern
from ncclprobe.probes.verbs.library import Library, VerbsError
from ncclprobe.probes.verbs.messages import BROKEN, PLACE_BYTES, Answer, Request
from ncclprobe.probes.verbs.port import MAILBOX_IN, Port
from ncclprobe.probes.verbs.traffic import AT_ONCE, SPINS, Stopped, Stream, Traffic


def serve(place: str) -> None:
    """Answer requests until the parent hangs up. `place` is the descriptor of the shared memory."""
    sys.excepthook = lambda *_: os._exit(BROKEN)  # no fault of the machine
    with socket.socket(fileno=os.dup(0)) as wire, contextlib.suppress(ConnectionError):
        end = _End(mmap.mmap(int(place), PLACE_BYTES), wire)
        wire.sendall(_encoded(Answer()))  # ready
        while asked := _next_request(wire):
            if asked.do != "stop":  # one that came after its step had ended
                wire.sendall(_encoded(end.do(asked)))


def _encoded(answer: Answer) -> bytes:
    return framed(msgspec.json.encode(answer))


def _next_request(wire: socket.socket) -> Request | None:
    """Return the next request; None if the parent has hung up. Never reads ahead, so that a stop can be seen."""
    head = wire.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    if length > bounds.RAIL_MESSAGE_BYTES:
        return None
    return msgspec.json.decode(wire.recv(length, socket.MSG_WAITALL), type=Request)


class _End:
    """The port and its connection, as far as they are set up."""

    def __init__(self, place: mmap.mmap, wire: socket.socket) -> None:
        self._place, self._wire = place, wire
        self._port: Port | None = None
        self._traffic: Traffic | None = None

    def do(self, asked: Request) -> Answer:
        """Make one step, and return its answer."""
        try:
            answer: Answer = getattr(self, f"_{asked.do}")(asked)
        except VerbsError as error:
            answer = Answer(failure=error.failure(asked.step, direction=asked.way))
        except Stopped:
            answer = Answer(stopped=True)
        if not self._port:
            return answer
        reported = self._port.look_at_events()
        if reported and not answer.failure:  # what the device reports meanwhile is a failure, if no other was reported
            answer = replace(answer, failure=reported.failure(asked.step, direction=asked.way))
        return replace(answer, events=tuple(self._port.events))

    def _enter_call(self, call: str) -> None:
        self._place[:] = call.encode()[:PLACE_BYTES].ljust(PLACE_BYTES, b"\0")

    def _stopped(self) -> bool:
        return bool(select.select([self._wire], [], [], 0)[0])

    @property
    def port(self) -> Port:
        """The opened port."""
        assert self._port
        return self._port

    @property
    def traffic(self) -> Traffic:
        """Traffic over the current queue pairs."""
        assert self._traffic
        return self._traffic

    def _open(self, asked: Request) -> Answer:
        assert asked.port
        assert asked.test
        self._port = Port(Library(self._enter_call), asked.port, asked.test)
        return self._renew(asked)

    def _renew(self, asked: Request) -> Answer:
        self.port.create()
        return Answer(address=self.port.address())

    def _connect(self, asked: Request) -> Answer:
        assert asked.peer
        self.port.connect(asked.peer)
        self._traffic = Traffic(self.port, asked.peer, self._enter_call, self._stopped)
        return Answer(address=self.port.address())

    def _ping(self, asked: Request) -> Answer:
        ping = _Ping(self.traffic, asked.seconds, leads=asked.leads)
        return Answer(half_round_trip_us=ping.run(self.port.test.round_trips))

    def _prepare(self, asked: Request) -> Answer:
        """Fill the outgoing region with the pattern, and the incoming one with bytes that nothing writes."""
        port = self.port
        port.data.write(0, self._tile(by_leader=asked.leads))
        port.data.write(port.region_bytes, pattern.complement(self._tile(by_leader=not asked.leads)))
        return Answer()

    def _stream(self, asked: Request) -> Answer:
        stream = Stream(self.traffic, writes=asked.writes, reads=asked.reads)
        return Answer(stream=stream.run(asked.direction, asked.seconds))

    def _verify(self, asked: Request) -> Answer:
        port = self.port
        found = port.data.read(port.region_bytes, port.region_bytes)
        return Answer(arrival=pattern.judge(asked.direction, self._tile(by_leader=not asked.leads), found))

    def _tile(self, *, by_leader: bool) -> bytes:
        return pattern.tile(self.port.test.seed, by_leader, self.port.region_bytes)


_WARM = 0.1
"""Share of round trips made first and not counted."""
_SHARE = 0.2
"""Share of the step's seconds for round trips: enough even for a slow path."""
_LAST = 1 << 63
"""Added by the leading end to the count of the last round trip."""


class _Ping:
    """A counter that bounces between the mailboxes of both ends, in host memory."""

    def __init__(self, traffic: Traffic, seconds: float, *, leads: bool) -> None:
        port, peer = traffic.port, traffic.peer
        self._traffic, self._leads, self._until = traffic, leads, time.monotonic() + seconds
        self._enough = time.perf_counter() + _SHARE * seconds
        self._words = memoryview(port.mailbox.map).cast("Q")
        self._sge = abi.Sge(port.mailbox.address, 8, port.mailbox_mr.contents.lkey)
        self._request = abi.SendWr(opcode=abi.RDMA_WRITE, send_flags=abi.SIGNALED, num_sge=1)
        self._request.sg_list = ctypes.addressof(self._sge)
        self._request.remote_addr, self._request.rkey = peer.mailbox_address, peer.mailbox_rkey
        self._unanswered = 0

    def run(self, round_trips: int) -> tuple[float, ...]:
        """Return half of each round trip, in µs, on the leading end; fewer if they are slow.

        Raises VerbsError, Stopped.
        """
        times: list[float] = []
        word = 0
        while not word & _LAST:
            count, began = len(times) + 1, time.perf_counter()
            if self._leads:
                word = count | _LAST if count == round_trips or began > self._enough else count
                self._say(word)
                self._hear(count)
            else:
                word = self._hear(count)
                self._say(word)
            times.append(1e6 * (time.perf_counter() - began) / 2)
        while self._unanswered > 0:
            self._answered(f"{self._unanswered} of {len(times)} small messages are not acknowledged")
        return tuple(round(each, 3) for each in times[int(_WARM * len(times)) :]) if self._leads else ()

    def _say(self, word: int) -> None:
        self._words[0] = word
        self._traffic.send(0, self._request)
        self._unanswered += 1
        if self._unanswered > AT_ONCE:
            self._unanswered -= len(self._traffic.completions())

    def _hear(self, count: int) -> int:
        """Return the word of this round trip, or that of the last one, which is higher."""
        words, place, spins = self._words, MAILBOX_IN // 8, 0
        while words[place] < count:
            spins += 1
            if spins % SPINS == 0:
                self._answered(f"small message {count} has not arrived")
        return words[place]

    def _answered(self, late: str) -> None:
        self._unanswered -= len(self._traffic.completions())
        self._traffic.look_up(self._until, late)
