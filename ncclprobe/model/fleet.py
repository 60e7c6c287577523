"""The nouns of a fleet's history: what one report tells of one node, a series of numbers, how a node stands.

Times are seconds since 1970. Shares are from 0 to 1.
"""

from typing import Literal

from ncclprobe.model.findings import Blame, Severity, Weight
from ncclprobe.model.values import Struct, field

DriftState = Literal["ok", "watch", "degraded"]
NodeState = Literal["failing", "degraded", "flapping", "watch", "unknown", "ok"]
STATES: tuple[NodeState, ...] = ("failing", "degraded", "flapping", "watch", "unknown", "ok")
"""Worst first. ``unknown``: the newest report could not tell, or it is old."""


PAIRS, RAILS = ("pairs of", "rails")
"""How the names of numbers between nodes begin."""


class Number(Struct, frozen=True):
    """Which number of a node it is: more is better. `part` is what it is of (``rail 3 (mlx5_3:1)``), empty: of all.

    `how` it was measured, with the type of machine, the software and its settings: all of it tells series apart.
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

    `siblings`: the median of the other nodes at that time, and by which share they differ (`spread`, a standard
    deviation); 0: too few were known. `partners`: the nodes that it was measured with, where these are so few that one
    of them may be the slow one.
    """

    time_s: float
    value: float
    noise: float = 0.0
    siblings: float = 0.0
    spread: float = 0.0
    partners: tuple[str, ...] = ()


class Fault(Struct, frozen=True):
    """One finding on a node that warns or fails. `weight`: what it makes of the node (model/findings.py)."""

    check: str
    subject: str
    severity: Severity
    blame: Blame
    weight: Weight
    message: str


class Told(Struct, frozen=True):
    """What one report tells of one node.

    `looked`: the checks that had something to judge there. `unknown`: something required could not be looked at.
    `machine`: what may change on a node and be the cause of a change (driver, firmware, kernel …). `counters`: of one
    `boot`, what its links and GPUs count that should not happen.
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


class Sum(Struct, frozen=True, omit_defaults=True):
    """A CUSUM: its `height`, and `tests` numbers since `since_s`, when it left 0; `lost`: by which share, as the mean
    of their logarithms, once it is degraded of the newest of them, and the `most` since then. `good_s`: the newest
    number at which it was 0. `odds`: of the newest numbers for what was usual before. `spells`: each time that the node
    was degraded and is no more, from when to when, and what it lost. `partners`: some of those of its numbers.
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
    """Where the test of one series stands (fleet/drift.py).

    What is usual: `mean` of the logarithms of `count` numbers, and the sum of their `squares` around it; those in
    `waiting` may become part of it. `recent`: the newest numbers. Sums: against the `own` past, and against
    `siblings`, which have changed by `shared` (logarithm) since they were at `siblings_first`; as far below them as
    was `accepted` the node is as usual. `recent` begins anew on another machine. `first`: when the first numbers were
    measured, and their logarithms, as long as a loss may be among them.
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
    """One series of a node, and where its test stands. `changed`: in words, what of the machine was another one at the
    last good test than at the first bad one.
    """

    number: Number
    drift: Drift
    first_s: float
    last_s: float
    changed: tuple[str, ...] = ()


class FaultCourse(Struct, frozen=True, omit_defaults=True):
    """What became of one fault of a node: whether it is `there`, since when, in how many `tests`, when it `came`.

    `fault`: as it was told last.
    """

    fault: Fault
    there: bool
    since_s: float
    tests: int = 1
    came: tuple[float, ...] = ()


class NodeCourse(Struct, frozen=True, omit_defaults=True):
    """What all reports on a node told of it, but for its numbers: faults by check and subject."""

    tests: int = 0
    last_s: float = 0.0
    unknown: bool = False
    faults: dict[str, FaultCourse] = field(default_factory=dict)
    boot: str = ""
    counters: dict[str, int] = field(default_factory=dict)


class History(Struct, frozen=True):
    """What a store keeps of a node, the report at hand counted: its `course`, and the newest series of each number."""

    course: NodeCourse = NodeCourse()
    series: tuple[Series, ...] = ()


class NodeStanding(Struct, frozen=True):
    """How a node stands: its state, since when (null: not known, or nothing is wrong), and why, in one line."""

    name: str
    state: NodeState
    since_s: float | None
    evidence: str
    tests: int
    last_s: float


class Added(Struct, frozen=True):
    """How a report came into the store: when, by whom (``user@host``), from which file, and which command wrote it."""

    added_s: float
    added_by: str
    source: str
    command: str


class NodeEvent(Struct, frozen=True):
    """What changed on a node, in words."""

    time_s: float
    what: str


class NodeHistory(Struct, frozen=True):
    """What is told of one node: since when it is tested; what changed, oldest first; the newest series of each number;
    how the newest reports were added, the newest first.
    """

    standing: NodeStanding
    first_s: float
    events: tuple[NodeEvent, ...]
    series: tuple[Series, ...]
    added: tuple[Added, ...]


class Day(Struct, frozen=True):
    """What reports of one day said of a node: the worst state, why, from when and in which file the newest is."""

    state: NodeState
    words: tuple[str, ...]
    time_s: float
    source: str


class NodeDays(Struct, frozen=True):
    """How a node stands, and each day on which it was tested, by the number of days since 1970."""

    standing: NodeStanding
    days: dict[int, Day]


class SharedLoss(Struct, frozen=True):
    """What `nodes`, all or most of the `of` that were measured, have lost of a number since a `day` since 1970.

    `changed`: in words, what of most of their machines was another one before.
    """

    called: str
    unit: str
    nodes: tuple[str, ...]
    of: int
    before: float
    after: float
    day: int
    changed: tuple[str, ...] = ()
