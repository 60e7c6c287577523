"""TOML written by hand: refused with file, key and reason if it is not valid.

An unknown key is an error, not a word from the future: a number with a misspelt key would otherwise be ignored
silently. Numbers are finite and carry their unit in the key; text is never empty.
"""

import math
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import parse_size
from ncclprobe.model.values import Struct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal["text", "texts", "number", "whole", "flag", "size", "table", "tables"]


class KeySchema(Struct, frozen=True):
    """What a key must hold. A number is above zero, or at `least` that much."""

    kind: Kind
    required: bool = False
    least: float | None = None
    among: tuple[str, ...] = ()


Keys = Mapping[str, KeySchema]


def document(text: str, path: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises UsageError for no TOML, or what is too large, long or deep for ours."""
    if len(text) > bounds.TOML_CHARACTERS:
        raise UsageError(f"{path}: {len(text)} characters; {bounds.TOML_CHARACTERS} are the most")
    longest = max(text.splitlines(), key=len, default="")
    if len(longest) > bounds.TOML_LINE:
        raise UsageError(f"{path}: a line of {len(longest)} characters; {bounds.TOML_LINE} are the most")
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deep") from None
    except ValueError as error:  # also a whole number of thousands of digits, and a key that comes twice
        said = str(error).partition("\n")[0][:200]
        raise UsageError(f"{path}: not TOML: {said}") from None
    return tables


def checked_table(value: Mapping[str, Any], keys: Keys, where: str) -> dict[str, Any]:
    """Return `value` with every key checked and sizes read as bytes. Raises UsageError naming `where` and the key."""
    for name in value:
        if name not in keys:
            raise UsageError(f"{where}: unknown key {name[:80]!r}; {_hint(name, keys)}")
    for name, key in keys.items():
        if key.required and name not in value:
            raise UsageError(f"{where}: {name} is missing")
    return {name: _checked(said, keys[name], f"{where}: {name}") for name, said in value.items()}


def _hint(name: str, keys: Keys) -> str:
    with_unit = [known for known in keys if known.lower().startswith(name.lower() + "_")]
    if with_unit:
        return f"write {with_unit[0]}: a number needs its unit"
    close = get_close_matches(name[:80], keys, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(keys)}"


def _checked(value: object, key: KeySchema, where: str) -> Any:
    if key.kind == "size":
        return size(value, where)
    if key.kind in ("number", "whole"):
        return _number(value, key, where)
    if key.kind == "text":
        return _text(value, key, where)
    if key.kind == "texts":
        return _texts(value, key, where)
    wanted = {"flag": bool, "table": dict, "tables": list}[key.kind]
    if not isinstance(value, wanted):
        raise UsageError(f"{where} must be a {key.kind}" + (": true or false" if key.kind == "flag" else ""))
    if isinstance(value, list):
        _refuse_entries(value, where)
    return value


def _refuse_entries(value: list[object], where: str) -> None:
    if len(value) > bounds.TOML_ENTRIES or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(f"{where} must be tables, {bounds.TOML_ENTRIES} at most")


def _text(value: object, key: KeySchema, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} must be a non-empty text")
    if key.among and value not in key.among:
        raise UsageError(f"{where}: {value[:80]!r} is unknown; choose from {', '.join(key.among)}")
    return value


def _texts(value: object, key: KeySchema, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(value) > bounds.TOML_ENTRIES:
        raise UsageError(f"{where} must be a list of texts")
    texts = tuple(_text(entry, key, where) for entry in value)
    if len(set(texts)) < len(texts):
        raise UsageError(f"{where} names one thing twice")
    return texts


def _number(value: object, key: KeySchema, where: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where} must be a number, without quotes")
    if key.kind == "whole" and not isinstance(value, int):
        raise UsageError(f"{where} must be a whole number")
    if abs(value) >= bounds.TOML_NUMBER or not math.isfinite(value):
        raise UsageError(f"{where} must be a finite number")
    if value < (key.least or 0) or (value == 0 and key.least is None):
        raise UsageError(
            f"{where}: {value:g} must be " + ("above zero" if not key.least else f"at least {key.least:g}")
        )
    return value


def size(value: object, where: str) -> int:
    """Return bytes: a whole number, or a text with a binary suffix."""
    if isinstance(value, str) and len(value) > 40:
        raise UsageError(f"{where}: {value[:40]!r}… is too long for a size, such as '64M'")
    try:
        number = parse_size(value) if isinstance(value, str) else value
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= sys.maxsize:
        raise UsageError(f"{where} must be a whole number of bytes above zero, or such as '64M'")
    return number
