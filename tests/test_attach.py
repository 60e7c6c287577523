"""`ncclprobe attach` as its users run it: on real jobs of torch with gloo, and on looks that were kept."""

import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hanging_job
import pytest

from ncclprobe.commands import attach, main
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.host import Question
from ncclprobe.logs.read import JobFiles
from ncclprobe.model.causes import JobVerdict, RankClass
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Snapshot
from tests import test_commands
from tests.each_row import each_row

pytest.importorskip("torch")
SLOW = pytest.mark.slow  # three ranks of torch each; looks at healthy jobs are recorded
ONE = (SLOW, pytest.mark.every_time)  # one that hangs runs every time
NAMES = {"another collective": "desync", "sigstop": "stuck outside", "gil held in C": "stuck outside"}
"""The class of the rank that hangs."""


def ncclprobe(*argv: str) -> "subprocess.CompletedProcess[str]":
    return test_commands.ncclprobe(*argv, "--no-config")


def looked(ranks: hanging_job.Job, *more: str) -> dict[str, Any]:
    done = ncclprobe("attach", "--pid", str(ranks[0].pid), "--json", "-", *more)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def blamed(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    bad = ("stuck outside", "stuck inside", "desync", "dead or gone")
    return [(each["name"], each["ranks"]) for each in report["classes"] if each["name"] in bad]


@pytest.mark.parametrize(
    "way", [pytest.param("another collective", marks=ONE), *(pytest.param(way, marks=SLOW) for way in [*NAMES][1:])]
)
def test_the_rank_that_hangs_is_named_and_again_from_what_was_kept(way: str, tmp_path: Path) -> None:
    with hanging_job.started(way) as ranks:
        time.sleep(5.0)
        found = looked(ranks, "--keep", str(tmp_path / "kept"))
    assert (found["standing"]["word"], blamed(found)) == ("STUCK", [(NAMES[way], [hanging_job.VICTIM])])
    again = ncclprobe("explain", str(tmp_path / "kept"), "--exit-code", "--json", str(tmp_path / "again.json"))
    assert again.returncode == 4, again.stderr
    told = json.loads((tmp_path / "again.json").read_text())
    assert (told["standing"], told["classes"]) == (found["standing"], found["classes"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["rank 1 waits 1 s for data", "fast"])
def test_a_healthy_job_is_not_called_stuck(way: str) -> None:
    with hanging_job.started(way) as ranks:
        found = looked(ranks)
    assert found["standing"]["word"] != "STUCK"
    assert blamed(found) == []


@pytest.mark.slow
def test_a_process_that_is_no_rank_is_refused_in_one_line() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        done = ncclprobe("attach", "--pid", str(process.pid), "--timeout", "20")
        process.kill()
    assert done.returncode == 2
    assert done.stderr.startswith("ncclprobe: no rank of a job was found on ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "options", "installed", "asked"),
    [
        (("STUCK", "STUCK"), (), True, [False, True]),
        (("CANNOT TELL", "WORKING"), (), True, [False, True]),
        (("WORKING",), (), True, [False]),
        (("SLOW", "SLOW"), (), True, [False, True]),
        (("STUCK",), (), False, [False]),
        (("STUCK",), ("--stacks",), True, [True]),
        (("STUCK",), ("--timeout", "10"), True, [False]),
        (("STUCK", ""), (), True, [False, True]),  # it has ended meanwhile
    ],
)
def test_the_stacks_of_a_job_that_does_not_go_on_are_read_if_py_spy_is_there(
    words: tuple[str, ...], options: tuple[str, ...], installed: bool, asked: list[bool],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    answers, looks = iter(words), []

    def look(_: object, __: float, stacks: bool) -> tuple[Snapshot, dict[Question, str], JobFiles]:
        looks.append(stacks)
        if not (word := next(answers)):
            raise UsageError("no rank of a job was found on n1")
        state = JobState((RankClass("working", (0,)),), JobVerdict(word, "as it is"))
        return Snapshot("n1", {}), {}, JobFiles({JobState: state}, ("1 rank",))

    monkeypatch.setattr(attach, "_look", look)
    monkeypatch.setattr("ncclprobe.host.py_spy.installed", lambda: "/bin/true" if installed else None)
    assert attach.main([*options, "--no-config", "-q"]) == 0
    assert looks == asked
    assert (words[-1] or words[0]) in capsys.readouterr().out


@each_row(
    ("words", "options", "look_s", "slept", "ended"),
    [
        ("WORKING SLOW WORKING STUCK", "--watch 10", 0, [10, 10, 10], "watched: 4 looks"),
        ("WORKING STUCK", "--watch 10 --keep kept", 0, [10], "kept: kept (ncclprobe explain kept)"),
        ("STUCK STUCK STUCK STUCK", "--watch 10 --timeout 30 -q", 0, [10, 10, 10], "watched: 4 looks"),
        ("STUCK STUCK STUCK", "--watch 10 --timeout 29", 0, [10, 10], "watched: 3 looks"),
        ("STUCK STUCK", "--watch 3000", 0, [3000], "watched: 2 looks"),
        ("WORKING STUCK", "--watch 10", 12, [1], "watched: 2 looks"),
        ("STUCK", "--watch 10 --timeout 20", 0, [10], "the watch ended: no rank of a job was found on n1"),
        ("", "--watch 10", 0, [], ""),
    ],
)
def test_a_watch_looks_until_the_answer_changes_the_job_ends_or_time_is_up(
    words: str, options: str, look_s: float, slept: list[float], ended: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    answers, now, sleeps = iter(words.split()), [0.0], list[float]()

    def look(_: object, end: float, stacks: bool) -> tuple[Snapshot, dict[Question, str], JobFiles]:
        now[0] += look_s
        if not (word := next(answers, "")):
            raise UsageError("no rank of a job was found on n1")
        state = JobState((RankClass("working", (0,)),), JobVerdict(word, "as it is"))
        return Snapshot("n1", {}), {}, JobFiles({JobState: state}, ("1 rank",))

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attach, "_look", look)
    monkeypatch.setattr(attach, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr("ncclprobe.host.py_spy.installed", lambda: None)
    code = main(["attach", *options.split(), "--no-config", "--json", "r.json"])
    said = capsys.readouterr().err.splitlines()
    assert (code, sleeps) == (0 if words else 2, slept)
    if words:
        report = json.loads(Path("r.json").read_text())
        assert [line.split()[-4] for line in said] == ([] if "-q" in options else words.split())
        assert report["standing"]["word"] == words.split()[-1]
        assert ended in report["notes"]


def test_what_prepares_a_job_is_printed_and_is_what_the_jobs_above_run() -> None:
    done = ncclprobe("attach", "--prepare")
    assert done.returncode == 0
    assert done.stdout == hanging_job.PREPARE
