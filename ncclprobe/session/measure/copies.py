"""``ncclprobe copies``: the bandwidth of a node's own links, of one GPU and of all at once; without a GPU, its memory.

The ranks of a node take turns, on all nodes at the same time; then all copy at once. The expectations for each node's
slots and NVLinks (:mod:`ncclprobe.expect.copies`) are recorded with the copies; nothing is judged here.
"""

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ncclprobe.expect.copies import by_kind
from ncclprobe.facts.cpu import cpu
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.run.samples import ExpectedCopies
from ncclprobe.host import Host
from ncclprobe.model.errors import TAKEN, HostError, ParseError, ProbeError
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.snapshot import learned
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.probes.buffers import free_bytes
from ncclprobe.probes.collectives import Call
from ncclprobe.probes.plan import barrier, phase
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.ranks.identity import gpu_identity, pci_address

NBYTES = 256 << 20
"""Larger than any cache, and long enough that the launch does not count."""
_LEAST_NBYTES = 32 << 20
SAMPLES = 7
_SAMPLE_S = 0.03
"""Duration of one sample of back-to-back copies: a thousand times the cost of launching one."""
_LEAST_SAMPLES, _ENOUGH_S = 3, 2.0
"""Fewest samples, and most seconds in total for a slow copy: a rank with a sick slot still makes progress."""
_MOST_THREADS = 64
_PCI = "/sys/bus/pci/devices"
_MOST_CPUS = 8192
"""NR_CPUS of the largest kernels; bits of absent processors are harmless."""
Rates = Sequence[float]


def play(run: RankContext) -> bool:
    """Measure the copies of all nodes at the same time. Raises ProbeError."""
    measuring = Copies(run)
    rows = measuring.play()
    if run.recorder:
        run.recorder.add_copies(rows, measuring.expected)
    run.note(measuring.note)
    return True


