"""From a host to facts, and from facts to verdicts, a status and an exit code.

The rules that make a verdict trustworthy live here: a check whose facts are absent is UNKNOWN and never PASS; a
required check that is UNKNOWN makes the whole run inconclusive; a consequence of a failure that another check
already explains is SKIP; a check that raises spoils nobody's verdict but its own.
"""

import fnmatch
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ncclprobe.errors import HostError, NotCaptured, ParseError, Unlearned
from ncclprobe.host import Host
from ncclprobe.model import (
    Absent,
    Check,
    Collector,
    ExitCode,
    Finding,
    Job,
    Need,
    Severity,
    Snapshot,
    Status,
    Suppression,
    Verdict,
)

Facts = dict[type, Any]


def collect(host: Host, collectors: Sequence[Collector], *, at_once: bool = False) -> Facts:
    """Every fact that `host` can give, or ``Absent`` with the reason, in the order in which facts need each other.

    `at_once`: on threads, so that slow commands of a live machine are waited for together.
    """
    facts: Facts = {}
    waiting = list(collectors)
    while waiting:
        ready = [c for c in waiting if all(need.fact in facts for need in c.needs)] or waiting  # a need nobody produces
        learn = partial(_learn, host=host, facts=facts)
        learned = _on_threads(learn, ready) if at_once else map(learn, ready)
        facts |= dict(zip((c.produces for c in ready), learned, strict=True))
        waiting = [c for c in waiting if c.produces not in facts]
    return facts


