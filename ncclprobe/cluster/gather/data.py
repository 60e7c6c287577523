"""Write to the paths of --path from every node, and see from every node what the others wrote.

Node 0 leads in rounds: each node makes a folder of its own with a marker; each looks for the markers of others, and at
a path for checkpoints writes its shard into node 0's folder; node 0 writes the manifest and then COMPLETE, which the
others wait for, and then must see every shard whole; each removes its folder. All that touches a path happens in
children that can be left behind (:mod:`ncclprobe.host.path_child`). A node touches the paths of its own command line
only, whatever node 0 says.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from ncclprobe.cluster.gather.path_work import CLEAN_S, SHARD_CHARACTERS, SHARD_TIMES, PathWork
from ncclprobe.cluster.gather.rates import RateRounds, RateWork
from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.messages import DataOrder, Marker
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts.data_paths import DataRates, DataWrites, Written, rate_bytes, rated, writes_to
from ncclprobe.host.path_child import digested
from ncclprobe.model.path_rates import PathRate
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import Struct, replace

T = TypeVar("T")
_WRITES_S = 60.0
"""For all that is written and looked for."""
_STEP_S = 10.0
"""For one step of writing or reading at one path."""
_WAIT_S = 8.0
"""For what another node wrote to be seen. NFS asks its server again after 3 to 60 s (acregmin, acdirmax of nfs(5));
what is not seen by then is late for whatever writes and then reads."""
_REPLY_S = 2.0
_RATE_S = 3.0
"""For one measurement, with what it opens and closes around its second."""
_HEAD_START_S = 0.3
"""By which others look for COMPLETE before it is written: their caches may then hold that it is not there."""
_ALL_LOOK = 16
"""Up to so many nodes, each looks for the files of all; beyond, for node 0's and those of the nodes that follow it: the
file server is asked N times so many questions, not N times N."""


def worked_alone(snapshot: Snapshot, deadline: float) -> dict[str, Any]:
    """Write to and measure this node's paths, which no other looks at; return the samples of it by their names."""
    work = PathWork(writes_to(snapshot), 0, snapshot.node, rated(snapshot))
    rates, samples = RateWork(work, rated(snapshot), rate_bytes(snapshot)), dict[str, Any]()
    until = deadline - 2 * CLEAN_S
    try:
        if work.rows:
            work.follow(DataOrder("write", max(0.0, until - time.monotonic())))
        for path, row in work.rows.items():
            if row.use == "checkpoint" and row.folder:
                shard = secrets.token_hex(SHARD_CHARACTERS // 2)
                work.put(path, row.folder, "shard-0", shard, until, SHARD_TIMES)
        if rates.kinds:
            samples["data_rates"] = DataRates(tuple(rates.alone(until)))
        if work.rows:
            work.follow(DataOrder("clean", CLEAN_S))
            samples["data_writes"] = DataWrites(0, {0: snapshot.node}, tuple(work.rows.values()))
    finally:
        work.close()
    return samples


class Rounds:
    """Node 0's side: `names` are the nodes that take part, by rank; `ids` their ids at the coordinator.

    `rates` are of node 0's own paths. What was measured is in `rated`, by rank.
    """

    def __init__(
        self, work: RateWork, coordinator: Coordinator, names: Mapping[int, str], ids: Mapping[int, str]
    ) -> None:
        self._rates, self._work = work, work.paths
        self._coordinator, self._names, self._ids = coordinator, names, ids
        self._rows: dict[int, dict[str, Written]] = {}
        self.rated: dict[int, DataRates] = {}

    async def run(self, deadline: float) -> dict[int, DataWrites]:
        """Return what each node wrote and saw, by rank; a node that did not answer is left out."""
        if self._work.rows:
            await self._written(min(deadline, time.monotonic() + _WRITES_S))
        if self._rates.kinds:
            rounds = RateRounds(self._rates.kinds, sorted(self._names))
            await rounds.run(self._measured, deadline - CLEAN_S - _REPLY_S)
            self.rated = {rank: DataRates(tuple(rows)) for rank, rows in rounds.rows.items()}
        await self._round({rank: DataOrder("clean", 0.0) for rank in self._rows}, deadline + _REPLY_S)
        return {
            rank: DataWrites(rank, dict(self._names), tuple(rows.values())) for rank, rows in sorted(self._rows.items())
        }

    async def _written(self, deadline: float) -> None:
        await self._round({rank: DataOrder("write", 0.0) for rank in self._names}, deadline)
        await self._round({rank: self._search(rank) for rank in self._rows}, deadline)
        if planned := self._checkpoints():
            wait_s = max(0.0, min(_WAIT_S, deadline - 2 * _REPLY_S - time.monotonic()))
            orders = {rank: DataOrder("look", 0.0, wait_s, self._parts(rank, planned)) for rank in self._rows}
            await self._round(orders, deadline, partial(self._publish, planned, deadline))

    async def _measured(self, orders: Mapping[int, DataOrder], deadline: float) -> dict[int, tuple[PathRate, ...]]:
        most = _STEP_S + _RATE_S * max((len(order.rates) for order in orders.values()), default=0)
        said = await self._followed(orders, deadline, min(most, deadline - _REPLY_S - time.monotonic()))
        rows = {rank: _converted(each.get("rates"), tuple[PathRate, ...]) for rank, each in said.items()}
        return {rank: each for rank, each in rows.items() if each is not None}

    async def _round(
        self, orders: Mapping[int, DataOrder], deadline: float, first: Callable[[], None] = lambda: None
    ) -> None:
        """Have every node follow its order, and keep what they say of what they wrote and saw."""
        left_s = min(2 * _STEP_S, deadline - _REPLY_S - time.monotonic())
        for rank, each in (await self._followed(orders, deadline, left_s, first)).items():
            if (known := _converted(each.get("data"), tuple[Written, ...])) is not None:
                self._rows[rank] = {row.path: row for row in known}

    async def _followed(
        self,
        orders: Mapping[int, DataOrder],
        deadline: float,
        left_s: float,
        first: Callable[[], None] = lambda: None,
    ) -> dict[int, dict[str, Any]]:
        """Have every node follow its order at once, this one too after `first`; return what they say, by rank."""
        if left_s <= 0:
            return {}
        timed = {rank: replace(order, seconds=left_s) for rank, order in orders.items()}
        theirs = {self._ids[rank]: order for rank, order in timed.items() if rank}
        asking = asyncio.create_task(self._coordinator.order("data", theirs, time.monotonic() + left_s + _REPLY_S))

        def here() -> dict[str, Any]:
            first()
            return self._rates.follow(timed[0])

        said: dict[int, dict[str, Any]] = {0: await run_in_thread(here, deadline)} if 0 in timed else {}
        remote = await asking
        return said | {rank: remote[key] for rank, key in self._ids.items() if key in remote}

    def _search(self, rank: int) -> DataOrder:
        """The second round: whose marker this node looks for, and where it puts its shards."""
        here = self._rows.get(0, {})
        into = {path: row.folder for path, row in here.items() if row.use == "checkpoint" and row.folder}
        markers = {path: self._markers(rank, path) for path in self._rows[rank]}
        return DataOrder("look", 0.0, _WAIT_S, markers, into)

    def _markers(self, rank: int, path: str) -> tuple[Marker, ...]:
        rows = {other: self._rows[other].get(path) for other in watched(rank, self._rows)}
        return tuple(
            Marker(other, row.folder, "marker", row.digests["marker"])
            for other, row in rows.items()
            if row and row.folder and "marker" in row.digests
        )

    def _checkpoints(self) -> dict[str, "_Checkpoint"]:
        """Return the checkpoint of each path to which shards were written."""
        found: dict[str, _Checkpoint] = {}
        for path, row in self._rows.get(0, {}).items():
            digests = {
                rank: rows[path].digests.get(f"shard-{rank}") for rank, rows in self._rows.items() if path in rows
            }
            shards = [Marker(rank, row.folder, f"shard-{rank}", digest) for rank, digest in digests.items() if digest]
            if row.use == "checkpoint" and row.folder and shards:
                found[path] = _Checkpoint(row.folder, tuple(shards))
        return found

    def _publish(self, planned: "Mapping[str, _Checkpoint]", deadline: float) -> None:
        """Write the manifest and then COMPLETE, while the others look for it already, as they do in a job."""
        began = time.monotonic()
        time.sleep(_HEAD_START_S)
        for path, each in planned.items():
            if self._work.put(path, each.folder, "manifest", each.manifest, deadline):
                self._work.put(path, each.folder, "COMPLETE", each.complete, deadline)
            row = self._work.rows[path]
            self._work.rows[path] = replace(row, seconds=row.seconds | {"until COMPLETE": time.monotonic() - began})

    def _parts(self, rank: int, planned: "Mapping[str, _Checkpoint]") -> dict[str, tuple[Marker, ...]]:
        """Return what this node must see of each checkpoint, COMPLETE first."""
        wanted = {0, rank, *watched(rank, self._rows)}
        return {path: tuple(part for part in each.parts if part.of in wanted) for path, each in planned.items()}


class _Checkpoint(Struct, frozen=True):
    """The shards in `folder` of node 0, and what goes with them."""

    folder: str
    shards: tuple[Marker, ...]

    @property
    def manifest(self) -> str:
        return msgspec.json.encode(self.shards).decode()

    @property
    def complete(self) -> str:
        return digested(self.manifest.encode())

    @property
    def parts(self) -> tuple[Marker, ...]:
        complete = Marker(0, self.folder, "COMPLETE", digested(self.complete.encode()))
        return complete, Marker(0, self.folder, "manifest", digested(self.manifest.encode())), *self.shards


def watched(rank: int, ranks: Collection[int]) -> list[int]:
    """Return the nodes whose files this node looks for: all others, or node 0 and those that follow it."""
    others = [each for each in sorted(ranks) if each > rank] + [each for each in sorted(ranks) if each < rank]
    return others if len(others) < _ALL_LOOK else sorted({0, *others[: _ALL_LOOK - 1]} - {rank})


def _converted(said: object, kind: type[T]) -> T | None:
    """Return what a node says, as `kind`; None where it makes no sense, and stays unknown."""
    try:
        return msgspec.convert(said, kind, str_keys=True)
    except msgspec.ValidationError:
        return None
