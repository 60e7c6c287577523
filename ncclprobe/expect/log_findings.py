"""Findings of a judged log beside the verdicts on rows: dips, a wrong average, unlike GPUs, costly settings."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.expect.expected import expectation
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.findings import WORTH_SAYING, Severity, severity_of
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct

STEP, LARGE_STEP, UNEVEN = 2.0, 1.5, 1.3
"""From 1 MiB on, a row that is slower than a smaller one by this factor has dropped: of 147 published sweeps four have
one, and three of those were sick. From 64 MiB on less is enough, and least if the other placement did not drop.
"""
_STEP_FROM, LARGE = 1 << 20, 64 << 20
_AVERAGE_APART = 0.05


class LogFinding(Struct, frozen=True):
    """One finding in a log."""

    severity: Severity
    message: str

    def __str__(self) -> str:
        """Return ``WARN: node-b has …``."""
        return f"{self.severity.name}: {self.message}"


def steps(rows: Sequence[Measurement]) -> Iterator[LogFinding]:
    """Yield each range of sizes that drops below smaller ones, and each row that is slower than both its neighbours."""
    other = {(row.op, row.nbytes, row.place): row.busbw_GBps for row in rows}
    for op, place in dict.fromkeys((row.op, row.place) for row in rows):
        own = [row for row in rows if (row.op, row.place) == (op, place)]
        beside = {row.nbytes: other.get((op, row.nbytes, "in" if place == "out" else "out"), 0.0) for row in own}
        yield from _sweep_findings([row for row in own if row.nbytes >= _STEP_FROM], beside)


def _sweep_findings(own: Sequence[Measurement], beside: Mapping[int, float]) -> Iterator[LogFinding]:
    best, low = None, list[Measurement]()
    for before, row, after in zip([None, *own], own, [*own[1:], None], strict=False):
        if before and before.nbytes >= row.nbytes:  # another sweep
            yield from _dropped(best, low)
            best, low = None, []
        least = UNEVEN if _is_dip(row, before, after) else _least_step(row, best, beside) if best else 0.0
        if best and best.busbw_GBps >= least * row.busbw_GBps > 0:
            low.append(row)
            continue
        yield from _dropped(best, low, row)
        low = []
        around = [each.busbw_GBps for each in (before, after) if each]
        if len(around) == 2 and row.busbw_GBps >= STEP * max(around) > 0:
            times, ends = row.busbw_GBps / max(around), " and ".join(f"{each:.4g}" for each in around)
            message = f"jumps to {row.busbw_GBps:.4g} GB/s, {times:.1f}x more: its neighbours reach {ends} GB/s"
            yield LogFinding(Severity.WARN, f"{_what(row)} {message}")
        elif not best or row.busbw_GBps > best.busbw_GBps:
            best = row
    yield from _dropped(best, low)


def _least_step(row: Measurement, best: Measurement, beside: Mapping[int, float]) -> float:
    if row.nbytes < LARGE:
        return STEP
    other = beside[row.nbytes]
    return UNEVEN if other >= UNEVEN * row.busbw_GBps and best.busbw_GBps < UNEVEN * other else LARGE_STEP


def _is_dip(row: Measurement, before: Measurement | None, after: Measurement | None) -> bool:
    """Return whether both neighbours of a large row are faster, and their average is 1.5 times as fast."""
    around = [each.busbw_GBps for each in (before, after) if each]
    even = len(around) == 2 and min(around) >= UNEVEN * row.busbw_GBps
    return even and row.nbytes >= LARGE and sum(around) / 2 >= LARGE_STEP * row.busbw_GBps


def _dropped(
    best: Measurement | None, low: Sequence[Measurement], after: Measurement | None = None
) -> Iterator[LogFinding]:
    if not best or not low:
        return
    least = min(row.busbw_GBps for row in low)
    until = f" to {size(low[-1].nbytes)}" if len(low) > 1 else ""
    times = best.busbw_GBps / least
    warns = times >= LARGE_STEP or (len(low) == 1 and _is_dip(low[0], best, after))
    yield LogFinding(
        Severity.WARN if warns else Severity.NOTE,
        f"{_what(low[0], until)} drops to {least:.4g} GB/s, {times:.1f}x less than the {best.busbw_GBps:.4g} GB/s of "
        f"{size(best.nbytes)}",
    )


def _what(row: Measurement, until: str = "") -> str:
    return f"{row.op} of {size(row.nbytes)}{until} ({'out of place' if row.place == 'out' else 'in place'})"


def average(rows: Sequence[Measurement], printed: float | None, empty: int) -> Iterator[LogFinding]:
    """Yield a note if the printed average differs from that of the rows and the `empty` ones: rows are missing or
    differ.
    """
    if printed is None or not rows:
        return
    mean = sum(row.busbw_GBps for row in rows) / (len(rows) + empty)
    if abs(mean - printed) > _AVERAGE_APART * max(mean, printed) and max(mean, printed) >= 1:
        message = f"the summary prints an average of {printed:.4g} GB/s, and that of these rows is {mean:.4g}"
        yield LogFinding(Severity.NOTE, f"{message}: rows are missing, or belong to another run")


def unfinished(nbytes: int) -> Iterator[LogFinding]:
    """Yield a note if the run ended within the row of `nbytes`; 0: it did not."""
    if nbytes:
        yield LogFinding(Severity.NOTE, f"the run hung, or was stopped, in the row of {size(nbytes)}")


def tcp_instead(network: str, usual: str) -> Iterator[LogFinding]:
    """Yield a warning if NCCL reports that it uses sockets on nodes with a `usual` fabric."""
    if network == "sockets" and usual:
        yield LogFinding(Severity.WARN, f"NCCL used TCP sockets; such nodes usually have {usual}")


def unlike_hosts(hosts: Mapping[str, Sequence[str]]) -> Iterator[LogFinding]:
    """Yield a warning for each host whose GPUs differ from those of most hosts."""
    kinds = {host: tuple(dict.fromkeys(gpus)) for host, gpus in hosts.items()}
    counts = list(kinds.values())
    usual = max(counts, key=counts.count, default=())
    for host, kind in kinds.items():
        if kind != usual:
            reference = next(each for each, other in kinds.items() if other == usual)
            message = (
                f"{host} has {', '.join(kind)}; {reference} has {', '.join(usual)}: the slowest node slows all others"
            )
            yield LogFinding(Severity.WARN, message)


class Healthy(Struct, frozen=True):
    """The machine without the log's settings."""

    system: NodeSystem
    machine: MachineType | None
    version: NcclVersion = LATEST


