"""Evidence for and against: whether a job ended well, and whether a line that sounds like a failure ended anything.

A program that catches an error goes on making steps; one that prints data prints what looks like errors. What a
launcher or a watchdog writes ends a process. Standard output that is written in blocks stands after an exception that
was earlier: so after a traceback steps count only where some stand before it too; a block that ends there would cut a
line. What is no traceback may stand before the first step: many steps after it show that it ended nothing.

The last words of a process say what it lacks, in whatever program's wording, where no check and no row knows the line.
Projects word their errors each in their own way, but what they lack has few names: memory, a file, a permission, an
option, a version, a shape. Only a line that ends its process is read so. What it says of others (a peer, a connection,
a worker that exited) is a consequence as often as a cause, and stays unknown.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ncclprobe.logs import messages
from ncclprobe.logs.job_log import ENDINGS, SUMMARY, TALK, JobLog, LogEvent, LogStream
from ncclprobe.logs.layers import PROGRAM, layer_of
from ncclprobe.logs.ranks import of_launcher
from ncclprobe.logs.texts import ENDS, ERROR, WORDS, bar_of, begins_anew, counted, form_of_failure
from ncclprobe.model.causes import Answer, Cause, Consequence, JobOutcome, When
from ncclprobe.model.findings import Action, Blame, Evidence, Severity
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import Same, replace

_WITHIN = 512
_CRASHED = ("rank-crashed",)


class _LastWords(NamedTuple):
    """What a line lacks, in `message`; the words that it says it by; what to do; the codes that it may be."""

    message: str
    words: str
    remedy: str
    codes: tuple[str, ...] = _CRASHED
    blame: Blame = "unknown"
    action: Action = "none"


def _any(*words: str) -> str:
    """Return a pattern that finds any of `words`, in capitals or not; none of them repeats without a bound."""
    return "(?i)" + "|".join(rf"\b{word}\b" for word in words)


_OF_OTHERS = _any(
    r"(?:dis)?connect\w{0,4}", r"peers?", "socket", "unreachable", "no route", "timed out", "time-?out",
    "deadline exceeded", r"heartbeats?", "other ranks?", "another rank", "remote", "workers?", r"child\w{0,3}",
    r"subprocess\w{0,2}", "exited", "exit ?code", "exit status", "non-?zero", "return code", "killed", "terminated",
    "died", "dead", "crashed", "shut ?down", "closed", r"interrupt\w{0,2}", r"cancel\w{0,4}", r"abort\w{0,3}",
    "see above", "root cause", "previous error", r"[nrh]ccl\w{0,40}", "gloo", "rendezvous", "barrier", "collectives?",
    r"preempt\w{0,2}", "signal",
)  # fmt: skip
"""Of lines that may repeat what happened to another process, or that name no reason."""

_REASONS = (
    _LastWords(
        "memory is full, or a limit of it reached",
        _any(r"out of (?:\w{1,12} )?memory", r"(?:insufficient|not enough|no available) (?:\w{1,12} )?memory",
             "memory (?:is )?exhausted", "out of resources", "resource exhausted", "bad alloc", "memoryerror",
             r"(?:can ?not|failed to|unable to) (?:re)?allocate (?:\w{1,12} )?memory"),
        "lower what the job holds (batch, cache, workers), or give it the memory that the line asks for",
        ("oom",), "job", "fix-job",
    ),
    _LastWords(
        "a disk is full, or what its user may keep there",
        _any("no space left", "disk quota exceeded", "disk is full", r"not enough (?:\w{1,12} )?disk space"),
        "make room on the file system of the path that the line or its stack names, or write elsewhere (df -h, df -i)",
    ),
    _LastWords(
        "a device reports an error of its own",
        _any("hardware (?:error|exception|fault)", "(?:gpu|device|engine) hang", "uncorrectable", "machine check",
             "parity error", "double bit"),
        "the kernel's log of that host and minute tells a fault of the device from a wild access of the program",
        ("gpu-hw-error", "rank-crashed"),
    ),
    _LastWords(
        "a check within the program failed",
        _any("check failed", "assertion", "assertion ?error", "precondition"),
        "the condition that the line names did not hold: correct what led to it, or report it to the program's makers",
    ),
    _LastWords(
        "access was refused to the program",
        _any("permission denied", "access (?:is )?denied", "unauthorized", "forbidden", "authentication failed",
             "not authorized", "operation not permitted", "gated repo", "invalid (?:api )?(?:token|key|credentials?)"),
        "give the user of the job the right, the key or the token that the line names",
    ),
    _LastWords(
        "the program refuses its options or settings",
        _any("un(?:recognized|known) (?:arguments?|options?|flags?|keys?)", "no such option", "ambiguous option",
             r"invalid (?:arguments?|options?|choice|values?|config\w{0,12}|settings?)", r"misconfig\w{0,24}",
             "(?:arguments?|options?) (?:are|is) required", r"missing (?:\w{1,12} ){0,3}arguments?",
             "unexpected keyword", "expected one argument", "(?:must|should) (?:be|have|not)", "divisible",
             "(?:is|are) not (?:a )?(?:valid|allowed)", "out of range", "not in list"),
        "correct the option or setting that the line names",
        _CRASHED, "job", "fix-job",
    ),
    _LastWords(
        "a version or a device does not fit, or lacks what is asked of it",
        _any("(?:not|un)[ -]?supported", "not implemented", "unimplemented", "incompatible", "not compatible",
             r"requires (?:\w{1,24} ){0,4}versions?", "version mismatch", "undefined symbol", "no kernel image",
             "(?:compiled|built) (?:with|without|for)", "is too old"),
        "install the version, or take the hardware or the feature, that the line names",
    ),
    _LastWords(
        "something that the program needs is not there",
        _any("no such file", "not found", "no module named", "does not exist", "doesn't exist", "not installed",
             "(?:can ?not|could not|couldn't|unable to|failed to) (?:find|open|load|read|locate|import|download)",
             "is missing", "not available", r"no (?:\w{1,12} ){0,2}(?:gpus?|devices?) found"),
        "put the file, module, name or device there that the line names, on the host and in the image of this rank",
    ),
    _LastWords(
        "what the program compares does not agree",
        _any(r"mismatch\w{0,4}", r"invalid (?!argument)\w{1,24}", "does(?: not|n't) match", "do not match",
             "must match", "expected", "inconsistent",
             r"(?:wrong|different) (?:size|shape|dtype|type|device|number)\w{0,2}", "nan", "overflow"),
        "correct the sizes, types or values that the line names",
        _CRASHED, "job", "fix-job",
    ),
)  # fmt: skip
"""The first whose words a line holds. What follows in a line is often what came of it, so the graver come first."""


def last_words(line: LogEvent, *, ended: bool) -> _LastWords | None:
    """Return what a process's last line says; None: it says it of others, or in no words of these.

    `ended`: something else tells that a process of the job ended badly; without it an error that a logger writes may
    be one that the program went on from.
    """
    form = ENDS if line.level in ("EXCEPTION", "FATAL") else form_of_failure(line.text, line.level)
    if form < (ERROR if ended else ENDS):
        return None
    text = line.text[:_WITHIN].replace("_", " ")
    found = next((each for each in _REASONS if re.search(each.words, text)), None)
    of_others = found is not None and "oom" not in found.codes and re.search(_OF_OTHERS, text)
    return None if of_others else found


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
    """Return whether the process that wrote a line certainly went on: it made steps afterwards, or came to its end."""
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
    if event.level in TALK and _is_talk(event) and stream.nlines > event.line:
        return True
    if event.level in ENDINGS[1:] or of_launcher(event) or (event.level == "ERROR" and ".cpp:" in event.place):
        return False
    finished = stream.finished is not None and stream.finished.line > event.line
    return went_on or (finished and event.level not in ENDINGS and _is_talk(event))


def _may_stand_before_steps(event: LogEvent) -> bool:
    """Return whether steps after a line tell that it ended nothing: not of the kernel's, which are of any time, nor of
    those that state what is set or chosen, which may matter later; and steps after a traceback may be earlier ones.
    """
    raised = event.level == "EXCEPTION" and not event.place
    return event.level not in TALK and not _of_kernel(event) and (raised or event.level not in ENDINGS)


def _only_others_step(log: JobLog, event: LogEvent) -> bool:
    """Return whether the steps of a line's log are those of named ranks, and its own rank made none."""
    of_ranks = {rank for rank, each in log.ranks.items() if each.step_line and each.stream == event.stream}
    return event.rank is not None and bool(of_ranks) and event.rank not in of_ranks


