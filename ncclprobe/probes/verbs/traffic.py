"""Streams of large RDMA writes over all queue pairs of a connected port, and their completions.

The interpreter is kept off the path: the chain of a queue pair is built once, and one call posts all of it, with only
the
last request signalled. A stream ends with an RDMA write with immediate data on each queue pair, as NCCL's does: the
last
message itself, or, under adaptive routing, an empty one after it (ncclIbMultiSend). So the receiver knows that all has
arrived, however the network ordered it.
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
from ncclprobe.probes.verbs.port import Port

AT_ONCE = 32
"""Maximum completions per poll."""
SPINS = 200
"""Empty polls before :meth:`Traffic.look_up`."""
_RESTS_AFTER_S, _SHARE, _REST_S = 0.1, 1 / 32, 0.005
"""After this wait, sleep between polls for this share of the wait, at most so long: a completion may
be seen that late.
"""
_LOST_S = 0.05
"""Wait for the completion of an earlier error, after one that only says that there was one."""


class Stopped(Exception):
    """The parent ends this step."""


class Traffic:
    """Moves data over a connected port. `at` receives the name of each call; `stopped` returns whether to end early."""

    def __init__(self, port: Port, peer: RailAddress, at: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self.port, self.peer = port, peer
        self.at, self._stopped = at, stopped
        ops = port.context.contents.ops
        self._poll_cq, self._post_send, self._post_recv = (
            abi.Poll(ops.poll_cq),
            abi.Post(ops.post_send),
            abi.Post(ops.post_recv),
        )
        self._addresses = [ctypes.addressof(made.contents) for made in port.queue_pairs]
        self._found = (abi.WorkCompletion * AT_ONCE)()
        self._bad = ctypes.c_void_p()
        self._found_at = time.monotonic()
        for index in range(len(self._addresses)):
            self.expect(index)

    def expect(self, index: int) -> None:
        """Post the receive that the immediate data at a stream's end will consume, on one queue pair."""
        self.at("ibv_post_recv")
        self._post(self._post_recv, self._addresses[index], abi.RecvWr(wr_id=index))
        self.at("ibv_poll_cq")

    def _post(self, call: Any, queue_pair: int, first: Any) -> None:
        refusal = call(queue_pair, ctypes.addressof(first), ctypes.addressof(self._bad))
        if refusal:
            name = "ibv_post_recv" if call is self._post_recv else "ibv_post_send"
            raise VerbsError("refused", f"{name}: {os.strerror(abs(refusal))}", call=name, errno=abs(refusal))

    def completions(self) -> Sequence[tuple[int, int]]:
        """Return opcode and request of each completion; empty if none. Raises VerbsError for a failed one."""
        count = self._poll_cq(self.port.cq, AT_ONCE, ctypes.addressof(self._found))
        if count == 0:
            return ()
        if count < 0:
            raise VerbsError("refused", f"ibv_poll_cq: {os.strerror(-count)}", call="ibv_poll_cq", errno=-count)
        found = self._found[:count]
        if any(each.status for each in found):
            raise self._failed([each for each in found if each.status])
        self._found_at = time.monotonic()
        return [(each.opcode, each.wr_id) for each in found]

    def _failed(self, found: list[Any]) -> VerbsError:
        """Return the most informative completion: all after a queue pair's first error are only flushed."""
        until = time.monotonic() + _LOST_S
        copies = [(each.status, each.vendor_err) for each in found]
        while all(status == abi.FLUSHED for status, _ in copies) and time.monotonic() < until:
            count = self._poll_cq(self.port.cq, AT_ONCE, ctypes.addressof(self._found))
            copies += [(each.status, each.vendor_err) for each in self._found[: max(0, count)]]
        status, vendor = min(copies, key=lambda each: (not each[0], each[0] == abi.FLUSHED))
        name, words = COMPLETIONS.get(status, ("unknown", "a status that this version does not know"))
        text = f"completion with error {status} ({name}), vendor syndrome {vendor:#x}: {words}"
        return VerbsError("completion", text, status=status)

    def look_up(self, until: float, what: str, *, timed: bool = True) -> None:
        """Check the time, the parent and the device between polls. Raises VerbsError, Stopped.

        If completions are not `timed`, sleep at once: eight rails would keep eight processors busy, and an emulated
        wire
        has no other to run on.
        """
        waited_s = time.monotonic() - self._found_at
        if timed and waited_s < _RESTS_AFTER_S:
            os.sched_yield()
        else:
            time.sleep(min(_REST_S, _SHARE * waited_s) if timed else _REST_S)
        if failure := self.port.look_at_events():
            raise failure
        if self._stopped():
            raise Stopped
        if time.monotonic() > until:
            raise VerbsError("late", what)

    def send(self, index: int, first: Any) -> None:
        """Post the chain of requests that begins with `first` to a queue pair."""
        self.at("ibv_post_send")
        self._post(self._post_send, self._addresses[index], first)
        self.at("ibv_poll_cq")


