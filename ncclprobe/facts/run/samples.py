"""A measuring run's samples, a fact for each kind: the request, the participants, the results.

Another tool or a killed process may have written a run log, so all of it is validated. Only the request shows what is
missing.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from ncclprobe.facts.reach import collector_of
from ncclprobe.host import SAMPLE, Host
from ncclprobe.model.errors import OUT_OF_MEMORY, NotCaptured, ParseError
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import (
    Band,
    Disturbance,
    Expectation,
    Fingerprint,
    FirstCall,
    Measurement,
    SkippedRow,
    Xids,
)
from ncclprobe.model.ops import OPS
from ncclprobe.model.pair_results import PAIRS, Aside, Localisation, LostTransfer, PairRow, RankNics
from ncclprobe.model.registry import Collector, collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import CopyRow, GroupRow, LadderRow, OperationTraffic, StepRow
from ncclprobe.model.values import Struct, field

T = TypeVar("T")


def every(host: Host, name: str, kind: type[T], none: str = "") -> tuple[T, ...]:
    """Return all samples called `name`, as `kind`, in their order. Raises ParseError, NotCaptured if there is none.

    `none`: the reader's message then.
    """
    try:
        text = host.ask(SAMPLE, name)
    except NotCaptured as gap:
        raise NotCaptured(none or str(gap)) from None

    try:
        values: Any = json.loads(text)
        return msgspec.convert(values, tuple[kind, ...], str_keys=True)  # type: ignore[valid-type]
    except (ValueError, msgspec.ValidationError) as error:
        raise ParseError(f"sample {name}: {error}") from None


def any_of(host: Host, name: str, kind: type[T], _none: str = "") -> tuple[T, ...]:
    """As :func:`every`, empty if there is none: of samples that only some runs have. Raises ParseError."""
    try:
        return every(host, name, kind)
    except NotCaptured:
        return ()


def last(host: Host, name: str, kind: type[T], none: str = "") -> T:
    """Return the newest sample called `name`. Raises as :func:`every` does."""
    return every(host, name, kind, none)[-1]


def _sample(fact: type, read: Callable[..., Any], name: str, kind: Any = None, none: str = "") -> Collector:
    """Return the collector of `fact`, which holds what `read` makes of the samples `name`; `kind` None: which is it."""

    def run(host: Host) -> Any:
        found = read(host, name, kind or fact, none)
        return fact(found) if kind else found

    return collector_of(fact, run)


What = Literal["collectives", "pairs", "copies", "training", "ladder"]


class RunRequest(Struct, frozen=True, kw_only=True):
    """The request of this run; the first sample of every run log.

    `what`: the parts of the run, in the order in which they are measured. `sizes` are in bytes, those requested for
    collectives; `itemsize` is of one element. `groups`, `steps`: which groups and training strategies. `nic_traffic`:
    whether to find out which NICs carry the bytes. `backend`: null if the user named none. `expect`, `baseline`: the
    files to judge by; `require_judged`: numbers without a verdict are not enough. `notes`: how the request was
    understood. `accepts`: whether the node itself is judged too, as by the doctor; a node without a GPU is then judged
    for NCCL, unless the user named gloo.
    """

    what: tuple[What, ...] = ("collectives",)
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    itemsize: int = 4
    groups: bool = False
    steps: tuple[str, ...] = ()
    nic_traffic: bool = False
    backend: str | None = None
    expect: str | None = None
    baseline: str | None = None
    require_judged: bool = False
    notes: tuple[str, ...] = ()
    accepts: bool = False

    def rows(self, ranks: int) -> frozenset[tuple[str, int, str]]:
        """The rows to be measured with so many ranks: operation, printed size, place."""
        if "collectives" not in self.what:
            return frozenset()
        known = [op for op in self.ops if op in OPS]  # an edited log, or a later ncclprobe's, may hold others
        shapes = ((op, OPS[op].shape(nbytes, ranks, self.itemsize).nbytes) for op in known for nbytes in self.sizes)
        return frozenset((op, nbytes, place) for op, nbytes in shapes if nbytes for place in OPS[op].places)


asked = _sample(RunRequest, last, "asked")


class Ending(Struct, frozen=True):
    """Whether the run completed. `why`: what cut it short; empty: nothing did."""

    why: str = ""


ending = _sample(Ending, last, "end", str)


class Skipped(Struct, frozen=True):
    """What was asked for and left out, each with its cause."""

    rows: tuple[SkippedRow, ...] = ()


skipped = _sample(Skipped, any_of, "skipped", SkippedRow)


class Notes(Struct, frozen=True):
    """Notes on the run for its reader, in addition to the verdicts, in the order in which they arose."""

    texts: tuple[str, ...] = field(default=())


notes = _sample(Notes, any_of, "note", str)


class Participants(Struct, frozen=True):
    """The ranks of a run and their means.

    `kind`: how the ranks were started; `hosts`: the host of each rank, or only rank 0's before all have met;
    `versions`: of torch and the library; `fallback`: why the times are not a verdict on NCCL here (another backend
    though none was named, ranks that share a GPU), empty: they are. `gpus`: of each rank the identity of its GPU (PCI
    address or UUID; in older logs NVML's index), empty with gloo. `pids`: of each rank its process if it is on rank 0's
    host, otherwise 0. `settings`: rank 0's, as they take effect.
    """

    kind: str
    ranks: int
    hosts: tuple[str, ...]
    backend: str = "gloo"
    versions: dict[str, str | None] = field(default_factory=dict)
    nnodes: int | None = None
    fallback: str = ""
    gpus: tuple[int | str, ...] = ()
    pids: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Return how many hosts there are."""
        return len(set(self.hosts))


participants = _sample(Participants, last, "participants")


FAILED = "it failed "
"""The beginning of a rank's report that it left because of an error of its own, without details."""


class LostRank(Struct, frozen=True):
    """A rank that ended, fell silent or was stopped: its host, the phase of its last sign, and the observation."""

    rank: int
    host: str
    phase: str
    why: str

    @property
    def shortage(self) -> str:
        """Return what memory it lacked, if it left for that."""
        return self.why.partition(OUT_OF_MEMORY)[2].removesuffix(")")


class DifferingSetting(Struct, frozen=True):
    """A variable with different meanings to ranks: the values, with the ranks."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


class RankSettings(Struct, frozen=True):
    """The settings that differ between ranks, as they reported before the first call."""

    differing: tuple[DifferingSetting, ...]


rank_settings = _sample(
    RankSettings, last, "rank_settings", tuple[DifferingSetting, ...], "the ranks reported no settings"
)


class Arrivals(Struct, frozen=True):
    """The ranks that joined at the start of a run: `expected` is the world size, `missing` the ranks that did not
    report.

    They were waited for `waited_s` of `allowed_s`. The processes of those that are `running` were still there, on the
    host of rank 0, when the wait was over.
    """

    expected: int
    missing: tuple[int, ...] = ()
    waited_s: float = 0.0
    allowed_s: float = 0.0
    running: tuple[int, ...] = ()

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks that will not join: a process that runs may, and any may before the wait is over."""
        waited = self.waited_s >= self.allowed_s
        return tuple(rank for rank in self.missing if rank not in self.running) if waited else ()


@collector
def arrivals(host: Host, ending: Ending | Absent) -> Arrivals:
    """Read the watchdog's record of the start; without it, report why the run ended before."""
    why = f": {ending.why}" if isinstance(ending, Ending) and ending.why else ""
    return last(host, "arrivals", Arrivals, f"the ranks had not met when the run ended{why}")


class Attendance(Struct, frozen=True):
    """Which ranks stayed to the end of a run.

    `lost` are those with evidence against them. `stalled` is for a run that hangs without a rank to blame: the
    phase that all ranks entered, and none left. Empty: that did not happen.
    """

    ranks: int
    lost: tuple[LostRank, ...] = ()
    stalled: str = ""


@collector
def attendance(host: Host, arrivals: Arrivals | Absent, participants: Participants | Absent) -> Attendance:
    """Read the watchdog's record of the end; ranks that the run went on without are lost as well.

    All ranks are assumed to have stayed from the point at which they met, if the watchdog saw none leave. Before they
    met, only a lost rank is evidence.
    """
    left_behind = any_of(host, "lost", LostRank)
    seen = any_of(host, "attendance", Attendance)
    if not seen and not left_behind and isinstance(arrivals, Absent):
        raise NotCaptured(arrivals.why)
    ranks = participants.ranks if isinstance(participants, Participants) else 0
    found = seen[-1] if seen else Attendance(arrivals.expected if isinstance(arrivals, Arrivals) else ranks)
    last_word = {lost.rank: lost for lost in (*left_behind, *found.lost, *left_behind)}
    return Attendance(found.ranks, tuple(last_word.values()), found.stalled)


class FirstCalls(Struct, frozen=True):
    """What the first calls of a job cost."""

    cost: FirstCall


first_calls = _sample(FirstCalls, last, "first_call", FirstCall)


class MeasuredOn(Struct, frozen=True):
    """On what machine and software the run measured, by rank 0's node."""

    fingerprint: Fingerprint


measured_on = _sample(MeasuredOn, last, "fingerprint", Fingerprint)


class Expected(Struct, frozen=True):
    """What the run expected of its rows; empty: of none."""

    bands: tuple[Band, ...] = ()

    def least_pair_GBps(self, nbytes: int) -> float | None:
        """The threshold of the first band that speaks of pairs, or of a sendrecv, at so many bytes; 0: it has none."""
        bands = [band for op in (PAIRS, "sendrecv") for band in self.bands if band.op == op]
        found = (band.expectation.threshold for band in bands if band.low_bytes <= nbytes <= band.high_bytes)
        return next(found, None)


expected = _sample(Expected, any_of, "expected", Band)


class Rows(Struct, frozen=True):
    """The rows of a run, at least one, without verdicts.

    `retests`: rows that were measured again; `disturbances`: other loads that slowed the run down.
    """

    measured: tuple[Measurement, ...]
    retests: tuple[Measurement, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()


@collector
def rows(host: Host) -> Rows:
    """Read the rows."""
    left_out = dict.fromkeys(f"{each.op}: {each.why}" for each in any_of(host, "skipped", SkippedRow))
    why = ": ".join(["no row was measured", *([first_of(left_out, 1, "; ")] if left_out else [])])
    measured = every(host, "row", Measurement, why)
    return Rows(measured, any_of(host, "retest", Measurement), any_of(host, "disturbance", Disturbance))


class HeardXids(Struct, frozen=True):
    """The errors that NVML reported while the run measured, of each node that listened for them."""

    nodes: tuple[Xids, ...]


heard_xids = _sample(HeardXids, every, "xids", Xids, "NVML listened on no node")


class MeasuredPairs(Struct, frozen=True):
    """All that was measured of pairs, without conclusions: the rows, and the transfers without data.

    `ranks`: their places. `excluded`: the ranks that were
    measured no more, from then on; of a rank that is there twice the last counts. `complete`: all planned was tried.
    """

    ranks: RankNics
    rows: tuple[PairRow, ...] = ()
    lost: tuple[LostTransfer, ...] = ()
    excluded: tuple[Aside, ...] = ()
    complete: bool = False


@collector
def pairs(host: Host) -> MeasuredPairs:
    """Read the pairs."""
    return MeasuredPairs(
        last(host, "pair_ranks", RankNics, "no pair was measured"),
        any_of(host, "pair", PairRow),
        any_of(host, "lost_transfer", LostTransfer),
        any_of(host, "excluded", Aside),
        any(any_of(host, "pairs_complete", bool)),
    )


class Localised(Struct, frozen=True):
    """Who is slow, by all pairs that were measured: a conclusion, which no collector reads (`localise.slow_ranks`)."""

    found: Localisation


class NicTraffic(Struct, frozen=True):
    """The NICs that carried the bytes of each operation; empty: nothing was to leave a node."""

    rows: tuple[OperationTraffic, ...]


nic_traffic = _sample(NicTraffic, last, "nic_traffic", tuple[OperationTraffic, ...], "no NIC was counted")


class Copies(Struct, frozen=True):
    """The copies within nodes that were measured, without verdicts. At least one."""

    rows: tuple[CopyRow, ...]


copies = _sample(Copies, last, "copies", tuple[CopyRow, ...], "no copy was measured")


class ExpectedCopies(Struct, frozen=True):
    """What the run expected of copies, by node and kind (``host``, ``d2d``); a node that is left out: of none."""

    nodes: dict[str, dict[str, Expectation]] = field(default_factory=dict)


@collector
def expected_copies(host: Host) -> ExpectedCopies:
    """Read what the run expected of copies."""
    found = any_of(host, "expected_copies", ExpectedCopies)
    return found[-1] if found else ExpectedCopies()


class Groups(Struct, frozen=True):
    """The groups of a hybrid-parallel job that were measured, a row per kind. At least one."""

    rows: tuple[GroupRow, ...]


groups = _sample(Groups, every, "group", GroupRow, "no group was measured")


class Steps(Struct, frozen=True):
    """The training steps that were replayed; empty: none."""

    rows: tuple[StepRow, ...]


steps = _sample(Steps, any_of, "step", StepRow)


class Ladder(Struct, frozen=True):
    """The rungs from one rank to the whole job, without verdicts. At least one."""

    rows: tuple[LadderRow, ...]


ladder = _sample(Ladder, every, "rung", LadderRow, "no rung of the ladder was measured")
