"""Did each row carry the right bytes, fast enough?"""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.run.conditions import collectives
from ncclprobe.expect import bands
from ncclprobe.expect.bands import judge_rows
from ncclprobe.facts.run.samples import Expected, Participants, Rows, RunRequest, Skipped
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Certainty, Evidence, Finding, fail, seen, warn
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Band, Expectation, Library, Measurement, SkippedRow, TimeStats
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import size
from ncclprobe.model.values import replace

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


ONE_SIZE = RunRequest(ops=("all_reduce",), sizes=(1 << 20,))
EIGHT = Participants("torchrun", 8, ("n0",) * 8, "nccl")
_RIGHT = Rows((replace(ROW, wrong=0), replace(ROW, wrong=0, place="out")))


EXACT = Certainty("high", "compared with exact values outside the timed window")


@check(
    bad=lambda: [(ONE_SIZE, EIGHT, Skipped(), Rows((replace(ROW, wrong=3),)))],
    good=lambda: [(ONE_SIZE, EIGHT, Skipped(), _RIGHT)],
    required=True,
    applies=collectives,
)
def data(asked: RunRequest, participants: Participants, skipped: Skipped, rows: Rows) -> Iterator[Finding]:
    """A collective returned wrong values.

    Right: Every verified value is right.
    Why: corrupt gradients do not stop a job, but ruin the model that it trains. If requested rows are missing, it is
    unknown whether their values would have been right. A size with fewer elements than ranks cannot be measured and
    does not count as missing.
    Fix: exclude the node and measure the others. If every node is affected, unset the transport and algorithm settings
    (NCCL_ALGO, NCCL_PROTO, NCCL_NET_GDR_LEVEL, …) one at a time and measure again.
    """
    for row in rows.measured:
        if row.wrong:
            yield fail(
                subject_of(row),
                f"{row.wrong} of the elements that all ranks received are wrong ({row.dtype}, {row.place} place)",
                action="retest",
                confidence=EXACT,
                evidence=[f"{row.backend} {row.library.version}, {row.ranks} ranks", *_shown(row)],
            )
    if not any(row.wrong for row in rows.measured):
        _refuse_gaps(asked.rows(participants.ranks), skipped, rows)


def _refuse_gaps(asked: frozenset[tuple[str, int, str]], skipped: Skipped, rows: Rows) -> None:
    """Raises Unlearned for rows that were left out or never arrived, or whose data was not compared."""
    if gaps := tuple(why_left_out(skipped.rows)):
        raise Unlearned("; ".join(gaps))
    left_out = {each.op for each in skipped.rows if each.nbytes is None} | {(e.op, e.nbytes) for e in skipped.rows}
    measured = {(row.op, row.nbytes, row.place) for row in rows.measured}
    missing = [row for row in asked - measured if not {row[0], row[:2]} & left_out]
    if missing:
        op, nbytes, place = min(missing)
        raise Unlearned(f"{len(missing)} of {len(asked)} rows are missing: {op} {size(nbytes)}, {place} place, …")
    if all(row.wrong is None for row in rows.measured):
        raise Unlearned("no row's data was verified")


def why_left_out(rows: Sequence[SkippedRow]) -> Iterator[str]:
    """What a run lacks because the backend refused an operation, or a size had no room or no time."""
    refused = [each for each in rows if each.cause == "refused"]
    for each in refused:
        yield f"{each.op} was skipped: {each.why}"
    if len(refused) > 1:
        yield f"{len(refused)} operations were skipped"
    for nbytes, each in {each.nbytes: each for each in rows if each.cause == "memory"}.items():
        yield f"{size(nbytes or 0)} was left out: {each.why}"
    for each in rows:
        if each.cause == "time" and each.nbytes is not None:
            yield f"{each.op} {size(each.nbytes)} was left out: {each.why}"


def _shown(row: Measurement) -> Iterator[str]:
    """The first wrong element of each of some ranks, with its bits: one flipped bit is not one lost packet."""
    for wrong in row.mismatches[:_MOST_SHOWN]:
        whose = "the reduction" if wrong.source is None else f"what rank {wrong.source} sent"
        yield (
            f"rank {wrong.rank}, element {wrong.offset}, of {whose}: {wrong.got} ({wrong.got_bits}) "
            f"instead of {wrong.expected} ({wrong.expected_bits})"
        )


_BY_FILE = replace(ONE_SIZE, expect="bands.toml")
_EXPECTED = Expected((Band("all_reduce", 1 << 20, 1 << 20, BAND),))


@applies
def to_be_judged(asked: RunRequest, expected: Expected, rows: Rows | Absent) -> bool:
    """if collectives were to be measured, and their numbers are judged or must be."""
    if "collectives" not in asked.what:
        return False
    must = asked.require_judged or asked.expect is not None or asked.baseline is not None
    judged = isinstance(rows, Absent) or any(row.status != "unjudged" for row in judge_rows(rows, expected))
    return must or judged


