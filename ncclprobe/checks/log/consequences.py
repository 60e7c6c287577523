"""Lines that follow from something else: what ranks say when another rank, or another layer, has failed."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence
from ncclprobe.checks.log.lines import demoted, failed, warned
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding

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

    Right: no log says that NCCL returned an error.
    Why: the text of a return code (ncclGetErrorString in src/init.cc) says only of which kind the error was; the line
    that says why is an earlier one, of this rank or of another.
    Fix: look at the first NCCL WARN line of this rank; without one, start again with NCCL_DEBUG=INFO.
    """
    for event in log.having(*_RETURNED):
        if not demoted(event):
            yield consequence(log, event, "NCCL returned an error to the program", action="none")


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
    """Slurm's time limit ended a job whose ranks were still initialising NCCL.

    Right: No job came to its time limit while NCCL was initialising.
    Why: ncclCommInitRank waits for all ranks without a limit of its own, so a rank that is missing, or that no packet
    reaches, shows only when Slurm ends the job. A job that trains may reach its limit too, which is no failure.
    Fix: look which ranks wrote Init START without Init COMPLETE, and which wrote neither; start again with
    NCCL_DEBUG=INFO.
    """
    waiting = sorted(rank.rank for rank in log.ranks.values() if rank.init_started > rank.init_complete)
    for event in log.having(_LIMIT) if waiting else ():
        yield consequence(log, event, "the time limit came before Init COMPLETE", peers=tuple(waiting))


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

    Right: no proxy thread of NCCL failed.
    Why: the proxy connects and moves data for a rank; it repeats what the network or a peer returned to it.
    Fix: look at the first NCCL WARN line of this host, and of the peer that it names.
    """
    for event in log.having(*_PROXY) if failed(log) else ():
        if not demoted(event) and event.host:
            rank = number(between(event.text, "from rank ")) or number(between(event.text, "Call to rank "))
            yield consequence(log, event, "NCCL's proxy failed", peers=() if rank is None else (rank,))


_UNIQUE_ID = ("is setting up NCCL communicator and retrieving ncclUniqueId from",)


@cause(
    signs=_UNIQUE_ID,
    doctor="launch.world-agree",
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
    """A rank waits for the first rank of a group, which does not begin to communicate.

    Right: the first rank of every group began to communicate in time.
    Why: that rank makes NCCL's unique id at its first collective; one that loads data, compiles or has ended does not.
    Fix: look at what the rank in brackets did last; let all ranks make a first collective before long work, or raise
    the timeout of init_process_group.
    """
    for event in log.having(*_UNIQUE_ID):
        if warned(event):
            continue
        rank = number(between(event.text, "ncclUniqueId from ["))
        gone = "onnection" in event.text or "got 0 bytes" in event.text
        codes = ("rank-crashed", "timeout-straggler") if gone else ("timeout-straggler", "rank-crashed")
        peers = () if rank is None else (rank,)
        yield consequence(log, event, f"waits for rank {rank}'s unique id", ranks=peers, codes=codes)
