"""How a value is read, against the C library that NCCL reads it with."""

import ctypes

from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.nccl.values import (
    Note,
    Reading,
    intent,
    read_int,
    read_level,
    to_int32,
)
from tests.each_row import each_row

DEFAULT = -2
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.strtoll.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
LIBC.strtoll.restype = ctypes.c_longlong


@each_row(
    ("text", "value", "note"),
    [
        ("", DEFAULT, "empty"),
        ("1", 1, "plain"),
        ("-2", -2, "plain"),
        ("+3", 3, "plain"),
        ("0", 0, "plain"),
        ("true", 0, "word"),
        ("yes", 0, "word"),
        ("on", 0, "word"),
        ("abc", 0, "word"),
        ("- 1", 0, "word"),
        (" ", 0, "word"),
        ("4M", 4, "tail"),
        ("4K", 4, "tail"),
        ("1.5", 1, "tail"),
        ("08", 0, "tail"),
        ("0x", 0, "tail"),
        ("0x10", 16, "plain"),
        ("-0X1f", -31, "plain"),
        ("010", 8, "octal"),
        ("007", 7, "plain"),
        (" 7", 7, "plain"),
        ("7\n", 7, "plain"),
        ("9223372036854775807", 2**63 - 1, "plain"),
        ("9223372036854775808", DEFAULT, "overflow"),
        ("-9223372036854775808", -(2**63), "plain"),
        ("0x10000000000000000", DEFAULT, "overflow"),
        ("9" * 5000, DEFAULT, "overflow"),
        ("١", 0, "word"),
    ],
)
def test_an_integer_is_read_as_strtoll_reads_it(text: str, value: int, note: Note) -> None:
    assert read_int(text, DEFAULT) == Reading(value, note)


@each_row(("version", "value"), [(None, 0), ((2, 31, 2), 0), ((2, 32, 3), DEFAULT)])
def test_a_word_is_zero_before_2_32_and_the_default_since(version: tuple[int, int, int] | None, value: int) -> None:
    assert read_int("false", DEFAULT, version) == Reading(value, "word")
    assert read_int("4M", DEFAULT, version) == Reading(4, "tail")


def c_reading(text: str) -> int:
    """What NCCL's C code makes of `text`: ncclLoadParam, src/misc/param.cc:92 (v2.30.7)."""
    if not text:
        return DEFAULT
    ctypes.set_errno(0)
    value: int = LIBC.strtoll(text.encode("utf-8", "surrogatepass"), None, 0)
    return DEFAULT if ctypes.get_errno() else value


NUMBERLIKE = st.text(alphabet=" \t\n\v\f\r+-0123456789abcdefxXKM.,", max_size=30)
C_TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.one_of(NUMBERLIKE, C_TEXT, st.integers().map(str), st.integers().map(hex)))
@example("0x8000000000000000")
@example("-0x8000000000000000")
@example("-0x8000000000000001")
@example("01777777777777777777777")
@example("0" * 6000 + "7")
@example("\x1c7")  # a blank to Python's str.strip, none to C
def test_any_text_is_the_number_that_libc_makes_of_it(text: str) -> None:
    assert read_int(text, DEFAULT).value == c_reading(text)


@each_row(("text", "note"), [("1", "plain"), ("", "empty"), ("true", "word"), ("4M", "tail"), ("010", "octal")])
def test_how_a_number_was_read_is_noted(text: str, note: str) -> None:
    assert read_int(text, DEFAULT).note == note


@each_row(
    ("word", "meant"),
    [
        ("true", True),
        ("Yes", True),
        (" ON ", True),
        ("enable", True),
        ("false", False),
        ("off", False),
        ("Disabled", False),
        ("n", False),
        ("1", None),
        ("", None),
        ("auto", None),
        ("eth0", None),
    ],
)
def test_a_word_says_what_a_person_meant(word: str, meant: bool | None) -> None:
    assert intent(word) is meant


LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")


@each_row("level", LEVELS)
def test_a_level_counts_in_upper_case_only(level: str) -> None:
    assert read_level(level) == level
    assert read_level(level.lower()) is None


@each_row(
    ("text", "level"),
    [
        ("0", "LOC"),
        ("1", "PIX"),
        ("2", "PXB"),
        ("3", "PHB"),
        ("4", "SYS"),
        ("5", "SYS"),
        ("99", "SYS"),
        ("0x2", "PXB"),
    ],
)
def test_an_old_number_is_still_a_level(text: str, level: str) -> None:
    assert read_level(text) == level


@each_row("text", ["", "-1", " 2", "NODE", "PIX ", "NET", "٣", "4294967295"])
def test_anything_else_is_no_level(text: str) -> None:
    assert read_level(text) is None


@each_row(
    ("level", "before", "since"),
    [("PXN", (2, 11, 4), (2, 12, 7)), ("C2C", (2, 25, 1), (2, 26, 2)), ("P2C", (2, 26, 6), (2, 27, 3))],
)
def test_a_level_word_counts_once_the_version_knows_it(
    level: str, before: tuple[int, int, int], since: tuple[int, int, int]
) -> None:
    assert read_level(level, before) is None
    assert read_level(level, since) == level


@given(st.text())
def test_any_text_is_a_level_or_ignored(text: str) -> None:
    assert read_level(text) in (None, *LEVELS)


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_int_keeps_the_low_bits_as_c_does(value: int) -> None:
    assert to_int32(value) == ctypes.c_int32(value).value
