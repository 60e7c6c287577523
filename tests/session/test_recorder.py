"""From samples to a report and an exit code: every way in which a run can end, and output that cannot be written."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from ncclprobe.checks.run.rows import BAND
from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MACHINE, MEASURED, ask, diagnose
from ncclprobe.engine.doctor import look_s
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run import samples as facts
from ncclprobe.host.capture import dump
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.traffic import NicBytes, OperationTraffic
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import Output
from ncclprobe.session.measure import single_rank
from ncclprobe.session.watchdog.ending import Ending
from session.records import LOST, ROW_OK, bands, closed, of_run, recorder
from tests.each_row import each_row


def judged_again(log: Path) -> Report:
    question = ask(command_line.parse([]).judging, (), Job("gloo"), MEASURED)
    return diagnose(question, (), run_facts(RunLog.read(log)))


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


def test_what_is_chosen_later_and_who_sent_no_capture_is_recorded(tmp_path: Path) -> None:
    record = recorder(tmp_path / "r")
    assert record.facts()[facts.RunRequest].sizes == (1 << 20,)
    record.ask_for([8, 16])
    record.add_copies((), facts.ExpectedCopies())
    traffic = OperationTraffic("all_reduce", 64, (NicBytes("h0", "eth0", "ethernet", 5, 7, 1.0, expected=True),))
    record.add_traffic([traffic])
    assert (record.facts()[facts.RunRequest].sizes, type(record.facts()[facts.Copies])) == ((8, 16), Absent)
    assert record.facts()[facts.NicTraffic] == facts.NicTraffic((traffic,))
    found = record.take_captures([("h1", dump({}, "h1"))])
    assert [(each.node, bool(each.facts)) for each in found] == [("h1", True), ("h0", True)]
    record.take_captures([(host, dump({}, host)) for host in ("h0", "h1")])
    report = record.report(())
    assert [note for note in report.notes if "capture" in note] == ["not checked: h0 sent no capture"]
    assert report.exit_code == 3


@each_row(("why", "keep"), [("", True), ("torch is not installed", False), ("no GPU", True)])
def test_a_node_that_cannot_measure_is_looked_at_and_says_what_it_left_out(
    why: str, keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SimpleNamespace(start=list, snapshot=lambda: Snapshot("me", {}), capture=lambda: dump({}, "me"))
    waits: list[Any] = []
    monkeypatch.setattr(single_rank, "NodeSnapshot", lambda name, seconds: waits.append((name, seconds)) or node)
    monkeypatch.setattr(single_rank.socket, "gethostname", lambda: "me")
    output, what = Output({"json": str(tmp_path / "r")}, quiet=True), ("collectives", "pairs")
    asked = replace(command_line.parse([]), output=output, what=what, keep=tmp_path if keep else None)
    question = ask(asked.judging, (), Job("gloo"), MEASURED if why else MACHINE)
    assert single_rank.look(asked, question, "single", why, "gloo") == 3
    report = as_json.read(str(tmp_path / "r"))
    assert list(report.skipped_rows) == [SkippedRow(each, None, "unable", why) for each in what if why]
    assert (waits[0][0], 0 < waits[0][1] <= look_s(asked.timeout_s)) == ("me", True)
    assert (tmp_path / "me.jsonl").exists() is keep
    assert not why or (report.launch.kind, report.launch.world_size, report.launch.nnodes) == ("single", 1, 1)


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
    tmp_path: Path, error: Exception | None, lines: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "1")
    if error:  # as of a closed pipe, a full disk, a closed stream or a narrow encoding
        out: Any = io.StringIO()
        out.write = mock.Mock(side_effect=error)
        monkeypatch.setattr(sys, "stdout", out)
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
