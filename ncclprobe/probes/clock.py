"""Timing one batch of calls: on the host's clock, with the device's own waiting.

nccl-tests times with the wall clock, not with events, from the first call to the end of one synchronisation behind
the last (src/common.cu:694- at a0b82b2). So do we; a test times a simulated link through the same functions.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from ncclprobe.model import Mode
from ncclprobe.probes import Call


class Clock(Protocol):
    """Time, and the two ways of waiting that belong to it."""

    def now(self) -> float:
        """Seconds since whenever; never goes back."""
        ...

    def synchronise(self) -> None:
        """Return once everything called so far has happened on the device."""
        ...

    def barrier(self) -> None:
        """Return once every rank is here."""
        ...


class CpuClock:
    """For tensors in host memory. gloo's calls return when they have happened: nothing is left to wait for."""

    now = staticmethod(time.perf_counter)

    def synchronise(self) -> None:
        """Nothing to do."""

    def barrier(self) -> None:
        """Wait for all ranks of the default group."""
        dist.barrier()


class CudaClock:
    """For tensors on the current CUDA device."""

    now = staticmethod(time.perf_counter)

    def synchronise(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks; without its device NCCL would guess one (distributed_c10d.py, barrier)."""
        dist.barrier(device_ids=[torch.cuda.current_device()])


def clock_of(device: torch.device) -> Clock:
    """The clock for calls on tensors of `device`, which must be the current one."""
    return CudaClock() if device.type == "cuda" else CpuClock()


@dataclass(frozen=True, slots=True)
class Batch:
    """One sample: seconds per operation on this rank, and of these how many the host took to hand it over."""

    seconds: float
    issue_s: float


def time_batch(calls: Sequence[Call], mode: Mode, clock: Clock) -> Batch:
    """Make `calls` back to back and wait once (queued), or wait for each before the next (blocking).

    Where each call is waited for, handing it over includes the wait.
    """
    timed = _queued if mode == "queued" else _blocking
    started, issued, done = timed(calls, clock)
    return Batch(seconds=(done - started) / len(calls), issue_s=(issued - started) / len(calls))


def _queued(calls: Sequence[Call], clock: Clock) -> tuple[float, float, float]:
    started = clock.now()
    for call in calls:
        call()
    issued = clock.now()
    clock.synchronise()
    return started, issued, clock.now()


def _blocking(calls: Sequence[Call], clock: Clock) -> tuple[float, float, float]:
    synchronise = clock.synchronise
    started = clock.now()
    for call in calls:
        call()
        synchronise()
    done = clock.now()
    return started, done, done