@check(
    bad=lambda: [(_BY_FILE, _EXPECTED, Rows((ROW,)))],
    good=lambda: [(_BY_FILE, _EXPECTED, Rows((replace(ROW, busbw_GBps=98.0),)))],
    required=True,
    applies=to_be_judged,
)
def bandwidth(asked: RunRequest, expected: Expected, rows: Rows) -> Iterator[Finding]:
    """A collective is slower than expected.

    Right: Every judged collective is as fast as expected.
    Why: a collective is as slow as its slowest link, so one bad cable, NIC or setting lowers this number.
    Fix: run `ncclprobe doctor` on these nodes. If it finds nothing, measure with fewer and fewer nodes until the number
    is right. Then check the nodes that you left out.
    """
    judged = [row for row in judge_rows(rows, expected) if row.status != "unjudged"]
    if not judged:
        raise Unlearned(_why_none(asked, expected))
    failed = [row for row in judged if row.status == "fail" and row.expectation]
    for row in failed:
        yield fail(
            subject_of(row),
            f"bus bandwidth {row.busbw_GBps:.4g} GB/s, {_least(row)}{_host_side(row)}",
            action="retest",
            confidence=_how_sure(row),
            evidence=_sources(row),
            loss=_loss(row),
            lost_GBps=_lost_GBps(row),
            remedy=_HOSTS if _host_side(row) else "",
        )
    noise = [row for row in judged if row.status == "inconclusive"]
    if noise and not failed:
        others = f", and {len(noise) - 1} more rows" if noise[1:] else ""
        raise Unlearned(f"{_unsure(noise[0])}; {_sources(noise[0])[0]}{others}")
    for row in judged:
        if row.status == "warn" and row.expectation:
            yield warn(
                subject_of(row),
                f"bus bandwidth {row.busbw_GBps:.4g} GB/s, {row.expectation.value:.4g} expected: "
                f"{_warned(row, row.expectation)} ({row.expectation.why})",
                action="retest",
                confidence=_how_sure(row),
                evidence=_sources(row),
                loss=_loss(row),
                lost_GBps=_lost_GBps(row),
            )


def _loss(row: Measurement) -> float | None:
    """Return the share of the expected bandwidth that is missing."""
    expected = row.expectation.value if row.expectation else 0.0
    return round(max(0.0, 1 - row.busbw_GBps / expected), 4) if expected > 0 else None


def _lost_GBps(row: Measurement) -> float | None:
    """Return how much of the expected bandwidth is missing."""
    return round(max(0.0, row.expectation.value - row.busbw_GBps), 4) if _loss(row) and row.expectation else None


def _why_none(asked: RunRequest, expected: Expected) -> str:
    """Why nothing judges a run whose numbers must be judged."""
    if asked.expect:
        return f"{asked.expect} has no expectation for the measured rows: it covers {first_of(expected.bands, 3)}"
    if asked.baseline:
        return f"{asked.baseline} has none of the measured rows for this machine; save a run with them as a baseline"
    return "no expectation is known for these numbers; pass --expect FILE or --baseline PATH"


def _warned(row: Measurement, expected: Expectation) -> str:
    """Why `row` warns: near the threshold, or below one that is too loosely known to fail by."""
    if row.busbw_GBps < expected.threshold:
        return f"below the threshold, {expected.threshold:.4g}, but the table may be wrong; to be sure, save a baseline"
    return f"above the threshold, {expected.threshold:.4g}, and nearer to that"


_HOSTS = (
    "check the hosts before the links: CPUs shared with other jobs or with too many ranks, CPU limits, "
    "affinity and frequency. Then measure again"
)


def _how_sure(row: Measurement) -> Certainty:
    """How often it was seen."""
    if row.retest is None:
        return Certainty("low", "measured once with these partners")
    second = f"measured twice with these partners, {row.retest.busbw_GBps:.4g} GB/s the second time"
    return Certainty("medium", second)


def _unsure(row: Measurement) -> str:
    """Return why it is not known whether `row` is slow."""
    noisy = row.inconclusive_why in ("", bands.TOO_FEW, bands.STRADDLES)
    return f"{'too noisy to judge' if noisy else row.inconclusive_why}: {subject_of(row)}, {_least(row)}"


def _least(row: Measurement) -> str:
    expected = row.expectation
    return f"{expected.least(row.busbw_GBps)} ({expected.why})" if expected else ""


def _sources(row: Measurement) -> tuple[Evidence, ...]:
    """The time with its interval, and the source of the expectation."""
    interval, expected = row.interval_us, row.expectation
    within = f"median between {interval[0]:.1f} and {interval[1]:.1f} us" if interval else "too few for an interval"
    how = f"{row.batches} batches of {row.iters} calls over {row.ranks} ranks, {row.place} place, {row.mode} mode"
    measured = seen(how, f"{row.time_us.typical:.1f} us, {within}")
    if expected is None:
        return (measured,)
    known = f"; {expected.known}" if expected.known else ""
    return measured, seen(expected.source, f"expected {expected.value:.4g} {expected.unit} ({expected.basis}){known}")


def _host_side(row: Measurement) -> str:
    """Why `row` proves nothing about the links: hosts that hand calls over slowly, or ranks that are late."""
    if row.launch_bound:
        return (
            f"; but the host needs {row.issue_us:.1f} us of {row.time_us.typical:.1f} to issue a call, so this is "
            "launch-bound and not the link's speed"
        )
    if row.skew is None or row.expectation is None or row.skew.transfer_us <= 0:
        return ""
    alone = row.busbw_GBps * row.time_us.typical / row.skew.transfer_us
    if alone < row.expectation.threshold or row.skew.arrival_us < row.skew.transfer_us:
        return ""
    latest = max(range(row.ranks), key=row.skew.late_us.__getitem__)
    return (
        f"; but once all ranks have joined it takes {row.skew.transfer_us:.1f} us, which is {alone:.4g} GB/s; "
        f"they join {row.skew.arrival_us:.1f} us apart, rank {latest} last"
    )


def subject_of(row: Measurement) -> str:
    """A row as a finding names it: ``all_reduce 1 MiB``."""
    return f"{row.op} {size(row.nbytes)}"
