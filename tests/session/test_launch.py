"""What becomes of a run whose ranks were started here, from what they left: every way to end, without processes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, Question, ask, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run.samples import LostRank, Participants
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.session.measure.recorder import Recorder, asked
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.launch import AgentEnd, _complete_log
from ncclprobe.session.ranks.rank_files import RankFile
from ncclprobe.session.watchdog.ending import Ending

ENDED = AgentEnd(4)


class Run:
    """Two ranks that measured one row; `settle` is what their caller makes of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "ranks"
        self.folder.mkdir()
        (self.folder / rank_files.IMPORTED).touch()
        self.rank_files = [RankFile(str(self.folder), rank, f"h{rank}") for rank in range(2)]
        for own in self.rank_files:
            own.set_phase("all_reduce 1 MiB in place batch 2 of 5")
        self.options = replace(command_line.parse(["-b", "1M", "-e", "1M"]), quiet=True, transport=False)
        self.environment = monkeypatch
        with monkeypatch.context() as patch:
            patch.setenv(rank_files.FOLDER, str(self.folder))
            self.zero = Recorder(self.options, self.question(), Participants("self", 2, ("h0", "h1")))
            self.zero.meet()
            self.zero.add(replace(ROW, ranks=2, wrong=0))

    def question(self) -> Question:
        return ask(self.options, ("bandwidth",), Job("gloo"), MEASURED)

    def closes(self) -> None:
        with self.environment.context() as patch:
            patch.setenv(rank_files.FOLDER, str(self.folder))
            self.zero.close()

    def settles(self, end: AgentEnd = ENDED) -> RunLog | int:
        return _complete_log(self.folder / FILE, self.folder, 2, "h0", end, asked(self.options, "gloo"))

    def settle(self, end: AgentEnd = ENDED) -> Report:
        log = self.settles(end)
        assert isinstance(log, RunLog)
        again = RunLog.read(self.folder / FILE)
        assert run_facts(again) == run_facts(log)  # what is left is what the report is made of
        return diagnose(self.question(), (), run_facts(log))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def findings(report: Report) -> list[tuple[str, str]]:
    return [(f.subject, f.message) for v in report.checks if v.id == "run.rank-lost" for f in v.findings]


def why(report: Report, name: str) -> str:
    return next(v.why for v in report.checks if v.id == name)


def test_a_rank_zero_that_was_killed_is_named_in_a_whole_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rank_files.write_exit_codes(run.folder, {0: -9, 1: 4})
    run.rank_files[1].leave("rank 0 on h0 has fallen silent", 4)
    report = run.settle()
    ((subject, message),) = findings(report)
    assert (report.exit_code, subject, len(report.measurements)) == (4, "rank 0", 1)
    assert "ended by SIGKILL" in message
    assert "all_reduce 1 MiB in place batch 2 of 5" in message
    said = capsys.readouterr().err
    assert said.startswith("ncclprobe: rank 0 on h0 was lost in phase 'all_reduce 1 MiB in place batch 2 of 5'")
    assert said.count("\n") == 1


def test_a_rank_zero_that_stands_still_is_named_by_the_words_of_another(run: Run) -> None:
    rank_files.write_exit_codes(run.folder, {1: 4})
    run.rank_files[1].leave("rank 0 on h0 has fallen silent in phase 'x'", 4)
    report = run.settle(AgentEnd(None))
    ((subject, message),) = findings(report)
    assert (report.exit_code, subject) == (4, "rank 0")
    assert "has fallen silent in phase" in message


def test_a_rank_zero_is_not_lost_because_the_time_of_another_ran_out(run: Run) -> None:
    """Rank 0 may still import torch on a busy machine, and cannot answer meanwhile."""
    (run.folder / FILE).unlink()
    run.rank_files[0].set_phase(rank_files.IMPORTING)
    run.rank_files[1].leave("--timeout ran out while this rank was in phase 'reach the store at h0:1'", 3)
    log = run.settles(AgentEnd(None))
    assert isinstance(log, RunLog)
    report = diagnose(run.question(), (), run_facts(log))
    assert (report.exit_code, findings(report)) == (3, [])
    assert "--timeout ran out while rank 0 was in phase 'import torch'" in why(report, "run.init")


def test_a_rank_that_crashes_after_the_report_spoils_it(run: Run) -> None:
    run.closes()
    rank_files.write_exit_codes(run.folder, {1: -11})
    report = run.settle()
    assert (report.exit_code, len(report.measurements)) == (4, 1)
    assert [subject for subject, _ in findings(report)] == ["rank 1"]


def test_of_a_rank_whose_heart_rank_0_saw_stop_the_agent_tells_the_signal_once(run: Run) -> None:
    run.zero.lose([LostRank(1, "h1", "pairs, round 1: forth", "its heartbeat stopped 5 s ago")])
    run.closes()
    rank_files.write_exit_codes(run.folder, {1: -11, 0: 4})
    ((subject, message),) = findings(run.settle())
    assert subject == "rank 1"
    assert "ended by SIGSEGV" in message


