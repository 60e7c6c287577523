"""A fleet whose nodes answer orders about rails as a World says, for tests of what leads and judges them.

No network and no process: what the two ends of a test see is computed from the ways between them, as in the examples of
the checks. What a run over real channels does is in tests/cluster/test_rail_node.py.
"""

import asyncio
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.rail.fixtures import World
from ncclprobe.cluster.rails.lead import Fleet, RailRun, RailsWanted
from ncclprobe.cluster.rails.node import RailEnds, RailsOrder
from ncclprobe.cluster.rails.plan import Budget
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.reach import MeshListener, RailRow, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.findings import Severity, Verdict
from ncclprobe.model.snapshot import Every, Job, Snapshot
from ncclprobe.model.values import asdict


class FakeNodes:
    """All nodes of a world: `silent` ones never answer, or once they have listed their rails (not `from_start`);
    `moved_gbps` is what each port carries by itself; `why` is what a node says of its rails.
    """

    def __init__(
        self, world: World, silent: Collection[int] = (), moved_gbps: Mapping[str, float] = {}, *,
        from_start: bool = True, why: str = "",
    ) -> None:  # fmt: skip
        self._why = why
        self._world, self._silent, self._moved, self._from_start = world, silent, moved_gbps, from_start
        self.waves: list[list[tuple[int, int, int]]] = []

    async def order(self, kind: str, orders: Mapping[str, RailsOrder], deadline: float) -> dict[str, dict[str, Any]]:
        """As the coordinator does; a node's id is its rank."""
        assert kind == "rails"
        return {
            key: json.loads(json.dumps({"rails": self.answer(int(key), order)}))
            for key, order in orders.items()
            if int(key) not in self._silent or (order.do == "list" and not self._from_start)
        }

    async def follow(self, order: RailsOrder) -> dict[str, Any]:
        """As node 0 does."""
        if order.do == "test":
            self.waves.append([])
        return self.answer(0, order)

    def answer(self, rank: int, order: RailsOrder) -> dict[str, Any]:
        """Return what a node answers."""
        world, node = self._world, self._world.nodes[rank]
        if order.do == "list":
            ends = [End(node, rail) for rail in range(world.rails)]
            ports = tuple(world.port(end) for end in ends)
            gpus = (world.gpus,) * world.rails
            return asdict(RailEnds(ports, (world.rate_gbps,) * world.rails, gpus, self._why, "", dict(self._moved)))
        rows = []
        for job in order.jobs:
            mine, theirs = End(node, job.rail), End(world.nodes[job.to], job.other)
            lead, follow = world.outcomes(*((mine, theirs) if job.leads else (theirs, mine)), job.test, job.gpu)
            outcome = lead if job.leads else follow
            rows.append(RailRow(job.number, job.to, job.rail, job.other, job.leads, outcome, job.together, job.step))
        return {"rows": [asdict(row) for row in rows]}


def fleet_of(world: World) -> Fleet:
    """Return all nodes of `world`, each with one listener."""
    listening = {
        rank: (MeshListener("nccl0", "eth0", f"10.0.{rank // 250}.{rank % 250 + 1}", 4000),)
        for rank in range(len(world.nodes))
    }
    names = dict(enumerate(world.nodes))
    return Fleet(names, {rank: str(rank) for rank in names if rank}, listening)


def played(
    world: World, nodes: FakeNodes | None = None, budget: Budget | None = None, *, force: bool = False,
    seconds: float = 600.0,
) -> Every[Rails]:  # fmt: skip
    """Return what all nodes saw of a whole run of so many `seconds`, retests included."""
    wanted = RailsWanted(None, None, budget or Budget(), force)  # type: ignore[arg-type]
    playing = nodes or FakeNodes(world)

    async def run() -> dict[int, Rails]:
        one = RailRun(wanted, playing, playing, fleet_of(world), time.monotonic() + seconds)  # type: ignore[arg-type]
        return await one.run()

    return Every({world.nodes[rank]: seen for rank, seen in asyncio.run(run()).items()})


def names(count: int) -> tuple[str, ...]:
    """Return ``n0`` …"""
    return tuple(f"n{number}" for number in range(count))


def found(check: Any, *facts: Any) -> Sequence[Any]:
    """Return the findings of `check`."""
    return tuple(check.run(*facts))


def verdicts(rails: Every[Rails], *facts: Any) -> dict[str, Verdict]:
    """Return what the checks of rails say, by id."""
    more = {type(fact): fact for fact in facts}
    snapshots = [Snapshot(node, {Rails: each, **more}) for node, each in rails.items()]
    wanted = [check for check in every_check() if check.id.startswith("rail.")]
    return {verdict.id: verdict for verdict in judge(snapshots, wanted, Job())}


def wrong(found: dict[str, Verdict]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the id, subject and nodes of every finding that is no note."""
    for verdict in found.values():
        for finding in verdict.findings:
            if finding.severity is not Severity.NOTE:
                yield verdict.id, finding.subject, finding.nodes
