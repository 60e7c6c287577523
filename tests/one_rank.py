"""One rank of a run in this process: whom it talks to, what it is told, and what it calls, without a store."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from conftest import answers

from ncclprobe.commands import bandwidth
from ncclprobe.engine.collect import capture_facts
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.ranks.identity import RankIdentity, RunConfig
from tests.command_inputs import CAPTURES

Rows = Iterator[tuple[Any, ...]]
"""The name of each input, and what is made of it."""
NOWHERE: Any = answers({})
HOSTS = ("n0", "n0", "n1", "n1")


def whole(*values: object) -> list[str]:
    """Return each value as JSON in one line."""
    plain = [msgspec.to_builtins(each, str_keys=True, order="deterministic", enc_hook=str) for each in values]
    return [msgspec.json.encode(_rounded(each)).decode() for each in plain]


def _rounded(value: Any) -> Any:
    """Return a value with six digits of its numbers: sums differ in the last digit between versions of Python."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def in_all_words(functions: Mapping[str, Callable[[], Rows]]) -> dict[str, Callable[[], Iterator[tuple[str, object]]]]:
    """Return functions whose rows keep all words."""

    def kept(rows: Callable[[], Rows]) -> Iterator[tuple[str, object]]:
        yield from ((name, whole(*values)) for name, *values in rows())

    return {name: partial(kept, rows) for name, rows in functions.items()}


@contextlib.contextmanager
def instead(of: Any, **values: Any) -> Iterator[None]:
    """Put others in the place of a module's functions: functions, or what they return."""

    def returning(value: Any) -> Any:
        return value if callable(value) else lambda *_, **__: value

    with mock.patch.multiple(of, **{name: returning(each) for name, each in values.items()}):
        yield


class Noted:
    """Keeps the name and the arguments of each call; `answers` are returned by name."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, *named.values()))
            return self._answers.get(name)

        return call


class Others:
    """An exchange with other ranks, which answer in turn: lists to rank 0, what rank 0 decides to another one."""

    def __init__(self, *answers: Any, rank: int = 0) -> None:
        self._answers, self._rank = deque(answers), rank
        self.said: list[Any] = []

    def collect(self, value: Any) -> list[Any] | None:
        self.said.append(value)
        return None if self._rank else [value, *(self._answers.popleft() if self._answers else ())]

    def share(self, value: Any) -> Any:
        self.said.append(value)
        return self._answers.popleft() if self._rank else value


def seat(rank: int = 0, ranks: int = 4, local: int = 2, **changes: Any) -> RankIdentity:
    """A rank of `local` on each node."""
    return RankIdentity("torchrun", rank, ranks, rank % local, local, -(-ranks // local), "n0", 29500, **changes)


def run_of(argv: str = "", parse: Any = bandwidth.parse, backend: Any = "gloo", nodes: int = 2, **changes: Any) -> Any:
    """A rank that has joined the others; with a `rank`, as many ranks as there are `hosts`."""
    rank = changes.pop("rank", 0)
    usual = {
        "options": parse(argv.split()), "identity": seat(rank), "host": NOWHERE, "config": RunConfig(backend, nodes),
        "device": "cpu", "hosts": HOSTS, "look": None, "exchange": Others(rank=rank), "set_phase": Noted().phase,
        "watchdog": Noted(left_s=90.0), "recorder": None if rank else Noted(),
    }  # fmt: skip
    made = RankContext(**{**usual, **changes})
    if isinstance(made.recorder, Noted):
        made.recorder.participants = SimpleNamespace(hosts=made.hosts)
    if isinstance(made.look, Noted):
        made.look.node = "n0"
    return made


def captured(name: str) -> Snapshot:
    """The facts of a captured machine."""
    return capture_facts(load(CAPTURES / f"{name}.jsonl"), discover("ncclprobe.facts", Collector))
