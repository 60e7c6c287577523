"""Write to the paths of --path from every node, see what the others wrote, and measure how fast the paths are.

Node 0 leads in rounds: each node makes a folder of its own with a marker; each looks for the markers of others, and at
a path for checkpoints writes its shard into node 0's folder; node 0 writes the manifest and then COMPLETE, which the
others wait for, and then must see every shard whole; each removes its folder. All that touches a path happens in
children that can be left behind (:mod:`ncclprobe.host.path_child`). A node touches the paths and kinds of its own
command line only, with its own bound of bytes, whatever node 0 says.

Rates are measured in turns: from each node apart, at most eight at once, and then from all at once. A node that looks
slow against the others has two more turns; the best one counts. Each measurement ends after about a second, or when its
bytes are through; what has not had its turn when the time is over is measured with all others only.
"""

import asyncio
import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from ncclprobe.checks.data.rates import doubtful
from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.messages import DataOrder, Marker, RateOrder
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts.data_paths import (
    KINDS_OF_USE,
    UNWRITTEN,
    AskedPath,
    DataRates,
    DataWrites,
    Sight,
    Written,
    rate_bytes,
    rated,
    writes_to,
)
from ncclprobe.host.path_child import PathChild, digested
from ncclprobe.host.patience import at_once
from ncclprobe.model.errors import HostError, TimedOut
from ncclprobe.model.measurement import PathRate, RateKind
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import Struct, asdict, replace

_STEP_S = 10.0
"""For one step of writing or reading at one path."""
CLEAN_S = 3.0
SHARD_CHARACTERS, SHARD_TIMES = 64, 4096


