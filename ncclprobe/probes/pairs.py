"""Measure transfers between two ranks of the default group, with a deadline for each step.

Each time is taken on one clock: a round trip if the sender asks for a reply, or the receiver's own wait if both
send at once. A pair that misses its deadline is lost, and with it the connections of its two ranks: gloo closes all
connections of a process whose wait timed out (transport/tcp/unbound_buffer.cc), and a CUDA stream stays behind a stuck
kernel. The other ranks are not affected. A rank whose gloo peer is gone did not have to wait, so it keeps its other
connections and continues. Over gloo the two ranks of a lost pair continue as well, in a new group with its own
connections, which all ranks make; over NCCL these two measure no more, because a stuck CUDA stream cannot be freed
without ending its process.

After its timed transfers each direction makes one more, into a cleared buffer, whose contents are compared. Every byte
depends on its sender, its receiver and its position.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist

from ncclprobe.model.errors import reason
from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.probes.buffers import PERIOD, Pattern
from ncclprobe.probes.collectives import Slice

Kind = Literal["latency", "forth", "back", "both"]
SAMPLES = 5
"""Timed transfers of a pair and direction; the sample is their median."""
_APART_S = 0.01
"""Pause between samples: one pause of a scheduler then spoils one of them and not the median."""
_PINGS, _WARM_UPS = 20, 2
_TRANSFERS = 4
"""Transfers per sample on a GPU: the host takes 30 to 40 µs to launch one, a sixth of 64 MiB over NVLink."""
_GRACE_S = 0.5
"""Time for a transfer that gives up at its deadline to report so."""
_PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""gloo's errors if only this connection is gone (transport/tcp/pair.cc; seen with torch 2.13)."""


class PairTiming(Struct, frozen=True):
    """One rank's timing of a step: seconds per transfer, or why nothing arrived; empty if it only answered.

    `wrong`: received bytes that differ from what was sent, None if not verified; `mismatch`: the first of them. `fit`:
    this rank's connections can serve other pairs, whether or not its own pair is lost.
    """

    seconds: tuple[float, ...] = ()
    why: str = ""
    wrong: int | None = None
    mismatch: Mismatch | None = None
    fit: bool = True


def as_json(timing: PairTiming) -> dict[str, Any]:
    """Return `timing` as JSON values."""
    return asdict(timing)


def from_json(row: dict[str, Any]) -> PairTiming:
    """Parse another rank's timing."""
    mismatch = Mismatch(**row["mismatch"]) if row["mismatch"] else None
    return PairTiming(tuple(row["seconds"]), row["why"], row["wrong"], mismatch, row["fit"])


def pattern(src: int, dst: int, device: torch.device) -> Pattern:
    """Return what `src` sends to `dst` for verification: squares modulo a prime, with another start for each pair.

    Never zero, which is what a cleared receive buffer holds.
    """
    first = (src * 8191 + dst * 131 + 4099) % 65521  # primes: no two pairs of a rank have the same start
    row = (1 + (torch.arange(first, first + PERIOD).square() % 65521) % 255).to(torch.uint8).to(device)
    return Pattern(row.unsqueeze(0), row)


