"""Evidence for and against: whether a job ended well, and whether a line that sounds like a failure ended anything.

A program that catches an error goes on making steps; one that prints data prints what looks like errors. What a
launcher or a watchdog writes ends a process. Standard output that is written in blocks stands after an exception that
was earlier: so steps count only where some stand before it too; a block that ends there would cut a line.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from ncclprobe.facts.files import messages
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.log_ranks import of_launcher
from ncclprobe.model.causes import AnswerForm, Cause, Consequence
from ncclprobe.model.findings import Evidence, Severity

_ENDINGS = ("EXCEPTION", "FATAL", "ROOT CAUSE", "FAILURE")
_OTHERS_STEPS = 2
"""Steps that other ranks of one log may still make after one has failed."""
_LAUNCHERS = (
    "srun: error",
    "ChildFailedError",
    "exited with code ",
    "exit code: ",
    "CANCELLED",
    "oom-kill",
    "OOMKilled",
)


def lived_on(log: JobLog, event: LogEvent) -> bool:
    """Return whether the process that wrote a line certainly went on: it made steps afterwards, or came to its end."""
    stream = log.streams[event.stream]
    own = log.ranks.get(event.rank) if event.rank is not None else None
    if own and own.step_line and own.stream == event.stream:
        step, line, more = own.step, own.step_line, 0
    else:
        step, line, more = stream.step, stream.step_line, 0 if stream.rank is not None else _OTHERS_STEPS
    went_on = event.step is not None and step is not None and step > event.step + more and line > event.line
    if event.level in _ENDINGS[1:] or of_launcher(event) or (event.level == "ERROR" and ".cpp:" in event.place):
        return False
    finished = stream.finished is not None and stream.finished.line > event.line
    return went_on or (finished and event.level not in _ENDINGS and _is_talk(event))


def _is_talk(event: LogEvent) -> bool:
    """Return whether a program itself wrote the line, and neither a library of the job nor a launcher."""
    library = bool(event.host and event.pid) or ".cpp:" in event.place or ".cc:" in event.place
    return not library and not any(text in event.text for text in _LAUNCHERS)


def ended_well(log: JobLog, failing: Collection[tuple[int, int]]) -> tuple[Evidence, ...]:
    """Return the lines that say that the job came to its end, if no line after which none goes on says otherwise.

    `failing`: the lines that speak of a failure.
    """
    said = [stream.finished for stream in log.streams if stream.finished]
    if not said or any(_ends(log, event, failing) for event in log.events):
        return ()
    return tuple(Evidence(log.streams[each.stream].name, each.line, each.text) for each in said[:4])


def _ends(log: JobLog, event: LogEvent, failing: Collection[tuple[int, int]]) -> bool:
    speaks = event.level in _ENDINGS or (event.stream, event.line) in failing
    return (speaks or of_launcher(event)) and not lived_on(log, event)


_BEGINS = re.compile(
    r"terminate called|Aborted\b|Killed\b|FATAL\b|[Ff]atal error\b|panic: |Segmentation fault"
    r"|(?:srun|slurmstepd|mpirun|mpiexec|prterun|orted|prted|horovodrun|deepspeed|kubectl): {0,4}(?:error|fatal)\b"
)
_HOLDS = re.compile(
    r"\(core dumped\)|\bkilled by signal\b|\b(?:exit(?:ed|s)?|return(?:ed|s)?|terminated|ended|failed)\b"
    r".{0,24}?\b(?:code|status|signal)\b[ :=]{0,8}(?!0\b|[23]\d\d\b)-?\d{1,3}\b",
    re.IGNORECASE,
)
"""Lines that by their form end a process, whatever program wrote them: what they begin with, and what they hold."""
_NEAR_THE_END = 60


def _by_form(log: JobLog, event: LogEvent) -> bool:
    """Return whether a line near the end of its log says by its form that a process ended badly."""
    left = log.streams[event.stream].nlines - event.line
    if left >= _NEAR_THE_END or event.level in ("INFO", "DEBUG", "TRACE") or lived_on(log, event):
        return False
    return bool(_BEGINS.match(event.text) or _HOLDS.search(event.text[:512]))


def likeliest(
    log: JobLog,
    known: Collection[tuple[int, int]],
    harmless: Callable[[LogEvent], bool],
    *,
    any_level: bool,
    launcher: bool,
) -> LogEvent | None:
    """Return the line that most likely says why, of those that no check knows; None: none ends a process.

    `any_level`: the job is known to have failed, so that an error or a warning will do. `launcher`: what a launcher
    says of a rank that ended will do as well.
    """
    levels = [("EXCEPTION", "FATAL"), ("ERROR",), ("WARN",)]
    unknown = [each for each in log.events if (each.stream, each.line) not in known]
    for some in levels if any_level else levels[:1]:
        found = [e for e in unknown if e.level in some and (any_level or not lived_on(log, e)) and not harmless(e)]
        if launcher and not found:
            found = [e for e in unknown if (of_launcher(e) or _by_form(log, e)) and not harmless(e)]
        if found:
            return min(found, key=lambda each: (each.time_s is None, each.time_s or 0.0, each.stream, each.line))
    return None


def events_at(log: JobLog, lines: Collection[tuple[int, int]]) -> Iterator[LogEvent]:
    """Yield the events that stand in `lines`: index of the log, and number."""
    return (event for event in log.events if (event.stream, event.line) in lines) if lines else iter(())


def with_the_unknown_line(log: JobLog, found: Sequence[Cause], line: LogEvent | None) -> tuple[Cause, ...]:
    """Return the causes, and instead of those that are not known the line that most likely says why."""
    if line is None or any(cause.severity is Severity.FAIL and cause.confidence != "unknown" for cause in found):
        return tuple(found)
    followed = [cause for cause in found if cause.confidence == "unknown"]
    consequences = [
        Consequence(cause.id, cause.message, cause.ranks, cause.nodes, cause.evidence[:1]) for cause in followed
    ]
    likely = Cause(
        code="unknown",
        id="log.unexplained",
        confidence="unknown",
        message=f"this line most likely says why; ncclprobe does not know its meaning{_origin(line)}",
        ranks=() if line.rank is None else (line.rank,),
        nodes=(line.host,) if line.host else (),
        evidence=(Evidence(log.streams[line.stream].name, line.line, line.text),),
        consequences=(*consequences, *(each for cause in followed for each in cause.consequences)),
    )
    return (likely, *(cause for cause in found if cause.confidence != "unknown"))


def _origin(line: LogEvent) -> str:
    """Return who says a line, as far as the table of messages or NCCL's head of it tells."""
    if found := messages.said(line.text, line.level):
        return f": {messages.origin(found)}"
    return f": NCCL says it, in {line.place}" if line.host and line.pid and line.place else ""


def outcome(found: Sequence[Cause], well: Sequence[Evidence]) -> AnswerForm:
    """Return which of four forms the answer has; empty: no line speaks of a failure, and none of an end."""
    if not found:
        return "ended-well" if well else ""
    return "unknown-line" if found[0].confidence == "unknown" else found[0].confidence
