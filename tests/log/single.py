"""Texts of logs, and what each check on logs finds in each of them by itself, in all words.

A line of a table is a log. ↵ ends a line in it; "W:", "2I:" and "W@net.cc:" begin lines of NCCL. Other rows have names.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator

from ncclprobe.logs.job_log import Explained, JobLog
from ncclprobe.logs.reader import read
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check, discover
from tests.log.whole import cases


def _of_nccl(begins: re.Match[str]) -> str:
    number = int(begins[1] or 1)
    if begins[2] == "I":
        return f"n{number}:{number + 6}:{number + 6} [0] NCCL INFO "
    return f"n{number}:{number + 6}:9 [0] {begins[3] or '@x.cc'}:1 NCCL WARN ".replace("@", "")


_BEGINS = re.compile(r"(?m)^(\d?)([WI])(@[\w/.]+)?:")
"""How a line of NCCL begins here: the number of its host and process, its level, and the file of its source."""


def logs(*tables: str) -> dict[str, str]:
    """Return a log for each line of some tables, by its own words."""
    lines = [line for table in tables for line in table.strip("\n").split("\n")]
    return {line: _BEGINS.sub(_of_nccl, line.replace("↵", "\n")) for line in lines}


def around(before: str, words: str, after: str = "") -> str:
    """Return a table with a line for each of some words, which stand between commas."""
    return "\n".join(f"{before}{word}{after}" for word in re.split(r"(?<!\\), ", words)).replace("\\,", ",")


def in_words(found: Finding) -> str:
    """Return a finding in one line."""
    at, who = found.occurrence, f"{found.severity.name} {found.blame} {found.action} {found.subject} {found.nodes}"
    where = at and f"{at.ranks} {at.hosts} {at.peers} {at.peer_hosts} {at.comm} {at.stream}:{at.line} {at.codes}"
    rests_on = [each.line for each in found.evidence]
    return f"{who} {where} {at and at.ordered} {rests_on} {found.message} | {found.remedy}"


def _variants(
    failing: frozenset[tuple[int, int]], lines: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, Explained]]:
    """Yield what else may be explained of a log."""
    yield "", Explained(lines=lines, failing=failing)
    yield "of known lines", Explained(lines=lines, failing=failing & lines)
    for code in ("rank-crashed", "peer-unreachable", "ib-no-path", "oom"):
        yield f"perhaps {code}", Explained(lines=lines, failing=failing, could_be=(code,))
    yield "explained", Explained(("oom",), lines=lines, failing=failing)


def _last(rules: Iterable[Check], log: JobLog, of: tuple[str, Explained]) -> list[str]:
    """Return what checks find that also take what others found."""
    found: list[str] = []
    for rule in rules:
        with contextlib.suppress(Unlearned):
            found += [f"{rule.key} {of[0]}: {in_words(each)}" for each in rule.run(log, of[1])]
    return found


def outcomes(text: str) -> Iterator[tuple[str, object]]:
    """Yield each log with what each check finds in it."""
    known = {JobLog, Explained}
    rules = [each for each in discover("ncclprobe.checks.log", Check) if {need.fact for need in each.needs} <= known]
    signs = tuple(sign for rule in rules if rule.cause for sign in rule.cause.signs)
    for case in cases(text):
        log = read(((name, [text.encode()]) for name, text in case.files.items()), signs)
        failing = frozenset((event.stream, event.line) for event in log.events if event.level not in ("INFO", ""))
        first = [(rule.key, each) for rule in rules if len(rule.needs) == 1 for each in rule.run(log)]
        lines = frozenset((at.stream, at.line) for _, each in first if (at := each.occurrence))
        also = [rule for rule in rules if len(rule.needs) > 1]
        variants = _variants(failing, lines)
        last = _last(also, log, next(variants))
        for each in (
            variants if len(log.streams) > 1 or any(said.startswith("log.rank-silent") for said in last) else ()
        ):
            last += [said for said in _last(also, log, each) if "known-message" not in said]
        yield case.name, [each.split() for each in (*(f"{key}: {in_words(each)}" for key, each in first), *last)]
