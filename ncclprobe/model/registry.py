"""Declare and discover checks, collectors and probes: every definition in a module counts. There are no lists to
maintain.

A decorator reads everything from the function: the facts it needs from its annotations, its two titles, reason and
remedy from its docstring, its id from its folder or module and its name: ``state`` in ``checks/ib/`` is ``ib.state``.
Functions that answer one question share a :class:`CheckGroup`, and so an id: ``hca_dup`` and ``hca_down`` are parts of
``env.hca``.
"""

import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from ncclprobe.model.findings import Finding, Status, Verdict
from ncclprobe.model.snapshot import Absent, Every, Ranks
from ncclprobe.model.values import Struct, grouped, replace

Source = Literal["machine", "run", "job", "files", "history"]
"""Sources of facts: a machine, a measuring run, a running job, the files that a job left, a store of reports."""


class Need(Struct, frozen=True):
    """One parameter of a check or collector: its fact, and whether it accepts ``Absent``.

    `of`: the fact of one node; of all ``nodes`` (:class:`~ncclprobe.model.snapshot.Every`) or ``ranks``; of the run; of
    the running ``job``; or of the ``files`` that it left.
    """

    name: str
    fact: type
    accepts_absent: bool = False
    of: Literal["node", "nodes", "ranks", "run", "job", "files", "history"] = "node"


class Collector(Struct, frozen=True):
    """A function that asks a host and returns one fact. ``needs`` are its other parameters' facts.

    `of_rank`: each rank has its own fact, which may differ between ranks of one node: affinity, visible devices.
    """

    run: Callable[..., Any]
    produces: type
    needs: tuple[Need, ...] = ()
    of_rank: bool = False


class Condition(Struct, frozen=True):
    """When a check applies: a predicate over facts, and its description (``only <words>``)."""

    run: Callable[..., bool]
    words: str
    needs: tuple[Need, ...]


class CauseRule(Struct, frozen=True):
    """The meaning of a check's findings in a job's logs.

    `code` names the cause (:mod:`ncclprobe.checks.log`); empty: the line is a consequence of any other named cause.
    `signs`: a line must contain one of these texts to be examined; the reader searches logs for them. `doctor`: the id
    of the check that finds it before the next launch. `echoes`: codes of causes that also produce this line; ``*``: any
    does; ``=``: another check's reading of the same line is more precise.
    """

    code: str = ""
    signs: tuple[str, ...] = ()
    doctor: str = ""
    echoes: tuple[str, ...] = ()


class CheckGroup(Struct, frozen=True):
    """An id that several functions share: the id without its prefix, and a title for all of them."""

    name: str
    title: str


class Check(Struct, frozen=True):
    """A rule: facts in, findings out. Everything about it is read from its one function.

    ``part``: its name among those that share its id in a ``group``; empty: the id is its own. ``requires``: the
    :attr:`key` of another check. ``title`` is what is wrong when it fails, ``right`` what holds when it passes. ``bad``
    and ``good`` are argument tuples that the check must reject or accept: they run as tests. ``last``: it reports only
    subjects that no other check of the node fails. ``origin``: the distribution or file of a site's own check; empty:
    it is ncclprobe's.
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
    origin: str = ""
    part: str = ""
    group: CheckGroup | None = None

    @property
    def key(self) -> str:
        """Return the unique key: the id, and the part after it."""
        return f"{self.id}/{self.part}" if self.part else self.id

    @property
    def cause_id(self) -> str:
        """Return the id of the check that it requires; empty: none."""
        return self.requires.partition("/")[0]

    def titled(self, verdict: Verdict) -> Verdict:
        """Give `verdict` the title for its status: only a pass claims that nothing is wrong."""
        if verdict.status in (Status.WARN, Status.FAIL):
            return replace(verdict, title=self.title)
        if verdict.status is Status.PASS:
            return replace(verdict, title=f"{self.right}, except as noted" if verdict.findings else self.right)
        return replace(verdict, title=f"Not checked: {self.right}")

    @property
    def bad(self) -> tuple[tuple[Any, ...], ...]:
        """Return facts that the check must reject."""
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
        """Return whether it is judged once, for all nodes or the run, rather than once per node."""
        return any(need.of != "node" for need in self.needs)

    @property
    def of_run(self) -> bool:
        """Return whether it judges a run's measurements."""
        return any(need.of == "run" for need in self.needs)


T = TypeVar("T")
_SECTION = re.compile(r"^ *(Right|Why|Fix): ", re.M)
_COMPARED: dict[Any, Literal["nodes", "ranks"]] = {Every: "nodes", Ranks: "ranks"}


MACHINE: Source = "machine"
EVERY_SOURCE: frozenset[Source] = frozenset(get_args(Source))


@cache  # as Python keeps what it imported: a process looks into the folders once
def modules(package: str, sources: frozenset[Source] = EVERY_SOURCE) -> tuple[ModuleType, ...]:
    """Return every module of `package` by name, without folders whose ``SOURCE`` is not in `sources`.

    A folder of another source is never opened: the doctor imports no log reader.
    """
    root = importlib.import_module(package)
    of_root = _source_around(package) or MACHINE
    found: list[ModuleType] = []
    for path in sorted(Path(root.__path__[0]).iterdir()):  # pkgutil would say the same, with Python's parser imported
        name = f"{package}.{path.stem}"
        if (path / "__init__.py").exists():
            module = importlib.import_module(name)
            if getattr(module, "SOURCE", of_root) in sources:
                found.append(module)
            found += modules(name, sources)
        elif of_root in sources and path.suffix == ".py" and path.stem != "__init__":
            found.append(importlib.import_module(name))
    return tuple(found)


