"""Did each row carry the right bytes, fast enough?"""

from collections.abc import Iterator
from dataclasses import replace

from ncclprobe.errors import Unlearned
from ncclprobe.expect.site import verdict
from ncclprobe.model.findings import Finding, fail, warn
from ncclprobe.model.measurement import Expectation, Library, Measurement, Mismatch, TimeStats
from ncclprobe.model.registry import check
from ncclprobe.model.run import Judged, Verified
from ncclprobe.units import size

ROW = Measurement(
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
BAND = Expectation(100.0, 95.0, "GB/s", "user", "acceptance test", "bands.toml")


_MOST_SHOWN = 3
"""Ranks whose first wrong element a finding shows; the JSON has more."""


_LAST_SHARE = Mismatch(5, 1023, 3, "7.0", "0.0", "0x40e00000", "0x00000000")


@check(
    bad=lambda: [
        (Verified((replace(ROW, wrong=3),)),),
        (Verified((replace(ROW, wrong=3, mismatches=(_LAST_SHARE,)),)),),
    ],
    good=lambda: [(Verified((replace(ROW, wrong=0),)),)],
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


_SLOW = replace(ROW, expectation=BAND, status="fail")
_FAST = replace(ROW, busbw_GBps=98.0, expectation=BAND, status="pass")


@check(bad=lambda: [(Judged((_SLOW,)),)], good=lambda: [(Judged((_FAST,)),)], required=True)
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


def subject_of(row: Measurement) -> str:
    """A row as a finding names it: ``all_reduce 1 MiB``."""
    return f"{row.op} {size(row.nbytes)}"
