"""Time one batch of calls: on the host's clock, with the device's own waiting, and on the device's clock as well.

nccl-tests times with the wall clock, not with events, from the first call to the end of one synchronisation behind the
last (src/common.cu:694- at a0b82b2). So do we; CUDA events around the batch show in addition how long the device was
busy. A test times a simulated link through the same functions.
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
    """Time, and the ways of waiting that belong to it."""

    def now(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...

    def synchronise(self) -> None:
        """Return once everything called so far has happened on the device."""
        ...

    def barrier(self) -> None:
        """Return once every rank is here."""
        ...

    def busy_until(self, instant: float) -> None:
        """Return at `instant`, having used the processor until then as a job's host does."""
        ...

    def mark(self) -> object:
        """Return a point behind everything called so far, on the device's own clock."""
        ...

    def between(self, first: Any, last: Any) -> float | None:
        """Return the seconds between two marks that have happened; None: the device has no clock."""
        ...

    def graph(self, calls: Sequence[Call]) -> Call:
        """Return one call that hands over all `calls` at once. Every rank must ask for it. Raises ProbeError."""
        ...


class _Host:
    """What a clock has of the host, wherever tensors are."""

    now = staticmethod(time.perf_counter)

    def busy_until(self, instant: float) -> None:
        """Spin: a sleeping process would not notice that it gets no processor."""
        while time.perf_counter() < instant:
            pass


class CpuClock(_Host):
    """For tensors in host memory. gloo's calls return when they have happened: nothing is left to wait for."""

    def synchronise(self) -> None:
        """Do nothing: the host is the device."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def mark(self) -> None:
        """Return nothing to compare: the host is the device."""

    def between(self, first: None, last: None) -> None:
        """Return None: not known apart from the host's own time."""

    def graph(self, calls: Sequence[Call]) -> Call:
        """Raise ProbeError: only CUDA has graphs."""
        raise ProbeError("CUDA graphs need NCCL, which a CPU does not have")


class CudaClock(_Host):
    """For tensors on the current CUDA device."""

    def synchronise(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks; without its device NCCL would guess one (distributed_c10d.py, barrier)."""
        dist.barrier(device_ids=[torch.cuda.current_device()])

    def mark(self) -> torch.cuda.Event:
        """Record an event on the current stream: torch's blocking collectives run (2.8) or are waited for there."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """Return the seconds by CUDA events, whose resolution is half a microsecond."""
        return float(first.elapsed_time(last)) / 1e3

    def graph(self, calls: Sequence[Call]) -> Call:
        """Capture `calls`; each replay makes all of them. NCCL's own threads may go on with CUDA meanwhile."""
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
    """One sample: seconds per operation on this rank, and the part of them that the host took to enqueue it.

    `device_s`: the device's time by its own clock; None if it has none, or if the host waited between calls.
    """

    seconds: float
    issue_s: float
    device_s: float | None = None


def time_batch(calls: Sequence[Call], mode: Mode, clock: Clock, *, each: int = 1) -> Batch:
    """Make `calls` back to back and wait once (queued, graph), or wait for each before the next (blocking).

    Each of `calls` holds `each` operations, as a graph does. If each call is waited for, enqueueing it includes the
    wait.
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
