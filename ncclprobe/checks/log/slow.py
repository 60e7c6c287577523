"""Jobs that run and are slow: sockets instead of RDMA, no GPUDirect, NVLS left out, another topology than there is."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import (
    IMAGE,
    JOB,
    LIMIT,
    NODE,
    RESTART,
    blame_no_rank,
    failed,
    hosts,
    informed,
    rdma_found,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import used
from ncclprobe.logs.outcome import ABORTED
from ncclprobe.logs.texts import between, number
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped

_OFF = ("NCCL_IB_DISABLE set by environment to 1", "NCCL_NET set by environment to Socket")
_RDMA = ("NET/IB : Using", "NCCL_IB_HCA set", "GPU Direct RDMA Enabled")
_ONE_HOST = 8
"""Ranks that a usual host has GPUs for."""


@cause(
    code="slow-socket-fallback",
    signs=("Using network Socket", *_OFF, *_RDMA),
    doctor="env.transport",
    echoes=("libibverbs-missing", "ib-device-not-in-container", "ib-hca-wrong", "net-asymmetric", "efa-no-provider"),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "n1:7:7 [0] NCCL INFO Using network Socket"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "n1:7:7 [0] NCCL INFO Using network IB"
    ],
)
def sockets_instead_of_rdma(log: JobLog) -> Iterator[Finding]:
    """NCCL uses sockets although the host has RDMA.

    Right: NCCL uses RDMA wherever the host has it.
    Why: with NCCL_IB_DISABLE=1, NCCL_NET=Socket or a NIC that cannot be opened, all data goes through the kernel. That
    reaches a tenth of the NICs' rate at best and takes one CPU core per connection.
    Fix: unset NCCL_IB_DISABLE. Set NCCL_NET=IB so that NCCL fails instead of falling back, and read the lines before
    "Using network" for the reason.
    """
    there = rdma_found(log) or any(True for _ in log.having("GPU Direct RDMA Enabled"))
    switched_off = any(True for _ in log.having(*_OFF)) and any(True for _ in log.having("NCCL_IB_HCA set"))
    if there or switched_off:
        message = "NCCL uses sockets although the host has RDMA devices"
        yield from informed(log, ("Using network Socket",), message, severity=Severity.WARN, **JOB)
    elif len(hosts(log)) > 1 or (log.world_size or 0) > _ONE_HOST:
        message = "several hosts exchange data over sockets, because NCCL found no RDMA device"
        for event in log.having("Using network Socket"):
            yield blame_no_rank(said(log, event, message, severity=Severity.WARN, **LIMIT))
            return


_GDR = ("GPU Direct RDMA Disabled for HCA", "GPU Direct RDMA Enabled for HCA", "GDR disabled on GDR-supported instance")


@cause(
    code="gdr-off",
    signs=(*_GDR, "Using network "),
    doctor="ib.gdr",
    bad=lambda: ["n1:7:7 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge"],
    good=lambda: ["n1:7:7 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 3 / HCA 7 (distance 8 > 5)"],
)
def gpudirect_off(log: JobLog) -> Iterator[Finding]:
    """GPUDirect RDMA is off for all NICs of a host.

    Right: GPUDirect RDMA is on for NICs on every host that uses RDMA.
    Why: without nvidia-peermem, or DMA-BUF in the open kernel modules, every byte is copied through host memory, which
    halves the rate of fast NICs.
    Fix: run `modprobe nvidia-peermem` on the host after the drivers of the NIC and the GPU are loaded. Or use the open
    kernel modules with Linux 5.12 or newer.
    """
    yield from informed(log, _GDR[2:], "GPUDirect RDMA is off", severity=Severity.WARN, **IMAGE)
    on = {event.host for event in log.having("GPU Direct RDMA Enabled for HCA")}
    sockets = {event.host for event in log.having("Using network Socket")}
    off = (e for e in log.having("GPU Direct RDMA Disabled for HCA") if "NET/Socket" not in e.text)
    for event, *_ in grouped((e.host, e) for e in off if e.host not in on | sockets).values():
        yield said(log, event, "GPUDirect RDMA is off for all NICs", severity=Severity.WARN, **IMAGE)


BIND = "Failed to bind NVLink SHARP (NVLS) Multicast memory"


@cause(
    code="nvls",
    signs=(BIND,),
    doctor="nvl.fabric",
    bad=lambda: [
        f"n1:7:7 [0] NCCL INFO {BIND} of size 2097152 : CUDA error 1 'invalid argument'. Proceeding without NVLS "
        "support."
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NVLS multicast support is not available on dev 0"],
)
def nvls_left_out(log: JobLog) -> Iterator[Finding]:
    """NCCL tried to use NVLS but continued without it.

    Right: NCCL uses NVLS on every rank that tried to.
    Why: NCCL 2.27 and 2.28 continue without NVLS if its memory cannot be bound. all_reduce is then up to a third
    slower, and may hang forever if only some ranks use NVLS.
    Fix: run `systemctl status nvidia-fabricmanager` and `nvidia-smi -q | grep -A3 Fabric` on this host.
    """
    for event in log.having(BIND):
        if "Proceeding without NVLS" in event.text:
            yield said(log, event, "continues without NVLS", severity=Severity.WARN, **NODE)


@cause(
    code="ib-mixed-link-layer",
    signs=("NET/IB : Using",),
    doctor="env.hca",
    echoes=("ib-hca-wrong",),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
        "[rank0]: RuntimeError: NCCL error in: a.cpp:1, internal error - please report this issue"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"],
)
def link_layers_in_use(log: JobLog) -> Iterator[Finding]:
    """NCCL uses InfiniBand and Ethernet NICs together.

    Right: NCCL uses only one link layer on every host.
    Why: NCCL spreads channels over the nearby NICs. A slow Ethernet NIC for storage or management can slow the fast
    ones, and an InfiniBand port cannot connect to an Ethernet port at the other end.
    Fix: set NCCL_IB_HCA to only the compute NICs, for example `NCCL_IB_HCA=mlx5_0,mlx5_1`.
    """
    severity = Severity.FAIL if failed(log) else Severity.WARN
    using = ((e, {each.link.partition("/")[0] for each in used(e.text)}) for e in log.having("NET/IB : Using"))
    mixed = (e for e, links in using if {"IB", "RoCE"} <= links)
    for event, *_ in grouped((e.host, e) for e in mixed).values():
        yield said(log, event, "NCCL uses InfiniBand and Ethernet NICs together", severity=severity, **JOB)


_WRONG = ("Out of bounds values",)


@cause(
    code="wrong-data",
    signs=_WRONG,
    doctor="run.data",
    bad=lambda: ["# Out of bounds values : 34 FAILED"],
    good=lambda: ["# Out of bounds values : 0 OK"],
)
def wrong_data(log: JobLog) -> Iterator[Finding]:
    """nccl-tests found wrong values.

    Right: nccl-tests found no wrong values.
    Why: nccl-tests compares each result with the correct one. A wrong value means that memory, a link or a NIC silently
    corrupts data, or that this NCCL release has a bug with these settings.
    Fix: repeat the test on each node by itself (`all_reduce_perf -g 8`), and then on pairs of nodes. A node that fails
    by itself is faulty. Check it for ECC and NVLink errors (`nvidia-smi -q`). Also repeat without NCCL_PROTO and
    NCCL_ALGO.
    """
    for event in log.having(*_WRONG):
        if "FAILED" in event.text:
            count = between(event.text, ":").strip().partition(" ")[0]
            yield said(log, event, f"{count} values are wrong", blame="unknown", action="retest")


DESTROYED, _BEGAN = "Destroy COMPLETE", "Init COMPLETE"
_NO_END = ("rank-crashed", "timeout-straggler")


def ended(*ends: str) -> str:
    """Return how the communicators of ranks ended, for examples."""
    start = "n1:{0}:{0} [{0}] NCCL INFO comm 0x1 rank {0} nranks 3 cudaDev {0} busId 1a000 - {1}"
    return "\n".join(start.format(rank, end) for rank, end in enumerate(ends))


@cause(
    code="wrong-data",
    signs=(ABORTED, DESTROYED, _BEGAN),
    doctor="run.data",
    bad=lambda: [ended(DESTROYED, ABORTED, DESTROYED)],
    good=lambda: [ended(ABORTED, ABORTED, ABORTED)],
)
def finished_beside_an_abort(log: JobLog) -> Iterator[Finding]:
    """A rank aborted its communicator, but others finished theirs.

    Right: No rank finished while another aborted.
    Why: when a rank aborts, its kernel skips its copies but still signals its neighbours that their data has arrived
    (prims_simple.h, genericOp). Over P2P they complete the operation with wrong data, and no call returns an error.
    Fix: discard everything that the ranks computed from that operation on, and make all ranks abort if one does.
    """
    aborted = {_member(event): event for event in log.having(ABORTED)}
    finished = {_member(event) for event in log.having(DESTROYED)} - {*aborted}
    began = log.having(_BEGAN) if aborted and finished else ()
    left = {_member(event) for event in began} - {*aborted} - finished
    if left and {size for _, size in left} <= {size for _, size in finished}:
        gone = tuple(sorted(rank for rank, _ in left if rank is not None))
        message = (
            f"{plural(len(gone), 'rank')} did not finish, others aborted, but {plural(len(finished), 'rank')} finished"
        )
        message += ", so their data may be wrong"
        yield said(log, next(iter(aborted.values())), message, ranks=gone, codes=_NO_END, **RESTART)
        return
    for (rank, size), event in aborted.items():
        others = sum(each[1] == size for each in finished)
        if others and rank is not None:
            message = f"rank {rank} aborted but {plural(others, 'rank')} finished, so their data may be wrong"
            yield said(log, event, message, ranks=(rank,), severity=Severity.WARN, **RESTART)


def _member(event: LogEvent) -> tuple[int | None, int | None]:
    """Return a rank and the size of its communicator; no line at the end of one names it otherwise."""
    return number(between(event.text, "rank ")), number(between(event.text, "nranks "))


_TIMED = "Init timings - "
_LONG_S, _LATE_SHARE = 60, 0.5


def _timings(rank: int, bootstrap_s: float) -> str:
    """Return NCCL's line of the seconds of each phase, for examples."""
    phases = f"total {bootstrap_s + 2:.2f} (kernels 0.12, alloc 0.30, bootstrap {bootstrap_s:.2f}, allgathers 0.30)"
    return f"n1:{rank + 7}:9 [{rank}] NCCL INFO {_TIMED}ncclCommInitRank: rank {rank} nranks 2 {phases}\n"


