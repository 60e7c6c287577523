"""What a value type is: a frozen Struct of msgspec, how one is changed and written out, and how values are grouped.

Not a dataclass: those are made by compiling source text, half a millisecond each at every start; a Struct takes a
fiftieth of that, and is made, compared and written as JSON without Python code.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

__all__ = ["Result", "Same", "Struct", "asdict", "field", "grouped", "replace"]

K = TypeVar("K")
V = TypeVar("V")


def asdict(value: Struct) -> dict[str, Any]:
    """Return the fields of `value` by name, and those of every value in it: dictionaries, tuples, numbers and texts."""
    written: dict[str, Any] = to_builtins(value)
    return written


class Result(Struct, frozen=True):
    """A value that :mod:`ncclprobe.api` returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as dictionaries, lists, numbers and texts."""
        return asdict(self)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, the keys in order of first appearance."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class Same(Generic[V]):
    """A value as the key of a cache: equal only to itself, because comparing millions of parts would cost more than it
    saves.
    """

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Return whether both hold one object."""
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        """Return the identity."""
        return id(self.value)
