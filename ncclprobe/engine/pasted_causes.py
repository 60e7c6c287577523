"""Causes that `explain` finds in texts that people pasted for `doctor`: an Xid, a failed unit, an unscheduled pod."""

import json
import os
import pkgutil
import re
from collections.abc import Sequence
from typing import Any

from ncclprobe.facts.machine import NamedMachine
from ncclprobe.host import DROPPED, FAULTS, LOG, REDIRECTS, opener
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Certainty, Evidence, Finding, Severity, Status, Verdict
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot, learned
from ncclprobe.model.values import Struct

_STATUS = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN}
_MANY = 1000
"""This many dropped packets are worth a warning: RDMA retransmits everything after each one."""
_UNEXPLAINED = "log.unexplained"
"""The check that quotes a program's own message, such as `ls` not finding a file."""
_NONE = "log.gpu-failed"
"""The check that judges logs in which no cause is named."""


class SaidInTexts(Struct, frozen=True):
    """The verdicts of lines in pasted texts."""

    verdicts: tuple[Verdict, ...] = ()


NOTHING_SAID = SaidInTexts()


def said_in(paths: Sequence[str], pasted: Sequence[Snapshot]) -> SaidInTexts:
    """Return the certain causes in the lines of texts, as verdicts on the first of the `pasted` machines."""
    node, log = pasted[0].node, any(LOG in each.answers for each in pasted)
    report = _explained(paths) if log or any(map(_has_sign, paths)) else None
    known = [each for each in report.causes if each.confidence == "named"] if report else []
    named = [each for each in known if each.severity in _STATUS and each.evidence]
    named = [
        each
        for each in named
        if not each.id.startswith(_UNEXPLAINED) and not all(_is_command(line.text) for line in each.evidence)
    ]
    told = tuple(_verdict(cause, node) for cause in named) or (_mark_unexplained(report, node),) * log
    told += tuple(_losses(each) for each in pasted if DROPPED in each.answers)
    told += tuple(_stated(fault, each.node) for each in pasted for fault in _faults(each))
    return SaidInTexts((*told, *(_redirects(each) for each in pasted if REDIRECTS in each.answers)))


def _explained(paths: Sequence[str]) -> Report | None:
    """Return what `explain` says of texts; None: it knows no line."""
    from ncclprobe.engine.diagnose import LEFT, Judging, ask
    from ncclprobe.engine.explain import explain  # and what reads the logs of jobs, which takes as long as the doctor
    from ncclprobe.host import job_files
    from ncclprobe.model.errors import UsageError

    def no_report(path: str) -> Report:
        raise UsageError(f"{path}: not a text")

    try:
        return explain(ask(Judging(), ("doctor",), Job(), LEFT), job_files.named(list(paths)), no_report)
    except UsageError:
        return None


def _has_sign(path: str) -> bool:
    """Return whether a text may hold a line that `explain` knows: one of the signs of its checks, or wrapped ones."""
    with os.fdopen(opener.opened(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        data = file.read(_LONG)
    signs = (pkgutil.get_data("ncclprobe.logs", "signs.txt") or b"").splitlines()
    joined = b" ".join(data.split())
    return len(data) == _LONG or b"\0" in data or b"\x1b" in data or any(s in data or s in joined for s in signs)


_LONG = 1 << 16
"""A text of this many bytes is not searched for signs, but explained."""


class Fault(Struct, frozen=True):
    """What a text states, as a finding of the check `id`; `severity` is fail, warn, unknown or pass."""

    id: str
    subject: str
    message: str
    remedy: str
    severity: str


def _faults(machine: Snapshot) -> tuple[Fault, ...]:
    import msgspec

    return msgspec.json.decode(str(machine.answers.get(FAULTS, "[]")), type=tuple[Fault, ...])


def _stated(fault: Fault, node: str) -> Verdict:
    """Return the verdict on a fault that a text states."""
    if fault.severity == "pass":
        return Verdict(fault.id, node, Status.PASS, fault.message)
    if fault.severity == "unknown":
        why = f"{fault.subject} {fault.message}"
        return Verdict(fault.id, node, Status.UNKNOWN, "Every plugin that is named is there.", why, required=True)
    severity = Severity.FAIL if fault.severity == "fail" else Severity.WARN
    evidence = (Evidence("the pasted text"),)
    found = Finding(severity, fault.subject, fault.message, blame="node", evidence=evidence, remedy=fault.remedy)
    title = f"{fault.subject}: {fault.message}"
    return Verdict(fault.id, node, _STATUS[severity], title, findings=(found,))


def _is_command(text: str) -> bool:
    """Return whether a line is a command after a prompt, which reports nothing."""
    return bool(re.match(r"[\w.@:~/\[\] -]{0,60}[$#>] [a-z]", text))


_REDIRECTED = "A PCIe switch redirects traffic between its devices to the CPU (ACS)"


def _redirects(machine: Snapshot) -> Verdict:
    """Return the verdict on redirecting PCIe switch ports in ``lspci -vvv``, which a hypervisor needs."""
    found, others = json.loads(str(machine.answers[REDIRECTS]))
    named = learned(machine.facts, NamedMachine)
    if not found or (named and named.machine and named.machine.cloud != "oracle"):
        return Verdict("pci.acs", machine.node, Status.PASS, _REDIRECTED)
    message = f"{len(found)} of {len(found) + others} bridges redirect requests to the CPU (ACS)"
    remedy = "unless virtual machines run here, turn ACS off in the firmware setup, or with setpci at each boot"
    evidence = (Evidence("lspci -vvv", text=f"ACSCtl of {', '.join(dict.fromkeys(found[:4]))}: ReqRedir+"),)
    details: dict[str, Any] = {"blame": "node", "action": "fix-image", "evidence": evidence, "remedy": remedy}
    finding = Finding(Severity.WARN, "PCIe switches", message, **details)
    return Verdict("pci.acs", machine.node, Status.WARN, _REDIRECTED, findings=(finding,))


def _mark_unexplained(report: Report | None, node: str) -> Verdict:
    """Return the verdict on logs without a named cause: a failure that no check knows is not health."""
    if report is None or report.outcome != "failed":
        return Verdict(_NONE, node, Status.PASS, "No check recognises a failure in the pasted text.")
    line = next(
        (each.evidence[0].text for each in report.causes if each.evidence), "run `ncclprobe explain FILE` to see it"
    )
    why = f"a line reports a failure that no check recognises: {line}"
    return Verdict(
        _UNEXPLAINED, node, Status.UNKNOWN, "Every line that reports a failure is known.", why, required=True
    )


def _losses(machine: Snapshot) -> Verdict:
    """Return the verdict on dropped packets in ``ethtool -S``."""
    findings = []
    for name, lost in json.loads(str(machine.answers[DROPPED])).items():
        counted = ", ".join(f"{counter} is {count}" for counter, count in lost.items() if count >= _MANY)
        if counted:
            message = f"{counted}: packets arrived, but there was no buffer for them"
            remedy = "turn on priority flow control for the RoCE traffic class, on this port and on the switch"
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
