"""What is known of one check, on one screen: problem, reason, remedy, and two of its examples, which are judged here.

Everything is read from the check itself, so it cannot disagree with what the check does.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from ncclprobe import bounds
from ncclprobe.engine.differences import Difference, differences
from ncclprobe.engine.screen import LINES, headed, shortened, wrapped
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.host.patience import outcome
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check, Collector, Need, discover
from ncclprobe.model.values import Struct

_SOURCES = re.compile(
    r"[A-Za-z][\w./-]*#\d+"  # nccl#342
    r"|\b(?:src|drivers|net|mm|graph|torch|Documentation|gloo|plugins)/[\w./-]*\w(?::\d+)?"
    r"|\b\w+\([1-8]\)"  # mlock(2)
    r"|\b[\w-]+\.(?:cc|cpp|rst|hpp|h|py)\b(?::\d+)?"
)
_MOST_DIFFERENCES = 5
_MOST_FINDINGS = 2


class Pair(Struct, frozen=True):
    """Two examples that differ in little: what the check finds in the first, what in the second, and what differs."""

    found: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    different: tuple[Difference, ...]


def of_check(check: Check) -> list[str]:
    """Return the lines, no more than a screen has: of long lists of differences the first."""
    above = list(_about(check))
    try:
        pair, error = outcome(time.monotonic() + bounds.SITE_EXAMPLES_S, partial(examples, check))
    except TimeoutError as late:
        pair, error = None, late
    if pair is None:
        return [*above, "", f"its examples raise {type(error).__name__}; `ncclprobe checks --test` says where"]
    for shown in range(_MOST_DIFFERENCES, 0, -1):
        lines = [*above, "", *shown_examples(pair, shown)]
        if len(lines) <= LINES:
            break
    return lines


def shown_examples(pair: Pair, most: int = _MOST_DIFFERENCES) -> list[str]:
    """Return the lines on both examples, with so many of their differences at most."""
    return [*_example(pair, most, first=True), "", *_example(pair, most, first=False)]


def _about(check: Check) -> Iterator[str]:
    yield from wrapped(f"{check.id}  ", check.title)
    yield ""
    for head, text in about(check):
        yield from headed(head, text)


def about(check: Check) -> list[tuple[str, str]]:
    """Return what is known of a check but its title and examples, each under its head; a text may be empty."""
    collectors = {each.produces: each for each in discover("ncclprobe.facts", Collector)}
    inconclusive = ": a run that could not look is inconclusive" if check.required else ""
    silenced = f"when {check.requires} fails, which explains it; " if check.requires else ""
    return [
        ("passes", f"{check.right}."),
        ("why", check.why),
        ("fix", check.fix),
        ("looks at", ", ".join(dict.fromkeys(_source(need, collectors) for need in check.needs))),
        ("applies", f"only {check.applies.words}" if check.applies else ""),
        ("standing", f"{check.standing}{inconclusive}"),
        ("needs", check.privilege),
        ("silenced", f"{silenced}with --ignore '{check.id}=SUBJECT', or in ncclprobe.toml"),
        ("sources", ", ".join(dict.fromkeys(_SOURCES.findall(f"{check.why} {check.fix}")))),
    ]


def _source(need: Need, collectors: Mapping[type, Collector]) -> str:
    if need.fact in collectors:
        return collectors[need.fact].run.__name__
    if need.fact is Choices:
        return "what NCCL would choose"
    return f"what a job left: {need.name.replace('_', ' ')}" if need.of == "files" else "the options"


def examples(check: Check) -> Pair:
    """Return the two examples that have most in common, of which the check objects to one and accepts the other."""
    pairs = [
        (
            tuple(check.run(*bad)),
            good,
            [d for name, a, b in _arguments(check, bad, good) for d in differences(a, b, name)],
        )
        for bad, good in product(check.bad, check.good)
    ]
    loud = [pair for pair in pairs if any(f.severity is not Severity.NOTE for f in pair[0])] or pairs
    found, good, different = min(loud, key=lambda pair: (len(pair[2]), sum(len(d.here + d.there) for d in pair[2])))
    return Pair(found, tuple(check.run(*good)), tuple(different))


def _arguments(check: Check, bad: Sequence[Any], good: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    names = (need.name.replace("_", " ") for need in check.needs)
    return zip(names, map(_as_read, bad), map(_as_read, good), strict=True)


def _as_read(fact: Any) -> Any:
    """Return of logs the lines as they were read, by their numbers, with who wrote them."""
    if not isinstance(fact, JobLog):
        return fact
    return {f"{fact.streams[e.stream].name}:{e.line}": _line(e) for e in fact.events}


def _line(event: LogEvent) -> str:
    process = "" if event.pid is None else f":{event.pid}"
    who = f"{event.host}{process}" if event.host else "" if event.rank is None else f"rank {event.rank}:"
    return " ".join(filter(None, (who, event.place, event.level, event.text)))


def _example(pair: Pair, most: int, first: bool) -> Iterator[str]:
    yield "example that triggers it:" if first else "example that does not:"
    for each in pair.different[:most]:
        yield from shortened("    ", f"{each.where}: {each.here if first else each.there}", lines=1)
    if len(pair.different) > most:
        yield f"    and {len(pair.different) - most} more"
    findings = pair.found if first else pair.accepted
    for finding in findings[:_MOST_FINDINGS]:
        said = f"{finding.severity.value.upper()} {finding.subject}: {finding.message}"
        yield from shortened("    -> ", said, lines=2)
    if not findings:
        yield "    -> pass"
