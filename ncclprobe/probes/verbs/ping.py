"""Small messages to and fro: RDMA writes of one word, which the other end finds in its memory, as ib_write_lat does."""

import ctypes
import time

from ncclprobe.probes.verbs import abi
from ncclprobe.probes.verbs.port import MAILBOX_IN
from ncclprobe.probes.verbs.traffic import AT_ONCE, SPINS, Traffic

_WARM = 0.1
"""Of the round trips: not counted."""
_SHARE = 0.2
"""Of the step's seconds: then a path that answers late has had round trips enough."""
_LAST = 1 << 63
"""Added to the count of the last round trip by the end that leads."""


class Ping:
    """A counter that goes to and fro between the mailboxes of both ends, in the host's memory."""

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
        """Return half of each round trip, in µs, where this end leads: of fewer where they take long.

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
                self._answered(f"small message {count} has not come")
        return words[place]

    def _answered(self, late: str) -> None:
        self._unanswered -= len(self._traffic.completions())
        self._traffic.look_up(self._until, late)
