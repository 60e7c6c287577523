"""What `explain` names in texts that people pasted for `doctor`: an Xid, a unit that failed, a pod without a node."""

import json
from collections.abc import Sequence

from ncclprobe.host.pasted_ethtool import DROPPED
from ncclprobe.host.pasted_logs import LOG
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Certainty, Evidence, Finding, Severity, Status, Verdict
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import Struct

_STATUS = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN}
_MANY = 1000
"""So many dropped packets are worth a warning: RDMA sends all again from each one."""
_UNEXPLAINED = "log.unexplained"
"""The check that quotes what a program says for itself, such as an `ls` that finds no file."""
_NONE = "log.gpu-failed"
"""The check under which logs are judged in which no cause is named."""


class SaidInTexts(Struct, frozen=True):
    """The verdicts of lines in pasted texts."""

    verdicts: tuple[Verdict, ...] = ()


NOTHING_SAID = SaidInTexts()


def said_in(paths: Sequence[str], pasted: Sequence[Snapshot]) -> SaidInTexts:
    """Return what the lines of texts name without doubt, as verdicts on the first of the `pasted` machines."""
    from ncclprobe.engine.diagnose import LEFT, Judging, ask
    from ncclprobe.engine.explain import explain  # and what reads the logs of jobs
    from ncclprobe.host import job_files
    from ncclprobe.model.errors import UsageError

    def no_report(path: str) -> Report:
        raise UsageError(f"{path}: not a text")

    node, log = pasted[0].node, any(LOG in each.answers for each in pasted)
    try:
        report = explain(ask(Judging(), ("doctor",), Job(), LEFT), job_files.named(list(paths)), no_report)
    except UsageError:  # no line is known
        report = None
    known = [each for each in report.causes if each.confidence == "named"] if report else []
    named = [each for each in known if each.severity in _STATUS and each.evidence]
    named = [each for each in named if not each.id.startswith(_UNEXPLAINED)]
    told = tuple(_verdict(cause, node) for cause in named) or (_mark_unexplained(report, node),) * log
    return SaidInTexts((*told, *(_losses(each) for each in pasted if DROPPED in each.answers)))


def _mark_unexplained(report: Report | None, node: str) -> Verdict:
    """Return the verdict on logs without a named cause: a failure that no check knows is not health."""
    if report is None or report.outcome != "failed":
        return Verdict(_NONE, node, Status.PASS, "No check recognises a failure in the pasted text.")
    line = next((each.evidence[0].text for each in report.causes if each.evidence), "`ncclprobe explain FILE` shows it")
    why = f"a line reports a failure that no check recognises: {line}"
    return Verdict(
        _UNEXPLAINED, node, Status.UNKNOWN, "Every line that reports a failure is known.", why, required=True
    )


def _losses(machine: Snapshot) -> Verdict:
    """Return the verdict on the packets that the interfaces of ``ethtool -S`` have dropped."""
    findings = []
    for name, lost in json.loads(str(machine.answers[DROPPED])).items():
        counted = ", ".join(f"{counter} is {count}" for counter, count in lost.items() if count >= _MANY)
        if counted:
            message = f"{counted}: packets arrived, but there was no buffer for them"
            remedy = "turn on priority flow control for the traffic class of RoCE, on this port and on the switch"
            evidence = (Evidence(f"ethtool -S {name}"),)
            findings.append(Finding(Severity.WARN, name, message, blame="link", evidence=evidence, remedy=remedy))
    status = Status.WARN if findings else Status.PASS
    return Verdict("ib.losses", machine.node, status, "A port drops packets", findings=tuple(findings))


def _verdict(cause: Cause, node: str) -> Verdict:
    finding = Finding(
        cause.severity,
        ", ".join(cause.nodes[:3]) or "pasted text",
        cause.message,
        blame=cause.blame,
        action=cause.action,
        confidence=Certainty("high", "stated in the text"),
        evidence=cause.evidence,
        remedy=cause.remedy,
        headline=cause.message,
    )
    name, _, part = cause.id.partition("/")
    return Verdict(name, node, _STATUS[cause.severity], cause.message, findings=(finding,), part=part)
