"""Weigh evidence for and against: whether a job ended well, and whether a line that sounds like a failure ended
anything.

A program that catches an error goes on making steps; one that prints data prints what looks like errors. A line of a
launcher or a watchdog means that a process ended. Standard output is written in blocks, so its steps may appear after
an exception that was earlier. After a traceback, steps therefore count only if some appear before it too; a block that
ends there would cut a line. Other complaints may precede the first step: many steps after one show that it ended
nothing.
"""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from ncclprobe.logs.job_log import ENDINGS, SUMMARY, TALK, JobLog, LogEvent, LogStream
from ncclprobe.logs.layers import layer_of
from ncclprobe.logs.ranks import is_launcher_line
from ncclprobe.logs.texts import ENDS, ERROR, WORDS, bar_of, begins_anew, form_of_failure
from ncclprobe.model.findings import Evidence
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import Same, replace

_WITHIN = 512
_GOES_ON_S = 300.0
_OTHERS_STEPS = 2
"""Steps that other ranks of one log may still make after one has failed."""
_SOME, _MANY = 2, 10
"""Steps that show that a job had begun to work, and that it went on: each is a line at least."""
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
    """Return whether the writer of a line certainly went on: it made steps afterwards, or reached its end."""
    stream = log.streams[event.stream]
    own = log.ranks.get(event.rank) if event.rank is not None else None
    if own and own.step_line and own.stream == event.stream:
        step, line, more = own.step, own.step_line, 0
    else:
        step, line, more = stream.step, stream.step_line, 0 if stream.rank is not None else _OTHERS_STEPS
    if event.step is None:
        many = step is not None and min(step, line - event.line) >= _MANY
        went_on = many and _may_stand_before_steps(event) and not _nothing_else_says_why(log, event, line)
        went_on = went_on and not _only_others_step(log, event)
    else:
        went_on = step is not None and step > event.step + more and line > event.line
    if event.level in TALK and _is_talk(event) and stream.nlines > event.line and layer_of(event).name != "cloud":
        return True
    if event.level in ENDINGS[1:] or is_launcher_line(event) or (event.level == "ERROR" and ".cpp:" in event.place):
        return False
    finished = stream.finished is not None and stream.finished.line > event.line
    return went_on or (finished and event.level not in ENDINGS and _is_talk(event))


def _may_stand_before_steps(event: LogEvent) -> bool:
    """Return whether steps after a line show that it ended nothing.

    This does not hold for the kernel's lines, which have any time, or for lines that state a setting or a choice, which
    may matter later. Steps after a traceback may be earlier ones.
    """
    raised = event.level == "EXCEPTION" and not event.place
    return event.level not in TALK and not _is_kernel_line(event) and (raised or event.level not in ENDINGS)


def _only_others_step(log: JobLog, event: LogEvent) -> bool:
    """Return whether the steps of a line's log are those of named ranks, and its own rank made none."""
    of_ranks = {rank for rank, each in log.ranks.items() if each.step_line and each.stream == event.stream}
    return event.rank is not None and bool(of_ranks) and event.rank not in of_ranks


def _nothing_else_says_why(log: JobLog, event: LogEvent, last: int) -> bool:
    """Return whether a process ended badly and no complaint follows the steps, the last of them in line `last`.

    Standard output is written in blocks, so that its steps may appear after lines that were written later.
    """
    ended, complaints = _bad_end(Same(log.events))
    return ended and all(stream == event.stream and line <= last for stream, line in complaints.items())


@lru_cache(maxsize=2)
def _bad_end(events: Same[tuple[LogEvent, ...]]) -> tuple[bool, dict[int, int]]:
    """Return whether a traceback or a launcher shows that a process ended badly, and each log's last complaint."""
    ended, complaints = False, dict[int, int]()
    for each in events.value:
        raised = each.level == "EXCEPTION" and not each.place
        launcher = is_launcher_line(each)
        ended = ended or (each.level in ENDINGS and not raised) or bool(launcher and _EXITED.search(each.text))
        if each.level in ("ERROR", "WARN", "EXCEPTION") and not launcher:
            complaints[each.stream] = each.line
    return ended, complaints


def worked_before(log: JobLog, event: LogEvent | None) -> bool:
    """Return whether the job had done work together before a line: what it does that with had worked until then.

    Work is a step that is not the first, of this log or, as all make steps together, of another; a progress bar of
    training; a request that a server answered. None: at any time.
    """
    if event is not None and event.step is not None and event.step >= _SOME:
        return True
    for number, stream in enumerate(log.streams):
        until = event.line if event is not None and number == event.stream else stream.nlines + 1
        made = stream.step is not None and stream.step >= _SOME and stream.over < stream.step_line < until
        trained = any(stream.over < bar.line < until and _trains(bar) for bar in stream.bars)
        if made or trained or stream.over < stream.served < until:
            return True
    return False


