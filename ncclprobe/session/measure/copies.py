"""``ncclprobe copies``: the bandwidth of a node's own links, of one GPU and of all at once; without a GPU, its memory.

The ranks of a node take turns, on all nodes at the same time; then all copy at once. What each node's
slots and NVLinks should reach (:mod:`ncclprobe.expect.copies`) is recorded with the copies; nothing is judged here.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from ncclprobe.expect.copies import by_kind
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.run.samples import ExpectedCopies
from ncclprobe.host import Host
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes.plan import Exchange, SetPhase, phase
from ncclprobe.session.measure import affinity
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.ranks.identity import RankIdentity

NBYTES = 256 << 20
"""Larger than any cache, and long enough that handing a copy over does not count."""
_LEAST_NBYTES = 32 << 20
_TAKEN = "busy or unavailable"
"""CUDA's words (cudaErrorDevicesUnavailable) for a GPU that another process has to itself."""
Rates = Sequence[float]


class Copies:
    """The copies of one rank. Every rank of the run makes the same calls."""

    def __init__(
        self,
        identity: RankIdentity,
        host: Host,
        exchange: Exchange,
        set_phase: SetPhase,
        look: NodeSnapshot,
        device: str,
    ) -> None:
        self._identity, self._host, self._exchange, self._set_phase = identity, host, exchange, set_phase
        self._node, self._device, self._look = look.node, device, look
        self._nodes, self._nbytes = affinity.numa_nodes(host), NBYTES
        self.note = ""
        self.expected = ExpectedCopies()

    def play(self) -> tuple[CopyRow, ...]:
        """Make all copies; return the rows on rank 0, nothing elsewhere. Raises ProbeError.

        `expected` then holds what they should reach.
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
        return tuple(_named(CopyRow(**row), known.get(node, {})) for node, rows, *_ in received for row in rows)

    def _names(self) -> dict[str, str]:
        """Return what NVML calls the GPUs of this node: CUDA's numbers are each process's own."""
        gpus = self._look.snapshot().facts.get(Gpus)
        return gpus.names if isinstance(gpus, Gpus) else {}

    def _turns(self) -> Iterator[CopyRow]:
        """Copy on one local rank after the other, then on all at once."""
        if self._device == "cpu":
            with phase(self._identity.rank, self._set_phase, "copies within the host's memory"):
                yield from self._of_host() if self._identity.local_rank == 0 else ()
            return
        turns, buffers = self._most_ranks(), None
        for turn in range(turns):
            name = f"copies of {self._device}"
            buffers = (yield from self._while_others_wait(turn, name, self._copy_alone)) or buffers
        for source in range(turns):
            name = f"copies from cuda:{source} to its peers"
            yield from self._while_others_wait(0, name, partial(self._to_peers, source))
        if turns > 1:
            yield from self._copy_concurrently(buffers)

    def _while_others_wait(self, local_rank: int, name: str, copy: Callable[[], Any]) -> Any:
        """Copy on one rank of each node. The others are in the later phase: so the watchdog knows who holds them up."""
        found = None
        if local_rank == self._identity.local_rank:
            with phase(self._identity.rank, self._set_phase, name):
                found = yield from copy()
        else:
            self._set_phase("copies of another rank")
        self._set_phase(f"wait for the copies of local rank {local_rank}")
        self._barrier()
        return found

    def _most_ranks(self) -> int:
        """Return the largest number of ranks per node: every node waits for so many turns."""
        received = self._exchange.collect(self._identity.local_ranks)
        return int(self._exchange.share(max(received) if received else None))

    def _barrier(self) -> None:
        self._exchange.collect(None)
        self._exchange.share(None)

    def _copy_alone(self) -> Any:
        """Copy with this GPU alone: near memory, far memory; without a peer its own. Return near buffers."""
        import torch

        from ncclprobe.probes import copies

        device, near = torch.device(self._device), self._numa()
        torch.cuda.set_device(device)
        far = next((node for node in self._nodes if near is not None and node != near), None)
        self._nbytes = max(_LEAST_NBYTES, self._size())
        kept = copies.gpu_buffers(device, self._nbytes, self._cpus(near))
        for kind, rates in copies.host_copies(kept):
            yield self._row(kind, rates, numa=near, near=None if near is None else True)
        if far is not None:
            other = copies.gpu_buffers(device, self._nbytes, self._cpus(far))
            for kind, rates in copies.host_copies(other):
                yield self._row(kind, rates, numa=far, near=False)
        if torch.cuda.device_count() == 1:
            yield self._row("device", copies.peer_copy(device, device, self._nbytes))
        return kept

    def _to_peers(self, source: int) -> Iterator[CopyRow]:
        """Copy from a rank's GPU to every other, all from this process: its contexts stay, half a GB on each GPU."""
        import torch

        count = torch.cuda.device_count()
        if source < min(self._identity.local_ranks, count):
            for peer in range(count):
                if peer != source and (rates := self._to_peer(source, peer)):
                    yield self._row(
                        "d2d", rates, device=affinity.gpu_identity(source), peer=affinity.gpu_identity(peer)
                    )

    def _to_peer(self, source: int, peer: int) -> Rates:
        """Return the rates from one GPU to another; nothing, and a note, where another process has one to itself."""
        import torch

        from ncclprobe.probes import copies

        if self.note:
            return ()
        try:
            return copies.peer_copy(torch.device("cuda", source), torch.device("cuda", peer), self._nbytes)
        except RuntimeError as error:
            if _TAKEN not in str(error):
                raise
        self.note = f"copies between GPUs of {self._node} were left out: they are in the compute mode EXCLUSIVE_PROCESS"
        return ()

    def _copy_concurrently(self, kept: Any) -> Iterator[CopyRow]:
        """Copy with all GPUs at once, from near memory, and each to the next."""
        import torch

        from ncclprobe.probes import copies

        near = self._numa()
        self._barrier()
        with phase(self._identity.rank, self._set_phase, "copies of all GPUs at once"):
            for kind, rates in copies.host_copies(kept):
                yield self._row(kind, rates, numa=near, near=None if near is None else True, concurrent=True)
        count = torch.cuda.device_count()
        if count > 1:
            number = torch.device(self._device).index
            peer = (number + 1) % count
            if reached := self._to_peer(number, peer):
                yield self._row("d2d", reached, peer=affinity.gpu_identity(peer), concurrent=True)

    def _of_host(self) -> Iterator[CopyRow]:
        """Copy within each NUMA node's memory, by its own processors and by another node's."""
        from ncclprobe.probes import copies

        nbytes = self._size()
        if nbytes < _LEAST_NBYTES:
            self.note = f"{self._node} has too little memory left to copy within it"
            return
        numbers = list(self._nodes)
        for place, memory in enumerate(numbers):
            others = [numbers[place - 1]] if len(numbers) > 1 else []
            for processors in (memory, *others):
                near = processors == memory if others else None
                for by, rates in copies.memory_copies(nbytes, self._cpus(processors), self._cpus(memory)):
                    device = "cpu" if by == "torch" else f"cpu {by}"
                    row = self._row("host", rates, numa=memory, near=near, nbytes=nbytes)
                    yield replace(row, device=device)

    def _size(self) -> int:
        """Return the bytes of one copy: four such buffers per rank take at most an eighth of the free memory."""
        import torch

        from ncclprobe.probes.buffers import free_bytes

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
        """Return the identity of this rank's GPU; rank 0 names it as NVML does."""
        return affinity.gpu_identity(int(self._device.partition(":")[2])) if self._device != "cpu" else "cpu"

    def _numa(self) -> int | None:
        return affinity.node_of_gpu(self._device, self._host, self._nodes)

    def _cpus(self, node: int | None) -> Sequence[int]:
        """Return the processors of a NUMA node that this process may use; all its processors for None."""
        return self._nodes[node] if node is not None else sorted(os.sched_getaffinity(0))


def _named(row: CopyRow, names: Mapping[str, str]) -> CopyRow:
    """Return `row` with its GPUs called as NVML calls them, as far as `names` holds their identities."""
    return replace(row, device=names.get(row.device, row.device), peer=names.get(row.peer, row.peer))
