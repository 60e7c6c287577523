"""What is judged: findings, verdicts, and the exit code that a gate reads."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal

Blame = Literal["node", "link", "fabric", "image", "job", "unknown"]


Action = Literal["fix-job", "fix-image", "retest", "repair", "none"]


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
class Suppression:
    """A finding that was asked not to be reported, and why."""

    id: str
    subject: str
    reason: str


def fail(subject: str, message: str, **details: Any) -> Finding:
    """A finding that stops the job: fields of :class:`Finding` by name."""
    return Finding(Severity.FAIL, subject, message, **details)


def warn(subject: str, message: str, **details: Any) -> Finding:
    """A finding that costs performance or safety: fields of :class:`Finding` by name."""
    return Finding(Severity.WARN, subject, message, **details)


def note(subject: str, message: str, **details: Any) -> Finding:
    """A finding worth knowing that changes no verdict: fields of :class:`Finding` by name."""
    return Finding(Severity.NOTE, subject, message, **details)
