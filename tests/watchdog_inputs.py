"""Which ranks count as lost, and how the watchdog ends a rank, on a fake clock: rows of `FUNCTIONS`."""

import contextlib
import io
import json
from itertools import product
from typing import Any

from session import test_watchdog as watched
from session.hearts import PATIENCE, SIGTERM, Ranks, S, exclude, leaves, on, paused, signalled

from ncclprobe.facts.run.samples import Attendance
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import asdict, replace
from ncclprobe.session.watchdog import watchdog
from ncclprobe.session.watchdog.ending import Ending
from ncclprobe.session.watchdog.heartbeat import DONE, OUT_OF_TIME_PERIODS, FailureDetector, Heartbeat
from tests.one_rank import Rows, in_all_words

_RESET, _BARRIER = "it failed (reset)", "it failed (barrier)"
_ALL = range(3)
_STEPS: dict[str, list[Any]] = {
    "well": [on(100)], "silent, not yet": [on(S - 1, silent=[2])], "silent": [on(S, silent=[2])],
    "two silent": [on(S, silent=[1, 2])], "one runs": [on(S, silent=[1, 2])],
    "one runs, nearly": [on(PATIENCE - 1, silent=[1])], "one runs, long": [on(PATIENCE, silent=[1])],
    "one missed": [on(S - 1, silent=[1]), on(1)] * 10, "silence explains": [leaves(1, _RESET), on(S, silent=[2])],
    "failed, not yet": [leaves(1, _RESET), on(S + 1)], "failed": [leaves(1, _RESET), on(S + 2)],
    "done": [leaves(1, DONE), on(3 * S, silent=[1])], "by a signal": [leaves(1, SIGTERM), on(3 * S)],
    "waited for 2": [leaves(0, _BARRIER, 2), on(S + 2)], "waited for 2, 1": [leaves(0, _BARRIER, 2, 1), on(S + 2)],
    "blame each other": [leaves(0, _RESET, 1), leaves(1, _RESET, 0), on(S + 2)],
    "blames nobody": [leaves(0, _RESET, 9), on(S + 2)],
    "two left, one blames": [leaves(2, _BARRIER, 1, 0), leaves(1, _RESET), on(S + 2)],
    "all left": [leaves(each, f"left {each}") for each in (2, 0, 1)] + [on(S + 2)],
    "behind": [on(1, standing=[1]), on(PATIENCE, standing=_ALL)],
    "not yet behind": [on(1, standing=[1]), on(PATIENCE - 1, standing=_ALL)],
    "most behind": [on(2, standing=[1]), on(1, standing=[2]), on(PATIENCE, standing=_ALL)],
    "two behind": [on(1, standing=[2, 1]), on(PATIENCE, standing=_ALL)], "stalled": [on(PATIENCE, standing=_ALL)],
    "not all": [on(PATIENCE, standing=[1, 2])], "away": [paused, on(S, silent=[1, 2])],
    "away and back": [paused, on(1), on(S, silent=[1, 2])], "back twice": [paused, on(2), on(S, silent=[1, 2])],
    "back for good": [paused, on(3), on(S, silent=[2])],
    "left while away": [leaves(1, "rank 0 had fallen silent for 5 s"), paused, on(S + 2)],
    "without 2": [on(S, silent=[2]), exclude(2)],
    "without 2, stalled": [exclude(2), on(PATIENCE + 2, silent=[2], standing=[0, 1])],
    "without 2, behind": [on(1, standing=[2]), exclude(2), on(PATIENCE, standing=_ALL)],
    "signal to 1": [signalled(1), on(S, silent=[2])], "signal to 0": [signalled(), on(S)],
    "signal to 0, early": [signalled(), on(S - 1)], "signal to 0 and 2": [signalled(2), on(S)],
    "signal, without 2": [signalled(2), exclude(2), on(S)], "signal to all": [signalled(1, 2), on(1)],
    "signal, 2 was out": [signalled(1), exclude(2), on(1)], "failed first": [leaves(2, _RESET), signalled(1), on(1)],
    "barrier": [leaves(2, _BARRIER, 1), on(1)], "barrier, out": [leaves(2, _BARRIER, 1), on(1), exclude(2)],
    "out by name": [leaves(2, _RESET), on(1), exclude(1)], "silent for 2": [on(2, silent=[2])],
    "silent for 3": [on(3, silent=[2])], "left just now": [leaves(1, _RESET), on(1)],
    "stood, not yet": [on(OUT_OF_TIME_PERIODS - 1, standing=_ALL)], "stood": [on(OUT_OF_TIME_PERIODS, standing=_ALL)],
    "long silent": [on(S + 3, silent=[2])], "2 failed": [leaves(2, _RESET), on(S + 3)],
    "0 silent": [on(S + 1, silent=[0])], "away, 2 left": [paused, leaves(2, _RESET), on(S + 3)],
}  # fmt: skip
_CAME = ((1, 1, 2, 17), (1, 1, 1, 16), (1, 1, 1, 15), (1, 20), (1, 30, 30, 30), (17, 2, 1, 1), (1, 2, 17, 18, 40))
_HOWS: tuple[dict[str, bool], ...] = ({}, {"signalled": True}, {"out_of_time": True}, {"tolerant": True})


