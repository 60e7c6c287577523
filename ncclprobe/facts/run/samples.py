"""A measuring run's samples, one fact per kind: the request, the participants, the results.

Another tool or a killed process may have written a run log, so everything is validated. Only the request shows what is
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
    """Return all samples called `name`, in order, as `kind`. Raises ParseError, or NotCaptured if there is none.

    `none`: the message of that NotCaptured.
    """
    try:
        text = host.ask(SAMPLE, name)
    except NotCaptured as gap:
        raise NotCaptured(none or str(gap)) from None

    try:
        values: Any = json.loads(text)
        return msgspec.convert(values, tuple[kind, ...], str_keys=True)  # type: ignore[valid-type]
    except (ValueError, msgspec.ValidationError) as error:  # a ValueError from msgspec 0.21 on
        raise ParseError(f"sample {name}: {error}") from None


def any_of(host: Host, name: str, kind: type[T], _none: str = "") -> tuple[T, ...]:
    """Like :func:`every`, but return an empty tuple if there are none. Raises ParseError."""
    try:
        return every(host, name, kind)
    except NotCaptured:
        return ()


def last(host: Host, name: str, kind: type[T], none: str = "") -> T:
    """Return the newest sample called `name`. Raises as :func:`every` does."""
    return every(host, name, kind, none)[-1]


def _sample_collector(fact: type, read: Callable[..., Any], name: str, kind: Any = None, none: str = "") -> Collector:
    """Return the collector of `fact` from the samples `name`, read by `read`. Without `kind`, the samples are the fact
    itself.
    """

    def run(host: Host) -> Any:
        found = read(host, name, kind or fact, none)
        return fact(found) if kind else found

    return collector_of(fact, run)


What = Literal["collectives", "pairs", "copies", "training", "ladder"]


class RunRequest(Struct, frozen=True, kw_only=True):
    """The request of this run; the first sample of every run log.

    `what`: the parts of the run, in the order in which they are measured. `sizes` are the requested sizes of
    collectives in bytes; `itemsize` is the size of one element. `groups`, `steps`: which groups and training
    strategies. `nic_traffic`: whether to find out which NICs carry the bytes. `backend`: None if the user named none.
    `expect`, `baseline`: the files to judge by. `require_judged`: a number without a verdict fails the run. `notes`:
    how the request was understood. `accepts`: the node itself is judged too, as by the doctor; a node without a GPU is
    then judged for NCCL, unless the user named gloo.
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
        """Return the rows to measure with this many ranks: operation, printed size, place."""
        if "collectives" not in self.what:
            return frozenset()
        known = [op for op in self.ops if op in OPS]  # an edited log, or a later ncclprobe's, may hold others
        shapes = ((op, OPS[op].shape(nbytes, ranks, self.itemsize).nbytes) for op in known for nbytes in self.sizes)
        return frozenset((op, nbytes, place) for op, nbytes in shapes if nbytes for place in OPS[op].places)


asked = _sample_collector(RunRequest, last, "asked")


class Ending(Struct, frozen=True):
    """Whether the run completed. `why`: what cut it short; empty: it completed."""

    why: str = ""


ending = _sample_collector(Ending, last, "end", str)


class Skipped(Struct, frozen=True):
    """Requested rows that were left out, each with its reason."""

    rows: tuple[SkippedRow, ...] = ()


skipped = _sample_collector(Skipped, any_of, "skipped", SkippedRow)


class Notes(Struct, frozen=True):
    """Notes on the run for the reader, in addition to the verdicts, in chronological order."""

    texts: tuple[str, ...] = field(default=())


notes = _sample_collector(Notes, any_of, "note", str)


