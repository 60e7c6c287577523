"""What checks of a job's logs ask of its lines, and say of them in the same way."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import said
from ncclprobe.logs.job_log import SUMMARY, JobLog, LogEvent
from ncclprobe.logs.nccl_lines import used
from ncclprobe.logs.texts import between, number
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import grouped, replace

JOB: dict[str, Any] = {"blame": "job", "action": "fix-job"}
IMAGE: dict[str, Any] = {"blame": "image", "action": "fix-image"}
UNPROVEN: dict[str, Any] = {"blame": "unknown", "action": "retest"}
NODE: dict[str, Any] = {"blame": "node", "action": "repair"}
LINK: dict[str, Any] = {"blame": "link", "action": "repair"}
FABRIC: dict[str, Any] = {"blame": "fabric", "action": "repair"}
RETEST: dict[str, Any] = {"blame": "fabric", "action": "retest"}
RESTART: dict[str, Any] = {"blame": "unknown", "action": "restart"}
LIMIT: dict[str, Any] = {"blame": "unknown", "action": "fix-job"}
"""Who is at fault, and what helps: for :func:`said`."""

FAILED = (
    "unhandled system error",
    "unhandled cuda error",
    "internal error - please report",
    "remote process exited or",
    "Watchdog caught",
    "exceeded error retry count",
    "exceeded retries",
    "Connection closed by remote peer",
    "Got completion",
    "ChildFailedError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "RuntimeError",
    "terminate called after",
    "Segmentation fault",
    "NCCL failure",
    "Test NCCL failure",
)
"""Texts of lines that report a failure, whatever the cause. An oddity that is not a failure by itself, such as ranks
with different settings, is a cause only in a log that holds one of them.
"""


def failed(log: JobLog) -> bool:
    """Return whether a line of the job reports a failure."""
    said_so = any(event.level != "INFO" and not warned(event) for event in log.having(*FAILED))
    return said_so or any(event.host and event.level == "WARN" for event in log.having("onnect to "))


def demoted(event: LogEvent) -> bool:
    """Return whether NCCL wrote an error at INFO: it tried something and goes on without it."""
    return event.level in ("INFO", "TRACE") and bool(event.host)


def warned(event: LogEvent) -> bool:
    """Return whether torch wrote it as a warning: it tries something else, and logs it again if that fails."""
    return event.level == "WARN" and (".cpp:" in event.place or ".py:" in event.place)


def blame_no_rank(found: Finding) -> Finding:
    """Return a finding as one of the job: the line does not show which rank is at fault, its writer or another."""
    return blame_hosts(found, ranks=())


def blame_hosts(found: Finding, *hosts: str, ranks: tuple[int, ...] | None = None) -> Finding:
    """Return a finding as one of the hosts that its line names, and of `ranks` (None: as it was), not of its writer."""
    at = found.occurrence
    told = at and replace(at, hosts=hosts, ranks=at.ranks if ranks is None else ranks)
    return replace(found, occurrence=told, nodes=hosts)


_OF_THE_JOB = (
    "gloo", "Gloo", "c10d", "Dist", "NCCL", "nccl", "Store", "RuntimeError: ", "UCX", "OFI", "socketProgress",
    "socketStartConnect", "socketPollConnect",
)  # fmt: skip
"""The last three are functions of NCCL (src/misc/socket.cc), whose words torch repeats beneath "Last error:"."""


def of_the_job(event: LogEvent) -> bool:
    """Return whether the line is of the ranks' own connections: programs also lose those to models and data."""
    return bool(event.host and event.level == "WARN") or any(text in event.text for text in _OF_THE_JOB)


def each(
    log: JobLog, signs: tuple[str, ...], message: str, *, but: tuple[str, ...] = (), **details: Any
) -> Iterator[Finding]:
    """Yield a finding for every line that holds one of `signs` and none of `but`, but for NCCL's demoted ones."""
    for event in log.having(*signs):
        if not demoted(event) and not any(text in event.text for text in but):
            yield said(log, event, message, **details)


def kernel_line_ranks(log: JobLog, event: LogEvent) -> tuple[int, ...]:
    """Return the rank whose process a line of the kernel names, if other lines show that process's number and host."""
    pid = number(between(event.text, "Killed process ")) or number(between(event.text, "pid="))
    host = event.host.partition(".")[0]
    found = (each for each in log.ranks.values() if pid is not None and each.pid == pid)
    ranks = tuple(each.rank for each in found if host in ("", each.host.partition(".")[0]))
    return ranks if len(ranks) == 1 else ()


def rdma_found(log: JobLog) -> bool:
    """Return whether a rank found an InfiniBand or RoCE device: without any, NCCL writes "Using" and no name."""
    return any(used(event.text) for event in log.having("NET/IB : Using"))


def informed(log: JobLog, signs: tuple[str, ...], message: str, **details: Any) -> Iterator[Finding]:
    """Yield the same for lines of any level, once for each process that wrote one."""
    for event, *_ in grouped(((e.stream, e.host, e.pid), e) for e in log.having(*signs)).values():
        yield said(log, event, message, **details)


def following(log: JobLog, event: LogEvent, nlines: int) -> Iterator[LogEvent]:
    """Yield the events of the same log in the `nlines` lines after this one."""
    place = bisect_right(log.events, (event.stream, event.line), key=lambda other: (other.stream, other.line))
    for other in log.events[place : place + nlines]:
        if other.stream == event.stream and other.line <= event.line + nlines:
            yield other


def preceding(log: JobLog, event: LogEvent, nlines: int) -> list[LogEvent]:
    """Return the events of the same log in the `nlines` lines before this one."""
    first, last = (
        bisect_left(log.events, (event.stream, line), key=lambda other: (other.stream, other.line))
        for line in (event.line - nlines, event.line)
    )
    return list(log.events[first:last])


def has_called(log: JobLog, rank: int, seq: int | None) -> bool:
    """Return whether the last line of a rank is NCCL's for call `seq`, or a later one: it reached the call that others
    wait in.

    src/enqueue.cc, ncclEnqueueCheck, with NCCL_DEBUG_SUBSYS=COLL: in base 16 and from 0, while torch counts from 1.
    """
    last = log.ranks[rank].last if rank in log.ranks else None
    count = between(last.text, ": opCount ", " ")[:16] if last else ""
    known = bool(count) and not set(count) - set("0123456789abcdef")
    return known and seq is not None and int(count, 16) + 1 >= seq


def hosts(log: JobLog) -> frozenset[str]:
    """Return the hosts whose processes wrote a line that names its host.

    Launchers use other names for a host: torchrun writes ``localhost``, srun the node's name.
    """
    return frozenset(e.host for e in log.events if e.host and e.pid is not None and e.level not in SUMMARY)


def peer_fields(log: JobLog, address: str) -> dict[str, Any]:
    """Return ``peer_hosts`` for :func:`said`: the host that has this address, otherwise the address itself."""
    return {"peer_hosts": (log.addresses.get(address, address),)} if address else {}


CUDA_SIGNS = ("Cuda failure", "CUDA error: ", "CUDA driver error: ", "CUDA failure ", "HIP failure", "HIP error: ")


def cuda_errors(log: JobLog, *errors: str) -> Iterator[LogEvent]:
    """Yield the lines in which CUDA returned one of these errors, if the program did not live with it."""
    for event in log.having(*CUDA_SIGNS):
        if not demoted(event) and any(error in event.text for error in errors):
            yield event
