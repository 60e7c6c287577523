"""Types of a fleet's history: one report's facts on one node, a series of numbers, the state of a node.

Times are seconds since 1970. Shares are from 0 to 1.
"""

from typing import Literal

from ncclprobe.model.findings import Blame, Severity, Weight
from ncclprobe.model.values import Struct, field

DriftState = Literal["ok", "watch", "degraded"]
NodeState = Literal["failing", "degraded", "flapping", "watch", "unknown", "ok"]
STATES: tuple[NodeState, ...] = ("failing", "degraded", "flapping", "watch", "unknown", "ok")
"""Worst first. ``unknown``: the newest report was inconclusive or is old."""


PAIRS, RAILS = ("pairs of", "rails")
"""Prefixes of the names of numbers between nodes."""


class Number(Struct, frozen=True):
    """Identifies a number of a node; more is better. `part` is the measured part (``rail 3 (mlx5_3:1)``); empty: the
    node.

    `how` includes the way of measuring, the machine type, the software and its settings: each distinguishes series.
    """

    part: str
    name: str
    unit: str
    how: str

    @property
    def called(self) -> str:
        """Return ``all_reduce 1 GiB``, ``rail 3 (mlx5_3:1) out``."""
        return f"{self.part} {self.name}".strip()


class Reading(Struct, frozen=True):
    """One value of a number, and its own `noise`: a standard deviation, as a share.

    `siblings`: the median of the other nodes at that time, and their relative standard deviation `spread`; 0: too few
    were known. `partners`: the nodes that it was measured with, if so few that one of them may be the slow one.
    """

    time_s: float
    value: float
    noise: float = 0.0
    siblings: float = 0.0
    spread: float = 0.0
    partners: tuple[str, ...] = ()


class Fault(Struct, frozen=True):
    """One finding on a node that warns or fails. `weight`: what it implies for the node (model/findings.py)."""

    check: str
    subject: str
    severity: Severity
    blame: Blame
    weight: Weight
    message: str


class NodeReport(Struct, frozen=True):
    """One report's facts on one node.

    `looked`: the checks that had something to judge there. `unknown`: something required could not be examined.
    `machine`: parts of a node whose change may change numbers (driver, firmware, kernel …). `counters`: errors counted
    by its links and GPUs since `boot`. `gpus`: a digest of its GPUs' UUIDs.
    """

    node: str
    time_s: float
    faults: tuple[Fault, ...] = ()
    looked: tuple[str, ...] = ()
    unknown: bool = False
    numbers: dict[Number, Reading] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    boot: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    gpus: str = ""


class Sum(Struct, frozen=True, omit_defaults=True):
    """A CUSUM: its `height`, and the `tests` since `since_s`, when it left 0.

    `lost`: the lost share, as the mean of the logarithms; once degraded, that of the newest numbers. `most`: the
    largest loss since then. `good_s`: the newest number at which it was 0. `odds`: of the newest numbers under the
    usual distribution. `spells`: each past period of degradation: start, end, loss. `partners`: some of those of its
    numbers.
    """

    state: DriftState = "ok"
    height: float = 0.0
    tests: int = 0
    lost: float = 0.0
    most: float = 0.0
    since_s: float | None = None
    good_s: float | None = None
    odds: float = 0.0
    spells: tuple[tuple[float, float, float], ...] = ()
    partners: tuple[str, ...] = ()


class Drift(Struct, frozen=True, omit_defaults=True):
    """The state of the test of one series (fleet/drift.py).

    The usual rate: `mean` of the logarithms of `count` numbers, and the sum of their `squares` around it; those in
    `waiting` may still join it. `recent`: the newest numbers. Sums: against the `own` past, and against `siblings`,
    which have changed by `shared` (logarithm) since they were at `siblings_first`; the node is as usual if it is below
    them by as much as was `accepted`. `recent` starts again on another machine. `first`: the time and logarithm of the
    first numbers, as long as a loss may be among them.
    """

    tests: int = 0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    waiting: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    own: Sum = Sum()
    siblings: Sum = Sum()
    siblings_first: float | None = None
    shared: float = 0.0
    accepted: float = 0.0
    first: tuple[tuple[float, float], ...] = ()


class Series(Struct, frozen=True):
    """One series of a node, and the state of its test.

    `changed`: the parts of the machine, in words, that differ between the last good and the first bad test.
    """

    number: Number
    drift: Drift
    first_s: float
    last_s: float
    changed: tuple[str, ...] = ()


class FaultCourse(Struct, frozen=True, omit_defaults=True):
    """The history of one fault of a node: whether it is `there`, since when, in how many `tests`, and when it `came`.

    `fault`: as last reported.
    """

    fault: Fault
    there: bool
    since_s: float
    tests: int = 1
    came: tuple[float, ...] = ()


class NodeCourse(Struct, frozen=True, omit_defaults=True):
    """All reports on a node without their numbers: faults by check and subject."""

    tests: int = 0
    last_s: float = 0.0
    unknown: bool = False
    faults: dict[str, FaultCourse] = field(default_factory=dict)
    boot: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    gpus: str = ""


class History(Struct, frozen=True):
    """What a store keeps about a node, including the current report: its `course`, and the newest series of each
    number.
    """

    course: NodeCourse = NodeCourse()
    series: tuple[Series, ...] = ()


class NodeStanding(Struct, frozen=True):
    """The state of a node, since when (None: unknown, or nothing is wrong), and why, in one line."""

    name: str
    state: NodeState
    since_s: float | None
    evidence: str
    tests: int
    last_s: float


class Added(Struct, frozen=True):
    """How a report was added: when, by whom (``user@host``), from which file, and which command wrote it."""

    added_s: float
    added_by: str
    source: str
    command: str


class NodeEvent(Struct, frozen=True):
    """A change on a node, in words."""

    time_s: float
    what: str


class NodeHistory(Struct, frozen=True):
    """The page of one node.

    The first test; the changes, oldest first; the newest series of each number; how the newest reports were added,
    newest first.
    """

    standing: NodeStanding
    first_s: float
    events: tuple[NodeEvent, ...]
    series: tuple[Series, ...]
    added: tuple[Added, ...]


class Day(Struct, frozen=True):
    """One day's reports on a node: the worst state and its reasons; time and file of the newest."""

    state: NodeState
    words: tuple[str, ...]
    time_s: float
    source: str


class NodeDays(Struct, frozen=True):
    """The state of a node, and each day on which it was tested, keyed by days since 1970."""

    standing: NodeStanding
    days: dict[int, Day]


class SharedLoss(Struct, frozen=True):
    """A loss that `nodes`, all or most of the `of` measured ones, have had since a `day` (days since 1970).

    `changed`: what changed on most of their machines, in words.
    """

    called: str
    unit: str
    nodes: tuple[str, ...]
    of: int
    before: float
    after: float
    day: int
    changed: tuple[str, ...] = ()
