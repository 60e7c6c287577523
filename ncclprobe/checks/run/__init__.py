"""What became of a measurement: did every rank come, stay, and carry the right bytes fast enough?

The facts are produced by ``ncclprobe.bandwidth``; on a node where nothing was measured they are absent, and these
checks say so.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median_low
from typing import Any

from ncclprobe.errors import Unlearned
from ncclprobe.expect.site import verdict
from ncclprobe.measured import Mismatch, Skew
from ncclprobe.model import (
    Apart,
    Arrivals,
    Attendance,
    Blame,
    Expectation,
    Finding,
    Judged,
    Library,
    LostRank,
    Measurement,
    TimeStats,
    Verified,
    fail,
    warn,
)
from ncclprobe.paired import Blamed, Inside, Localisation, LostPair, WrongBytes
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
    time_us=TimeStats(mean=20.0, median=20.0, min=19.0, p95=21.0, max=21.0, stdev=0.5),
    interval_us=(19.8, 20.2),
    precision=0.01,
    issue_us=4.0,
    slowest_rank=3,
    algbw_GBps=52.4,
    busbw_GBps=91.8,
)
"""A row for the examples below."""
_BAND = Expectation(100.0, 95.0, "GB/s", "user", "acceptance test", "bands.toml")


_MOST_SHOWN = 3
"""Ranks whose first wrong element a finding shows; the JSON has more."""


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
            nodes=(lost.host,),
        )
    if attendance.stalled:
        yield _seen_once(
            "all ranks",
            f"none of {attendance.ranks} ranks came out of phase {attendance.stalled!r}, and none is behind the others",
            evidence="heartbeats (rank, phase) in the job's store",
            remedy="the calls may only be slow: raise --phase-timeout, or ask for fewer with -n; if one alone does not "
            "end either, bytes do not get through: check the interface that NCCL or gloo chose, and the path MTU",
        )


_LAST_SHARE = Mismatch(5, 1023, 3, "7.0", "0.0", "0x40e00000", "0x00000000")


@check(
    bad=[(Verified((replace(_ROW, wrong=3),)),), (Verified((replace(_ROW, wrong=3, mismatches=(_LAST_SHARE,)),)),)],
    good=[(Verified((replace(_ROW, wrong=0),)),)],
    required=True,
)
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
                evidence="; ".join([f"{row.backend} {row.library.version}, {row.ranks} ranks", *_shown(row)]),
            )


def _shown(row: Measurement) -> Iterator[str]:
    """The first wrong element of each of some ranks, with its bits: one flipped bit is not one lost packet."""
    for wrong in row.mismatches[:_MOST_SHOWN]:
        whose = "the reduction" if wrong.source is None else f"what rank {wrong.source} sent"
        yield (
            f"rank {wrong.rank}, element {wrong.offset}, of {whose}: {wrong.got} ({wrong.got_bits}) "
            f"instead of {wrong.expected} ({wrong.expected_bits})"
        )


_SLOW = replace(_ROW, expectation=_BAND, status="fail")
_FAST = replace(_ROW, busbw_GBps=98.0, expectation=_BAND, status="pass")


@check(bad=[(Judged((_SLOW,)),)], good=[(Judged((_FAST,)),)], required=True)
def band(judged: Judged) -> Iterator[Finding]:
    """Slower than expected.

    Why: a collective is as slow as its slowest link, so one bad cable, NIC or setting shows in this number.
    Fix: run `ncclprobe doctor` on these nodes; if it finds nothing, measure with fewer nodes until the number is
    right, and look at the ones left out.
    """
    failed = [row for row in judged.rows if row.status == "fail" and row.expectation]
    for row in failed:
        yield fail(
            subject_of(row),
            f"bus bandwidth {row.busbw_GBps:.4g} GB/s, {_least(row)}{_host_side(row)}",
            action="retest",
            confidence=_how_sure(row),
            evidence=_evidence(row),
            remedy=_HOSTS if _host_side(row) else "",
        )
    noise = [row for row in judged.rows if row.status == "noise"]
    if noise and not failed:
        others = f", and {len(noise) - 1} more rows" if noise[1:] else ""
        raise Unlearned(f"{_unsure(noise[0])}; {_evidence(noise[0])}{others}")
    for row in judged.rows:
        if row.status == "warn" and row.expectation:
            yield warn(
                subject_of(row),
                f"bus bandwidth {row.busbw_GBps:.4g} GB/s, {row.expectation.value:.4g} expected: above the least that "
                f"passes, {row.expectation.low:.4g}, and nearer to that ({row.expectation.why})",
                action="retest",
                confidence=_how_sure(row),
                evidence=_evidence(row),
            )


_HOSTS = (
    "look at the hosts before the links: processors shared with other jobs or with too many ranks, CPU limits, "
    "affinity, frequency; then measure again"
)


def _how_sure(row: Measurement) -> str:
    """How often it was seen."""
    if row.again is None:
        return "measured once with these partners"
    return f"measured twice with these partners, {row.again.busbw_GBps:.4g} GB/s the second time"


def _unsure(row: Measurement) -> str:
    """Why nobody can say of `row` whether it is slow."""
    noisy = row.doubt in ("", verdict.TOO_FEW, verdict.STRADDLES)
    return f"{'too noisy to say' if noisy else row.doubt}: {subject_of(row)}, {_least(row)}"


def _least(row: Measurement) -> str:
    expected = row.expectation
    return f"at least {expected.low:.4g} expected ({expected.why})" if expected else ""


def _evidence(row: Measurement) -> str:
    """The time with its interval, and where the expectation comes from."""
    interval, expected = row.interval_us, row.expectation
    within = f"median between {interval[0]:.1f} and {interval[1]:.1f} us" if interval else "too few for an interval"
    measured = (
        f"mean {row.time_us.mean:.1f} us, {within} ({row.batches} batches of {row.iters} calls) over "
        f"{row.ranks} ranks, {row.place} place, {row.mode} mode"
    )
    source = f"; expected {expected.value:.4g} {expected.unit}, {expected.basis}: {expected.source}" if expected else ""
    return measured + source


def _host_side(row: Measurement) -> str:
    """Why `row` says nothing against the links: hosts that hand calls over slowly, or ranks that come late."""
    if row.launch_bound:
        return (
            f"; but the host needs {row.issue_us:.1f} us to hand a call over, of {row.time_us.mean:.1f}: launch-bound, "
            "this is not the link's speed"
        )
    if row.skew is None or row.expectation is None or row.skew.transfer_us <= 0:
        return ""
    alone = row.busbw_GBps * row.time_us.mean / row.skew.transfer_us
    if alone < row.expectation.low or row.skew.arrival_us < row.skew.transfer_us:
        return ""
    latest = max(range(row.ranks), key=row.skew.late_us.__getitem__)
    return (
        f"; but once all ranks are there it takes {row.skew.transfer_us:.1f} us, which is {alone:.4g} GB/s: "
        f"they arrive {row.skew.arrival_us:.1f} us apart, rank {latest} last"
    )


_PUNCTUAL = Skew(8, 4000.0, 100.0, 30.0, (10.0,) * 8, (0,) * 8)
_LATECOMER = replace(_PUNCTUAL, late_us=(10.0,) * 7 + (5000.0,), late_rounds=(0,) * 7 + (4,))
_ALL_LATE = replace(_PUNCTUAL, late_us=(5000.0,) * 8, late_rounds=(4,) * 8)
_FEWEST_TIMES, _LOST_SHARE, _TIMES_OTHERS = 3, 0.4, 4.0


def _apart(skew: Skew) -> Apart:
    return Apart((replace(_ROW, skew=skew),), ("n0",) * 4 + ("n1",) * 4)


@check(bad=[(_apart(_LATECOMER),)], good=[(_apart(_PUNCTUAL),), (_apart(_ALL_LATE),)])
def straggler(apart: Apart) -> Iterator[Finding]:
    """A rank comes late to its calls: its host is slow, not a link.

    Why: the other ranks wait inside the collective, so every rank measures the same long time, and it looks like a slow
    network. After a barrier, each rank computes for four milliseconds and calls; one that comes late by itself, having
    lost two fifths of its time, at least three times and four times as much as its fellows, is named.
    Fix: look at the rank's host: other processes on its cores, a CPU limit of its container (cpu.max), all ranks bound
    to the same cores, a processor slowed down by heat or power.
    """
    skews = [row.skew for row in apart.rows if row.skew]
    waited_us = sum(skew.rounds * skew.wait_us for skew in skews)
    rounds = sum(skew.rounds for skew in skews)
    lost_us = [sum(skew.rounds * skew.late_us[rank] for skew in skews) for rank in range(apart.rows[0].ranks)]
    for rank, lost in enumerate(lost_us):
        times = sum(skew.late_rounds[rank] for skew in skews)
        usual = median_low([*lost_us[:rank], *lost_us[rank + 1 :]])
        if times >= _FEWEST_TIMES and lost >= _LOST_SHARE * (lost + waited_us) and lost >= _TIMES_OTHERS * usual:
            yield warn(
                f"rank {rank}",
                f"on host {apart.hosts[rank]} comes late to collectives: by {lost / rounds / 1e3:.1f} ms on average, "
                f"the other ranks by {usual / rounds / 1e3:.1f} ms",
                blame="node",
                action="retest",
                confidence="measured apart from the transfer",
                nodes=(apart.hosts[rank],),
                evidence=f"late by more than 1 ms in {times} of {rounds} rounds, over {len(skews)} rows; transfers "
                f"alone took {min(skew.transfer_us for skew in skews):.1f} us and more",
            )


_BAD_NIC = Blamed("n3 rail 1 (mlx5_1)", "rail", ("n3",), 1, "both", 0.1, 0.999, 12, 12, 6, 3, ("n3",))
_UNSURE = replace(_BAD_NIC, confidence=0.9, retests=0)
_NOBODY = Localisation(4, "nobody", tests=36)
_SLOW_INSIDE = Inside("inside n2", "collective", "n2", (16, 17), 0.3, 200.0, 3)
_SHIFTED = Mismatch(4, 1023, 0, "7", "0", "0x07", "0x00")
_RUINED = 0.5
"""Below this share of the usual bandwidth a job is better off without: that fails, and the rest warns."""
_FEWEST_NODES = 3


@check(
    bad=[
        (replace(_NOBODY, kind="rail", culprits=(_BAD_NIC,)),),
        (replace(_NOBODY, lost=(LostPair("n0", "n3", "timed out"),)),),
        (replace(_NOBODY, kind="everything", everything=True, level_GBps={"one way": 1.1}),),
        (replace(_NOBODY, inside=(_SLOW_INSIDE,)),),
        (replace(_NOBODY, wrong=(WrongBytes(0, 4, "n0", "n1", 12, _SHIFTED),)),),
    ],
    good=[(_NOBODY,), (replace(_NOBODY, suspects=(_UNSURE,), cleared=("out of n2",)),)],
    required=True,
)
def pairs(found: Localisation) -> Iterator[Finding]:
    """A node, a NIC, a pair or a direction is slow or corrupts data, or a pair was lost.

    Why: a collective is as slow as its slowest pair, and its own time does not say which that is. First every node is
    measured alone, so that what is slow inside of it is not taken for its network. Who looks slow in the tournament of
    all pairs is measured again beside others, and named only where that confirms it.
    Fix: look at what is named: of a node its links, NICs and processes (`ncclprobe doctor`), of a rail its NIC, cable
    and switch port, of a pair what lies between the two; then measure again.
    """
    named = [*_slow_inside(found), *_slow_between(found), *_wrong_or_lost(found)]
    yield from named
    if named:
        return
    if not found.complete:
        raise Unlearned("the run ended before all pairs were measured")
    if found.nodes < _FEWEST_NODES:
        raise Unlearned("of two that differ nobody knows which is slow: measure three nodes or more")


def _slow_inside(found: Localisation) -> Iterator[Finding]:
    """What is slow within a node, where no network is."""
    for each in found.inside:
        finding = fail if each.ratio < _RUINED else warn
        yield finding(
            each.where,
            f"{_INSIDE[each.kind]} is slow: {100 * each.ratio:.0f} % of what its peers reach is left, with no network "
            "in between",
            blame="node",
            action="retest",
            confidence=f"slow in each of {each.tests} turns, beside the same of other nodes",
            evidence=f"usual are {each.usual_GBps:.3g} GB/s",
            remedy="look inside the node: NVLinks and PCIe links below their width or speed (`ncclprobe doctor`), "
            "processors shared with other jobs, affinity, CPU limits; its network only after that",
            nodes=(each.node,),
        )


_INSIDE = {
    "collective": "this node's own collective",
    "node": "what the ranks of this node send to each other",
    "rank": "what this rank exchanges with the others of its node",
    "pair": "what these two ranks of one node send to each other",
}


def _slow_between(found: Localisation) -> Iterator[Finding]:
    """The culprits of the tournament, or that everybody is slow."""
    within = {each.node for each in found.inside}
    for each in found.culprits:
        finding = fail if each.ratio < _RUINED else warn
        hosts = each.hosts or each.nodes
        slow_inside = each.kind in ("node", "rail") and not within.isdisjoint(hosts)
        yield finding(
            each.where,
            f"{_what(each)} is slow: {100 * each.ratio:.0f} % of the usual bandwidth is left"
            + ("; so is the node inside, which may be the cause: look there first" if slow_inside else ""),
            blame=_WHOSE[each.kind],
            action="retest" if each.kind == "pair" else "repair",
            confidence=f"measured again beside {each.partners} partners, {100 * each.confidence:.1f} %",
            evidence=f"slow in {each.slow} of {each.tests} tests, {each.retests} of these after it was suspected; "
            f"{found.tests} tests in all",
            nodes=hosts if each.kind in ("node", "rail") else (),
        )
    if found.everything:
        usual = ", ".join(f"{rate:.3g} GB/s {way}" for way, rate in found.level_GBps.items())
        yield warn(
            "all pairs",
            f"everything is slower than expected: {usual}",
            action="retest",
            evidence=f"{found.tests} tests",
        )


def _wrong_or_lost(found: Localisation) -> Iterator[Finding]:
    """The pairs that brought wrong bytes, and those that brought nothing."""
    for bad in {(each.src, each.dst): each for each in reversed(found.wrong)}.values():
        first = bad.first
        yield fail(
            f"{bad.src_end} to {bad.dst_end}",
            f"{bad.wrong} bytes of one transfer came out wrong",
            action="retest",
            confidence="compared with exact values outside the timed window",
            evidence=f"rank {bad.src} to rank {bad.dst}, byte {first.offset}: {first.got} ({first.got_bits}) instead "
            f"of {first.expected} ({first.expected_bits})",
            remedy="measure each of the two with others: whoever brings wrong bytes there too is to be taken out",
        )
    aside = ", ".join(each.end for each in found.aside)
    for (src, dst), why in {(lost.src, lost.dst): lost.why for lost in found.lost}.items():
        yield _seen_once(
            f"{src} to {dst}",
            f"nothing came through before the deadline; set aside: {aside or 'both'}",
            evidence=why,
        )


_WHOSE: dict[str, Blame] = {
    "node": "node", "rail": "node", "pair": "link", "leaf": "fabric", "uplink": "fabric", "plane": "fabric"
}  # fmt: skip


def _what(each: Blamed) -> str:
    """What of a cause is slow, in words: its subject names it."""
    if each.kind == "pair":
        return "what lies between them" if each.direction == "both" else "the way from the first to the second"
    moved = {"both": "sends and receives", "out": "sends", "into": "receives"}[each.direction]
    return {
        "node": f"all that this node {moved}",
        "rail": f"all that this NIC, with its cable, {moved}",
        "leaf": "whatever touches this leaf",
        "uplink": {"both": "what leaves or enters", "out": "what leaves", "into": "what enters"}[each.direction]
        + " this leaf",
        "plane": "this rail of all nodes",
    }[each.kind]


def subject_of(row: Measurement) -> str:
    """A row as a finding names it: ``all_reduce 1 MiB``."""
    return f"{row.op} {size(row.nbytes)}"
