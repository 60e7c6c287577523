"""Spoil a text as accidents and attackers do. Deterministic: the same random numbers, the same spoilt text."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    "0", "-0", "-1", "1", "2", "7", "255", "65536", "4294967295", "20000000", "99999999", "18446744073709551616",
    "1e-320", "1e308", "1e999", "-1e999", "nan", "inf", "NaN", "Infinity", "0x7fffffff", "1_000", "٣", "²", "9" * 40,
    "9" * 5000, "0.1e-5", "", " ", "-", ".", "1.", "0x", "1e", "00000000000000000000001",
)  # fmt: skip
PIECES = (
    "\0", "\x1b[2J", "\x85", "\u2028", "\u202e", "\ufeff", "\ufffe", "\ud800", "İ", "ß", "\U0001f4a9", "\r", "\n",
    "\t", " ", "\v", "]]>", "<!--", "</script>", '"', "'", "\\", "\\u0000", "\\ud800", "{", "}", "[", "]", ",", ":",
    ";", "=", "|", "%n", "${x}", "null", "true", "false", "[]", "{}", '""', "None", "../", "/", "~", "*", "^",
    "a" * 5000, "a:" * 3000, "[" * 3000, '{"a":' * 2000, "(" * 3000, "-" * 3000, ", " * 3000, "\t" * 3000,
    "0-99999999", "1(x999999999)", "n[0-99999999]",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 20_000_000, 1 << 63, 10**40, 1e-320, 1e308, -1.5, "", " ", "x", "NaN", "\ud800", "\0",
    "a" * 5000, [], {}, [None], [[]], {"": None}, [0] * 3000, ["x"] * 300, {"a": {"b": {"c": []}}}, "9" * 40,
)  # fmt: skip
_NUMBER = re.compile(r"[0-9][0-9.]{0,20}")
_WORD = re.compile(r"(?<=[\"' ])[a-z]{4,30}(?=[\"' \n])")
_MOST = 2 << 20
"""Characters of a spoilt text: seeds are far below, and what grows is cut."""


def spoilt(text: str, other: str, draw: random.Random) -> str:
    """Return `text` after one to four accidents; `other` is a seed that parts may come from."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        text = draw.choice(_WAYS)(text, other, draw)[:_MOST]
    return text


def changed(text: str, draw: random.Random) -> str:
    """Return `text` with one or two values replaced by others of their kind, so that most parsers go on behind it.

    JSON, as a whole or by lines: a leaf of the parsed tree. Other texts: a number, a letter of a word, a line twice.
    """
    for _ in range(draw.choice((1, 1, 2))):
        text = _in_json(text, draw, _like) or _other_value(text, draw)
    return text[:_MOST]


def _in_json(text: str, draw: random.Random, leaf: Callable[[Any, random.Random], Any]) -> str:
    """Return `text` with one leaf of its JSON, or of that of one of its lines, replaced; empty: it holds none."""
    whole = text.startswith(("{\n", "[\n"))
    lines = [text] if whole else text.split("\n")
    at = draw.choice([number for number, line in enumerate(lines) if line.strip()] or [0])
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return ""
    lines[at] = json.dumps(_with_leaf(value, draw, leaf), indent=1 if whole else None)
    return "\n".join(lines)


def _with_leaf(value: Any, draw: random.Random, leaf: Callable[[Any, random.Random], Any]) -> Any:
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, key: _with_leaf(value[key], draw, leaf)}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        return [*value[:at], _with_leaf(value[at], draw, leaf), *value[at + 1 :]]
    if isinstance(value, str) and value[:1] in ("{", "["):
        return _in_json(value, draw, leaf) or leaf(value, draw)
    return leaf(value, draw)


def _like(value: Any, draw: random.Random) -> Any:
    """Return another value of its type."""
    if isinstance(value, str):
        return _other_value(value, draw)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    numbers = (0, 1, 2, 7, 255, 4096, 1 << 20) if isinstance(value, int) else (0.0, 0.5, 1.5, 1e-9, 1e9)
    return draw.choice((*numbers, value * 2, value + 1))


