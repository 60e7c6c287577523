"""What `explain` names in texts that people pasted for `doctor`: an Xid, a unit that failed, a pod without a node."""

from collections.abc import Sequence

from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Certainty, Finding, Severity, Status, Verdict
from ncclprobe.model.values import Struct

_STATUS = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN}


_NONE = "log.gpu-failed"
"""The check that has found nothing if no line of a text names a failure."""


class SaidInTexts(Struct, frozen=True):
    """The verdicts of lines in pasted texts."""

    verdicts: tuple[Verdict, ...] = ()


NOTHING_SAID = SaidInTexts()


def said_in(paths: Sequence[str], node: str, *, log: bool) -> SaidInTexts:
    """Return what the lines of texts name without doubt, as verdicts on `node`. `log`: one is a log."""
    from ncclprobe.engine.diagnose import LEFT, Judging, ask
    from ncclprobe.engine.explain import explain  # and what reads the logs of jobs
    from ncclprobe.host import job_files
    from ncclprobe.model.errors import UsageError
    from ncclprobe.model.report import Report
    from ncclprobe.model.snapshot import Job

    def no_report(path: str) -> Report:
        raise UsageError(f"{path}: not a text")

    try:
        found = explain(ask(Judging(), ("doctor",), Job(), LEFT), job_files.named(list(paths)), no_report).causes
    except UsageError:  # no line is known
        found = ()
    named = [each for each in found if each.confidence == "named" and each.severity in _STATUS and each.evidence]
    healthy = Verdict(_NONE, node, Status.PASS, "No line of the pasted texts names a failure.")
    return SaidInTexts(tuple(_verdict(cause, node) for cause in named) or (healthy,) * log)


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
