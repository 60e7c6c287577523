"""Convert hand-written TOML to our values; refuse an invalid one with file, key and reason.

An unknown key is an error, not a future extension: a number with a misspelt key would otherwise be silently ignored.
Numbers are finite and carry their unit in the key; text is never empty.
"""

import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import parse_size
from ncclprobe.model.values import Struct

T = TypeVar("T", bound=Struct)
_KINDS = {
    " | null`": "`",
    " matching regex '\\\\S'": " that is not empty",
    "`str`": "a text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "a table",
}
"""msgspec's names for TOML types, in plain words."""
Text = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Positive = Annotated[float, Meta(gt=0, lt=bounds.TOML_NUMBER)]
PositiveInt = Annotated[int, Meta(ge=1, lt=int(bounds.TOML_NUMBER))]
Tables = Annotated[tuple[dict[str, Any], ...], Meta(max_length=bounds.TOML_ENTRIES)]


def document(text: str, path: str) -> dict[str, Any]:
    """Parse the tables of a TOML text. Raises UsageError for invalid TOML, or text that is too large, long or deep."""
    if len(text) > bounds.TOML_CHARACTERS:
        raise UsageError(f"{path}: {len(text)} characters; the limit is {bounds.TOML_CHARACTERS}")
    longest = max(text.splitlines(), key=len, default="")
    if len(longest) > bounds.TOML_LINE:
        raise UsageError(f"{path}: a line of {len(longest)} characters; the limit is {bounds.TOML_LINE}")
    if sys.version_info >= (3, 11):  # here, because most runs read no such text
        import tomllib
    else:
        import tomli as tomllib
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except ValueError as error:  # also a whole number of thousands of digits, and a key that comes twice
        said = str(error).partition("\n")[0][:200]
        raise UsageError(f"{path}: not TOML: {said}") from None
    return tables


def converted(table: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Convert `table` to `kind`; keys that end in ``bytes`` are sizes. Raises UsageError naming `where` and the key."""
    known = kind.__struct_fields__
    for name in table:
        if name not in known:
            raise UsageError(f"{where}: unknown key {name[:80]!r}; {_hint(name, known)}")
    plain = {name: size(said, f"{where}: {name}") if name.endswith("bytes") else said for name, said in table.items()}
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_reason(str(error))}") from None


def _hint(name: str, known: Collection[str]) -> str:
    with_unit = [key for key in known if key.lower().startswith(name.lower() + "_")]
    if with_unit:
        return f"write {with_unit[0]}: a number needs its unit"
    close = get_close_matches(name[:80], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def _reason(said: str) -> str:
    """Rewrite msgspec's reason with the key first: ``nics: expected a whole number >= 1``."""
    what, _, path = said.partition(" - at `$.")
    missing = what.removeprefix("Object missing required field `")
    if missing != what:
        return f"{missing.rstrip('`')} is missing"
    for kind, words in _KINDS.items():
        what = what.replace(kind, words)
    return f"{path.rstrip('`')}: {what[0].lower()}{what[1:]}"[:200]


def size(value: object, where: str) -> int:
    """Parse bytes: a whole number, or a text with a binary suffix. Raises UsageError."""
    if isinstance(value, str) and len(value) > 40:
        raise UsageError(f"{where}: {value[:40]!r}… is not a size; write it as in '64M'")
    try:
        number = parse_size(value) if isinstance(value, str) else value
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= sys.maxsize:
        raise UsageError(f"{where} must be a whole number of bytes above zero, or a size such as '64M'")
    return number
