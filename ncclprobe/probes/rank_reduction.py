"""Reduce what every rank reports into one row of the report."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ncclprobe import stats
from ncclprobe.model.measurement import Measurement, Mismatch, Place, Samples
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.ops import Op, Shape
from ncclprobe.probes.arrival_skew import Arrival, skew
from ncclprobe.probes.clock import Batch
from ncclprobe.probes.plan import Plan, library

_MOST_SAMPLES = 1000
_MOST_MISMATCHES = 8


class RankResult(Struct, frozen=True):
    """What one rank measured of a row: per batch the seconds per call, and means of the host's and device's share.

    `wrong` counts elements, None: not verified.
    """

    seconds: Sequence[float]
    issue_s: float
    device_s: float | None = None
    wrong: int | None = None
    mismatch: Mismatch | None = None
    arrivals: Sequence[Arrival] = ()

    def pack(self) -> dict[str, Any]:
        """Return the result as JSON can hold it."""
        return asdict(self)

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> "RankResult":
        """Read what :meth:`pack` made."""
        mismatch = row["mismatch"] and Mismatch(**row["mismatch"])
        return cls(**{**row, "mismatch": mismatch, "arrivals": [Arrival(**each) for each in row["arrivals"]]})


def rank_result(
    batches: Sequence[Batch], wrong: int | None, mismatch: Mismatch | None, arrivals: Sequence[Arrival]
) -> RankResult:
    """Return this rank's part."""
    on_device = [batch.device_s for batch in batches if batch.device_s is not None]
    return RankResult(
        [batch.seconds for batch in batches],
        fmean(batch.issue_s for batch in batches),
        fmean(on_device) if on_device else None,
        wrong,
        mismatch,
        arrivals,
    )


def reduce_ranks(
    plan: Plan, op: Op, shape: Shape, place: Place, footprint_bytes: int, iters: int, rows: Mapping[int, RankResult]
) -> Measurement:
    """Reduce the results of all ranks (by number) to the row; ncclprobe.stats defines its numbers."""
    samples = [fmean(batch) for batch in zip(*(row.seconds for row in rows.values()), strict=True)]
    time_us = replace(stats.summary(samples), headline="median" if plan.precision else "mean")
    algbw, busbw = op.bandwidth(shape, plan.ranks, time_us.typical / 1e6)
    issue_us = fmean(row.issue_s for row in rows.values()) * 1e6
    interval = stats.median_interval(samples) if len(samples) >= stats.MIN_SAMPLES else None
    wrong = [row.wrong for row in rows.values() if row.wrong is not None]
    return Measurement(
        op=op.name,
        place=place,
        mode=plan.timing,
        backend=plan.backend,
        library=library(plan.backend),
        dtype=plan.dtype,
        redop=plan.redop if op.reduces else None,
        nbytes=shape.nbytes,
        count=shape.count,
        ranks=plan.ranks,
        nodes=plan.nodes,
        iters=iters,
        batches=len(samples),
        footprint_bytes=footprint_bytes,
        time_us=time_us,
        issue_us=issue_us,
        slowest_rank=max(rows, key=lambda rank: fmean(rows[rank].seconds)),
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        wrong=sum(wrong) if wrong else None,
        mismatches=tuple(row.mismatch for row in rows.values() if row.mismatch)[:_MOST_MISMATCHES],
        interval_us=(interval[0] * 1e6, interval[1] * 1e6) if interval else None,
        precision=stats.precision(samples) if interval else None,
        precision_asked=plan.precision,
        launch_bound=plan.timing != "blocking" and issue_us >= stats.LAUNCH_BOUND * time_us.typical,
        device_us=_mean_us([row.device_s for row in rows.values()]),
        samples=_samples(samples, [row.seconds for row in rows.values()]),
        skew=skew({rank: row.arrivals for rank, row in rows.items()}),
    )


def _mean_us(seconds: Sequence[float | None]) -> float | None:
    """Return the mean over ranks, if all have one."""
    known = [value for value in seconds if value is not None]
    return fmean(known) * 1e6 if known and len(known) == len(seconds) else None


def _samples(means: Sequence[float], ranks: Sequence[Sequence[float]]) -> Samples:
    few = len(means) * len(ranks) <= _MOST_SAMPLES
    return Samples(
        by_rank=_us(list(map(fmean, ranks))),
        by_batch=_us(means),
        each=tuple(map(_us, ranks)) if few else (),
    )


def _us(seconds: Sequence[float]) -> tuple[float, ...]:
    """To a nanosecond, which is finer than any clock here."""
    return tuple(round(value * 1e6, 3) for value in seconds)
