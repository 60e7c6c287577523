"""What the table of messages says of lines that no other check makes anything of."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import IMAGE, JOB, NODE, UNPROVEN, each, failed, of_peer
from ncclprobe.facts.files import messages
from ncclprobe.facts.files.job_log import Explained, JobLog, LogEvent
from ncclprobe.facts.files.texts import address_of, number
from ncclprobe.localise.outcome import lived_on
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import replace

_REFUSED = (
    "Unrecognized element token",
    "Unrecognized prefix token",
    "All entries except the first must have a prefix",
    "o algorithm/protocol available",
    "no symmetric kernel available",
    "Invalid NCCL_COMM_ID",
    "Could not force merge NICs",
)


@cause(
    code="nccl-setting",
    signs=_REFUSED,
    doctor="env.forced-algo",
    bad=lambda: ['n1:7:7 [0] graph/tuning.cc:9 NCCL WARN Unrecognized element token "Rng" when parsing "Rng"'],
    good=lambda: ["n1:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Ring"],
)
def setting_refused(log: JobLog) -> Iterator[Finding]:
    """NCCL refuses the value of a variable.

    Right: NCCL took the values of all its variables.
    Why: the variable names what NCCL does not know, or leaves no algorithm for a collective on this machine.
    Fix: unset the variable that the line names, or write its value as NCCL's documentation has it.
    """
    yield from each(log, _REFUSED, "NCCL refuses the value of a variable", **JOB)


@cause(
    echoes=("*",),
    bad=lambda: [(_log("Call to ibv_frob failed"), Explained())],
    good=lambda: [(_log("Call to ibv_frob failed"), Explained(lines=frozenset({(0, 1)})))],
)
def known_message(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A program says that something failed, in words that its sources have.

    Right: no line of a failed job is known from sources alone.
    Why: no check reads more out of the line than its message says; ncclprobe's table knows where it is in the sources,
    what follows it there, and whether it says why or only that something failed.
    Fix: look at what the same rank, and the peer that the line names, said before.
    """
    failure = failed(log)
    for event in log.events:
        if event.level not in ("INFO", "TRACE", "DEBUG") and (event.stream, event.line) not in explained.lines:
            found = messages.said(event.text, event.level)
            if found and _speaks(event, found, failure) and not lived_on(log, event):
                yield _finding(log, event, found)


def _speaks(event: LogEvent, found: messages.Message, failure: bool) -> bool:
    """Return whether a line counts. `failure`: the job failed; else only causes do, and none of a plugin, without which
    NCCL goes on.
    """
    if found.row.level == "FATAL":
        return found.kind in ("cause", "symptom", "consequence")
    alone = found.kind == "cause" and found.row.project != "ofi"
    counts = alone or (failure and found.kind in ("cause", "symptom", "consequence"))
    return event.level in ("WARN", "ERROR", "EXCEPTION") and counts


def _finding(log: JobLog, event: LogEvent, found: messages.Message) -> Finding:
    """Return a cause, or what another line explains; the peer of a line is at fault where its meaning says so."""
    text = messages.origin(found)
    host, rank = found.held("host").strip(), number(found.held("rank")) if found.row.level == "FATAL" else None
    peer = number(found.held("peer")) if found.row.meaning.endswith(" peer") else None
    details: dict[str, Any] = {} if peer is None else {"peers": (peer,)}
    details |= of_peer(log, address_of(found.held("address")))
    codes, why = (found.codes, text) if found.codes else _by_error(event, found)
    if not codes:
        return consequence(log, event, text, action="none", **details)
    whose = NODE if host else JOB if {*codes} <= _OF_THE_JOB else IMAGE if {*codes} <= _OF_THE_IMAGE else {}
    if any(words in text for words in _DO_NOT_KNOW):
        whose = UNPROVEN
    told = said(log, event, why, codes=codes, ranks=() if rank is None else (rank,), **details, **whose)
    if host and told.occurrence:
        told = replace(told, nodes=(host,), occurrence=replace(told.occurrence, hosts=(host,)))
    return told


_DO_NOT_KNOW = ("does not say why", "has ended, or its host")
"""Meanings of lines that tell that a process is gone, and not how."""
_OF_THE_JOB = {"rank-crashed", "memlock", "nccl-setting", "gloo-iface", "collective-desync", "graph-file"}
_OF_THE_IMAGE = {"plugin-mismatch", "plugin-missing", "efa-no-provider", "cuda-driver-mismatch", "nccl-lib-mismatch"}
_NO_MEMORY, _REFUSAL = "Cannot allocate memory", "onnection refused"
_PINS = ("regist", "reg_mr", "regattr")
_OPENS = ("domain", "endpoint", "CQ", "completion queue")


def _by_error(event: LogEvent, found: messages.Message) -> tuple[tuple[str, ...], str]:
    """Return what the kernel's error says of a call that failed, by codes and in words; empty: it does not tell."""
    if found.kind != "symptom":
        return (), ""
    if _NO_MEMORY in event.text and any(word in event.text for word in _PINS):
        return ("memlock",), f"memory cannot be registered: {_NO_MEMORY}"
    if _NO_MEMORY in event.text and any(word in event.text for word in _OPENS):
        return ("memlock", "oom"), f"a device or its queues cannot be opened: {_NO_MEMORY}"
    if _REFUSAL in event.text and (peer := address_of(found.held("address"))):
        return ("rank-crashed", "peer-unreachable"), f"{peer} refuses the connection"
    return (), ""


def _log(text: str) -> JobLog:
    from ncclprobe.facts.files.job_log import LogStream

    failure = LogEvent(0, 2, "NCCL failure", level="ERROR")
    return JobLog((LogStream("a.log", 2),), (LogEvent(0, 1, text, host="n1", pid=7, level="WARN"), failure))