def test_a_rank_that_the_agent_killed_in_the_end_is_no_second_loss(run: Run) -> None:
    run.zero.lose([LostRank(1, "h1", "pairs, round 1: forth", "its heartbeat stopped 5 s ago")])
    run.closes()
    rank_files.write_exit_codes(run.folder, {1: -6, 0: -9})
    assert [subject for subject, _ in findings(run.settle())] == ["rank 1"]


@pytest.mark.parametrize("end", [AgentEnd(0), AgentEnd(3, "SIGTERM"), AgentEnd(None), AgentEnd(-9)])
def test_a_report_that_was_whole_counts_whatever_came_late(run: Run, end: AgentEnd) -> None:
    run.closes()
    rank_files.write_exit_codes(run.folder, {1: -15})
    report = run.settle(end)
    assert (report.exit_code, findings(report)) == (0, [])


@pytest.mark.parametrize("code", [-15, 143, 3])
def test_a_rank_that_a_signal_ended_first_before_the_ranks_met_is_named(run: Run, code: int) -> None:
    """The agent then sends SIGTERM to the others, which say so."""
    run.zero.close(Ending(why="ended by SIGTERM in phase 'import torch'"))
    run.rank_files[1].signalled("SIGTERM")
    rank_files.write_exit_codes(run.folder, {1: code, 0: 3})
    report = run.settle()
    ((subject, message),) = findings(report)
    assert (report.exit_code, subject) == (4, "rank 1")
    assert message.startswith("it was ended by SIGTERM")


@pytest.mark.parametrize("end", [AgentEnd(4, "SIGTERM"), AgentEnd(3), AgentEnd(-9)])
def test_ranks_that_a_signal_to_all_ended_are_not_named(run: Run, end: AgentEnd) -> None:
    run.zero.close(Ending(why="ended by SIGTERM in phase 'import torch'"))
    run.rank_files[1].signalled("SIGTERM")
    rank_files.write_exit_codes(run.folder, {1: 143, 0: 3})
    report = run.settle(end)
    assert (report.exit_code, findings(report)) == (3, [])


def test_a_torch_agent_that_was_killed_is_said_beside_the_signal_that_its_ranks_got(run: Run) -> None:
    run.zero.close(Ending(why="ended by SIGTERM in phase 'x'"))
    assert any("torch's agent was ended by SIGKILL" in note for note in run.settle(AgentEnd(-9)).notes)


def test_processes_that_work_in_the_folder_are_killed_and_no_others(tmp_path: Path) -> None:
    ours, others = (
        subprocess.Popen(
            ["sleep", "100"], env={**os.environ, rank_files.FOLDER: str(tmp_path / name)}, start_new_session=True
        )
        for name in ("ours", "ours-too")
    )
    rank_files.end_processes_of(str(tmp_path / "ours"))
    assert ours.wait(60) == -signal.SIGKILL
    assert others.poll() is None
    others.kill()
    others.wait(60)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (AgentEnd(3, "SIGINT"), "ended by SIGINT while rank 0 was in phase 'all_reduce 1 MiB"),
        (AgentEnd(None), "--timeout ran out while rank 0 was in phase"),
        (AgentEnd(-9), "torch's agent was ended by SIGKILL"),
    ],
)
def test_a_run_that_was_cut_short_blames_nobody(run: Run, end: AgentEnd, words: str) -> None:
    report = run.settle(end)
    assert (report.exit_code, findings(report)) == (3, [])
    assert why(report, "run.rank-lost").startswith(words)


def test_a_deadline_before_any_rank_was_started_says_what_took_so_long(run: Run) -> None:
    (run.folder / rank_files.IMPORTED).unlink()
    (run.folder / FILE).unlink()
    log = run.settles(AgentEnd(None))
    assert isinstance(log, RunLog)
    report = diagnose(run.question(), (), run_facts(log))
    assert report.exit_code == 3
    assert "--timeout ran out in import torch, before any rank was started" in why(report, "run.init")


def test_a_rank_that_is_killed_before_rank_zero_writes_is_named(run: Run) -> None:
    (run.folder / FILE).unlink()
    rank_files.write_exit_codes(run.folder, {1: -9})
    log = run.settles()
    assert isinstance(log, RunLog)
    report = diagnose(run.question(), (), run_facts(log))
    assert (report.exit_code, [subject for subject, _ in findings(report)]) == (4, ["rank 1"])


def test_a_half_last_line_is_left_out_and_what_is_appended_can_be_read(run: Run) -> None:
    with (run.folder / FILE).open("a") as file:
        file.write('{"sample": {"row": {"op": "all_re')
    rank_files.write_exit_codes(run.folder, {0: -9})
    report = run.settle()
    assert (report.exit_code, len(report.measurements)) == (4, 1)


@pytest.mark.parametrize(
    ("end", "codes", "code"),
    [(AgentEnd(2), {}, 2), (AgentEnd(4), {0: 2, 1: -15}, 2), (AgentEnd(1), {}, 1), (AgentEnd(4), {0: 1}, 1)],
)
def test_wrong_usage_and_our_own_bugs_are_no_verdict_and_have_been_said(
    run: Run, end: AgentEnd, codes: dict[int, int], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_files.write_exit_codes(run.folder, codes)
    assert run.settles(end) == code
    assert capsys.readouterr() == ("", "")
