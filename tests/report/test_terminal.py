"""The report at a terminal: what matters first, colour for a person, progress, and nothing that steers it."""

import io
import json
import os
import pty
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from ncclprobe.commands import Screen, attach, main
from ncclprobe.engine.diagnose import Question
from ncclprobe.model.causes import JobVerdict, RankClass
from ncclprobe.model.findings import Finding, Status, fail, warn
from ncclprobe.model.layout import unstyled
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import delivery
from ncclprobe.report import text as as_text
from ncclprobe.report.causes import Watch
from ncclprobe.report.delivery import harmless
from ncclprobe.report.progress import CLEAR, Progress, Waiting
from tests.each_row import each_row

from .samples import HEALTHY, ROW, report, verdict


def with_findings(*findings: Finding, hostile: str = "") -> Report:
    blind = verdict(Status.UNKNOWN, id="c.d", why="permission denied" + hostile, required=True)
    return report(verdict(Status.FAIL, *findings, id="a.b"), blind)


def test_hostile_text_cannot_steer_the_terminal() -> None:
    made = with_findings(fail("\x1b[2Jeth0", "is \x9b31m odd\r\n", evidence="\x00"), hostile="\x1b]0;x\x07")
    for text in (as_text.render(made), as_text.quiet(made)):
        assert not any(c in text for c in "\x1b\x9b\x00\x07\r")
        assert "\\x1b" in text


@each_row("width", [40, 80, 200])
def test_lines_fit_the_terminal_where_words_allow(width: int) -> None:
    made = with_findings(fail("eth0", "word " * 80, evidence="seen " * 40, remedy="fix " * 40))
    body = [line for line in as_text.render(made, width=width).splitlines() if line.startswith(" ")]
    assert max(len(line) for line in body if "https://" not in line) <= width  # an address is copied whole


@each_row("message", ["short", "long " * 40])
def test_the_quiet_line_is_whole_in_a_log_and_fits_a_terminal(message: str) -> None:
    line = as_text.quiet(with_findings(fail("eth0", message), warn("eth1", message)))
    assert line.startswith(f"FAIL a.b eth0: {message}")
    assert line.endswith(" (on n0, +1 more, exit 4)\n")
    short = as_text.shortened(line, 80)
    assert len(short.rstrip("\n")) <= 80
    assert short.endswith(" (on n0, +1 more, exit 4)\n")


def test_a_verdict_has_its_colour_and_a_pass_that_nothing_judged_has_that_of_what_was_skipped() -> None:
    unjudged = replace(ROW, status="unjudged", expectation=None)
    for changes, colour in (({}, "pass"), ({"measurements": (unjudged,)}, "skip"), ({"status": Status.FAIL}, "fail")):
        made: Report = replace(HEALTHY, **changes)  # type: ignore[arg-type]
        shown = as_text.render(made, style=lambda text, status: f"<{status}>{text}")
        assert shown.rstrip().rpartition("<")[2].startswith(f"{colour}>")


MPIRUN = {"OMPI_COMM_WORLD_RANK": "0"}
BOTH = {"NO_COLOR": "1", "FORCE_COLOR": "1"}
ROWS: dict[str, tuple[dict[str, str], str, bool, bool]] = {
    "a terminal": ({}, "own", False, True), "not ours alone": ({}, "another's", False, True),
    "mpirun's": (MPIRUN, "another's", False, False), "MPICH's": ({"PMI_RANK": "0"}, "another's", False, False),
    "a rank's own": (MPIRUN, "own", False, True),
    "srun --pty": ({"SLURM_PROCID": "0", "PMIX_RANK": "0"}, "own", False, True),
    "NO_COLOR wins": (BOTH, "own", False, False),
    "FORCE_COLOR": ({**MPIRUN, "FORCE_COLOR": "1"}, "another's", False, True), "--no-color": ({}, "own", True, False),
    "a file": ({}, "file", False, False), "a file by force": ({"FORCE_COLOR": "1"}, "file", False, True)}  # fmt: skip


