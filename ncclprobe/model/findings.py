"""Results of judging: findings, verdicts, and the exit code for a gate."""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, Literal

from ncclprobe.model.values import Result, Struct, field

Blame = Literal["node", "link", "fabric", "image", "job", "unknown"]


Action = Literal["fix-job", "fix-image", "retest", "repair", "restart", "none"]


Weight = Literal["bad", "unsure", ""]
"""What a finding implies for the node that it names."""


class Severity(str, Enum):
    """How bad a finding is. Only FAIL stops a job; NOTE never changes a status."""

    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"

    def __str__(self) -> str:
        return self.value


class Status(str, Enum):
    """The result of a check. UNKNOWN is not PASS: nothing was examined."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


class ExitCode(IntEnum):
    """What a gate reads from a run, whatever its output format.

    BROKEN is never a verdict: a broken interpreter, a missing package or a bug of ours must not look like a broken
    machine. INCONCLUSIVE: nothing failed, but something required could not be examined, or no number was judged.
    """

    OK = 0
    BROKEN = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAIL = 4


class Evidence(Struct, frozen=True):
    """The evidence of a finding. `source`: the path, command, call, variable or measurement that it comes from.

    `line`: line of a file, from 1. `text`: the text there; empty if the source is enough.
    """

    source: str
    line: int | None = None
    text: str = ""

    def __str__(self) -> str:
        """Return ``/etc/nccl.conf:3: NCCL_IB_HCA=mlx5``, as compilers and grep write it."""
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.text}" if self.text else place


class Certainty(Struct, frozen=True):
    """How certain a finding is. `level`: ``low`` was seen once and puts no node in ``bad``. `how`: what
    confirmed it.
    """

    level: Literal["high", "medium", "low"]
    how: str


READ = Certainty("high", "read from this machine")
ONCE = Certainty("low", "seen once")


class Related(Struct, frozen=True):
    """Another finding of the same report: the id of its check, and its subject."""

    id: str
    subject: str


class Occurrence(Struct, frozen=True):
    """Writer, subject and time of a log line, which order the findings of a job's logs.

    `ranks` and `hosts` are of the process that wrote the line, `peers` and `peer_hosts` are those that the line names;
    empty: unknown. `comm` is the name of the communicator or process group. `stream` counts the logs in the order
    given, `line` counts within it from 1: order is certain only within one stream. `time_s` is by the clock of the
    writer's host, seconds since 1970; None: the line has no time. `codes`: the two or three causes that the line
    allows. `ordered` is False if the line reports something earlier, as a launcher's summary does. `stream` is negative
    for facts that are not from a log.
    """

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    peer_hosts: tuple[str, ...] = ()
    comm: str = ""
    stream: int = 0
    line: int = 0
    time_s: float | None = None
    codes: tuple[str, ...] = ()
    ordered: bool = True


class Finding(Struct, frozen=True):
    """One problem: its subject, its evidence, whose fault it is and what to do about it.

    ``subject`` is spelled as NCCL spells it (``mlx5_0:1``, ``GPU3``, ``rank 5``, ``NCCL_IB_HCA``). An empty ``remedy``
    is filled in from the check's own ``Fix:``. ``related``: findings that may be its cause; without a remedy it is
    their consequence. ``loss``: the share of a rate that is lost, 0 to 1, and ``lost_GBps`` the lost rate; None: no
    rate was compared. ``occurrence``: the writer and time of a log line. ``headline``: the finding in a sentence with
    its values; empty: subject plus the message's first sentence.
    """

    severity: Severity
    subject: str
    message: str
    blame: Blame = "unknown"
    action: Action = "none"
    confidence: Certainty = READ
    evidence: tuple[Evidence, ...] = ()
    remedy: str = field(default="", name="fix")
    nodes: tuple[str, ...] = ()
    related: tuple[Related, ...] = ()
    loss: float | None = None
    lost_GBps: float | None = None
    occurrence: Occurrence | None = None
    headline: str = ""

    @property
    def line(self) -> str:
        """Return subject and message in one line, which names the subject once."""
        return self.message if self.message.startswith(f"{self.subject} ") else f"{self.subject}: {self.message}"

    @property
    def seen(self) -> str:
        """Return the evidence in one line; empty if there is none."""
        return "; ".join(map(str, self.evidence))

    @property
    def see_also(self) -> str:
        """Return the related findings in one line; empty if there are none."""
        return "; ".join(f"{each.id} {each.subject}" for each in self.related)


class NamedFinding(Finding, Result, frozen=True):
    """A finding of a report with the `check` that made it and the `node` it concerns; empty: it compares nodes."""

    check: str = ""
    node: str = ""

    def __repr__(self) -> str:
        """Return a one-line summary."""
        place = f" on {self.node}" if self.node else ""
        return f"<Finding {self.severity} {self.check}{place}: {self.subject} {self.message[:80]}>"


WORTH_SAYING = 0.02
"""A smaller loss is indistinguishable from noise."""
_LOSSES = ((0.5, Severity.FAIL), (0.1, Severity.WARN))


def severity_of(lost: float) -> Severity:
    """Return the severity of losing this share of a machine's bandwidth."""
    return next((severity for share, severity in _LOSSES if lost >= share), Severity.NOTE)


