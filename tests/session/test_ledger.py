"""From rows to a verdict and an exit code: every way in which a run can end, without processes."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.site.bands import Band, from_toml
from ncclprobe.measured import FirstCall, Skew, Unmeasured
from ncclprobe.model import Arrivals, Attendance, Expectation, LostRank, Report
from ncclprobe.report import json as as_json
from ncclprobe.session import options as command_line
from ncclprobe.session.ledger import UNJUDGED, Ledger, Party
from ncclprobe.session.watch import Ending

ROW_OK = replace(ROW, wrong=0)
LOST = Ending(attendance=Attendance(2, (LostRank(1, "h1", "timing", "its heartbeat stopped"),)))


def bands(low: float) -> tuple[Band, ...]:
    entry = f'op = "all_reduce"\nnbytes = "1M"\nbusbw_GBps = 1000\nlow_GBps = {low}\nsource = "s"\nwhy = "w"\n'
    return from_toml("[[expect]]\n" + entry, "b")


def ledger(path: Path, expected: tuple[Band, ...] = (), met: bool = True, **options: Any) -> Ledger:
    asked = replace(command_line.parse([]), json=str(path), quiet=True, **options)
    found = Ledger(asked, Party("manual", 2, ("h0", "h1"), "gloo"), expected)
    found.met = met
    return found


def closed(book: Ledger, path: Path, ending: Ending | None = None) -> Report:
    code = book.close(ending)
    report = as_json.read(str(path))
    assert report.exit_code == code
    return report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def test_a_number_in_its_band_passes(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(ROW_OK)
    assert closed(book, path).exit_code == 0


def test_a_number_below_its_band_fails_even_where_only_a_report_was_wanted(path: Path) -> None:
    book = ledger(path, bands(500.0), report_only=True)
    book.add(ROW_OK)
    report = closed(book, path)
    assert (report.exit_code, report.measurements[0].status) == (4, "fail")


@pytest.mark.parametrize(("report_only", "code"), [(False, 3), (True, 0)])
def test_an_unjudged_number_is_enough_only_where_it_is_asked_for(path: Path, report_only: bool, code: int) -> None:
    book = ledger(path, report_only=report_only)
    book.add(ROW_OK)
    assert closed(book, path).exit_code == code


LOOSE = Expectation(90.0, 0.0, "GB/s", "model", "w", "s", worst="unjudged", known="not judged: known from 2 sources")


def loose(op: str = "all_reduce", nbytes: int = 1 << 20) -> Band:
    return Band(op, nbytes, nbytes, LOOSE)


def test_rows_whose_numbers_are_too_loosely_known_leave_a_run_whose_large_rows_are_judged_as_it_is(path: Path) -> None:
    book = ledger(path, (*bands(1.0), loose(nbytes=4096)))
    book.add(ROW_OK)
    book.add(replace(ROW_OK, nbytes=4096))
    report = closed(book, path)
    assert (report.exit_code, [row.status for row in report.measurements]) == (0, ["pass", "unjudged"])


def test_a_run_of_which_every_number_is_too_loosely_known_passes_and_says_that_none_was_judged(path: Path) -> None:
    book = ledger(path, (loose(),))
    book.add(ROW_OK)
    report = closed(book, path)
    assert (report.exit_code, report.measurements[0].status) == (0, "unjudged")
    assert any("1 row measured, none judged" in each for each in report.remarks)
    assert not any(verdict.id == "run.band" for verdict in report.checks)


def test_wrong_data_fails_whatever_the_speed(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(replace(ROW, wrong=2))
    assert closed(book, path).exit_code == 4


def test_data_that_nobody_verified_is_inconclusive(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(ROW)
    assert closed(book, path).exit_code == 3


def test_a_doubt_spoils_good_numbers(path: Path) -> None:
    """Such as gloo measured because no GPU could be seen."""
    book = ledger(path, bands(1.0))
    book.add(ROW_OK)
    book.doubt("measured gloo instead")
    report = closed(book, path)
    assert report.exit_code == 3
    assert "measured gloo instead" in report.remarks


@pytest.mark.parametrize(
    ("ending", "code"),
    [(Ending(why="ended by SIGINT"), 3), (LOST, 4), (Ending(attendance=Attendance(2, stalled="timing")), 4)],
)
def test_a_run_cut_short_keeps_its_rows(path: Path, ending: Ending, code: int) -> None:
    book = ledger(path, bands(1.0))
    book.add(ROW_OK)
    report = closed(book, path, ending)
    assert (report.exit_code, len(report.measurements)) == (code, 1)


def test_ranks_that_never_met_pass_nothing(path: Path) -> None:
    report = closed(ledger(path, met=False), path, Ending(arrivals=Arrivals(2, (1,), 60.0)))
    statuses = {verdict.id: verdict.status.value for verdict in report.checks}
    assert report.exit_code == 4
    assert statuses == {
        "run.init": "fail", "run.hang-attrib": "skip", "run.data": "unknown", "run.band": "unknown",
        "run.straggler": "unknown",
    }  # fmt: skip


def test_a_signal_before_the_ranks_met_is_inconclusive(path: Path) -> None:
    report = closed(ledger(path, met=False), path, Ending(why="ended by SIGINT"))
    assert report.exit_code == 3
    assert {verdict.status.value for verdict in report.checks} == {"unknown"}


def test_every_row_is_saved_as_it_comes(path: Path) -> None:
    book = ledger(path, bands(1.0))
    for count in (1, 2):
        book.add(ROW_OK)
        report = as_json.read(str(path))
        assert len(report.measurements) == count
        assert (report.status.value, report.exit_code) == ("unknown", 3)


def test_the_book_is_closed_once_and_takes_no_more_rows(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(ROW_OK)
    assert book.close(LOST) == 4
    book.add(ROW_OK)
    assert book.close() == 4
    assert len(as_json.read(str(path)).measurements) == 1


def test_a_report_that_cannot_be_written_is_said_and_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    book = ledger(tmp_path / "file" / "report.json", bands(1.0))
    book.add(ROW_OK)
    assert book.close() == 2
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert said.out.startswith("PASS")


@pytest.mark.parametrize("report_only", [False, True])
def test_a_file_that_covers_no_row_says_what_it_speaks_for(path: Path, report_only: bool) -> None:
    book = ledger(path, bands(1.0), expect="bands.toml", report_only=report_only)
    book.add(replace(ROW_OK, nbytes=8))
    report = closed(book, path)
    assert report.exit_code == 3
    assert report.remarks == ("bands.toml expects nothing of the rows measured: it speaks for all_reduce 1 MiB",)


@pytest.mark.parametrize(("report_only", "code"), [(False, 3), (True, 0)])
def test_a_row_that_the_file_does_not_cover_passes_only_where_it_may(path: Path, report_only: bool, code: int) -> None:
    book = ledger(path, bands(1.0), expect="bands.toml", report_only=report_only)
    for row in (replace(ROW_OK, nbytes=8), ROW_OK):
        book.add(row)
    report = closed(book, path)
    assert report.exit_code == code
    (remark,) = report.remarks
    assert remark.startswith("1 of 2 rows judged by bands.toml")


def test_a_file_that_covers_every_row_needs_no_remark(path: Path) -> None:
    book = ledger(path, bands(1.0), expect="bands.toml")
    book.add(ROW_OK)
    assert closed(book, path).remarks == ()


def test_how_the_sizes_were_understood_is_in_the_report(path: Path) -> None:
    book = ledger(path, bands(1.0), remarks=("sizes end at 512 KiB",))
    book.add(ROW_OK)
    assert closed(book, path).remarks == ("sizes end at 512 KiB",)


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
    book = ledger(path, report_only=True)
    book._options = replace(book._options, quiet=False)
    for _ in range(2):
        book.add(ROW_OK)
    report = closed(book, path)
    assert (report.exit_code, len(report.measurements)) == (0, 2)
    assert capsys.readouterr().err.count("\n") == lines


def test_a_window_too_narrow_for_any_text_changes_no_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    book = ledger(path, report_only=True)
    book._options = replace(book._options, quiet=False)
    book.add(ROW_OK)
    assert closed(book, path).exit_code == 0


def test_json_that_nobody_can_read_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(BrokenPipeError(32, "Broken pipe")))
    book = ledger(Path("-"), report_only=True)
    book.add(ROW_OK)
    assert book.close() == 1


def test_what_a_signal_may_cut_short_is_kept_before_it_is_understood(path: Path) -> None:
    book = ledger(path, bands(1.0), expect="bands.toml")
    book.add(ROW_OK)
    book.keep(Ending(why="ended by SIGTERM"))
    report = as_json.read(str(path))
    assert (report.exit_code, report.remarks) == (3, ("ended by SIGTERM",))
    assert closed(book, path, LOST).exit_code == 4
    book.keep(Ending(why="ended by SIGTERM"))
    assert as_json.read(str(path)).exit_code == 4


def test_another_process_can_go_on_with_the_book(path: Path) -> None:
    book = ledger(path, report_only=True)
    book.add(ROW_OK)
    heir = ledger(path, met=False, report_only=True)
    heir.reopen(as_json.read(str(path)))
    report = closed(heir, path, LOST)
    assert (report.exit_code, len(report.measurements), report.remarks) == (4, 1, ())
    assert {v.id: v.status.value for v in report.checks} == {
        "run.init": "pass", "run.hang-attrib": "fail", "run.data": "pass", "run.straggler": "unknown",
    }  # fmt: skip


def test_no_remark_comes_twice_when_another_process_goes_on(path: Path) -> None:
    book = ledger(path, remarks=("sizes end at 512 KiB",))
    book.add(ROW_OK)
    heir = ledger(path, met=False, remarks=("sizes end at 512 KiB",))
    heir.reopen(as_json.read(str(path)))
    report = closed(heir, path, Ending(why="ended by SIGTERM"))
    assert report.remarks == ("ended by SIGTERM", "sizes end at 512 KiB", UNJUDGED)


def test_ranks_of_our_own_leave_the_last_word_to_who_started_them(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCLPROBE_FOLDER", str(path.parent))
    path = path.with_name("mine.json")
    book = ledger(path, report_only=True)
    book.add(ROW_OK)
    assert {file.name for file in path.parent.iterdir()} == {"mine.json", "rows.json"}
    assert closed(book, path).exit_code == 0
    assert as_json.read(str(path.with_name("report.json"))).exit_code == 0
    assert capsys.readouterr().out == ""


def test_a_number_too_noisy_to_judge_is_inconclusive_even_where_only_a_report_was_wanted(path: Path) -> None:
    """100 GB/s at 20 us, and a band that only one end of the interval reaches."""
    book = ledger(path, bands(ROW.busbw_GBps), report_only=True)
    book.add(ROW_OK)
    report = closed(book, path)
    assert (report.exit_code, report.measurements[0].status) == (3, "noise")
    (verdict,) = [v for v in report.checks if v.id == "run.band"]
    assert "too noisy to say: all_reduce 1 MiB" in verdict.why


LEFT_OUT = (
    Unmeasured("reduce", None, "refused", "Unsupported data type"),
    Unmeasured("gather", None, "refused", "Unsupported data type"),
    Unmeasured("all_reduce", 1 << 40, "memory", "two buffers need 2 TiB per rank and a rank has only 8 GiB free"),
    Unmeasured("broadcast", 1 << 40, "memory", "two buffers need 2 TiB per rank and a rank has only 8 GiB free"),
    Unmeasured("all_gather", 8, "small", "8 B is too little for 2 ranks to share"),
)


def test_what_was_asked_for_and_not_measured_is_named_counted_and_no_pass(path: Path) -> None:
    book = ledger(path, bands(1.0), expect="bands.toml")
    book.add(ROW_OK)
    for each in LEFT_OUT:
        book.leave_out(each)
    report = closed(book, path)
    assert report.exit_code == 3
    assert report.unmeasured == LEFT_OUT
    assert report.remarks == (
        "reduce was skipped: Unsupported data type",
        "gather was skipped: Unsupported data type",
        "2 operations were skipped",
        "1 TiB was left out: two buffers need 2 TiB per rank and a rank has only 8 GiB free",
        "all_gather was skipped: 8 B is too little for 2 ranks to share",
    )


def test_a_size_too_small_to_share_spoils_nothing(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(ROW_OK)
    book.leave_out(LEFT_OUT[-1])
    assert closed(book, path).exit_code == 0


def test_a_precision_out_of_reach_is_said_once_with_what_was_reached_and_spoils_nothing(path: Path) -> None:
    book = ledger(path, bands(1.0))
    for precision in (0.01, 0.05, 0.031):
        book.add(replace(ROW_OK, precision=precision, precision_asked=0.02, batches=40))
    report = closed(book, path)
    assert report.exit_code == 0
    (remark,) = report.remarks
    assert remark.startswith("±2 % was asked for, and 2 of 3 rows did not reach it within --budget; the worst is ")
    assert "all_reduce 1 MiB, ±5 % after 40 batches of 20" in remark


def test_a_fixed_number_of_calls_promises_no_precision(path: Path) -> None:
    book = ledger(path, bands(1.0))
    book.add(replace(ROW_OK, precision=0.9, precision_asked=None))
    assert closed(book, path).remarks == ()


def test_what_the_first_calls_cost_is_kept_by_whoever_goes_on(path: Path) -> None:
    book = ledger(path, report_only=True)
    book.first_call = FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1)
    book.leave_out(LEFT_OUT[0])
    book.add(ROW_OK)
    heir = ledger(path, met=False, report_only=True)
    heir.reopen(as_json.read(str(path)))
    report = closed(heir, path, LOST)
    assert (report.first_call, report.unmeasured) == (book.first_call, LEFT_OUT[:1])


def test_late_ranks_warn_and_are_on_the_host_that_they_are_on(path: Path) -> None:
    book = ledger(path, report_only=True)
    book.add(replace(ROW_OK, ranks=2, skew=Skew(8, 4000.0, 100.0, 9000.0, (10.0, 9000.0), (0, 5))))
    report = closed(book, path)
    (verdict,) = [v for v in report.checks if v.id == "run.straggler"]
    assert [f.subject for f in verdict.findings] == ["rank 1"]
    assert "on host h1" in verdict.findings[0].message
    assert (report.status.value, report.exit_code) == ("warn", 0)
