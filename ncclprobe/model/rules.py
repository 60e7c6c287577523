"""What is declared: collectors, checks, and the facts that they need. :mod:`ncclprobe.model.registry` finds them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ncclprobe.model.findings import Finding, Status, Verdict
from ncclprobe.model.values import Struct, replace

Source = Literal["machine", "run", "job", "files"]
"""Where facts come from: a machine, what a run measured, a running job, the files that a job left."""


class Need(Struct, frozen=True):
    """One parameter of a check or collector: which fact it takes, and whether it also takes ``Absent``.

    `of`: the fact of one node; of all ``nodes`` (:class:`~ncclprobe.model.fleet.Every`) or ``ranks``; of the run; of
    the ``job`` that runs; or of the ``files`` that it left.
    """

    name: str
    fact: type
    accepts_absent: bool = False
    of: Literal["node", "nodes", "ranks", "run", "job", "files"] = "node"


class Collector(Struct, frozen=True):
    """A function that asks a host and returns one fact. ``needs`` are the facts that it takes after the host.

    `of_rank`: the fact is each rank's own, where others of one node may have another: affinity, visible devices.
    """

    run: Callable[..., Any]
    produces: type
    needs: tuple[Need, ...] = ()
    of_rank: bool = False


class Condition(Struct, frozen=True):
    """When a check applies: a predicate over facts, and the words for it (``only <words>``)."""

    run: Callable[..., bool]
    words: str
    needs: tuple[Need, ...]


class CauseRule(Struct, frozen=True):
    """What a check of a job's logs means by its findings.

    `code` names the cause (:mod:`ncclprobe.checks.log`); empty: the line is a consequence of whatever else is named.
    `signs`: texts of which a line must hold one to be looked at; the reader searches logs for them. `doctor`: the id
    of the check that finds it before the next launch. `echoes`: codes of causes that make this line appear too;
    ``*``: any does; ``=``: what another check makes of the same line says more.
    """

    code: str = ""
    signs: tuple[str, ...] = ()
    doctor: str = ""
    echoes: tuple[str, ...] = ()


class Check(Struct, frozen=True):
    """A rule: facts in, findings out. Everything about it is read from its one function.

    ``title`` says what is wrong when it fails, ``right`` what holds when it passes. ``bad`` and ``good`` are argument
    tuples that the check must object to, or accept: they run as tests. ``last``: it speaks only of subjects of which
    no other check of the node fails. ``since``: the minor release that brought it,
    empty: the first one. ``origin``: the distribution or file of a site's own check, empty: it is ncclprobe's.
    """

    id: str
    run: Callable[..., Iterator[Finding]]
    needs: tuple[Need, ...]
    title: str
    right: str
    why: str
    fix: str
    bad_examples: Callable[[], Sequence[tuple[Any, ...]]]
    good_examples: Callable[[], Sequence[tuple[Any, ...]]]
    required: bool = False
    privilege: str = ""
    requires: str = ""
    last: bool = False
    applies: Condition | None = None
    slows: bool = False
    cause: CauseRule | None = None
    since: str = ""
    origin: str = ""

    def titled(self, verdict: Verdict) -> Verdict:
        """Return `verdict` with the title of its status: a pass never says what is wrong, and nothing else claims a
        pass.
        """
        if verdict.status in (Status.WARN, Status.FAIL):
            return replace(verdict, title=self.title)
        if verdict.status is Status.PASS:
            return replace(verdict, title=f"{self.right}, except as noted" if verdict.findings else self.right)
        return replace(verdict, title=f"Not checked: {self.right}")

    @property
    def bad(self) -> tuple[tuple[Any, ...], ...]:
        """Return facts that the check must object to."""
        return tuple(self.bad_examples())

    @property
    def good(self) -> tuple[tuple[Any, ...], ...]:
        """Return facts that the check must accept."""
        return tuple(self.good_examples())

    @property
    def standing(self) -> str:
        """Return ``required`` or ``advisory``: whether a run is inconclusive without it."""
        return "required" if self.required else "advisory"

    @property
    def compares(self) -> bool:
        """Return whether it is judged once, for all nodes or for the run, and not once per node."""
        return any(need.of != "node" for need in self.needs)

    @property
    def of_run(self) -> bool:
        """Return whether it judges what a run measured."""
        return any(need.of == "run" for need in self.needs)
