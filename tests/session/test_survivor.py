"""The process that makes the report in another's place, where that one is killed or stands still."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclprobe.checks.run.rows import ROW
from ncclprobe.facts.run.samples import Asked, Participants
from ncclprobe.host import own_child
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.values import replace
from ncclprobe.session.measure import survivor as module
from ncclprobe.session.watchdog.ending import gone_with_rank_0

pytestmark = pytest.mark.slow

DEADLINE_S = 60
WHO = Participants("environment", 2, ("h", "h"), "gloo")


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    """A run of two rows, one of which was measured."""
    found = RunLog(tmp_path / FILE)
    asked = Asked(ops=("all_reduce",), sizes=(1 << 20, 1 << 22))
    row = replace(ROW, ranks=2, wrong=0)
    for name, value in (("asked", asked), ("participants", WHO), ("arrivals", {"expected": 2}), ("row", row)):
        found.add(name, msgspec.to_builtins(value, str_keys=True))
    return found


def command(folder: Path, late_s: float, entry: str = "ncclprobe.session.measure.survivor:begin") -> list[str]:
    asked = ["bandwidth", "--backend", "gloo", "-b", "1M", "-e", "4M", "--json", str(folder / "report.json")]
    return own_child.command(entry, str(folder / FILE), "", str(late_s), "", *asked)


def survivor(folder: Path, late_s: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command(folder, late_s), stdin=subprocess.PIPE)


def begin_soon(*arguments: str) -> None:
    """Be the survivor; it looks every 10 ms."""
    module.PERIOD_S = 0.01
    module.begin(*arguments)


def report(folder: Path) -> dict[str, Any]:
    """What was written, once it was."""
    until = time.monotonic() + DEADLINE_S
    while not (folder / "report.json").exists():
        assert time.monotonic() < until, "no report was written"
        time.sleep(0.05)
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def ended(process: "subprocess.Popen[bytes]", last: bytes = b"") -> None:
    process.communicate(last, timeout=DEADLINE_S)
    assert process.returncode == 0


@pytest.mark.usefixtures("log")
def test_while_the_owner_stands_still_the_rows_are_in_the_report_once_its_time_is_over(tmp_path: Path) -> None:
    process = survivor(tmp_path, late_s=0.0)
    found = report(tmp_path)
    assert [row["nbytes"] for row in found["measurements"]] == [1 << 20]
    assert found["exit_code"] == 3
    assert process.poll() is None
    (tmp_path / "report.json").unlink()
    ended(process, b".")
    assert not (tmp_path / "report.json").exists()  # the owner has come back and written its own


@pytest.mark.usefixtures("log")
def test_of_an_owner_that_is_killed_after_it_stood_still_the_report_is_made_again(tmp_path: Path) -> None:
    process = survivor(tmp_path, late_s=0.0)
    report(tmp_path)
    (tmp_path / "report.json").unlink()
    ended(process)
    assert len(report(tmp_path)["measurements"]) == 1


def test_an_owner_that_has_ended_the_log_is_left_to_write_its_report(tmp_path: Path, log: RunLog) -> None:
    log.close("ended by SIGTERM")
    ended(survivor(tmp_path, late_s=0.0), b".")
    assert not (tmp_path / "report.json").exists()


def ended_process() -> int:
    """The number of a process that is over."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_rank_zero_whose_process_is_gone_while_others_run_is_named(log: RunLog) -> None:
    gone = ended_process()
    log.add("participants", msgspec.to_builtins(replace(WHO, pids=(gone, os.getpid()))))
    (found,) = gone_with_rank_0(log)
    assert (found.rank, found.host, found.phase) == (0, "h", "after all_reduce 1 MiB")


@pytest.mark.parametrize("own", [("gone", "gone"), ("here", "gone"), ("here", "here"), ()])
def test_nobody_is_named_where_all_are_gone_or_rank_zero_runs(log: RunLog, own: tuple[str, ...]) -> None:
    number = {"gone": ended_process(), "here": os.getpid()}
    log.add("participants", msgspec.to_builtins(replace(WHO, pids=tuple(number[each] for each in own))))
    assert gone_with_rank_0(log) == ()


def test_a_rank_zero_alone_on_its_host_is_named_too(log: RunLog) -> None:
    log.add("participants", msgspec.to_builtins(replace(WHO, pids=(ended_process(), 0))))
    assert [each.rank for each in gone_with_rank_0(log)] == [0]


def test_the_report_in_place_of_a_killed_rank_zero_names_it(tmp_path: Path, log: RunLog) -> None:
    log.add("participants", msgspec.to_builtins(replace(WHO, pids=(ended_process(), os.getpid()))))
    process = survivor(tmp_path, late_s=DEADLINE_S)
    assert not (tmp_path / "report.json").exists()
    ended(process)
    found = report(tmp_path)
    assert (found["exit_code"], lost(found), len(found["measurements"])) == (4, ["rank 0"], 1)


@contextlib.contextmanager
def stopped(*own: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is stopped once it has started `own`."""
    there = ["sh", "-c", 'exec 3<&0; "$@" <&3 & kill -STOP $$; wait', "sh", *own]
    with subprocess.Popen(there, stdin=subprocess.PIPE, start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            ended(process, b".")


def test_a_rank_zero_that_is_stopped_while_others_run_is_named_long_before_its_time_is_over(
    tmp_path: Path, log: RunLog
) -> None:
    with stopped(*command(tmp_path, DEADLINE_S, f"{__name__}:begin_soon")) as owner:
        log.add("participants", msgspec.to_builtins(replace(WHO, pids=(owner.pid, os.getpid()))))
        found = report(tmp_path)
    assert (found["exit_code"], lost(found)) == (4, ["rank 0"])


def test_nobody_is_named_where_all_ranks_are_stopped(log: RunLog) -> None:
    with stopped("true") as owner:
        log.add("participants", msgspec.to_builtins(replace(WHO, pids=(owner.pid, owner.pid))))
        assert gone_with_rank_0(log, stopped=True) == ()


def lost(found: dict[str, Any]) -> list[str]:
    (verdict,) = [each for each in found["checks"] if each["id"] == "run.rank-lost"]
    return [finding["subject"] for finding in verdict["findings"]]
