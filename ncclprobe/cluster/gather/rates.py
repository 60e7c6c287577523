"""Measure how fast the paths of --path are: from each node apart, at most eight at once, and then from all at once.

Node 0 leads in turns. A node obeys for the paths and kinds of its own command line only, with its own bound of bytes.
A node that looks slow against the others has two more turns; the best one counts. Each measurement ends after about a
second, or when its bytes are through; what has not had its turn when the time is over is measured with all others only.
"""

import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ncclprobe.checks.data.rates import doubtful
from ncclprobe.cluster.gather.path_work import PathWork
from ncclprobe.cluster.rendezvous.messages import DataOrder, RateOrder
from ncclprobe.facts.data_paths import KINDS_OF_USE, AskedPath
from ncclprobe.model.path_rates import PathRate, RateKind
from ncclprobe.model.values import asdict

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
