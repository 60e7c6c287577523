"""Work requests and their completions, over the queue pairs of a connected port."""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ncclprobe.model.rails import COMPLETIONS, RailAddress
from ncclprobe.probes.verbs import abi
from ncclprobe.probes.verbs.library import VerbsError
from ncclprobe.probes.verbs.port import Port

AT_ONCE = 32
"""Completions that are taken by one call."""
SPINS = 200
"""Polls that find nothing before :meth:`Traffic.look_up`."""
_RESTS_AFTER_S, _SHARE, _REST_S = 0.1, 1 / 32, 0.005
"""Who has waited so long rests for this share of that time between polls: so much later a completion may be seen."""
_LOST_S = 0.05
"""After a completion that only tells of an earlier error, for that one."""


class Stopped(Exception):
    """The parent wants no more of this step."""


class Traffic:
    """Moves data over a connected port. `at` is told what is called; `stopped` whether the parent wants it to end."""

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
        """Post what the immediate data that ends a stream will consume on a queue pair."""
        self.at("ibv_post_recv")
        self._post(self._post_recv, self._addresses[index], abi.RecvWr(wr_id=index))
        self.at("ibv_poll_cq")

    def _post(self, call: Any, queue_pair: int, first: Any) -> None:
        refusal = call(queue_pair, ctypes.addressof(first), ctypes.addressof(self._bad))
        if refusal:
            name = "ibv_post_recv" if call is self._post_recv else "ibv_post_send"
            raise VerbsError("refused", f"{name}: {os.strerror(abs(refusal))}", call=name, errno=abs(refusal))

    def completions(self) -> Sequence[tuple[int, int]]:
        """Return opcode and request of what has completed; empty: nothing. Raises VerbsError for one that failed."""
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
        """Return the completion that tells most: all that come after a queue pair's first error are only flushed."""
        until = time.monotonic() + _LOST_S
        copies = [(each.status, each.vendor_err, each.qp_num) for each in found]
        while all(status == abi.FLUSHED for status, _, _ in copies) and time.monotonic() < until:
            count = self._poll_cq(self.port.cq, AT_ONCE, ctypes.addressof(self._found))
            copies += [(each.status, each.vendor_err, each.qp_num) for each in self._found[: max(0, count)]]
        status, vendor, number = min(copies, key=lambda each: (not each[0], each[0] == abi.FLUSHED))
        name, words = COMPLETIONS.get(status, ("unknown", "a status that this version has no words for"))
        text = f"completion with error {status} ({name}), vendor syndrome {vendor:#x}: {words}"
        return VerbsError("completion", text, status=status, vendor=vendor, queue_pair=number)

    def look_up(self, until: float, what: str, *, timed: bool = True) -> None:
        """Look up from polling: at the time, the parent and the device. Raises VerbsError, or Stopped.

        Where what comes is not `timed`, it rests at once: eight rails would else keep eight processors busy, and an
        emulated wire has no other to run on.
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
