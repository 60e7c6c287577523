"""Which processes beside a rank are known to run, and what a rank that was stopped says of itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import Attendance, LostRank
from ncclprobe.model.findings import ExitCode
from ncclprobe.session.ranks.identity import RankIdentity, identify
from ncclprobe.session.watchdog.ending import running_siblings
from ncclprobe.session.watchdog.watchdog import Callbacks, Limits, Watchdog

JOB = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def started(stack: ExitStack, **variables: str) -> "subprocess.Popen[bytes]":
    """A child of this process, as a launcher starts a rank."""
    rank = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env=JOB | variables)
    stack.callback(rank.wait, 60)
    stack.callback(rank.kill)
    return rank


def of(rank: int) -> RankIdentity:
    variables = JOB | {"RANK": str(rank)}
    found = identify(detect(variables), variables)
    assert found
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_ranks_that_run_are_told_from_those_that_ended_or_stand_still_and_from_other_jobs(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(stack, RANK="0")
    stopped, ended = started(stack, RANK="1"), started(stack, RANK="2")
    started(stack, RANK="3", MASTER_PORT="29998")
    started(stack)
    monkeypatch.setattr(os, "getppid", os.getpid)  # of a rank that this process would have started as well
    ended.kill()
    ended.wait(60)
    stopped.send_signal(signal.SIGSTOP)
    while psutil.Process(stopped.pid).status() != psutil.STATUS_STOPPED:
        pass
    assert running_siblings(of(3)) == {0}
    stopped.send_signal(signal.SIGCONT)
    while psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED:
        pass
    assert running_siblings(of(3)) == {0, 1}


@pytest.mark.parametrize(("rank", "paused_s", "lost"), [(0, 61.0, True), (0, 59.0, False), (1, 61.0, False)])
def test_rank_0_is_lost_where_the_time_ran_out_because_it_was_stopped_for_longer_than_a_phase(
    rank: int, paused_s: float, lost: bool
) -> None:
    watchdog = Watchdog(of(rank), "h0", Limits(time.monotonic() - 10.0, 60.0), Callbacks(lambda ending: 0))
    watchdog.set_phase("pairs, round 1: forth")
    watchdog._note_pause(paused_s)
    ending = watchdog._reason_to_end(time.monotonic())
    assert ending
    if lost:
        why = "this rank itself was stopped for 61 s, and --timeout ran out"
        assert ending.attendance == Attendance(4, (LostRank(0, "h0", "pairs, round 1: forth", why),))
    else:
        assert (ending.attendance, ending.code) == (None, ExitCode.INCONCLUSIVE)
        assert f"after it had itself been stopped for {paused_s:.0f} s" in ending.why
