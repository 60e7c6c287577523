"""What explains a job's trouble: a cause that rules name, or the line that most likely says why, and what happened.

Rules name causes; the ranking of lines decides what is shown first. A named cause yields to a line that no rule knows
where a layer inside the one that the cause rests on wrote that line: the wrapper repeats what the inner layer said.

The last words of a process say what it lacks, in whatever program's wording, if no check and no row knows the line.
Projects word their errors each in their own way, but what they lack has few names: memory, a file, a permission, an
option, a version, a shape. Only a line that ends its process is read so. What it says of others (a peer, a connection,
a worker that exited) is a consequence as often as a cause, and stays unknown.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ncclprobe.logs import messages
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.layers import PROGRAM, inside, layer_of
from ncclprobe.logs.outcome import ended_badly, is_near_the_end
from ncclprobe.logs.texts import ENDS, ERROR, form_of_failure
from ncclprobe.model.causes import Answer, Cause, Consequence, JobOutcome, When
from ncclprobe.model.findings import Action, Blame, Evidence, Finding, Severity
from ncclprobe.model.values import replace

_WITHIN, _LAST, _WRAPPED, _TOLD = 512, 8, 4, 120
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
    "see above", "root cause", "previous error", r"[nrh]ccl(?:result|comm|proxy)\w{0,40}",
    r"[nrh]ccl\w{0,8} (?:error|failure)", "gloo", "rendezvous", "barrier", "collectives?",
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
        "a limit of the process, its user or its container is reached",
        _any("resource temporarily unavailable", "too many (?:open files|processes|threads)", "can't start new thread",
             r"exceed(?:s|ed)? (?:\w{1,16} ){0,4}(?:limits?|quota)", "(?:limit|quota) (?:is |was |has been )?"
             "(?:reached|exceeded)"),
        "raise the limit that the line or its neighbours name (`ulimit -a` in the job; a pod's own), or use less",
        _CRASHED, "unknown", "fix-job",
    ),
    _LastWords(
        "what the program needs is in use by another process",
        _any("already (?:in use|running|bound)", r"(?:device|resource) (?:\w{1,8} ){0,2}busy", "in use by"),
        "end the process that holds what the line names, most often one left over from an earlier start",
    ),
    _LastWords(
        "access was refused to the program",
        _any("permission denied", "access (?:is )?denied", "unauthorized", "forbidden", "authentication failed",
             "not authorized", "operation not permitted", "gated repo", "invalid (?:api )?(?:token|key|credentials?)",
             "insufficient permissions?", r"expired (?:credential|token|certificate|key)\w?",
             "no authentication methods?", r"not a valid (?:\w{1,8} )?private key"),
        "give the user of the job the right, the key or the token that the line names",
    ),
    _LastWords(
        "the program refuses its options or settings",
        _any("un(?:recognized|known) (?:arguments?|options?|flags?|keys?)", "no such option", "ambiguous option",
             r"invalid (?:arguments?|options?|choice|values?|config\w{0,12}|settings?)", r"misconfig\w{0,24}",
             "(?:arguments?|options?) (?:are|is) required", r"missing (?:\w{1,12} ){0,3}arguments?",
             "unexpected keyword", "expected one argument", "(?:must|should) (?:be|have|not)", "divisible",
             "not (?:a )?(?:valid|allowed)", "out of range", "not in list"),
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
             "is missing", "not available", r"no (?:\w{1,12} ){0,2}(?:gpus?|devices?) found", "cannot reach",
             r"no (?:\w{1,16} ){1,3}(?:available|found|configured|detected|provided)", "offline mode"),
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

    `ended`: something else tells that a process of the job ended badly, or the log ends there; without it an error that
    a logger writes may be one that the program went on from.
    """
    form = ENDS if line.level in ("EXCEPTION", "FATAL") else form_of_failure(line.text, line.level)
    if form < (ERROR if ended else ENDS):
        return None
    for clause in _clauses(line.text):
        if found := next((each for each in _REASONS if re.search(each.words, clause)), None):
            of_others = "oom" not in found.codes and re.search(_OF_OTHERS, clause)
            return None if of_others else found
    return None


def _clauses(text: str) -> Iterator[str]:
    """Yield a line; of one that many have wrapped, or that is too long for a message, its clauses, the last first."""
    if len(text) <= _WITHIN and text.count(": ") < _WRAPPED:
        yield text.replace("_", " ")
        return
    yield from reversed(re.split(r": ", text[-_WITHIN:].replace("_", " ")))


Place = tuple[int, int]
"""The place of a line: the index of its log, and its number there."""


