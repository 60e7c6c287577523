"""Stand-in compute, matrix products of a length asked for, and the bench on which steps of training are timed."""

from collections.abc import Callable
from statistics import median

import torch

from ncclprobe.model.values import Struct
from ncclprobe.probes.clock import Clock
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, phase

_CPU_SIDE, _CUDA_SIDE = 192, 2048
"""Of the square matrices: a product is to be short against a call, and long against its own overhead."""
_TRIES, _EACH = 9, 8


class Work:
    """Compute in portions of one matrix product. `chunk_s` is how long one takes here, `flops` how many it is."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        side = _CUDA_SIDE if device.type == "cuda" else _CPU_SIDE
        if device.type == "cpu":
            torch.set_num_threads(1)  # ranks that share processors would otherwise wait for each other's threads
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._a, self._b, self._c = (torch.zeros(side, side, dtype=dtype, device=device) for _ in range(3))
        self.flops = 2 * side**3
        self._owed = 0.0
        self._do(_EACH)
        clock.synchronise()
        tries = []
        for _ in range(_TRIES):
            started = clock.now()
            self._do(_EACH)
            clock.synchronise()
            tries.append((clock.now() - started) / _EACH)
        self.chunk_s = median(tries)

    def chunks(self, seconds: float) -> float:
        """Return how many products take so long."""
        return seconds / self.chunk_s

    def do(self, chunks: float) -> None:
        """Compute so many products; a fraction of one is owed, and done with the next."""
        self._owed += chunks
        whole = int(self._owed + 1e-9)
        self._owed -= whole
        self._do(whole)

    def rest(self) -> None:
        """End a step: owe nothing to the next."""
        self._owed = 0.0

    def _do(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._c)


class Bench(Struct):
    """What steps of training are timed with: this rank's part of the plan, and how it meets the others."""

    plan: Plan
    exchange: Exchange
    set_phase: SetPhase
    clock: Clock
    work: Work

    def usual(self, value: float) -> float:
        """Return the median over the ranks, on every rank."""
        by_rank = self.exchange.collect(value)
        return float(self.exchange.share(median(by_rank) if by_rank else None))

    def slowest(self, seconds: float) -> float:
        """Return the longest that any rank took, on every rank."""
        by_rank = self.exchange.collect(seconds)
        return float(self.exchange.share(max(by_rank) if by_rank else None))

    def timed(self, name: str, play: Callable[[], object]) -> float:
        """Return this rank's seconds from a common start until its own part is over."""
        with phase(self.plan.rank, self.set_phase, name):
            self.clock.barrier()
            started = self.clock.now()
            play()
            self.clock.synchronise()
            took = self.clock.now() - started
        self.work.rest()
        return took

    def slowest_of(self, name: str, play: Callable[[], object]) -> float:
        """Return the seconds from a common start until the last rank has finished."""
        return self.slowest(self.timed(name, play))
