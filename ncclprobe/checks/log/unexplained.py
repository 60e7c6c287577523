"""What no other check explains."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause
from ncclprobe.errors import Unlearned
from ncclprobe.facts.files.job_log import Explained, JobLog, LogEvent
from ncclprobe.model.findings import Finding, seen, warn
from ncclprobe.units import whole_words

ENDINGS = ("EXCEPTION", "ROOT CAUSE", "FAILURE", "FATAL")
"""Levels of lines after which a process does not go on."""


@cause(
    bad=lambda: [(_log(LogEvent(0, 1, "ValueError: x", level="EXCEPTION")), Explained(("oom",)))],
    good=lambda: [(_log(LogEvent(0, 1, "loss 3.1")), Explained())],
    required=True,
)
def unexplained(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A failure has no named cause.

    Right: every failure in the logs has a named cause, or there is none.
    Why: a log may show only what followed: a return code, a timeout, a connection that a peer closed. The cause is then
    in another rank's log, in the kernel's, or was not logged.
    Fix: collect what is missing as the report says, and explain all of it together.
    """
    left = [each for each in log.events if each.level in ENDINGS and (each.stream, each.line) not in explained.lines]
    if not explained.codes and (left or explained.open):
        raise Unlearned(_why(log, left, explained))
    for event in left[:1]:
        evidence = seen(log.streams[event.stream].name, event.text, event.line)
        text = f"{len(left)} lines that end a process are of no known form"
        yield warn(log.where(event), text, evidence=evidence, action="none")


def _why(log: JobLog, left: list[LogEvent], explained: Explained) -> str:
    if explained.open:
        return f"the logs show what followed from a failure, and no line says why: {', '.join(explained.open)}"
    first = left[0]
    where, text = f"{log.streams[first.stream].name}:{first.line}", whole_words(first.text, 200)
    return f"{where} says of a failure what no check knows: {text}"


def _log(event: LogEvent) -> JobLog:
    from ncclprobe.facts.files.job_log import LogStream

    return JobLog((LogStream("a.log", 1),), (event,))