class Participants(Struct, frozen=True):
    """The ranks of a run, with their hosts, GPUs and software.

    `kind`: how the ranks were started. `hosts`: the host of each rank, or only rank 0's before all have joined.
    `versions`: of torch and the library. `fallback`: why the times say nothing about NCCL here (another backend
    although none was named, ranks that share a GPU); empty: they do. `gpus`: the identity of each rank's GPU (PCI
    address or UUID; in older logs NVML's index); empty with gloo. `pids`: the process of each rank on rank 0's host,
    otherwise 0. `settings`: rank 0's, as they take effect.
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
        """Return the number of hosts."""
        return len(set(self.hosts))


participants = _sample_collector(Participants, last, "participants")


FAILED = "it failed "
"""The beginning of a rank's report that it exited because of its own error, without details."""


class LostRank(Struct, frozen=True):
    """A rank that exited, hung or was stopped: its host, the last phase it reported, and the observation."""

    rank: int
    host: str
    phase: str
    why: str

    @property
    def shortage(self) -> str:
        """Return which memory ran out, if that made the rank exit; otherwise empty."""
        return self.why.partition(OUT_OF_MEMORY)[2].removesuffix(")")


class DifferingSetting(Struct, frozen=True):
    """A variable that has different values on different ranks: each value with its ranks."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


class RankSettings(Struct, frozen=True):
    """The settings that differ between ranks, as reported before the first call."""

    differing: tuple[DifferingSetting, ...]


rank_settings = _sample_collector(
    RankSettings, last, "rank_settings", tuple[DifferingSetting, ...], "the ranks reported no settings"
)


class Arrivals(Struct, frozen=True):
    """The ranks that joined at the start of a run. `expected` is the world size; `missing` ranks did not report.

    Rank 0 waited `waited_s` of `allowed_s` for them. `running`: missing ranks on rank 0's host whose processes were
    still running when the wait was over.
    """

    expected: int
    missing: tuple[int, ...] = ()
    waited_s: float = 0.0
    allowed_s: float = 0.0
    running: tuple[int, ...] = ()

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks that cannot join any more: none before the wait is over, and none whose process
        still runs.
        """
        waited = self.waited_s >= self.allowed_s
        return tuple(rank for rank in self.missing if rank not in self.running) if waited else ()


@collector
def arrivals(host: Host, ending: Ending | Absent) -> Arrivals:
    """Read the watchdog's record of the start; without it, raise NotCaptured with the reason why the run
    ended earlier.
    """
    why = f": {ending.why}" if isinstance(ending, Ending) and ending.why else ""
    return last(host, "arrivals", Arrivals, f"the ranks had not met when the run ended{why}")


class Attendance(Struct, frozen=True):
    """The ranks that did not stay to the end of a run.

    `lost` are ranks with evidence against them. `stalled`: the run hung without a culprit in this phase, which all
    ranks entered and none left; empty: it did not.
    """

    ranks: int
    lost: tuple[LostRank, ...] = ()
    stalled: str = ""


@collector
def attendance(host: Host, arrivals: Arrivals | Absent, participants: Participants | Absent) -> Attendance:
    """Read the watchdog's record of the end, and add the ranks that the run continued without.

    If the watchdog saw no rank leave, all are assumed to have stayed since they joined. Before they joined, only a lost
    rank is evidence.
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
    """The cost of a job's first calls."""

    cost: FirstCall


first_calls = _sample_collector(FirstCalls, last, "first_call", FirstCall)


class MeasuredOn(Struct, frozen=True):
    """The machine and software of the run, as fingerprinted on rank 0's node."""

    fingerprint: Fingerprint


measured_on = _sample_collector(MeasuredOn, last, "fingerprint", Fingerprint)


class Expected(Struct, frozen=True):
    """The run's expectations for its rows; empty: none."""

    bands: tuple[Band, ...] = ()

    def least_pair_GBps(self, nbytes: int) -> float | None:
        """Return the threshold of the first band for pairs, or for sendrecv, at this size; None: no band applies."""
        bands = [band for op in (PAIRS, "sendrecv") for band in self.bands if band.op == op]
        found = (band.expectation.threshold for band in bands if band.low_bytes <= nbytes <= band.high_bytes)
        return next(found, None)