def _unlike(value: Any, draw: random.Random) -> Any:
    """Return any value, or a text with an accident."""
    if isinstance(value, str) and draw.random() < 0.7:
        return draw.choice((_replaced, _numbered, _repeated))(value, value, draw)
    return draw.choice(VALUES)


def _other_value(text: str, draw: random.Random) -> str:
    numbers, words = list(_NUMBER.finditer(text)), list(_WORD.finditer(text))
    way = draw.random() if "\n" in text.strip() else draw.random() / 1.8  # a line twice is no other value of one line
    if way < 0.5 and numbers:
        found = draw.choice(numbers)
        new = f"{draw.choice((0, 1, 2, 3, 8, 16, 64, 100, 1024, 65536))}"
        return text[: found.start()] + (f"{new}.5" if "." in found[0] else new) + text[found.end() :]
    if way < 0.7 and words:
        found = draw.choice(words)
        at = draw.randrange(found.start(), found.end())
        return text[:at] + chr(draw.randrange(97, 123)) + text[at + 1 :]
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    return "\n".join([*lines[:at], *([f"# {draw.random()}"] if way < 0.9 else [lines[at]]), *lines[at:]])


def spoilt_bytes(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return `data` after one to four accidents: a bit flipped, a part replaced, left out or cut off."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, way = draw.randrange(len(made) + 1), draw.randrange(4)
        if way == 0 and made:
            made[at % len(made)] ^= 1 << draw.randrange(8)
        elif way == 1:
            piece = draw.choice((b"\xff" * 8, b"\0" * 4, b"\x7f" * 2, draw.randbytes(64), other[at : at + 256]))
            made[at : at + draw.choice((0, len(piece)))] = piece
        else:
            del made[at : at + draw.choice((1, 64, len(made)))]
    return bytes(made[:_MOST])


def _replaced(text: str, _: str, draw: random.Random) -> str:
    """Another piece in place of a part, which may be empty; or nothing in its place."""
    start = draw.randrange(len(text) + 1)
    piece = draw.choice((draw.choice(PIECES), draw.choice(PIECES), chr(draw.randrange(128)), ""))
    return text[:start] + piece + text[start + draw.choice((0, 1, draw.randrange(80))) :]


def _numbered(text: str, _: str, draw: random.Random) -> str:
    """Another number in place of one, or of all that are equal to it."""
    start = draw.randrange(len(text) + 1)
    found = _NUMBER.search(text, start) or _NUMBER.search(text)
    if not found:
        return _replaced(text, _, draw)
    number = draw.choice(NUMBERS)
    if draw.random() < 0.3:
        return text.replace(found[0], number)
    return text[: found.start()] + number + text[found.end() :]


def _repeated(text: str, _: str, draw: random.Random) -> str:
    """One line many times, twice, or not at all, and perhaps at another place."""
    lines = text.split("\n")
    line = lines.pop(draw.randrange(len(lines)))
    times = min(draw.choice((0, 1, 2, 3, 64, 4096)), max(2, (256 << 10) // (len(line) + 1)))
    at = draw.randrange(len(lines) + 1)
    return "\n".join([*lines[:at], *[line] * times, *lines[at:]])


def _spliced(text: str, other: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)] + other[draw.randrange(len(other) + 1) :]


def _restructured(text: str, other: str, draw: random.Random) -> str:
    """Another value somewhere in JSON: of the whole text, or of one of its lines."""
    return _in_json(text, draw, _unlike) or _numbered(text, other, draw)


_WAYS: Sequence[Callable[[str, str, random.Random], str]] = (
    _replaced, _replaced, _numbered, _numbered, _repeated, _spliced, _restructured, _restructured,
)  # fmt: skip