@cause(
    code="timeout-straggler",
    signs=(_TIMED,),
    doctor="run.straggler",
    bad=lambda: [{"0.log": _timings(0, 90.0), "rank1.log": _timings(1, 0.2)}],
    good=lambda: [{"0.log": _timings(0, 2.0), "rank1.log": _timings(1, 0.2)}],
)
def rank_came_late_to_nccl(log: JobLog) -> Iterator[Finding]:
    """A rank joined NCCL's initialisation long after the others.

    Right: All ranks joined NCCL's initialisation within a minute.
    Why: in the phase "bootstrap" every rank waits for the last one, so the last rank has the shortest phase (since 2.22
    NCCL prints the seconds of each phase). All others wait for that rank's earlier work, such as loading a model.
    Fix: create the group on all ranks before long work, and find out what slows this rank down: its disk, its image or
    its host.
    """
    waited = {each.rank: (_seconds(each.text, "bootstrap "), each) for each in log.having(_TIMED)}
    longest = max((seconds for seconds, _ in waited.values()), default=0)
    late = [each for seconds, each in waited.values() if seconds < _LATE_SHARE * longest]
    if longest >= _LONG_S and 0 < 2 * len(late) <= len(waited):
        for each in late:
            yield said(
                log,
                each,
                f"joined NCCL's initialisation up to {longest} s after the others",
                severity=Severity.WARN,
                **JOB,
            )


def _seconds(text: str, phase: str) -> int:
    """Return the whole seconds of a phase, such as ``bootstrap 90.02``."""
    return number(between(text, phase)) or 0
