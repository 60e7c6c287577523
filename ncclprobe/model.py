"""The nouns: what is known of a machine, what is judged, and what is reported.

Everything here is a frozen dataclass without behaviour of its own, so that a report can be written as JSON,
read back and rendered anywhere. Units are in the names: ``rate_gbps`` is 1e9 bits per second, ``busbw_GBps``
1e9 bytes per second, ``nbytes`` bytes, ``_s`` and ``_us`` seconds and microseconds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal

from ncclprobe.chosen import Choices, NodeTopology
from ncclprobe.measured import Again, Fingerprint, FirstCall, Mismatch, Samples, Skew, Unmeasured
from ncclprobe.moved import AffinityRow, CopyRow, GroupRow, Road, StepRow
from ncclprobe.paired import Localisation, PairRow

SCHEMA = "ncclprobe.report/1"

Blame = Literal["node", "link", "fabric", "image", "job", "unknown"]
Action = Literal["fix-job", "fix-image", "retest", "repair", "none"]
Place = Literal["in", "out"]
Mode = Literal["queued", "blocking", "graph"]
Basis = Literal["model", "datasheet", "published", "baseline", "user"]


class Severity(str, Enum):
    """How bad a finding is. Only FAIL stops a job; NOTE never changes a status."""

    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


class Status(str, Enum):
    """What became of a check. UNKNOWN is not PASS: nobody looked."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class ExitCode(IntEnum):
    """What a gate reads of a run, whatever its output format.

    BROKEN is never a verdict: a broken interpreter, a missing package or a bug of ours must not look like a broken
    machine. INCONCLUSIVE: nothing failed, but something required could not be looked at, or nothing judged a number.
    """

    OK = 0
    BROKEN = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAIL = 4


@dataclass(frozen=True, slots=True)
class Absent:
    """A fact that could not be learned. ``refused`` is the name of the HostError behind it, if there was one."""

    why: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: on what, what was seen where, whose fault it is and what to do about it.

    ``subject`` is spelled as NCCL spells it (``mlx5_0:1``, ``GPU3``, ``rank 5``, ``NCCL_IB_HCA``).
    An empty ``remedy`` is filled in from the check's own ``Fix:``.
    """

    severity: Severity
    subject: str
    message: str
    blame: Blame = "unknown"
    action: Action = "none"
    confidence: str = "read from this machine"
    evidence: str = ""
    remedy: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What the user is about to run, as far as the command line says so. A fact like any other to a check.

    `local`: only this node is asked about, whatever the launcher says.
    """

    backend: Literal["nccl", "gloo"] = "nccl"
    expect_gpus: int | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """One parameter of a check or collector: which fact it takes, and whether it also takes ``Absent``.

    `of`: the fact of one node; or of all ``nodes`` (:class:`~ncclprobe.fleet.Every`) or ``ranks``.
    """

    name: str
    fact: type
    accepts_absent: bool = False
    of: Literal["node", "nodes", "ranks"] = "node"


@dataclass(frozen=True, slots=True)
class Collector:
    """A function that asks a host and returns one fact. ``needs`` are the facts it takes beside the host.

    `of_rank`: the fact is each rank's own, where others of one node may have another: affinity, visible devices.
    """

    run: Callable[..., Any]
    produces: type
    needs: tuple[Need, ...] = ()
    of_rank: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """When a check applies: a predicate over facts, and the words for it (``only <words>``)."""

    run: Callable[..., bool]
    words: str
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A rule: facts in, findings out. Everything about it is read from its one function.

    ``bad`` and ``good`` are argument tuples that the check must object to, or accept: they run as tests.
    """

    id: str
    run: Callable[..., Iterator[Finding]]
    needs: tuple[Need, ...]
    title: str
    why: str
    fix: str
    bad: tuple[tuple[Any, ...], ...]
    good: tuple[tuple[Any, ...], ...]
    required: bool = False
    privilege: str = ""
    requires: str = ""
    applies: Condition | None = None

    @property
    def compares(self) -> bool:
        """Whether it is judged once for all nodes, and not once per node."""
        return any(need.of != "node" for need in self.needs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says of one node (``node`` is None for a comparison between nodes)."""

    id: str
    node: str | None
    status: Status
    title: str
    why: str = ""
    required: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All facts of one node, by their type. A value is the fact itself or ``Absent``.

    `ranks`: of each rank of this node that spoke, its own facts, by rank.
    """

    node: str
    facts: Mapping[type, Any]
    ranks: Mapping[int, Mapping[type, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a healthy machine does, and where that number comes from.

    ``low`` is the smallest acceptable value. No expectation exists without ``basis``, ``why`` and ``source``;
    ``confidence`` says how far a number that was derived, not measured, may be trusted.
    ``worst`` is the worst verdict that a row may get by it, and ``known`` how well it is known, or why it judges
    nothing: an expectation that judges nothing has a ``low`` of 0.
    """

    value: float
    low: float
    unit: str
    basis: Basis
    why: str
    source: str
    confidence: Literal["high", "medium", "low"] = "high"
    worst: Literal["fail", "warn", "unjudged"] = "fail"
    known: str = ""