@cache
def source_of(fact: type) -> Source | None:
    """Return the source of this type of fact: the ``SOURCE`` of the nearest folder around its module.

    None: the command line provides it.
    """
    return _source_around(fact.__module__)


@cache  # of what is imported: whose folders were imported before it
def _source_around(name: str) -> Source | None:
    while name:
        if found := getattr(sys.modules.get(name), "SOURCE", None):
            return cast(Source, found)
        name = name.rpartition(".")[0]
    return None


def discover(package: str, kind: type[T], sources: Collection[Source] = EVERY_SOURCE) -> tuple[T, ...]:
    """Return the objects of `kind` that modules of `package` define for `sources`, by module name and position."""
    return tuple(
        value
        for module in modules(package, frozenset(sources))
        for value in vars(module).values()
        if isinstance(value, kind) and value.run.__module__ == module.__name__  # type: ignore[attr-defined]
    )


def by_id(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Group the checks, or the parts of checks, by id."""
    return grouped((check.id, check) for check in checks)


def title_of(parts: Sequence[Check]) -> str:
    """Return the common title of the parts of one id."""
    return parts[0].group.title if parts[0].group else parts[0].title


def collector(run: Callable[..., Any]) -> Collector:
    """Declare that `run` collects one fact: its return annotation. Its first parameter is the host."""
    return Collector(run=run, produces=_annotations(run)["return"], needs=_needs(run)[1:])


def rank_collector(run: Callable[..., Any]) -> Collector:
    """Declare a collector of a fact that each rank of a node has separately."""
    return replace(collector(run), of_rank=True)


def applies(run: Callable[..., bool]) -> Condition:
    """Declare a condition for a check; the docstring completes "applies only …"."""
    return Condition(run=run, words=_title(run), needs=_needs(run))


def check(
    *,
    bad: Callable[[], Sequence[tuple[Any, ...]]],
    good: Callable[[], Sequence[tuple[Any, ...]]],
    required: bool = False,
    privilege: str = "",
    requires: str = "",
    last: bool = False,
    applies: Condition | None = None,
    slows: bool = False,
    cause: CauseRule | None = None,
    group: CheckGroup | None = None,
) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Declare that the function is a check.

    Its docstring: what is wrong when it fails, then ``Right:`` what holds when it passes, ``Why:`` it matters, and
    ``Fix:``. `group`: the checks that share its id. Its examples are created only on request, not at every start.

    `required`: an NCCL job on this node cannot be called healthy without this check. `privilege`: what it needs beyond
    an ordinary user. `requires`: the check whose failure explains this one's: its id, or ``id/part``. `last`: it does
    not repeat what another check of the node fails. `slows`: its findings make transfers slower, and so may explain a
    low number. `cause`: the meaning of a check on a job's logs.
    """

    def declare(run: Callable[..., Iterator[Finding]]) -> Check:
        _, *parts = _SECTION.split(run.__doc__ or "")  # what stands before, then a heading and its text, …
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        name = run.__name__.rstrip("_").replace("_", "-")
        prefix = run.__module__.removeprefix("ncclprobe.checks.").partition(".")[0]  # of a module, or of its folder
        return Check(
            id=f"{prefix}.{group.name if group else name}",
            part=name if group else "",
            group=group,
            run=run,
            needs=_needs(run),
            title=_title(run),
            right=" ".join(sections.get("Right", "").split()).rstrip("."),
            why=" ".join(sections.get("Why", "").split()),
            fix=" ".join(sections.get("Fix", "").split()),
            bad_examples=bad,
            good_examples=good,
            required=required,
            privilege=privilege,
            requires=requires,
            last=last,
            applies=applies,
            slows=slows,
            cause=cause,
        )

    return declare


def _title(run: Callable[..., Any]) -> str:
    return (run.__doc__ or "").lstrip().partition("\n")[0].rstrip(".")


def _needs(run: Callable[..., Any]) -> tuple[Need, ...]:
    return tuple(_need(name, fact) for name, fact in _annotations(run).items() if name != "return")


def _annotations(run: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters in order, and of the result.

    inspect.signature does the same at ten times the cost, at every start.
    """
    found: dict[str, Any] = run.__annotations__
    if any(isinstance(each, str) for each in found.values()):
        import inspect  # and with it Python's parser, which only a site's own check may need

        found = inspect.get_annotations(run, eval_str=True)
    unsaid = {*run.__code__.co_varnames[: run.__code__.co_argcount]} - found.keys()
    if unsaid:
        raise TypeError(f"{run.__qualname__}: no type for {', '.join(sorted(unsaid))}")
    return found


def _need(name: str, annotation: Any) -> Need:
    if isinstance(annotation, type):
        return Need(name, annotation, of=_scope_of(annotation))
    origin = get_origin(annotation)
    if origin in _COMPARED:
        return replace(_need(name, get_args(annotation)[0]), of=_COMPARED[origin])
    if origin in (Union, UnionType):
        facts = [a for a in get_args(annotation) if a is not Absent]
        return Need(name, facts[0], len(facts) < len(get_args(annotation)), _scope_of(facts[0]))
    return Need(name, annotation, of=_scope_of(annotation))


def _scope_of(fact: Any) -> Literal["node", "run", "job", "files", "history"]:
    source = source_of(fact) if isinstance(fact, type) else None
    return "node" if source is None or source == "machine" else source
