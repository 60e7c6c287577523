"""The options of a measuring run: a validated command line, the same on every rank."""

import zlib
from pathlib import Path

from ncclprobe.engine.diagnose import Judging
from ncclprobe.facts.run.samples import What
from ncclprobe.model import stats
from ncclprobe.model.measurement import Mode, SkippedRow
from ncclprobe.model.ops import DTYPES
from ncclprobe.model.training import Grid, Model, Strategy
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct
from ncclprobe.report.delivery import Output
from ncclprobe.session.ranks.identity import Backend

LARGEST = {"nccl": 1 << 30, "gloo": 64 << 20}
"""Size of the largest message without -e, by backend."""


class Training(Struct, frozen=True):
    """The parts of real training to measure: the groups of `grid`, and the steps of `strategies`."""

    grid: Grid | None
    strategies: tuple[Strategy, ...]
    model: Model


class Options(Struct, frozen=True, kw_only=True):
    """A validated command line. Names are those of the options; `command` and `argv` are the words of the command line.

    `what` are the parts of the run in the order of measuring. Options that a command lacks keep their default.

    `sizes` are the bytes of collectives in the order in which they are measured; with `open_end` the largest is not
    given, and the backend decides (:meth:`sizes_for`). `only_judged`: only the smallest of these and the ones that can
    be judged. `pair_sizes` are those of pairs: the latency's, and the bandwidth's if given; `rounds` of pairs, None: as
    many as are needed. `training` is the part of real training to measure. `transport`: whether to find the transports.
    `accepts`: the node itself is judged too, as by the doctor; it must have `expect_gpus`. `left_out`: parts that were
    requested but cannot be measured here. `hosts`: where to start over ssh, with `remote_python`; empty: here. `mode`
    and `backend` are None if they were not given, `precision` if -n or --batches fix the number of calls.
    """

    command: str
    argv: tuple[str, ...]
    what: tuple[What, ...]
    nproc: int | None
    backend: Backend | None
    timeout_s: float
    phase_timeout_s: float
    judging: Judging
    keep: Path | None
    output: Output
    ops: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = ()
    open_end: bool = False
    only_judged: bool = False
    pair_sizes: tuple[int, ...] = (8,)
    rounds: int | None = None
    training: Training | None = None
    transport: bool = False
    iters: int = 20
    warmup: int = 5
    batches: int = stats.MIN_SAMPLES
    precision: float | None = 0.02
    budget_s: float = 2.0
    dtype: str = "float32"
    redop: str = "sum"
    mode: Mode | None = None
    expect: str | None = None
    baseline: str | None = None
    repeat: int = 0
    tolerance: float = 0.1
    require_judged: bool = False
    accepts: bool = False
    expect_gpus: int | None = None
    left_out: tuple[SkippedRow, ...] = ()
    notes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    remote_python: str = ""

    def sizes_for(self, backend: str) -> tuple[int, ...]:
        """Return the sizes to measure with `backend`."""
        fitting = tuple(nbytes for nbytes in self.sizes if nbytes <= LARGEST[backend])
        return (fitting or (min(self.sizes),)) if self.open_end else self.sizes

    @property
    def largest_asked(self) -> int:
        """Return the size of the largest message on the command line; 0: none."""
        return max((*(() if self.open_end else self.sizes), *self.pair_sizes[1:]), default=0)

    def without_room(self, ranks: int, free_bytes: int | None, where: str) -> str:
        """Return the problem if `ranks` must share too little memory; empty: none, or the memory size is unknown."""
        if free_bytes is None or 2 * ranks * self.largest_asked <= free_bytes:
            return ""
        need = f"two buffers of {size(self.largest_asked)} for {plural(ranks, 'rank')}"
        return f"{need} are more than the {size(free_bytes)} that are free {where}; choose smaller sizes (-b and -e)"

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return DTYPES[self.dtype]

    @property
    def digest(self) -> int:
        """Return a digest of what all ranks must share: with different options they would wait for each other."""
        calls = (self.iters, self.warmup, self.batches, self.precision, self.budget_s)
        shared = (self.ops, self.sizes, self.open_end, calls, self.dtype, self.redop, self.mode, self.what)
        return zlib.crc32(repr((*shared, self.training, self.pair_sizes, self.rounds, self.transport)).encode())
