"""What a report tells of a node, the course of its numbers, and a store that is given to a command."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleet.made import day_of, filled
from ncclprobe.checks.trend.history import rate
from ncclprobe.commands import main
from ncclprobe.engine import history
from ncclprobe.fleet import child, store
from ncclprobe.model.errors import TimedOut
from ncclprobe.model.findings import Severity
from ncclprobe.model.fleet import History
from ncclprobe.model.snapshot import Absent, Snapshot
from tests.each_row import each_row

DOCTOR = ("doctor", "--backend", "gloo", "--local", "--no-config", "-q")
PATIENCE_S = 30.0


def rows(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = ("reports", "nodes", "tests", "series", "readings", "texts")
        return [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables]


def test_a_loss_is_told_by_a_child_and_asking_adds_nothing(tmp_path: Path) -> None:
    """Kept values have what stores of each kind tell."""
    *reports, last = [day_of("n7", day, rate=391.0 if day < 20 else 340.0) for day in range(26)]
    path = tmp_path / "fleet.db"
    filled(path, *reports)
    before = rows(path)
    (found,) = rate.run(child.past(msgspec.json.encode(last), path, PATIENCE_S)["n7"])
    assert (found.severity, found.subject, found.blame) == (Severity.WARN, "all_reduce 1 GiB", "node")
    assert rows(path) == before


def test_each_node_of_a_report_has_its_own_past_and_a_store_that_fails_is_unknown(tmp_path: Path) -> None:
    report = day_of("n7", 1)
    (known,) = history.add_history([Snapshot("n7", {})], report, tmp_path / "fleet.db")
    assert known.facts[History].course.tests == 1
    (unknown,) = history.add_history([Snapshot("n7", {})], report, tmp_path / "no" / "fleet.db")
    assert isinstance(unknown.facts[History], Absent)


def test_a_command_judges_by_the_store_and_adds_its_report_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = tmp_path / "fleet.db", tmp_path / "report.json"
    for _ in range(2):
        assert main([*DOCTOR, "--fleet", str(path), "--json", str(written)]) == main([*DOCTOR])
    verdicts = {each["id"]: each for each in json.loads(written.read_text())["checks"]}
    assert verdicts["trend.flapping"]["status"] == "pass"
    assert verdicts["trend.rate"]["status"] == "skip"  # the doctor measures no rate
    capsys.readouterr()
    assert main(["fleet", "add", str(written), "--fleet", str(path)]) == 0
    assert "0 reports added" in capsys.readouterr().out
    assert rows(path)[0] == 2


@pytest.mark.parametrize("kind", ["no folder", "no store", "locked"])
def test_a_store_that_cannot_be_written_changes_no_verdict_and_is_said(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, code = tmp_path / ("no" if kind == "no folder" else "") / "fleet.db", main([*DOCTOR])
    monkeypatch.setattr(history, "_MOST_S", 2.0)
    monkeypatch.setattr(history, "_LOOK_S", 2.0)
    with contextlib.ExitStack() as held:
        if kind == "no store":
            path.write_text("my notes")
        if kind == "locked":
            filled(path, day_of("n7", 1))
            connection = held.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
            connection.execute("BEGIN EXCLUSIVE")
        capsys.readouterr()
        assert main([*DOCTOR, "--fleet", str(path)]) == code
    out, err = capsys.readouterr()
    assert "2 unknown" in out
    assert err.startswith("ncclprobe: --fleet: this report was not added: ")
    assert path.read_text() == "my notes" if kind == "no store" else True


def test_a_child_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stuck.py").write_text("import time\ndef serve():\n    time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "__name__", "stuck")
    with pytest.raises(TimedOut, match="took too long"):
        child.past(msgspec.json.encode(day_of("n7", 1)), tmp_path / "fleet.db", 1.0)


def test_trends_may_be_chosen_or_left_out_where_a_store_is_given_and_captures_have_no_place_in_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "fleet.db")
    (tmp_path / "n0.jsonl").write_text("{}")
    for argv, why in (
        ([*DOCTOR, "--select", "trend.*"], "trend.* needs a store of reports; pass --fleet PATH"),
        (["doctor", str(tmp_path / "n0.jsonl"), "--fleet", path], "cannot be used together")):  # fmt: skip
        assert main(argv) == 2
        assert why in capsys.readouterr().err
    assert not Path(path).exists()
    code = main([*DOCTOR, "--ignore", "trend.*", "--fleet", path, "--json", "-"])
    assert not [each for each in json.loads(capsys.readouterr().out)["checks"] if each["id"].startswith("trend.")]
    assert code == main([*DOCTOR])
    assert main([*DOCTOR, "--select", "trend.*", "--fleet", path]) == 0


@pytest.mark.slow
def test_commands_at_once_lose_no_report_and_one_that_is_killed_leaves_whole_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ncclprobe", *DOCTOR, "--fleet", str(tmp_path / "fleet.db")]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    killed.kill()
    killed.wait(10.0)
    for each in running:
        each.wait(60.0)
    with store.opened(tmp_path / "fleet.db", PATIENCE_S) as fleet:
        (node,) = fleet.standings()
    assert node.tests in (3, 4)
    assert rows(tmp_path / "fleet.db")[0] == node.tests


@each_row(("left_s", "waits_s"), [(-3.0, 2.0), (0.5, 2.0), (2.5, 2.5), (4.9, 4.9), (5.1, 5.0), (3600.0, 5.0)])
def test_a_store_that_does_not_answer_holds_the_end_of_a_job_up_for_seconds_whatever_time_it_has(
    left_s: float, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def add(_report: bytes, _path: Path, source: str, deadline_s: float) -> None:
        asked.append((source, deadline_s))
        raise TimedOut("the store is locked")

    monkeypatch.setattr(child, "add", add)
    said: list[str] = []
    for written in ("", "-", "/r.json"):
        history.keep(day_of("n1", 0), Path("fleet.db"), written, left_s, said.append)
    assert asked == [("--fleet", waits_s), ("--fleet", waits_s), ("/r.json", waits_s)]
    assert said == ["--fleet: this report was not added: the store is locked"] * 3
