"""What was published of a machine type: at a call's own size, and what numbers around it say of the rest.

A few published numbers say more than themselves. Small calls of one operation tell what every call of that machine
waits for on top of its hops, and a curve between two published numbers meets both: the model keeps its shape and is
drawn to them, in the logarithm of the time over that of the size.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from ncclprobe.expect.system import Shape
from ncclprobe.expect.tables.machine_types import Latency, MachineType, Published
from ncclprobe.expect.tables.machines import table
from ncclprobe.model.measurement import Expectation, Measurement
from ncclprobe.model.report import PublishedRate
from ncclprobe.model.values import Struct
from ncclprobe.ops import OPS
from ncclprobe.units import size

FADES = 64
"""A number that has no other on its far side counts less and less, and not at all for calls so many times as large."""


class PublishedTime(Struct, frozen=True):
    """A published time of one size, in microseconds."""

    nbytes: int
    time_us: float


def at_size(
    machine: MachineType, op: str, nbytes: int, shape: Shape, algorithm: str | None, *, same: bool
) -> tuple[Expectation, bool] | None:
    """What was measured with as many GPUs and nodes at such a size, and whether it is of a time.

    `same`: settings change nothing of this call. Else only a number counts that names the `algorithm` now chosen.
    """
    rates = [row for row in _rates(machine, op, shape) if row.min_bytes <= nbytes <= row.max_bytes]
    rates = [row for row in rates if same or (algorithm is not None and row.algorithm == algorithm.lower())]
    if rates:
        best = max(rates, key=lambda row: (row.busbw_GBps, row.source))
        passes = f"; its source passes {best.threshold_GBps:g}" if best.threshold_GBps else ""
        why = f"{machine.name}: {best.why}{passes}"
        return Expectation(best.busbw_GBps, 0.0, "GB/s", "published", why, best.source), False
    times = [row for row in machine.latencies if same and _fits(row, op, shape) and nbytes <= row.max_bytes]
    return (_as_rate(machine, min(times, key=lambda row: row.max_bytes), op, nbytes, shape), True) if times else None


def behind(rows: Sequence[Measurement]) -> tuple[PublishedRate, ...]:
    """Return what was published, at the sizes of `rows`, of the machine type that they were judged by.

    It is what a reader compares with: an expectation uses one number, and here are all that fit the ranks and nodes.
    """
    names = (row.expectation.why.partition(":")[0] for row in rows if row.expectation)
    machine = next((known for name in names if (known := table().get(name))), None)
    if machine is None:
        return ()
    found: dict[PublishedRate, None] = {}
    for row in rows:
        for one in machine.published:
            fits = (one.op, one.nodes, one.ranks) == (row.op, row.nodes, row.ranks)
            if fits and one.min_bytes <= row.nbytes <= one.max_bytes:
                found[PublishedRate(row.op, row.nbytes, one.busbw_GBps, one.why, one.source)] = None
    return tuple(found)


def _rates(machine: MachineType, op: str, shape: Shape) -> list[Published]:
    return [row for row in machine.published if _fits(row, op, shape) and row.algorithm != "sharp"]


def _fits(row: Published | Latency, op: str, shape: Shape) -> bool:
    return row.op == op and set(shape.gpus) == {row.gpus} and shape.nodes == row.nodes


def _as_rate(machine: MachineType, row: Latency, op: str, nbytes: int, shape: Shape) -> Expectation:
    bus_bytes = nbytes * OPS[op].bus_factor(shape.ranks)
    normal = f", up to {row.high_us:.3g} normal by its source" if row.high_us else ""
    why = f"{machine.name}: {row.why}; by time, {row.time_us:.3g} us{normal}"
    return Expectation(bus_bytes / row.time_us / 1e3, 0.0, "GB/s", "published", why, row.source, "medium")


def start_us(machine: MachineType, shape: Shape, hops_us: Callable[[Latency], float | None]) -> float | None:
    """What a call on this machine waits for on top of its hops, in a node or between nodes; None where nothing tells.

    `hops_us`: what the model makes of a published small call without that wait.
    """
    calls = [row for row in machine.latencies if (row.nodes > 1) == (shape.nodes > 1)]
    waits = [max(0.0, row.time_us - hops) for row in calls if (hops := hops_us(row)) is not None]
    return statistics.median(waits) if waits else None


def drawn(
    machine: MachineType, op: str, nbytes: int, shape: Shape, modelled_us: Callable[[int], float | None]
) -> tuple[float, str]:
    """The factor on the modelled time that draws it to the published numbers around `nbytes`, and a word on them."""
    points = sorted(_points(machine, op, shape), key=lambda point: point.nbytes)
    below = next((point for point in reversed(points) if point.nbytes <= nbytes), None)
    above = next((point for point in points if point.nbytes >= nbytes), None)
    pulls = [pull for point in (below, above) if point and (pull := _pull(point, nbytes, modelled_us))]
    if not pulls:
        return 1.0, ""
    logs = [log for _, log, _ in pulls]
    if len(pulls) == 1:
        far, log, _ = pulls[0]
        factor = math.exp(log * max(0.0, 1 - far / math.log(FADES)))
    else:
        (near, _, _), (beyond, _, _) = pulls
        share = near / (near + beyond) if near + beyond else 0.0
        factor = math.exp(logs[0] * (1 - share) + logs[1] * share)
    return factor, f"drawn to what is published at {' and '.join(dict.fromkeys(word for _, _, word in pulls))}"


def _pull(
    point: PublishedTime, nbytes: int, modelled_us: Callable[[int], float | None]
) -> tuple[float, float, str] | None:
    """How far a point is in the logarithm of bytes, that of its time by the modelled one, and its size in words."""
    modelled = modelled_us(point.nbytes)
    if modelled is None:
        return None
    return abs(math.log(nbytes / point.nbytes)), math.log(point.time_us / modelled), size(point.nbytes)


def _points(machine: MachineType, op: str, shape: Shape) -> Iterator[PublishedTime]:
    """Where published numbers end, and where they begin again."""
    for late in machine.latencies:
        if _fits(late, op, shape):
            yield PublishedTime(late.max_bytes, late.time_us)
    factor = OPS[op].bus_factor(shape.ranks)
    for rate in _rates(machine, op, shape):
        for nbytes in {rate.min_bytes, rate.max_bytes}:
            yield PublishedTime(nbytes, nbytes * factor / rate.busbw_GBps / 1e3)
