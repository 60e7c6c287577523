"""Does what node 0 says at the paths of this node: write, look for what others wrote, and remove it all.

All that touches a path happens in children that can be left behind (:mod:`ncclprobe.host.path_child`). A node touches
the paths of its own command line only, whatever node 0 says.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ncclprobe.cluster.rendezvous.messages import DataOrder
from ncclprobe.errors import HostError, TimedOut
from ncclprobe.facts.data_paths import UNWRITTEN, AskedPath, Sight, Written
from ncclprobe.host.path_child import PathChild, digested
from ncclprobe.model.values import asdict, replace

_STEP_S = 10.0
"""For one step of writing or reading at one path."""
CLEAN_S = 3.0
SHARD_CHARACTERS, SHARD_TIMES = 64, 4096


class PathWork:
    """What this node does at its paths, one child each. Close it, and nothing of ours is left.

    `paths` are written to; `read` are only asked about (:mod:`ncclprobe.cluster.gather.rates`).
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
