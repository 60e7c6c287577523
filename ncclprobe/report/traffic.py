"""What a run measured besides its rows, as text: a line per transport of the rows, then NIC traffic, copies,
affinity, groups, steps and the ladder, a table each.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.layout import table, wrap
from ncclprobe.model.measurement import Measurement, Transport
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import (
    AffinityRow,
    CopyRow,
    GroupRow,
    LadderRow,
    NicBytes,
    OperationTraffic,
    ScriptRung,
    StepRow,
)
from ncclprobe.report.rows import ROOM_FOR_ALL
from ncclprobe.units import size, three_digits


def blocks(report: Report, width: int) -> Iterator[list[str]]:
    """Yield what is known of the way the bytes went, and what was measured within nodes."""
    if lines := list(_transports(report.measurements, width)):
        yield lines
    if report.nic_traffic:
        yield table([_NICS, *(_nic(row, nic) for row in report.nic_traffic for nic in row.nics)], right=True)
    if report.copies:
        several = len({row.node for row in report.copies}) > 1
        columns = (*(["host"] if several else []), *(_COPIES if width >= ROOM_FOR_ALL else _NARROW_COPIES))
        yield table([columns, *([_copy(row)[name] for name in columns] for row in report.copies)], right=True)
    if report.affinity:
        yield table([_AFFINITY, *(_affinity(row) for row in report.affinity)], right=True)
        ways = dict.fromkeys(row.words for row in report.affinity if row.words)
        yield from (wrap("affinity: ", way, width, 2) for way in ways)


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
        yield from wrap("transport: ", ("" if everything else f"{_of(together)}: ") + words(transport), width, 2)


def _of(rows: Sequence[Measurement]) -> str:
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


_NICS = ("counted", "bytes", "node", "nic", "sent", "received", "share", "expected")


def _nic(row: OperationTraffic, nic: NicBytes) -> tuple[str, ...]:
    return (
        row.op,
        size(row.nbytes),
        nic.node,
        nic.nic,
        "?" if nic.sent is None else f"{nic.sent / 1e6:.1f} MB",
        "?" if nic.received is None else f"{nic.received / 1e6:.1f} MB",
        "-" if nic.share is None else f"{nic.share:.1%}",
        {None: "-", True: "yes", False: "no"}[nic.expected],
    )


_COPIES = ("copy", "device", "memory", "concurrent", "size", "GB/s", "min", "max", "threshold", "verdict")
_NARROW_COPIES = ("copy", "device", "memory", "concurrent", "size", "GB/s", "verdict")
_KINDS = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "bidirectional": "both ways",
    "d2d": "GPU to GPU",
    "device": "within GPU",
    "host": "within host",
}


def _copy(row: CopyRow) -> Mapping[str, str]:
    """Return what is shown of a row, by column."""
    numa = "-" if row.numa is None else f"NUMA {row.numa}"
    near = {None: "", True: ", near", False: ", far"}[row.near]
    return {
        "host": row.node,
        "copy": _KINDS[row.kind],
        "device": f"{row.device} to {row.peer}" if row.peer else row.device,
        "memory": numa + near,
        "concurrent": "yes" if row.concurrent else "no",
        "size": size(row.nbytes),
        "GB/s": three_digits(row.GBps),
        "min": three_digits(row.min_GBps),
        "max": three_digits(row.max_GBps),
        "threshold": "-" if row.threshold_GBps is None else three_digits(row.threshold_GBps),
        "verdict": row.status,
    }


_AFFINITY = ("rank", "node", "cpus", "better", "as is us", "better us", "ratio", "interval")


def _affinity(row: AffinityRow) -> tuple[str, ...]:
    return (
        str(row.rank),
        row.node,
        row.cpus,
        row.better_cpus,
        f"{row.as_is_us:.1f}",
        f"{row.better_us:.1f}",
        f"{row.ratio:.2f}",
        "-" if row.interval is None else f"{row.interval[0]:.2f} to {row.interval[1]:.2f}",
    )


def of_training(
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


def of_script(rungs: Sequence[ScriptRung], width: int) -> list[str]:
    """The table of the user's own script, and what its numbers mean; empty: there was none."""
    if not rungs:
        return []
    lines = table([_SCRIPT, *(_of_script(row) for row in rungs)], right=True)
    more = "" if all((row.efficiency or 0.0) <= _MOST for row in rungs) else f"; {_TOO_GOOD}"
    return [*lines, *wrap("script: ", f"{BY[rungs[0].by]}{more}", width, 2)]


_MOST = 1.1
_TOO_GOOD = (
    "more than 100% means that a rank had less to do on the larger rung, as where one epoch is shared out, or that the "
    "number is one step's: this is no gain"
)


BY = {
    "seconds": "compared by wall time, with its start, as if each rank had the same work on every rung; "
    "--ladder-metric TEXT compares by a number that it prints",
    "metric": "compared by the number that it printed, taken for the whole job's; --ladder-per-rank: for one rank's",
    "metric per rank": "compared by the number that it printed, taken for one rank's",
}
_SCRIPT = ("script on", "ranks", "nodes", "seconds", "printed", "speed-up", "efficiency", "ended")


def _of_script(row: ScriptRung) -> tuple[str, ...]:
    return (
        RUNGS[row.rung],
        str(row.ranks),
        str(row.nodes),
        f"{row.seconds:.1f}",
        "-" if row.metric is None else f"{row.metric:.4g}",
        "-" if row.speedup is None else f"{row.speedup:.2f} x",
        "-" if row.efficiency is None else f"{row.efficiency:.0%}",
        row.ended,
    )


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
RUNGS = {"rank": "one rank", "pair": "two ranks", "node": "one node", "job": "all nodes"}


def _rung(row: LadderRow) -> tuple[str, ...]:
    return (
        RUNGS[row.rung],
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
