"""From samples to a report and an exit code: every way in which a run can end, without processes."""

import json
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
from ncclprobe.model.measurement import FirstCall, Skew, SkippedRow
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.session.watchdog.ending import Ending
from session.records import LOST, ROW_OK, bands, closed, of_run, recorder, why


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def test_a_number_in_its_band_passes(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW_OK)
    assert closed(record, path).exit_code == 0


def test_a_number_below_its_band_fails(path: Path) -> None:
    record = recorder(path, bands(500.0))
    record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, report.measurements[0].status) == (4, "fail")


@pytest.mark.parametrize(
    ("options", "code"),
    [({}, 0), ({"require_judged": True}, 3), ({"expect": "bands.toml"}, 3), ({"baseline": "site.json"}, 3)],
)
def test_an_unjudged_number_is_enough_where_nothing_was_to_judge_it(
    path: Path, options: dict[str, Any], code: int
) -> None:
    record = recorder(path, **options)
    record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, report.measurements[0].status) == (code, "unjudged")
    assert of_run(report).get("run.bandwidth") == ("unknown" if code else None)


def test_numbers_without_a_verdict_are_said_to_have_none(path: Path) -> None:
    record = recorder(path)
    record.add(ROW_OK)
    (remark,) = closed(record, path).notes
    assert remark.startswith("1 row measured, none judged: there is nothing to compare them with")


def test_wrong_data_fails_whatever_the_speed(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(replace(ROW, wrong=2))
    assert closed(record, path).exit_code == 4


def test_data_that_nobody_verified_is_inconclusive(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW)
    assert closed(record, path).exit_code == 3


def test_another_backend_than_was_meant_spoils_good_numbers(path: Path) -> None:
    """Such as gloo measured because no GPU could be seen."""
    record = recorder(path, bands(1.0))
    record.take_part(replace(record.participants, fallback="measured gloo instead"))
    record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, of_run(report)["run.init"]) == (3, "unknown")
    assert why(report, "run.init") == "measured gloo instead"


@pytest.mark.parametrize(
    ("ending", "code"),
    [(Ending(why="ended by SIGINT"), 3), (LOST, 4), (Ending(attendance=Attendance(2, stalled="timing")), 4)],
)
def test_a_run_cut_short_keeps_its_rows(path: Path, ending: Ending, code: int) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW_OK)
    report = closed(record, path, ending)
    assert (report.exit_code, len(report.measurements)) == (code, 1)


def test_ranks_that_never_met_pass_nothing(path: Path) -> None:
    report = closed(recorder(path, met=False), path, Ending(arrivals=Arrivals(2, (1,), 60.0)))
    assert report.exit_code == 4
    assert of_run(report) == {"run.init": "fail", "run.data": "unknown", "run.bandwidth": "unknown"}


def test_a_signal_before_the_ranks_met_is_inconclusive(path: Path) -> None:
    report = closed(recorder(path, met=False), path, Ending(why="ended by SIGINT"))
    assert report.exit_code == 3
    assert set(of_run(report).values()) == {"unknown"}
    assert why(report, "run.init") == "the ranks had not met when the run ended: ended by SIGINT"


def test_every_row_is_in_the_log_as_it_comes_and_no_report_is_made_of_it(path: Path, tmp_path: Path) -> None:
    record = recorder(path, bands(1.0), keep=tmp_path)
    record.open()
    first = path.read_text()
    for count in (1, 2):
        record.add(ROW_OK)
        assert (tmp_path / FILE).read_text().count('{"sample": {"row":') == count
    assert path.read_text() == first
    assert (as_json.read(str(path)).exit_code, as_json.read(str(path)).measurements) == (3, ())


def test_the_log_holds_rows_without_a_verdict(path: Path, tmp_path: Path) -> None:
    record = recorder(path, bands(500.0), keep=tmp_path)
    record.add(replace(ROW_OK, expectation=BAND, status="fail", inconclusive_why="x"))
    record.add_retest(replace(ROW_OK, expectation=BAND, status="fail"))
    record.close()
    samples = [json.loads(line).get("sample", {}) for line in (tmp_path / FILE).read_text().splitlines()]
    rows = [value for sample in samples for name, value in sample.items() if name in ("row", "retest")]
    assert len(rows) == 2
    assert all({"status", "expectation", "inconclusive_why", "retest"}.isdisjoint(row) for row in rows)


