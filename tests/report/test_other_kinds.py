"""A file of another kind where a report is wanted: what it is, and what reads it."""

from pathlib import Path

import pytest

from ncclprobe.commands import main
from tests.each_row import each_row

CAPTURE = Path(__file__).parents[1] / "captures" / "hgx-h100.jsonl"
KINDS = {
    CAPTURE.read_text(): "a capture; `ncclprobe doctor",
    "node1:1:1 [0] NCCL INFO cudaDriverVersion 12080\n": "for the log of a job, run `ncclprobe explain",
    "[1, 2]\n": "a report is a file that --json wrote",
    "{}\n": "give what --json wrote",
}


@each_row("text", KINDS, ids=["capture", "log", "list", "object"])
def test_what_is_no_report_is_called_what_it_is(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text(text)
    assert main(["report", str(tmp_path / "x")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert KINDS[text] in line


@each_row("argv", [["baseline"], ["expect", "--machine", "dgx-h100", "--judge"]])
def test_a_capture_given_as_a_run_is_called_a_capture(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, str(CAPTURE)]) == 2
    assert "a capture; `ncclprobe doctor" in capsys.readouterr().err


def test_the_folder_that_keep_filled_is_judged_as_its_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.jsonl").write_text(CAPTURE.read_text())
    codes = [main(["doctor", "-q", str(path)]) for path in (tmp_path, tmp_path / "node.jsonl")]
    one, other = capsys.readouterr().out.splitlines()
    assert codes[0] == codes[1]
    assert one == other
