"""Make all of one node's calls: concurrently, failures a second time, then the streams; end by the deadline.

A call that got no answer while this process itself could not run says nothing of the other node: it is made again and
does not count. What was slow or lost packets is measured again, alone: the first measurement shared the nodes' time. On
the first paths of a node on which large messages stall, the size of packets that pass is looked for.
"""

import asyncio
import time
from collections.abc import Mapping
from statistics import median_high

from ncclprobe.cluster.mesh.listeners import Listeners
from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.cluster.mesh.probe import Caller, sized, stream_to_neighbours, untried, walk_path
from ncclprobe.facts.reach import MeshListener, Path, Paths
from ncclprobe.localise.reach import LEAST_GBPS, LOSSY, LOSSY_RESENT
from ncclprobe.model.values import replace

AT_ONCE = 16
"""Calls of one node at a time (docs/how/manners.md)."""


_TICK_S = 0.1
_OWN_LATE_S = 0.5  # of the two seconds of a try
_UNANSWERED = ("filtered", "silent", "stalled-out", "stalled-back")


class _OwnLateness:
    """How long this process's event loop could not run when it should have: `seconds`, since the beginning."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.seconds += max(0.0, time.monotonic() - began - _TICK_S)


async def walk(plan: NodePlan, listeners: Listeners, deadline: float) -> Paths:
    """Return how node `plan.me` reaches the others by `deadline`, a time.monotonic(): one row per call of the plan."""
    caller = Caller(listeners.key, deadline)
    local = {listener.role: listener for listener in listeners.addresses}
    calls = [call for call in plan.calls if call.role in local]
    own = _OwnLateness()
    measuring = asyncio.ensure_future(own.measure())
    try:
        rows = await _all(caller, calls, local, own)
        failed = [call for call in calls if rows[call].outcome != "ok"]
        again = [] if plan.thorough else failed
        for call, row in (await _all(caller, again, local, own)).items():
            if row.tries and not (row.outcome == "late" and rows[call].tries):
                rows[call] = replace(row, tries=rows[call].tries + row.tries)
        if plan.thorough:
            await _size(caller, rows, local)
    finally:
        measuring.cancel()
    open_calls = [call for call in plan.rates if call in rows and rows[call].outcome == "ok"]
    for call, rate in (await stream_to_neighbours(caller, open_calls, local, plan.thorough)).items():
        rows[call] = replace(rows[call], rate_gbps=rate.rate_gbps, resent=rate.resent, segments=rate.segments)
    unopened = dict(listeners.unopened)
    return Paths(plan.me, plan.names, listeners.addresses, tuple(rows.values()), unopened, listeners.floods)


async def _size(caller: Caller, rows: dict[Call, Path], local: Mapping[str, MeshListener]) -> None:
    """Find the size of packets that pass on the paths out of here on which large messages stall."""
    stalled = [call for call, row in rows.items() if row.outcome == "stalled-out"]
    found = [sized(caller, call, local[call.role], rows[call]) for call in stalled]
    rows.update(zip(stalled, await asyncio.gather(*found), strict=True))


async def _all(
    caller: Caller, calls: list[Call], local: Mapping[str, MeshListener], own: _OwnLateness
) -> dict[Call, Path]:
    """Make each of `calls` once, AT_ONCE at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Call) -> Path:
        async with places:
            while True:
                late_s = own.seconds
                path = await walk_path(caller, call, local[call.role])
                if path.outcome not in _UNANSWERED or own.seconds < late_s + _OWN_LATE_S:
                    return path

    if time.monotonic() >= caller.deadline:
        return {call: untried(call, local[call.role]) for call in calls}
    return dict(zip(calls, await asyncio.gather(*map(one, calls)), strict=True))


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