def _on_threads(learn: Callable[[Collector], Any], collectors: Sequence[Collector]) -> list[Any]:
    """What `learn` makes of each collector. Every question has its own deadline, so every thread ends."""
    learned: dict[type, Any] = {}

    def work(collector: Collector) -> None:
        learned[collector.produces] = learn(collector)

    threads = [threading.Thread(target=work, args=(c,), daemon=True) for c in collectors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [learned[c.produces] for c in collectors]


def _learn(collector: Collector, *, host: Host, facts: Facts) -> Any:
    given, missing = _arguments(collector.needs, facts)
    if missing:
        return missing[0]
    try:
        return collector.run(host, *given)
    except HostError as refusal:
        return Absent(str(refusal), type(refusal).__name__)
    except (ParseError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # A capture may hold any text as an answer.
        return Absent(f"not understood (please report it): {type(error).__name__}: {error}", "ParseError")


def _arguments(needs: Iterable[Need], facts: Mapping[type, Any]) -> tuple[list[Any], list[Absent]]:
    """The facts for `needs`, and those of them that are absent though they are needed."""
    given, missing = [], []
    for need in needs:
        fact = facts.get(need.fact, Absent(f"{need.fact.__name__} was never collected"))
        if isinstance(fact, Absent) and not need.accepts_absent:
            missing.append(fact)
        given.append(fact)
    return given, missing


def judge(snapshots: Sequence[Snapshot], checks: Sequence[Check], job: Job) -> tuple[Verdict, ...]:
    """What every check says of every node. Verdicts come in the order of `checks`, node by node."""
    verdicts: list[Verdict] = []
    for snapshot in snapshots:
        facts = {**snapshot.facts, Job: job}
        first = {c.id: _judge_one(c, snapshot.node, facts) for c in checks}
        verdicts += [_silenced(c, first) for c in checks]
    return tuple(verdicts)


def _judge_one(check: Check, node: str, facts: Mapping[type, Any]) -> Verdict:
    blank = Verdict(check.id, node, Status.UNKNOWN, check.title, required=check.required)
    if check.applies:
        given, missing = _arguments(check.applies.needs, facts)
        if missing:
            return _unknown(blank, missing, check.privilege)
        if not check.applies.run(*given):
            return replace(blank, status=Status.SKIP, why=f"applies only {check.applies.words}")
    given, missing = _arguments(check.needs, facts)
    if missing:
        return _unknown(blank, missing, check.privilege)
    try:
        findings = tuple(check.run(*given))
    except Unlearned as gap:
        return _unknown(blank, [Absent(str(gap))], check.privilege)
    except Exception as error:  # noqa: BLE001 - one check's bug must not take the other verdicts with it
        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the check itself broke: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return replace(blank, why=why)
    return replace(blank, status=_worst(findings), findings=tuple(_with_remedy(f, check) for f in findings))


def _unknown(blank: Verdict, missing: Sequence[Absent], privilege: str) -> Verdict:
    why = "; ".join(dict.fromkeys(fact.why for fact in missing))
    if privilege and any(fact.refused == "Denied" for fact in missing):
        why += f" (needs {privilege})"
    never_asked = all(fact.refused == NotCaptured.__name__ for fact in missing)
    return replace(blank, why=why, required=blank.required and not never_asked)


def _with_remedy(finding: Finding, check: Check) -> Finding:
    return finding if finding.remedy else replace(finding, remedy=check.fix)


def _worst(findings: Iterable[Finding]) -> Status:
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Status.FAIL
    return Status.WARN if Severity.WARN in severities else Status.PASS


def _silenced(check: Check, verdicts: Mapping[str, Verdict]) -> Verdict:
    """`check`'s verdict, or SKIP where the check that it requires has failed and so explains it."""
    verdict, cause = verdicts[check.id], verdicts.get(check.requires)
    if cause and cause.status is Status.FAIL and verdict.status in (Status.WARN, Status.FAIL, Status.UNKNOWN):
        return replace(verdict, status=Status.SKIP, why=f"explained by {check.requires}", findings=())
    return verdict


def selected(checks: Sequence[Check], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks whose id matches one of `select` (none: all) and no whole-check pattern of `ignore`."""
    whole = [pattern for pattern in ignore if "=" not in pattern]
    return tuple(
        c
        for c in checks
        if (not select or any(fnmatch.fnmatchcase(c.id, pattern) for pattern in select))
        and not any(fnmatch.fnmatchcase(c.id, pattern) for pattern in whole)
    )


def suppress(verdicts: Sequence[Verdict], ignore: Sequence[str]) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...]]:
    """`verdicts` without the findings that ``id=subject`` patterns name, and the list of what was left out."""
    pairs = [tuple(pattern.split("=", 1)) for pattern in ignore if "=" in pattern]
    kept, left_out = [], []
    for verdict in verdicts:
        hidden = [
            f
            for f in verdict.findings
            if any(fnmatch.fnmatchcase(verdict.id, i) and fnmatch.fnmatchcase(f.subject, s) for i, s in pairs)
        ]
        if hidden:
            left_out += [Suppression(verdict.id, f.subject, "--ignore") for f in hidden]
            findings = tuple(f for f in verdict.findings if f not in hidden)
            verdict = replace(verdict, findings=findings, status=_worst(findings))
        kept.append(verdict)
    return tuple(kept), tuple(left_out)


def conclude(verdicts: Sequence[Verdict], fail_on: str = "fail", inconclusive: bool = False) -> tuple[Status, ExitCode]:
    """The status of a run and the exit code a gate should see (contract, Exit codes).

    `inconclusive`: the caller knows of something required that was not looked at: a missing node, a number that
    nothing judges.
    """
    found = {verdict.status for verdict in verdicts}
    if Status.FAIL in found:
        return Status.FAIL, ExitCode.FAIL
    if Status.WARN in found and fail_on == "warn":
        return Status.WARN, ExitCode.FAIL
    blind = any(v.status is Status.UNKNOWN and v.required for v in verdicts)
    if inconclusive or blind or not found & {Status.PASS, Status.WARN}:
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return (Status.WARN if Status.WARN in found else Status.PASS), ExitCode.OK


def coverage(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many verdicts have each status; every status is there, also at zero."""
    counts = Counter(verdict.status for verdict in verdicts)
    return {status.value: counts[status] for status in Status}
