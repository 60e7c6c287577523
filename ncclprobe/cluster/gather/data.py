"""Write to the paths of --path from every node, and see from every node what the others wrote.

Node 0 leads in rounds: each node makes a folder of its own with a marker; each looks for the markers of others, and at
a path for checkpoints writes its shard into node 0's folder; node 0 writes the manifest and then COMPLETE, which the
others wait for, and then must see every shard whole; each removes its folder. All that touches a path happens in
children that can be left behind (:mod:`ncclprobe.host.path_child`). A node touches the paths of its own command line
only, whatever node 0 says.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.messages import DataOrder, Marker
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.errors import HostError, TimedOut
from ncclprobe.facts.data_paths import UNWRITTEN, AskedPath, DataWrites, Sight, Written, writes_to
from ncclprobe.host.path_child import PathChild, digested
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import Struct, asdict, replace

_STEP_S = 10.0
"""For one step of writing or reading at one path."""
_CLEAN_S = 3.0
_WAIT_S = 8.0
"""For what another node wrote to be seen. NFS asks its server again after 3 to 60 s (acregmin, acdirmax of nfs(5));
what is not seen by then is late for whatever writes and then reads."""
_REPLY_S = 2.0
_HEAD_START_S = 0.3
"""By which others look for COMPLETE before it is written: their caches may then hold that it is not there."""
_ALL_LOOK = 16
"""Up to so many nodes, each looks for the files of all; beyond, for node 0's and those of the nodes that follow it: the
file server is asked N times so many questions, not N times N."""
_SHARD_CHARACTERS, _SHARD_TIMES = 64, 4096


class PathWork:
    """What this node does at its paths, one child each. Close it, and nothing of ours is left."""

    def __init__(self, paths: Sequence[AskedPath], rank: int, host: str) -> None:
        self._rank, self._host = rank, host
        self._children = {each.path: PathChild(each.path) for each in paths}
        self._turns = {each.path: threading.Lock() for each in paths}
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
        at_once([partial(self._end, path) for path in self.rows])

    def _end(self, path: str) -> None:
        idle = self._turns[path].acquire(blocking=False)
        if idle:
            self._children[path].close()
        if self.rows[path].folder:
            cleaner = PathChild(path)
            with contextlib.suppress(HostError):
                cleaner.ask("clean", _CLEAN_S, folder=self.rows[path].folder)
            cleaner.close()

    def put(self, path: str, folder: str, name: str, text: str, deadline: float, times: int = 1) -> str:
        """Write a file of ours into a folder of node 0; return its digest, or "" where that failed: a sight says so."""
        began = time.monotonic()
        answer = self._ask(path, "shard", deadline, folder=folder, name=name, text=text, times=times)
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
        answer = self._ask(path, "write", deadline, host=self._host, text=text)
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
            answer = self._ask(path, "look", deadline, **named)
            outcome = str(answer.get("outcome") or answer.get("kind"))
            sight = Sight(marker.of, marker.name, outcome, float(answer.get("seconds", answer.get("waited_s", 0.0))))
            self.rows[path] = replace(self.rows[path], sights=(*self.rows[path].sights, sight))
            if outcome == "hung":
                return
        if (into := order.into.get(path)) and self.rows[path].use == "checkpoint":
            text = secrets.token_hex(_SHARD_CHARACTERS // 2)
            self.put(path, into, f"shard-{self._rank}", text, deadline, _SHARD_TIMES)

    def _clean(self, deadline: float, path: str) -> None:
        row = self.rows[path]
        if row.folder:
            gone = self._ask(path, "clean", min(deadline, time.monotonic() + _CLEAN_S), folder=row.folder).get("gone")
            self.rows[path] = replace(self.rows[path], left=not gone, folder="" if gone else row.folder)

    def _ask(self, path: str, what: str, deadline: float, **more: Any) -> dict[str, Any]:
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


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Run each on a thread, and wait for all: each has a deadline of its own."""
    threads = []
    for each in work:
        thread = threading.Thread(target=each, daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # no thread is left to this process: one after the other, then
            each()
    for thread in threads:
        thread.join()


def written_alone(snapshot: Snapshot, deadline: float) -> DataWrites | None:
    """Write to this node's paths, which no other looks at; None where it writes to none."""
    work = PathWork(writes_to(snapshot), 0, snapshot.node)
    if not work.rows:
        return None
    try:
        work.follow(DataOrder("write", max(0.0, deadline - _CLEAN_S - time.monotonic())))
        for path, row in work.rows.items():
            if row.use == "checkpoint" and row.folder:
                shard = secrets.token_hex(_SHARD_CHARACTERS // 2)
                work.put(path, row.folder, "shard-0", shard, deadline - _CLEAN_S, _SHARD_TIMES)
        work.follow(DataOrder("clean", _CLEAN_S))
    finally:
        work.close()
    return DataWrites(0, {0: snapshot.node}, tuple(work.rows.values()))


class Rounds:
    """Node 0's side: `names` are the nodes that take part, by rank; `ids` their ids at the coordinator."""

    def __init__(
        self, work: PathWork, coordinator: Coordinator, names: Mapping[int, str], ids: Mapping[int, str]
    ) -> None:
        self._work, self._coordinator, self._names, self._ids = work, coordinator, names, ids
        self._rows: dict[int, dict[str, Written]] = {}

    async def run(self, deadline: float) -> dict[int, DataWrites]:
        """Return what each node wrote and saw, by rank; a node that did not answer is left out."""
        await self._round({rank: DataOrder("write", 0.0) for rank in self._names}, deadline)
        await self._round({rank: self._search(rank) for rank in self._rows}, deadline)
        if planned := self._checkpoints():
            wait_s = max(0.0, min(_WAIT_S, deadline - 2 * _REPLY_S - time.monotonic()))
            orders = {rank: DataOrder("look", 0.0, wait_s, self._parts(rank, planned)) for rank in self._rows}
            await self._round(orders, deadline, partial(self._publish, planned, deadline))
        await self._round({rank: DataOrder("clean", 0.0) for rank in self._rows}, deadline + _REPLY_S)
        return {
            rank: DataWrites(rank, dict(self._names), tuple(rows.values())) for rank, rows in sorted(self._rows.items())
        }

    async def _round(
        self, orders: Mapping[int, DataOrder], deadline: float, first: Callable[[], None] = lambda: None
    ) -> None:
        """Have every node follow its order at once, this one too after `first`, and keep what they say."""
        left_s = min(2 * _STEP_S, deadline - _REPLY_S - time.monotonic())
        if left_s <= 0:
            return
        timed = {rank: replace(order, seconds=left_s) for rank, order in orders.items()}
        theirs = {self._ids[rank]: order for rank, order in timed.items() if rank}
        asking = asyncio.create_task(self._coordinator.order("data", theirs, time.monotonic() + left_s + _REPLY_S))

        def here() -> list[dict[str, Any]]:
            first()
            return self._work.follow(timed[0])

        rows: dict[int, Any] = {0: await run_in_thread(here, deadline)} if 0 in timed else {}
        said = await asking
        rows |= {rank: said[key].get("data") for rank, key in self._ids.items() if key in said}
        for rank, each in rows.items():
            if (known := _rows(each)) is not None:
                self._rows[rank] = {row.path: row for row in known}

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


def _rows(said: object) -> tuple[Written, ...] | None:
    """Return what a node says of its paths; None where it makes no sense, and its writes stay unknown."""
    try:
        return msgspec.convert(said, tuple[Written, ...], str_keys=True)
    except msgspec.ValidationError:
        return None