def _trains(event: LogEvent) -> bool:
    bar = bar_of(event.text)
    if (
        bar is None or bar.done < _SOME or not re.search(r"(?<![A-Za-z])(?:it/s|s/it)\b", event.text)
    ):  # of data: examples/s
        return False
    return not bar.title or (re.search(_OF_TRAINING, bar.title) is not None and not re.search(_OF_DATA, bar.title))


_OF_TRAINING = r"(?i)\b(?:train(?:ing)?|epochs?|steps?|iter(?:ation)?s?)\b"
_OF_DATA = r"(?i)\b(?:split|map|generating|loading|preparing|processing|tokeni[sz]ing|filter|download(?:ing)?)\b"


def last_attempt(log: JobLog, *, failed: bool) -> JobLog:
    """Return a log without the errors of superseded attempts, of completed results and of a server's single requests.

    Errors that the program caught are left out too, unless a launcher saw a process of that log end. `failed`: the job
    is known to have failed, so that any of them may be the reason.
    """
    ended = {
        event.stream
        for event in log.events
        if event.line > log.streams[event.stream].over and (event.level in SUMMARY or is_launcher_line(event))
    }
    kept = [event for event in log.events if failed or not _is_history(log, event, ended)]
    if len(kept) == len(log.events) and not any(event.level == "CAUGHT" for event in kept):
        return log
    return replace(log, events=tuple(replace(e, level="EXCEPTION") if e.level == "CAUGHT" else e for e in kept))


def _is_history(log: JobLog, event: LogEvent, ended: Collection[int]) -> bool:
    stream = log.streams[event.stream]
    if event.level in TALK:
        return False
    if event.line <= stream.over:
        return True
    if event.stream in ended or event.level in ENDINGS[1:]:
        return False
    if event.level in ("WARN", "ERROR") and _is_talk(event) and _wrote_on(stream, event):
        return True
    return event.level == "CAUGHT" or (event.line < stream.served and _is_talk(event))


def _wrote_on(stream: LogStream, event: LogEvent) -> bool:
    """Return whether a log goes on for minutes after what a logger wrote, and ends with no word of a failure.

    Exceptions have no time of their own, and who waits for a peer writes nothing.
    """
    last = stream.last
    if last is None or last.time_s is None or event.time_s is None or last.time_s < event.time_s + _GOES_ON_S:
        return False
    return last.level in ("", "INFO") and not form_of_failure(last.text, last.level)


def earlier_attempts(log: JobLog) -> Iterator[str]:
    """Yield for each log with several attempts the beginning of the last one, and the last error before it."""
    for number, stream in enumerate(log.streams):
        own = [event for event in log.events if event.stream == number and event.line <= stream.over]
        anew = max((event.line for event in own if begins_anew(event.text)), default=0)
        before = (event for event in own if event.line < anew and event.level not in TALK)
        errors = [e for e in before if e.level in ENDINGS or form_of_failure(e.text, e.level) >= ERROR]
        if errors:
            last = errors[-1]
            yield (
                f"{stream.name} contains several attempts. The last one, from line {anew} on, is judged. Before it, "
                f"line {last.line}: {whole_words(last.text, 120)}"
            )


def _is_talk(event: LogEvent) -> bool:
    """Return whether a program itself wrote the line, and neither a library of the job nor a launcher."""
    library = bool(event.host and event.pid) or ".cpp:" in event.place or ".cc:" in event.place
    said = event.text.partition("\\n")[0]  # what is escaped is printed data
    return not library and not any(text in said for text in _LAUNCHERS)


def ended_well(log: JobLog, failing: Collection[tuple[int, int]]) -> tuple[Evidence, ...]:
    """Return the lines that report the end of the job, if no line that ends a process contradicts them.

    `failing`: the lines that report a failure.
    """
    said = [stream.finished for stream in log.streams if stream.finished]
    if not said or aborted(log) or any(_ends(log, event, failing) for event in log.events):
        return ()
    return tuple(log.evidence(each) for each in said[:4])


def aborted(log: JobLog) -> tuple[int, ...]:
    """Return the logs of ranks whose communicator was aborted before they reported their end.

    NCCL logs this, or its functions return an error at INFO and nothing follows. Some releases of torch abort at the
    end.
    """
    ends = ((number, stream.last) for number, stream in enumerate(log.streams))
    found = {number for number, last in ends if last and last.level == "INFO" and _RETURNED.search(last.text)}
    found |= {event.stream for event in log.having(ABORTED) if not log.streams[event.stream].finished}
    return tuple(sorted(found))