def _nothing_else_says_why(log: JobLog, event: LogEvent, last: int) -> bool:
    """Return whether a process ended badly and no complaint stands after the steps, of which `last` is the last line.

    Standard output is written in blocks, so that its steps may stand after what came after them.
    """
    ended, complaints = _bad_end(Same(log.events))
    return ended and all(stream == event.stream and line <= last for stream, line in complaints.items())


@lru_cache(maxsize=2)
def _bad_end(events: Same[tuple[LogEvent, ...]]) -> tuple[bool, dict[int, int]]:
    """Return whether a traceback or a launcher tells that a process ended badly, and each log's last complaint."""
    ended, complaints = False, dict[int, int]()
    for each in events.value:
        raised = each.level == "EXCEPTION" and not each.place
        launcher = of_launcher(each)
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
    counts = (counted(each.text) for each in log.having(*EPOCHS) if event is None or _is_before(each, event))
    return any(count is not None and count >= _SOME for count in counts)


EPOCHS = ("Train: 0 [", "Epoch: [0]")
"""Of lines that count within the first epoch, as timm's and those of torch's examples: of all epochs they are many."""


def _trains(event: LogEvent) -> bool:
    bar = bar_of(event.text)
    if (
        bar is None or bar.done < _SOME or not re.search(r"(?<![A-Za-z])(?:it/s|s/it)\b", event.text)
    ):  # of data: examples/s
        return False
    return not bar.title or (re.search(_OF_TRAINING, bar.title) is not None and not re.search(_OF_DATA, bar.title))