def with_telling_lines(
    log: JobLog,
    found: Sequence[Cause],
    ranked: Sequence[LogEvent],
    said: Mapping[Place, Finding],
    failing: Collection[Place],
    *,
    failed: bool,
) -> tuple[Cause, ...]:
    """Return the causes, the first as `ranked` has it: the lines that most likely say why, the likeliest first.

    `said`: what checks say of lines. `failing`: the lines that speak of a failure. `failed`: the user knows of one.
    """
    firm = [each for each in found if each.severity is Severity.FAIL and each.confidence != "unknown"]
    if not ranked or (firm and not _contradicted(log, firm[0], ranked[0], said)):
        return tuple(found)
    first = ranked[0]
    open_ones = [each for each in found if each.confidence == "unknown"]
    own = next((each for each in open_ones if _rests_on(each, log.evidence(first))), None)
    if own:
        told = _led_by(own, log, ranked, said[first.stream, first.line])
        return tuple(told if each is own else each for each in found)
    followed = [*firm, *open_ones]
    consequences = [Consequence(each.id, each.message, each.ranks, each.nodes, each.evidence[:1]) for each in followed]
    layer = layer_of(first)
    who, remedy = ("this line", "") if layer is PROGRAM else (f"this line of {layer.title}", layer.look)
    ended = bool(failing) or ended_badly(log, first)
    at_the_end = _ends_there(log, first)
    likely = Cause(
        code="unknown",
        id="log.unexplained",
        confidence="unknown",
        severity=Severity.FAIL if failed or ended or is_near_the_end(log, first) else Severity.NOTE,
        message=f"{who} most likely says why; ncclprobe does not know its meaning{_origin(first)}",
        ranks=() if first.rank is None else (first.rank,),
        nodes=(first.host,) if first.host else (),
        evidence=tuple(map(log.evidence, ranked)),
        remedy=f"look at {remedy}" if remedy else "",
        collect=(f"start again with {layer.switch}",) if layer.switch and "NCCL_DEBUG" not in layer.switch else (),
        consequences=(*consequences, *(each for cause in followed for each in cause.consequences)),
    )
    words = last_words(first, ended=ended or at_the_end)
    likely = _by_its_words(likely, words, " ".join(first.text.split()))
    return (likely, *(each for each in found if each not in followed))


def _contradicted(log: JobLog, cause: Cause, first: LogEvent, said: Mapping[Place, Finding]) -> bool:
    """Return whether a cause rests on what a wrapper repeats, while no rule knows `first`, of a layer inside it.

    What another rank or a program says contradicts nothing.
    """
    of_another = first.rank is not None and cause.ranks and first.rank not in cause.ranks
    if of_another or layer_of(first) is PROGRAM or (first.stream, first.line) in said or not cause.evidence:
        return False
    own = next((each for each in log.events if log.evidence(each) == cause.evidence[0]), None)
    return own is not None and layer_of(first).name in inside(layer_of(own).name)


def _rests_on(cause: Cause, line: Evidence) -> bool:
    return line in cause.evidence or any(line in each.evidence for each in cause.consequences)


def _led_by(cause: Cause, log: JobLog, ranked: Sequence[LogEvent], finding: Finding) -> Cause:
    """Return an unknown cause with what is said of the first of the `ranked` lines, and these in their order."""
    lines = [line for each in ranked if (line := log.evidence(each)) in cause.evidence or each is ranked[0]]
    return replace(
        cause,
        message=finding.message,
        remedy=finding.remedy or cause.remedy,
        evidence=tuple(dict.fromkeys((*lines, *cause.evidence))),
        consequences=tuple(each for each in cause.consequences if lines[0] not in each.evidence[:1]),
    )


def _ends_there(log: JobLog, line: LogEvent) -> bool:
    """Return whether a log ends shortly after a line, with no line of figures, as of work, behind it."""
    stream = log.streams[line.stream]
    last = "".join(stream.last.text.split()) if stream.last else ""
    figures = sum(map(str.isdecimal, last)) * 2 > len(last)
    return stream.nlines - line.line < _LAST and is_near_the_end(log, line) and not figures


def _by_its_words(likely: Cause, words: _LastWords | None, text: str) -> Cause:
    """Return the cause as the line's own words name it, or leave one of several; as it is if they say nothing.

    Of a long line its end is shown, because wrappers put the cause there.
    """
    if words is None:
        return likely
    told = text if len(text) <= _TOLD else f"… {text[-_TOLD:].partition(' ')[2]}"
    return replace(
        likely,
        code=words.codes[0],
        confidence="named" if len(words.codes) == 1 else "narrowed",
        could_be=words.codes if len(words.codes) > 1 else (),
        message=f"{words.message}: {told}",
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
    failing = [each for each in found if not is_condition(each)]
    if not failing:
        return "unknown"
    return "stopped" if failing[0].code == "ended-from-outside" else "failed"


_OF_A_HANG = ("log.rank-silent/rank-fell-silent", "log.interface/ranks-may-not-meet")


def when(cause: Cause) -> When:
    """Return which trouble a cause explains: what only costs time ended nothing."""
    if cause.id in _OF_A_HANG:
        return "hung"
    return "slow" if cause.severity is Severity.WARN and cause.confidence != "unknown" else "failed"


def is_condition(cause: Cause) -> bool:
    """Return whether a cause would only explain trouble, and no line speaks of any."""
    return cause.severity is Severity.NOTE or (cause.severity is Severity.WARN and cause.confidence != "unknown")


def answers(
    found: Sequence[Cause], happened: JobOutcome, asked: When | None, stands: Sequence[str]
) -> tuple[Answer, ...]:
    """Return what explains each trouble, or would; of a job that ended well only what was `asked` for."""
    given = tuple(
        Answer(
            when(each),
            "line" if each.confidence == "unknown" else each.confidence,
            when(each) == asked or not is_condition(each),
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
