"""Groups, steps and the ladder as a person reads them: a table each."""

from collections.abc import Iterator, Sequence

from ncclprobe.layout import table, wrap
from ncclprobe.model.traffic import GroupRow, LadderRow, StepRow
from ncclprobe.units import size, three_digits


def blocks(
    groups: Sequence[GroupRow], steps: Sequence[StepRow], rungs: Sequence[LadderRow], width: int
) -> Iterator[list[str]]:
    """The table of groups, that of steps, and that of the ladder."""
    if groups:
        yield table([_GROUPS, *(_group(row) for row in groups)], right=True)
    if steps:
        yield table([_STEPS, *(_step(row) for row in steps)], right=True)
    if rungs:
        step, call = size(rungs[-1].step_bytes), size(rungs[-1].nbytes)
        said = f"a training step sums {step} of gradients while it computes; GB/s are of an all_reduce of {call} alone"
        yield [*table([_LADDER, *(_rung(row) for row in rungs)], right=True), *wrap("ladder: ", said, width, 2)]


_GROUPS = ("kind", "op", "size", "ranks", "groups", "across nodes", "alone us", "GB/s",
           "concurrent us", "GB/s", "slower")  # fmt: skip
_STEPS = (
    "step of",
    "overlap",
    "calls",
    "bytes",
    "compute ms",
    "calls ms",
    "step ms",
    "predicted",
    "exposed",
    "efficiency",
)


_LADDER = ("rung", "ranks", "groups", "step ms", "speed-up", "efficiency", "between", "GB/s", "expected", "status")
_RUNGS = {"rank": "one rank", "pair": "two ranks", "node": "one node", "job": "all nodes"}


def _rung(row: LadderRow) -> tuple[str, ...]:
    return (
        _RUNGS[row.rung],
        str(row.ranks),
        str(row.groups),
        _ms(row.step_us),
        "-" if row.speedup is None else f"{row.speedup:.2f} x",
        "-" if row.efficiency is None else f"{row.efficiency:.0%}",
        f"{row.interval[0]:.0%} to {row.interval[1]:.0%}" if row.interval and row.rung != "rank" else "-",
        "-" if row.busbw_GBps is None else three_digits(row.busbw_GBps),
        three_digits(row.expectation.value) if row.expectation else "-",
        row.status,
    )


def _group(row: GroupRow) -> tuple[str, ...]:
    return (
        row.kind,
        row.op,
        size(row.nbytes),
        str(row.size),
        str(row.groups),
        str(row.crossing),
        f"{row.alone_us:.1f}",
        three_digits(row.alone_busbw_GBps),
        "-" if row.together_us is None else f"{row.together_us:.1f}",
        "-" if row.together_busbw_GBps is None else three_digits(row.together_busbw_GBps),
        "-" if row.slowdown is None else f"{row.slowdown:.2f} x",
    )


def _step(row: StepRow) -> tuple[str, ...]:
    return (
        row.strategy,
        "yes" if row.overlap else "no",
        str(row.calls),
        size(row.call_bytes),
        _ms(row.compute_us),
        _ms(row.calls_us),
        _ms(row.step_us),
        "-" if row.predicted_us is None else _ms(row.predicted_us),
        _ms(row.exposed_us),
        f"{row.efficiency:.0%}",
    )


def _ms(us: float) -> str:
    return f"{us / 1e3:.1f}"
