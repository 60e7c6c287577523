"""Work requests and their completions: small messages to and fro, and streams of large RDMA writes.

The interpreter is kept off the path: the chain of a queue pair is built once, and one call posts all of it, only the
last request of it signalled. What ends a stream is an RDMA write with immediate data on each queue pair, as NCCL's:
with the last message, or, under adaptive routing, as an empty one after it (ncclIbMultiSend). So the receiver knows
without asking that all of it has come, however the network ordered it.
"""

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ncclprobe.model.rails import COMPLETIONS, RailAddress, RailDirection, RailStream
from ncclprobe.probes.verbs import abi
from ncclprobe.probes.verbs.library import VerbsError
from ncclprobe.probes.verbs.port import MAILBOX_IN, Port

_IN_FLIGHT = 2
"""Chains of each queue pair: while one is on its way, the next is posted already."""
_AT_ONCE = 32
_SPINS = 1000
"""Polls that find nothing before the processor is offered to others, and time and events are looked at."""
_LOST_S = 0.05
"""After a completion with an error, for others, and for the device's own word on it."""
MOST_GAPS = 4096
"""Times of chains that are kept."""
_WARM = 0.1
"""Of the round trips: not counted."""


class Stopped(Exception):
    """The parent wants no more of this step."""


class Traffic:
    """Moves data over a connected port. `at` is told what is called; `stopped` whether the parent wants it to end."""

    def __init__(self, port: Port, peer: RailAddress, at: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self.port, self.peer = port, peer
        self._at, self._stopped = at, stopped
        ops = port.context.contents.ops
        self._poll_cq, self._post_send, self._post_recv = (
            abi.Poll(ops.poll_cq),
            abi.Post(ops.post_send),
            abi.Post(ops.post_recv),
        )
        self._addresses = [ctypes.addressof(made.contents) for made in port.queue_pairs]
        self._found = (abi.WorkCompletion * _AT_ONCE)()
        self._bad = ctypes.c_void_p()
        self._expect()

    def _expect(self) -> None:
        """Post what the immediate data of a stream will consume, on every queue pair."""
        for index in range(len(self._addresses)):
            self._expect_one(index)

    def _expect_one(self, index: int) -> None:
        self._at("ibv_post_recv")
        self._post(self._post_recv, self._addresses[index], abi.RecvWr(wr_id=index))
        self._at("ibv_poll_cq")

    def _post(self, call: Any, queue_pair: int, first: Any) -> None:
        refusal = call(queue_pair, ctypes.addressof(first), ctypes.addressof(self._bad))
        if refusal:
            name = "ibv_post_recv" if call is self._post_recv else "ibv_post_send"
            raise VerbsError("refused", f"{name}: {os.strerror(abs(refusal))}", call=name, errno=abs(refusal))

    def _completions(self) -> Sequence[tuple[int, int]]:
        """Return opcode and request of what has completed; empty: nothing. Raises VerbsError for one that failed."""
        count = self._poll_cq(self.port.cq, _AT_ONCE, ctypes.addressof(self._found))
        if count == 0:
            return ()
        if count < 0:
            raise VerbsError("refused", f"ibv_poll_cq: {os.strerror(-count)}", call="ibv_poll_cq", errno=-count)
        found = self._found[:count]
        if any(each.status for each in found):
            raise self._failed([each for each in found if each.status])
        return [(each.opcode, each.wr_id) for each in found]

    def _failed(self, found: list[Any]) -> VerbsError:
        """Return the completion that says most: all that come after a queue pair's first error are only flushed."""
        until = time.monotonic() + _LOST_S
        copies = [(each.status, each.vendor_err, each.qp_num) for each in found]
        while all(status == abi.FLUSHED for status, _, _ in copies) and time.monotonic() < until:
            count = self._poll_cq(self.port.cq, _AT_ONCE, ctypes.addressof(self._found))
            copies += [(each.status, each.vendor_err, each.qp_num) for each in self._found[: max(0, count)]]
        status, vendor, number = min(copies, key=lambda each: (not each[0], each[0] == abi.FLUSHED))
        name, words = COMPLETIONS.get(status, ("unknown", "a status that this version has no words for"))
        text = f"completion with error {status} ({name}), vendor syndrome {vendor:#x}: {words}"
        return VerbsError("completion", text, status=status, vendor=vendor, queue_pair=number)

    def _waited(self, until: float, what: str) -> None:
        """Look up from polling: at the time, the parent and the device. Raises VerbsError, or Stopped."""
        os.sched_yield()
        if failure := self.port.look_at_events():
            raise failure
        if self._stopped():
            raise Stopped
        if time.monotonic() > until:
            raise VerbsError("late", what)

    # Small messages.

    def ping(self, round_trips: int, seconds: float, *, leads: bool) -> tuple[float, ...]:
        """Send a counter to and fro through the mailboxes. Return half of each round trip, µs, where this end leads."""
        until, came = time.monotonic() + seconds, 0
        words = memoryview(self.port.mailbox.map).cast("Q")
        request = self._small()
        times = []
        for count in range(1, round_trips + 1):
            began = time.perf_counter()
            if leads:
                self._say(request, words, count)
            came = self._heard(words, count, until)
            if not leads:
                self._say(request, words, count)
            times.append(1e6 * (time.perf_counter() - began) / 2)
        self._drained(until, came)
        return tuple(round(each, 3) for each in times[int(_WARM * len(times)) :]) if leads else ()

    def _small(self) -> Any:
        """Return a signalled write of the mailbox's first word into the peer's."""
        mailbox = self.port.mailbox
        self._small_sge = abi.Sge(mailbox.address, 8, self.port.mailbox_mr.contents.lkey)
        request = abi.SendWr(opcode=abi.RDMA_WRITE, send_flags=abi.SIGNALED, num_sge=1)
        request.sg_list = ctypes.addressof(self._small_sge)
        request.remote_addr, request.rkey = self.peer.mailbox_address, self.peer.mailbox_rkey
        self._unanswered = 0
        return request

    def _say(self, request: Any, words: memoryview, count: int) -> None:
        words[0] = count
        self.send(0, request)
        self._unanswered += 1
        if self._unanswered > _AT_ONCE:
            self._unanswered -= len(self._completions())

    def _heard(self, words: memoryview, count: int, until: float) -> int:
        """Wait for the other end's word."""
        place, spins = MAILBOX_IN // 8, 0
        while words[place] != count:
            spins += 1
            if spins % _SPINS == 0:
                self._unanswered -= len(self._completions())
                self._waited(until, f"small message {count} has not come")
        return count

    def _drained(self, until: float, came: int) -> None:
        while self._unanswered > 0:
            self._unanswered -= len(self._completions())
            self._waited(until, f"{self._unanswered} of {came} small messages are not acknowledged")

    # Streams.

    def stream(self, direction: RailDirection, seconds: float, *, writes: bool, reads: bool) -> RailStream | None:
        """Write, and wait for the other end's writes, each where asked. Return what writing took."""
        until = time.monotonic() + seconds
        queues = self._queues() if writes else []
        missing = sum(1 for count in self._shares() if count) if reads else 0
        expected = missing
        began = last = time.perf_counter()
        ended, work, spins, gaps = began, 0.0, 0, []
        for queue in queues:
            queue.fill()
        while missing or any(queue.busy for queue in queues):
            turn = time.perf_counter()
            found = self._completions()
            if not found:
                spins += 1
                if spins % _SPINS == 0:
                    self._waited(until, self._what_is_late(queues, missing, expected))
                continue
            for opcode, index in found:
                if opcode & abi.WC_RECEIVED:
                    missing -= 1
                    self._expect_one(index)
                    continue
                ended = time.perf_counter()
                if queues[index].complete():
                    gaps.append(1e6 * (ended - last))
                last = ended
            work += time.perf_counter() - turn
        if not writes:
            return None
        return self._written(direction, ended - began, work, gaps)

    def _written(self, direction: RailDirection, seconds: float, work: float, gaps: list[float]) -> RailStream:
        test = self.port.test
        return RailStream(
            direction=direction,
            nbytes=test.messages * test.message_bytes,
            seconds=seconds,
            chain_bytes=test.chain * test.message_bytes,
            chain_us=tuple(round(gap, 1) for gap in gaps[:MOST_GAPS]),
            work_s=work,
        )

    def _what_is_late(self, queues: "list[_Queue]", missing: int, expected: int) -> str:
        waiting = sum(queue.pending for queue in queues)
        if waiting:
            return (
                f"{waiting} of {self.port.test.messages} RDMA writes are not acknowledged, and the NIC tells no error"
            )
        return f"the other end's writes have not ended: {missing} of {expected} queue pairs wait"

    def send(self, index: int, first: Any) -> None:
        """Post the chain that begins with `first` to a queue pair."""
        self._at("ibv_post_send")
        self._post(self._post_send, self._addresses[index], first)
        self._at("ibv_poll_cq")

    def _shares(self) -> list[int]:
        """Return how many of the messages go over each queue pair."""
        test, pairs = self.port.test, len(self._addresses)
        return [len(range(index, test.messages, pairs)) for index in range(pairs)]

    def _queues(self) -> "list[_Queue]":
        return [_Queue(self, index, share) for index, share in enumerate(self._shares())]


class _Queue:
    """The writes of one queue pair: chains of unsignalled requests but for the last, then what ends the stream."""

    def __init__(self, traffic: Traffic, index: int, share: int) -> None:
        self._traffic, self._index = traffic, index
        port, self._chain = traffic.port, traffic.port.test.chain
        self._left, self.pending = max(0, share - 1), share
        self._flying: deque[int] = deque()
        self._ending = share > 0
        places = min(self._chain, share)
        self._sges, self._requests = (abi.Sge * max(1, places))(), (abi.SendWr * max(1, places))()
        pairs, slots = len(port.queue_pairs), port.region_bytes // port.test.message_bytes
        for place in range(places):
            self._prepare(place, (place * pairs + index) % slots * port.test.message_bytes)
        self._last_sge, self._last = abi.Sge(), (abi.SendWr * 2)()
        if share:
            self._prepare_last((share - 1) % self._chain)

    def _prepare(self, place: int, offset: int) -> None:
        """Make the request of one place in the chain."""
        port, peer = self._traffic.port, self._traffic.peer
        sge, request = self._sges[place], self._requests[place]
        sge.addr, sge.length, sge.lkey = port.data.address + offset, port.test.message_bytes, _lkey(port)
        request.sg_list, request.num_sge, request.opcode = ctypes.addressof(sge), 1, abi.RDMA_WRITE
        request.remote_addr, request.rkey, request.wr_id = peer.address + offset, peer.rkey, self._index
        self._link(place, last=place == len(self._requests) - 1)

    def _link(self, place: int, *, last: bool) -> None:
        request = self._requests[place]
        request.next = None if last else ctypes.addressof(self._requests[place + 1])
        request.send_flags = abi.SIGNALED if last else 0

    def _prepare_last(self, place: int) -> None:
        """Make what ends the stream: the last message with immediate data, or that message and an empty one with it."""
        source, (message, empty) = self._requests[place], self._last
        ctypes.memmove(ctypes.addressof(message), ctypes.addressof(source), ctypes.sizeof(source))
        message.next, message.send_flags, message.opcode = None, abi.SIGNALED, abi.RDMA_WRITE_WITH_IMM
        if self._traffic.port.asked.adaptive_routing:
            message.opcode, message.send_flags, message.next = abi.RDMA_WRITE, 0, ctypes.addressof(empty)
            empty.opcode, empty.send_flags, empty.wr_id = abi.RDMA_WRITE_WITH_IMM, abi.SIGNALED, self._index
            empty.remote_addr, empty.rkey = source.remote_addr, source.rkey

    @property
    def busy(self) -> bool:
        """Whether something of it is not yet posted or not yet acknowledged."""
        return self.pending > 0

    def fill(self) -> None:
        """Post as many chains as may be in flight, and at the end what ends the stream."""
        while len(self._flying) < _IN_FLIGHT and (self._left or self._ending):
            if not self._left:
                self._ending = False
                self._send(self._last[0], 1)
                return
            count = min(self._chain, self._left)
            if count < len(self._requests):
                self._link(count - 1, last=True)
            self._left -= count
            self._send(self._requests[0], count)

    def _send(self, first: Any, count: int) -> None:
        self._flying.append(count)
        self._traffic.send(self._index, first)

    def complete(self) -> bool:
        """Take the completion of the oldest chain, and post more. Return whether the chain was a full one."""
        count = self._flying.popleft()
        self.pending -= count
        self.fill()
        return count == self._chain


def _lkey(port: Port) -> int:
    key: int = port.data_mr.contents.lkey
    return key
