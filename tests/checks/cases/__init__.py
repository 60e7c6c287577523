"""Further cases of the checks, by id: what a check must object to, or accept, beside the two examples that it ships."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ncclprobe.checks.log import Examples
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.values import Struct, replace


class Cases(Struct, frozen=True):
    """Cases of one check, written as its examples are: tuples of facts, or texts of logs."""

    bad: Sequence[Any] = ()
    good: Sequence[Any] = ()


@cache
def written() -> dict[str, Cases]:
    """Return the cases of all modules here by the ids of their checks."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    pairs = [pair for module in modules for pair in module.CASES.items()]
    assert len(dict(pairs)) == len(pairs), "the cases of a check stand in one module"
    return dict(pairs)


def checks() -> list[Check]:
    """Return all checks of the package, each with its cases behind its own two examples."""
    return [with_cases(each) for each in discover("ncclprobe.checks", Check)]


def with_cases(check: Check) -> Check:
    """Return the check with its cases behind its own two examples."""
    more = written().get(check.id, Cases())
    return replace(
        check, bad_examples=_more(check.bad_examples, more.bad), good_examples=_more(check.good_examples, more.good)
    )


def _more(own: Callable[[], Sequence[Any]], cases: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    if isinstance(own, Examples):  # they become facts together
        return replace(own, written=lambda: [*own.written(), *cases])
    return lambda: [*own(), *cases]