_OF_TRAINING = r"(?i)\b(?:train(?:ing)?|epochs?|steps?|iter(?:ation)?s?)\b"
_OF_DATA = r"(?i)\b(?:split|map|generating|loading|preparing|processing|tokeni[sz]ing|filter|download(?:ing)?)\b"


def _is_before(one: LogEvent, other: LogEvent) -> bool:
    return one.stream != other.stream or one.line < other.line


def of_the_last_attempt(log: JobLog, *, failed: bool) -> JobLog:
    """Return a log without errors of attempts that others followed, of what came to a result, of single requests of a
    server, and without those that the program says it caught, unless a launcher saw a process of that log end.

    `failed`: the job is known to have failed, so that each may tell why.
    """
    ended = {
        event.stream
        for event in log.events
        if event.line > log.streams[event.stream].over and (event.level in SUMMARY or of_launcher(event))
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
    """Yield of each log with several attempts where the last begins, and the last error before it."""
    for number, stream in enumerate(log.streams):
        own = [event for event in log.events if event.stream == number and event.line <= stream.over]
        anew = max((event.line for event in own if begins_anew(event.text)), default=0)
        before = (event for event in own if event.line < anew and event.level not in TALK)
        errors = [e for e in before if e.level in ENDINGS or form_of_failure(e.text, e.level) >= ERROR]
        if errors:
            last = errors[-1]
            yield (
                f"{stream.name} has several attempts; judged is the last, from line {anew} on; before it, line "
                f"{last.line}: {whole_words(last.text, 120)}"
            )


def _is_talk(event: LogEvent) -> bool:
    """Return whether a program itself wrote the line, and neither a library of the job nor a launcher."""
    library = bool(event.host and event.pid) or ".cpp:" in event.place or ".cc:" in event.place
    said = event.text.partition("\\n")[0]  # what is escaped is printed data
    return not library and not any(text in said for text in _LAUNCHERS)


def ended_well(log: JobLog, failing: Collection[tuple[int, int]]) -> tuple[Evidence, ...]:
    """Return the lines that say that the job came to its end, if no line after which none goes on says otherwise.

    `failing`: the lines that speak of a failure.
    """
    said = [stream.finished for stream in log.streams if stream.finished]
    if not said or aborted(log) or any(_ends(log, event, failing) for event in log.events):
        return ()
    return tuple(log.evidence(each) for each in said[:4])


def aborted(log: JobLog) -> tuple[int, ...]:
    """Return the logs of ranks whose communicator was aborted before they said that they came to their end.

    NCCL says so, or its functions return an error at INFO and nothing follows. Some releases of torch abort at the end.
    """
    ends = ((number, stream.last) for number, stream in enumerate(log.streams))
    found = {number for number, last in ends if last and last.level == "INFO" and _RETURNED.search(last.text)}
    found |= {event.stream for event in log.having(ABORTED) if not log.streams[event.stream].finished}
    return tuple(sorted(found))


def _ends(log: JobLog, event: LogEvent, failing: Collection[tuple[int, int]]) -> bool:
    speaks = event.level in ENDINGS or ((event.stream, event.line) in failing and not _of_kernel(event))
    return (speaks or of_launcher(event)) and not lived_on(log, event)


_KERNELS = (
    "NVRM: ", "mlx5_core ", "mlx4_core ", "pcieport ", "nvidia-nvswitch", "AER: ", "DMAR: ", "AMD-Vi: ", "oom-kill:",
    "Out of memory: Kill", "Memory cgroup out of memory", "nfs: server",
)  # fmt: skip


def _of_kernel(event: LogEvent) -> bool:
    """Return whether the kernel wrote a line: of its host, and of any time, so that the job's own end says more."""
    return event.rank is None and event.level not in ENDINGS and any(text in event.text[:64] for text in _KERNELS)


_EXITED = re.compile(
    r"\(core dumped\)|\bkilled by signal\b|\bMPI_ERRORS_ARE_FATAL \(processes\b"
    r"|\b(?:exit(?:ed|s)?|return(?:ed|s)?|terminated|ended|failed)\b"
    r".{0,24}?\b(?:code|status|signal)\b[ :=]{0,8}(?!0\b|[23]\d\d\b)-?\d{1,3}\b",
    re.IGNORECASE,
)
"""That a process ended badly, as launchers and shells say it of whatever program."""
ABORTED = "Abort COMPLETE"
_RETURNED = re.compile(r" -> \d{1,2}$")
"""How NCCL says at INFO which of its functions return an error."""
_OF_STACK = re.compile(
    r"frame #\d{1,3}: | {0,8}(?:#?\d{1,3}:? {1,8})?"
    r"(?:0x[0-9a-f]{4}|@ {1,16}0x|File \"|at [\w.$]{1,256}\(|[\w./-]{1,256}\(\+?\w{0,256}\+0x)"
)
"""The last line of a stack, as Python, Java, C++, torch and glibc write one."""
_OF_PODS = "FailedScheduling"
"""What Kubernetes says of any pod: no words of a process, so that where one has some they say more."""
_REACH = {ENDS: 60, ERROR: 30, WORDS: 8}
"""Lines that may stand beneath a process's last words, by their form: a stack, what shells and launchers add."""


def likeliest(
    log: JobLog,
    known: Collection[tuple[int, int]],
    failing: Collection[tuple[int, int]],
    harmless: Callable[[LogEvent], bool],
    *,
    any_level: bool,
    launcher: bool,
) -> LogEvent | None:
    """Return the line that most likely says why, of those that no check knows; None: none ends a process.

    An exception comes first, then what by its form ends a process, is an error or has words of a failure, if its
    process said nothing more. `failing`: the lines that speak of a failure, its consequences among them. `any_level`:
    the job is known to have failed, so that any error or warning will do. `launcher`: what a launcher says of a rank
    that ended will do as well. What is harmless by itself does where the log holds nothing else: it is asked about.
    """
    unknown = [each for each in log.events if (each.stream, each.line) not in known]
    unknown = [each for each in unknown if not (failing and _OF_PODS in each.text)]
    last = [
        (form, e) for e in unknown if (form := form_of_failure(e.text, e.level)) and _last_words(log, e, form, failing)
    ]
    exited = [e for e in unknown if launcher and (of_launcher(e) or _EXITED.search(e.text[:512]))]
    kinds = [
        [e for e in unknown if e.level in ("EXCEPTION", "FATAL") and (any_level or not lived_on(log, e))],
        *([e for form, e in last if form == kind] for kind in (ENDS, ERROR, WORDS)),
        [e for e in exited if of_launcher(e) or _last_words(log, e, ENDS, failing)],
        *([e for e in unknown if any_level and e.level == level] for level in ("ERROR", "WARN")),
    ]
    for each in kinds:
        if found := [event for event in each if not harmless(event) or _alone(log, event)]:
            return min(found, key=lambda each: (each.time_s is None, each.time_s or 0.0, each.stream, each.line))
    return None


def _last_words(log: JobLog, event: LogEvent, form: int, failing: Collection[tuple[int, int]]) -> bool:
    """Return whether who wrote a line said nothing more, or nothing before its end was noticed."""
    if form and _alone(log, event):
        return True
    if event.level in TALK or lived_on(log, event) or log.streams[event.stream].step_line > event.line:
        return False
    last = log.streams[event.stream].last
    ended = failing or (event.host and last and (last.line == event.line or _RETURNED.search(last.text)))
    if event.level == "WARN" and not ended:
        return False  # it may have gone on
    known = [line for stream, line in failing if stream == event.stream]
    if any(0 < event.line - line < _REACH[ENDS] for line in known):
        return False  # it only says once more that something failed
    own = log.ranks.get(event.rank) if event.rank is not None else None
    end = own.last.line if own and own.last and own.last.stream == event.stream else log.streams[event.stream].nlines
    noticed = min((line for line in known if line > event.line), default=end)
    return min(end, noticed) - event.line < _REACH[form]


def _alone(log: JobLog, event: LogEvent) -> bool:
    """Return whether there is no other line but those of its stack, which may have a heading."""
    stream = log.streams[event.stream]
    stack = stream.nlines == 1 or (stream.last is not None and _OF_STACK.match(stream.last.text) is not None)
    beneath = all(other.line <= 2 or _OF_STACK.match(other.text) for other in log.events)
    return len(log.streams) == event.line == 1 and stack and beneath


def events_at(log: JobLog, lines: Collection[tuple[int, int]]) -> Iterator[LogEvent]:
    """Yield the events that stand in `lines`: index of the log, and number."""
    return (event for event in log.events if (event.stream, event.line) in lines) if lines else iter(())


def with_the_unknown_line(
    log: JobLog, found: Sequence[Cause], line: LogEvent | None, failing: Collection[tuple[int, int]] = ()
) -> tuple[Cause, ...]:
    """Return the causes, and instead of those that are not known the line that most likely says why.

    Where its own words say what was lacking, that is the cause. `failing`: the lines that speak of a failure.
    """
    if line is None or any(cause.severity is Severity.FAIL and cause.confidence != "unknown" for cause in found):
        return tuple(found)
    followed = [cause for cause in found if cause.confidence == "unknown"]
    consequences = [
        Consequence(cause.id, cause.message, cause.ranks, cause.nodes, cause.evidence[:1]) for cause in followed
    ]
    layer = layer_of(line)
    who, remedy = ("this line", "") if layer is PROGRAM else (f"this line of {layer.title}", layer.look)
    likely = Cause(
        code="unknown",
        id="log.unexplained",
        confidence="unknown",
        message=f"{who} most likely says why; ncclprobe does not know its meaning{_origin(line)}",
        ranks=() if line.rank is None else (line.rank,),
        nodes=(line.host,) if line.host else (),
        evidence=(log.evidence(line),),
        remedy=f"look at {remedy}" if remedy else "",
        collect=(f"start again with {layer.switch}",) if layer.switch and "NCCL_DEBUG" not in layer.switch else (),
        consequences=(*consequences, *(each for cause in followed for each in cause.consequences)),
    )
    likely = _by_its_words(likely, last_words(line, ended=bool(failing) or _ended_badly(log, line)))
    return (likely, *(cause for cause in found if cause.confidence != "unknown"))


def _ended_badly(log: JobLog, line: LogEvent) -> bool:
    """Return whether a process of the log certainly ended with `line`: nothing stands beneath it but a stack, or a
    launcher, a shell or an exception says so.
    """
    stream = log.streams[line.stream]
    if line.line == stream.nlines or (stream.last and _OF_STACK.match(stream.last.text)):
        return True
    return any(of_launcher(e) or e.level in ENDINGS or _EXITED.search(e.text[:512]) for e in log.events)


def _by_its_words(likely: Cause, words: _LastWords | None) -> Cause:
    """Return the cause as the line's own words name it, or leave one of several; as it is if they say nothing."""
    if words is None:
        return likely
    return replace(
        likely,
        code=words.codes[0],
        confidence="named" if len(words.codes) == 1 else "narrowed",
        could_be=words.codes if len(words.codes) > 1 else (),
        message=f"{words.message}, by the last words of {'a process' if not likely.ranks else 'this rank'}",
        blame=words.blame,
        action=words.action,
        remedy=words.remedy,
    )


def _origin(line: LogEvent) -> str:
    """Return who says a line, as far as the table of messages or NCCL's head of it tells."""
    if found := messages.said(line.text, line.level):
        return f": {messages.origin(found)}"
    return f": NCCL says it, in {line.place}" if line.level == "WARN" and line.host and line.pid and line.place else ""


def outcome(found: Sequence[Cause], well: Sequence[Evidence]) -> JobOutcome:
    """Return what happened to a job that is over."""
    if well:
        return "ended-well"
    failing = [each for each in found if when(each) != "slow"]
    if not failing:
        return "unknown"
    return "stopped" if failing[0].code == "ended-from-outside" else "failed"


def when(cause: Cause) -> When:
    """Return which trouble a cause explains: what only costs time ended nothing."""
    if cause.severity is not Severity.FAIL and cause.confidence != "unknown":
        return "slow"
    return "hung" if cause.id == "log.rank-fell-silent" else "failed"


def answers(
    found: Sequence[Cause], happened: JobOutcome, asked: When | None, stands: Sequence[str]
) -> tuple[Answer, ...]:
    """Return what explains each trouble, or would; of a job that ended well only what was `asked` for."""
    given = tuple(
        Answer(
            when(each),
            "line" if each.confidence == "unknown" else each.confidence,
            when(each) in ("failed", "hung", asked),
            each.code,
            each.message,
            each.evidence[:1],
        )
        for each in found
    )
    if stands:
        given += (Answer("hung", "line", asked == "hung", "", stands[0]),)
    answered = {each.when for each in given}
    wanted: tuple[When, ...] = ("failed", "hung", "slow")
    if happened in ("", "ended-well"):
        wanted = (asked,) if asked else ()
    missing = tuple(Answer(each, "none", each == asked) for each in wanted if each not in answered)
    kept = tuple(each for each in given if happened != "ended-well" or each.when == asked)
    return (*kept, *(each for each in missing if each.known or each.when != "failed"))
