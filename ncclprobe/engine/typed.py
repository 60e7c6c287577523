"""Whether a fact holds what its type says: a capture's answers may be any text, and JSON in them any JSON.

Collectors take numbers and texts out of JSON without asking each for its type. A fact that does not hold what its
fields say would break the checks that compute with it, or worse, pass them.
"""

import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ncclprobe.model.values import Struct

_MOST = 1 << 64
"""Below this in size is every whole number of the kernel, of NVML and of NCCL; arithmetic with decimals has its end."""

Misfit = Callable[[Any], str]


def misfit(value: Any, kind: Any) -> str:
    """Return what of `value` is not as its type `kind` says: ``.ports[3].rate_gbps is 'x'``; empty: all is."""
    return _checker(kind)(value)


@cache
def _checker(kind: Any) -> Misfit:
    """Return the check of one type, made once; of what is no plain type, such as a callable, nothing is asked."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _any_of([_checker(part) for part in parts])
    if origin is Literal:
        return lambda value: "" if value in parts and isinstance(value, str | int) else _shown(value)
    if origin is tuple and parts[-1:] != (Ellipsis,):
        return _fixed([_checker(part) for part in parts])
    if origin in (tuple, list, set, frozenset):
        return _many(origin, _checker(parts[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_checker(parts[0]), _checker(parts[1]))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    return _NUMBERS.get(kind) or _instance(kind)


def _shown(value: Any) -> str:
    return f" is {type(value).__name__} {str(value)[:40]!a}"


def _whole(value: Any) -> str:
    return "" if isinstance(value, int) and abs(value) < _MOST else _shown(value)


def _decimal(value: Any) -> str:
    fine = math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < _MOST
    return "" if fine else _shown(value)


_NUMBERS: dict[Any, Misfit] = {int: _whole, float: _decimal, type(None): lambda v: "" if v is None else _shown(v)}


def _instance(kind: Any) -> Misfit:
    if not isinstance(kind, type) or kind is Any:
        return lambda value: ""
    return lambda value: "" if isinstance(value, kind) else _shown(value)


def _any_of(checkers: list[Misfit]) -> Misfit:
    def check(value: Any) -> str:
        deepest = ""
        for each in checkers:
            what = each(value)
            if not what:
                return ""
            deepest = what if not deepest or (deepest.startswith(" ") and not what.startswith(" ")) else deepest
        return deepest

    return check


def _fixed(checkers: list[Misfit]) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, tuple) or len(value) != len(checkers):
            return _shown(value)
        found = (each(item) for each, item in zip(checkers, value, strict=True))
        return next((f"[{at}]{what}" for at, what in enumerate(found) if what), "")

    return check


def _many(kind: type[Any], one: Misfit) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return _shown(value)
        if one is _whole and {*map(type, value)} == {int} and min(value) > -_MOST and max(value) < _MOST:
            return ""  # bits of masks and lists of processors are thousands
        for at, each in enumerate(value):
            if what := one(each):
                return f"[{at}]{what}"
        return ""

    return check


def _mapping(key: Misfit, one: Misfit) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return _shown(value)
        found = (f"[{str(name)[:40]!a}]{what}" for name, each in value.items() if (what := key(name) or one(each)))
        return next(found, "")

    return check


def _struct(kind: type) -> Misfit:
    """Return the check of a Struct. What a field's own class settles is found once for the classes of all fields."""
    hints: dict[str, Any] = {}
    to_look_into: dict[tuple[type, ...], list[tuple[str, Misfit]]] = {}

    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return _shown(value)
        if not hints:  # not before: a type may hold itself
            hints.update(get_type_hints(kind))
        classes = tuple(map(type, [getattr(value, name) for name in hints]))
        if (open_fields := to_look_into.get(classes)) is None:
            named = zip(hints.items(), classes, strict=True)
            open_fields = [(name, one) for (name, hint), own in named if (one := _look_into(own, hint))]
            to_look_into[classes] = open_fields
        for name, one in open_fields:
            if what := one(getattr(value, name)):
                return f".{name}{what}"
        return ""

    return check


def _look_into(own: type, hint: Any) -> Misfit | None:
    """Return the check that a value of the class `own` still needs to fit `hint`: none for a text, a truth, nothing."""
    whole = own in (get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,))
    if hint is Any or (whole and own in (str, bool, type(None))):
        return None
    return _checker(own if whole else hint)
