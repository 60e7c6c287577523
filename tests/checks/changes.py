"""What each check says of its cases after one change: without a word of a log or a part of a fact, or with a fact of
another case.

`tests/data/case_changes.txt` keeps, for each case, the changes after which it says something else, and what. So a
condition that a rule drops, or one that it asks for too much, shows. scripts/golden.py writes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ncclprobe.checks.log import Examples, facts_of
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace
from tests.checks.edges import says

CHANGES = Path(__file__).parents[1] / "data" / "case_changes.txt"
_LONGEST, _MOST = 30_000, 18


def changes(rules: Iterable[Check]) -> Iterator[str]:
    """Yield a line for each case and each other thing that its check says after changes, with the changes."""
    for rule in rules:
        cases = {
            f"{kind} {number}": case for kind in ("bad", "good") for number, case in enumerate(_written(rule, kind))
        }
        for name, case in cases.items():
            before, told = _says(rule, case), dict[str, list[str]]()
            for change, changed in chosen(rule, case, cases):
                if (does := _says(rule, changed)) != before:
                    told.setdefault(does, []).append(change)
            yield from (f"{rule.key} {name}: {does} {', '.join(changes)}" for does, changes in told.items())


def _written(rule: Check, kind: str) -> list[Any]:
    """Return the cases as they stand in their tables, but for fleets of many nodes."""
    examples = rule.bad_examples if kind == "bad" else rule.good_examples
    every = examples.written() if isinstance(examples, Examples) else examples()
    return [case for case in every if len(repr(case)) < _LONGEST]


def _says(rule: Check, case: Any) -> str:
    return says(rule, facts_of(case, rule.cause.signs if rule.cause else ()))


def chosen(rule: Check, case: Any, cases: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return some of the changes of a case by their names, from its beginning to its end."""
    every = list(_of_facts(rule, case, cases) if isinstance(case, tuple) else _less(case, ""))
    return every[:: len(every) // _MOST + 1]


def _of_facts(rule: Check, case: tuple[Any, ...], cases: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for at, (need, fact) in enumerate(zip(rule.needs, case, strict=False)):
        seen, new = [fact], dict(_less(fact, need.name))
        if need.accepts_absent and not isinstance(fact, Absent):
            new[f"-{need.name}"] = Absent("not known")
        for name, other in cases.items():
            if isinstance(other, tuple) and len(other) > at and other[at] not in seen:
                seen.append(other[at])
                new[f"{need.name} of {name}"] = other[at]
        yield from ((change, (*case[:at], each, *case[at + 1 :])) for change, each in new.items())


def _less(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a value without one of its parts, by the path of that: a word of a text, an item, the text of a field."""
    if isinstance(value, Absent):
        return
    if isinstance(value, str):
        words = value.split(" ")
        for at in range(len(words)):
            yield f"-{path}.{at}", " ".join((*words[:at], *words[at + 1 :]))
        if len(words) == 1:
            yield f"{path} x", "x"
    elif isinstance(value, Struct):
        for name in type(value).__match_args__:
            for inner, new in _less(getattr(value, name), f"{path}.{name}"):
                yield inner, replace(value, **{name: new})
    elif isinstance(value, tuple):
        for at in dict.fromkeys((*range(len(value))[:2], len(value) - 1)) if value else ():
            yield f"-{path}.{at}", (*value[:at], *value[at + 1 :])
            for inner, new in _less(value[at], f"{path}.{at}"):
                yield inner, (*value[:at], new, *value[at + 1 :])
    elif isinstance(value, Mapping):
        for key in list(value)[:3]:
            yield f"-{path}.{key}", {each: part for each, part in value.items() if each != key}
            for inner, new in _less(value[key], f"{path}.{key}"):
                yield inner, {**value, key: new}
