"""Read, replay and judge captures one by one in worker processes, one per core.

A worker receives paths and returns JSON: the verdicts on a node, and the facts that comparisons and the report need.
Facts and verdicts that nodes share are sent once. First all captures are loaded, because the verdicts on a node depend
on how many nodes there are and on whether they are one job. Then the worker that loaded a capture judges it. In a live
run both are known in advance, so that each node is judged as its capture arrives. Memory is bounded. A capture that
kills its worker, or takes too long, is named, and the others are judged.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from ncclprobe.engine.collect import Traces, add_choices, add_predictions, capture_facts
from ncclprobe.engine.judge import Judged, judge_node, said_of, widened
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import capture, files
from ncclprobe.host.deadlines import at_once
from ncclprobe.host.limited_child import LimitedChild, framed, requests
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError, UsageError
from ncclprobe.model.findings import Verdict
from ncclprobe.model.nccl_selection import Choices, NodeTopology
from ncclprobe.model.registry import MACHINE, Check, Collector, discover
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl.networks import Choosing
from ncclprobe.nccl.paths import layout

_MOST_WORKERS = 16
_MEMORY_BYTES = 8 << 30
_PATIENCE_S = 60.0
MADE: tuple[type, ...] = (Choices, AttainableRate, NodeTopology)
"""Facts concluded from others, computed only if they are wanted."""
_MOST_KEPT = 1 << 16
_FIRST = frozenset({"Launch", "Environment", "System", "Process"})
"""Facts that show whether nodes are one job, and how many there are."""


class Wanted(Struct, frozen=True):
    """The first message to a worker: the keys of its checks, and the facts for the report and for comparisons.

    `pictures`: the report shows each node's topology, which is computed if its facts are. `nice`: as in `nice(1)`.
    """

    checks: tuple[str, ...]
    shown: tuple[str, ...]
    compared: tuple[str, ...]
    pictures: bool = False
    nice: int = 0


class Terms(Struct, frozen=True):
    """What all captures together determine: the job, its number of nodes, and the number of nodes to judge one for."""

    job: Job
    together: int
    nodes: int


class _Request(Struct, frozen=True):
    """A request to a worker. `node`: the node that sent the capture; empty: a file of the user's."""

    path: str
    node: str = ""
    terms: Terms | None = None
    wanted: Wanted | None = None


class _Told(Struct, frozen=True):
    """A worker's answer. Facts and verdicts are indices into its tables; `fresh` and `said` extend these."""

    node: str = ""
    taken: str = ""
    cut: str = ""
    facts: dict[str, int] = field(default_factory=dict)
    ranks: dict[int, dict[str, int]] = field(default_factory=dict)
    verdicts: tuple[int, ...] = ()
    fresh: tuple[tuple[str, msgspec.Raw], ...] = ()
    said: tuple[Verdict, ...] = ()
    refused: str = ""


def run_snapshot(snapshot: Snapshot, node: str, measured: Mapping[type, Any]) -> Snapshot:
    """Rename a node as in this run, and add the facts that were measured after it was judged."""
    said = tuple([said_of(node, verdict) for verdict in snapshot.said])
    return replace(snapshot, node=node, facts={**snapshot.facts, **measured}, said=said, taken="")


def suits(paths: Sequence[Path], checks: Sequence[Check]) -> bool:
    """Return whether workers can judge: no pasted text, and no check of a site's own."""
    if cores() == 1 or any(check.origin for check in checks):
        return False
    return all(files.read_start(path, limit=64).startswith("{") for path in paths)


def cores() -> int:
    """Return how many processes can run in parallel."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def wanted(checks: Sequence[Check], shown: Sequence[type], pictures: bool) -> Wanted:
    """Return the workers' first message, for a parent that compares the nodes and shows them."""
    compared = {need.fact.__name__ for check in checks if check.compares for need in check.needs}
    own = tuple(check.key for check in checks if not check.compares)
    return Wanted(own, tuple(each.__name__ for each in shown), (*sorted(compared & _KINDS.keys()),), pictures)