def _lost(found: Attendance | None) -> str:
    lost = [f"{each.rank} {each.host} {each.phase} {each.why}" for each in found.lost] if found else []
    return "; ".join([*lost, *filter(None, [found and found.stalled])])


def _hearts_inputs() -> Rows:
    """Which ranks count as lost by made-up heartbeats, in each state of a run, and which join late or never."""
    for name, steps in _STEPS.items():
        ranks = Ranks(running=["h1"] if "runs" in name else ())
        for step in steps:
            step(ranks)
        found = ranks.detector
        told = [_lost(found.attendance(**how)) for how in _HOWS]
        signals = [
            found.settled(), found.unsignalled(), _lost(found.signalled_alone()), _lost(found.failed()), found.gone((1,
            2)),
        ]  # fmt: skip
        before = {each: found.last[each] for each in (2, 1)}
        left = [
            sorted(found.unreachable()), _lost(found.unresponsive(before, {1})),
            _lost(Attendance(3, found.exclude([2, 1])))]  # fmt: skip
        yield name, *told, signals, *left, sorted(found.excluded), _lost(found.attendance())
    for periods, running, late, over in product((2, 3, 4, 13, 14), ((), (1, 2), (0, 1)), (0, 10), (False, True)):
        waits = FailureDetector(3, patience=3)
        for _ in range(periods):
            waits.receive({0: Heartbeat(0, "h", 1, 0, 1, "wait")})
        arrivals = waits.arrivals(over, late, running=lambda running=running: running)
        yield f"waited {periods}, {running} run, {late}, {over}", arrivals, arrivals and arrivals.lost
    for came in _CAME:
        waits = FailureDetector(len(came), patience=60)
        for period in range(1, max(came) + 1):
            waits.receive(
                {each: Heartbeat(each, "h", 1, period, 1, "wait") for each, at in enumerate(came) if at <= period}
            )
        yield f"came {came}", waits.late(), FailureDetector(2, 3).late()


def _watched_inputs() -> Rows:
    """When and why the watchdog ends a rank, turn by turn on a fake clock."""
    import pytest

    for number, kind, sig, paused_s, tolerant in product(
        (0, 1), ("environment", "openmpi", "pmi"), ("", "SIGTERM", "SIGINT"), (0.0, 61.0), (False, True)
    ):
        for silent, turns in ((None, 3), (2, 7), (0, 7), (1, 7)):
            if (paused_s or tolerant) and (kind != "environment" or silent == 1):
                continue
            with pytest.MonkeyPatch.context() as patch:
                own = watched.Rank(number, patch, kind=kind, agent_store=tolerant)
                own.turn()
                own.watchdog._signal, own.watchdog._paused_s, own.watchdog.tolerant = sig, paused_s, tolerant
                code = watched.code_of(lambda own=own, turns=turns, silent=silent: own.turn(turns, silent=silent))
                ended = watched.told(own.ended)
                yield (
                    f"rank {number} {kind} {sig} {paused_s} {tolerant} {silent}", code, ended, own.said,
                    own.watchdog._where(), own.watchdog._store_host(),
                )  # fmt: skip
    states: tuple[dict[str, Any], ...] = (
        {}, {"late_s": 10.0}, {"running": {0}}, {"running": {0}, "met": True}, {"running": {1}},
        {"_heartbeat_thread": True, "met": True}, {"_heartbeat_thread": True}, {"_preparing": True},
        {"_signal": "SIGINT"}, {"_signal": "SIGINT", "_heartbeat_thread": True},
        {"_heartbeat_thread": True, "_heartbeat_age_s": 8.0}, {"_heartbeat_thread": True, "_heartbeat_age_s": 8.6},
        {"_paused_s": 60.5}, {"_heartbeat_thread": True, "_heartbeat_age_s": 4.6},
        {"_heartbeat_thread": True, "_heartbeat_age_s": 4.0}, {"_look_again": 61.0},
    )  # fmt: skip
    for number, state, now in product((0, 1), states, (60.0, 60.1, 68.0, 68.1, 70.1, 90.0, 1000.1, 1002.0, 1002.1)):
        with pytest.MonkeyPatch.context() as patch:
            own = watched.Rank(number, patch)
            own.running = frozenset(state.get("running", ()))
            for name, value in state.items():
                patch.setattr(own if name == "running" else own.watchdog, name, value)
            end = own.watchdog._reason_to_end(now)
            yield f"rank {number} {state} at {now}", watched.told(end), end and int(end.code)
    for number, left, sig, over in product((0, 1), ("", "it failed (x)"), ("", "SIGTERM"), (False, True)):
        with pytest.MonkeyPatch.context() as patch:
            own = watched.Rank(number, patch)
            own.turn()
            own.watchdog._signal = sig
            own.watchdog._rank_0.last = {0: Heartbeat(0, "h0", 1, 1, 1, "timing", left)}

            def gone(*given: Any, own: Any = own, over: bool = over) -> None:
                if over:
                    own.watchdog._over.set()
                raise RuntimeError("Connection reset\nmore")

            own.store.set = gone  # type: ignore[method-assign]
            code = watched.code_of(lambda own=own: own.watchdog._heartbeat_loop(own.store))
            yield f"store gone for {number} {left} {sig} {over}", code, own.said, watched.told(own.ended)


