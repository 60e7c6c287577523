"""What stands behind the curves of a sweep: the same rows of the earlier reports, and what was published."""

from collections.abc import Iterator, Sequence

from ncclprobe.model.measurement import conditions
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import rate
from ncclprobe.report.trends import Past
from ncclprobe.units import size

MOST = 400
"""Points behind the curves of one operation."""


class Ghost(Struct, frozen=True):
    """A point behind a curve: bytes, GB/s of bus bandwidth and microseconds per call, whose it is, and its words."""

    op: str
    redop: str | None
    nbytes: int
    GBps: float
    time_us: float
    kind: str
    hover: str = ""


def of(report: Report, history: Sequence[Past]) -> tuple[Ghost, ...]:
    """Return the points of the earlier reports, and what was published of this machine type with as many ranks."""
    return (*_earlier(report, history), *_published(report))


def _earlier(report: Report, history: Sequence[Past]) -> Iterator[Ghost]:
    ways = {(row.op, conditions(row)) for row in report.measurements}
    for each in history[:-1]:
        for row in each.rows:
            if (row.op, conditions(row)) in ways and row.nbytes > 0:
                time = row.time_us.typical
                yield Ghost(row.op, row.redop, row.nbytes, row.busbw_GBps, time, "earlier")


def _published(report: Report) -> Iterator[Ghost]:
    """Yield what sources say of the type of this machine, at the sizes that were measured."""
    rows = {(row.op, row.nbytes): row for row in report.measurements}
    for each in report.published[:MOST]:
        row = rows.get((each.op, each.nbytes))
        if row and each.busbw_GBps > 0:
            time = row.time_us.typical * row.busbw_GBps / each.busbw_GBps
            words = f"published: {rate(each.busbw_GBps)} GB/s at {size(each.nbytes)}\n{each.why}\n{each.source}"
            yield Ghost(row.op, row.redop, each.nbytes, each.busbw_GBps, time, "published", words)
