"""Lines of which no other check makes anything: known by the table of messages, harmless, or unexplained."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import IMAGE, JOB, NODE, UNPROVEN, each, failed, of_peer
from ncclprobe.errors import Unlearned
from ncclprobe.facts.files import messages
from ncclprobe.facts.files.job_log import Explained, JobLog, LogEvent
from ncclprobe.facts.files.texts import address_of, number
from ncclprobe.localise.outcome import lived_on
from ncclprobe.model.findings import Finding, seen, warn
from ncclprobe.model.values import replace
from ncclprobe.units import whole_words

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


HARMLESS = (
    "network addresses of (",
    "failed to listen on any local network address. Continuing",
    "destroy_process_group() was not called",
    "is deprecated",
    "Unable to register cuDNN factory",
    "Unable to register cuFFT factory",
    "Unable to register cuBLAS factory",
    "computation placer already registered",
    "Guessing device ID based on global rank",
    "using GPU ",  # to perform barrier as devices used by this process are currently unknown
    "OMP_NUM_THREADS environment variable",
    "couldn't load driver",
    "ignore_errors",
    "pip's dependency resolver",
    "errors 0",
    "error_file",
    "Sending process",
    "closing signal SIGTERM",
    ") of binary: ",  # torchrun's, of every process that failed; its summary says the same again
    "Signal 15 (SIGTERM)",  # how a launcher ends the other ranks
    "ibv_get_device_list",
    "NET/Plugin: Could not find",
    "NET/Plugin : No plugin found",
    "No plugin found",
    ": going to /tmp instead",  # slurmstepd, of a folder that the node has not
    "libibverbs: Warning",
    "FutureWarning",
    "UserWarning",
    "DeprecationWarning",
    # NCCL's own warnings after which it goes on, 2.4 to 2.30
    "Failed to open libibverbs.so",  # a machine without RDMA; a warning until 2.10
    "Call to bind failed",  # of the RAS port that another job has; elsewhere log.port-taken speaks of it
    "client reregistration",  # the subnet manager asks ports to register again
    "async event : port active",
    "async event: port active",
    "async event : SM change",
    "async event: SM change",
    "CollNet is not supported or fails to initialize",
    "CollNet currently only supports",
    # torch's at W
    "as device used by this process is currently unknown",
    'Failed to check the "should dump" flag',  # rank 0, which keeps the store, ended first
    "recvVector failed on",
    "recvValue failed on",
    "recvValueWithTimeout failed on",
    "sendBytes failed on",
)
"""Texts of such lines, where the table of messages does not have them: of older releases and of other programs.

They are counted nowhere; where one of them matters after all, a check says so by itself.
"""


def harmless(event: LogEvent) -> bool:
    """Return whether a line is one of them, or one after which its program goes on as its sources say."""
    if any(text in event.text for text in HARMLESS):
        return True
    found = messages.said(event.text, event.level)
    return found is not None and found.kind in ("harmless", "aside")


def understood(event: LogEvent) -> bool:
    """Return whether a line has a meaning, if only that of a symptom."""
    found = messages.said(event.text, event.level)
    return harmless(event) or (found is not None and found.kind != "?")


ENDINGS = ("EXCEPTION", "ROOT CAUSE", "FAILURE", "FATAL")
"""Levels of lines after which a process does not go on."""


@cause(
    bad=lambda: [(_log_of(LogEvent(0, 1, "ValueError: x", level="EXCEPTION")), Explained(("oom",)))],
    good=lambda: [(_log_of(LogEvent(0, 1, "loss 3.1")), Explained())],
    required=True,
)
def unexplained(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A failure has no named cause.

    Right: every failure in the logs has a named cause, or there is none.
    Why: a log may show only what followed: a return code, a timeout, a connection that a peer closed. The cause is then
    in another rank's log, in the kernel's, or was not logged.
    Fix: collect what is missing as the report says, and explain all of it together.
    """
    left = [each for each in log.events if each.level in ENDINGS and (each.stream, each.line) not in explained.lines]
    if not explained.codes and (left or explained.open):
        raise Unlearned(_why(log, left, explained))
    for event in left[:1]:
        evidence = seen(log.streams[event.stream].name, event.text, event.line)
        text = f"{len(left)} lines that end a process are of no known form"
        yield warn(log.where(event), text, evidence=evidence, action="none")


def _why(log: JobLog, left: list[LogEvent], explained: Explained) -> str:
    if explained.open:
        return f"the logs show what followed from a failure, and no line says why: {', '.join(explained.open)}"
    first = left[0]
    where, text = f"{log.streams[first.stream].name}:{first.line}", whole_words(first.text, 200)
    return f"{where} says of a failure what no check knows: {text}"


def _log_of(event: LogEvent) -> JobLog:
    from ncclprobe.facts.files.job_log import LogStream

    return JobLog((LogStream("a.log", 1),), (event,))