class Verdict(Struct, frozen=True):
    """The verdict of one check on one node (``node`` is None for a comparison between nodes).

    ``part``: a check with several questions has one verdict per part; empty: it has only one.
    """

    id: str
    node: str | None
    status: Status
    title: str
    why: str = ""
    required: bool = False
    findings: tuple[Finding, ...] = ()
    part: str = ""

    @property
    def key(self) -> str:
        """Return the key of the check, or check part, that gave this verdict."""
        return f"{self.id}/{self.part}" if self.part else self.id


OF_THE_RUN = "run."
"""Prefix of checks that judge measurements."""
TREND = "trend."
"""Prefix of checks that judge by a store of reports."""


def own_node(verdict: Verdict) -> tuple[str, ...]:
    """Return a verdict's node. A verdict on a measurement is listed under the first node but covers all."""
    return (verdict.node,) if verdict.node and not verdict.id.startswith(OF_THE_RUN) else ()


def nodes_of(verdict: Verdict, finding: Finding) -> tuple[str, ...]:
    """Return the nodes on which `finding` was found; empty: the whole run."""
    return finding.nodes or own_node(verdict)


def weight(finding: Finding) -> Weight:
    """Return what a finding implies for its node.

    A warning, and a fault of the job or the image, imply nothing. A finding that calls for a retest, or was seen once,
    is not settled.
    """
    if finding.severity is not Severity.FAIL or finding.blame in ("job", "image"):
        return ""
    settled = finding.action != "retest" and finding.confidence.level != "low"
    return "bad" if settled and finding.blame in ("node", "link") else "unsure"


class Suppression(Struct, frozen=True):
    """A finding that a site suppresses, and why."""

    id: str
    subject: str
    reason: str


UNSEEN = "not looked at: "
"""Prefix of the message on a subject that could not be examined although its siblings could."""
Sources = str | Evidence | Iterable[str | Evidence]
"""Evidence as checks give it; a string is a source without text."""


def seen(source: str, text: str = "", line: int | None = None) -> Evidence:
    """Return one piece of evidence: `text` in `source`, at `line`."""
    return Evidence(source, line, text)


def fail(subject: str, message: str, *, evidence: Sources = (), **details: Any) -> Finding:
    """Return a finding that stops the job; `details` are fields of :class:`Finding`."""
    return Finding(Severity.FAIL, subject, message, evidence=_as_tuple(evidence), **details)


def warn(subject: str, message: str, *, evidence: Sources = (), **details: Any) -> Finding:
    """Return a finding that costs performance or safety; `details` are fields of :class:`Finding`."""
    return Finding(Severity.WARN, subject, message, evidence=_as_tuple(evidence), **details)


NOTHING_TO_SET = "nothing can be set"
"""Prefix of an optional note's remedy; text output shows it only with -v."""


def note(subject: str, message: str, *, evidence: Sources = (), **details: Any) -> Finding:
    """Return a finding that changes no verdict; `details` are fields of :class:`Finding`."""
    return Finding(Severity.NOTE, subject, message, evidence=_as_tuple(evidence), **details)


def _as_tuple(given: Sources) -> tuple[Evidence, ...]:
    """Normalise `given` to a tuple, without empty sources."""
    each = (given,) if isinstance(given, str | Evidence) else given
    return tuple(one if isinstance(one, Evidence) else Evidence(one) for one in each if one)
