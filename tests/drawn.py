"""Values that are drawn by number, and one line for what is found."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ncclprobe.model.values import Struct, replace


def word(*values: object) -> str:
    """Return values as one line."""
    return "/".join(map(_text, values))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Struct):
        return word(*(getattr(value, name) for name in value.__struct_fields__))
    if isinstance(value, dict):
        return ",".join(f"{key}={_text(each)}" for key, each in value.items())
    return word(*value) if isinstance(value, list | tuple) else str(value)


def some_of(draw: Random, pool: Mapping[str, Any], most: int = 2) -> dict[str, Any]:
    """Return one value for each of a few names."""
    return {name: draw.choice(pool[name]) for name in draw.sample(sorted(pool), draw.randint(1, most))}


def altered(draw: Random, value: Any, pool: Mapping[str, Sequence[Any]], odds: float) -> Any:
    """Return a value in which fields of `pool`, such as ``Gpu.lost``, now and then have another value."""
    if isinstance(value, Struct):
        kind, changes = type(value).__name__, dict[str, Any]()
        for name in value.__struct_fields__:
            own, others = getattr(value, name), pool.get(f"{kind}.{name}")
            new = draw.choice(others) if others and draw.random() < odds else altered(draw, own, pool, odds)
            changes |= {} if new is own else {name: new}
        return replace(value, **changes) if changes else value
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        made = tuple(altered(draw, each, pool, odds) for each in value)
        return value if all(one is other for one, other in zip(value, made, strict=True)) else made
    if isinstance(value, dict):
        found = {key: altered(draw, each, pool, odds) for key, each in value.items()}
        return value if all(found[key] is each for key, each in value.items()) else found
    return value
