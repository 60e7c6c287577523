"""Types of measurements: rows, expectations, first calls, and the speed of a --path."""

import sys
from collections.abc import Mapping
from typing import Literal

from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, field

Place = Literal["in", "out"]
Mode = Literal["queued", "blocking", "graph"]
Basis = Literal["model", "datasheet", "published", "baseline", "user"]


class Samples(Struct, frozen=True):
    """Microseconds per call behind a row's statistics.

    `by_rank`: each rank's mean over all batches. `by_batch`: each batch's mean over all ranks, in the order measured;
    the statistics use these. `each`: every batch of each rank; empty if that would be more than a thousand numbers.
    """

    by_rank: tuple[float, ...]
    by_batch: tuple[float, ...]
    each: tuple[tuple[float, ...], ...] = ()


class Skew(Struct, frozen=True):
    """How evenly ranks arrive at a call, apart from the transfer time. Measured outside the timed batches.

    In each of `rounds` rounds every rank leaves a barrier, is busy for `wait_us`, and calls. `transfer_us`: the
    shortest time any rank spent inside the call, because the last one does not wait (median over rounds). `arrival_us`:
    from the first arrival to the last (mean over rounds). By rank: `late_us`, how long after its planned time it called
    (mean over rounds), and `late_rounds`, how often by more than a millisecond.
    """

    rounds: int
    wait_us: float
    transfer_us: float
    arrival_us: float
    late_us: tuple[float, ...]
    late_rounds: tuple[int, ...]


class Mismatch(Struct, frozen=True):
    """The first wrong element that a rank received: `offset` counts elements of its receive buffer.

    `source` is the sending rank; None for a reduction over all. Values are text, bit patterns hexadecimal with the most
    significant bit first.
    """

    rank: int
    offset: int
    source: int | None
    expected: str
    got: str
    expected_bits: str
    got_bits: str


class FirstCall(Struct, frozen=True):
    """One-time costs of a job, in seconds, each of the slowest rank (`..._rank`).

    `process_group_s`: init_process_group. `collective_s`: the first all_reduce of one element, which opens the
    communicator; `second_call_s` is the same call once more. `pair_s`: the first send and receive between neighbours;
    None with one rank.
    """

    process_group_s: float
    process_group_rank: int
    collective_s: float
    collective_rank: int
    second_call_s: float
    pair_s: float | None
    pair_rank: int


class SkippedRow(Struct, frozen=True):
    """Something requested that was not measured, and why: `op`, or a part of the run, such as pairs.

    `nbytes` is the requested size; None: no size. `cause`: the backend lacks the operation (`refused`), there are fewer
    elements than ranks to share them (`small`), no room (`memory`), no time (`time`), not all ranks are left (`lost`),
    there is only one rank (`alone`), or this node cannot measure it (`unable`).
    """

    op: str
    nbytes: int | None
    cause: Literal["refused", "small", "memory", "time", "lost", "alone", "unable"]
    why: str


class Fingerprint(Struct, frozen=True):
    """The conditions that numbers depend on: a baseline of one machine does not apply to another.

    `machine` and `software` are words by name (``gpu``: ``8 x NVIDIA H100 80GB HBM3``, ``driver``: ``550.54.15``) for
    rank 0's node; unknown parts are left out. `topology` is a digest of its devices and their paths; None: unknown.
    """

    machine: dict[str, str] = field(default_factory=dict)
    topology: str | None = None
    software: dict[str, str] = field(default_factory=dict)


def changes(old: Fingerprint | None, new: Fingerprint | None) -> tuple[str, ...]:
    """Return the differences, ``gpu: 8 x A -> 8 x B``. A part that only one of the two knows is not a difference."""
    if old is None or new is None:
        return ()
    topologies = {"topology": old.topology}, {"topology": new.topology}
    parts: tuple[tuple[Mapping[str, str | None], Mapping[str, str | None]], ...] = (
        (old.machine, new.machine),
        topologies,
        (old.software, new.software),
    )
    return tuple(
        f"{name}: {before[name]} -> {after[name]}"
        for before, after in parts
        for name in before
        if None not in (before[name], after.get(name)) and before[name] != after[name]
    )


class Retest(Struct, frozen=True):
    """A repeat of a failed row after the sweep, before any node is blamed."""

    busbw_GBps: float
    time_us: float
    interval_us: tuple[float, float] | None
    batches: int


class Disturbance(Struct, frozen=True):
    """Other load that slowed this run down: `what` in words, with the host.

    `left`: the share of the usual speed that may remain under it. A lower speed has another cause. `falsifies`: under
    it the run's numbers do not show the machine's speed, whether slow or fast.
    """

    what: str
    left: float
    falsifies: bool = False


class Xids(Struct, frozen=True):
    """Xids that NVML reported on one node between the first and the last call: GPU index and Xid."""

    node: str
    of_gpus: tuple[tuple[int, str], ...] = ()


