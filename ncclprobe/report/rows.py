"""Measured rows as a terminal table: 80 columns, and more of each row if there is more room."""

import math
from collections.abc import Callable, Sequence

from ncclprobe.model.layout import Style, unstyled, wrap
from ncclprobe.model.measurement import Measurement, operation
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, grouped

_JOINED = "\N{BOTTOM SQUARE BRACKET}"
_LEAST = len("inconclusive")
ROOM_FOR_ALL = 110
"""Width in columns from which all facts of a row are shown."""


class _Column(Struct, frozen=True):
    """A column. `unit` is printed below `name`; `always`: also with only 80 columns. `why` explains it."""

    name: str
    unit: str
    wide: int
    show: Callable[[Measurement], str]
    why: str
    always: bool = True


def _percent(share: float) -> str:
    """Format a share in percent, in three characters: 0.2, 2, 9.1, 15, 120."""
    return f"{100 * share:.1f}" if share < 0.0095 else f"{100 * share:.2g}" if share < 0.095 else f"{100 * share:.0f}"


def rate(value: float) -> str:
    """Format a rate with four significant digits, never with an exponent: 0.000002, 0.001234, 1.234, 483.2."""
    return f"{value:.6f}" if value < 1e-4 else f"{value:#.4g}" if value < 999.95 else f"{value:.0f}"


def _us(value: float) -> str:
    """Format microseconds as nccl-tests does: the larger the number, the fewer decimals."""
    return f"{value:.2f}" if value < 1e4 else f"{value:.1f}" if value < 1e6 else f"{value:.0f}"


def _expected(m: Measurement) -> str:
    return f"{m.expectation.value:.4g}" if m.expectation else "-"


def judged(m: Measurement) -> str:
    """Return the verdict with the number's threshold, and further notes on the row."""
    e = m.expectation if m.status in ("warn", "fail", "inconclusive") else None
    least = e.mark(m.busbw_GBps) if e else 0.0
    parts = [f"{m.status}, not {least:.4g}" if m.busbw_GBps < least else m.status]
    parts += ["below a third of it"] if e and e.below_gross(m.busbw_GBps) else []
    parts += [f"{m.wrong} wrong"] if m.wrong else []
    parts += [f"{m.retest.busbw_GBps:.4g} when retested"] if m.retest else []
    parts += ["launch-bound"] if m.launch_bound else []
    return ", ".join(parts)


_COLUMNS = (
    _Column("op", "", -14, lambda m: operation(m.op, m.redop), "the operation, and its reduction unless it is a sum"),
    _Column("size", "", 7, lambda m: size(m.nbytes), "bytes as nccl-tests counts them, in binary units"),
    _Column("at", "", -3, lambda m: m.place, "in: the result overwrites the input; out: out of place"),
    _Column("time", "(us)", 8, lambda m: _us(m.time_us.typical),
            "the median time of a call; with -n or --batches the mean, as nccl-tests prints it"),
    _Column("+-", "(%)", 3, lambda m: "-" if m.precision is None else _percent(m.precision),
            "its uncertainty: half of its 95 % interval"),
    _Column("issue", "(us)", 9, lambda m: _us(m.issue_us),
            "CPU time to enqueue a call; if it is most of the time, the row is launch-bound", False),
    _Column("calls", "", 6, lambda m: str(m.iters * m.batches), "how many calls were timed", False),
    _Column("algbw", "(GB/s)", 8, lambda m: rate(m.algbw_GBps), "size / time; GB/s is 1e9 bytes per second"),
    _Column("busbw", "(GB/s)", 8, lambda m: rate(m.busbw_GBps),
            "the rate of the busiest link, as nccl-tests computes it; this number is judged"),
    _Column("expected", "(GB/s)", 8, _expected, "what a healthy machine of this kind reaches"),
    _Column("verdict", "", -1, judged, "and the lowest rate that would have passed, if it did not"),
)  # fmt: skip


def header(first: Measurement, width: int = 80) -> str:
    """Return the header of rows like `first`: how they were measured, and the columns with their units."""
    about = (
        f"{first.backend} {first.library.version}, {plural(first.ranks, 'rank')} on {plural(first.nodes, 'node')}, "
        f"{first.mode}, {first.dtype}, {_often(first)}, {size(first.footprint_bytes)} buffers"
        + (f", over {first.transport.network}" if first.transport.network else "")
    )
    shown = _columns(width)
    return "\n".join(
        (
            *wrap("", about, width),
            _line([c.name for c in shown], shown).rstrip(),
            _line([c.unit for c in shown], shown).rstrip(),
        )
    )


def row(m: Measurement, width: int = 80, style: Style = unstyled, before: str = "") -> str:
    """Format one measurement as a line under :func:`header` of the same `width`.

    `before`: the operation of the row above; a blank line precedes a different one.
    """
    shown = _columns(width)
    *cells, verdict = (c.show(m) for c in shown)
    lead = f"{_line(cells, shown[:-1])} "
    parts = verdict.replace(" ", _JOINED).replace(f",{_JOINED}", ", ")
    found = wrap("", parts, max(width - len(lead), _LEAST), whole=True)
    lines = [line.rstrip(",") for line in found]  # the end of the line parts them as well
    text = "\n".join((lead + lines[0], *(" " * len(lead) + line for line in lines[1:]))).replace(_JOINED, " ")
    coloured = style(text, m.status) if m.status != "unjudged" else text
    return f"\n{coloured}" if before not in ("", m.op) else coloured


def table(rows: Sequence[Measurement], width: int, style: Style = unstyled) -> list[str]:
    """Return all rows, grouped by operation and sorted by size."""
    sorted_rows = [m for of in grouped((m.op, m) for m in rows).values() for m in sorted(of, key=lambda m: m.nbytes)]
    before = ("", *(m.op for m in sorted_rows))
    lines = [row(m, width, style, op) for m, op in zip(sorted_rows, before, strict=False)]
    return [header(rows[0], width), *lines] if rows else []


def averages(rows: Sequence[Measurement]) -> list[str]:
    """Return nccl-tests' average line for each operation: the mean over all sizes and places."""
    means = {op: math.fsum(each) / len(each) for op, each in grouped((m.op, m.busbw_GBps) for m in rows).items()}
    return [f"Avg bus bandwidth of {op}, as nccl-tests: {rate(mean)} GB/s" for op, mean in means.items()]


def legend() -> list[str]:
    """Explain each column in one line."""
    return [f"{c.name:>9}  {c.why}" for c in _COLUMNS]


def _columns(width: int) -> Sequence[_Column]:
    return [column for column in _COLUMNS if column.always or width >= ROOM_FOR_ALL]


def _line(cells: Sequence[str], columns: Sequence[_Column]) -> str:
    padded = (
        f"{cell:<{-c.wide}}" if c.wide < 0 else f"{cell:>{c.wide}}" for cell, c in zip(cells, columns, strict=True)
    )
    return " ".join(padded)


def _often(first: Measurement) -> str:
    """Describe how often each row was measured."""
    if first.precision_asked is None:
        return f"{first.iters} calls x {first.batches} batches"
    return f"±{100 * first.precision_asked:.2g} % asked for"
