"""Value types: frozen msgspec Structs, how to change and write them, and how to group values.

Not dataclasses: those compile source text, half a millisecond each at every start. A Struct takes a fiftieth of that,
and is created, compared and written as JSON without Python code.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

__all__ = ["Result", "Same", "Struct", "asdict", "field", "grouped", "replace"]

K = TypeVar("K")
V = TypeVar("V")


def asdict(value: Struct) -> dict[str, Any]:
    """Convert `value` and all nested values to dictionaries, tuples, numbers and texts."""
    written: dict[str, Any] = to_builtins(value)
    return written


class Result(Struct, frozen=True):
    """A value that :mod:`ncclprobe.api` returns."""

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dictionaries, lists, numbers and texts."""
        return asdict(self)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Group values by key, in order of first appearance."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class Same(Generic[V]):
    """A value as a cache key, equal only to itself: comparing millions of parts would cost more than the
    cache saves.
    """

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
