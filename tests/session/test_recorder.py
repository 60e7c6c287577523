"""From samples to a report and an exit code: every way in which a run can end, and output that cannot be written."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, ask, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run import samples as facts
from ncclprobe.facts.run.samples import Arrivals, Attendance
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import FirstCall, Measurement, Skew, SkippedRow
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.session.watchdog.ending import Ending
from session.records import LOST, ROW_OK, bands, closed, of_run, recorder, why
from tests.each_row import each_row


def judged_again(log: Path) -> Report:
    question = ask(command_line.parse([]).judging, (), Job("gloo"), MEASURED)
    return diagnose(question, (), run_facts(RunLog.read(log)))


@each_row(
    ("low", "row", "ending", "code", "status"),
    [
        (1.0, ROW_OK, None, 0, "pass"),
        (500.0, ROW_OK, None, 4, "fail"),
        (ROW.busbw_GBps, ROW_OK, None, 3, "inconclusive"),  # a band that only one end of the interval reaches
        (1.0, replace(ROW, wrong=2), None, 4, "pass"),  # wrong data fails whatever the speed
        (1.0, ROW, None, 3, "pass"),  # nobody verified it
        (1.0, ROW_OK, Ending(why="ended by SIGINT"), 3, "pass"),
        (1.0, ROW_OK, LOST, 4, "pass"),
        (1.0, ROW_OK, Ending(attendance=Attendance(2, stalled="timing")), 4, "pass"),
        (1.0, replace(ROW_OK, precision=0.9, precision_asked=None), None, 0, "pass"),  # calls were fixed
    ],
)
def test_a_row_and_the_end_of_its_run_decide_and_a_run_cut_short_keeps_its_rows(
    tmp_path: Path, low: float, row: Measurement, ending: Ending | None, code: int, status: str
) -> None:
    record = recorder(tmp_path / "r", bands(low))
    record.add(row)
    report = closed(record, tmp_path / "r", ending)
    assert (report.exit_code, [m.status for m in report.measurements], report.notes) == (code, [status], ())
    assert ("too noisy to judge: all_reduce 1 MiB" in why(report, "run.bandwidth")) is (status == "inconclusive")
    if ending and ending.why:
        assert (of_run(report)["run.rank-lost"], why(report, "run.rank-lost")) == ("unknown", ending.why)


@each_row(
    ("options", "code"),
    [({}, 0), ({"require_judged": True}, 3), ({"expect": "bands.toml"}, 3), ({"baseline": "site.json"}, 3)],
)
def test_an_unjudged_number_is_enough_where_nothing_was_to_judge_it_and_that_is_said(
    tmp_path: Path, options: dict[str, Any], code: int
) -> None:
    record = recorder(tmp_path / "r", **options)
    record.add(ROW_OK)
    report = closed(record, tmp_path / "r")
    assert (report.exit_code, report.measurements[0].status) == (code, "unjudged")
    assert of_run(report).get("run.bandwidth") == ("unknown" if code else None)
    none = "1 row measured, none judged: there is nothing to compare them with"
    assert (len(options) and code == 3) or report.notes[0].startswith(none)


def test_another_backend_than_was_meant_spoils_good_numbers(tmp_path: Path) -> None:
    """Such as gloo measured because no GPU could be seen."""
    record = recorder(tmp_path / "r", bands(1.0))
    record.take_part(replace(record.participants, fallback="measured gloo instead"))
    record.add(ROW_OK)
    report = closed(record, tmp_path / "r")
    assert (report.exit_code, of_run(report)["run.init"]) == (3, "unknown")
    assert why(report, "run.init") == "measured gloo instead"


@each_row(
    ("ending", "code", "init", "says"),
    [
        (Ending(arrivals=Arrivals(2, (1,), 60.0)), 4, "fail", ""),
        (Ending(why="ended by SIGINT"), 3, "unknown", "the ranks had not met when the run ended: ended by SIGINT"),
    ],
)
def test_ranks_that_never_met_pass_nothing(tmp_path: Path, ending: Ending, code: int, init: str, says: str) -> None:
    report = closed(recorder(tmp_path / "r", met=False), tmp_path / "r", ending)
    own = of_run(report)
    assert (report.exit_code, own.pop("run.init"), set(own.values())) == (code, init, {"unknown"})
    assert own.keys() >= {"run.data", "run.bandwidth"}
    assert why(report, "run.init") == says


# The log.


def test_every_row_is_in_the_log_as_it_comes_without_a_verdict_and_no_report_is_made_of_it(tmp_path: Path) -> None:
    path, log = tmp_path / "r", tmp_path / FILE
    record = recorder(path, bands(500.0), keep=tmp_path)
    record.open()
    first = path.read_text()
    for count in (1, 2):
        record.add(replace(ROW_OK, expectation=BAND, status="fail", inconclusive_why="x"))
        assert log.read_text().count('{"sample": {"row":') == count
    assert path.read_text() == first
    assert (as_json.read(str(path)).exit_code, as_json.read(str(path)).measurements) == (3, ())
    record.add_retest(replace(ROW_OK, expectation=BAND, status="fail"))
    report = closed(record, path)
    samples = [json.loads(line).get("sample", {}) for line in log.read_text().splitlines()]
    rows = [value for sample in samples for name, value in sample.items() if name in ("row", "retest")]
    assert len(rows) == 3
    assert all({"status", "expectation", "inconclusive_why", "retest"}.isdisjoint(row) for row in rows)
    again = judged_again(log)
    assert (again.measurements, again.checks) == (report.measurements, report.checks)
    assert (again.exit_code, again.measurements[0].status) == (4, "fail")


def test_the_record_is_closed_once_and_takes_no_more_rows(tmp_path: Path) -> None:
    record = recorder(tmp_path / "r", bands(1.0))
    record.add(ROW_OK)
    assert record.close(LOST) == 4
    record.add(ROW_OK)
    assert record.close() == 4
    assert len(as_json.read(str(tmp_path / "r")).measurements) == 1


def test_why_a_signal_may_cut_the_run_short_is_kept_before_it_is_understood(tmp_path: Path) -> None:
    record, log = recorder(tmp_path / "r", bands(1.0), keep=tmp_path), tmp_path / FILE
    record.add(ROW_OK)
    record.keep(Ending(why="ended by SIGTERM"))
    assert run_facts(RunLog.read(log))[facts.Ending] == facts.Ending("ended by SIGTERM")
    report = closed(record, tmp_path / "r", LOST)
    assert (report.exit_code, of_run(report)["run.rank-lost"]) == (4, "fail")
    before = log.read_text()
    record.keep(Ending(why="ended by SIGTERM"))
    assert log.read_text() == before


def test_a_log_that_is_killed_after_any_line_is_no_pass(tmp_path: Path) -> None:
    record = recorder(tmp_path / "r", bands(1.0), keep=tmp_path)
    record.add(ROW_OK)
    assert record.close() == 0
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    assert len(lines) > 3
    for number in range(1, len(lines)):
        (tmp_path / "cut.jsonl").write_text("".join(lines[:number]))
        assert judged_again(tmp_path / "cut.jsonl").exit_code == 3, lines[number - 1]


def test_ranks_of_our_own_leave_the_report_to_who_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCLPROBE_FOLDER", str(tmp_path))
    record = recorder(tmp_path / "r")
    record.add(ROW_OK)
    assert record.close() == 0
    assert {file.name for file in tmp_path.iterdir()} == {FILE}
    assert (RunLog.read(tmp_path / FILE).end, capsys.readouterr().out) == ("", "")


# What is said beside the verdict.

NO_ROOM = "two buffers need 2 TiB per rank and a rank has only 8 GiB free"
LEFT_OUT = (
    SkippedRow("reduce", None, "refused", "Unsupported data type"),
    SkippedRow("gather", None, "refused", "Unsupported data type"),
    SkippedRow("all_reduce", 1 << 40, "memory", NO_ROOM),
    SkippedRow("broadcast", 1 << 40, "memory", NO_ROOM),
    SkippedRow("all_gather", 8, "small", "8 B is too little for 2 ranks to share"),
)
TOO_SMALL = "all_gather was skipped: 8 B is too little for 2 ranks to share"
NOT_REACHED = "2 of 3 rows did not reach the requested ±2 % in time; the worst is all_reduce 1 MiB, ±5 % after 40"


def imprecise(precision: float) -> Measurement:
    return replace(ROW_OK, precision=precision, precision_asked=0.02, batches=40)


@each_row(
    ("options", "rows", "left_out", "code", "data", "notes"),
    [
        (
            {"expect": "b", "sizes": (8, 1 << 20)},
            [replace(ROW_OK, nbytes=8), ROW_OK],
            (),
            0,
            "",
            ["1 of 2 rows judged by b"],
        ),
        ({"expect": "b"}, [ROW_OK], (), 0, "", []),
        ({"notes": ("sizes end at 512 KiB",)}, [ROW_OK], (), 0, "", ["sizes end at 512 KiB"]),
        ({}, [ROW_OK], LEFT_OUT[-1:], 0, "", [TOO_SMALL]),
        (
            {"expect": "b"},
            [ROW_OK],
            LEFT_OUT,
            3,
            "reduce was skipped: Unsupported data type; gather was skipped: Unsupported data type; "
            f"2 operations were skipped; 1 TiB was left out: {NO_ROOM}",
            [TOO_SMALL],
        ),
        ({}, [imprecise(each) for each in (0.01, 0.05, 0.031)], (), 0, "", [NOT_REACHED]),
    ],
)
def test_what_was_not_measured_judged_or_precise_is_counted_in_a_note_or_in_the_verdict(
    tmp_path: Path,
    options: dict[str, Any],
    rows: list[Measurement],
    left_out: tuple[SkippedRow, ...],
    code: int,
    data: str,
    notes: list[str],
) -> None:
    record = recorder(tmp_path / "r", bands(1.0), **options)
    for each in rows:
        record.add(each)
    for skipped in left_out:
        record.record(skipped)
    report = closed(record, tmp_path / "r")
    assert (report.exit_code, report.skipped_rows, why(report, "run.data")) == (code, left_out, data)
    assert [note.partition(" batches of 20: raise")[0] for note in report.notes] == notes


def test_a_file_that_covers_no_row_says_what_it_speaks_for(tmp_path: Path) -> None:
    record = recorder(tmp_path / "r", bands(1.0), expect="bands.toml", sizes=(8,))
    record.add(replace(ROW_OK, nbytes=8))
    report = closed(record, tmp_path / "r")
    assert (report.exit_code, of_run(report)["run.bandwidth"], of_run(report)["run.data"]) == (3, "unknown", "pass")
    said = "bands.toml has no expectation for the measured rows: it covers all_reduce 1 MiB"
    assert why(report, "run.bandwidth") == said


def test_what_the_first_calls_cost_and_which_of_two_ranks_was_later_is_in_the_report(tmp_path: Path) -> None:
    record, cost = recorder(tmp_path / "r"), FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1)
    record.record(cost)
    record.add(replace(ROW_OK, ranks=2, skew=Skew(8, 4000.0, 100.0, 9000.0, (10.0, 9000.0), (0, 5))))
    report = closed(record, tmp_path / "r")
    (finding,) = [f for v in report.checks if v.id == "run.straggler" for f in v.findings]
    assert (finding.subject, "on host h1" in finding.message) == ("rank 1", True)
    assert (report.first_call, report.status.value, report.exit_code) == (cost, "pass", 0)


# Output that cannot be written.


def test_a_report_that_cannot_be_written_is_wrong_usage_before_anything_is_measured_and_no_verdict_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    record = recorder(tmp_path / "file" / "report.json", bands(1.0))
    with pytest.raises(UsageError, match="cannot be written"):
        record.open()
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


@each_row(
    ("error", "lines"),
    [
        (BrokenPipeError(32, "Broken pipe"), 0),
        (OSError(28, "No space left on device"), 1),
        (ValueError("I/O operation on closed file"), 1),
        (UnicodeEncodeError("ascii", "·", 0, 1, "ordinal not in range"), 1),
        (None, 0),  # a window too narrow for any text
    ],
)
def test_an_output_that_cannot_be_written_costs_neither_rows_nor_the_verdict(
    tmp_path: Path,
    error: Exception | None,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    if error:
        monkeypatch.setattr(sys, "stdout", Unwritable(error))
    record = recorder(tmp_path / "r", quiet=False)
    for _ in range(2):
        record.add(ROW_OK)
    report = closed(record, tmp_path / "r")
    assert (report.exit_code, len(report.measurements)) == (0, 2)
    assert capsys.readouterr().err.count("\n") == lines
    if isinstance(error, BrokenPipeError):
        piped = recorder("-")
        piped.add(ROW_OK)
        assert piped.close() == 2, "JSON that nobody can read is no result"
