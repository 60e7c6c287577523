"""The report: the whole result of a run, ``ncclprobe.report/1`` of docs/reference/report.md.

Frozen values without behaviour, so that a report can be written as JSON, read back and rendered anywhere. Units are in
the names: ``rate_gbps`` is 1e9 bits per second, ``busbw_GBps`` 1e9 bytes per second, ``nbytes`` bytes, ``_s`` and
``_us`` seconds and microseconds.
"""

from collections.abc import Iterator
from datetime import datetime, timezone

import msgspec
from msgspec import structs

from ncclprobe.model.causes import (
    Answer,
    Cause,
    JobOutcome,
    JobVerdict,
    LastSeen,
    Moment,
    NotUnderstood,
    RankClass,
    RankState,
)
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Evidence, NamedFinding, Severity, Status, Suppression, Verdict, own_node
from ncclprobe.model.measurement import Fingerprint, FirstCall, Judged, Measurement, SkippedRow
from ncclprobe.model.nccl_selection import Choices, NodeTopology
from ncclprobe.model.pair_results import Localisation, PairRow, RailWay
from ncclprobe.model.traffic import CopyRow, GroupRow, LadderRow, OperationTraffic, StepRow
from ncclprobe.model.units import printable
from ncclprobe.model.values import Result, Struct, field

SCHEMA = "ncclprobe.report/1"


class Tool(Struct, frozen=True):
    """The program that wrote a report."""

    name: str
    version: str


class LaunchRow(Struct, frozen=True):
    """How the ranks were started.

    torchrun, slurm, openmpi, pmi, pytorchjob, environment (RANK … by hand), options (--nnodes …), self (--nproc) or
    single.
    """

    kind: str = "single"
    nnodes: int | None = None
    world_size: int | None = None


class NodeRow(Struct, frozen=True):
    """One node of a report."""

    name: str
    rank: int
    hostname: str
    status: Status


class Setting(Struct, frozen=True):
    """One variable that NCCL, torch or the launcher reads, and the origin of its value.

    ``value`` is None if only the name may be recorded. ``origin`` is ``environment`` or ``file:line``.
    """

    name: str
    value: str | None
    origin: str


class PlacementLevel(Struct, frozen=True):
    """One level of a node's location: its kind, such as ``zone``, its name, and the source."""

    kind: str
    name: str
    source: str


class NodeEnvironment(Struct, frozen=True):
    """Versions and settings of one node, and its location, outermost level first; empty: unknown.

    `counters`: errors counted by its links and GPUs, without zeros, as ``mlx5_3:1 link_downed``. Those of one `boot`
    may be compared; it is a few digits of the kernel's boot id. `gpus` is a short digest of its GPUs' UUIDs, which a
    new host name does not change.
    """

    versions: dict[str, str | None] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    placement: tuple[PlacementLevel, ...] = ()
    boot: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    gpus: str = ""


class Area(Struct, frozen=True):
    """One area of the machines in one line: ``GPUs``, ``8 × H100 80GB HBM3 · driver 550.127 · NVLink 18/18``.

    `status` is the worst of its checks, ``skip`` if none had anything to judge; `ids` are the checks that decide it.
    `unseen`: how many advisory checks could not look.
    """

    name: str
    values: str
    status: Status
    ids: tuple[str, ...] = ()
    unseen: int = 0


class Scope(Struct, frozen=True):
    """What a report covers: jobs with this library, on this many GPUs; None: unknown.

    `driver`: whether any node has NVIDIA's driver, if that could be seen. `pasted`: everything known about the machine
    is from pasted texts. `apart`: each node was judged by itself, not as one of a job.
    """

    backend: str = "nccl"
    gpus: int | None = None
    driver: bool = True
    pasted: bool = False
    apart: bool = False


class CheckNote(Struct, frozen=True):
    """Documentation of a check: what is wrong if it fails, what holds if it passes, and why it matters."""

    title: str
    right: str = ""
    why: str = ""


class Excerpt(Struct, frozen=True):
    """An excerpt of a source that findings cite: an answer of `node`, or lines of a log (no node).

    `source` is spelled as in the evidence, `title` is the question. `first`: the number of the first line in the
    source; 0: its lines are not numbered. `cited`: indices of the cited `lines`, from 0. `cut`: what is left out, in
    words.
    """

    source: str
    node: str
    title: str
    lines: tuple[str, ...]
    first: int = 0
    cited: tuple[int, ...] = ()
    cut: str = ""


class AttainableRate(Struct, frozen=True):
    """The most that an all_reduce of 1 GiB over all GPUs can still reach, and what it should reach on such a machine.

    Bus bandwidth out of place, in float32, over `nodes` nodes. `settings`: the most that remains with each setting that
    costs something. `nvlinked`: NVLink joins all of these nodes.
    """

    now_GBps: float
    healthy_GBps: float
    nodes: int = 1
    settings: dict[str, float] = field(default_factory=dict)
    nvlinked: bool = False

    def cost(self, name: str = "") -> str:
        """Return ``at most 50 of 370 GB/s at 1 GiB over 2 nodes (14 %)``, with only the setting `name` if given."""
        left = self.settings.get(name, self.now_GBps)
        over = f" over {self.nodes} nodes" if self.nodes > 1 else ""
        return f"at most {left:.3g} of {self.healthy_GBps:.3g} GB/s at 1 GiB{over} ({left / self.healthy_GBps:.0%})"

    def lost(self, name: str = "") -> float:
        """Return the lost share, with only the setting `name` if given."""
        return max(0.0, round(1 - self.settings.get(name, self.now_GBps) / self.healthy_GBps, 3))