def _ends(log: JobLog, event: LogEvent, failing: Collection[tuple[int, int]]) -> bool:
    speaks = event.level in ENDINGS or ((event.stream, event.line) in failing and not _is_kernel_line(event))
    return (speaks or is_launcher_line(event)) and not lived_on(log, event)


_KERNELS = (
    "NVRM: ", "mlx5_core ", "mlx4_core ", "pcieport ", "nvidia-nvswitch", "AER: ", "DMAR: ", "AMD-Vi: ", "oom-kill:",
    "Out of memory: Kill", "Memory cgroup out of memory", "nfs: server",
)  # fmt: skip


def _is_kernel_line(event: LogEvent) -> bool:
    """Return whether the kernel wrote a line: it is about its host, at any time, so the job's own end is better
    evidence.
    """
    return event.rank is None and event.level not in ENDINGS and any(text in event.text[:64] for text in _KERNELS)


_EXITED = re.compile(
    r"\(core dumped\)|\bkilled by signal\b|\breceived signal SIG(?:ABRT|SEGV|BUS|FPE|ILL)\b"
    r"|\bline \d{1,6}: {1,8}\d{1,10} (?:Killed|Segmentation fault|Bus error|Aborted)\b"
    r"|\bMPI_ERRORS_ARE_FATAL \(processes\b"
    r"|\b(?:exit(?:ed|s)?|return(?:ed|s)?|terminated|ended|failed)\b"
    r".{0,24}?\b(?:code|status|signal)\b[ :=]{0,8}(?!0\b|[23]\d\d\b)-?\d{1,3}\b",
    re.IGNORECASE,
)
"""That a process ended badly, as launchers and shells say it of whatever program."""
ABORTED = "Abort COMPLETE"
_RETURNED = re.compile(r" -> \d{1,2}$")
"""The form in which NCCL reports at INFO that one of its functions returns an error."""
_OF_STACK = re.compile(
    r"frame #\d{1,3}: | {0,8}(?:#?\d{1,3}:? {1,8})?"
    r"(?:0x[0-9a-f]{4}|@ {1,16}0x|File \"|at [\w.$]{1,256}\(|[\w./-]{1,256}\(\+?\w{0,256}\+0x)"
)
"""The last line of a stack, as Python, Java, C++, torch and glibc write one."""


_REACH = {ENDS: 60, ERROR: 30, WORDS: 6}
"""Lines that may follow a process's last words, by their form: those of shells, launchers and other ranks."""


def alone(log: JobLog, event: LogEvent) -> bool:
    """Return whether only lines of its stack follow, which may have a heading: the user asked about this line."""
    stream = log.streams[event.stream]
    stack = stream.nlines == 1 or (stream.last is not None and _OF_STACK.match(stream.last.text) is not None)
    beneath = all(other.line <= 2 or _OF_STACK.match(other.text) for other in log.events)
    return len(log.streams) == event.line == 1 and stack and beneath


def events_at(log: JobLog, lines: Collection[tuple[int, int]]) -> Iterator[LogEvent]:
    """Yield the events that stand in `lines`: index of the log, and number."""
    return (event for event in log.events if (event.stream, event.line) in lines) if lines else iter(())


def ended_badly(log: JobLog, line: LogEvent) -> bool:
    """Return whether a process of the log certainly ended with `line`: only a stack follows it, or a launcher, a shell
    or an exception reports it.
    """
    stream = log.streams[line.stream]
    last = line.line == stream.nlines and form_of_failure(line.text, line.level) >= ERROR
    if last or (stream.last and _OF_STACK.match(stream.last.text)):
        return True
    return any(
        each.level in ENDINGS or is_launcher_line(each) or _EXITED.search(each.text[:512]) for each in log.events
    )


def is_near_the_end(log: JobLog, line: LogEvent) -> bool:
    """Return whether a line may be the last message of its process, so that the job most likely failed.

    A warning counts only if NCCL logs nothing more, or logs that its functions return an error.
    """
    stream = log.streams[line.stream]
    last = stream.last
    if line.level == "WARN" and not (line.host and last and (last.line == line.line or _RETURNED.search(last.text))):
        return False
    return stream.step_line < line.line and stream.nlines - line.line < _REACH.get(
        form_of_failure(line.text, line.level), 0
    )


def last_resort(log: JobLog) -> tuple[LogEvent, ...]:
    """Return the line that reports only that a process ended badly, or a log's only line."""
    for e in log.events:
        exited = is_launcher_line(e) or _EXITED.search(e.text[:512]) or form_of_failure(e.text, e.level) == ENDS
        if (alone(log, e) and e.level != "INFO") or (exited and not lived_on(log, e)):
            return (e,)
    return ()
