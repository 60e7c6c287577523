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
        lines = [text] if text.startswith(("{\n", "[\n")) else text.split("\n")
        at = draw.choice([number for number, line in enumerate(lines) if line.strip()] or [0])
        try:
            value = json.loads(lines[at])
        except (ValueError, RecursionError):
            text = _other_value(text, draw)
        else:
            lines[at] = json.dumps(_other_leaf(value, draw), indent=1 if "\n" in text and len(lines) == 1 else None)
            text = "\n".join(lines)
    return text[:_MOST]


def _other_leaf(value: Any, draw: random.Random) -> Any:
    """Return JSON with one leaf replaced by another of its type."""
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, key: _other_leaf(value[key], draw)}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        return [*value[:at], _other_leaf(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str):
        return changed(value, draw) if value[:1] in ("{", "[") else _other_value(value, draw)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    numbers = (0, 1, 2, 7, 255, 4096, 1 << 20) if isinstance(value, int) else (0.0, 0.5, 1.5, 1e-9, 1e9)
    return draw.choice((*numbers, value * 2, value + 1))


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
    """Return `data` after one to four accidents."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, way = draw.randrange(len(made) + 1), draw.randrange(7)
        if way == 0 and made:
            made[at % len(made)] ^= 1 << draw.randrange(8)
        elif way == 1 and made:
            made[at % len(made)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way == 2:
            made[at : at + draw.choice((2, 4, 8))] = draw.choice((b"\xff", b"\0", b"\x7f")) * draw.choice((2, 4, 8))
        elif way == 3:
            del made[at : at + draw.randrange(64)]
        elif way == 4:
            del made[at:]
        elif way == 5:
            made[at:at] = other[draw.randrange(len(other) + 1) :][: draw.randrange(256)]
        else:
            made[at:at] = draw.randbytes(draw.randrange(64))
    return bytes(made[:_MOST])


def _flipped(text: str, _: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + chr(draw.randrange(128)) + text[at + 1 :]


def _inserted(text: str, _: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(PIECES) + text[at:]


def _replaced(text: str, _: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    return text[:start] + draw.choice(PIECES) + text[start + draw.randrange(40) :]


def _cut(text: str, _: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _deleted(text: str, _: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    return text[:start] + text[start + draw.randrange(80) :]


def _numbered(text: str, _: str, draw: random.Random) -> str:
    """Another number in place of one, or of all that are equal to it."""
    start = draw.randrange(len(text) + 1)
    found = _NUMBER.search(text, start) or _NUMBER.search(text)
    if not found:
        return _inserted(text, _, draw)
    number = draw.choice(NUMBERS)
    if draw.random() < 0.3:
        return text.replace(found[0], number)
    return text[: found.start()] + number + text[found.end() :]


def _repeated(text: str, _: str, draw: random.Random) -> str:
    """One line many times, or twice."""
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    times = min(draw.choice((2, 3, 64, 4096)), max(2, (256 << 10) // (len(lines[at]) + 1)))
    return "\n".join([*lines[:at], *[lines[at]] * times, *lines[at + 1 :]])


def _swapped(text: str, _: str, draw: random.Random) -> str:
    lines = text.split("\n")
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return "\n".join(lines)


def _dropped(text: str, _: str, draw: random.Random) -> str:
    lines = text.split("\n")
    del lines[draw.randrange(len(lines))]
    return "\n".join(lines)


def _spliced(text: str, other: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)] + other[draw.randrange(len(other) + 1) :]


def _restructured(text: str, other: str, draw: random.Random) -> str:
    """Another value somewhere in JSON: of the whole text, or of one of its lines."""
    lines = text.split("\n") if not text.startswith(("{\n", "[\n")) else [text]
    at = draw.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _numbered(text, other, draw)
    lines[at] = json.dumps(_changed(value, draw))
    return "\n".join(lines)


def _changed(value: Any, draw: random.Random) -> Any:
    """Return JSON with one of its parts replaced, left out, renamed or doubled; JSON in a text counts as JSON."""
    if draw.random() < 0.15:
        return draw.choice(VALUES)
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(value[key], draw)}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        if draw.random() < 0.15:
            return [*value[:at], *[value[at]] * draw.choice((0, 2, 300)), *value[at + 1 :]]
        return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and value[:1] in ("{", "["):
        return _restructured(value, value, draw)
    if isinstance(value, str):
        return draw.choice((_flipped, _inserted, _numbered, _cut, _repeated))(value, value, draw)
    return draw.choice(VALUES)


_WAYS: Sequence[Callable[[str, str, random.Random], str]] = (
    _flipped, _inserted, _replaced, _cut, _deleted, _numbered, _numbered, _repeated, _swapped, _dropped, _spliced,
    _restructured, _restructured,
)  # fmt: skip
