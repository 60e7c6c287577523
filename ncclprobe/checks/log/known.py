"""Lines that are not a cause of their own: consequences of something else, such as a failed rank or layer, and lines
that no other check explains: known by the table of messages, harmless, or unexplained.
"""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import (
    IMAGE,
    JOB,
    NODE,
    UNPROVEN,
    blame_hosts,
    blame_no_rank,
    demoted,
    each,
    failed,
    following,
    peer_fields,
    preceding,
    warned,
)
from ncclprobe.logs import messages
from ncclprobe.logs.job_log import ENDINGS, TALK, Explained, JobLog, LogEvent, LogStream
from ncclprobe.logs.layers import Layer, layer_of
from ncclprobe.logs.lines import layer_report
from ncclprobe.logs.outcome import lived_on
from ncclprobe.logs.rank_ends import of_others
from ncclprobe.logs.texts import address_of, between, number
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.units import whole_words

_RETURNED = (
    "unhandled system error",
    "unhandled cuda error",
    "internal error - please report",
    "remote process exited or",
    "invalid usage (run with",
    "invalid argument (run with",
    "ncclSystemError: ",
    "ncclInternalError: ",
    "ncclUnhandledCudaError: ",
    "ncclInvalidUsage: ",
    "ncclRemoteError: ",
    "Test NCCL failure",
    "NCCL error in: ",
)


@cause(
    signs=_RETURNED,
    echoes=("*",),
    bad=lambda: ["[rank3]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error"],
    good=lambda: ["node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"],
)
def nccl_returned_an_error(log: JobLog) -> Iterator[Finding]:
    """NCCL returned an error to the program.

    Right: No log reports that NCCL returned an error.
    Why: the text of a return code (ncclGetErrorString in src/init.cc) names only the kind of error. The reason is in an
    earlier line of this or another rank.
    Fix: read the first NCCL WARN line of this rank. If there is none, start again with NCCL_DEBUG=INFO.
    """
    for event in log.having(*_RETURNED):
        if not demoted(event):
            yield consequence(log, event, "NCCL returned an error to the program")


_LIMIT = "DUE TO TIME LIMIT"


@cause(
    signs=(_LIMIT,),
    bad=lambda: [
        "n1:7:9 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 7000 commId 0x9 - Init START\n"
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
    ],
    good=lambda: [
        "step 7 loss 2\nslurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
    ],
)
def ended_in_initialisation(log: JobLog) -> Iterator[Finding]:
    """Slurm's time limit ended a job while its ranks were still initialising NCCL.

    Right: No job reached its time limit while NCCL was initialising.
    Why: ncclCommInitRank waits for all ranks without a time limit. So a rank that is missing or unreachable is noticed
    only when Slurm ends the job. A job that trains may also reach its limit, but that is not a failure.
    Fix: find out which ranks wrote Init START without Init COMPLETE, and which wrote neither. To see these lines, start
    again with NCCL_DEBUG=INFO.
    """
    waiting = tuple(rank.rank for rank in log.ranks.values() if rank.init_started > rank.init_complete)
    for event in log.having(_LIMIT) if waiting else ():
        yield consequence(log, event, "the time limit ended the job before Init COMPLETE", peers=waiting)


_PROXY = (
    "Socket recv failed while polling for opId",
    "[Proxy Service",
    "[Service thread]",
    "Proxy Call to rank",
    "[Proxy Progress]",
    "socket progress error",
    "ncclCommSetAsyncError",
    "communicator encountered a fatal error",
)
_CLOSED, _NEAR = "Connection closed by remote peer", 8
"""The line of the same process about the peer whose end its proxy passes on, within this many lines."""


