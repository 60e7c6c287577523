"""How far a program is, as a terminal and a log show it."""

import io
import re
import sys
from collections.abc import Callable

import pytest

from ncclprobe.report.progress import CLEAR, Progress, Waiting
from tests.each_row import each_row

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


def test_a_row_shows_how_well_its_median_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    progress = Progress(wanted=True)
    progress.expect(13)
    progress.show("all_reduce 32 KiB in place batch 1 to 5")
    progress.reach("all_reduce 32 KiB in place", 0.0412)
    progress.show("all_reduce 32 KiB in place batch 6 to 9")
    assert terminal.lines()[-2:] == [
        "… [1/13] all_reduce 32 KiB in place batch 1 to 5",
        "… [1/13] all_reduce 32 KiB in place  ±4.1 %",
    ]
    progress.stop()


def test_the_precision_of_one_row_is_not_shown_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    progress = Progress(wanted=True)
    progress.reach("all_reduce 1 KiB in place", 3.5)
    progress.show("all_reduce 1 KiB in place gather")
    progress.show("all_reduce 1 KiB out of place batch 1")
    assert terminal.lines()[-2:] == ["… all_reduce 1 KiB in place  ±350 %", "… all_reduce 1 KiB out of place batch 1"]
    progress.stop()


def test_a_log_gets_a_line_for_each_part_and_none_for_phases(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(wanted=True)
    progress.show("import torch")
    progress.count()
    progress.finish("collectives")
    assert re.fullmatch(r"ncclprobe: collectives, 1 row: \d+\.\d s\n", capsys.readouterr().err)


@each_row("wanted", [True, False])
def test_waiting_is_drawn_on_a_terminal_alone_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    terminal = _terminal(monkeypatch)
    with Waiting("starting 2 ranks", wanted=wanted) as waiting:
        waiting.say("importing torch")
        if wanted:
            _until(lambda: "importing torch  " in terminal.getvalue(), waiting)
    assert terminal.getvalue().endswith(CLEAR) is wanted
    assert bool(terminal.lines()) is wanted


def test_waiting_that_ended_can_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with Waiting("starting", wanted=True) as waiting:
        waiting.end()
        waiting.begin("making the report")
        _until(lambda: "making the report  " in terminal.getvalue(), waiting)
    assert terminal.getvalue().endswith(CLEAR)


def test_waiting_is_silent_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with Waiting("examining this machine", wanted=True) as waiting:
        waiting.say("judging")
    assert capsys.readouterr() == ("", "")