@dataclass(frozen=True, slots=True)
class TimeStats:
    """Microseconds per call, over batches; :mod:`ncclprobe.stats` defines each. A null: too few batches to say."""

    mean: float
    median: float | None = None
    min: float | None = None
    p95: float | None = None
    max: float | None = None
    stdev: float | None = None


@dataclass(frozen=True, slots=True)
class Transport:
    """The road the bytes took, as far as it is known."""

    network: str | None = None
    gdr: bool | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """The communication library that was measured."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of a sweep: an operation at one size, timed.

    ``time_us`` is wall-clock time, as nccl-tests prints it; ``algbw_GBps`` and ``busbw_GBps`` are computed from its
    mean, never averaged as rates. Every statistic is over ``batches`` batches of ``iters`` calls, each batch being the
    mean over ranks. ``interval_us`` is where the median lies (95 %), ``precision`` half its width as a share of the
    median, ``precision_asked`` what was asked for; null: a fixed number of calls was. ``issue_us`` is the host time to
    enqueue one call, ``launch_bound`` where that is most of the time and the row thus says little of the link;
    ``device_us`` the time per call between two CUDA events, null where there are none. ``slowest_rank`` is the rank
    with the longest time.
    ``wrong`` counts elements with a wrong value, null: not verified; ``mismatches`` shows the first of some ranks.
    ``doubt`` is why ``status`` is noise, ``again`` the repetition of a row that had failed.
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
    status: Literal["pass", "warn", "fail", "unjudged", "noise"] = "unjudged"
    doubt: str = ""
    again: Again | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """Who wrote a report."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """How the ranks were started: torchrun, slurm, openmpi, pytorchjob, manual or none."""

    kind: str = "none"
    nnodes: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node of a report."""

    name: str
    rank: int
    hostname: str
    status: Status


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable that NCCL, torch or the launcher reads, and where its value comes from.

    ``value`` is null where only the name may be recorded. ``origin`` is ``environment`` or ``file:line``.
    """

    name: str
    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """Versions and settings of one node."""

    versions: dict[str, str | None] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True, slots=True)
class Suppression:
    """A finding that was asked not to be reported, and why."""

    id: str
    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a run has to say: the contract's ``ncclprobe.report/1``. Renderers need nothing else.

    ``started`` is UTC in ISO 8601, ``coverage`` the number of verdicts by status, ``remarks`` what the reader
    must know about the run as a whole (a fallback taken, nothing to judge a number by).
    """

    tool: Tool
    started: str
    duration_s: float
    command: str
    status: Status
    exit_code: int
    schema: str = SCHEMA
    launch: LaunchRow = LaunchRow()
    nodes: tuple[NodeRow, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    checks: tuple[Verdict, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    coverage: dict[str, int] = field(default_factory=dict)
    suppressed: tuple[Suppression, ...] = ()
    environment: dict[str, NodeEnvironment] = field(default_factory=dict)
    topology: dict[str, NodeTopology] = field(default_factory=dict)
    choices: dict[str, Choices] = field(default_factory=dict)
    first_call: FirstCall | None = None
    pairs: tuple[PairRow, ...] = ()
    localisation: Localisation | None = None
    roads: tuple[Road, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    affinity: tuple[AffinityRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    remarks: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that ended, fell silent or stood still: where, in which phase it was last seen, and what was seen."""

    rank: int
    host: str
    phase: str
    why: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Which ranks came to the start of a run: `expected` is the world size, `missing` the ranks never heard of."""

    expected: int
    missing: tuple[int, ...] = ()
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """Which ranks stayed to the end of a run.

    `lost` are those that something can be said against. `stalled` is for a run that hangs with nobody to blame: the
    phase that all ranks entered, and none left. Empty: that did not happen.
    """

    ranks: int
    lost: tuple[LostRank, ...] = ()
    stalled: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """The rows of a sweep whose data was compared with what it must be. At least one."""

    rows: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a sweep for which somebody expected a number. At least one."""

    rows: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """The rows of a sweep in which the ranks' arrivals were noted, at least one, and the host of each rank."""

    rows: tuple[Measurement, ...]
    hosts: tuple[str, ...]


def fail(subject: str, message: str, **details: Any) -> Finding:
    """A finding that stops the job: fields of :class:`Finding` by name."""
    return Finding(Severity.FAIL, subject, message, **details)


def warn(subject: str, message: str, **details: Any) -> Finding:
    """A finding that costs performance or safety: fields of :class:`Finding` by name."""
    return Finding(Severity.WARN, subject, message, **details)


def note(subject: str, message: str, **details: Any) -> Finding:
    """A finding worth knowing that changes no verdict: fields of :class:`Finding` by name."""
    return Finding(Severity.NOTE, subject, message, **details)