_IN_FLIGHT = 2
"""Chains in flight per queue pair: the next is posted while one is on its way."""


class Stream:
    """Writes, waits for the other end's writes, or both.

    `turns`: the seconds of each poll that found completions, and the number of chains completed.
    """

    def __init__(self, traffic: Traffic, *, writes: bool, reads: bool) -> None:
        test, pairs = traffic.port.test, len(traffic.port.queue_pairs)
        shares = [len(range(index, test.messages, pairs)) for index in range(pairs)]
        self._traffic = traffic
        self._queues = [_Queue(traffic, index, share) for index, share in enumerate(shares)] if writes else []
        self._expected = self._missing = sum(share > 0 for share in shares) if reads else 0
        self._began = self._last = 0.0
        self.turns: list[tuple[float, int]] = []

    def run(self, direction: RailDirection, seconds: float) -> RailStream | None:
        """Return what writing took; None if this end only reads. Raises VerbsError, Stopped."""
        until, spins = time.monotonic() + seconds, 0
        self._began = self._last = time.perf_counter()
        for queue in self._queues:
            queue.fill()
        while self._missing or any(queue.pending for queue in self._queues):
            if not self._turn():
                spins += 1
                if spins % SPINS == 0:
                    self._traffic.look_up(until, self._late(), timed=bool(self._queues))
        return self._written(direction) if self._queues else None

    def _turn(self) -> bool:
        """Poll once, and replace what has completed. Return whether anything had."""
        began = time.perf_counter()
        found = self._traffic.completions()
        if not found:
            return False
        writing = any(queue.pending for queue in self._queues)
        for opcode, index in found:
            if opcode & abi.WC_RECEIVED:
                self._missing -= 1
                self._traffic.expect(index)
            else:
                self._last = time.perf_counter()
                self._queues[index].complete()
        if writing:  # what comes in afterwards is no part of the time that writing took
            self.turns.append((time.perf_counter() - began, len(found)))
        return True

    def _written(self, direction: RailDirection) -> RailStream:
        test, seconds = self._traffic.port.test, self._last - self._began
        return RailStream(
            direction=direction,
            nbytes=test.messages * test.message_bytes,
            seconds=seconds,
            work_s=min(seconds, sum(turn_s for turn_s, _ in self.turns)),  # the last turn ends later
        )

    def _late(self) -> str:
        waiting, messages = sum(queue.pending for queue in self._queues), self._traffic.port.test.messages
        if waiting:
            return f"{waiting} of {messages} RDMA writes are not acknowledged, and the NIC reports no error"
        return f"the other end's writes have not ended: {self._missing} of {self._expected} queue pairs wait"


class _Queue:
    """The writes of one queue pair: chains with only the last request signalled, then the end of the stream."""

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
        self._last = (abi.SendWr * 2)()
        if share:
            self._prepare_last((share - 1) % self._chain)

    def _prepare(self, place: int, offset: int) -> None:
        """Build the request at one place in the chain."""
        port, peer = self._traffic.port, self._traffic.peer
        sge, request = self._sges[place], self._requests[place]
        sge.addr, sge.length, sge.lkey = port.data.address + offset, port.test.message_bytes, port.data_mr.contents.lkey
        request.sg_list, request.num_sge, request.opcode = ctypes.addressof(sge), 1, abi.RDMA_WRITE
        request.remote_addr, request.rkey, request.wr_id = peer.address + offset, peer.rkey, self._index
        self._link(place, last=place == len(self._requests) - 1)

    def _link(self, place: int, *, last: bool) -> None:
        request = self._requests[place]
        request.next = None if last else ctypes.addressof(self._requests[place + 1])
        request.send_flags = abi.SIGNALED if last else 0

    def _prepare_last(self, place: int) -> None:
        """Build the end of the stream: the last message with immediate data, or that message and an empty one
        with it.
        """
        source, (message, empty) = self._requests[place], self._last
        ctypes.memmove(ctypes.addressof(message), ctypes.addressof(source), ctypes.sizeof(source))
        message.next, message.send_flags, message.opcode = None, abi.SIGNALED, abi.RDMA_WRITE_WITH_IMM
        if self._traffic.port.asked.adaptive_routing:
            message.opcode, message.send_flags, message.next = abi.RDMA_WRITE, 0, ctypes.addressof(empty)
            empty.opcode, empty.send_flags, empty.wr_id = abi.RDMA_WRITE_WITH_IMM, abi.SIGNALED, self._index
            empty.remote_addr, empty.rkey = source.remote_addr, source.rkey

    def fill(self) -> None:
        """Post as many chains as may be in flight, and at the end the end of the stream."""
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

    def _send(self, first: abi.SendWr, count: int) -> None:
        self._flying.append(count)
        self._traffic.send(self._index, first)

    def complete(self) -> None:
        """Take the completion of the oldest chain, and post more."""
        self.pending -= self._flying.popleft()
        self.fill()
