"""What a sweep measures, what its steps share, and how many calls a precision takes.

Rank 0 decides on calls and batches, and the others follow. The number of calls per batch is chosen once per row, so
that
a batch lasts long against the barrier before it. Batches are added until the median's interval (ncclprobe.model.stats)
is narrow enough, the budget is spent, or there are too many. Because the interval decides when to stop, it is a little
too narrow now and then; verdicts use it, so a band should leave more room than that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from ncclprobe.model import stats
from ncclprobe.model.errors import ProbeError, reason
from ncclprobe.model.measurement import Library, Mode, Place
from ncclprobe.model.ops import CallShape
from ncclprobe.model.values import Struct
from ncclprobe.probes import nccl_library
from ncclprobe.probes.arrival_skew import ROUNDS
from ncclprobe.probes.buffers import Buffers
from ncclprobe.probes.clock import Clock
from ncclprobe.probes.collectives import BufferView

BATCH_S = 5e-3
"""Target duration of a batch: a hundred times the spread of leaving a barrier, which is part of its time."""
MOST_CALLS = 2000
"""Maximum calls per batch, however short they are."""
MOST_BATCHES = 400
"""Maximum batches per row: more would not fit a report, and what they leave undecided is change, not noise."""


class Target(Struct, frozen=True):
    """The precision that every row should reach: half the interval as a share of the median, within `budget_s`.

    The first MIN_SAMPLES batches are made whatever the budget: with fewer there is no interval.
    """

    precision: float
    budget_s: float


def calls_per_batch(call_s: float, target: Target) -> int:
    """Return the number of calls of about `call_s` seconds per batch, so that MOST_BATCHES can fill the budget."""
    batch_s = max(BATCH_S, target.budget_s / MOST_BATCHES)
    return max(1, min(MOST_CALLS, round(batch_s / max(call_s, 1e-9))))


def more_batches(samples: Sequence[float], spent_s: float, target: Target) -> int:
    """Return how many batches to add to `samples`, which took `spent_s` seconds in all; 0: stop."""
    number = len(samples)
    if number < stats.MIN_SAMPLES:
        return stats.MIN_SAMPLES - number
    reached = stats.precision(samples)
    if reached <= target.precision:
        return 0
    affordable = math.floor((target.budget_s - spent_s) / max(spent_s / number, 1e-9))
    excess = min(2.0, (reached / target.precision) ** 2)
    wanted = max(1, math.ceil(number * (excess - 1)))
    return max(0, min(wanted, affordable, MOST_BATCHES - number))


SetPhase = Callable[[str], None]
Reach = Callable[[str, float], None]
"""Takes a row and the precision reached by its median: half the interval, as a share of it. Called on rank 0 only."""

PLACES: dict[Place, str] = {"in": "in place", "out": "out of place"}

TORCH_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
"""torch's names for the reductions of ncclprobe.model.ops."""


class Exchange(Protocol):
    """Exchange of JSON values, never over the measured group. All ranks call both methods in the same order."""

    def collect(self, value: Any) -> Sequence[Any] | None:
        """Return all ranks' values, by rank, on rank 0; None elsewhere."""
        ...

    def share(self, value: Any) -> Any:
        """Return rank 0's value, on every rank."""
        ...


def barrier(exchange: Exchange) -> None:
    """Wait until all ranks are here."""
    exchange.collect(None)
    exchange.share(None)


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure: the same on every rank but for `rank`, `device` and `group` (None: the default group).

    `sizes` are bytes as requested; each operation rounds them as nccl-tests does. gloo is always blocking. Small
    messages rotate over `footprint_bytes`. With a `precision`, `iters` and `batches` are ignored: batches are added
    until
    it is reached, within `budget_s` per row, and a row predicted to take longer than `longest_s` (None: no limit) is
    skipped. `rounds`: maximum scheduled starts per row (probes.arrival_skew). The command line has checked names and
    numbers.
    """

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    rank: int
    ranks: int
    backend: Literal["nccl", "gloo"]
    nodes: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    redop: str = "sum"
    iters: int = 20
    warmup: int = 5
    batches: int = 5
    precision: float | None = None
    budget_s: float = 2.0
    longest_s: float | None = None
    rounds: int = ROUNDS
    mode: Mode = "queued"
    verify: bool = True
    footprint_bytes: int = 64 << 20

    @property
    def target(self) -> Target | None:
        """What decides on the number of batches; None if it is fixed."""
        return None if self.precision is None else Target(self.precision, self.budget_s)

    @property
    def timing(self) -> Mode:
        """How calls are timed. A gloo call returns when it is complete: back to back, it still blocks."""
        return "blocking" if self.backend == "gloo" else self.mode


class SweepContext(Struct, frozen=True):
    """What every step of a sweep needs."""

    plan: Plan
    exchange: Exchange
    set_phase: SetPhase
    clock: Clock
    buffers: Buffers
    reach: Reach = lambda row, precision: None

    def phase(self, what: str) -> AbstractContextManager[None]:
        """Enter a step that may block or fail: see :func:`phase`."""
        return phase(self.plan.rank, self.set_phase, what)

    def views(self, shape: CallShape, place: Place, most: int = 1) -> list[BufferView]:
        """Return up to `most` views, for one call each."""
        plan, redop = self.plan, TORCH_REDOPS[self.plan.redop]
        pairs = self.buffers.views(shape, place, plan.rank, most)
        return [BufferView(send, recv, plan.rank, plan.ranks, redop) for send, recv in pairs]


@contextmanager
def phase(rank: int, set_phase: SetPhase, what: str) -> Iterator[None]:
    """Name the next step, and name it in the error if torch fails in it: a lost peer, torch's own timeout,
    no memory.
    """
    set_phase(what)
    try:
        yield
    except RuntimeError as error:
        raise ProbeError(f"rank {rank}: {what}: {reason(error)}") from error


def library(backend: str) -> Library:
    """Return what is measured: the NCCL that torch calls, or the gloo inside torch, which has no version of its own."""
    if backend == "nccl":
        return Library("nccl", str(nccl_library.loaded()))
    return Library("gloo", f"torch {torch.__version__}")
