"""What each check finds in mixtures of its cases: parts of several, in another order, doubled, unknown or equal.

`tests/data/case_mixes.txt` keeps seeds of mixtures of which a check says different things, and what it says. So a
condition that no written case decides alone, the first for the last, or `any` for `all`, shows.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ncclprobe.model.errors import Unlearned
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, grouped
from tests.checks.cases import values
from tests.checks.edges import parts

MIXES = Path(__file__).parents[1] / "data" / "case_mixes.txt"
_LONGEST, _TRIED, _SILENT, _TOLD = 60_000, 700, 12, 27


class Mixer:
    """The cases of a check, and mixtures of them by number."""

    def __init__(self, rule: Check) -> None:
        """`rule` has its cases."""
        self.rule = rule
        every = rule.bad_examples(), rule.good_examples()
        bad, good = ([tuple(each) for each in facts if len(repr(each)) < _LONGEST] for facts in every)
        self.cases = [*bad, *good, *bad]
        fields = grouped(each for case in self.cases for each in _within(case, ""))
        self.pools = {name: [*{repr(each): each for each in those}.values()] for name, those in fields.items()}

    def says(self, number: int) -> str:
        """Return what the check says of a mixture; empty: no collector makes such facts."""
        try:
            return "; ".join(map(values, self.rule.run(*self.mixture(number)))) or "nothing"
        except Unlearned:
            return "unknown"
        except Exception:  # noqa: BLE001 - of facts that no collector makes
            return ""

    def mixture(self, number: int) -> tuple[Any, ...]:
        """Return the facts of a case with some parts of others."""
        draw = random.Random(f"{self.rule.key} {number}")
        facts = draw.choice(self.cases)
        for at in range(len(facts)):
            other = draw.choice(self.cases)
            if draw.random() < 0.2 and len(other) > at:
                facts = (*facts[:at], other[at], *facts[at + 1 :])
        for _ in range(draw.randint(1, 4)):
            facts = self._changed(facts, "", (), draw)
        return tuple(facts)

    def _changed(self, value: Any, field: str, offered: tuple[Any, ...], draw: random.Random) -> Any:
        """Return a value with another part at any depth, or another value of the same field of some case."""
        inside = list(parts(value))
        if not inside or (field and draw.random() < 0.2):
            return draw.choice([*_altered(value, draw), *_others(value, [*self.pools.get(field, ()), *offered], draw)])
        name, part, put = draw.choice(inside)
        offered = _offered(type(value), name) if isinstance(value, Struct) else ()
        return put(self._changed(part, _field(value, field, name), offered, draw))


def mixes(rules: Iterable[Check]) -> Iterator[str]:
    """Yield a line for each check and each other thing that it says of mixtures, with their numbers."""
    for mixer in (Mixer(rule) for rule in rules if not rule.cause):
        told: dict[str, tuple[str, list[int]]] = {}
        for number in range(_TRIED):
            if does := mixer.says(number):
                seeds = told.setdefault(re.sub(r"\d+", "", does), (does, []))[1]
                if len(seeds) < (_SILENT if does in ("nothing", "unknown") else 1) and len(told) <= _TOLD:
                    seeds.append(number)
        yield from (f"{mixer.rule.key} {' '.join(map(str, seeds))}\t{does}" for does, seeds in told.values() if seeds)


def otherwise(rules: Iterable[Check], kept: Iterable[str]) -> Iterator[str]:
    """Yield the kept mixtures of which a check says something else now."""
    mixers = {rule.key: Mixer(rule) for rule in rules if not rule.cause}
    for line in kept:
        name, _, must = line.partition("\t")
        key, *numbers = name.split(" ")
        for number in numbers:
            if (does := mixers[key].says(int(number))) != must:
                yield f"{key}, mixture {number}: {does}, not {must}"


def _within(value: Any, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields within a value, with their values."""
    for name, part, _ in parts(value):
        inner = _field(value, field, name)
        yield inner, part
        yield from _within(part, inner)


def _field(value: Any, field: str, name: str) -> str:
    return f"{type(value).__name__}.{name}" if isinstance(value, Struct) else f"{field or name}*"


def _others(value: Any, pool: list[Any], draw: random.Random) -> list[Any]:
    """Return two other values of a field, and a value with the parts of another too."""
    one, other = draw.choice(pool or [value]), draw.choice(pool or [value])
    if isinstance(other, tuple) and isinstance(value, tuple):
        return [one, other, (*value, *other)]
    return (
        [one, other, {**value, **other}] if isinstance(other, Mapping) and isinstance(value, Mapping) else [one, other]
    )


def _altered(value: Any, draw: random.Random) -> list[Any]:
    """Return a value in another order, without a part, or a little more or less of it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, 2 * value, 0 * value]
    if isinstance(value, str):
        return [value.upper(), f" {value} ", value + "1"]
    if isinstance(value, tuple) and value:
        at = draw.randrange(len(value))
        return [value[::-1], (*value[:at], *value[at + 1 :]), (*value, value[at])]
    if isinstance(value, Mapping) and value:
        one, other = draw.choices(list(value), k=2)
        less = {key: each for key, each in value.items() if key != one}
        return [dict(reversed(value.items())), less, {**value, one: value[other], other: value[one]}]
    return [value]


@cache
def _offered(owner: type, name: str) -> tuple[Any, ...]:
    """Return what the type of a field offers: nothing known, none, or each word of a few."""
    hint = get_type_hints(owner)[name]
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for each in options if get_origin(each) is Literal for word in get_args(each)]
    return (*words, *([None] if type(None) in options else []), *([Absent("not known")] if Absent in options else []))