class Expectation(Struct, frozen=True):
    """The number that a healthy machine reaches, and its source.

    ``threshold`` is the lowest acceptable value. Every expectation has ``basis``, ``why`` and ``source``;
    ``confidence`` is how far a derived number may be trusted. ``worst`` is the worst verdict that it may give a row,
    and ``known`` how well it is known, or why it judges nothing: then its ``threshold`` is 0. Below ``gross`` a row
    fails however uncertain the number is; None: no such threshold, for a small size or for settings with unknown
    effect.
    """

    value: float
    threshold: float
    unit: str
    basis: Basis
    why: str
    source: str
    confidence: Literal["high", "medium", "low"] = "high"
    worst: Literal["fail", "warn", "unjudged"] = "fail"
    known: str = ""
    gross: float | None = None

    def mark(self, value: float) -> float:
        """Return the threshold for `value`: the gross one if it is below that and may not fail otherwise."""
        return self.gross if self.below_gross(value) and self.gross is not None else self.threshold

    def below_gross(self, value: float) -> bool:
        """Return whether `value` fails only by the gross threshold."""
        return self.gross is not None and self.worst != "fail" and value < self.gross

    def least(self, value: float) -> str:
        """Describe the threshold for `value`."""
        if self.below_gross(value):
            return f"below a third of the {self.value:.4g} expected, {self.gross:.4g}"
        return f"at least {self.threshold:.4g} expected"


class Judged(Struct, frozen=True):
    """How many numbers were judged, `of` all measured: collectives, pairs, copies, steps."""

    rows: int
    of: int


class TimeStats(Struct, frozen=True):
    """Microseconds per call, over batches; :mod:`ncclprobe.model.stats` defines each. None: too few batches.

    ``headline`` is the statistic that is shown and used for bandwidths: the mean if the number of calls was fixed, for
    comparison with nccl-tests, or if there are too few batches for a median.
    """

    mean: float
    median: float | None = None
    min: float | None = None
    p95: float | None = None
    max: float | None = None
    stdev: float | None = None
    headline: Literal["median", "mean"] = "median"

    @property
    def typical(self) -> float:
        """Return the time that is shown and used for bandwidths."""
        return self.mean if self.headline == "mean" or self.median is None else self.median


class Transport(Struct, frozen=True):
    """The transport that carried the bytes; None: unknown."""

    network: str | None = None
    gdr: bool | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None


class Library(Struct, frozen=True):
    """The communication library that was measured."""

    name: str
    version: str


class Measurement(Struct, frozen=True, kw_only=True):
    """One row of a sweep: an operation at one size, timed.

    ``time_us`` is wall-clock time; ``algbw_GBps`` and ``busbw_GBps`` are computed from its ``headline``, never averaged
    as rates; verdicts use ``interval_us``. Every statistic is over ``batches`` batches of ``iters`` calls, each batch
    being the mean over ranks. ``interval_us`` is the 95 % interval of the median, ``precision`` half its width as a
    share of the median, ``precision_asked`` the requested one; None: a fixed number of calls was requested.
    ``issue_us`` is the host time to enqueue one call; ``launch_bound`` is true if that is most of the time, so the link
    hardly matters; ``device_us`` is the time per call between two CUDA events, None without them. ``slowest_rank`` is
    the rank with the longest time. ``wrong`` counts elements with a wrong value, None: not verified; ``mismatches``
    shows the first of some ranks. ``inconclusive_why`` is why ``status`` is inconclusive, ``retest`` the repeat of a
    row that had failed.
    """

    op: str
    place: Place
    mode: Mode
    backend: str
    library: Library
    dtype: str
    redop: str | None
    nbytes: int
    count: int
    ranks: int
    nodes: int
    iters: int
    batches: int
    footprint_bytes: int
    time_us: TimeStats
    issue_us: float
    slowest_rank: int
    algbw_GBps: float
    busbw_GBps: float
    wrong: int | None = None
    mismatches: tuple[Mismatch, ...] = ()
    interval_us: tuple[float, float] | None = None
    precision: float | None = None
    precision_asked: float | None = None
    launch_bound: bool = False
    device_us: float | None = None
    samples: Samples | None = None
    skew: Skew | None = None
    transport: Transport = Transport()
    expectation: Expectation | None = None
    status: Literal["pass", "warn", "fail", "unjudged", "inconclusive"] = "unjudged"
    inconclusive_why: str = ""
    retest: Retest | None = None


class Conditions(Struct, frozen=True):
    """How a row was measured: two rows of one operation and size are comparable only if these are equal."""

    ranks: int
    nodes: int
    dtype: str
    redop: str | None
    place: Place
    mode: Mode
    backend: str


def operation(op: str, redop: str | None) -> str:
    """Return the operation, with its reduction unless that is a sum."""
    return op if redop in (None, "sum") else f"{op} {redop}"


def conditions(row: Measurement) -> Conditions:
    """Return the conditions of `row`."""
    return Conditions(row.ranks, row.nodes, row.dtype, row.redop, row.place, row.mode, row.backend)


class Band(Struct, frozen=True):
    """An expectation and its rows: `op`, printed sizes `low_bytes` to `high_bytes`, both inclusive.

    `like` is how a baseline's rows were measured: it applies only to rows measured in the same way.
    """

    op: str
    low_bytes: int
    high_bytes: int
    expectation: Expectation
    like: Conditions | None = None

    def covers(self, row: Measurement) -> bool:
        """Return whether this band applies to `row`."""
        same_size = row.op == self.op and self.low_bytes <= row.nbytes <= self.high_bytes
        return same_size and (self.like is None or conditions(row) == self.like)

    def __str__(self) -> str:
        """Describe its rows: ``all_reduce 1 MiB``, a range, and for a baseline how it was measured."""
        sizes = size(self.low_bytes) if self.low_bytes == self.high_bytes else _range(self.low_bytes, self.high_bytes)
        row = self.like
        conditions = f" ({row.dtype}, {row.place} place, {row.ranks} ranks, {row.backend})" if row else ""
        return f"{self.op} {sizes}{conditions}"


def _range(low: int, high: int) -> str:
    return f"from {size(low)}" + ("" if high == sys.maxsize else f" to {size(high)}")