@cause(
    signs=_PROXY,
    bad=lambda: [
        "n1:7:9 [0] proxy.cc:9 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 6\n"
        "n1:7:9 [0] proxy.cc:1100 NCCL WARN Socket recv failed while polling for opId=0x7f10\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited or there was a",
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0"],
)
def proxy_failed(log: JobLog) -> Iterator[Finding]:
    """NCCL's proxy thread failed.

    Right: No NCCL proxy thread failed.
    Why: the proxy thread connects and moves data for a rank. It only passes on the error that the network or a peer
    returned.
    Fix: read the first NCCL WARN line of this host, and of the peer that it names.
    """
    for event in log.having(*_PROXY) if failed(log) else ():
        near = (*preceding(log, event, _NEAR), *following(log, event, _NEAR))
        passed_on = any(_CLOSED in other.text and other.pid == event.pid for other in near)
        if not demoted(event) and event.host and not passed_on:
            rank = number(between(event.text, "from rank ")) or number(between(event.text, "Call to rank "))
            yield consequence(log, event, "NCCL's proxy failed", peers=() if rank is None else (rank,))


_UNIQUE_ID = ("is setting up NCCL communicator and retrieving ncclUniqueId from",)


@cause(
    signs=_UNIQUE_ID,
    doctor="launch.vars",
    echoes=(
        "rank-crashed",
        "oom",
        "addr-in-use",
        "master-unreachable",
        "iface-missing",
        "gpu-hw-error",
        "world-size-mismatch",
        "timeout-straggler",
    ),
    bad=lambda: [
        "[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms"
    ],
    good=lambda: [
        "[rank1]:[W ProcessGroupNCCL.cpp:1] using GPU 1 as device used by this process is currently unknown."
    ],
)
def waits_for_the_first_rank(log: JobLog) -> Iterator[Finding]:
    """A rank waits for the first rank of its group, which has not begun to communicate.

    Right: The first rank of every group began to communicate in time.
    Why: the first rank creates NCCL's unique id at its first collective. It does not reach that point while it loads
    data or compiles, or if it has exited.
    Fix: find out what the rank in brackets did last. Run a first collective on all ranks before long work, or raise the
    timeout of init_process_group.
    """
    for event in log.having(*_UNIQUE_ID):
        if warned(event):
            continue
        rank = number(between(event.text, "ncclUniqueId from ["))
        gone = "onnection" in event.text or "got 0 bytes" in event.text
        codes = ("rank-crashed", "timeout-straggler") if gone else ("timeout-straggler", "rank-crashed")
        peers = () if rank is None else (rank,)
        message = f"was waiting for {'the first rank' if rank is None else f'rank {rank}'}'s unique id"
        yield consequence(log, event, message, ranks=peers, codes=codes)


_REFUSED = (
    "Unrecognized element token",
    "Unrecognized prefix token",
    "All entries except the first must have a prefix",
    "o algorithm/protocol available",
    "o algorithm/protocol nor symKernelId available",  # since 2.31
    "no symmetric kernel available",
    "algSelection names only symmetric kernel(s) that are unavailable",
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
    """NCCL rejects the value of a variable.

    Right: NCCL accepted the values of all its variables.
    Why: the value contains a name that NCCL does not know, or leaves no algorithm for a collective on this machine.
    Fix: unset the variable that the line names, or set a value that NCCL's documentation lists.
    """
    yield from each(log, _REFUSED, "NCCL rejects the value of a variable", **JOB)


def log_of(text: str, level: str = "WARN") -> JobLog:
    """Return the log of a job that failed with this line of NCCL's, for examples."""
    failure = LogEvent(0, 2, "NCCL failure", level="ERROR")
    return JobLog((LogStream("a.log", 2),), (LogEvent(0, 1, text, host="n1", pid=7, level=level), failure))


_IN_OTHER_WORDS = (
    "EI00",  # HCCL's numbers
    "grad_norm across the workers:",
    " by GPU node-",
    "Forcefully terminating all other",
    "Hang detected after",
    "ssh not successful for host",
    "native library functionality but it's not available",
    "not alive sending signal to main thread",
    " heartbeat. Waited ",
    "node was preempted: ",
    ": Permission denied (",
    "output empty list",
)
"""Messages in the table that have no word of a failure and follow no exception."""


@cause(
    signs=_IN_OTHER_WORDS,
    echoes=("*",),
    bad=lambda: [(log_of("Call to ibv_frob failed"), Explained())],
    good=lambda: [(log_of("Call to ibv_frob failed"), Explained(lines=frozenset({(0, 1)})))],
)
def known_message(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A program reports a failure with a message that ncclprobe knows.

    Right: No failed job wrote a message that only ncclprobe's table knows.
    Why: no check interprets this line further. ncclprobe's table of messages shows where the message is in the
    program's sources, what happens next, and whether it gives the reason or only reports a failure.
    Fix: read the lines before it in the same log, then the other logs of the component that wrote it.
    """
    failure = failed(log)
    for event in log.events:
        if event.level not in TALK and (event.stream, event.line) not in explained.lines:
            found = messages.said(event.text, event.level)
            if not found or harmless(event):
                continue
            if _speaks(event, found, failure or _are_last(log, event)) and not lived_on(log, event):
                yield _finding(log, event, found)


_LAST_WORDS = 5


def _are_last(log: JobLog, event: LogEvent) -> bool:
    """Return whether a log ends with a line, as far as its process goes: what failed there may be what ended it."""
    stream, last = log.streams[event.stream], log.streams[event.stream].last
    goes_on = last is not None and last.line > event.line and (last.host, last.pid) == (event.host, event.pid)
    return stream.nlines - event.line < _LAST_WORDS and not goes_on


def _speaks(event: LogEvent, found: messages.Message, failure: bool) -> bool:
    """Return whether a line counts. Without a `failure` of the job only causes do, and no plugin's: NCCL goes on."""
    if found.row.level == "FATAL":
        return found.kind in ("cause", "symptom", "consequence")
    alone = found.kind == "cause" and found.row.project not in ("ofi", "libfabric")
    counts = alone or (failure and found.kind in ("cause", "symptom", "consequence"))
    return event.level in ("WARN", "ERROR", "EXCEPTION") and counts


def _finding(log: JobLog, event: LogEvent, found: messages.Message) -> Finding:
    """Return a cause, or what another line explains; the peer of a line is at fault if its meaning includes ``peer``.

    The job is at fault only if NCCL refuses something of its program, or if a layer blames what the job brings along.
    """
    why = found.held("error").strip()
    text = found.row.then + (f": {why}" if why else "") if found.row.level == "FATAL" else layer_report(event)
    host, rank = found.held("host").strip(), number(found.held("rank")) if found.row.level == "FATAL" else None
    peer = number(found.held("peer")) if found.row.meaning.endswith(" peer") else None
    details: dict[str, Any] = {} if peer is None else {"peers": (peer,)}
    details |= peer_fields(log, address_of(found.held("address")))
    codes, why = (found.codes, text) if found.codes else _explain_kernel_error(event, found)
    if _NO_REASON in text and codes == ("rank-crashed",):
        codes = ("rank-crashed", "oom")
    if host and event.text.endswith(_GONE_ALREADY):
        codes = ()
    if not codes:
        text = text if found.row.level == "FATAL" else f"{layer_of(event).title} reports an error"
        told = consequence(log, event, text, **details)
        return blame_no_rank(told) if of_others(event) else told
    own = layer_of(event)
    by_the_job = {*codes} <= _OF_THE_JOB and (found.row.level != "FATAL" or own.fault == "job")
    whose = NODE if host else JOB if by_the_job else IMAGE if {*codes} <= _OF_THE_IMAGE else {}
    if any(words in text for words in _DO_NOT_KNOW):
        whose = UNPROVEN
    details["remedy"] = _next(event, own, peer)
    if any(words in text for words in _OF_SSH):
        details["remedy"] = _LOG_IN
    told = said(log, event, why, codes=codes, ranks=() if rank is None else (rank,), **details, **whose)
    return blame_hosts(told, host) if host else told


def _next(event: LogEvent, own: Layer, peer: int | None) -> str:
    """Return the next place to look: lines of a rank and its peer, otherwise the records of the line's layer."""
    if event.rank is not None and peer is not None:
        return f"read the earlier lines of rank {event.rank} and rank {peer}"
    return f"look at {own.look}" if own.look else ""


_OF_SSH = ("ssh ", "ssh.", "the login")
_LOG_IN = (
    "make `ssh HOST hostname` work from the launcher's host without a password, as the user of the job. That "
    "needs a key there and in `authorized_keys` here (in pods: a secret that all mount), a running `sshd`, and a name "
    "that resolves"
)
_GONE_ALREADY = ": No such process"
"""A host that had to end work that another host's failure had made futile."""
_NO_REASON = "gives no reason"
_DO_NOT_KNOW = (_NO_REASON, "has ended, or its host", *_OF_SSH)
"""Meanings of lines that report that a process is gone, and not how."""
_OF_THE_JOB = {"rank-crashed", "nccl-setting", "gloo-iface", "collective-desync", "graph-file"}
_OF_THE_IMAGE = {"plugin-mismatch", "plugin-missing", "efa-no-provider", "cuda-driver-mismatch", "nccl-lib-mismatch"}
_NO_MEMORY, _REFUSAL = "Cannot allocate memory", "onnection refused"
_PINS = ("regist", "reg_mr", "regattr")
_OPENS = ("domain", "endpoint", "CQ", "completion queue")


def _explain_kernel_error(event: LogEvent, found: messages.Message) -> tuple[tuple[str, ...], str]:
    """Return the kernel's error for a failed call, by codes and in words; empty: there is none."""
    if found.kind != "symptom":
        return (), ""
    if _NO_MEMORY in event.text and any(word in event.text for word in _PINS):
        return ("memlock",), f"memory cannot be registered: {_NO_MEMORY}"
    if _NO_MEMORY in event.text and any(word in event.text for word in _OPENS):
        return ("memlock", "oom"), f"a device or its queues cannot be opened: {_NO_MEMORY}"
    if _REFUSAL in event.text and (peer := address_of(found.held("address"))):
        return ("rank-crashed", "peer-unreachable"), f"{peer} refuses the connection"
    return (), ""


HARMLESS = (
    "severity=Corrected",
    "Corrected error received",
    "Corrected error message received",
    "network addresses of (",
    "failed to listen on any local network address. Continuing",
    "destroy_process_group() was not called",
    "process group has NOT been destroyed before we destruct",
    "errno: 97 - Address family not supported",
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
    "fatal: not a git repository",  # git, which programs ask for the version of their sources
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
    "Failed to load libibverbs",  # the same since 2.30
    "Failed to open libibverbs.so",  # a machine without RDMA; a warning until 2.10
    "Call to bind failed",  # of the RAS port that another job has; elsewhere log.port/port-taken speaks of it
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
"""Texts of such lines, if the table of messages does not have them: of older releases and of other programs.

They are counted nowhere; if one of them matters after all, a check reports it by itself.
"""


def harmless(event: LogEvent) -> bool:
    """Return whether a line is one of them, or one after which its program goes on as its sources say."""
    if any(text in event.text for text in HARMLESS):
        return True
    found = messages.said(event.text, event.level)
    return found is not None and found.kind in ("harmless", "aside")


def follows(event: LogEvent) -> bool:
    """Return whether a line, by its sources, reports only that another rank, or an earlier line, has failed."""
    found = messages.said(event.text, event.level)
    return found is not None and found.kind == "consequence"


def understood(event: LogEvent) -> bool:
    """Return whether a line has a meaning, if only that of a symptom."""
    found = messages.said(event.text, event.level)
    return harmless(event) or (found is not None and found.kind != "?")


@cause(
    bad=lambda: [(log_of("ValueError: x", "EXCEPTION"), Explained(("oom",)))],
    good=lambda: [(log_of("loss 3.1"), Explained())],
    required=True,
)
def unexplained(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A failure has no named cause.

    Right: Every failure in the logs has a named cause, or there is no failure.
    Why: a log may show only consequences: a return code, a timeout, or a connection that a peer closed. The cause is
    then in another rank's log or in the kernel log, or it was not logged.
    Fix: collect the missing files as the report describes, and run `ncclprobe explain` on all of them together.
    """
    left = [each for each in log.events if each.level in ENDINGS and (each.stream, each.line) not in explained.lines]
    if not explained.codes and (left or explained.open):
        raise Unlearned(_why(log, left, explained))
    for event in left[:1]:
        text = f"{len(left)} lines about the end of a process have an unknown form"
        yield warn(log.where(event), text, evidence=log.evidence(event))


def _why(log: JobLog, left: list[LogEvent], explained: Explained) -> str:
    if explained.open:
        return f"the logs show the consequences of a failure, but no line gives the reason: {', '.join(explained.open)}"
    first = left[0]
    where, text = f"{log.streams[first.stream].name}:{first.line}", whole_words(first.text, 200)
    return f"{where} reports a failure that no check knows: {text}"
