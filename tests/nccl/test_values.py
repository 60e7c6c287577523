"""How values of settings are read: numbers as the C library reads them, levels, and NCCL_ALGO and NCCL_PROTO."""

import ctypes

from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.nccl.algorithms import ALGORITHMS, parse_pin
from ncclprobe.nccl.paths import PathType
from ncclprobe.nccl.values import Note, Reading, intent, read_int, read_level, to_int32
from tests.each_row import each_row

Release = tuple[int, int, int]
DEFAULT = -2
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.strtoll.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
LIBC.strtoll.restype = ctypes.c_longlong


@each_row(
    ("note", "values"),
    [
        ("empty", {"": DEFAULT}),
        ("plain", {"1": 1, "-2": -2, "+3": 3, "0": 0, "0x10": 16, "-0X1f": -31, "007": 7, " 7": 7, "7\n": 7}),
        ("plain", {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63)}),
        ("word", dict.fromkeys(("true", "yes", "on", "abc", "- 1", " ", "١"), 0)),
        ("tail", {"4M": 4, "4K": 4, "1.5": 1, "08": 0, "0x": 0}),
        ("octal", {"010": 8}),
        ("overflow", dict.fromkeys(("9223372036854775808", "0x10000000000000000", "9" * 5000), DEFAULT)),
    ],
)
def test_an_integer_is_read_as_strtoll_reads_it_and_how_is_noted(note: Note, values: dict[str, int]) -> None:
    assert {text: read_int(text, DEFAULT) for text in values} == {
        text: Reading(value, note) for text, value in values.items()
    }


@each_row(("version", "value"), [(None, 0), ((2, 31, 2), 0), ((2, 32, 3), DEFAULT)])
def test_a_word_is_zero_before_2_32_and_the_default_since(version: Release | None, value: int) -> None:
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
def test_any_text_is_the_number_that_libc_makes_of_it_and_a_level_or_none(text: str) -> None:
    assert read_int(text, DEFAULT).value == c_reading(text)
    assert read_level(text) in (None, *LEVELS)


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_int_keeps_the_low_bits_as_c_does(value: int) -> None:
    assert to_int32(value) == ctypes.c_int32(value).value


@each_row(
    ("meant", "words"),
    [
        (True, ("true", "Yes", " ON ", "enable", "enabled", "T", "y")),
        (False, ("false", "no", "off", "disable", "Disabled", "none", "F", "n")),
        (None, ("1", "", "auto", "eth0")),
    ],
)
def test_a_word_says_what_a_person_meant(meant: bool | None, words: tuple[str, ...]) -> None:
    assert {word: intent(word) for word in words} == dict.fromkeys(words, meant)


LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")


def test_a_level_counts_in_upper_case_or_as_an_old_number() -> None:
    numbers = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS", "99": "SYS", "0x2": "PXB"}
    wrong = ("", "-1", " 2", "NODE", "PIX ", "NET", "٣", "4294967295", *map(str.lower, LEVELS))
    wanted = {**{level: level for level in LEVELS}, **numbers, **dict.fromkeys(wrong)}
    assert {text: read_level(text) for text in wanted} == wanted
    assert [each.name for each in PathType] == [*LEVELS]


def test_a_level_word_counts_once_the_version_knows_it() -> None:
    since = {**dict.fromkeys(LEVELS, 5), "NVB": 8, "PXN": 12, "C2C": 26, "P2C": 27}
    for level, minor in since.items():
        assert (read_level(level, (2, minor - 1, 99)), read_level(level, (2, minor, 0))) == (None, level)


@given(st.text(alphabet="ring,;:^LL128treall ", max_size=40))
def test_any_text_is_a_pin_or_refused(text: str) -> None:
    pin = parse_pin(text, ALGORITHMS)
    assert not (pin.kept and pin.error)
