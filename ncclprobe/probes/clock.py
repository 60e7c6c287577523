"""Time one batch of calls: on the host's clock, including the wait for the device, and on the device's clock as well.

nccl-tests times with the wall clock, not with events: from the first call to the end of one synchronisation after the
last (src/common.cu:694- at a0b82b2). So do we; CUDA events around the batch show in addition how long the device was
busy. Tests time a simulated link through the same functions.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ncclprobe.model.errors import ProbeError
from ncclprobe.model.measurement import Mode
from ncclprobe.model.values import Struct
from ncclprobe.probes.collectives import Call


class Clock(Protocol):
    """A clock, and the waits that go with it."""

    def now(self) -> float:
        """Return seconds since an arbitrary start (monotonic)."""
        ...

    def synchronise(self) -> None:
        """Wait until everything called so far has completed on the device."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        ...

    def busy_until(self, instant: float) -> None:
        """Return at `instant`, keeping the processor busy until then as a job's host does."""
        ...

    def mark(self) -> object:
        """Mark the point after everything called so far, on the device's clock."""
        ...

    def between(self, first: Any, last: Any) -> float | None:
        """Return the seconds between two marks that have passed; None if the device has no clock."""
        ...

    def graph(self, calls: Sequence[Call]) -> Call:
        """Return one call that launches all `calls` at once. Every rank must call this. Raises ProbeError."""
        ...


class _Host:
    """The host's part of a clock, wherever tensors are."""

    now = staticmethod(time.perf_counter)

    def busy_until(self, instant: float) -> None:
        """Spin: a sleeping process would not notice that it gets no processor."""
        while time.perf_counter() < instant:
            pass


class CpuClock(_Host):
    """For tensors in host memory. gloo's calls return when they are complete: nothing is left to wait for."""

    def synchronise(self) -> None:
        """Do nothing: the host is the device."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def mark(self) -> None:
        """Return None: the host is the device."""

    def between(self, first: None, last: None) -> None:
        """Return None: there is no clock but the host's."""

    def graph(self, calls: Sequence[Call]) -> Call:
        """Raise ProbeError: only CUDA has graphs."""
        raise ProbeError("CUDA graphs need NCCL, which a CPU does not have")


class CudaClock(_Host):
    """For tensors on the current CUDA device."""

    def synchronise(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks; without `device_ids` NCCL would guess a device (distributed_c10d.py, barrier)."""
        dist.barrier(device_ids=[torch.cuda.current_device()])

    def mark(self) -> torch.cuda.Event:
        """Record an event on the current stream, where torch's blocking collectives run (2.8) or are waited for."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """Return the seconds between two CUDA events; their resolution is 0.5 µs."""
        return float(first.elapsed_time(last)) / 1e3

    def graph(self, calls: Sequence[Call]) -> Call:
        """Capture `calls` in a graph; NCCL's own threads may use CUDA meanwhile (``thread_local``)."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for call in calls:
                call()
        replay: Call = graph.replay
        return replay


def clock_of(device: torch.device) -> Clock:
    """Return the clock for calls on tensors of `device`, which must be the current one."""
    return CudaClock() if device.type == "cuda" else CpuClock()


class Batch(Struct, frozen=True):
    """One sample: seconds per operation on this rank, and the part that the host took to enqueue it.

    `device_s`: time on the device's clock; None without one, or if the host waited between calls.
    """

    seconds: float
    issue_s: float
    device_s: float | None = None


def time_batch(calls: Sequence[Call], mode: Mode, clock: Clock, *, each: int = 1) -> Batch:
    """Make `calls` back to back and wait once (queued, graph), or wait for each before the next (blocking).

    Each of `calls` holds `each` operations, as a graph does. In blocking mode, enqueueing includes the wait.
    """
    timed = _blocking if mode == "blocking" else _queued
    return timed(calls, clock, len(calls) * each)


def _queued(calls: Sequence[Call], clock: Clock, count: int) -> Batch:
    first = clock.mark()
    started = clock.now()
    for call in calls:
        call()
    issued = clock.now()
    last = clock.mark()
    clock.synchronise()
    done = clock.now()
    device_s = clock.between(first, last)
    return Batch((done - started) / count, (issued - started) / count, None if device_s is None else device_s / count)


def _blocking(calls: Sequence[Call], clock: Clock, count: int) -> Batch:
    synchronise = clock.synchronise
    started = clock.now()
    for call in calls:
        call()
        synchronise()
    seconds = (clock.now() - started) / count
    return Batch(seconds, seconds)
