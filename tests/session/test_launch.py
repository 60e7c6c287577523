"""What becomes of a run whose ranks were started here, from what they left: every way to end, without processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, Question, ask, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run.samples import LostRank, Participants
from ncclprobe.host.capture import dump
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report.delivery import Output
from ncclprobe.report.progress import Waiting
from ncclprobe.session.measure.recorder import Recorder, asked
from ncclprobe.session.ranks import launch, rank_files
from ncclprobe.session.ranks.launch import RanksEnd, complete_log, held_port, publish_outputs, resumed
from ncclprobe.session.ranks.rank_files import RankFile, explain_exit
from ncclprobe.session.watchdog.ending import Ending
from ncclprobe.signals import Interrupted
from session.records import bands
from tests.each_row import each_row

LATE = RanksEnd(late=True)


class Run:
    """Two ranks that measured one row; `settle` is what their caller makes of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "ranks"
        self.folder.mkdir()
        self.rank_files = [RankFile(str(self.folder), rank, f"h{rank}") for rank in range(2)]
        for own in self.rank_files:
            own.set_phase("all_reduce 1 MiB in place batch 2 of 5")
        self.options = replace(command_line.parse(["-q", "-b", "1M", "-e", "1M"]), transport=False)
        self.environment = monkeypatch
        with monkeypatch.context() as patch:
            patch.setenv(rank_files.FOLDER, str(self.folder))
            self.zero = Recorder(self.options, self.question(), Participants("self", 2, ("h0", "h1")))
            self.zero.meet()
            self.zero.add(replace(ROW, ranks=2, wrong=0))

    def question(self) -> Question:
        return ask(self.options.judging, ("bandwidth",), Job("gloo"), MEASURED)

    def closes(self) -> None:
        with self.environment.context() as patch:
            patch.setenv(rank_files.FOLDER, str(self.folder))
            self.zero.close()

    def settle(self, end: RanksEnd) -> Report:
        log = resumed(self.folder / FILE, asked(self.options, "gloo"), 2, "h0")
        complete_log(log, self.folder, 2, "h0", end)
        if (self.folder / FILE).exists():  # what is left is what the report is made of
            assert run_facts(RunLog.read(self.folder / FILE)) == run_facts(log)
        return diagnose(self.question(), (), run_facts(log))

    def publish(self, end: RanksEnd, **changes: Any) -> int:
        options, waiting = replace(self.options, **changes), Waiting("", wanted=False)
        return publish_outputs(options, self.question(), 2, end, self.folder, self.folder / FILE, waiting)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def findings(report: Report) -> list[tuple[str, str]]:
    return [(f.subject, f.message) for v in report.checks if v.id == "run.rank-lost" for f in v.findings]


SILENT = "rank 0 on h0 has fallen silent"
TERM = Ending(why="ended by SIGTERM in phase 'import torch'")


def left(run: Run) -> None:
    run.rank_files[1].leave(SILENT, 4)


def signalled_before_they_met(run: Run) -> None:
    run.zero.close(TERM)
    run.rank_files[1].signalled("SIGTERM")


def heart_stopped(run: Run) -> None:
    run.zero.record(LostRank(1, "h1", "pairs, round 1: forth", "its heartbeat stopped 5 s ago"))
    run.zero.close()


def no_log(run: Run) -> None:
    (run.folder / FILE).unlink()


def half_a_line(run: Run) -> None:
    with (run.folder / FILE).open("a") as file:
        file.write('{"sample": {"row": {"op": "all_re')


@pytest.mark.slow
def test_processes_that_work_in_the_folder_are_killed_and_no_others(tmp_path: Path) -> None:
    named = [{**os.environ, rank_files.FOLDER: str(tmp_path / name)} for name in ("ours", "ours-too")]
    ours, others = (subprocess.Popen(["sleep", "100"], env=each, start_new_session=True) for each in named)
    rank_files.end_processes_of(str(tmp_path / "ours"))
    assert ours.wait(60) == -signal.SIGKILL
    assert others.poll() is None
    others.kill()
    others.wait(60)


