"""The ways of rails for the report: every direction of every rail that was tried, over all its tests."""

from collections.abc import Sequence
from statistics import median

from ncclprobe.checks.rail import choices, name
from ncclprobe.errors import Unlearned
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.rails import Seen, Tried, Way, tests
from ncclprobe.model.pair_results import RailState, RailWay
from ncclprobe.model.snapshot import Every, Snapshot
from ncclprobe.model.values import Struct, field


def rail_ways(snapshots: Sequence[Snapshot]) -> tuple[RailWay, ...]:
    """Return what all nodes saw, by node and rail; nothing where nothing was tried."""
    rails = Every({s.node: seen for s in snapshots if isinstance(seen := s.facts.get(Rails), Rails)})
    try:
        found = tests(rails)
    except Unlearned:
        return ()
    ways: dict[Way, _Seen] = {}
    for each in found:
        for one, other in (each.seen, each.seen[::-1]):
            ways.setdefault((one.end, other.end), _Seen(one, other)).add(each)
    return tuple(_made(ways[way], rails) for way in sorted(ways))


class _Seen(Struct):
    """All tests of one way."""

    src: Seen
    dst: Seen
    tests: list[Tried] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    def add(self, each: Tried) -> None:
        self.tests.append(each)
        self.src, self.dst = each.seen if each.leads.end == self.src.end else each.seen[::-1]
        for way, both, rate in each.ways():
            if way == (self.src.end, self.dst.end) and rate is not None:
                kind = "gpu" if each.gpu else "both" if both else "alone" if each.together == 1 else "together"
                self.rates.setdefault(kind, []).append(rate)
        trips = each.leads.outcome.half_round_trip_us if each.leads.outcome and not each.gpu else ()
        self.latencies += [median(trips)] if trips else []

    def rate(self, *kinds: str) -> float | None:
        """Return the median rate of the first of these kinds that was measured."""
        known = next((self.rates[kind] for kind in kinds if kind in self.rates), None)
        return round(median(known), 3) if known else None

    @property
    def state(self) -> RailState:
        """Return what the last test with the host's memory says."""
        last = ([each for each in self.tests if not each.gpu] or self.tests)[-1]
        way = (self.src.end, self.dst.end)
        if not last.met:
            return "untried"
        if not last.usable:
            return "unusable"
        if way in last.dead() or way in last.late():
            return "dead" if way in last.dead() else "late"
        return "wrong" if any(_wrong(each, self.dst.end.node) for each in self.tests) else "ok"


def _wrong(each: Tried, node: str) -> bool:
    reader = next(seen for seen in each.seen if seen.end.node == node)
    return any(arrival.wrong_bytes for arrival in (reader.outcome.arrivals if reader.outcome else ()))


def _made(seen: _Seen, rails: Every[Rails]) -> RailWay:
    src, dst, state = seen.src.end, seen.dst.end, seen.state
    return RailWay(
        src=src.node,
        dst=dst.node,
        src_rail=src.rail,
        dst_rail=dst.rail,
        src_end=name(src, rails),
        dst_end=name(dst, rails),
        state=state,
        tests=len(seen.tests),
        GBps=seen.rate("together", "alone"),
        alone_GBps=seen.rate("alone"),
        both_GBps=seen.rate("both"),
        gpu_GBps=seen.rate("gpu"),
        latency_us=round(min(seen.latencies), 3) if seen.latencies else None,
        src_choices=choices(seen.src),
        dst_choices=choices(seen.dst),
        why="" if state == "ok" else seen.tests[-1].why,
    )