def test_a_log_is_judged_again_as_it_was_judged(path: Path, tmp_path: Path) -> None:
    record = recorder(path, bands(500.0), keep=tmp_path)
    record.add(ROW_OK)
    record.add_retest(ROW_OK)
    report = closed(record, path)
    asked = command_line.parse([])
    again = diagnose(ask(asked.judging, (), Job("gloo"), MEASURED), (), run_facts(RunLog.read(tmp_path / FILE)))
    assert (again.measurements, again.checks) == (report.measurements, report.checks)
    assert (again.exit_code, again.measurements[0].status) == (4, "fail")


def test_the_record_is_closed_once_and_takes_no_more_rows(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW_OK)
    assert record.close(LOST) == 4
    record.add(ROW_OK)
    assert record.close() == 4
    assert len(as_json.read(str(path)).measurements) == 1


def test_a_file_that_covers_no_row_says_what_it_speaks_for(path: Path) -> None:
    record = recorder(path, bands(1.0), expect="bands.toml", sizes=(8,))
    record.add(replace(ROW_OK, nbytes=8))
    report = closed(record, path)
    assert (report.exit_code, of_run(report)["run.bandwidth"], of_run(report)["run.data"]) == (3, "unknown", "pass")
    said = "bands.toml has no expectation for the measured rows: it covers all_reduce 1 MiB"
    assert why(report, "run.bandwidth") == said


def test_a_row_that_the_file_does_not_cover_is_counted_and_spoils_nothing(path: Path) -> None:
    record = recorder(path, bands(1.0), expect="bands.toml", sizes=(8, 1 << 20))
    for row in (replace(ROW_OK, nbytes=8), ROW_OK):
        record.add(row)
    report = closed(record, path)
    assert report.exit_code == 0
    assert report.notes == ("1 of 2 rows judged by bands.toml",)


def test_a_file_that_covers_every_row_needs_no_remark(path: Path) -> None:
    record = recorder(path, bands(1.0), expect="bands.toml")
    record.add(ROW_OK)
    assert closed(record, path).notes == ()


def test_how_the_sizes_were_understood_is_in_the_report(path: Path) -> None:
    record = recorder(path, bands(1.0), notes=("sizes end at 512 KiB",))
    record.add(ROW_OK)
    assert closed(record, path).notes == ("sizes end at 512 KiB",)


def test_why_a_signal_may_cut_the_run_short_is_kept_before_it_is_understood(path: Path, tmp_path: Path) -> None:
    record = recorder(path, bands(1.0), keep=tmp_path)
    record.add(ROW_OK)
    record.keep(Ending(why="ended by SIGTERM"))
    left = run_facts(RunLog.read(tmp_path / FILE))
    assert left[facts.Ending] == facts.Ending("ended by SIGTERM")
    report = closed(record, path, LOST)
    assert (report.exit_code, of_run(report)["run.rank-lost"]) == (4, "fail")
    before = (tmp_path / FILE).read_text()
    record.keep(Ending(why="ended by SIGTERM"))
    assert (tmp_path / FILE).read_text() == before


def test_a_run_that_a_signal_cut_short_says_so_in_its_verdict(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW_OK)
    report = closed(record, path, Ending(why="ended by SIGTERM"))
    assert (report.exit_code, of_run(report)["run.rank-lost"]) == (3, "unknown")
    assert why(report, "run.rank-lost") == "ended by SIGTERM"


def test_a_log_that_is_killed_after_any_line_is_no_pass(path: Path, tmp_path: Path) -> None:
    record = recorder(path, bands(1.0), keep=tmp_path)
    record.add(ROW_OK)
    assert record.close() == 0
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    for number in range(1, len(lines)):
        (tmp_path / "cut.jsonl").write_text("".join(lines[:number]))
        found = run_facts(RunLog.read(tmp_path / "cut.jsonl"))
        report = diagnose(ask(command_line.parse([]).judging, (), Job("gloo"), MEASURED), (), found)
        assert report.exit_code == 3, lines[number - 1]