class Workers:
    """The worker processes and their answers. Closing kills them."""

    def __init__(self, paths: Sequence[str], wanted: Wanted) -> None:
        self._asked = [_Request(path) for path in paths]
        self._hands = [_Hand(wanted) for _ in range(min(cores(), len(paths) or cores()))]
        self._received: dict[int, Snapshot] = {}
        self._refused: dict[int, UsageError] = {}
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._at_work: threading.Thread | None = None
        self.lost: dict[str, str] = {}
        """Captures that were not judged, and why."""

    def __enter__(self) -> "Workers":
        """Return itself; a worker is started by its first capture."""
        return self

    def __exit__(self, *ended: object) -> None:
        """Kill the workers."""
        for hand in self._hands:
            hand.end()
            self._arrived.put(None)

    def learn(self) -> list[Snapshot]:
        """Return the nodes with a few of their facts, in the order of the captures. Raises UsageError."""
        waiting = iter(range(len(self._asked)))
        self._share(lambda hand: waiting, None)
        return self._snapshots()

    def judge(self, terms: Terms) -> list[Snapshot]:
        """Return the nodes with verdicts and with the wanted facts, in the order of the captures."""
        self._share(lambda hand: iter(hand.learned), terms)
        return self._snapshots()

    def expect(self, terms: Terms) -> None:
        """Judge each capture that arrives from now on, sent by a node."""

        def waiting(hand: "_Hand") -> Iterator[int]:
            return iter(self._arrived.get, None)

        self._at_work = threading.Thread(target=self._share, args=(waiting, terms), daemon=True)
        self._at_work.start()

    def add(self, path: Path, node: str) -> None:
        """Judge the capture that `node` sent."""
        self._asked.append(_Request(str(path), node))
        self._arrived.put(len(self._asked) - 1)

    def arrived(self) -> dict[str, Snapshot]:
        """Return the nodes whose captures arrived, with their verdicts, by path; lost ones are missing."""
        for _ in self._hands:
            self._arrived.put(None)
        if self._at_work:
            self._at_work.join()
        self.lost |= {self._asked[place].path: str(why) for place, why in self._refused.items()}
        return {self._asked[place].path: snapshot for place, snapshot in self._received.items()}

    def _share(self, places: Callable[["_Hand"], Iterator[int]], terms: Terms | None) -> None:
        def work(hand: "_Hand") -> None:
            for place in places(hand):
                path = self._asked[place].path
                if path in self.lost or hand.ended:
                    continue
                try:
                    self._received[place] = hand.ask(place, replace(self._asked[place], terms=terms))
                except HostError as why:
                    self.lost[path] = str(why)
                    self._received.pop(place, None)
                except UsageError as why:
                    self._refused[place] = why
                except (OSError, ValueError):
                    if not hand.ended:
                        raise
                    return  # the run was interrupted, and the pipe was closed beneath this thread

        at_once([lambda hand=hand: work(hand) for hand in self._hands])  # type: ignore[misc]

    def _snapshots(self) -> list[Snapshot]:
        if self._refused:
            raise self._refused[min(self._refused)]
        nodes: dict[str, Snapshot] = {}
        for place, snapshot in sorted(self._received.items()):
            if snapshot.node in nodes:
                raise capture.second(self._asked[place].path, snapshot.node)
            nodes[snapshot.node] = snapshot
        return list(nodes.values())


class _Hand:
    """The parent's end of one worker, which is restarted if it died, and then loads its captures again."""

    def __init__(self, wanted: Wanted) -> None:
        self._child = LimitedChild(__name__, bounds.MESSAGE_BYTES)
        self._wanted = wanted
        self._facts: list[tuple[str, Any]] = []
        self._verdicts: list[Verdict] = []
        self.learned: list[int] = []
        self.ended = False

    def ask(self, place: int, request: _Request) -> Snapshot:
        """Return the worker's answer on a capture. Raises UsageError for any other file, and HostError."""
        if not self._child.started:
            self._facts, self._verdicts = [], []
            request = replace(request, wanted=self._wanted)
        told = _TELLING.decode(self._child.ask(encoded(request), _PATIENCE_S))
        if told.refused:
            raise UsageError(told.refused)
        self._facts += [(name, decoded(name, bytes(raw))) for name, raw in told.fresh]
        self._verdicts += told.said
        if request.terms is None:
            self.learned.append(place)
        own = tuple([said_of(told.node, self._verdicts[at]) for at in told.verdicts])
        ranks = {rank: self._facts_by_type(facts) for rank, facts in told.ranks.items()}
        answers = Answers(request)
        return Snapshot(told.node, self._facts_by_type(told.facts), ranks, answers, told.taken, cut=told.cut, said=own)

    def _facts_by_type(self, places: Mapping[str, int]) -> dict[type, Any]:
        return {_KINDS[name]: self._facts[at][1] for name, at in places.items()}

    def end(self) -> None:
        """Kill the worker for good."""
        self.ended = True
        self._child.close()


class Answers(Mapping[tuple[str | int, ...], Any]):
    """A node's answers, read from its capture only if a report cites them, which is rare among many nodes."""

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._read: Mapping[tuple[str | int, ...], Any] | None = None

    def __bool__(self) -> bool:
        """Return true, without reading the capture."""
        return True

    def __getitem__(self, question: tuple[str | int, ...]) -> Any:
        """Return the answer to `question`."""
        return self._answers()[question]

    def __iter__(self) -> Iterator[tuple[str | int, ...]]:
        """Yield the questions."""
        return iter(self._answers())

    def __len__(self) -> int:
        return len(self._answers())

    def _answers(self) -> Mapping[tuple[str | int, ...], Any]:
        if self._read is None:
            try:
                self._read = _load_capture(self._request).answers
            except UsageError:  # it was there, and is gone: nothing is shown of it
                self._read = {}
        return self._read