class PairEndpoint:
    """This rank's end of any pair that it takes part in; its buffers are allocated once."""

    def __init__(self, rank: int, device: torch.device, sizes: tuple[int, int]) -> None:
        self._rank, self._device = rank, device
        self.lost = False
        """Whether a pair of this rank was ever lost: the default group can no longer be closed in good order."""
        self._fit = True
        self._group: dist.ProcessGroup | None = None
        self.transfers = _TRANSFERS if device.type == "cuda" else 1
        """Large transfers of one sample, back to back."""
        self._ping_out, self._ping_in = self._buffers(sizes[0])
        self._out, self._in = self._buffers(sizes[1])

    def measure(self, kind: Kind, first: int, second: int, deadline_s: float) -> PairTiming:
        """Measure, or answer, one step between this rank and another within `deadline_s`."""
        until = time.monotonic() + deadline_s
        peer = second if self._rank == first else first
        initiates = self._rank == (second if kind == "back" else first)
        step = {"latency": self._ping, "both": self._exchange}.get(kind, self._send if initiates else self._receive)
        repeat = _PINGS if kind == "latency" else SAMPLES
        try:
            seconds: list[float] = []
            for number in range(_WARM_UPS + repeat):
                if initiates and kind != "latency" and number >= _WARM_UPS:
                    time.sleep(_APART_S)
                call = partial(step, peer, initiates, until)
                seconds.append(self._call_with_deadline(call, until) if number < _WARM_UPS else call())
            if kind == "latency":
                return PairTiming((median(seconds[_WARM_UPS:]) / 2,) if initiates else ())
            wrong = self._verify(peer, kind == "both" or initiates, kind == "both" or not initiates, until)
        except RuntimeError as error:  # torch's word for a wait that ran out and for a peer that is gone
            return self._lost_timing(reason(error))
        return replace(wrong, seconds=tuple(seconds[_WARM_UPS:]) if initiates or kind == "both" else ())

    def _lost_timing(self, why: str) -> PairTiming:
        gone = self._device.type == "cpu" and any(words in why for words in _PEER_GONE)
        self.lost = self.lost or not gone
        self._fit = self._fit and gone
        return PairTiming(why=why, fit=self._fit)

    def renew(self, ranks: Sequence[int], deadline_s: float) -> PairTiming:
        """Reconnect with `ranks`, which include this one; all of them must call it. `why` of the result says if it
        failed.
        """
        if self._device.type == "cuda":
            return PairTiming(why="a CUDA stream behind a lost transfer stays stuck", fit=self._fit)
        try:
            self._group = dist.new_group(
                list(ranks), timeout=timedelta(seconds=deadline_s), backend="gloo", use_local_synchronization=True
            )
        except RuntimeError as error:  # torch's word for a rank that did not come
            return PairTiming(why=reason(error), fit=False)
        self._fit = True
        return PairTiming()

    def _call_with_deadline(self, call: Callable[[], float], until: float) -> float:
        """Make a transfer that may have to connect over NCCL; return the result of `call`. Raises RuntimeError.

        NCCL connects two ranks at their first transfer, on the host, and waits for the other without a limit
        (ncclTransportP2pSetup in src/transport.cc): so run it in a thread, which is abandoned if it does not return.
        """
        if self._device.type != "cuda":
            return call()
        seconds, failed = list[float](), list[RuntimeError]()

        def run() -> None:
            torch.cuda.set_device(self._device)  # each thread has its own
            try:
                seconds.append(call())
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="connect", daemon=True)
        thread.start()
        thread.join(max(until - time.monotonic(), 0.0) + _GRACE_S)
        if failed or not seconds:
            raise failed[0] if failed else RuntimeError("timed out while the two ranks connected")
        return seconds[0]

    def _verify(self, peer: int, sends: bool, receives: bool, until: float) -> PairTiming:
        """Make one more transfer, in step with the peer, and compare the received bytes."""
        if sends:
            pattern(self._rank, peer, self._device).fill(self._out, 0)
        if receives:
            self._in.zero_()
        self._move(self._out if sends else None, self._in if receives else None, peer, until)
        if not receives:
            return PairTiming()
        parts, right = [Slice(0, 0, len(self._in))], pattern(peer, self._rank, self._device)
        wrong = right.wrong(self._in, parts)
        first = right.first_wrong(self._in, parts, self._rank) if wrong else None
        return PairTiming(wrong=wrong, mismatch=replace(first, source=peer) if first else None)

    def _buffers(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        out, into = (torch.empty(nbytes, dtype=torch.uint8, device=self._device).zero_() for _ in range(2))
        return out, into

    def _ping(self, peer: int, initiates: bool, until: float) -> float:
        """Send a small message there and back; return the seconds of the round trip."""
        began = time.perf_counter()
        for sends in (initiates, not initiates):
            self._move(self._ping_out if sends else None, None if sends else self._ping_in, peer, until)
        return time.perf_counter() - began

    def _send(self, peer: int, _initiates: bool, until: float) -> float:
        """Send all bytes and receive a small reply that confirms them; return the seconds per transfer, reply
        included.
        """
        began = time.perf_counter()
        self._move(self._out, None, peer, until, self.transfers)
        self._move(None, self._ping_in, peer, until)
        return (time.perf_counter() - began) / self.transfers

    def _receive(self, peer: int, _initiates: bool, until: float) -> float:
        self._move(None, self._in, peer, until, self.transfers)
        self._move(self._ping_out, None, peer, until)
        return 0.0

    def _exchange(self, peer: int, initiates: bool, until: float) -> float:
        """Send all bytes both ways at once; a ping before aligns the two starts."""
        self._ping(peer, initiates, until)
        began = time.perf_counter()
        self._move(self._out, self._in, peer, until, self.transfers)
        return (time.perf_counter() - began) / self.transfers

    def _move(
        self, out: torch.Tensor | None, into: torch.Tensor | None, peer: int, until: float, times: int = 1
    ) -> None:
        """Send, receive, or both at once, `times` times, and wait. Raises RuntimeError at the deadline."""
        calls = [dist.P2POp(dist.isend, out, peer, self._group)] if out is not None else []
        calls += [dist.P2POp(dist.irecv, into, peer, self._group)] if into is not None else []
        self._wait([work for _ in range(times) for work in dist.batch_isend_irecv(calls)], until)

    def _wait(self, works: Sequence[dist.Work], until: float) -> None:
        if self._device.type != "cuda":
            for work in works:
                work.wait(timedelta(seconds=max(until - time.monotonic(), 1e-3)))
            return
        for work in works:
            work.wait()  # the stream waits, not the host
        done = torch.cuda.Event()
        done.record()
        while not done.query():
            if time.monotonic() > until:
                raise RuntimeError("timed out")