class Copies:
    """The copies of one rank. Every rank of the run makes the same calls."""

    def __init__(self, run: RankContext) -> None:
        self._identity, self._host = run.identity, run.host
        self._exchange, self._set_phase = run.exchange, run.set_phase
        self._node, self._device, self._look = run.node.node, run.device, run.node
        self._nodes, self._nbytes = numa_nodes(run.host), NBYTES
        self.note = ""
        self.expected = ExpectedCopies()

    def play(self) -> tuple[CopyRow, ...]:
        """Make all copies; return the rows on rank 0, nothing elsewhere. Raises ProbeError.

        `expected` then holds the expectations.
        """
        reads = self._identity.local_rank == 0
        self._set_phase("expected bandwidth of copies")
        expected = by_kind(self._look.snapshot().facts) if reads and self._device != "cpu" else {}
        rows = list(self._turns())
        expects = {kind: asdict(each) for kind, each in expected.items()}
        names = self._names() if reads and self._device != "cpu" else {}
        received = self._exchange.collect([self._node, [asdict(row) for row in rows], expects, self.note, names])
        if received is None:
            return ()
        self.expected = ExpectedCopies(
            {
                node: {kind: Expectation(**each) for kind, each in found.items()}
                for node, _, found, *_ in received
                if found
            }
        )
        self.note = next((note for *_, note, _ in received if note), "")
        known = {node: names for node, *_, names in received if names}
        return tuple(_rename_gpus(CopyRow(**row), known.get(node, {})) for node, rows, *_ in received for row in rows)

    def _names(self) -> dict[str, str]:
        """Return NVML's names of this node's GPUs; CUDA's numbers differ between processes."""
        gpus = learned(self._look.snapshot().facts, Gpus)
        return gpus.names if gpus else {}

    def _turns(self) -> Iterator[CopyRow]:
        """Copy on one local rank after the other, then on all at once."""
        if self._device == "cpu":
            with phase(self._identity.rank, self._set_phase, "copies within the host's memory"):
                yield from self._copy_host() if self._identity.local_rank == 0 else ()
            return
        received = self._exchange.collect(self._identity.local_ranks)
        turns, buffers = int(self._exchange.share(max(received) if received else None)), None
        for turn in range(turns):
            name = f"copies of {self._device}"
            buffers = (yield from self._while_others_wait(turn, name, self._copy_alone)) or buffers
        for source in range(turns):
            name = f"copies from cuda:{source} to its peers"
            yield from self._while_others_wait(0, name, partial(self._to_peers, source))
        if turns > 1:
            yield from self._copy_concurrently(buffers)

    def _while_others_wait(self, local_rank: int, name: str, copy: Callable[[], Any]) -> Any:
        """Copy on one rank of each node. The others enter the later phase, so that the watchdog knows whom they wait
        for.
        """
        found = None
        if local_rank == self._identity.local_rank:
            with phase(self._identity.rank, self._set_phase, name):
                found = yield from copy()
        else:
            self._set_phase("copies of another rank")
        self._set_phase(f"wait for the copies of local rank {local_rank}")
        barrier(self._exchange)
        return found

    def _copy_alone(self) -> Any:
        """Copy with only this GPU: near memory, far memory; without a peer its own. Return near buffers."""
        device, near = torch.device(self._device), self._numa()
        torch.cuda.set_device(device)
        far = next((node for node in self._nodes if near is not None and node != near), None)
        self._nbytes = max(_LEAST_NBYTES, self._size())
        kept = gpu_buffers(device, self._nbytes, self._cpus(near))
        for kind, rates in host_copies(kept):
            yield self._row(kind, rates, numa=near, near=None if near is None else True)
        if far is not None:
            other = gpu_buffers(device, self._nbytes, self._cpus(far))
            for kind, rates in host_copies(other):
                yield self._row(kind, rates, numa=far, near=False)
        if torch.cuda.device_count() == 1:
            yield self._row("device", peer_copy(device, device, self._nbytes))
        return kept

    def _to_peers(self, source: int) -> Iterator[CopyRow]:
        """Copy from a rank's GPU to every other, all from this process: its contexts remain, half a GB on each GPU."""
        count = torch.cuda.device_count()
        if source < min(self._identity.local_ranks, count):
            for peer in range(count):
                if peer != source and (rates := self._to_peer(source, peer)):
                    yield self._row("d2d", rates, device=gpu_identity(source), peer=gpu_identity(peer))

    def _to_peer(self, source: int, peer: int) -> Rates:
        """Return the rates from one GPU to another; empty, with a note, if another process uses one exclusively."""
        if self.note:
            return ()
        try:
            return peer_copy(torch.device("cuda", source), torch.device("cuda", peer), self._nbytes)
        except RuntimeError as error:
            if TAKEN not in str(error):
                raise
            torch.cuda.set_device(self._device)  # CUDA may stay with the GPU that it did not get
        self.note = f"copies between GPUs of {self._node} were left out: they are in the compute mode EXCLUSIVE_PROCESS"
        return ()

    def _copy_concurrently(self, kept: Any) -> Iterator[CopyRow]:
        """Copy with all GPUs at once, from near memory, and each to the next."""
        near = self._numa()
        barrier(self._exchange)
        with phase(self._identity.rank, self._set_phase, "copies of all GPUs at once"):
            for kind, rates in host_copies(kept):
                yield self._row(kind, rates, numa=near, near=None if near is None else True, concurrent=True)
        count = torch.cuda.device_count()
        if count > 1:
            number = torch.device(self._device).index
            peer = (number + 1) % count
            if reached := self._to_peer(number, peer):
                yield self._row("d2d", reached, peer=gpu_identity(peer), concurrent=True)

    def _copy_host(self) -> Iterator[CopyRow]:
        """Copy within each NUMA node's memory, by its own processors and by another node's."""
        nbytes = self._size()
        if nbytes < _LEAST_NBYTES:
            self.note = f"{self._node} has too little memory left to copy within it"
            return
        numbers = list(self._nodes)
        for place, memory in enumerate(numbers):
            others = [numbers[place - 1]] if len(numbers) > 1 else []
            for processors in (memory, *others):
                near = processors == memory if others else None
                for by, rates in memory_copies(nbytes, self._cpus(processors), self._cpus(memory)):
                    device = "cpu" if by == "torch" else f"cpu {by}"
                    row = self._row("host", rates, numa=memory, near=near, nbytes=nbytes)
                    yield replace(row, device=device)

    def _size(self) -> int:
        """Return the bytes of one copy: four such buffers per rank use at most an eighth of the free memory."""
        free = free_bytes(torch.device("cpu"), self._host)
        return NBYTES if free is None else min(NBYTES, free // 32 // self._identity.local_ranks)

    def _row(self, kind: Any, rates: Rates, *, nbytes: int = 0, device: str = "", **more: Any) -> CopyRow:
        return CopyRow(
            node=self._node,
            rank=self._identity.rank,
            kind=kind,
            device=device or self._gpu(),
            nbytes=nbytes or self._nbytes,
            GBps=round(median(rates), 4),
            min_GBps=round(min(rates), 4),
            max_GBps=round(max(rates), 4),
            samples=len(rates),
            **more,
        )

    def _gpu(self) -> str:
        """Return the identity of this rank's GPU; rank 0 translates it to NVML's name."""
        return gpu_identity(int(self._device.partition(":")[2])) if self._device != "cpu" else "cpu"

    def _numa(self) -> int | None:
        return node_of_gpu(self._device, self._host, self._nodes)

    def _cpus(self, node: int | None) -> Sequence[int]:
        """Return the processors of a NUMA node that this process may use; for None all its processors."""
        return self._nodes[node] if node is not None else sorted(os.sched_getaffinity(0))


def numa_nodes(host: Host) -> dict[int, tuple[int, ...]]:
    """Return the processors that this process may use, by NUMA node; all in node 0 if the kernel has no nodes.

    A control group's limit applies. The affinity set by taskset, srun or mpirun does not: a process may undo it.
    """
    # Ask for all processors in a thread: the kernel gives those of the control group.
    got: list[set[int]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(_MOST_CPUS))
        got.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    allowed = got[0]
    try:
        found = {node.id: tuple(c for c in node.cpus if c in allowed) for node in cpu.run(host).numa}
    except (HostError, ParseError):
        found = {}
    return {node: cpus for node, cpus in found.items() if cpus} or {0: tuple(sorted(allowed))}


def node_of_gpu(device: str, host: Host, nodes: Container[int]) -> int | None:
    """Return which of `nodes` the GPU `device` (such as ``cuda:1``) is attached to; None if unknown."""
    try:
        address = pci_address(torch.cuda.get_device_properties(torch.device(device)))
        number = int(host.ask("read", f"{_PCI}/{address}/numa_node"))
    except (HostError, ValueError):
        return None
    return number if number in nodes else None


@contextlib.contextmanager
def bound(cpus: Collection[int]) -> Iterator[None]:
    """Run all threads of this process on `cpus` within the block, including torch's pool; then restore each."""
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


def _rename_gpus(row: CopyRow, names: Mapping[str, str]) -> CopyRow:
    """Return `row` with NVML's names for its GPUs, where `names` has their identities."""
    return replace(row, device=names.get(row.device, row.device), peer=names.get(row.peer, row.peer))


def rates(call: Call, nbytes: int, synchronise: Callable[[], None], samples: int = SAMPLES) -> list[float]:
    """Return GB/s of each sample of `call`, which moves `nbytes`: a batch of calls and one wait per sample."""
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
    """Buffers for the copies of one GPU: two on the device, two pinned on the host."""

    device: torch.device
    there: tuple[torch.Tensor, torch.Tensor]
    here: tuple[torch.Tensor, torch.Tensor]


def gpu_buffers(device: torch.device, nbytes: int, cpus: Collection[int]) -> GpuBuffers:
    """Allocate buffers of `nbytes` each, the host's near `cpus`. Raises RuntimeError without memory."""
    with bound(cpus):
        here = tuple(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).zero_() for _ in range(2))
    there = tuple(torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return GpuBuffers(device, (there[0], there[1]), (here[0], here[1]))


def host_copies(buffers: GpuBuffers) -> Iterator[tuple[str, list[float]]]:
    """Yield GB/s samples of host to device, device to host, and both at once (per direction)."""
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
    """Return GB/s samples from one GPU to another."""
    mine = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    theirs = torch.zeros(nbytes, dtype=torch.uint8, device=peer)

    def synchronise() -> None:
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(peer)

    return rates(lambda: theirs.copy_(mine, non_blocking=True), nbytes, synchronise)


def memory_copies(nbytes: int, cpus: Sequence[int], memory_cpus: Collection[int]) -> Iterator[tuple[str, list[float]]]:
    """Yield GB/s samples of copies within host memory (each byte read and written once), by torch and by memcpy."""
    with bound(memory_cpus):
        source, target = _allocate_touched(nbytes), _allocate_touched(nbytes)
    before, number = torch.get_num_threads(), min(len(cpus), _MOST_THREADS)
    torch.set_num_threads(number)
    try:
        with bound(cpus):
            yield "torch", rates(lambda: target.copy_(source), nbytes, _done)
            with Crew(number, source, target) as crew:
                yield "memcpy", rates(crew.copy, nbytes, _done)
    finally:
        torch.set_num_threads(before)


def _done() -> None:
    """Do nothing: a copy of the host is complete when it returns."""


def _allocate_touched(nbytes: int) -> torch.Tensor:
    """Allocate memory whose pages this thread writes first."""
    fresh = torch.empty(nbytes, dtype=torch.uint8)
    ctypes.memset(fresh.data_ptr(), 1, nbytes)
    return fresh


class Crew:
    """Threads that each copy a part with libc's memcpy; ctypes lets them run in parallel."""

    def __init__(self, number: int, source: torch.Tensor, target: torch.Tensor) -> None:
        nbytes, part = source.numel(), -(-source.numel() // number)
        cuts = [(start, min(part, nbytes - start)) for start in range(0, nbytes, part)]
        self._go, self._over = threading.Barrier(len(cuts) + 1), False
        self._parts = [(target.data_ptr() + start, source.data_ptr() + start, length) for start, length in cuts]
        self._threads = [threading.Thread(target=self._work, args=one, daemon=True) for one in self._parts]

    def __enter__(self) -> "Crew":
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
