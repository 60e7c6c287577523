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

SHRINK, STARTS = 2e-6, (4.0, 8.0, 16.0, 24.0)
"""From one start alone a descent stops where the loss has a hollow: NVLink's at 10 us, 0.098; its least is 0.092."""
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
    return Fits(points).without(None)


class Fits:
    """Fits to all points but those of one source. What the others make of factors is worked out once for all fits."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Sort `points` into the families that they say something of."""
        kept = [point for point in points if point.path.split()[0] not in ("racks", "tcpx")]
        self._own = {each.kind: [p for p in kept if p.place in each.places] for each in FAMILIES}
        self._used = {kind: sorted({(point.place, point.path) for point in own}) for kind, own in self._own.items()}
        self._seen: dict[object, Mapping[str, float]] = {}

    def without(self, source: str | None) -> Factors:
        """The factors that make the loss least over the points of all other sources; of all, where it is None."""
        found = Factors()
        for family in FAMILIES:
            found = self._descend(family, found, source)
        return found

    def _descend(self, family: Family, base: Factors, source: str | None) -> Factors:
        """Coordinate by coordinate, in coarse steps, then in fine ones, from several starts."""
        begin = {**dict.fromkeys(family.parameters(), 0.0), family.factor: BEGIN[family.factor]}

        def cost(tried: Mapping[str, float]) -> float:
            errors = self._errors(family, family.applied(base, tried))
            others = statistics.fmean(error for name, error in errors.items() if name != source)
            return others + SHRINK * sum(tried[name] ** 2 for name in family.own)

        ends = [_descended({**begin, family.kind: start}, cost) for start in STARTS]
        return family.applied(base, min(ends, key=cost))

    def _errors(self, family: Family, factors: Factors) -> Mapping[str, float]:
        """The errors of each source, which follow from what its points' classes and paths have for factors."""
        used = self._used[family.kind]
        key = (family.kind, *((factors.corrections[place], start_us(path, factors.starts_us)) for place, path in used))
        if key not in self._seen:
            self._seen[key] = errors(self._own[family.kind], factors.time_us)
        return self._seen[key]


def _descended(values: dict[str, float], cost: Callable[[Mapping[str, float]], float]) -> dict[str, float]:
    least = cost(values)
    for fine in (0, 1):
        moving = True
        while moving:
            moving = False
            for tried in _near(values, fine):
                if (now := cost(tried)) < least - _LEAST_GAIN:
                    values, least, moving = tried, now, True
                    break
    return values


def _near(values: Mapping[str, float], fine: int) -> Iterable[dict[str, float]]:
    for name, value in values.items():
        step = STEPS.get(name, STEPS["start"])[fine]
        for moved in (value + step, value - step):
            yield {**values, name: round(moved, 3)}


def loss(points: Iterable[Point], time_us: Callable[[Point], float]) -> float:
    """The mean over sources of the mean absolute log error."""
    return statistics.fmean(errors(points, time_us).values())


def errors(points: Iterable[Point], time_us: Callable[[Point], float]) -> dict[str, float]:
    """The mean absolute log error of each source."""
    found: dict[str, list[float]] = defaultdict(list)
    for point in points:
        found[point.source].append(abs(math.log(time_us(point) / point.seen_us)))
    return {source: statistics.fmean(each) for source, each in found.items()}