def _leaving_inputs() -> Rows:
    """Which ranks died before a signal, what a rank reports as it exits, and how long rank 0 waits for others."""
    import pytest

    for near, dead, beating in product(((), (1,), (1, 2)), ((), (1,), (1, 2)), ((), (1,), (2,), (1, 2))):
        with pytest.MonkeyPatch.context() as patch:
            own = watched.Rank(0, patch, kind="openmpi")
            own.others.update({rank: replace(own.others[rank], host="h0") for rank in near})
            own.turn(3)

            def beat(seconds: float, own: Any = own, beating: tuple[int, ...] = beating) -> None:
                own.now += seconds
                for rank in beating if own.now > 4.2 else ():
                    heart = replace(own.others[rank], count=9, left="signal SIGTERM ended it")
                    own.store.set(f"ncclprobe/0/heartbeat/{rank}", json.dumps(asdict(heart)))

            patch.setattr(watchdog.time, "sleep", beat)
            patch.setattr(watchdog, "lives", lambda pid, own=own, dead=dead: pid not in dead or own.now < 4.4)
            own.watchdog._signal = "SIGTERM"
            code = watched.code_of(own.turn)
            yield f"near {near}, dead {dead}, beat {beating}", code, watched.told(own.ended), round(own.now, 3)
    for number, local, sig, code, told in product((1, 2), (0, 1), ("", "SIGINT"), (3, 4), (False, True)):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as words:
            own = watched.Rank(number, patch, local_rank=local)
            own.watchdog._signal = sig
            if not told:
                own.watchdog._callbacks = replace(own.watchdog._callbacks, exit_reason=None)
            end = Ending(why="why", code=ExitCode(code))
            left = watched.code_of(lambda own=own, end=end: own.watchdog._leave(end))
            yield f"rank {number} {local} {sig} {code} {told}", left, own.said, words.getvalue()
    by_signal = "signal SIGTERM ended it"
    lefts = ((DONE, DONE), (DONE, ""), ("", DONE), ("", by_signal), (by_signal, by_signal))
    for two, excluded, (sig, attached) in product(
        lefts, ((), (1,), (2, 1)), (("", False), ("", True), ("SIGTERM", True))
    ):
        with pytest.MonkeyPatch.context() as patch:
            own = watched.Rank(0, patch)
            own.watchdog._main_store = own.store if attached else None
            for rank_, left in zip((1, 2), two, strict=True):
                own.others[rank_] = replace(own.others[rank_], left=left)
            own.watchdog._send_heartbeat(own.store)
            own.turn()
            own.watchdog._signal = sig
            lost = own.watchdog.exclude(excluded)
            own.watchdog._unreachable = frozenset(excluded[1:])
            own.watchdog.dismiss(3)
            end = own.store.pop("ncclprobe/0/end", "")
            yield f"dismissed {two} {excluded} {sig} {attached}", lost, round(own.now, 3), end
    for number, sig, attached in product((0, 1), ("", "SIGTERM"), (False, True)):
        with pytest.MonkeyPatch.context() as patch:
            own = watched.Rank(number, patch)
            own.watchdog._send_heartbeat(own.store)
            own.watchdog._main_store = own.store
            own.watchdog.prepare("import torch")
            own.now += 5
            own.watchdog._signal = sig
            own.watchdog._heartbeat_thread = attached or None  # type: ignore[assignment]
            patch.setattr(watchdog, "wait_for_the_end", lambda own=own: own.leaves(99))
            asks = (lambda own=own: own.watchdog.set_phase("x"), lambda own=own: own.watchdog.failed("it is", (2,)))
            codes = [watched.code_of(ask) for ask in asks]
            own.watchdog._send_heartbeat(own.store)
            said = own.store[f"ncclprobe/0/heartbeat/{number}"].partition('"count"')[2]
            yield (
                f"failed {number} {sig} {attached}", codes, own.said, said, watched.told(own.ended),
                own.watchdog.late_s, own.watchdog.left_s(),
            )  # fmt: skip


FUNCTIONS = in_all_words({"hearts": _hearts_inputs, "watched": _watched_inputs, "leaving": _leaving_inputs})
