"""Explain a job's trouble with a cause that a rule names, or with the line that most likely gives the reason.

Rules name causes; the ranking of lines decides what is shown first. A named cause yields to an unknown line if a layer
inside the one that the cause rests on wrote that line, because the wrapper repeats what the inner layer reported.

A line that gives a reason of its own, in any program's wording, is the cause if neither a check nor a row of the table
knows it. A line about others (a peer, a connection, a worker that exited) is a consequence as often as a cause, and
stays unknown.
"""

from collections.abc import Collection, Mapping, Sequence

from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.layers import PROGRAM, inside, layer_of
from ncclprobe.logs.lines import has_own_reason, layer_report, reason_of, states_reason
from ncclprobe.logs.outcome import ended_badly, is_near_the_end
from ncclprobe.model.causes import Answer, Cause, Consequence, JobOutcome, When
from ncclprobe.model.findings import Evidence, Finding, Severity
from ncclprobe.model.values import replace

_LAST = 8
_BY_THE_TABLE = "log.known-message"
"""The check that knows of a line what the table of messages says."""
STATED = "stated"
"""The code of a cause that a line states in its own words, which no check knows."""


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
    """Return the causes, most likely first; the order of `ranked` decides which one leads.

    `said`: what checks conclude from lines. `failing`: the lines that report a failure. `failed`: the user knows of
    one.
    """
    firm = [each for each in found if each.severity is Severity.FAIL and each.confidence != "unknown"]
    if not ranked or (firm and not _contradicted(log, firm[0], ranked[0], said)):
        return tuple(found)
    first = ranked[0]
    open_ones = [each for each in found if each.confidence == "unknown"]
    ended = bool(failing) or ended_badly(log, first)
    states = states_reason(first, ended=ended or _ends_there(log, first))
    own = next((each for each in open_ones if _rests_on(each, log.evidence(first))), None)
    if own and not states:
        finding = said[first.stream, first.line]
        lines = [line for each in ranked if (line := log.evidence(each)) in own.evidence or each is ranked[0]]
        told = replace(
            own,
            message=finding.message,
            remedy=finding.remedy or own.remedy,
            evidence=tuple(dict.fromkeys((*lines, *own.evidence))),
            consequences=tuple(each for each in own.consequences if lines[0] not in each.evidence[:1]),
        )
        return tuple(told if each is own else each for each in found)
    followed = [*firm, *open_ones]
    late = is_near_the_end(log, first) or any(
        is_near_the_end(log, each) for each in ranked if (why := reason_of(each.text)) and why == reason_of(first.text)
    )
    likely = _likely(log, ranked, followed, states=states, failed=failed or ended or late)
    return (likely, *(each for each in found if each not in followed))


def _likely(log: JobLog, ranked: Sequence[LogEvent], followed: Sequence[Cause], *, states: bool, failed: bool) -> Cause:
    """Return the first of the `ranked` lines as the cause, with `followed` as its consequences.

    `states`: the line gives the reason in its own words. `failed`: it is known that something did.
    """
    first, line = ranked[0], log.evidence(ranked[0])
    layer, text = layer_of(first), layer_report(first)
    consequences = [
        *(Consequence(each.id, each.message, each.ranks, each.nodes, each.evidence[:1]) for each in followed),
        *(each for cause in followed for each in cause.consequences),
    ]
    return Cause(
        code=STATED if states else "unknown",
        id="log.unexplained",
        confidence="named" if states else "unknown",
        severity=Severity.FAIL if failed else Severity.NOTE,
        message=text if states else f"most likely reason: {text}",
        blame=layer.fault if states and layer is not PROGRAM else "unknown",
        ranks=() if first.rank is None else (first.rank,),
        nodes=(first.host,) if first.host else (),
        evidence=tuple(map(log.evidence, ranked)),
        remedy=f"check {layer.look}" if layer.look and layer is not PROGRAM else "",
        collect=(f"start again with {layer.switch}",) if layer.switch and "NCCL_DEBUG" not in layer.switch else (),
        consequences=tuple(each for each in consequences if line not in each.evidence[:1]),
    )


_WRAPPERS, _ABOVE = frozenset(("launcher", "scheduler", "framework", "ray")), 60
"""Layers that say of what they started only that it ended, or did not begin; and how far above it said why itself."""


def _contradicted(log: JobLog, cause: Cause, first: LogEvent, said: Mapping[Place, Finding]) -> bool:
    """Return whether a cause rests on what a wrapper repeats, while `first`, from a layer inside it, matches no rule.

    A line of another rank or program contradicts nothing, unless the wrapper gives no reason and the program did
    shortly before.
    """
    of_another = first.rank is not None and cause.ranks and first.rank not in cause.ranks
    if of_another or (first.stream, first.line) in said or not cause.evidence:
        return False
    own = next((each for each in log.events if log.evidence(each) == cause.evidence[0]), None)
    if own is None or not states_reason(first, ended=True):
        return False
    wraps = layer_of(first) is not PROGRAM and layer_of(first).name in inside(layer_of(own).name)
    bare = layer_of(own).name in _WRAPPERS and cause.id == _BY_THE_TABLE and not has_own_reason(own.text)
    return wraps or (bare and own.stream == first.stream and 0 < own.line - first.line < _ABOVE)


def _rests_on(cause: Cause, line: Evidence) -> bool:
    return line in cause.evidence or any(line in each.evidence for each in cause.consequences)


def _ends_there(log: JobLog, line: LogEvent) -> bool:
    """Return whether a log ends shortly after a line, with no line of figures, as of work, behind it."""
    stream = log.streams[line.stream]
    last = "".join(stream.last.text.split()) if stream.last else ""
    figures = sum(map(str.isdecimal, last)) * 2 > len(last)
    return stream.nlines - line.line < _LAST and is_near_the_end(log, line) and not figures


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
