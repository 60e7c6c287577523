"""What is said of a job that failed: its causes and what followed from them, its ranks, what was not understood.

How a running job stands: its ranks in classes, and the answer in one line.
"""

from typing import Literal

from ncclprobe.model.findings import Action, Blame, Evidence, Severity
from ncclprobe.model.values import Struct

ClassName = Literal[
    "not arrived",
    "stuck outside",
    "stuck inside",
    "desync",
    "dead or gone",
    "slow, not stuck",
    "waiting",
    "working",
    "cannot tell",
]
"""Has not come to the store where ranks meet in init; never came to the call that others wait in; all came and none
goes on; made other calls; has no process any more; late and at work; waits for others; at work; not known."""


class RankClass(Struct, frozen=True):
    """Ranks of one class. `doing` is what they do, in words, such as ``sleeps in nanosleep, train.py:212 in step``.

    `ranks` are numbers of the job; a process whose rank is not known is in `processes` alone, as NODE:PID.
    """

    name: ClassName
    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    doing: str = ""
    evidence: tuple[Evidence, ...] = ()


class Standing(Struct, frozen=True):
    """The answer: ``STUCK``, ``SLOW``, ``WORKING`` or ``CANNOT TELL``, and what stands where in one line.

    `looked_at` is in ISO 8601, `looked_s` how long looking took, `prepare` what would have told more. `calls` are the
    collectives that all ranks together have called so far, as torch has counted them. `sources`: how many ranks told
    of themselves.
    """

    word: str
    message: str
    looked_at: str = ""
    looked_s: float = 0.0
    prepare: str = ""
    calls: int = 0
    sources: str = ""


CauseConfidence = Literal["named", "narrowed", "unknown"]
"""A line says it; it is one of two or three; something failed and no line says why."""
JobOutcome = Literal["", "ended-well", "failed", "stopped", "unknown"]
"""What happened to a job that is over: somebody ended it who is outside (stopped); no line says (unknown). Empty: the
report is not about one.
"""
When = Literal["failed", "hung", "slow"]


class Answer(Struct, frozen=True):
    """What would explain that a job failed, hung or was slow. `known`: it did, by its logs or as the user says.

    `kind`: a line names the cause; it is one of a few; a line is shown that most likely says it; nothing does.
    """

    when: When
    kind: Literal["named", "narrowed", "line", "none"]
    known: bool = False
    code: str = ""
    message: str = ""
    evidence: tuple[Evidence, ...] = ()


class Consequence(Struct, frozen=True):
    """What a cause made other ranks, or other layers, say. `ranks` and `nodes` said it; `count` times in all."""

    id: str
    message: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    count: int = 1


class Suspect(Struct, frozen=True):
    """A rank that does not say why, where others do: the last line that it wrote, in which file, and when.

    `time` is seconds since 1970 by its host's clock; `silent_s`: how long before the first complaint of another rank
    that was. `step`: the last that its log names, and `furthest_step` the last of any rank. Empty or None: not known;
    without a `source` no log of it was given, or it wrote nothing.
    """

    rank: int
    host: str = ""
    last_line: str = ""
    time: float | None = None
    source: str = ""
    line: int | None = None
    silent_s: float | None = None
    step: int | None = None
    furthest_step: int | None = None


class Cause(Struct, frozen=True):
    """Why a job failed, or (severity WARN) was slow, or (NOTE) why it failed if it did. `code` is of the list in
    :mod:`ncclprobe.checks.log`, ``unknown`` where no line says it.

    `id` is the check that found it, `could_be` the codes that are left where it is narrowed. `ranks` and `nodes` are
    those on which it happened. `doctor` is the check that finds it before the next launch; empty: none does. `checked`:
    what that check said in the reports and captures that were given, in words; empty: there were none. `collect`:
    where the cause is not named, what would name it, as commands and settings. `suspects`: ranks that say nothing where
    the others complain.
    """

    code: str
    id: str
    confidence: CauseConfidence
    message: str
    severity: Severity = Severity.FAIL
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    blame: Blame = "unknown"
    action: Action = "none"
    remedy: str = ""
    why: str = ""
    could_be: tuple[str, ...] = ()
    doctor: str = ""
    checked: str = ""
    consequences: tuple[Consequence, ...] = ()
    collect: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()


class RankState(Struct, frozen=True):
    """What one rank's log says last. `state` is in words: ``ended``, ``failed``, ``silent since …``, ``no log``."""

    rank: int
    host: str = ""
    pid: int | None = None
    last_event: Evidence | None = None
    last_collective: str = ""
    state: str = ""


class LastSeen(Struct, frozen=True):
    """Where some writers of the logs end with one line: the `ranks`, else the `sources`, the step, and that line.

    `time_s` is seconds since 1970 by the writer's clock; None: not known.
    """

    last: Evidence
    ranks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    step: int | None = None
    time_s: float | None = None


class Moment(Struct, frozen=True):
    """One row of the timeline. `time_s` is seconds since 1970 by the clock of `host`; None: only the order is known."""

    time_s: float | None
    rank: int | None
    host: str
    text: str
    evidence: Evidence
    id: str = ""


class NotUnderstood(Struct, frozen=True):
    """Lines of one file that speak of a failure and that no check knows, or a file that is of no known kind."""

    source: str
    count: int
    line: int | None = None
    text: str = ""