def test_ranks_of_our_own_leave_the_report_to_who_started_them(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCLPROBE_FOLDER", str(path.parent))
    record = recorder(path)
    record.add(ROW_OK)
    assert record.close() == 0
    assert {file.name for file in path.parent.iterdir()} == {FILE}
    assert RunLog.read(path.parent / FILE).end == ""
    assert capsys.readouterr().out == ""


def test_a_number_too_noisy_to_judge_is_inconclusive(path: Path) -> None:
    """100 GB/s at 20 us, and a band that only one end of the interval reaches."""
    record = recorder(path, bands(ROW.busbw_GBps))
    record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, report.measurements[0].status) == (3, "inconclusive")
    assert "too noisy to judge: all_reduce 1 MiB" in why(report, "run.bandwidth")


LEFT_OUT = (
    SkippedRow("reduce", None, "refused", "Unsupported data type"),
    SkippedRow("gather", None, "refused", "Unsupported data type"),
    SkippedRow("all_reduce", 1 << 40, "memory", "two buffers need 2 TiB per rank and a rank has only 8 GiB free"),
    SkippedRow("broadcast", 1 << 40, "memory", "two buffers need 2 TiB per rank and a rank has only 8 GiB free"),
    SkippedRow("all_gather", 8, "small", "8 B is too little for 2 ranks to share"),
)


def test_what_was_asked_for_and_not_measured_is_named_counted_and_no_pass(path: Path) -> None:
    record = recorder(path, bands(1.0), expect="bands.toml")
    record.add(ROW_OK)
    for each in LEFT_OUT:
        record.record(each)
    report = closed(record, path)
    assert report.exit_code == 3
    assert report.skipped_rows == LEFT_OUT
    assert why(report, "run.data").split("; ") == [
        "reduce was skipped: Unsupported data type",
        "gather was skipped: Unsupported data type",
        "2 operations were skipped",
        "1 TiB was left out: two buffers need 2 TiB per rank and a rank has only 8 GiB free",
    ]
    assert report.notes == ("all_gather was skipped: 8 B is too little for 2 ranks to share",)


def test_a_size_too_small_to_share_spoils_nothing(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(ROW_OK)
    record.record(LEFT_OUT[-1])
    assert closed(record, path).exit_code == 0


def test_a_precision_out_of_reach_is_said_once_with_what_was_reached_and_spoils_nothing(path: Path) -> None:
    record = recorder(path, bands(1.0))
    for precision in (0.01, 0.05, 0.031):
        record.add(replace(ROW_OK, precision=precision, precision_asked=0.02, batches=40))
    report = closed(record, path)
    assert report.exit_code == 0
    (remark,) = report.notes
    assert remark.startswith("2 of 3 rows did not reach the requested ±2 % in time; the worst is ")
    assert "all_reduce 1 MiB, ±5 % after 40 batches of 20" in remark


def test_a_fixed_number_of_calls_promises_no_precision(path: Path) -> None:
    record = recorder(path, bands(1.0))
    record.add(replace(ROW_OK, precision=0.9, precision_asked=None))
    assert closed(record, path).notes == ()


def test_what_the_first_calls_cost_is_in_the_report(path: Path) -> None:
    record, cost = recorder(path), FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1)
    record.record(cost)
    record.record(LEFT_OUT[0])
    record.add(ROW_OK)
    report = closed(record, path, LOST)
    assert (report.first_call, report.skipped_rows) == (cost, LEFT_OUT[:1])


def test_late_ranks_are_on_the_host_that_they_are_on_and_of_two_the_later_one_is_a_note(path: Path) -> None:
    record = recorder(path)
    record.add(replace(ROW_OK, ranks=2, skew=Skew(8, 4000.0, 100.0, 9000.0, (10.0, 9000.0), (0, 5))))
    report = closed(record, path)
    (verdict,) = [v for v in report.checks if v.id == "run.straggler"]
    assert [f.subject for f in verdict.findings] == ["rank 1"]
    assert "on host h1" in verdict.findings[0].message
    assert (report.status.value, report.exit_code) == ("pass", 0)
