"""Asking NVML, one field at a time: every field of its facts is a value, or ``Absent`` with NVML's own reason.

A field says why it is absent: `unsupported` is true of one that this GPU does not have, which is usually knowledge;
``refused`` is "Missing" where the library is too old for the function and "Denied" where it takes privilege.
"""

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from ncclprobe.errors import REFUSALS, ParseError
from ncclprobe.facts.field import attempt, missing
from ncclprobe.host import Host
from ncclprobe.model.snapshot import Absent

T = TypeVar("T")
NOT_ASKED = Absent("not asked")


def ask(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int) -> T:
    """Return what `parse` makes of the answer. Raises HostError, and ParseError where `parse` cannot make anything of
    it.

    `parse` is a function of a module and makes a value that cannot change: equal GPUs, on one node and on all nodes of
    a fleet, give equal answers and share the value.
    """
    return _parsed(parse, function, host.ask("nvml", function, *arguments))  # type: ignore[no-any-return]


@lru_cache(8192)
def _parsed(parse: Callable[[Any], Any], function: str, text: str) -> Any:
    return _read(parse, function, text)


def _read(parse: Callable[[Any], T], function: str, text: str) -> T:
    try:
        return parse(json.loads(text))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ParseError(f"NVML {function}: {text[:80]!r}: {error}") from None


def learn(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int, older: str = "") -> T | Absent:
    """Return the same as a field; `older` is a function asked where the library lacks this one."""
    field = attempt(lambda: ask(host, parse, function, *arguments))
    return learn(host, parse, older, *arguments) if older and missing(field) else field


def several(
    host: Host, parse: Callable[[Any], T], count: int, function: str, *arguments: str | int
) -> tuple[T | Absent, ...]:
    """Return `count` fields from one question, in which an argument is text made by `listed`: the answer is a list."""

    found = attempt(lambda: _columns(parse, count, function, host.ask("nvml", function, *arguments)))
    return (found,) * count if isinstance(found, Absent) else found


@lru_cache(8192)
def _columns(parse: Callable[[Any], T], count: int, function: str, text: str) -> tuple[T | Absent, ...]:
    def one(item: Any) -> T | Absent:
        if isinstance(item, dict) and item.get("refused") in REFUSALS:
            return Absent(f"NVML {function}: {item['why']}", item["refused"])
        return parse(item)

    def all_of(items: Any) -> tuple[T | Absent, ...]:
        if not isinstance(items, list) or len(items) != count:
            raise ValueError(f"not a list of {count}")
        return tuple(map(one, items))

    return _read(all_of, function, text)


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as an argument: the question is about each of them."""
    return ",".join(map(str, numbers))


def unsupported(field: object) -> bool:
    """Return whether NVML says that this GPU has no such thing, in the words nvidia-ml-py has for
    NVML_ERROR_NOT_SUPPORTED.
    """
    return isinstance(field, Absent) and field.why.endswith("Not Supported")


def number(value: Any) -> int:
    """Return a whole number, which NVML never has below 0. Raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("not a whole number")
    return value


def text(value: Any) -> str:
    """Return text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def members(words: list[int]) -> tuple[int, ...]:
    """Return the members of a set that NVML gives as 64-bit words, the lowest first."""
    found: list[int] = []
    for place, word in enumerate(words):
        digits = f"{number(word):b}"[::-1][:64]
        found += [64 * place + bit for bit, digit in enumerate(digits) if digit == "1"]
    return tuple(found)