def settings_cost(
    rows: Sequence[Measurement], shapes: Sequence[Shape | None], settings: str, healthy: Healthy
) -> Iterator[LogFinding]:
    """Yield the cost of `settings` for the largest row, compared with the expectation without them.

    The loss counts from the higher of the measured rate and the rate expected with the settings: any further loss is
    the row's own verdict.
    """
    if not settings:
        return
    large = [(row, shape) for row, shape in zip(rows, shapes, strict=True) if shape and row.nbytes >= LARGE]
    for op in dict.fromkeys(row.op for row, _ in large):
        row, shape = max((each for each in large if each[0].op == op), key=lambda each: each[0].busbw_GBps)
        assert shape
        without = expectation(op, row.nbytes, shape, healthy.system, machine=healthy.machine, version=healthy.version)
        if without is None:
            continue
        reached = max(row.busbw_GBps, row.expectation.value if row.expectation else 0.0)
        lost = 1 - reached / without.value
        if lost >= WORTH_SAYING:
            yield LogFinding(
                severity_of(lost),
                f"{settings} in this log costs {lost:.0%} of {op} at {size(row.nbytes)}: {without.value:.4g} GB/s are "
                f"expected without it, {row.busbw_GBps:.4g} were measured",
            )
            return


def lost_settings(text: Mapping[str, str]) -> str:
    """Return the settings that disable RDMA, as NCCL writes them; empty: none."""
    named = []
    if text.get("NCCL_IB_DISABLE", "") not in ("", "0"):
        named.append(f"NCCL_IB_DISABLE={text['NCCL_IB_DISABLE']}")
    if text.get("NCCL_NET", "").lower() == "socket":
        named.append(f"NCCL_NET={text['NCCL_NET']}")
    return ", ".join(named)
