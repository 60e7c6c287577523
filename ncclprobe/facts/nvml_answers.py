"""Asking NVML, one field at a time: every field of its facts is a value, or ``Absent`` with NVML's own reason.

A field says of itself why it is absent: ``unsupported`` (this GPU has no such thing: usually knowledge), a function that
the installed library lacks (``refused`` is "Missing"), no permission ("Denied"), anything else ("Failed", "TimedOut").
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from ncclprobe.errors import REFUSALS, ParseError
from ncclprobe.facts.field import attempt, missing
from ncclprobe.host import Host
from ncclprobe.model import Absent

T = TypeVar("T")
NOT_ASKED = Absent("not asked")


def ask(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int) -> T:
    """What `parse` makes of the answer. Raises HostError, and ParseError where `parse` cannot make anything of it."""
    text = host.ask("nvml", function, *arguments)
    try:
        return parse(json.loads(text))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ParseError(f"NVML {function}: {text[:80]!r}: {error}") from None


def learn(host: Host, parse: Callable[[Any], T], function: str, *arguments: str | int, older: str = "") -> T | Absent:
    """The same as a field; `older` is a function asked where the library lacks this one."""
    field = attempt(lambda: ask(host, parse, function, *arguments))
    return learn(host, parse, older, *arguments) if older and missing(field) else field


def unsupported(field: object) -> bool:
    """Whether NVML says that this GPU has no such thing, in the words nvidia-ml-py has for NVML_ERROR_NOT_SUPPORTED."""
    return isinstance(field, Absent) and field.why.endswith("Not Supported")


def number(value: Any) -> int:
    """A whole number. Raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def text(value: Any) -> str:
    """Text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def fields(function: str, parse: Callable[[Any], T]) -> Callable[[Any], tuple[T | Absent, ...]]:
    """A parser of lists: each item becomes a field."""

    def one(item: Any) -> T | Absent:
        if isinstance(item, dict) and item.get("refused") in REFUSALS:
            return Absent(f"NVML {function}: {item['why']}", item["refused"])
        return parse(item)

    return lambda items: tuple(one(item) for item in items)


def members(words: list[int]) -> tuple[int, ...]:
    """The members of a set that NVML gives as 64-bit words, the lowest first."""
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if number(word) >> bit & 1)
