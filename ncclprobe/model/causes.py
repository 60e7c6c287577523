"""The explanation of a failed job: its causes, their consequences, its ranks, and lines that were not understood.

Also the state of a running job: its ranks in classes, and a one-line verdict.
"""

from typing import Literal

from ncclprobe.model.findings import Action, Blame, Evidence, Severity
from ncclprobe.model.values import Struct, field

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
"""Classes of ranks: has not joined the store in init; never made the call that others wait in; all ranks are in the
call and none makes progress; made other calls; its process is gone; late but working; waits for others; working;
unknown.
"""


class RankClass(Struct, frozen=True):
    """Ranks of one class. `doing` describes their activity: ``sleeps in nanosleep, train.py:212 in step``.

    `ranks` are numbers of the job; a process with an unknown rank is only in `processes`, as NODE:PID. `reason` is the
    kind of reason why they make no progress, such as ``data-loader``; empty: unknown, or they do.
    """

    name: ClassName
    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    doing: str = ""
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""


class JobVerdict(Struct, frozen=True):
    """The verdict ``STUCK``, ``SLOW``, ``WORKING`` or ``CANNOT TELL``, and one line on which ranks wait where.

    `looked_at` is in ISO 8601, `looked_s` the time that looking took, `prepare` the step that would have revealed more.
    `calls` are the collectives that all ranks together have called so far, as counted by torch. `sources`: how many
    ranks reported on themselves.
    """

    word: str
    message: str
    looked_at: str = ""
    looked_s: float = 0.0
    prepare: str = ""
    calls: int = 0
    sources: str = ""


CauseConfidence = Literal["named", "narrowed", "unknown"]
"""A line names the cause; it is one of two or three; something failed and no line names the reason."""
JobOutcome = Literal["", "ended-well", "failed", "stopped", "unknown"]
"""The outcome of a job that is over. Stopped: somebody outside ended it. Unknown: no line reports an end. Empty: the
report is not about a job.
"""
When = Literal["failed", "hung", "slow"]


class Answer(Struct, frozen=True):
    """The explanation if the job failed, hung or was slow. `known`: it did, by its logs or by the user's option.

    `kind`: a line names the cause; it is one of a few; the most likely line is shown; nothing was found.
    """

    when: When
    kind: Literal["named", "narrowed", "line", "none"]
    known: bool = False
    code: str = ""
    message: str = ""
    evidence: tuple[Evidence, ...] = ()


class Consequence(Struct, frozen=True):
    """A consequence of a cause on other ranks or layers. `ranks` and `nodes` logged it, `count` times in total."""

    id: str
    message: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    count: int = 1


class Suspect(Struct, frozen=True):
    """A rank that logs no reason although others do: its last line, its file and its time.

    `time` is seconds since 1970 by its host's clock. `silent_s`: how long before another rank's first complaint it
    wrote that line. `step`: the last one that its log names; `furthest_step`: the last of any rank. Empty or None:
    unknown; without a `source` its log was not given, or it wrote nothing.
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
    """Why a job failed, or (severity WARN) was slow, or (NOTE) why it failed if it did.

    `code` is in the list of :mod:`ncclprobe.checks.log`, or ``unknown`` if no line names the cause. `id` is the check
    that found it, `could_be` the remaining codes if it is narrowed down. `ranks` and `nodes` are where it happened.
    `doctor` is the check that finds it before the next launch; empty: none does. `checked`: that check's result in the
    given reports and captures, in words; empty: none were given. `collect`: commands and settings that would name a
    cause that is not yet named. `suspects`: ranks that log nothing although the others complain.
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
    remedy: str = field(default="", name="fix")
    why: str = ""
    could_be: tuple[str, ...] = ()
    doctor: str = ""
    checked: str = ""
    consequences: tuple[Consequence, ...] = ()
    collect: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()


class RankState(Struct, frozen=True):
    """The last event in one rank's log. `state` is in words: ``ended``, ``failed``, ``silent since …``, ``no log``."""

    rank: int
    host: str = ""
    pid: int | None = None
    last_event: Evidence | None = None
    last_collective: str = ""
    state: str = ""


class LastSeen(Struct, frozen=True):
    """A last line that several logs have in common: the `ranks`, otherwise the `sources`, the step, and the line.

    `time_s` is seconds since 1970 by the writer's clock; None: unknown.
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
    """Lines of one file that report a failure that no check knows, or a file of unknown kind."""

    source: str
    count: int
    line: int | None = None
    text: str = ""