_COLLECTORS = discover("ncclprobe.facts", Collector, {MACHINE})
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*(c.produces for c in _COLLECTORS), *MADE)}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {}
_ONE_AT_A_TIME = threading.Lock()
"""msgspec builds its decoder of a type at the first use, which is not thread-safe."""


@lru_cache(_MOST_KEPT)
def decoded(name: str, raw: bytes) -> Any:
    """Decode a fact, cached for all nodes that share it; without a name it is Absent."""
    with _ONE_AT_A_TIME:
        if name not in _DECODERS:
            _DECODERS[name] = msgspec.json.Decoder(_KINDS[name] if name else Absent, dec_hook=_address)
        return _DECODERS[name].decode(raw)


def _address(kind: type, text: str) -> Any:
    return kind(text) if kind is IPv6Address else text


_ENCODER = msgspec.json.Encoder(enc_hook=str)
encoded = _ENCODER.encode
_TELLING = msgspec.json.Decoder(_Told)
_ASKING = msgspec.json.Decoder(_Request)


def _load_capture(request: _Request) -> capture.Replay:
    """Load the capture of a request. Raises UsageError."""
    path = Path(request.path)
    return capture.received(path, request.node) if request.node else capture.load(path)


def serve() -> None:
    """Run the worker: answer length-prefixed requests on standard input until it closes."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    sys.stdin.close()
    worker = None
    for raw in requests(asked, bounds.MESSAGE_BYTES):
        request = _ASKING.decode(raw)
        worker = _Worker(request.wanted) if request.wanted else worker
        assert worker
        answers.write(framed(encoded(worker.answer(request))))
        answers.flush()


class _Worker:
    """The child's end of one worker, with what it knows about the nodes that it has judged."""

    def __init__(self, wanted: Wanted) -> None:
        os.nice(wanted.nice)
        by_key = {check.key: check for check in discover("ncclprobe.checks", Check, {MACHINE})}
        self._checks = [by_key[key] for key in wanted.checks]
        self._wanted = wanted
        self._traces, self._judged, self._choosing = Traces(), Judged(), Choosing()
        self._predicted: dict[Any, Any] = {}
        self._wide: dict[int, Launch] = {}
        self._kept: dict[str, Snapshot] = {}
        self._places: dict[bytes, int] = {}
        self._verdicts: dict[bytes, int] = {}

    def answer(self, request: _Request) -> _Told:
        """Return the answer on one capture."""
        try:
            if (snapshot := self._kept.get(request.path)) is None:
                snapshot = replace(capture_facts(_load_capture(request), _COLLECTORS, self._traces), answers={})
                self._kept[request.path] = snapshot
        except UsageError as error:
            return _Told(refused=str(error))
        if request.terms is None:
            return self._pack(snapshot, _FIRST)
        return self._said(snapshot, request.terms)

    def _said(self, snapshot: Snapshot, terms: Terms) -> _Told:
        (whole,) = add_choices([snapshot], self._checks, self._choosing)
        (whole,) = add_predictions([whole], self._checks, terms.job, terms.nodes, self._predicted)
        if self._wanted.pictures:
            whole = replace(whole, facts={**whole.facts, NodeTopology: layout(whole)})
        own = judge_node(widened(whole, terms.together, self._wide), self._checks, terms.job, self._judged)
        fresh: list[Verdict] = []
        places = tuple([self._place(said_of("", verdict), fresh) for verdict in own])
        names = {*self._wanted.shown, *(() if terms.job.apart else self._wanted.compared)}
        return replace(self._pack(whole, names), verdicts=places, said=tuple(fresh))

    def _place(self, verdict: Verdict, fresh: list[Verdict]) -> int:
        key = encoded(verdict)
        if key not in self._verdicts:
            self._verdicts[key] = len(self._verdicts)
            fresh.append(verdict)
        return self._verdicts[key]

    def _pack(self, snapshot: Snapshot, names: Collection[str]) -> _Told:
        fresh: list[tuple[str, msgspec.Raw]] = []

        def placed(facts: Mapping[type, Any]) -> dict[str, int]:
            named = ((kind.__name__, fact) for kind, fact in facts.items())
            return {name: self._place_of(name, fact, fresh) for name, fact in named if name in names}

        ranks = {rank: placed(own) for rank, own in snapshot.ranks.items()}
        return _Told(snapshot.node, snapshot.taken, snapshot.cut, placed(snapshot.facts), ranks, fresh=tuple(fresh))

    def _place_of(self, name: str, fact: Any, fresh: list[tuple[str, msgspec.Raw]]) -> int:
        name = "" if isinstance(fact, Absent) else name
        raw = encoded(fact)
        key = b"%s %s" % (name.encode(), raw)
        if key not in self._places:
            self._places[key] = len(self._places)
            fresh.append((name, msgspec.Raw(raw)))
        return self._places[key]
