"""What a run measured besides its rows, as text: a line per transport of the rows, then NIC traffic, copies, groups,
steps and the ladder, a table each.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ncclprobe.model import layout
from ncclprobe.model.layout import wrap
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import GroupRow, LadderRow, NicBytes, OperationTraffic, StepRow
from ncclprobe.model.units import size, three_digits
from ncclprobe.report.rows import ROOM_FOR_ALL

Column = tuple[str, Callable[[Any], object]]
"""A title, and what a row shows below it."""


def _table(columns: Sequence[Column], rows: Sequence[Any]) -> list[str]:
    """Return rows below their titles, flush right."""
    return layout.table([[title for title, _ in columns], *(cells(columns, row) for row in rows)], right=True)


def cells(columns: Sequence[Column], row: Any) -> tuple[str, ...]:
    """Return what `row` shows in each column; ``-`` for what it has not."""
    shown = (show(row) for _, show in columns)
    return tuple("-" if value is None else str(value) for value in shown)


def _digits(value: float | None) -> str | None:
    return None if value is None else three_digits(value)


def _ms(us: float | None) -> str | None:
    return None if us is None else f"{us / 1e3:.1f}"


def _times(factor: float | None) -> str | None:
    return None if factor is None else f"{factor:.2f} x"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _megabytes(nbytes: int | None) -> str:
    return "?" if nbytes is None else f"{nbytes / 1e6:.1f} MB"


def blocks(report: Report, width: int) -> Iterator[list[str]]:
    """Yield what is known of the way the bytes went, and what was measured within nodes."""
    if lines := list(_transports(report.measurements, width)):
        yield lines
    if report.nic_traffic:
        yield _table(NICS, nics(report))
    if report.copies:
        several = len({row.node for row in report.copies}) > 1
        left_out = {*(() if several else ("host",)), *(() if width >= ROOM_FOR_ALL else ("min", "max", "threshold"))}
        yield _table([column for column in COPIES if column[0] not in left_out], report.copies)


def nics(report: Report) -> list[tuple[OperationTraffic, NicBytes]]:
    """Return each NIC with the calls during which it was counted."""
    return [(row, nic) for row in report.nic_traffic for nic in row.nics]


def _transports(rows: Sequence[Measurement], width: int) -> Iterator[str]:
    """Yield ``transport: all_reduce 1 MiB to 64 MiB: IB mlx5_0, GPUDirect, RING SIMPLE, 16 channels``, by transport."""
    by_transport: list[tuple[Transport, list[Measurement]]] = []
    for row in rows:
        if row.transport == Transport():
            continue
        if by_transport and by_transport[-1][0] == row.transport:
            by_transport[-1][1].append(row)
        else:
            by_transport.append((row.transport, [row]))
    everything = len(by_transport) == 1 and len(by_transport[0][1]) == len(rows)
    for transport, together in by_transport:
        yield from wrap("transport: ", ("" if everything else f"{_sum_rows(together)}: ") + words(transport), width, 2)


def _sum_rows(rows: Sequence[Measurement]) -> str:
    ops = dict.fromkeys(row.op for row in rows)
    small, large = min(row.nbytes for row in rows), max(row.nbytes for row in rows)
    sizes = size(small) if small == large else f"{size(small)} to {size(large)}"
    return f"{', '.join(ops)} {sizes}"


def words(transport: Transport) -> str:
    """Return the transport in one line; what is not known of it is left out."""
    direct = {None: "", True: "GPUDirect", False: "no GPUDirect"}[transport.gdr]
    choice = " ".join(filter(None, (transport.algorithm, transport.protocol)))
    channels = f"{transport.channels} channels" if transport.channels else ""
    return ", ".join(filter(None, (transport.network, direct, choice, channels)))


NICS: Sequence[Column] = (
    ("counted", lambda of: of[0].op),
    ("bytes", lambda of: size(of[0].nbytes)),
    ("node", lambda of: of[1].node),
    ("nic", lambda of: of[1].nic),
    ("sent", lambda of: _megabytes(of[1].sent)),
    ("received", lambda of: _megabytes(of[1].received)),
    ("share", lambda of: None if of[1].share is None else f"{of[1].share:.1%}"),
    ("expected", lambda of: {None: "-", True: "yes", False: "no"}[of[1].expected]),
)
_KINDS = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "bidirectional": "both ways",
    "d2d": "GPU to GPU",
    "device": "within GPU",
    "host": "within host",
}
_NEAR = {None: "", True: ", near", False: ", far"}
COPIES: Sequence[Column] = (
    ("host", lambda row: row.node),
    ("copy", lambda row: _KINDS[row.kind]),
    ("device", lambda row: f"{row.device} to {row.peer}" if row.peer else row.device),
    ("memory", lambda row: ("-" if row.numa is None else f"NUMA {row.numa}") + _NEAR[row.near]),
    ("concurrent", lambda row: "yes" if row.concurrent else "no"),
    ("size", lambda row: size(row.nbytes)),
    ("GB/s", lambda row: three_digits(row.GBps)),
    ("min", lambda row: three_digits(row.min_GBps)),
    ("max", lambda row: three_digits(row.max_GBps)),
    ("threshold", lambda row: _digits(row.threshold_GBps)),
    ("verdict", lambda row: row.status),
)


def training_tables(
    groups: Sequence[GroupRow], steps: Sequence[StepRow], rungs: Sequence[LadderRow], width: int
) -> Iterator[list[str]]:
    """The table of groups, that of steps, and that of the ladder."""
    if groups:
        yield _table(GROUPS, groups)
    if steps:
        yield _table(STEPS, steps)
    if rungs:
        step, call = size(rungs[-1].step_bytes), size(rungs[-1].nbytes)
        said = (
            f"a training step sums {step} of gradients while it computes; GB/s is the rate of one all_reduce "
            f"of {call} without computation"
        )
        yield [*_table(LADDER, rungs), *wrap("ladder: ", said, width, 2)]


RUNGS = {"rank": "one rank", "pair": "two ranks", "node": "one node", "job": "all nodes"}
GROUPS: Sequence[Column] = (
    ("kind", lambda row: row.kind),
    ("op", lambda row: row.op),
    ("size", lambda row: size(row.nbytes)),
    ("ranks", lambda row: row.size),
    ("groups", lambda row: row.groups),
    ("across nodes", lambda row: row.crossing),
    ("alone us", lambda row: f"{row.alone_us:.1f}"),
    ("GB/s", lambda row: three_digits(row.alone_busbw_GBps)),
    ("concurrent us", lambda row: None if row.together_us is None else f"{row.together_us:.1f}"),
    ("GB/s", lambda row: _digits(row.together_busbw_GBps)),
    ("slower", lambda row: _times(row.slowdown)),
)
STEPS: Sequence[Column] = (
    ("step of", lambda row: row.strategy),
    ("overlap", lambda row: "yes" if row.overlap else "no"),
    ("calls", lambda row: row.calls),
    ("bytes", lambda row: size(row.call_bytes)),
    ("compute ms", lambda row: _ms(row.compute_us)),
    ("calls ms", lambda row: _ms(row.calls_us)),
    ("step ms", lambda row: _ms(row.step_us)),
    ("predicted", lambda row: _ms(row.predicted_us)),
    ("exposed", lambda row: _ms(row.exposed_us)),
    ("efficiency", lambda row: _percent(row.efficiency)),
)
LADDER: Sequence[Column] = (
    ("rung", lambda row: RUNGS[row.rung]),
    ("ranks", lambda row: row.ranks),
    ("groups", lambda row: row.groups),
    ("step ms", lambda row: _ms(row.step_us)),
    ("speed-up", lambda row: _times(row.speedup)),
    ("efficiency", lambda row: _percent(row.efficiency)),
    ("between", lambda row: _spell_interval(row.interval) if row.rung != "rank" else None),
    ("GB/s", lambda row: _digits(row.busbw_GBps)),
    ("expected", lambda row: _digits(row.expectation.value if row.expectation else None)),
    ("status", lambda row: row.status),
)


def _spell_interval(interval: tuple[float, float] | None) -> str | None:
    return f"{interval[0]:.0%} to {interval[1]:.0%}" if interval else None
