"""What a rank's two threads decide, turn by turn: on a clock and a store of this test's own, without threads."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.model.values import asdict, replace
from ncclprobe.session.ranks import launch, rank_files
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.watchdog import watchdog as module
from ncclprobe.session.watchdog.ending import Ending
from ncclprobe.session.watchdog.heartbeat import Heartbeat
from ncclprobe.session.watchdog.watchdog import Callbacks, Limits, Watchdog
from session.records import DictStore

RANKS, DEADLINE_S, PHASE_S = 3, 1000.0, 60.0


class LeftError(Exception):
    """The process would end with this code."""


class Rank:
    """One rank's watchdog beside heartbeats of the others that a test writes. `ended`: what it would report."""

    def __init__(self, number: int, patch: pytest.MonkeyPatch, **identity: Any) -> None:
        self.now, self.number, self.store = 0.0, number, DictStore()
        self.said: list[tuple[str, Any]] = []
        self.ended: Ending | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleeps)
        seat = {"kind": "environment", "rank": number, "ranks": RANKS, "local_rank": number, "local_ranks": RANKS,
                "nnodes": 1, "address": "n0", "port": 1, **identity}  # fmt: skip
        patch.setattr(module, "time", clock)
        patch.setattr(module, "leave", self.leaves)
        patch.setattr(module, "limit_reporting", lambda: None)
        patch.setattr(module, "running_siblings", lambda own: self.running)
        patch.setattr(module, "runs", lambda pid: False)
        patch.setattr(module, "lives", lambda pid: True)
        self.running: frozenset[int] = frozenset()
        callbacks = Callbacks(
            self.concludes,
            lambda ending: self.said.append(("save", ending.why)),
            exit_reason=lambda why, code: self.said.append((why, int(code))) if number else None,
            abort=lambda: self.said.append(("abort", number)),
        )
        self.watchdog = Watchdog(RankIdentity(**seat), f"h{number}", Limits(DEADLINE_S, PHASE_S), callbacks)
        self.watchdog.set_phase("timing")
        others = [each for each in range(RANKS) if each != number]
        self.others = {each: Heartbeat(each, f"h{each}", each, 0, 1, "timing") for each in others}

    def sleeps(self, seconds: float) -> None:
        self.now += seconds

    def concludes(self, ending: Ending) -> int:
        self.ended = ending
        return 4 if ending.attendance or ending.arrivals else 3

    def leaves(self, code: int) -> None:
        raise LeftError(code)

    def turn(self, count: int = 1, silent: int | None = None, **changes: Any) -> None:
        """Let so many seconds pass, in which the others' hearts beat; `changes` of each of their heartbeats."""
        check = self.watchdog._check_rank_0 if self.number else self.watchdog._check_all_ranks
        for _ in range(count):
            self.now += 1
            for rank, old in self.others.items():
                if rank != silent:
                    self.others[rank] = replace(old, count=old.count + 1, step=old.step + 1, **changes)
                self.store.set(f"ncclprobe/0/heartbeat/{rank}", json.dumps(asdict(self.others[rank])))
            self.watchdog._send_heartbeat(self.store)
            check(self.store)


def code_of(act: Callable[[], object]) -> int | None:
    """The exit code with which `act` ends the rank; None: it goes on."""
    try:
        act()
    except LeftError as left:
        return int(left.args[0])
    return None


def told(ending: Ending | None) -> str:
    """Who is lost, in words; or who never came; or why the run ends."""
    if ending and ending.attendance:
        return "; ".join(f"lost {e.rank} on {e.host} in {e.phase}: {e.why}" for e in ending.attendance.lost)
    if ending and ending.arrivals:
        return f"missing {ending.arrivals.lost} of {ending.arrivals.expected}, {ending.arrivals.waited_s:.0f} s"
    return ending.why if ending else ""


def test_a_signal_that_is_ignored_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    for name, value in {
        "getsignal": {signal.SIGHUP: signal.SIG_IGN}.get,
        "set_wakeup_fd": None,
        "signal": None,
    }.items():
        monkeypatch.setattr(signal, name, value or (lambda *given, **how: taken.append(given[0])))
    monkeypatch.setattr(
        module.threading, "Thread", lambda **how: SimpleNamespace(start=lambda: taken.append(how["daemon"]))
    )
    Rank(1, monkeypatch).watchdog.start()
    pipe = taken.pop(-2)
    assert (taken, os.get_blocking(pipe)) == ([signal.SIGINT, signal.SIGTERM, True], False)
    monkeypatch.setattr(rank_files, "end_processes_of", lambda folder: taken.append(folder))
    with launch._signals([], Path("/ranks")) as received:
        assert (taken[3:], received) == ([signal.SIGINT, signal.SIGTERM], [])
    assert taken[5:] == ["/ranks", signal.SIGINT, signal.SIGTERM]


def test_the_first_signal_that_ends_a_run_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own, (pipe, end) = Rank(1, monkeypatch), os.pipe()
    os.write(end, bytes((signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)))
    os.close(end)
    monkeypatch.setattr(own.watchdog, "_heartbeat_thread", True)  # it decides, not this one
    with pytest.raises(IndexError):  # all was read
        own.watchdog._signal_loop(pipe)
    os.close(pipe)
    assert own.watchdog._signal == "SIGINT"
