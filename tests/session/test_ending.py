"""Which processes beside a rank are known to run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ncclprobe.facts.launcher import detect
from ncclprobe.session.ranks.identity import RankIdentity, identify
from ncclprobe.session.watchdog.ending import running_siblings

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
