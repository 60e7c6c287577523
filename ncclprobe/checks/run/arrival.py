"""Did every rank come, and stay?"""

from collections.abc import Iterator
from typing import Any

from ncclprobe.errors import OUT_OF_MEMORY, Unlearned
from ncclprobe.facts.run.samples import FAILED, Arrivals, Attendance, Ending, LostRank, Participants
from ncclprobe.localise.collectives import folded
from ncclprobe.model.findings import ONCE, Finding, fail, seen
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent


def seen_once(subject: str, message: str, **details: Any) -> Finding:
    """Return a rank or a run that did not go on: whose fault that is takes a second look."""
    return fail(subject, message, action="retest", confidence=ONCE, **details)


_FOUR = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl")


@check(
    bad=lambda: [(Arrivals(4, (2, 3), 60.0), _FOUR)],
    good=lambda: [(Arrivals(4), _FOUR)],
    required=True,
)
def init(arrivals: Arrivals, participants: Participants) -> Iterator[Finding]:
    """Not every rank arrived.

    Right: Every rank arrived.
    Why: a collective needs all ranks, so a job with one rank missing waits until a timeout half an hour away. A rank
    whose process runs, or that may still take its time, is not missing: it may be importing torch, and nothing is known
    of it.
    Fix: look at the launcher's output for the ranks named, and check that their node reaches MASTER_ADDR and
    MASTER_PORT and that every node starts as many ranks as the others believe. Where torch comes from a slow file
    system, raise --phase-timeout.
    """
    for rank in arrivals.lost:
        yield seen_once(
            f"rank {rank}",
            f"never arrived: {arrivals.expected} ranks were expected and this one did not register",
            evidence=seen("the job's store", f"no first heartbeat in {arrivals.waited_s:.0f} s"),
        )
    if arrivals.missing and not arrivals.lost:
        raise Unlearned(_late(arrivals))
    if participants.fallback and not arrivals.missing:
        raise Unlearned(participants.fallback)


def _late(arrivals: Arrivals) -> str:
    """Say which ranks had not come, and why that is not held against them."""
    allowed = f", of the {arrivals.allowed_s:.0f} s that it may take" if arrivals.waited_s < arrivals.allowed_s else ""
    runs = f"; the process of rank {folded(arrivals.running)} runs" if arrivals.running else ""
    late = f"rank {folded(arrivals.missing)} had not come after {arrivals.waited_s:.0f} s of waiting{allowed}{runs}"
    return f"{late}: it may still be importing torch; start again, or raise --timeout"


_TORCHS = (
    f"it failed (rank 1: all_reduce first call: {OUT_OF_MEMORY}2.00 GiB were asked for, and of the 79.11 GiB of GPU 1 "
    "1.19 GiB are free; in use are 40.00 GiB by process 4711, 37.90 GiB by this rank)"
)


@applies
def a_rank_left(attendance: Attendance | Absent) -> bool:
    """to runs that a rank left."""
    return isinstance(attendance, Attendance) and bool(attendance.lost)


@check(
    bad=lambda: [(Attendance(2, (LostRank(1, "node7", "all_reduce first call", _TORCHS),)),)],
    good=lambda: [(Attendance(2, (LostRank(1, "node7", "timing", "its heartbeat stopped"),)),)],
    applies=a_rank_left,
)
def out_of_memory(attendance: Attendance) -> Iterator[Finding]:
    """A rank ran out of memory.

    Right: No rank ran out of memory.
    Why: a GPU that another process uses, or that holds more ranks than one, has less room than was there when the run
    began; NCCL allocates more than the buffers that are measured, for each peer and algorithm that it connects.
    Fix: `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv` names who holds a GPU's memory; end what is
    left of earlier jobs, or ask for smaller messages with -e.
    """
    for lost in attendance.lost:
        if lost.shortage:
            message = f"ran out of memory on {lost.host} in phase {lost.phase!r}: {lost.shortage}"
            yield fail(
                f"rank {lost.rank}",
                message,
                blame="job",
                action="fix-job",
                evidence=seen("the job's store", "why it left"),
                nodes=(lost.host,),
            )


_ALONE = ("allocating", "calibrate", "import torch", "pairs, buffers")
"""Phases in which a rank does not wait for other ranks."""


@check(
    bad=lambda: [(Attendance(4, stalled="all_reduce 1 MiB timing"), Ending("stalled"))],
    good=lambda: [(Attendance(4), Ending())],
    required=True,
    requires="run.init",
)
def rank_lost(attendance: Attendance, ending: Ending) -> Iterator[Finding]:
    """A rank was lost, or the run stood still.

    Right: No rank was lost, and the run did not stand still.
    Why: the other ranks only see a collective that does not return; which rank to look at is what they cannot say.
    Fix: look at the node named: its kernel log (Xid, out of memory), its launcher's output, and whether the process
    still runs; then measure again without that node.
    """
    short = any(lost.shortage for lost in attendance.lost)
    for lost in attendance.lost:
        if short and lost.why.startswith(FAILED):
            continue  # for memory, or because that rank left
        yield seen_once(
            f"rank {lost.rank}",
            f"{lost.why}; it was last seen in phase {lost.phase!r} on host {lost.host}",
            evidence=seen("the job's store", "heartbeats (rank, phase)"),
            nodes=(lost.host,),
        )
    if attendance.stalled.startswith(_ALONE):
        raise Unlearned(
            f"no rank came out of its own {attendance.stalled!r} in time: slow memory, processors, GPUs or files of "
            "these hosts, and no bytes were on their way; ask for less (-e, --params), or raise --phase-timeout"
        )
    if attendance.stalled:
        yield seen_once(
            "all ranks",
            f"none of {attendance.ranks} ranks came out of phase {attendance.stalled!r}, and none is behind the others",
            evidence=seen("the job's store", "heartbeats (rank, phase)"),
            remedy="the calls may only be slow: raise --phase-timeout, or ask for fewer with -n; if one alone does not "
            "end either, bytes do not get through: check the interface that NCCL or gloo chose, and the path MTU",
        )
    if ending.why and not attendance.lost and not attendance.stalled:
        raise Unlearned(ending.why)
