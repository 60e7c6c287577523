"""Which processes beside a rank are known to run, and what a rank that was stopped says of itself."""

import os
import signal
import subprocess

import pytest

from ncclprobe.facts.launcher import detect
from ncclprobe.session.ranks.identity import RankIdentity, identify
from ncclprobe.session.watchdog.ending import lives, running_siblings, runs

JOB = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


def of(rank: int) -> RankIdentity:
    variables = JOB | {"RANK": str(rank)}
    found = identify(detect(variables), variables)
    assert found
    return found


def test_the_ranks_that_run_are_told_from_those_that_ended_or_stand_still_and_from_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = ({"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"}, {"RANK": "3", "MASTER_PORT": "29998"}, {})
    children = [subprocess.Popen(["sleep", "60"], env=JOB | own) for own in variables]
    monkeypatch.setattr(os, "getppid", os.getpid)  # of a rank that this process would have started as well
    _, stopped, gone, *_ = children
    try:
        gone.kill()
        gone.wait(60)
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        assert running_siblings(of(3)) == {0}
        assert [(runs(each.pid), lives(each.pid)) for each in (children[0], stopped, gone)] == [
            (True, True), (False, True), (False, False)
        ]  # fmt: skip
        stopped.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, stopped.pid, os.WCONTINUED)
        assert running_siblings(of(3)) == {0, 1}
    finally:
        for child in children:
            child.kill()
            child.wait(60)
