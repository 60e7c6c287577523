"""The facts that collectors made of earlier answers: the machines of a fleet give equal answers, and so equal facts.

A collector is a pure function of what the host answers and of the facts it is given (docs/maintainers/architecture.md),
so the questions that it asked, with the answers that decided the next one, are all there is to know about a run of it.
They are kept as a tree: at each fork a question, below it a branch for each answer, at its end the fact. A node whose
answers lead to an end gets that fact itself, which makes its check's verdict known too, by identity.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ncclprobe.errors import HostError
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay
from ncclprobe.model.registry import Collector
from ncclprobe.model.values import Struct, field

_MOST = 64
"""Runs of one collector that are kept: where so many nodes differ, the next one will too."""

_Said = str | tuple[type, str]


class _Fork(Struct):
    question: Question
    branches: dict[_Said, "_Fork | _End"] = field(default_factory=dict)


class _End(Struct):
    fact: Any


class _Runs(Struct):
    """The runs of one collector. `given`: the facts that it was given, kept so that no other fact gets their ids."""

    begin: dict[tuple[int, ...], "_Fork | _End"] = field(default_factory=dict)
    given: list[Sequence[Any]] = field(default_factory=list)
    last: Any = None


class Traces:
    """Facts by what they were made of, over the replays of one process."""

    def __init__(self) -> None:
        self._runs: dict[type, _Runs] = {}

    def learn(self, collector: Collector, host: Replay, given: Sequence[Any], run: Callable[["Traced"], Any]) -> Any:
        """Return what `run` makes of `host`, or made of the same answers and the same facts `given` before."""
        runs = self._runs.setdefault(collector.produces, _Runs())
        start = tuple(map(id, given))
        at = runs.begin.get(start)
        while isinstance(at, _Fork):
            at = at.branches.get(_recorded(host, at.question))
        if at is not None:
            return at.fact
        traced = Traced(host)
        fact = run(traced)
        if fact == runs.last:  # other answers, the same fact: one object, so that what is known of it is known again
            fact = runs.last
        runs.last = fact
        if len(runs.given) < _MOST:
            runs.given.append(given)
            _keep(runs.begin, start, traced.asked, fact)
        return fact


class Traced:
    """A replay that notes what it was asked, and what it said."""

    def __init__(self, host: Replay) -> None:
        self._host = host
        self.asked: list[tuple[Question, _Said]] = []

    def ask(self, *question: str | int) -> str:
        """Return the replay's answer or refusal."""
        self.asked.append((question, _recorded(self._host, question)))
        return self._host.ask(*question)


def _recorded(host: Replay, question: Question) -> _Said:
    """Return an answer, or which refusal and why."""
    answer = host.recorded(question)
    return (type(answer), str(answer)) if isinstance(answer, HostError) else answer


def _keep(begin: dict[Any, Any], start: Any, asked: Sequence[tuple[Question, _Said]], fact: Any) -> None:
    """Grow the tree by one run."""
    branches, way = begin, start
    for question, recorded in asked:
        fork = branches.setdefault(way, _Fork(question))
        if not isinstance(fork, _Fork) or fork.question != question:
            return  # asked in another order than before: the run that is kept is as good
        branches, way = fork.branches, recorded
    branches[way] = _End(fact)
