"""Copies within a node: between pinned host memory and a GPU, between GPUs, and within the host's own memory.

Nothing here talks to another rank. Pages of the host are where the thread that touches them first may run, so memory is
put on a NUMA node by running there: no library and no privilege is needed.
"""

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import torch

from ncclprobe.errors import ProbeError
from ncclprobe.model.values import Struct
from ncclprobe.probes.probe import Call

SAMPLES = 7
_SAMPLE_S = 0.03
"""Of copies back to back in one sample: a thousand times what handing one over takes."""
_LEAST_SAMPLES, _ENOUGH_S = 3, 2.0
"""Samples, and seconds of all, where a copy is slow: a rank with a sick slot does not stand still."""
_MOST_THREADS = 64


@contextlib.contextmanager
def bound(cpus: Collection[int]) -> Iterator[None]:
    """Run all threads of this process on `cpus` meanwhile, those of torch's pool too; then each as before."""
    before = {thread: _affinity(thread) for thread in _threads()}
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ProbeError(f"processors {sorted(cpus)[:8]} may not be used: {error.strerror}") from error
    try:
        for thread in before:
            _bind(thread, cpus)
        yield
    finally:
        for thread in _threads():
            _bind(thread, before.get(thread) or before[threading.get_native_id()])


def _threads() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]


def _affinity(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return set()


def _bind(thread: int, cpus: Collection[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cpus)


def rates(call: Call, nbytes: int, synchronise: Callable[[], None], samples: int = SAMPLES) -> list[float]:
    """Return GB/s of each sample of `call`, which moves `nbytes`: as many calls as take a moment, and one wait."""
    call()
    synchronise()
    first = max(1e-9, _seconds(call, synchronise, 1))
    number = max(1, math.ceil(_SAMPLE_S / first))
    samples = min(samples, max(_LEAST_SAMPLES, int(_ENOUGH_S / (first * number))))
    return [nbytes / _seconds(call, synchronise, number) / 1e9 for _ in range(samples)]


def _seconds(call: Call, synchronise: Callable[[], None], number: int) -> float:
    started = time.perf_counter()
    for _ in range(number):
        call()
    synchronise()
    return (time.perf_counter() - started) / number


class GpuBuffers(Struct, frozen=True):
    """What the copies of one GPU work on: two buffers of the device, two pinned ones of the host."""

    device: torch.device
    there: tuple[torch.Tensor, torch.Tensor]
    here: tuple[torch.Tensor, torch.Tensor]


def gpu_buffers(device: torch.device, nbytes: int, cpus: Collection[int]) -> GpuBuffers:
    """Allocate buffers of `nbytes` each, those of the host where `cpus` are. Raises RuntimeError without memory."""
    with bound(cpus):
        here = tuple(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).zero_() for _ in range(2))
    there = tuple(torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return GpuBuffers(device, (there[0], there[1]), (here[0], here[1]))


def host_copies(buffers: GpuBuffers) -> Iterator[tuple[str, list[float]]]:
    """Return GB/s of host to device, device to host, and both at once (of each direction), as samples."""
    there, here, device = buffers.there, buffers.here, buffers.device
    nbytes = there[0].numel()
    streams = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def synchronise() -> None:
        torch.cuda.synchronize(device)

    def down() -> None:
        there[0].copy_(here[0], non_blocking=True)

    def up() -> None:
        here[1].copy_(there[1], non_blocking=True)

    def both() -> None:
        with torch.cuda.stream(streams[0]):
            down()
        with torch.cuda.stream(streams[1]):
            up()

    for kind, call in (("h2d", down), ("d2h", up), ("bidirectional", both)):
        yield kind, rates(call, nbytes, synchronise)


def peer_copy(device: torch.device, peer: torch.device, nbytes: int) -> list[float]:
    """Return GB/s from one GPU to another, as samples."""
    mine = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    theirs = torch.zeros(nbytes, dtype=torch.uint8, device=peer)

    def synchronise() -> None:
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(peer)

    return rates(lambda: theirs.copy_(mine, non_blocking=True), nbytes, synchronise)


def memory_copies(nbytes: int, cpus: Sequence[int], memory_cpus: Collection[int]) -> Iterator[tuple[str, list[float]]]:
    """Return GB/s of copies within host memory (each byte read and written once), by torch and by memcpy."""
    with bound(memory_cpus):
        source, target = _touched(nbytes), _touched(nbytes)
    before, number = torch.get_num_threads(), min(len(cpus), _MOST_THREADS)
    torch.set_num_threads(number)
    try:
        with bound(cpus):
            yield "torch", rates(lambda: target.copy_(source), nbytes, _done)
            with _Crew(number, source, target) as crew:
                yield "memcpy", rates(crew.copy, nbytes, _done)
    finally:
        torch.set_num_threads(before)


def _done() -> None:
    """Do nothing: a copy of the host is over when it returns."""


def _touched(nbytes: int) -> torch.Tensor:
    """Allocate memory whose pages this thread writes first."""
    fresh = torch.empty(nbytes, dtype=torch.uint8)
    ctypes.memset(fresh.data_ptr(), 1, nbytes)
    return fresh


class _Crew:
    """Threads that each copy a part by libc's memcpy on demand: ctypes lets them run at the same time."""

    def __init__(self, number: int, source: torch.Tensor, target: torch.Tensor) -> None:
        nbytes, part = source.numel(), -(-source.numel() // number)
        cuts = [(start, min(part, nbytes - start)) for start in range(0, nbytes, part)]
        self._go, self._over = threading.Barrier(len(cuts) + 1), False
        self._parts = [(target.data_ptr() + start, source.data_ptr() + start, length) for start, length in cuts]
        self._threads = [threading.Thread(target=self._work, args=one, daemon=True) for one in self._parts]

    def __enter__(self) -> "_Crew":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._go.wait()
        for thread in self._threads:
            thread.join()

    def _work(self, target: int, source: int, nbytes: int) -> None:
        while True:
            self._go.wait()
            if self._over:
                return
            ctypes.memmove(target, source, nbytes)
            self._go.wait()

    def copy(self) -> None:
        """Make one copy of all parts."""
        self._go.wait()
        self._go.wait()
