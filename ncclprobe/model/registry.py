"""Declaring and finding checks, collectors and probes: whatever a module defines, counts. No lists to keep.

A decorator reads everything from the function: the facts it needs from its annotations, its two titles, reason and
remedy from its docstring, its id from its folder or module and its name: ``bool_word`` in ``checks/env/`` is
``env.bool-word``.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from ncclprobe.model.findings import Finding
from ncclprobe.model.fleet import Every, Ranks
from ncclprobe.model.rules import CauseRule, Check, Collector, Condition, Need, Source
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

T = TypeVar("T")
_SECTION = re.compile(r"^(Right|Why|Fix): ", re.M)
_COMPARED: dict[Any, Literal["nodes", "ranks"]] = {Every: "nodes", Ranks: "ranks"}


MACHINE: Source = "machine"
EVERY_SOURCE: frozenset[Source] = frozenset(get_args(Source))


def modules(package: str, sources: Collection[Source] = EVERY_SOURCE) -> Iterator[ModuleType]:
    """Yield every module of `package` by name, but for its folders whose ``SOURCE`` is none of `sources`.

    A folder of another source is never looked into: the doctor imports no reader of logs.
    """
    root = importlib.import_module(package)
    of_root = _source_around(package) or MACHINE
    for info in pkgutil.iter_modules(root.__path__, f"{package}."):
        if info.ispkg:
            importlib.import_module(info.name)
            if getattr(sys.modules[info.name], "SOURCE", of_root) in sources:
                yield sys.modules[info.name]
            yield from modules(info.name, sources)
        elif of_root in sources:
            yield importlib.import_module(info.name)


def source_of(fact: type) -> Source | None:
    """Where facts of this type come from: the ``SOURCE`` of the nearest folder around their module.

    None: from no source, because the command line says it.
    """
    return _source_around(fact.__module__)


def _source_around(name: str) -> Source | None:
    while name:
        if found := getattr(sys.modules.get(name), "SOURCE", None):
            return cast(Source, found)
        name = name.rpartition(".")[0]
    return None


def discover(package: str, kind: type[T], sources: Collection[Source] = EVERY_SOURCE) -> tuple[T, ...]:
    """Return all objects of `kind` that the modules of `package` define for `sources`, by module name and then as
    written.
    """
    return tuple(
        value
        for module in modules(package, sources)
        for value in vars(module).values()
        if isinstance(value, kind) and value.run.__module__ == module.__name__  # type: ignore[attr-defined]
    )


def collector(run: Callable[..., Any]) -> Collector:
    """Declare that `run` learns one fact: its return annotation. Its first parameter is the host."""
    return Collector(run=run, produces=_annotations(run)["return"], needs=_needs(run)[1:])


def rank_collector(run: Callable[..., Any]) -> Collector:
    """Return the same for a fact that every rank of a node has for itself."""
    return replace(collector(run), of_rank=True)


def applies(run: Callable[..., bool]) -> Condition:
    """Declare a condition under which a check applies; the docstring completes "applies only …"."""
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
    since: str = "",
) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Declare that the function is a check. Its docstring: what is wrong when it fails, then ``Right:`` what holds when
    it passes, ``Why:`` it matters, and ``Fix:``.
    Its examples are made only where they are asked for, not at every start.

    `required`: an NCCL job on this node cannot be called healthy unless this was looked at. `privilege`: what looking
    needs beyond an ordinary user. `requires`: the id of the check whose failure explains this one's. `last`: what
    another check of the node fails it does not say again. `slows`: what it finds makes transfers slower, and so may be
    why a measured number is low. `cause`: what a check of a job's logs means. `since`: the minor release that brings
    it, such as ``0.2``, until whose successor it only warns.
    """

    def declare(run: Callable[..., Iterator[Finding]]) -> Check:
        _, *parts = _SECTION.split(inspect.getdoc(run) or "")  # what stands before, then a heading and its text, …
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        return Check(
            id=f"{_prefix(run.__module__)}.{run.__name__.rstrip('_').replace('_', '-')}",
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
            since=since,
        )

    return declare


def _prefix(module: str) -> str:
    """Return the name below ``ncclprobe.checks``, of a module or of the folder that it is in."""
    return module.removeprefix("ncclprobe.checks.").partition(".")[0]


def _title(run: Callable[..., Any]) -> str:
    return (inspect.getdoc(run) or "").partition("\n")[0].rstrip(".")


def _needs(run: Callable[..., Any]) -> tuple[Need, ...]:
    return tuple(_need(name, fact) for name, fact in _annotations(run).items() if name != "return")


def _annotations(run: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of parameters in their order, and of what is returned. inspect.signature says the same at ten
    times the price, at every start.
    """
    found: dict[str, Any] = run.__annotations__
    if any(isinstance(each, str) for each in found.values()):
        found = inspect.get_annotations(run, eval_str=True)
    unsaid = {*run.__code__.co_varnames[: run.__code__.co_argcount]} - found.keys()
    if unsaid:
        raise TypeError(f"{run.__qualname__}: no type for {', '.join(sorted(unsaid))}")
    return found


def _need(name: str, annotation: Any) -> Need:
    if isinstance(annotation, type):
        return Need(name, annotation, of=_of(annotation))
    origin = get_origin(annotation)
    if origin in _COMPARED:
        return replace(_need(name, get_args(annotation)[0]), of=_COMPARED[origin])
    if origin in (Union, UnionType):
        facts = [a for a in get_args(annotation) if a is not Absent]
        return Need(name, facts[0], len(facts) < len(get_args(annotation)), _of(facts[0]))
    return Need(name, annotation, of=_of(annotation))


def _of(fact: Any) -> Literal["node", "run", "job", "files"]:
    source = source_of(fact) if isinstance(fact, type) else None
    return "node" if source is None or source == "machine" else source
