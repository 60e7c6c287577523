"""A second look at what was slow or lost packets, alone: what was measured before shared the nodes' time."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_high

from ncclprobe.cluster.mesh.plan import NodePlan
from ncclprobe.facts.paths import Path, Paths
from ncclprobe.localise.reach import LOSSY, LOSSY_RESENT

DOUBTFUL = 0.5
"""Of what the nodes usually carry: nobody is blamed above SLOW, so that a second look costs little and decides."""


def doubtful(plans: Mapping[int, NodePlan], seen: Mapping[int, Paths]) -> dict[int, NodePlan]:
    """What of `plans` each node is to measure once more, by rank; nodes without doubt are not in it.

    A path that lost packets without having carried a stream is to carry one: some hundred packets tell little.
    """
    again: dict[int, NodePlan] = {}
    usual = _usual(seen)
    for rank, paths in seen.items():
        odd = {(row.to, row.road) for row in paths.rows if _odd(row, usual.get(row.road, 0.0))}
        calls = tuple(call for call in plans[rank].calls if (call.to, call.road) in odd)
        if calls:
            again[rank] = replace(plans[rank], calls=calls, rates=calls)
    return again


def merged(first: Paths, second: Paths) -> Paths:
    """`first` with the better of two looks at each path."""
    better = {(row.to, row.road): row for row in second.rows if row.outcome == "ok" and row.rate_gbps}
    return replace(first, rows=tuple(_better(row, better.get((row.to, row.road))) for row in first.rows))


def _better(row: Path, again: Path | None) -> Path:
    if again is None:
        return row
    rate = max(row.rate_gbps or 0.0, again.rate_gbps or 0.0)
    counted = min((row, again), key=_share)
    return replace(row, rate_gbps=rate, resent=counted.resent, segments=counted.segments, streams=2)


def _usual(seen: Mapping[int, Paths]) -> dict[str, float]:
    """The median over nodes of the best that each sent, by road."""
    best: dict[str, dict[int, float]] = {}
    for rank, paths in seen.items():
        for row in paths.rows:
            mine = best.setdefault(row.road, {})
            mine[rank] = max(mine.get(rank, 0.0), row.rate_gbps or 0.0)
    return {road: median_high(rates.values()) for road, rates in best.items()}


def _odd(row: Path, usual: float) -> bool:
    slow = row.rate_gbps is not None and row.rate_gbps < DOUBTFUL * usual
    return row.outcome == "ok" and (slow or ((row.resent or 0) >= LOSSY_RESENT and _share(row) > LOSSY / 2))


def _share(row: Path) -> float:
    return (row.resent or 0) / (row.segments or 1)
