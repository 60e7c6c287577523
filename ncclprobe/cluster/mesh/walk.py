"""All of one node's calls: concurrently, what fails a second time, then the streams; over by the deadline."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from ncclprobe.cluster.mesh.listeners import Doors
from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.cluster.mesh.probe import Caller, untried, walk_path
from ncclprobe.cluster.mesh.rate import stream_to_neighbours
from ncclprobe.facts.paths import Door, Path, Paths

AT_ONCE = 16
"""Calls of one node at a time (contract, Manners)."""


async def walk(plan: NodePlan, doors: Doors, token: bytes, deadline: float) -> Paths:
    """What node `plan.me` sees of the others by `deadline`, a time.monotonic(): one row per call of the plan."""
    caller = Caller(token, deadline)
    own = {door.road: door for door in doors.addresses}
    calls = [call for call in plan.calls if call.road in own]
    rows = await _all(caller, calls, own)
    failed = [call for call in calls if rows[call].outcome != "ok"]
    for call, row in (await _all(caller, failed, own)).items():
        if row.tries and not (row.outcome == "late" and rows[call].tries):
            rows[call] = replace(row, tries=rows[call].tries + row.tries)
    open_calls = [call for call in plan.rates if call in rows and rows[call].outcome == "ok"]
    for call, rate in (await stream_to_neighbours(caller, open_calls, own)).items():
        rows[call] = replace(rows[call], rate_gbps=rate.rate_gbps, resent=rate.resent, segments=rate.segments)
    return Paths(plan.me, plan.names, doors.addresses, tuple(rows.values()), dict(doors.unopened))


async def _all(caller: Caller, calls: list[Call], own: Mapping[str, Door]) -> dict[Call, Path]:
    """Each of `calls` once, AT_ONCE at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Call) -> Path:
        async with places:
            return await walk_path(caller, call, own[call.road])

    if time.monotonic() >= caller.deadline:
        return {call: untried(call, own[call.road]) for call in calls}
    return dict(zip(calls, await asyncio.gather(*map(one, calls)), strict=True))
