"""What differs between two examples of a check, in words: a person reads no reprs."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec.structs import fields

from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_MOST_LETTERS = 60


class Difference(Struct, frozen=True):
    """One value that two examples do not share: `where` it stands, and what it is in either."""

    where: str
    here: str
    there: str


class _Missing:
    """Stands for what only the other example has."""


_MISSING = _Missing()


class _Step(Struct, frozen=True):
    """One step down into a value: into a field, or to an element by what people call it."""

    name: str
    element: bool = False


def differences(one: Any, other: Any, name: str) -> list[Difference]:
    """Return what differs between two values of `name`, words before numbers; what differs in the same way once."""
    found: dict[tuple[str, str], Difference] = {}
    for path, here, there in _walk(one, other, (_Step(name),)):
        both = _apart(here, there)
        found.setdefault(both, Difference(_where(path), *both))
    return sorted(found.values(), key=lambda each: each.here.replace(".", "").isdigit())


def _apart(here: Any, there: Any) -> tuple[str, str]:
    """Return two values in words; of two long texts from shortly before they part."""
    both = plain(here), plain(there)
    if both[0] != both[1]:
        return both
    mine, others = _words(here), _words(there)
    parting = next(n for n, (a, b) in enumerate(zip(f"{mine}\0", f"{others}\1", strict=False)) if a != b)
    start = max(parting - _MOST_LETTERS // 3, 0)
    return plain(f"… {mine[start:]}"), plain(f"… {others[start:]}")


def _walk(one: Any, other: Any, path: tuple[_Step, ...]) -> Iterator[tuple[tuple[_Step, ...], Any, Any]]:
    if one == other:
        return
    if isinstance(one, Setting) or isinstance(other, Setting) or not _comparable(one, other):
        yield path, one, other
        return
    mine, others = _parts(one), _parts(other)
    for step in dict.fromkeys((*mine, *others)):
        yield from _walk(mine.get(step, _MISSING), others.get(step, _MISSING), (*path, step))


def _comparable(one: Any, other: Any) -> bool:
    """Return whether two values can be compared part by part."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return False
    if isinstance(one, Struct):
        return type(one) is type(other)
    of_names = all(isinstance(value, Mapping) for value in (one, other))
    return of_names or all(
        isinstance(value, tuple | list) and any(isinstance(part, Struct | tuple) for part in value)
        for value in (one, other)
    )


def _parts(value: Any) -> dict[_Step, Any]:
    if isinstance(value, Struct):
        return {_Step(f.name.replace("_", " ")): getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {_Step(plain(key), element=True): part for key, part in value.items()}
    names = [_called(part, number) for number, part in enumerate(value)]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return {_Step(name, element=True): part for name, part in zip(names, value, strict=True)}


def _called(value: Any, number: int) -> str:
    """Return what people call an element of a list: by its name, else by its number."""
    if not isinstance(value, Struct):
        return f"no. {number + 1}"
    name = getattr(value, "name", None)
    if isinstance(name, str) and name and type(value).__name__ != "Gpu":
        return name
    if isinstance(index := getattr(value, "index", None), int):
        return f"GPU{index}" if type(value).__name__ == "Gpu" else f"{type(value).__name__.lower()} {index}"
    return f"{type(value).__name__.lower()} {number}"


def _where(path: Sequence[_Step]) -> str:
    """Return the elements on the way, without those whose name the next one's begins with, and the fields behind."""
    last = max((place for place, step in enumerate(path) if step.element), default=0)
    elements = [step.name for step in path[: last + 1] if step.element] or [path[0].name]
    kept = [a for a, b in zip(elements, (*elements[1:], ""), strict=True) if not b.startswith(a)]
    return " ".join((*kept, *(step.name for step in path[last + 1 :])))


def plain(value: Any) -> str:
    """Return a value as a person writes it, cut where it is long."""
    text = _words(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 2]} …"


def _words(value: Any) -> str:
    if value is _MISSING or value is None:
        return "none"
    if isinstance(value, Absent):
        return f"not known ({value.why})"
    if isinstance(value, Enum):
        return str(value.name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Setting):
        return f"{value.value}" if value.origin == "environment" else f"{value.value} (from {value.origin})"
    if isinstance(value, Struct):
        return _of_struct(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(key)}: {plain(part)}" for key, part in value.items()) or "none"
    if isinstance(value, tuple | list | set | frozenset):
        return _of_list(value)
    return str(value) if str(value) else "(empty)"


def _of_struct(value: Struct) -> str:
    """Return the fields that are numbers or words and not what they are by default."""
    told = []
    for field in fields(value):
        own = getattr(value, field.name)
        if own != field.default and isinstance(own, str | int | float) and own != "":
            told.append(f"{field.name.replace('_', ' ')} {plain(own)}")
    return ", ".join(told) or type(value).__name__.lower()


def _of_list(value: Sequence[Any] | frozenset[Any] | set[Any]) -> str:
    items = sorted(value) if isinstance(value, set | frozenset) else list(value)
    whole = len(items) > 2 and all(type(item) is int for item in items)
    if whole and items == list(range(items[0], items[-1] + 1)):
        return f"{items[0]} to {items[-1]}"
    return ", ".join(plain(item) for item in items) or "none"
