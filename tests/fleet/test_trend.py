"""What a report tells of a node, the course of its numbers, and a store that is given to a command."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report.samples import HEALTHY, SICK

from fleet.made import DOWN, day_of, filled
from ncclprobe.checks.trend.history import rate
from ncclprobe.commands import main
from ncclprobe.engine import history
from ncclprobe.fleet import child, store
from ncclprobe.fleet.extract import told
from ncclprobe.fleet.shared import change
from ncclprobe.model.errors import TimedOut, UsageError
from ncclprobe.model.findings import Severity, Status, Verdict, fail
from ncclprobe.model.fleet import History
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row


def rates(made: Report) -> dict[tuple[str, str], float]:
    return {(each.node, number.called): reading.value for each in told(made, "r.json")
            for number, reading in each.numbers.items()}  # fmt: skip


def test_only_the_largest_size_of_an_operation_counts_and_no_doubtful_one() -> None:
    row = day_of("n1", 0).measurements[0]
    small = replace(row, nbytes=1 << 20, busbw_GBps=90.0)
    rows: list[tuple[list[Measurement], list[float]]] = [
        ([small, row], [391.0]),
        ([small, replace(row, status="inconclusive")], [90.0]),
        ([replace(row, wrong=3)], []),
        ([replace(row, nodes=2, ranks=16)], []),
        ([replace(row, busbw_GBps=0.0)], []),
    ]
    found = [list(rates(day_of("n1", 0, measurements=tuple(each))).values()) for each, _ in rows]
    assert found == [wanted for _, wanted in rows]
    ((number, _),) = told(day_of("n1", 0), "r.json")[0].numbers.items()
    assert "550.54.15" not in number.how  # a driver may be the cause of a change, and begins no new series


def test_what_has_no_node_or_no_time_or_explains_a_job_is_refused() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"nodes": ()}, "names no node"),
        ({"started": "yesterday"}, "is not a time"),
        ({"files": ("a.log",)}, "a report of `explain`"),
        ({"nodes": HEALTHY.nodes * 2}, "twice"),
    ]
    for more, why in changes:
        with pytest.raises(UsageError, match=why):
            told(replace(HEALTHY, **more), "r.json")


def test_no_text_of_a_report_forges_a_row_or_is_kept_whole() -> None:
    (copy, *_) = SICK.copies
    found = fail("mlx5_0\nn9  failing", "bad \x1b[2J" + "x" * 999, blame="node")
    copy = replace(copy, node="n1", device="GPU3\nn9  failing" * 99)
    made = day_of("n1", 0, found, driver="550\n560", copies=(copy,))
    (one,) = told(made, "r.json")
    texts = [*one.machine.values(), one.faults[0].subject, one.faults[0].message]
    texts += [text for number in one.numbers for text in (number.part, number.name, number.how)]
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)
    assert "GPU3\\nn9  failing" in "".join(texts)


def test_what_changed_is_what_changed_on_most_nodes() -> None:
    old, new = {"driver": "1", "kernel": "6"}, {"driver": "2", "kernel": "6"}
    assert change([(old, new), (old, new), (old, old)]) == ("driver changed 1 → 2",)
    assert change([(old, new), (old, old)]) == ()


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


def test_what_a_trend_found_is_no_fault_that_the_store_keeps_and_a_run_that_a_signal_ended_is_not_kept() -> None:
    report = day_of("n7", 1, DOWN)
    trend = Verdict("trend.rate", "n7", report.status, "slower", findings=(DOWN,))
    (node,) = told(replace(report, checks=(trend,)), "test")
    assert (node.faults, node.looked) == ((), ())
    ended = Verdict("run.pairs", "n7", Status.UNKNOWN, "x", why="ended by SIGTERM in phase 'start'", required=True)
    report = replace(day_of("n7", 1), status=Status.UNKNOWN, checks=(ended,))
    with pytest.raises(UsageError, match="a signal ended its run"):
        told(report, "test")
    assert told(replace(report, checks=(replace(ended, why="the time was over"),)), "test")


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
        (["doctor", str(tmp_path / "n0.jsonl"), "--fleet", path], "cannot be used together"),
    ):
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
