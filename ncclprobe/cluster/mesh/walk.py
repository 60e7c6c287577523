"""Make all of one node's calls: concurrently, failures a second time, then the streams; end by the deadline.

A call that got no answer while this process itself could not run says nothing of the other node: it is made again and
does not count.
"""

import asyncio
import time
from collections.abc import Mapping

from ncclprobe.cluster.mesh.listeners import Listeners
from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.cluster.mesh.probe import Caller, sized, untried, walk_path
from ncclprobe.cluster.mesh.rate import stream_to_neighbours
from ncclprobe.facts.reach import MeshListener, Path, Paths
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
