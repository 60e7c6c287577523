"""Where each number that a check judges has its edge: found by changing one number of a case at a time.

`tests/data/case_edges.txt` keeps a line for each: the check, its case, the number's place, and what the check says of
the last value on this side and of the first on the other. scripts/golden.py finds them anew.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ncclprobe.model.errors import Unlearned
from ncclprobe.model.registry import Check
from ncclprobe.model.values import Struct, replace
from tests.checks.cases import said

EDGES = Path(__file__).parents[1] / "data" / "case_edges.txt"
_FACTORS = (0, 0.25, 0.5, 0.8, 0.93, 1, 1.04, 1.2, 1.8, 4, 100)
_FROM_NOTHING = (0, 1, 3, 10, 100, 1e4, 1e9)
_CLOSE = 1e-3
_MOST_NUMBERS, _MOST_SCANS = 60, 3
_LONGEST = 100_000

_DIGITS = re.compile(r"\d+")

Facts = tuple[Any, ...]
Number = bool | int | float


class Place(NamedTuple):
    """A number of a case: where it stands, the name of its field, its value, and the case with another in its place."""

    path: str
    field: str
    value: Number
    put: Callable[[Number], Any]


def edges(rules: Iterable[Check]) -> Iterator[str]:
    """Yield a line for each edge of each check, one for those at which the same field decides the same."""
    for rule in rules:
        if rule.cause:  # its numbers are those of lines
            continue
        seen, scanned = set(), Counter[str]()
        for name, facts in _cases(rule):
            if len(repr(facts)) > _LONGEST:  # a fleet of thousands
                continue
            for place in islice(_places(facts), _MOST_NUMBERS):
                scanned[place.field] += 1
                if scanned[place.field] > _MOST_SCANS:
                    continue
                for low, high in _found(rule, place):
                    row = f"{low[0]!r} {low[1]} | {high[0]!r} {high[1]}"
                    if (place.field, row) not in seen:
                        seen.add((place.field, row))
                        yield f"{rule.key}\t{name}\t{place.path}\t{row}"


def moved(rules: Iterable[Check], kept: Iterable[str]) -> Iterator[str]:
    """Yield the kept edges at which a check says something else now."""
    cases = {(rule.key, name): (rule, facts) for rule in rules if not rule.cause for name, facts in _cases(rule)}
    for line in kept:
        key, name, path, row = line.split("\t")
        if (key, name) not in cases:
            yield f"{key}: no case {name}"
            continue
        rule, facts = cases[key, name]
        place = next((each for each in _places(facts) if each.path == path), None)
        if place is None:
            yield f"{key}, {name}: no number at {path}"
            continue
        for side in row.split(" | "):
            value, _, must = side.partition(" ")
            if (does := says(rule, place.put(_number(value)))) != must:
                yield f"{key}, {name}: {path} = {value}: {does}, not {must}"


def _cases(rule: Check) -> Iterator[tuple[str, Facts]]:
    for kind, examples in (("bad", rule.bad_examples()), ("good", rule.good_examples())):
        for number, facts in enumerate(examples):
            yield f"{kind} {number}", tuple(facts)


def _number(text: str) -> Number:
    return text == "True" if text in ("True", "False") else float(text) if set(text) & set(".einf") else int(text)


def says(rule: Check, facts: Facts) -> str:
    """Return what `said` writes, or that it finds nothing or cannot judge; empty: no collector makes such facts."""
    try:
        return said(rule.run(*facts)) or "nothing"
    except Unlearned:
        return "unknown"
    except Exception:  # noqa: BLE001 - of a number that no collector makes
        return ""


def _differ(one: str, other: str) -> bool:
    """Return whether a check says another thing, and not only the number of another GPU, port or rank."""
    return bool(one and other) and _DIGITS.sub("", one) != _DIGITS.sub("", other)


def _found(rule: Check, place: Place) -> Iterator[tuple[tuple[Number, str], tuple[Number, str]]]:
    """Yield the two values beside each edge of a number, with what the check says of them."""
    value = place.value
    if isinstance(value, bool):
        tried: list[Number] = [value, not value]
    else:
        kind = type(value)
        tried = sorted({kind(value * each) for each in _FACTORS} if value else {kind(each) for each in _FROM_NOTHING})
    with contextlib.suppress(ValueError, TypeError):  # a type that refuses a number has no edge there
        told = [(each, says(rule, place.put(each))) for each in tried]
        for low, high in pairwise(told):
            if _differ(low[1], high[1]):
                yield (low, high) if isinstance(value, bool) else _narrowed(rule, place, low, high)


def _narrowed(
    rule: Check, place: Place, low: tuple[Number, str], high: tuple[Number, str]
) -> tuple[tuple[Number, str], tuple[Number, str]]:
    """Return the nearest two values between which the answer changes: neighbours, or almost."""
    while high[0] - low[0] > (1 if isinstance(place.value, int) else _CLOSE * abs(high[0])):
        middle = (low[0] + high[0]) // 2 if isinstance(place.value, int) else float(f"{(low[0] + high[0]) / 2:.6g}")
        if middle in (low[0], high[0]):
            break
        answer = says(rule, place.put(middle))
        low, high = ((middle, answer), high) if answer == low[1] else (low, (middle, answer))
    return low, high


def _places(value: Any, path: str = "", field: str = "") -> Iterator[Place]:
    """Yield the numbers within a value; of several alike, in a list, those of the first and the last."""
    if isinstance(value, bool | int | float):
        yield Place(path, field, value, lambda new: new)
        return
    for name, part, put in parts(value):
        inner = field if isinstance(value, Mapping | tuple | list) else f"{type(value).__name__}.{name}"
        for each in _places(part, f"{path}/{name}", inner):
            yield each._replace(put=_through(each.put, put))


def _through(inner: Callable[[Number], Any], outer: Callable[[Any], Any]) -> Callable[[Number], Any]:
    return lambda new: outer(inner(new))


def parts(value: Any) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Yield the parts of a value by their names, each with what makes the value with another part in its place."""
    if isinstance(value, Struct):
        for name in type(value).__match_args__:
            yield name, getattr(value, name), lambda new, name=name: replace(value, **{name: new})
    elif isinstance(value, Mapping):
        for key in dict.fromkeys((*list(value)[:1], *list(value)[-1:])):
            yield str(key), value[key], lambda new, key=key: {**value, key: new}
    elif isinstance(value, tuple):
        for place in dict.fromkeys((*range(len(value))[:8], len(value) - 1)) if value else ():
            yield str(place), value[place], lambda new, place=place: (*value[:place], new, *value[place + 1 :])
