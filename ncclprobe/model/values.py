"""What a value type is: a frozen Struct of msgspec, and how one is changed and written out.

Not a dataclass: those are made by compiling source text, half a millisecond each at every start; a Struct takes a
fiftieth of that, and is made, compared and written as JSON without Python code.
"""

from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

__all__ = ["Struct", "asdict", "field", "replace"]


def asdict(value: Struct) -> dict[str, Any]:
    """Return the fields of `value` by name, and those of every value in it: dictionaries, tuples, numbers and texts."""
    written: dict[str, Any] = to_builtins(value)
    return written
