"""What a rank's two threads decide, turn by turn: on a clock and a store of this test's own, without threads."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import LostRank
from ncclprobe.model.values import asdict, replace
from ncclprobe.session.ranks.identity import RankIdentity, identify
from ncclprobe.session.watchdog import watchdog as module
from ncclprobe.session.watchdog.ending import Ending, lives, running_siblings, runs
from ncclprobe.session.watchdog.heartbeat import Heartbeat
from ncclprobe.session.watchdog.watchdog import Callbacks, Limits, Watchdog
from session.records import DictStore
from tests.each_row import each_row

RANKS, DEADLINE_S, PHASE_S = 3, 1000.0, 60.0
TERM = "signal SIGTERM ended it"


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
        return "; ".join(f"lost {each.rank} {each.why}" for each in ending.attendance.lost)
    if ending and ending.arrivals:
        return f"missing {ending.arrivals.lost} {ending.arrivals.waited_s:.0f} s"
    return ending.why if ending else ""


def signalled(own: Rank) -> None:
    own.watchdog._signal = "SIGTERM"


def from_openmpi(own: Rank) -> None:
    own.turn()
    signalled(own)


SILENT, UNTIL_THEN = "its heartbeat stopped 5 s ago", "it had fallen silent when the run was ended"


@each_row(
    ("before", "turns", "how", "identity", "code", "says"),
    [
        (None, 30, {}, {}, None, ""),
        (None, 5, {"silent": 2}, {}, None, ""),
        (None, 6, {"silent": 2}, {}, 4, f"lost 2 {SILENT}"),
        (lambda own: setattr(own.watchdog, "tolerant", True), 9, {"silent": 2}, {}, None, ""),
        (lambda own: own.others.pop(2), 60, {}, {}, None, ""),
        (lambda own: own.others.pop(2), 61, {}, {}, 4, "missing (2,) 61 s"),
        (lambda own: (own.others.pop(2), setattr(own, "running", {2})), 99, {}, {}, None, ""),
        # The time is over: who was silent for a while is lost, or rank 0 itself, if it was stopped for a whole phase.
        (lambda own: own.sleeps(DEADLINE_S), 1, {}, {}, 3, "--timeout ran out in phase 'timing'"),
        (
            lambda own: (own.sleeps(DEADLINE_S), own.watchdog._note_pause(60.5)),
            1,
            {},
            {},
            4,
            "lost 0 this rank itself was stopped for 60 s, and --timeout ran out",
        ),
        # A signal to all, to some, or because one has failed.
        (signalled, 1, {"left": TERM}, {}, 3, "ended by SIGTERM in phase 'timing'"),
        (signalled, 5, {}, {}, None, ""),
        (signalled, 6, {}, {}, 4, "lost 0 signal SIGTERM ended it"),
        (signalled, 1, {"left": "it failed (reset)"}, {}, 4, "lost 1 it failed (reset); lost 2 it failed (reset)"),
        # Open MPI kills a second after its signal: who has not reacted until then is lost.
        (from_openmpi, 1, {}, {"kind": "openmpi"}, 4, f"lost 1 {UNTIL_THEN}; lost 2 {UNTIL_THEN}"),
    ],
)
def test_rank_zero_decides_once_a_period_and_tells_the_others_its_code(
    before: Callable[[Rank], Any] | None, turns: int, how: dict[str, Any], identity: dict[str, Any], code: int | None,
    says: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own = Rank(0, monkeypatch, **identity)
    if before:
        before(own)
    assert (code_of(lambda: own.turn(turns, **how)), told(own.ended)) == (code, says)
    assert own.store.get("ncclprobe/0/end") == str(code).encode() if code else "ncclprobe/0/end" not in own.store
    assert (own.said.count(("abort", 0)), "save" in dict(own.said)) == (int(code is not None), before in SIGNALS)


SIGNALS = (signalled, from_openmpi)
NO_TIME = "--timeout ran out while this rank was in phase 'timing'"


@each_row(
    ("before", "turns", "how", "code", "said"),
    [
        (None, 30, {}, None, []),
        (lambda own: own.store.set("ncclprobe/0/end", "4"), 1, {}, 4, [("abort", 1)]),
        (None, 6, {"silent": 0}, 4, [("rank 0 on h0 has fallen silent in phase 'timing'", 4)]),
        (lambda own: (own.others.pop(0), signalled(own)), 8, {}, 3, []),  # a mere signal is not reported
        (lambda own: (own.others.pop(0), signalled(own)), 7, {}, None, []),
    ],
)
def test_another_rank_does_as_rank_zero_decides_or_leaves_when_it_is_silent(
    before: Callable[[Rank], Any] | None, turns: int, how: dict[str, Any], code: int | None, said: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own = Rank(1, monkeypatch)
    if before:
        before(own)
    assert (code_of(lambda: own.turn(turns, **how)), own.said) == (code, said)


@each_row(
    ("rank", "state", "now", "why", "code"),
    [
        (1, {}, 60.0, "", 4),
        (1, {}, 60.1, "no progress in 'timing' for 60 s", 4),
        (1, {"late_s": 10.0}, 70.0, "", 4),
        (1, {"late_s": 10.0}, 70.1, "no progress in 'timing' for 70 s", 4),
        (1, {"running": {0}}, 90.0, "", 4),  # rank 0 runs on this host, and may come
        (1, {"running": {0}, "met": True}, 90.0, "no progress in 'timing' for 90 s", 4),
        (0, {"running": {1}}, 90.0, "no progress in 'timing' for 90 s", 4),
        (1, {"_heartbeat_thread": True, "met": True}, 68.0, "", 4),
        (1, {"_heartbeat_thread": True, "met": True}, 68.1, "no progress in 'timing' for 68 s", 4),
        (0, {"_heartbeat_thread": True}, 90.0, "", 4),
        (1, {"_preparing": True}, 90.0, "", 4),
        (0, {}, 1000.1, NO_TIME, 3),
        (1, {"met": True, "_phase_began": 1000.0}, 1002.0, "", 3),
        (1, {}, 1002.1, NO_TIME, 3),
        (
            1,
            {"_preparing": True},
            1002.1,
            f"{NO_TIME}, which takes minutes from a cold network file system; start again, or raise --timeout",
            3,
        ),
        (1, {"_signal": "SIGINT"}, 1.0, "ended by SIGINT while this rank was in phase 'timing'", 3),
        (1, {"_signal": "SIGINT", "_heartbeat_thread": True}, 1.0, "", 3),
        (1, {"_heartbeat_thread": True, "_heartbeat_age_s": 8.0}, 1.0, "", 4),
        (
            1,
            {"_heartbeat_thread": True, "_heartbeat_age_s": 8.6},
            1.0,
            "the store of rank 0 has not answered for 9 s while this rank was in phase 'timing'",
            4,
        ),
        (
            0,
            {"_heartbeat_thread": True, "_heartbeat_age_s": 4.6},
            1002.1,
            "the store of rank 0 has not answered for 5 s while this rank was in phase 'timing'",
            4,
        ),
    ],
)
def test_without_the_store_the_signal_thread_ends_a_rank_at_its_deadlines(
    rank: int, state: dict[str, Any], now: float, why: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Rank(rank, monkeypatch)
    own.running = frozenset(state.pop("running", ()))
    for name, value in state.items():
        monkeypatch.setattr(own.watchdog, name, value)
    ending = own.watchdog._reason_to_end(now)
    assert (told(ending), int(ending.code) if ending else code) == (why, code)


def test_the_first_signal_that_ends_a_run_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own, (pipe, end) = Rank(1, monkeypatch), os.pipe()
    os.write(end, bytes((signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)))
    os.close(end)
    monkeypatch.setattr(own.watchdog, "_heartbeat_thread", True)  # it decides, not this one
    with pytest.raises(IndexError):  # all was read
        own.watchdog._signal_loop(pipe)
    os.close(pipe)
    assert own.watchdog._signal == "SIGINT"


def test_a_rank_that_is_excluded_is_told_once_and_the_others_leave_with_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Rank(0, monkeypatch)
    own.watchdog._main_store = own.store
    own.watchdog.tolerant = True
    own.turn(6, silent=2)
    assert (own.watchdog.unreachable(), own.watchdog.late()) == ({2}, ())
    assert own.watchdog.exclude([2]) == (LostRank(2, "h2", "timing", SILENT),)
    own.watchdog.dismiss(4)
    assert own.store["ncclprobe/0/end"] == "4"
    own.now = DEADLINE_S - 7.5
    assert own.watchdog.left_s() == 7.5
    own.watchdog.prepare("import torch")
    own.now += 5
    own.watchdog.set_phase("meet")
    written = Heartbeat(**json.loads(own.store["ncclprobe/0/heartbeat/0"]))
    assert (own.watchdog.late_s, written.phase, written.step, written.count) == (5.0, "meet", 3, 6)


# Which processes beside a rank are known to run.

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
