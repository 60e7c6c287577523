"""`tests.each_row`: no row is left out, and a table that fails names each row that does."""

import os
from pathlib import Path

import pytest

from tests.each_row import each_row


def test_all_rows_that_fail_are_named_in_one_assertion() -> None:
    tried = []

    @each_row("left, right", [(1, 1), (1, 2), (3, 3), (4, 5)], ids=["one", "two", "three", "four"])
    def same(left: int, right: int) -> None:
        tried.append(left)
        assert left == right

    with pytest.raises(AssertionError, match=r"(?s)2 of 4 rows fail.*1: two.*3: four") as failed:
        same()
    assert tried == [1, 1, 3, 4]
    assert "three" not in str(failed.value)


def test_an_error_in_a_row_is_told_with_its_row_and_an_empty_table_fails() -> None:
    @each_row("key", ["a", "b"])
    def found(key: str) -> None:
        assert {"a": 1}[key]

    with pytest.raises(AssertionError, match=r"1 of 2 rows fail\n\[1: 'b'\] KeyError"):
        found()

    @each_row("key", [])
    def never(key: str) -> None: ...

    with pytest.raises(AssertionError, match="the table has no row"):
        never()


@pytest.mark.filterwarnings("error")
@each_row("number", [1, 2], ids=str)
@each_row("letter", ["a", "b"])
def test_tables_multiply_and_fixtures_reach_every_row(number: int, letter: str, request: pytest.FixtureRequest) -> None:
    assert request.node.name == "test_tables_multiply_and_fixtures_reach_every_row"
    assert f"{letter}{number}" in {"a1", "a2", "b1", "b2"}


@each_row("number", [1, 2])
def test_each_row_has_a_folder_and_a_monkeypatch_of_its_own(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(tmp_path.iterdir())
    assert "NCCLPROBE_ROW" not in os.environ
    (tmp_path / "file").touch()
    monkeypatch.setenv("NCCLPROBE_ROW", str(number))
