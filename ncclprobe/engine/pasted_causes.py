"""What `explain` names in texts that people pasted for `doctor`: an Xid, a unit that failed, a pod without a node."""

import json
from collections.abc import Sequence

from ncclprobe.host.pasted_ethtool import DROPPED
from ncclprobe.host.pasted_logs import LOG
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Certainty, Evidence, Finding, Severity, Status, Verdict
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import Struct

_STATUS = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN}


_MANY = 1000
"""So many dropped packets are worth a warning: RDMA sends all again from each one."""
_UNEXPLAINED = "log.unexplained"
"""The check that quotes what a program says for itself, such as an `ls` that finds no file."""
_NONE = "log.gpu-failed"
"""The check that has found nothing if no line of a text names a failure."""


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
    from ncclprobe.model.report import Report

    def no_report(path: str) -> Report:
        raise UsageError(f"{path}: not a text")

    try:
        found = explain(ask(Judging(), ("doctor",), Job(), LEFT), job_files.named(list(paths)), no_report).causes
    except UsageError:  # no line is known
        found = ()
    known = [each for each in found if each.confidence == "named" and not each.id.startswith(_UNEXPLAINED)]
    named = [each for each in known if each.severity in _STATUS and each.evidence]
    log = any(LOG in each.answers for each in pasted)
    healthy = Verdict(_NONE, pasted[0].node, Status.PASS, "No line of the pasted text names a failure.")
    told = tuple(_verdict(cause, pasted[0].node) for cause in named) or (healthy,) * log
    return SaidInTexts((*told, *(_losses(each) for each in pasted if DROPPED in each.answers)))


def _losses(machine: Snapshot) -> Verdict:
    """Return the verdict on the packets that the interfaces of ``ethtool -S`` have dropped."""
    findings = []
    for name, lost in json.loads(str(machine.answers[DROPPED])).items():
        counted = ", ".join(f"{counter} is {count}" for counter, count in lost.items() if count >= _MANY)
        if counted:
            message = f"{counted}: packets arrived and found no buffer"
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