@each_row(("own", "stdout", "no_color", "coloured"), ROWS.values(), ids=ROWS)
def test_a_terminal_is_coloured_where_a_person_looks_at_it(
    own: dict[str, str], stdout: str, no_color: bool, coloured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal of another session has no group in the foreground for us."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    reader, terminal = pty.openpty()
    with open(tmp_path / "out", "w") as file, os.fdopen(terminal, "w") as screen:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", file if stdout == "file" else screen)
        if stdout == "own":
            monkeypatch.setattr(os, "tcgetpgrp", lambda _: 1)
        style = delivery.style(no_color)
    os.close(reader)
    assert (style is not unstyled) is coloured
    shown = [style("x", status) for status in ("fail", "warn", "unknown", "pass", "note")]
    codes = ["1;31", "1;33", "1;35", "32", "1"] if coloured else []
    assert shown == ([f"\x1b[{code}mx\x1b[0m" for code in codes] or ["x"] * 5)


_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what stood in the line, each time that it was drawn."""
        return [line for line in re.split(r"[\r\n]+", _CODES.sub("", self.getvalue())) if line.strip()]


def _terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Make standard error a terminal; no fixture does, for pytest replaces it between a fixture and its test."""
    stderr = _Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return stderr


def _until(true: Callable[[], bool], waiting: Waiting) -> None:
    patience = 6000
    while not true() and (patience := patience - 1):
        waiting._over.wait(0.01)


def test_a_row_shows_how_well_its_median_is_known_and_no_other_row_that_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = _terminal(monkeypatch)
    progress = Progress(wanted=True)
    progress.expect(13)
    progress.show("all_reduce 32 KiB in place batch 1 to 5")
    progress.reach("all_reduce 32 KiB in place", 0.0412)
    progress.show("all_reduce 32 KiB in place batch 6 to 9")
    progress.show("all_reduce 32 KiB out of place batch 1")
    assert terminal.lines()[-3:] == [
        "… [1/13] all_reduce 32 KiB in place batch 1 to 5",
        "… [1/13] all_reduce 32 KiB in place  ±4.1 %",
        "… [1/13] all_reduce 32 KiB out of place batch 1",
    ]
    for share, rows in ((0.9949, 1), (0.9951, 11), (1.5, 2)):
        progress.reach("barrier", share)
        for _ in range(rows):
            progress.count()
        progress.show("barrier batch 2")
    progress.expect(0)
    progress.show("pairs")
    said, row = [re.sub(r"~\d+ s", "~ s", line) for line in terminal.lines()[-4:]], "barrier "
    assert said == [f"… [2/13] {row} ±99 %  ~ s", f"… [13/13] {row} ±100 %  ~ s", f"… [13/13] {row} ±150 %", "… pairs"]
    progress.stop()


def test_a_log_gets_a_line_for_each_part_and_none_for_phases_and_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(wanted=True)
    progress.show("import torch")
    progress.count()
    with Waiting("examining this machine", wanted=True) as waiting:
        waiting.say("judging")
    progress.finish("collectives")
    assert re.fullmatch(r"ncclprobe: collectives, 1 row: \d+\.\d s\n", capsys.readouterr().err)


@each_row("wanted", [True, False])
def test_waiting_is_drawn_on_a_terminal_alone_leaves_nothing_and_can_begin_again(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    terminal = _terminal(monkeypatch)
    with Waiting("starting 2 ranks", wanted=wanted) as waiting:
        if wanted:
            waiting.say("importing torch")
            _until(lambda: "importing torch  " in terminal.getvalue(), waiting)
            waiting.end()
            waiting.begin("making the report")
            _until(lambda: "making the report  " in terminal.getvalue(), waiting)
    assert terminal.getvalue().endswith(CLEAR) is wanted
    assert bool(terminal.lines()) is wanted


@each_row(
    ("text", "shown"),
    [
        ("bad ##[add-mask]x", "bad #\\u0023[add-mask]x"),
        ("bad ##vso[task.complete]", "bad #\\u0023vso[task.complete]"),
        ("a\n  ::stop-commands::pwn", "a\n  \\u003a:stop-commands::pwn"),
        ("a\x9b2J\u202eb", "a\\u009b2J\\u202eb"),
        ("::1 and c10d::Work stay, ## too\n", "::1 and c10d::Work stay, ## too\n"),
    ],
)
def test_what_steers_a_runner_is_spelled_out_on_both_streams(text: str, shown: str) -> None:
    stream = io.StringIO()
    print(text, end="", file=cast(TextIO, Screen(stream)))
    assert stream.getvalue() == shown


def test_what_steers_a_terminal_is_escaped_but_for_colours_of_ours() -> None:
    assert harmless("\x1b]0;pwn\x07 \x1b[31mred") == "\\x1b]0;pwn\\x07 \\x1b[31mred"
    assert harmless("\x1b[1;31mFAIL\x1b[0m\x1b]0;x\x07", styled=True) == "\x1b[1;31mFAIL\x1b[0m\\x1b]0;x\\x07"


def test_neither_a_log_nor_a_foreign_report_can_give_commands_to_a_runner_in_any_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steering = "a##[add-mask]b ##vso[c]\n::error::d \x9b2J"
    path, own = str(tmp_path / "r.json"), str(tmp_path / "##[error]x.json")
    words = " ".join(f"{'x' * number} ::stop-commands::pwn" for number in (3, 7, 11, 15, 19))
    text = f"[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: bad ##[add-mask]CAUSE {words}\n"
    (tmp_path / "x.log").write_text(text)
    main(["explain", str(tmp_path / "x.log"), "--json", path])
    foreign = json.loads(Path(path).read_text())
    foreign["notes"] = [steering]
    foreign["checks"][0]["title"] = foreign["tool"]["version"] = steering
    Path(path).write_text(json.dumps(foreign))
    Path(own).write_text('{"schema": "##[error]y"}')
    said = [*capsys.readouterr()]
    for form in (["--json", "-"], ["--html", "-"], ["--junit", "-"], ["--markdown", "-"], ["-v"]):
        main(["report", path, *form])
        said += capsys.readouterr()
    main(["report", own])
    said += capsys.readouterr()
    assert len([text for text in said if "add-mask" in text or "error]" in text]) >= 6
    assert [text for text in said if "##[" in text or "##vso[" in text or "\x9b" in text] == []
    assert [line for text in said for line in text.splitlines() if line.lstrip().startswith("::")] == []
    assert json.loads(said[2])["notes"] == [steering]


def test_a_name_that_is_too_long_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["fleet", "--fleet"], ["fleet", "job"], ["explain"]):
        assert main([*argv, "a" * 300]) == 2
        assert "bug" not in capsys.readouterr().err


def look(word: str, *classes: RankClass, calls: int = 0) -> Report:
    told = JobVerdict(word, "3 of 4 ranks", "2026-11-23T14:03:11+00:00", 1.0, "", calls)
    return replace(HEALTHY, standing=told, classes=classes)


SLOW = RankClass("slow, not stuck", (3,), ("n4",), doing="is at work")
STUCK = RankClass("stuck outside", (3,), ("n4",), doing="sleeps")
WORKING = RankClass("working", (0, 1, 2, 3), ("n4",), doing="is at work")


def test_a_job_that_is_at_work_and_slow_by_turns_has_not_changed() -> None:
    watch = Watch()
    looks = (look("WORKING", WORKING, calls=5), look("SLOW", SLOW, calls=9), look("SLOW", SLOW))
    first, second, _ = map(watch.add, looks)
    assert not watch.changed
    assert first.endswith("WORKING  3 of 4 ranks")
    assert second.endswith("SLOW  3 of 4 ranks; 4 calls since the previous sample")
    assert watch.notes() == ["watched: 3 looks; others were waiting for rank 3, n4 in 2 of them"]


def test_another_answer_or_another_rank_ends_the_watch() -> None:
    for first, second in (
        (look("WORKING", WORKING), look("STUCK", STUCK)),
        (look("STUCK", STUCK), look("WORKING", WORKING)),
        (look("STUCK", STUCK), look("STUCK", replace(STUCK, ranks=(2,)))),
        (look("CANNOT TELL"), look("WORKING", WORKING)),
    ):
        watch = Watch()
        watch.add(first)
        assert not watch.changed
        watch.add(replace(first, standing=replace(first.standing, message="4 of 4 ranks")))  # type: ignore[type-var]
        assert not watch.changed
        watch.add(second)
        assert watch.changed


def test_a_watch_leaves_the_ranks_alone_for_a_second_however_long_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    reports = iter([look("WORKING", WORKING), look("SLOW", SLOW), look("STUCK", STUCK)])

    def looked(*_: object) -> Report:
        now[0] += 1.5
        return next(reports)

    monkeypatch.setattr(attach, "_examine", looked)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: slept.append(round(seconds, 3)))
    monkeypatch.setattr(attach, "time", clock)
    attach._watch(Namespace(watch=1.0, quiet=True), cast(Question, None), 200.0)
    assert slept == [1.0, 1.0]
