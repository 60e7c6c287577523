"""What became of a measurement: did every rank come, stay, and carry the right bytes fast enough?

The facts are produced by ``ncclprobe.bandwidth``; on a node where nothing was measured they are absent, and these
checks say so.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ncclprobe.model import (
    Arrivals,
    Attendance,
    Expectation,
    Finding,
    Judged,
    Library,
    LostRank,
    Measurement,
    TimeStats,
    Verified,
    fail,
)
from ncclprobe.registry import check
from ncclprobe.units import size

_ROW = Measurement(
    op="all_reduce",
    place="in",
    mode="queued",
    backend="nccl",
    library=Library("nccl", "2.28.9"),
    dtype="float32",
    redop="sum",
    nbytes=1 << 20,
    count=1 << 18,
    ranks=8,
    nodes=1,
    iters=20,
    batches=5,
    footprint_bytes=1 << 28,
    time_us=TimeStats(mean=20.0),
    issue_us=4.0,
    slowest_rank=3,
    algbw_GBps=52.4,
    busbw_GBps=91.8,
)
"""A row for the examples below; only `wrong`, `status` and `expectation` matter to them."""
_BAND = Expectation(100.0, 95.0, "GB/s", "user", "acceptance test", "bands.toml")


def _seen_once(subject: str, message: str, **details: Any) -> Finding:
    """A rank or a run that did not go on: whose fault that is takes a second look."""
    return fail(subject, message, action="retest", confidence="seen once", **details)


@check(bad=[(Arrivals(4, (2, 3), 60.0),)], good=[(Arrivals(4),)], required=True)
def init(arrivals: Arrivals) -> Iterator[Finding]:
    """Not every rank arrived.

    Why: a collective needs all ranks, so a job with one rank missing waits until a timeout half an hour away.
    Fix: look at the launcher's output for the ranks named, and check that their node reaches MASTER_ADDR and
    MASTER_PORT and that every node starts as many ranks as the others believe. Where torch comes from a slow file
    system, raise --phase-timeout.
    """
    for rank in arrivals.missing:
        yield _seen_once(
            f"rank {rank}",
            f"never arrived: {arrivals.expected} ranks were expected and this one did not register",
            evidence=f"waited {arrivals.waited_s:.0f} s at the store for its first heartbeat",
        )


@check(
    bad=[
        (Attendance(4, (LostRank(2, "node7", "all_reduce 1 MiB timing", "its heartbeat stopped"),)),),
        (Attendance(4, stalled="all_reduce 1 MiB timing"),),
    ],
    good=[(Attendance(4),)],
    required=True,
    requires="run.init",
)
def hang_attrib(attendance: Attendance) -> Iterator[Finding]:
    """A rank was lost, or the run stood still.

    Why: the other ranks only see a collective that does not return; which rank to look at is what they cannot say.
    Fix: look at the node named: its kernel log (Xid, out of memory), its launcher's output, and whether the process
    still runs; then measure again without that node.
    """
    for lost in attendance.lost:
        yield _seen_once(
            f"rank {lost.rank}",
            f"{lost.why}; it was last seen in phase {lost.phase!r} on host {lost.host}",
            evidence="heartbeats (rank, phase) in the job's store",
        )
    if attendance.stalled:
        yield _seen_once(
            "all ranks",
            f"none of {attendance.ranks} ranks came out of phase {attendance.stalled!r}, and none is behind the others",
            evidence="heartbeats (rank, phase) in the job's store",
            remedy="the calls may only be slow: raise --phase-timeout, or ask for fewer with -n; if one alone does not "
            "end either, bytes do not get through: check the interface that NCCL or gloo chose, and the path MTU",
        )


@check(bad=[(Verified((replace(_ROW, wrong=3),)),)], good=[(Verified((replace(_ROW, wrong=0),)),)], required=True)
def data(verified: Verified) -> Iterator[Finding]:
    """A collective delivered wrong values.

    Why: corrupt gradients do not stop a job; they ruin the model it trains.
    Fix: take the node out and measure the remaining ones; if it is every node, unset the transport and algorithm
    settings (NCCL_ALGO, NCCL_PROTO, NCCL_NET_GDR_LEVEL, …) one at a time and measure again.
    """
    for row in verified.rows:
        if row.wrong:
            yield fail(
                subject_of(row),
                f"{row.wrong} of the elements received over all ranks are wrong ({row.dtype}, {row.place} place)",
                action="retest",
                confidence="compared with exact values outside the timed window",
                evidence=f"{row.backend} {row.library.version}, {row.ranks} ranks",
            )


@check(
    bad=[(Judged((replace(_ROW, expectation=_BAND, status="fail"),)),)],
    good=[(Judged((replace(_ROW, busbw_GBps=98.0, expectation=_BAND, status="pass"),)),)],
    required=True,
)
def band(judged: Judged) -> Iterator[Finding]:
    """Slower than expected.

    Why: a collective is as slow as its slowest link, so one bad cable, NIC or setting shows in this number.
    Fix: run `ncclprobe doctor` on these nodes; if it finds nothing, measure with fewer nodes until the number is
    right, and look at the ones left out.
    """
    for row in judged.rows:
        expected = row.expectation
        if expected and row.status == "fail":
            yield fail(
                subject_of(row),
                f"bus bandwidth {row.busbw_GBps:.4g} GB/s, at least {expected.low:.4g} expected ({expected.why})",
                action="retest",
                confidence="measured once with these partners",
                evidence=f"mean {row.time_us.mean:.1f} us over {row.ranks} ranks, {row.place} place, {row.mode} mode; "
                f"expected {expected.value:.4g} {expected.unit}, {expected.basis}: {expected.source}",
            )


def subject_of(row: Measurement) -> str:
    """A row as a finding names it: ``all_reduce 1 MiB``."""
    return f"{row.op} {size(row.nbytes)}"