class Report(Result, frozen=True, kw_only=True):
    """The whole result of a run: ``ncclprobe.report/1``. Renderers need nothing more.

    ``started`` is UTC in ISO 8601, ``coverage`` the number of verdicts by status, ``notes`` what the reader must know
    about the whole run (a fallback, nothing to judge a number by). ``files`` are the files of a failed job that were
    read; empty: the report is not about one. ``pages`` holds, by id, the documentation of each check that found
    something. ``standing`` and ``classes`` describe a job that was examined while it ran. ``judged`` is None if nothing
    was measured. ``taken`` is, by node, when its capture was taken, and is empty if machines were examined directly.
    ``outcome`` is what happened to a job that is over, ``answers`` what explains it or would, and ``ended_well`` the
    lines that report an end. If no line reports a failure or an end, ``last_seen`` is where its ranks or logs end, and
    ``stands`` what that means for a hung job.
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
    scope: Scope = Scope()
    areas: tuple[Area, ...] = ()
    checks: tuple[Verdict, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    judged: Judged | None = None
    predicted: AttainableRate | None = None
    taken: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    coverage: dict[str, int] = field(default_factory=dict)
    suppressed: tuple[Suppression, ...] = ()
    environment: dict[str, NodeEnvironment] = field(default_factory=dict)
    topology: dict[str, NodeTopology] = field(default_factory=dict)
    choices: dict[str, Choices] = field(default_factory=dict)
    first_call: FirstCall | None = None
    pairs: tuple[PairRow, ...] = ()
    localisation: Localisation | None = None
    nic_traffic: tuple[OperationTraffic, ...] = ()
    rails: tuple[RailWay, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    ladder: tuple[LadderRow, ...] = ()
    skipped_rows: tuple[SkippedRow, ...] = ()
    notes: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None
    explained: dict[str, CheckNote] = field(default_factory=dict)
    excerpts: tuple[Excerpt, ...] = ()
    files: tuple[str, ...] = ()
    outcome: JobOutcome = ""
    answers: tuple[Answer, ...] = ()
    ended_well: tuple[Evidence, ...] = ()
    last_seen: tuple[LastSeen, ...] = ()
    stands: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    timeline: tuple[Moment, ...] = ()
    ranks: tuple[RankState, ...] = ()
    not_understood: tuple[NotUnderstood, ...] = ()
    standing: JobVerdict | None = None
    classes: tuple[RankClass, ...] = ()

    def findings(self) -> tuple[NamedFinding, ...]:
        """Return the findings of all checks, each with its check and node, in the order of the checks."""
        return tuple(
            NamedFinding(**structs.asdict(each), check=check.id, node=check.node or "")
            for check in self.checks
            for each in check.findings
        )

    def failures(self) -> tuple[NamedFinding, ...]:
        """Return the failing findings, in the order of the checks."""
        return tuple(each for each in self.findings() if each.severity is Severity.FAIL)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        failures = len(self.failures())
        return f"<Report of {self.command[:60]!r}: {self.status}, {failures} failures, exit {self.exit_code}>"


def placed(report: Report, source: str) -> float:
    """Return the time of `report` for ordering, in seconds since 1970: its start, or its last capture's.

    `source`: its file. Raises UsageError if it cannot be ordered among others.
    """
    if report.files:
        raise UsageError(
            f"{source}: a report of `explain` has no node to add; add reports of machines and measurements"
        )
    try:
        began = max(report.taken.values(), default=report.started)
        started = began.removesuffix("Z") + ("+00:00" if began.endswith("Z") else "")
        time = datetime.fromisoformat(started)
        return time.replace(tzinfo=time.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        shown = printable(report.started[:40])
        raise UsageError(f"{source}: its start, {shown!r}, is not a time, so it cannot be placed in a series") from None


def looked_at(report: Report) -> Iterator[tuple[str, str]]:
    """Yield (check id, node) for everything it judged; a comparison covers every node of the report."""
    for verdict in report.checks:
        if verdict.status in (Status.PASS, Status.WARN, Status.FAIL):
            yield from ((verdict.id, node) for node in own_node(verdict) or [node.name for node in report.nodes])


def when(time_s: float) -> str:
    """Format a time as ``2026-11-19 04:10``, in UTC."""
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


def digest(text: str) -> str:
    """Return a unique identifier of the report in `text` that does not depend on its JSON layout."""
    import hashlib  # of a report that is kept or given twice

    found = hashlib.sha256()
    for piece in _sort_keys(text.strip().encode(errors="surrogatepass")):
        found.update(piece)
    return found.hexdigest()


_PIECE = 1 << 16


def _sort_keys(text: bytes | msgspec.Raw) -> Iterator[bytes]:
    """Yield JSON with its keys sorted, a large one member by member, so that it is never decoded whole."""
    start = bytes(memoryview(text)[:1])
    if memoryview(text).nbytes <= _PIECE or start not in (b"{", b"["):
        yield msgspec.json.encode(msgspec.json.decode(text), order="sorted")
        return
    yield start
    if start == b"{":
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        for at, key in enumerate(sorted(members)):
            yield b"," * bool(at) + msgspec.json.encode(key) + b":"
            yield from _sort_keys(members[key])
    else:
        for at, each in enumerate(msgspec.json.decode(text, type=list[msgspec.Raw])):
            yield b"," * bool(at)
            yield from _sort_keys(each)
    yield b"}" if start == b"{" else b"]"