def test_what_no_capture_tells_of_a_whole_runs_node_is_unknown_and_not_left_out(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    run.closes()
    run.publish(RanksEnd(), output=Output({"json": str(path)}, quiet=True))
    report = json.loads(path.read_text())
    limits = {(check["status"], check["why"]) for check in report["checks"] if check["id"] == "host.limits"}
    skipped = {(status, why) for status, why in limits if status == "skip" and why.startswith("applies only to ")}
    assert limits - skipped == {("unknown", "no capture of this node arrived")}


@pytest.mark.parametrize(("codes", "code"), [({0: 2}, 2), ({0: 2, 1: -15}, 2), ({0: 2, 1: 1}, 1)])
def test_wrong_usage_and_our_own_bugs_are_no_verdict_and_have_been_said(
    run: Run, codes: dict[int, int], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    run.zero.keep(Ending(why="64 GiB: two buffers need 128 GiB and rank 1 has only 8 GiB free"))
    published = run.publish(RanksEnd(codes), output=Output({"json": str(path)}, quiet=True))
    assert (published, capsys.readouterr()) == (code, ("", ""))
    report = json.loads(path.read_text())
    assert (report["exit_code"], len(report["measurements"])) == (3, 1)  # what was measured is kept
    assert "rank 1 has only 8 GiB free" in path.read_text()


@each_row(
    ("signalled", "low", "fails", "code"),
    [("", None, False, 3), ("SIGINT", None, False, None), ("SIGINT", None, False, 3), ("SIGTERM", 500.0, False, 4),
     ("", 1.0, True, 2)],
)  # fmt: skip
def test_a_signal_before_anything_was_measured_is_no_report_and_captures_are_kept(
    signalled: str, low: float | None, fails: bool, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, kept = Run(tmp_path, monkeypatch), tmp_path / "kept"
    own.zero.expect(bands(low) if low else ())
    if code is None:
        no_log(own)
    (own.folder / "h0.jsonl").write_text(dump({}, "h0"))
    kept.mkdir()
    with pytest.raises(Interrupted) if code is None else contextlib.nullcontext():
        assert own.publish(RanksEnd({}, signalled), keep=kept / "absent" if fails else kept) == code
    assert [each.name for each in kept.iterdir()] == ["h0.jsonl"] * (not fails)


@pytest.mark.parametrize("uv", [True, False])
def test_the_port_of_ranks_that_are_started_here_is_kept_for_their_store(uv: bool) -> None:
    with held_port() as port:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET or socket.has_dualstack_ipv6():
                with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                    other.bind((address, port))
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=uv)
        store.set("key", "value")
        assert store.get("key") == b"value"


@each_row(("reported", "told"), [(2, signal.SIGTERM), (3, signal.SIGINT)])
def test_a_signal_between_two_starts_ends_all_ranks_before_their_folder_is_removed(
    monkeypatch: pytest.MonkeyPatch, reported: int, told: signal.Signals
) -> None:
    """By SIGINT, if all of them have said that they handle it."""
    options = command_line.parse(["-q", "--backend", "gloo", "-b", "1M", "-e", "1M"])
    started: list[subprocess.Popen[bytes]] = []

    def start(*entry: str, variables: dict[str, str], **how: None) -> "subprocess.Popen[bytes]":
        if len(started) < reported:
            RankFile(variables[rank_files.FOLDER], len(started), "h0").set_phase("timing")
        started.append(subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True))
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(launch, "start_own", start)
    with pytest.raises(Interrupted):
        launch.launch(3, options, ask(options.judging, ("bandwidth",), Job("gloo"), MEASURED))
    assert [each.poll() for each in started] == [-told] * 3


@each_row("local_rank", ["0", "1", ""])
def test_every_rank_tells_torchrun_and_one_of_each_node_the_reader(
    local_rank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = (
        tmp_path / "error.json",
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "8"} | ({"LOCAL_RANK": local_rank} if local_rank else {}),
    )
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(path)})
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "none: that is the verdict UNKNOWN (inconclusive) above, not a crash"
    assert told["extraInfo"]["py_callstack"] == told["message"]
    line = 'ncclprobe: torchrun will now print "exitcode  : 3": that is the verdict UNKNOWN (inconclusive) above, '
    assert capsys.readouterr().err == f"{line}not a crash\n" * (local_rank != "1")
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})
