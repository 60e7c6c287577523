"""Reports and output that cannot be written: what a run makes of that."""

import io
import sys
from pathlib import Path

import pytest

from ncclprobe.model.errors import UsageError
from session.records import ROW_OK, bands, closed, recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def test_a_report_that_cannot_be_written_is_wrong_usage_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        recorder(tmp_path / "file" / "report.json").open()


def test_a_report_that_cannot_be_written_is_said_and_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    record = recorder(tmp_path / "file" / "report.json", bands(1.0))
    record.add(ROW_OK)
    assert record.close() == 2
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert said.out.startswith("PASS")


class Unwritable(io.StringIO):
    """A standard output that fails as a closed pipe, a full disk, a closed stream or a narrow encoding does."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (BrokenPipeError(32, "Broken pipe"), 0),
        (OSError(28, "No space left on device"), 1),
        (ValueError("I/O operation on closed file"), 1),
        (UnicodeEncodeError("ascii", "·", 0, 1, "ordinal not in range"), 1),
    ],
)
def test_an_output_that_cannot_be_written_costs_neither_rows_nor_the_verdict(
    path: Path, error: Exception, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(error))
    record = recorder(path, quiet=False)
    for _ in range(2):
        record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, len(report.measurements)) == (0, 2)
    assert capsys.readouterr().err.count("\n") == lines


def test_a_window_too_narrow_for_any_text_changes_no_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    record = recorder(path, quiet=False)
    record.add(ROW_OK)
    assert closed(record, path).exit_code == 0


def test_json_that_nobody_can_read_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(BrokenPipeError(32, "Broken pipe")))
    record = recorder("-")
    record.add(ROW_OK)
    assert record.close() == 2
