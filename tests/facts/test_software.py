"""NCCL's version numbers, in all the spellings that reach us."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.errors import ParseError
from ncclprobe.facts.software import parse_version, reaches


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.29.7", (2, 29, 7)),
        ("2.29.7+cuda13.0", (2, 29, 7)),
        ("v2.30.7-1", (2, 30, 7)),
        (" 2.30\n", (2, 30, 0)),
        (22907, (2, 29, 7)),
        ("22907", (2, 29, 7)),
        (20906, (2, 9, 6)),
        (2804, (2, 8, 4)),
        (2708, (2, 7, 8)),
    ],
)
def test_every_spelling_of_a_version_is_read(text: str | int, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "2", "two", "2.x", "0", 7, "123456789", "2.29.7.1"])
def test_what_is_no_version_is_refused(text: str | int) -> None:
    with pytest.raises(ParseError, match="NCCL version"):
        parse_version(text)


@given(st.text())
def test_any_text_is_a_version_or_refused(text: str) -> None:
    with suppress(ParseError):
        assert len(parse_version(text)) == 3


@pytest.mark.parametrize(
    ("version", "first", "reached"),
    [
        ((2, 28, 3), (2, 28, 3), True),
        ((2, 28, 3), (2, 28), True),
        ((2, 28, 3), (2, 28, 7), False),
        ((2, 9, 6), (2, 28), False),
        (None, (99, 0), True),
    ],
)
def test_a_version_has_what_came_before_it(
    version: tuple[int, int, int] | None, first: tuple[int, ...], reached: bool
) -> None:
    assert reaches(version, first) is reached