class PathWork:
    """What this node does at its paths, one child each. Close it, and nothing of ours is left.

    `paths` are written to; `read` are only asked about (:mod:`ncclprobe.cluster.gather.data`).
    """

    def __init__(self, paths: Sequence[AskedPath], rank: int, host: str, read: Sequence[AskedPath] = ()) -> None:
        self._rank, self._host = rank, host
        every = {each.path for each in (*paths, *read)}
        self._children = {path: PathChild(path) for path in every}
        self._turns = {path: threading.Lock() for path in every}
        self._closed = False
        self.rows = {each.path: Written(each.path, each.use) for each in paths}
        self._hung: set[str] = set()

    def follow(self, order: DataOrder) -> list[dict[str, Any]]:
        """Do what `order` says, at all paths at once; return the rows as far as they are known."""
        deadline = time.monotonic() + order.seconds
        work: Mapping[str, Callable[[str], None]] = {
            "write": partial(self._write, deadline),
            "look": partial(self._look, order, deadline),
            "clean": partial(self._clean, deadline),
        }
        at_once([partial(work[order.do], path) for path in self.rows])
        return [asdict(row) for row in self.rows.values()]

    def close(self) -> None:
        """Remove what is left of ours, within a few seconds, and end the children.

        A run that is interrupted leaves a thread behind, whose child is left to it: folders are removed by another.
        """
        self._closed = True
        at_once([partial(self._end, path) for path in self._children])

    def _end(self, path: str) -> None:
        idle = self._turns[path].acquire(blocking=False)
        if idle:
            self._children[path].close()
        folder = self.rows[path].folder if path in self.rows else ""
        if folder:
            cleaner = PathChild(path)
            with contextlib.suppress(HostError):
                cleaner.ask("clean", CLEAN_S, folder=folder)
            cleaner.close()

    def put(self, path: str, folder: str, name: str, text: str, deadline: float, times: int = 1) -> str:
        """Write a file of ours into a folder of node 0; return its digest, or "" where that failed: a sight says so."""
        began = time.monotonic()
        answer = self.ask(path, "shard", deadline, folder=folder, name=name, text=text, times=times)
        digest = str(answer.get("digest", "")) if not answer.get("failed") else ""
        row = self.rows[path]
        if digest:
            took = {name: answer["seconds"]["write"]}
            row = replace(row, digests=row.digests | {name: digest}, seconds=row.seconds | took)
        else:
            unwritten = Sight(0, name, f"{UNWRITTEN}{answer.get('why')}", round(time.monotonic() - began, 3))
            row = replace(row, sights=(*row.sights, unwritten))
        self.rows[path] = row
        return digest

    def _write(self, deadline: float, path: str) -> None:
        text = f"ncclprobe {secrets.token_hex(16)}\n"
        answer = self.ask(path, "write", deadline, host=self._host, text=text)
        digests = {"marker": digested(text.encode())} if "create" in answer.get("seconds", {}) else {}
        known = {name: answer[name] for name in ("folder", "failed", "why", "seconds") if name in answer}
        self.rows[path] = replace(self.rows[path], digests=digests, swept=tuple(answer.get("swept", ())), **known)

    def _look(self, order: DataOrder, deadline: float, path: str) -> None:
        before = self.rows[path].sights
        blind = bool(before) and all(sight.outcome != "ok" for sight in before)
        until = time.monotonic() + (0.0 if blind else order.wait_s)
        for marker in order.markers.get(path, ()):
            wait_s = max(0.0, until - time.monotonic())
            named = {"folder": marker.folder, "name": marker.name, "digest": marker.digest, "seconds": wait_s}
            answer = self.ask(path, "look", deadline, **named)
            outcome = str(answer.get("outcome") or answer.get("kind"))
            sight = Sight(marker.of, marker.name, outcome, float(answer.get("seconds", answer.get("waited_s", 0.0))))
            self.rows[path] = replace(self.rows[path], sights=(*self.rows[path].sights, sight))
            if outcome == "hung":
                return
        if (into := order.into.get(path)) and self.rows[path].use == "checkpoint":
            text = secrets.token_hex(SHARD_CHARACTERS // 2)
            self.put(path, into, f"shard-{self._rank}", text, deadline, SHARD_TIMES)

    def _clean(self, deadline: float, path: str) -> None:
        row = self.rows[path]
        if row.folder:
            gone = self.ask(path, "clean", min(deadline, time.monotonic() + CLEAN_S), folder=row.folder).get("gone")
            self.rows[path] = replace(self.rows[path], left=not gone, folder="" if gone else row.folder)

    def ask(self, path: str, what: str, deadline: float, **more: Any) -> dict[str, Any]:
        """Return the child's answer, or what failed, as an answer: nothing at a path may end the run."""
        if self._closed or (path in self._hung and what != "clean"):
            return {"failed": what, "why": "it had not answered before", "kind": "hung"}
        with self._turns[path]:
            return self._answer(path, what, deadline, more)

    def _answer(self, path: str, what: str, deadline: float, more: Mapping[str, Any]) -> dict[str, Any]:
        patience_s = min(_STEP_S + float(more.get("seconds", 0.0)), deadline - time.monotonic())
        try:
            return self._children[path].ask(what, patience_s, **more)
        except TimedOut as error:
            self._hung.add(path)
            return {"failed": what, "why": str(error), "kind": "hung", "waited_s": round(patience_s, 3)}
        except HostError as error:
            return {"failed": what, "why": str(error), "kind": "refused"}


_RATE_S = 1.0
"""For one measurement."""
_AT_ONCE = 8
"""Nodes, but for the one round that asks for all."""
_TURNS_SHARE, _AGAIN_SHARE = 0.6, 0.75
"""Of the time: by then the turns, and the second turns, end."""
_AGAIN, _TIMES = 8, 2
"""Nodes that are measured again, the slowest first, and how often: a busy processor makes a node look slow for once."""

Kinds = Mapping[str, Sequence[RateKind]]
Ask = Callable[[Mapping[int, DataOrder], float], Awaitable[Mapping[int, Sequence[PathRate]]]]


class RateWork:
    """What this node does at its paths: what `paths` does, and measuring those that are `asked`."""

    def __init__(self, paths: PathWork, asked: Sequence[AskedPath], nbytes: int) -> None:
        self.paths, self._nbytes = paths, nbytes
        self.kinds = kinds_of(asked)
        self._read = {each.path for each in asked if each.use == "read"}

    def follow(self, order: DataOrder) -> dict[str, Any]:
        """Do what `order` says; return what came of it, as the samples of this node."""
        if order.do != "rate":
            return {"data": self.paths.follow(order)}
        deadline = time.monotonic() + order.seconds
        return {"rates": [asdict(row) for each in order.rates for row in self._rate(each, deadline)]}

    def alone(self, deadline: float) -> list[PathRate]:
        """Measure everything once, without any other node."""
        orders = [RateOrder(path, kind) for path, kinds in self.kinds.items() for kind in kinds]
        return [row for each in orders for row in self._rate(each, deadline)]

    def _rate(self, order: RateOrder, deadline: float) -> list[PathRate]:
        finding = order.kind == "find" and order.path in self._read
        if not finding and order.kind not in self.kinds.get(order.path, ()):
            return []
        of_user = order.kind != "write" and order.path in self._read
        folder = "" if of_user or order.path not in self.paths.rows else self.paths.rows[order.path].folder
        if not of_user and not folder:
            return []  # nothing could be written there: data.write says it
        bounds = {"nbytes": self._nbytes, "seconds": _RATE_S, "place": order.place, "at_once": order.at_once}
        answer = self.paths.ask(order.path, "rate", deadline, kind=order.kind, folder=folder, **bounds)
        if order.kind == "find":
            return []
        row = PathRate(order.path, order.kind, order.at_once, order.together, why=str(answer.get("why", "")))
        return [_measured(row, answer)]


def _measured(row: PathRate, answer: Mapping[str, Any]) -> PathRate:
    if "kind" in answer:  # hung, or refused
        return PathRate(row.path, row.kind, row.at_once, row.together, why=row.why, failed=True)
    known = {name: answer[name] for name in ("nbytes", "count", "seconds", "typical_s", "resident") if name in answer}
    return PathRate(row.path, row.kind, row.at_once, row.together, why=row.why, **known)


def kinds_of(asked: Sequence[AskedPath]) -> dict[str, tuple[RateKind, ...]]:
    """Return what is measured at each path: writing before what was written is read."""
    found: dict[str, tuple[RateKind, ...]] = {}
    for each in asked:
        found[each.path] = tuple(dict.fromkeys((*found.get(each.path, ()), *KINDS_OF_USE[each.use])))
    return found


def turns_of(ranks: Sequence[int]) -> list[Sequence[int]]:
    """Return the nodes of each turn: one at a time of up to eight nodes, and never more than eight at once."""
    size = min(_AT_ONCE, -(-len(ranks) // _AT_ONCE)) or 1
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


class RateRounds:
    """Node 0's side. `kinds`: what is measured, by path. What the nodes measured is in `rows`, by rank."""

    def __init__(self, kinds: Kinds, ranks: Sequence[int]) -> None:
        self._kinds, self._ranks = kinds, ranks
        self._places = itertools.count()
        self.rows: dict[int, list[PathRate]] = {rank: [] for rank in ranks}

    async def run(self, ask: Ask, deadline: float) -> None:
        """Have all nodes measure, by `ask`: it gives each its order, and returns what they measured by then."""
        began = time.monotonic()
        left_s = max(0.0, deadline - began)
        await self._ask(ask, self._find(), began + _TURNS_SHARE * left_s)
        for turn in turns_of(self._ranks):
            if time.monotonic() < began + _TURNS_SHARE * left_s:
                await self._ask(ask, self._apart(turn), began + _AGAIN_SHARE * left_s)
        for rank in (rank for _ in range(_TIMES) for rank in doubtful(self.rows)[:_AGAIN]):
            if time.monotonic() < began + _AGAIN_SHARE * left_s:
                await self._ask(ask, self._apart([rank]), deadline)
        for path, kinds in self._kinds.items() if len(self._ranks) > 1 else ():
            for kind in kinds:
                await self._ask(ask, self._together(path, kind), deadline)

    async def _ask(self, ask: Ask, orders: Mapping[int, DataOrder], deadline: float) -> None:
        for rank, rows in (await ask(orders, deadline)).items():
            self.rows[rank] += rows

    def _find(self) -> dict[int, DataOrder]:
        """Before anything is timed: what there is to be read."""
        orders = tuple(RateOrder(path, "find") for path, kinds in self._kinds.items() if "open" in kinds)
        return {rank: DataOrder("rate", 0.0, rates=orders) for rank in self._ranks} if orders else {}

    def _apart(self, turn: Sequence[int]) -> dict[int, DataOrder]:
        return {
            rank: DataOrder(
                "rate",
                0.0,
                rates=tuple(
                    RateOrder(path, kind, len(turn), next(self._places))
                    for path, kinds in self._kinds.items()
                    for kind in kinds
                ),
            )
            for rank in turn
        }

    def _together(self, path: str, kind: RateKind) -> dict[int, DataOrder]:
        many = len(self._ranks)
        return {
            rank: DataOrder("rate", 0.0, rates=(RateOrder(path, kind, many, next(self._places), together=True),))
            for rank in self._ranks
        }


T = TypeVar("T")
_WRITES_S = 60.0
"""For all that is written and looked for."""
_WAIT_S = 8.0
"""For what another node wrote to be seen. NFS asks its server again after 3 to 60 s (acregmin, acdirmax of nfs(5));
what is not seen by then is late for whatever writes and then reads."""
_REPLY_S = 2.0
_RATE_STEP_S = 3.0
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
        most = _STEP_S + _RATE_STEP_S * max((len(order.rates) for order in orders.values()), default=0)
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
