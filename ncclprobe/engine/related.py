"""Relate slow results to findings on machines that may explain them. Pure; no finding is hidden."""

from collections.abc import Mapping, Sequence

from ncclprobe.engine.measured import is_idle
from ncclprobe.model.findings import Finding, Related, Severity, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.values import replace

_MOST = 8
"""Reasons that one symptom names; the others are findings of the report like any."""


def relate(
    verdicts: Sequence[Verdict], checks: Sequence[Check], unused: Mapping[str, frozenset[str]]
) -> tuple[Verdict, ...]:
    """Return `verdicts`, those on the run with what may be their cause.

    A cause is a finding of a check that `slows`, on a node that the symptom names or on any where it names none, and
    not only about devices that the run did not use (`unused`, by node).
    """
    slowing = {check.id for check in checks if check.slows}
    symptoms = {check.id for check in checks if check.of_run} - slowing
    causes = [(v, f) for v in verdicts if v.id in slowing for f in v.findings if _counts(v, f, unused)]
    return tuple(_with_causes(v, causes) if v.id in symptoms and v.findings else v for v in verdicts)


def _counts(verdict: Verdict, finding: Finding, unused: Mapping[str, frozenset[str]]) -> bool:
    return finding.severity is not Severity.NOTE and not is_idle(verdict, finding, unused)


def _with_causes(verdict: Verdict, causes: Sequence[tuple[Verdict, Finding]]) -> Verdict:
    return replace(verdict, findings=tuple(_with_cause(finding, causes) for finding in verdict.findings))


def _with_cause(finding: Finding, causes: Sequence[tuple[Verdict, Finding]]) -> Finding:
    if finding.severity is Severity.NOTE:
        return finding
    here = [(v, f) for v, f in causes if _same_place(finding, v, f)]
    here.sort(key=lambda each: each[1].severity is not Severity.FAIL)  # what stops a job before what costs speed
    named = dict.fromkeys(Related(v.id, f.subject) for v, f in here)
    return replace(finding, related=(*finding.related, *list(named)[:_MOST]))


def _same_place(symptom: Finding, verdict: Verdict, cause: Finding) -> bool:
    """Return whether both are about one node; what names no node is about all."""
    nodes = {verdict.node} if verdict.node is not None else set(cause.nodes)
    return not symptom.nodes or not nodes or not nodes.isdisjoint(symptom.nodes)
