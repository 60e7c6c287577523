"""Did every rank come, and stay?"""

from collections.abc import Iterator
from typing import Any

from ncclprobe.errors import Unlearned
from ncclprobe.facts.run.asked import Ending
from ncclprobe.facts.run.ranks import Arrivals, Attendance, LostRank, Participants
from ncclprobe.model.findings import ONCE, Finding, fail, seen
from ncclprobe.model.registry import check


def seen_once(subject: str, message: str, **details: Any) -> Finding:
    """Return a rank or a run that did not go on: whose fault that is takes a second look."""
    return fail(subject, message, action="retest", confidence=ONCE, **details)


_FOUR = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl")


@check(bad=lambda: [(Arrivals(4, (2, 3), 60.0), _FOUR)], good=lambda: [(Arrivals(4), _FOUR)], required=True)
def init(arrivals: Arrivals, participants: Participants) -> Iterator[Finding]:
    """Not every rank arrived.

    Right: Every rank arrived.
    Why: a collective needs all ranks, so a job with one rank missing waits until a timeout half an hour away.
    Fix: look at the launcher's output for the ranks named, and check that their node reaches MASTER_ADDR and
    MASTER_PORT and that every node starts as many ranks as the others believe. Where torch comes from a slow file
    system, raise --phase-timeout.
    """
    for rank in arrivals.missing:
        yield seen_once(
            f"rank {rank}",
            f"never arrived: {arrivals.expected} ranks were expected and this one did not register",
            evidence=seen("the job's store", f"no first heartbeat in {arrivals.waited_s:.0f} s"),
        )
    if participants.fallback and not arrivals.missing:
        raise Unlearned(participants.fallback)


_ALONE = ("allocating", "calibrate", "import torch", "pairs, buffers")
"""Phases in which a rank does not wait for other ranks."""


@check(
    bad=lambda: [
        (Attendance(4, (LostRank(2, "node7", "all_reduce 1 MiB timing", "its heartbeat stopped"),)), Ending("lost")),
        (Attendance(4, stalled="all_reduce 1 MiB timing"), Ending("stalled")),
    ],
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
    for lost in attendance.lost:
        yield seen_once(
            f"rank {lost.rank}",
            f"{lost.why}; it was last seen in phase {lost.phase!r} on host {lost.host}",
            evidence=seen("the job's store", "heartbeats (rank, phase)"),
            nodes=(lost.host,),
        )
    if attendance.stalled.startswith(_ALONE):
        raise Unlearned(
            f"no rank came out of its own {attendance.stalled!r} in time: that is slow memory, processors or files of "
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
