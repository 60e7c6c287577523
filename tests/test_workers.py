"""Many captures are judged by worker processes: what comes out is what one process says, and nothing is lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from fleets import captures as fleet

from ncclprobe.engine import captures, diagnose, doctor, workers
from ncclprobe.engine.collect import add_choices, replayed
from ncclprobe.engine.diagnose import Judging
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace

CAPTURES = Path(__file__).parent / "captures"
MODEL = CAPTURES / "hgx-h200.jsonl"
COLLECTORS = discover("ncclprobe.facts", Collector, diagnose.MACHINE)


def judged(paths: list[Path], one_job: bool = False, pictures: bool = False) -> Report:
    question = diagnose.ask(Judging(pictures=pictures), ("doctor",), Job())
    return captures.judge_captures(question, COLLECTORS, paths, one_job=one_job)


def told(report: Report) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(msgspec.json.encode(report))
    return {name: value for name, value in said.items() if name not in ("started", "duration_s")}


@pytest.mark.parametrize("one_job", [True, False])
def test_workers_say_what_one_process_says(monkeypatch: pytest.MonkeyPatch, one_job: bool) -> None:
    names = ("gb200-tray", "aws-p4d", "gcp-a3-mega", "hgx-h100-user", "rtx4090-2", "dgx-1v")
    paths = [CAPTURES / "sick" / "ib-down.jsonl", *(CAPTURES / f"{name}.jsonl" for name in names)]
    alone = told(judged(paths, one_job, pictures=True))
    monkeypatch.setattr(captures, "FEW", 0)
    assert workers.suits(paths, ()) or workers.cores() == 1
    shared = told(judged(paths, one_job, pictures=True))
    assert [name for name in alone if alone[name] != shared[name]] == []
    assert [each["name"] for each in shared["nodes"]] == [each["name"] for each in alone["nodes"]]
    assert len(shared["excerpts"]) > 0


@pytest.mark.parametrize("one_job", [True, False])
def test_a_worker_that_is_killed_costs_one_capture_which_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_job: bool
) -> None:
    paths = fleet.write(MODEL, 6, tmp_path)

    class Dying(LimitedChild):
        def ask(self, request: bytes, patience_s: float) -> bytes:
            if b"n3.jsonl" in request and self._process:
                os.killpg(self._process.pid, signal.SIGKILL)
            return super().ask(request, patience_s)

    monkeypatch.setattr(workers, "LimitedChild", Dying)
    monkeypatch.setattr(captures, "FEW", 0)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    report = judged(paths, one_job)
    assert [node.name for node in report.nodes] == ["n0", "n1", "n2", "n4", "n5"]
    assert report.missing_nodes == ("n3",)
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert any("n3.jsonl: not judged: " in note and "SIGKILL" in note for note in report.notes), report.notes
    assert {verdict.node for verdict in report.checks} - {None} == {"n0", "n1", "n2", "n4", "n5"}


def test_the_first_capture_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = fleet.write(MODEL, 6, tmp_path)
    monkeypatch.setattr(captures, "FEW", 0)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    for number in (4, 2):
        paths[number].write_text('{"capture": 1}\n{"what": 1}\n')
        with pytest.raises(UsageError, match=f"n{number}.jsonl:2: unknown row"):
            judged(paths)
    with pytest.raises(UsageError, match="a second capture of node n0"):
        judged([paths[0], paths[1], paths[0]])


def test_few_captures_and_pasted_texts_stay_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = fleet.write(MODEL, 2, tmp_path)
    checks = diagnose.every_check(diagnose.MACHINE)
    paste = tmp_path / "env.txt"
    paste.write_text("NCCL_DEBUG=INFO\n")
    assert not workers.suits([*paths, paste], checks)
    own = replace(checks[0], origin="of a site")
    monkeypatch.setattr(workers, "cores", lambda: 2)
    assert [workers.suits(paths, each) for each in (checks, (), (*checks, own))] == [True, True, False]
    monkeypatch.setattr(workers, "cores", lambda: 1)
    assert not workers.suits(paths, checks)
    monkeypatch.setattr(workers, "Workers", None)
    assert [node.name for node in judged(paths).nodes] == ["n0", "n1"]


def test_every_fact_that_workers_return_is_read_as_it_was_written() -> None:
    wanted = workers.wanted(diagnose.every_check(diagnose.MACHINE), doctor.SHOWN, False)
    names = {*wanted.shown, *wanted.compared}
    checks = diagnose.every_check(diagnose.MACHINE)
    seen, wrong = 0, []
    for path in sorted(CAPTURES.glob("*.jsonl")):
        (snapshot,) = add_choices(replayed([path], COLLECTORS), checks)
        for kind, fact in snapshot.facts.items():
            if kind.__name__ in names and not isinstance(fact, Absent):
                seen += 1
                if workers.decoded(kind.__name__, workers.encoded(fact)) != fact:
                    wrong.append(f"{path.name}: {kind.__name__}")
    assert wrong == []
    assert seen > 400


def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    fleet.write(MODEL, captures.FEW + 40, tmp_path)
    doctor_ = subprocess.Popen(
        [sys.executable, "-m", "ncclprobe", "doctor", str(tmp_path), "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    started: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not started and time.monotonic() < deadline and doctor_.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(doctor_.pid).children()
        time.sleep(0.05)
    doctor_.send_signal(signal.SIGINT)
    _, said = doctor_.communicate(timeout=30)
    if workers.cores() > 1:
        assert started
        assert doctor_.returncode == 128 + signal.SIGINT, said
        assert "nothing was judged" in said
    assert psutil.wait_procs(started, timeout=30)[1] == []
