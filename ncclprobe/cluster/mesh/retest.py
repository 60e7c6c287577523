"""Measure again, alone, what was slow or lost packets: the first measurement shared the nodes' time.

On the first paths of a node on which large messages stall, the size of packets that pass is looked for.
"""

from collections.abc import Mapping
from statistics import median_high

from ncclprobe.cluster.mesh.plan import NodePlan
from ncclprobe.facts.reach import Path, Paths
from ncclprobe.localise.reach import LEAST_GBPS, LOSSY, LOSSY_RESENT
from ncclprobe.model.values import replace

_SIZED = 2
DOUBTFUL = 0.5
"""Share of the usual rate. No path is blamed above SLOW, so that a second look costs little and decides."""


def doubtful(plans: Mapping[int, NodePlan], seen: Mapping[int, Paths]) -> dict[int, NodePlan]:
    """Return which of `plans` each node is to measure once more, by rank; nodes without doubt are left out.

    A path that lost packets without having carried a stream is to carry one: some hundred packets tell little.
    """
    retests: dict[int, NodePlan] = {}
    usual = _usual(seen)
    for rank, paths in seen.items():
        doubtful_paths = {(row.to, row.role) for row in paths.rows if _is_doubtful(row, usual.get(row.role, 0.0))}
        stalled = [(row.to, row.role) for row in paths.rows if row.outcome == "stalled-out"][:_SIZED]
        calls = tuple(call for call in plans[rank].calls if (call.to, call.role) in {*doubtful_paths, *stalled})
        if calls:
            retests[rank] = replace(plans[rank], calls=calls, rates=calls, thorough=True)
    return retests


def merged(first: Paths, second: Paths) -> Paths:
    """Return `first` with the better of two measurements of each path."""
    better = {(row.to, row.role): row for row in second.rows if row.outcome == "ok" and row.rate_gbps is not None}
    looked = {(row.to, row.role): row for row in second.rows}
    rows = tuple(
        _better(_sized(row, looked.get((row.to, row.role))), better.get((row.to, row.role))) for row in first.rows
    )
    return replace(first, rows=rows, floods=second.floods or first.floods)


def _sized(row: Path, retest: Path | None) -> Path:
    """Return a path on which large messages stalled as the second look found it: slow, or stalled for packets' size."""
    if retest is None or row.outcome != "stalled-out":
        return row
    if retest.outcome == "ok":
        known = retest.rate_gbps is not None
        return replace(row, outcome="ok" if known else "late", detail="large messages are slow", streams=2)
    tries = row.tries + retest.tries
    return replace(row, tries=tries, passes=retest.passes, stops=retest.stops, drops=retest.drops)


def _better(row: Path, retest: Path | None) -> Path:
    if retest is None:
        return row
    rate = max(row.rate_gbps or 0.0, retest.rate_gbps or 0.0)
    counted = min((row, retest), key=_share)
    return replace(row, rate_gbps=rate, resent=counted.resent, segments=counted.segments, streams=2)


def _usual(seen: Mapping[int, Paths]) -> dict[str, float]:
    """Return the median over nodes of the best rate that each sent, by role."""
    best: dict[str, dict[int, float]] = {}
    for rank, paths in seen.items():
        for row in paths.rows:
            mine = best.setdefault(row.role, {})
            mine[rank] = max(mine.get(rank, 0.0), row.rate_gbps or 0.0)
    return {role: median_high(rates.values()) for role, rates in best.items()}


def _is_doubtful(row: Path, usual: float) -> bool:
    slow = row.rate_gbps is not None and row.rate_gbps < DOUBTFUL * usual
    return row.outcome == "ok" and (
        slow
        or (row.rate_gbps is not None and row.rate_gbps < 2 * LEAST_GBPS)
        or ((row.resent or 0) >= LOSSY_RESENT and _share(row) > LOSSY / 2)
    )


def _share(row: Path) -> float:
    return (row.resent or 0) / (row.segments or 1)