expected = _sample_collector(Expected, any_of, "expected", Band)


class Rows(Struct, frozen=True):
    """The rows of a run, at least one, without verdicts.

    `retests`: rows that were measured again. `disturbances`: other load that slowed the run down.
    """

    measured: tuple[Measurement, ...]
    retests: tuple[Measurement, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()


@collector
def rows(host: Host) -> Rows:
    """Read the rows, retests and disturbances. Raises NotCaptured, with the reasons, if no row was measured."""
    left_out = dict.fromkeys(f"{each.op}: {each.why}" for each in any_of(host, "skipped", SkippedRow))
    why = ": ".join(["no row was measured", *([first_of(left_out, 1, "; ")] if left_out else [])])
    measured = every(host, "row", Measurement, why)
    return Rows(measured, any_of(host, "retest", Measurement), any_of(host, "disturbance", Disturbance))


class HeardXids(Struct, frozen=True):
    """Xids that NVML reported during the run, for each node that listened for them."""

    nodes: tuple[Xids, ...]


heard_xids = _sample_collector(HeardXids, every, "xids", Xids, "NVML listened on no node")


class MeasuredPairs(Struct, frozen=True):
    """All measurements of pairs, without conclusions: the rows, and the transfers that lost data.

    `ranks`: their places. `excluded`: ranks that were not measured from then on; if one is listed twice, the last entry
    counts. `complete`: every planned pair was tried.
    """

    ranks: RankNics
    rows: tuple[PairRow, ...] = ()
    lost: tuple[LostTransfer, ...] = ()
    excluded: tuple[Aside, ...] = ()
    complete: bool = False


@collector
def pairs(host: Host) -> MeasuredPairs:
    """Read the pairs. Raises NotCaptured if none was measured."""
    return MeasuredPairs(
        last(host, "pair_ranks", RankNics, "no pair was measured"),
        any_of(host, "pair", PairRow),
        any_of(host, "lost_transfer", LostTransfer),
        any_of(host, "excluded", Aside),
        any(any_of(host, "pairs_complete", bool)),
    )


class Localised(Struct, frozen=True):
    """The slow ranks, concluded from all pairs (`localise.slow_ranks`); no collector reads this."""

    found: Localisation


class NicTraffic(Struct, frozen=True):
    """The NICs that carried each operation's bytes; empty: no operation was to leave a node."""

    rows: tuple[OperationTraffic, ...]


nic_traffic = _sample_collector(NicTraffic, last, "nic_traffic", tuple[OperationTraffic, ...], "no NIC was counted")


class Copies(Struct, frozen=True):
    """The measured copies within nodes, without verdicts. At least one."""

    rows: tuple[CopyRow, ...]


copies = _sample_collector(Copies, last, "copies", tuple[CopyRow, ...], "no copy was measured")


class ExpectedCopies(Struct, frozen=True):
    """The run's expectations for copies, by node and kind (``host``, ``d2d``); a missing node has none."""

    nodes: dict[str, dict[str, Expectation]] = field(default_factory=dict)


@collector
def expected_copies(host: Host) -> ExpectedCopies:
    """Read the run's expectations for copies."""
    found = any_of(host, "expected_copies", ExpectedCopies)
    return found[-1] if found else ExpectedCopies()


class Groups(Struct, frozen=True):
    """The measured groups of a hybrid-parallel job, one row per kind. At least one."""

    rows: tuple[GroupRow, ...]


groups = _sample_collector(Groups, every, "group", GroupRow, "no group was measured")


class Steps(Struct, frozen=True):
    """The training steps that were replayed; empty: none."""

    rows: tuple[StepRow, ...]


steps = _sample_collector(Steps, any_of, "step", StepRow)


class Ladder(Struct, frozen=True):
    """The steps from one rank to the whole job, without verdicts. At least one."""

    rows: tuple[LadderRow, ...]


ladder = _sample_collector(Ladder, every, "rung", LadderRow, "no rung of the ladder was measured")
