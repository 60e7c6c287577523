"""The factors of ``ncclprobe/expect/predict.py`` from published runs: all of them, or all but one source.

What is fitted: how much a pipeline loses over NVLink and in trees between nodes, what of a slot several GPUs reach, and
what a call waits for on top of its hops by path. The loss is the mean over sources of their mean absolute log error, so
that one long sweep does not drown the rest; a class that differs from its kind must gain by it (SHRINK per squared
microsecond).
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ncclprobe.expect.predict import CORRECTIONS, STARTS_US, Correction, Where, corrected_us, start_us
from ncclprobe.model.values import Struct, field, replace

SHRINK, START_US = 2e-6, 8.0
STEPS = {"start": (8.0, 2.0), "filling": (0.2, 0.05), "transfer": (0.1, 0.05)}
BEGIN = {"filling": 0.0, "transfer": 1.0}
_LEAST_GAIN = 1e-6


class Point(Struct, frozen=True):
    """One published time and what NCCL's model makes of it, in microseconds."""

    source: str
    place: Where
    path: str
    latency_us: float
    bytes_us: float
    seen_us: float


class Factors(Struct, frozen=True):
    """Corrections by class, and what a call waits for by path: those of :mod:`ncclprobe.expect.predict`."""

    corrections: Mapping[Where, Correction] = field(default_factory=lambda: CORRECTIONS)
    starts_us: Mapping[str, float] = field(default_factory=lambda: STARTS_US)

    def time_us(self, point: Point) -> float:
        """What a call takes with these factors."""
        start, factors = start_us(point.path, self.starts_us), self.corrections[point.place]
        if point.path.endswith(" pairs"):
            factors = Correction(filling=factors.filling)
        return corrected_us(point.latency_us, point.bytes_us, factors, start)


class Family(Struct, frozen=True):
    """Classes that are fitted together: those `filled` share one factor, and their starts lie near that of `kind`."""

    kind: str
    factor: Literal["filling", "transfer"]
    filled: tuple[Where, ...]
    places: tuple[Where, ...]
    own: tuple[str, ...]
    same: tuple[str, ...]

    def parameters(self) -> tuple[str, ...]:
        """What is fitted, by name."""
        return (self.factor, self.kind, *self.own)

    def applied(self, factors: Factors, values: Mapping[str, float]) -> Factors:
        """`factors` with `values`; a class of its own that has none is as its kind."""
        value = max(0.0, values[self.factor])
        filled = {place: _with(factors.corrections[place], self.factor, value) for place in self.filled}
        starts = {name: max(0.0, values[self.kind]) for name in (self.kind, *self.same)}
        starts |= {name: max(0.0, values[self.kind] + values[name]) for name in self.own}
        return Factors({**factors.corrections, **filled}, {**factors.starts_us, **starts})


def _with(correction: Correction, factor: str, value: float) -> Correction:
    return replace(correction, filling=value) if factor == "filling" else replace(correction, transfer=value)


FAMILIES = (
    Family(
        "nvlink",
        "filling",
        ("nvlink", "nvls", "nvls-8", "nvls-72"),
        ("nvlink", "nvls"),
        ("nvlink ampere", "nvlink hopper"),
        ("mnnvl",),
    ),
    Family("pcie", "transfer", ("pcie",), ("pcie",), (), ()),
    Family("rdma", "filling", ("network trees",), ("network", "network trees"), ("tcpxo",), ("unknown",)),
)


def fit(points: Sequence[Point]) -> Factors:
    """The factors that make the loss over `points` least."""
    found = Factors()
    for family in FAMILIES:
        own = [
            point for point in points if point.place in family.places and point.path.split()[0] not in ("racks", "tcpx")
        ]
        found = _descend(own, family, found)
    return found


def _descend(points: Sequence[Point], family: Family, base: Factors) -> Factors:
    """Coordinate by coordinate, in coarse steps, then in fine ones."""
    values = {**dict.fromkeys(family.parameters(), 0.0), family.kind: START_US, family.factor: BEGIN[family.factor]}

    def cost(tried: Mapping[str, float]) -> float:
        return loss(points, family.applied(base, tried).time_us) + SHRINK * sum(tried[name] ** 2 for name in family.own)

    least = cost(values)
    for fine in (0, 1):
        moving = True
        while moving:
            moving = False
            for tried in _near(values, fine):
                if (now := cost(tried)) < least - _LEAST_GAIN:
                    values, least, moving = tried, now, True
                    break
    return family.applied(base, values)


def _near(values: Mapping[str, float], fine: int) -> Iterable[dict[str, float]]:
    for name, value in values.items():
        step = STEPS.get(name, STEPS["start"])[fine]
        for moved in (value + step, value - step):
            yield {**values, name: round(moved, 3)}


def loss(points: Iterable[Point], time_us: Callable[[Point], float]) -> float:
    """The mean over sources of the mean absolute log error."""
    errors: dict[str, list[float]] = defaultdict(list)
    for point in points:
        errors[point.source].append(abs(math.log(time_us(point) / point.seen_us)))
    return statistics.fmean(statistics.fmean(each) for each in errors.values())


def plain_us(point: Point) -> float:
    """What NCCL's model says alone."""
    return point.latency_us + point.bytes_us
