"""What a sweep did not measure, or not as precisely as asked: said in words. Pure."""

from collections.abc import Iterator, Sequence

from ncclprobe.model.measurement import Measurement, Unmeasured
from ncclprobe.units import size


def doubts(left_out: Sequence[Unmeasured]) -> Iterator[str]:
    """For which a run cannot be called good: an operation that the backend refused, a size without room."""
    refused = [each for each in left_out if each.cause == "refused"]
    for each in refused:
        yield f"{each.op} was skipped: {each.why}"
    if len(refused) > 1:
        yield f"{len(refused)} operations were skipped"
    for nbytes, each in {each.nbytes: each for each in left_out if each.cause == "memory"}.items():
        yield f"{size(nbytes or 0)} was left out: {each.why}"


def remarks(left_out: Sequence[Unmeasured]) -> Iterator[str]:
    """What says nothing against the other rows: sizes with fewer elements than ranks."""
    for each in left_out:
        if each.cause == "small":
            yield f"{each.op} was skipped: {each.why}"


def imprecise(rows: Sequence[Measurement]) -> Iterator[str]:
    """Where the precision that was asked for was not reached, and what was."""
    short = [row for row in rows if row.precision_asked and (row.precision or 1.0) > row.precision_asked]
    if short:
        worst = max(short, key=lambda row: row.precision or 1.0)
        reached = "unknown" if worst.precision is None else f"±{100 * worst.precision:.3g} %"
        yield (
            f"±{100 * (worst.precision_asked or 0):.3g} % was asked for, and {len(short)} of {len(rows)} rows did not "
            f"reach it within --budget; the worst is {worst.op} {size(worst.nbytes)}, {reached} after "
            f"{worst.batches} batches of {worst.iters}: give more --budget, or ask for less with --precision"
        )
