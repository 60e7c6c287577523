"""A store that is given to a command: its checks by the past, the report on its way into it, and a store that fails."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleet.made import DOWN, day_of
from ncclprobe.checks.trend.history import flapping, rate
from ncclprobe.commands import main
from ncclprobe.engine import history
from ncclprobe.fleet import child, store
from ncclprobe.fleet.extract import told
from ncclprobe.model.errors import TimedOut, UsageError
from ncclprobe.model.findings import Severity, Status, Verdict
from ncclprobe.model.fleet import Added, History
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Snapshot
from tests.each_row import each_row

DOCTOR = ("doctor", "--backend", "gloo", "--local", "--no-config", "-q")
PATIENCE_S = 30.0


def kept(path: Path, *reports: Report) -> Path:
    with store.opened(path, PATIENCE_S, create=True) as fleet:
        for number, report in enumerate(reports):
            fleet.add(told(report, "test"), f"{path}{number}", Added(0.0, "me@here", "test", report.command))
    return path


def past(path: Path, report: Report) -> History:
    return child.past(msgspec.json.encode(report), path, PATIENCE_S)[report.nodes[0].name]


def rows(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = ("reports", "nodes", "tests", "series", "readings", "texts")
        return [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables]


def test_a_loss_is_told_with_since_when_and_what_changed_and_asking_adds_nothing(tmp_path: Path) -> None:
    changed = [day_of("n7", day, rate=391.0 if day < 20 else 340.0, driver="550" if day < 20 else "560")
               for day in range(26)]  # fmt: skip
    path = kept(tmp_path / "fleet.db", *changed[:-1])
    before = rows(path)
    (found,) = rate.run(past(path, changed[-1]))
    assert (found.severity, found.subject, found.blame) == (Severity.WARN, "all_reduce 1 GiB", "node")
    assert found.message.startswith("has been lower since 2026-03-21 04:00 UTC: 391 → 340 GB/s (-13 %, 6 tests)")
    assert "driver 550 → 560" in found.message
    assert rows(path) == before


def test_a_healthy_node_and_one_that_is_repaired_have_no_finding(tmp_path: Path) -> None:
    path = kept(tmp_path / "fleet.db", *(day_of("n7", day) for day in range(25)))
    assert list(rate.run(past(path, day_of("n7", 25)))) == []
    sick = [day_of("n7", 25 + day, rate=340.0) for day in range(8)]
    kept(tmp_path / "sick.db", *(day_of("n7", day) for day in range(25)), *sick)
    assert list(rate.run(past(tmp_path / "sick.db", day_of("n7", 33, rate=340.0))))
    repaired = [day_of("n7", 33 + day) for day in range(5)]
    kept(tmp_path / "well.db", *(day_of("n7", day) for day in range(25)), *sick, *repaired)
    assert list(rate.run(past(tmp_path / "well.db", day_of("n7", 38)))) == []


def test_a_fault_that_comes_back_is_told_and_one_that_stays_only_since_when(tmp_path: Path) -> None:
    came = {2, 9, 16}
    path = kept(tmp_path / "fleet.db", *(day_of("n7", day, *([DOWN] if day in came else [])) for day in range(20)))
    (found,) = flapping.run(past(path, day_of("n7", 20)))
    assert (found.severity, found.blame) == (Severity.WARN, "link")
    assert "appeared 3 times in 30 days" in found.message
    path = kept(tmp_path / "stays.db", *(day_of("n7", day, *([DOWN] if day > 5 else [])) for day in range(9)))
    (found,) = flapping.run(past(path, day_of("n7", 9, DOWN)))
    assert (found.severity, found.message) == (Severity.NOTE, "was first reported at 2026-03-07 04:00 UTC")


def test_what_a_trend_found_is_no_fault_that_the_store_keeps() -> None:
    report = day_of("n7", 1, DOWN)
    trend = Verdict("trend.rate", "n7", report.status, "slower", findings=(DOWN,))
    (node,) = told(msgspec.structs.replace(report, checks=(trend,)), "test")
    assert (node.faults, node.looked) == ((), ())


def test_a_run_that_a_signal_ended_is_not_kept() -> None:
    ended = Verdict("run.pairs", "n7", Status.UNKNOWN, "x", why="ended by SIGTERM in phase 'start'", required=True)
    report = msgspec.structs.replace(day_of("n7", 1), status=Status.UNKNOWN, checks=(ended,))
    with pytest.raises(UsageError, match="a signal ended its run"):
        told(report, "test")
    late = msgspec.structs.replace(ended, why="the time was over")
    assert told(msgspec.structs.replace(report, checks=(late,)), "test")


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
            kept(path, day_of("n7", 1))
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


def test_trends_may_be_chosen_or_left_out_where_a_store_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.db"
    assert main([*DOCTOR, "--select", "trend.*"]) == 2
    assert "trend.* needs a store of reports; pass --fleet PATH" in capsys.readouterr().err
    code = main([*DOCTOR, "--ignore", "trend.*", "--fleet", str(path), "--json", "-"])
    assert not [each for each in json.loads(capsys.readouterr().out)["checks"] if each["id"].startswith("trend.")]
    assert code == main([*DOCTOR])
    assert main([*DOCTOR, "--select", "trend.*", "--fleet", str(path)]) == 0


def test_captures_have_no_place_in_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n0.jsonl").write_text("{}")
    assert main(["doctor", str(tmp_path / "n0.jsonl"), "--fleet", str(tmp_path / "fleet.db")]) == 2
    assert "cannot be used together" in capsys.readouterr().err
    assert not (tmp_path / "fleet.db").exists()


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


def test_a_full_disk_is_said_and_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path / "fleet.db", day_of("n7", 1))
    before = rows(path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "full.py").write_text(
        "import resource, signal\nfrom ncclprobe.fleet import child\n"
        "def serve():\n    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n    child.serve()\n"
    )
    monkeypatch.setattr(child, "__name__", "full")
    said: list[str] = []
    history.keep(day_of("n8", 2), path, "", 30.0, said.append)
    assert len(said) == 1
    assert "was not added" in said[0]
    assert rows(path) == before


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
