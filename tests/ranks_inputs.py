"""Who a rank is, who is lost, and how ranks end, from what others left behind: rows of `FUNCTIONS`."""

import base64
import contextlib
import io
import json
import os
import pickle
import re
import selectors
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from session import test_launch as started
from session import test_watchdog as watched
from session.hearts import PATIENCE, SIGTERM, Ranks, S, exclude, leaves, on, paused, signalled
from session.records import LOST, ROW_OK, bands, closed, of_run
from session.records import recorder as recorded

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth, pairs, workload
from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import Arrivals, Attendance, LostRank
from ncclprobe.host.capture import dump
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError, ProbeError, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.measurement import FirstCall, Samples, Skew, SkippedRow
from ncclprobe.model.values import asdict, replace
from ncclprobe.session.measure import node_snapshot, rank, recorder
from ncclprobe.session.ranks import group, identity, launch, rank_files, store
from ncclprobe.session.ranks.identity import RankInfo, agree_on
from ncclprobe.session.ranks.launch import RanksEnd
from ncclprobe.session.ranks.rank_files import RankFile, RankState
from ncclprobe.session.ssh import here, there
from ncclprobe.session.watchdog import ending as the_end
from ncclprobe.session.watchdog import watchdog
from ncclprobe.session.watchdog.ending import Ending
from ncclprobe.session.watchdog.heartbeat import DONE, OUT_OF_TIME_PERIODS, FailureDetector, Heartbeat
from tests.one_rank import HOSTS, Noted, Others, Rows, in_all_words, instead, run_of, seat, whole

_RESET, _BARRIER = "it failed (reset)", "it failed (barrier)"
_ALL = range(3)
_STEPS: dict[str, list[Any]] = {
    "well": [on(100)], "silent, not yet": [on(S - 1, silent=[2])], "silent": [on(S, silent=[2])],
    "two silent": [on(S, silent=[1, 2])],
    "one runs": [on(S, silent=[1, 2])], "one runs, nearly": [on(PATIENCE - 1, silent=[1])],
    "one runs, long": [on(PATIENCE, silent=[1])],
    "one missed": [on(S - 1, silent=[1]), on(1)] * 10, "silence explains": [leaves(1, _RESET), on(S, silent=[2])],
    "failed, not yet": [leaves(1, _RESET), on(S + 1)], "failed": [leaves(1, _RESET), on(S + 2)],
    "done": [leaves(1, DONE), on(3 * S, silent=[1])],
    "by a signal": [leaves(1, SIGTERM), on(3 * S)], "waited for 2": [leaves(0, _BARRIER, 2), on(S + 2)],
    "waited for 2, 1": [leaves(0, _BARRIER, 2, 1), on(S + 2)],
    "blame each other": [leaves(0, _RESET, 1), leaves(1, _RESET, 0), on(S + 2)],
    "blames nobody": [leaves(0, _RESET, 9), on(S + 2)],
    "two left, one blames": [leaves(2, _BARRIER, 1, 0), leaves(1, _RESET), on(S + 2)],
    "all left": [leaves(each, f"left {each}") for each in (2, 0, 1)] + [on(S + 2)],
    "behind": [on(1, standing=[1]), on(PATIENCE, standing=_ALL)],
    "not yet behind": [on(1, standing=[1]), on(PATIENCE - 1, standing=_ALL)],
    "most behind": [on(2, standing=[1]), on(1, standing=[2]), on(PATIENCE, standing=_ALL)],
    "two behind": [on(1, standing=[2, 1]), on(PATIENCE, standing=_ALL)],
    "stalled": [on(PATIENCE, standing=_ALL)], "not all": [on(PATIENCE, standing=[1, 2])],
    "away": [paused, on(S, silent=[1, 2])],
    "away and back": [paused, on(1), on(S, silent=[1, 2])], "back twice": [paused, on(2), on(S, silent=[1, 2])],
    "back for good": [paused, on(3), on(S, silent=[2])],
    "left while away": [leaves(1, "rank 0 had fallen silent for 5 s"), paused, on(S + 2)],
    "without 2": [on(S, silent=[2]), exclude(2)],
    "without 2, stalled": [exclude(2), on(PATIENCE + 2, silent=[2], standing=[0, 1])],
    "without 2, behind": [on(1, standing=[2]), exclude(2), on(PATIENCE, standing=_ALL)],
    "signal to 1": [signalled(1), on(S, silent=[2])], "signal to 0": [signalled(), on(S)],
    "signal to 0, early": [signalled(), on(S - 1)],
    "signal to 0 and 2": [signalled(2), on(S)], "signal, without 2": [signalled(2), exclude(2), on(S)],
    "signal to all": [signalled(1, 2), on(1)],
    "signal, 2 was out": [signalled(1), exclude(2), on(1)], "failed first": [leaves(2, _RESET), signalled(1), on(1)],
    "barrier": [leaves(2, _BARRIER, 1), on(1)], "barrier, out": [leaves(2, _BARRIER, 1), on(1), exclude(2)],
    "out by name": [leaves(2, _RESET), on(1), exclude(1)],
    "silent for 2": [on(2, silent=[2])], "silent for 3": [on(3, silent=[2])],
    "left just now": [leaves(1, _RESET), on(1)],
    "stood, not yet": [on(OUT_OF_TIME_PERIODS - 1, standing=_ALL)], "stood": [on(OUT_OF_TIME_PERIODS, standing=_ALL)],
    "long silent": [on(S + 3, silent=[2])],
    "2 failed": [leaves(2, _RESET), on(S + 3)], "0 silent": [on(S + 1, silent=[0])],
    "away, 2 left": [paused, leaves(2, _RESET), on(S + 3)],
}  # fmt: skip
_CAME = ((1, 1, 2, 17), (1, 1, 1, 16), (1, 1, 1, 15), (1, 20), (1, 30, 30, 30), (17, 2, 1, 1), (1, 2, 17, 18, 40))
_HOWS: tuple[dict[str, bool], ...] = ({}, {"signalled": True}, {"out_of_time": True}, {"tolerant": True})


def _lost(found: Attendance | None) -> str:
    return (
        "; ".join((*(f"{each.rank} {each.why}" for each in found.lost), *filter(None, [found.stalled])))
        if found
        else ""
    )


def _hearts_inputs() -> Rows:
    """Who is lost by made-up heartbeats, in each state of the run, and who never came or came late."""
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
            sorted(found.unreachable()),
            _lost(found.unresponsive(before, {1})),
            _lost(Attendance(3, found.exclude([2, 1]))),
        ]
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


_INFO = RankInfo("n0", 7, {"torch": "2.13.0", "nccl": "2.28.9"}, "nccl", "GPU-0", usable=8)
_MIG = [replace(_INFO, instance=f"MIG-{number}") for number in range(2)]
_NEWER = [replace(each, versions={"torch": "2.12.0", "nccl": "2.30.7"}) for each in _MIG]
_ROOMY = [_INFO, replace(_INFO, gpu="GPU-1"), replace(_INFO, host="n1")]
_GLOO = replace(_INFO, backend="gloo", gpu=None)
_TOGETHER: dict[str, list[RankInfo]] = {
    "three": _ROOMY, "two": _ROOMY[:2], "gloo": [_GLOO] * 2, "a note": [replace(_GLOO, note="no GPU")],
    "ids": [replace(each, host_id="a") for each in _ROOMY[:2]],
    "instances": _NEWER, "old instances": _MIG, "one instance": [_NEWER[0]] * 2,
    "2.30.beta": [replace(each, versions={"nccl": "2.30.b"}) for each in _MIG],
    "shows 2": [replace(each, usable=2) for each in _ROOMY], "shows 1": [replace(each, usable=1) for each in _ROOMY],
    "one apart": [_INFO, replace(_ROOMY[1], usable=1)],
    "gloo shows none": [replace(_GLOO, usable=0)] * 2, "backends": [_INFO, _ROOMY[1],
    replace(_ROOMY[1], host="n1", backend="gloo")], "plans": [_INFO, replace(_ROOMY[1], plan=8)],
    "one GPU": [_INFO, _ROOMY[1], _INFO], "one id": [replace(_INFO, host_id="a")] * 2,
    "an error": [_INFO, replace(_ROOMY[1], backend=None, error="torch can use none")],
    "two ids": [replace(_INFO, host_id="a"), replace(_INFO, host_id="b")],
    "two hosts": [_INFO, replace(_INFO, host="n1")], "no NCCL": [replace(_INFO, versions={"nccl": None})] * 2,
    "both differ": [replace(_INFO, note="first"), replace(_ROOMY[1], note="second", plan=8, backend="gloo")],
}  # fmt: skip
_ENTRY = {
    "profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "p2p_seq_id": 3, "is_p2p": False, "state": "scheduled",
    "retired": False, "input_sizes": [[4]],
}  # fmt: skip
_OVER = {**_ENTRY, "state": "completed", "retired": True}
_RECORDS: tuple[list[dict[str, Any]], ...] = (
    [], [_OVER], [{**_ENTRY, "state": "completed"}], [{**_ENTRY, "retired": True}],
    [_OVER, {**_ENTRY, "state": "started"}], [_OVER, *[_ENTRY] * 3], [_ENTRY, _ENTRY],
    [{**_ENTRY, "profiling_name": "nccl:send"}, _OVER, {**_ENTRY, "is_p2p": True}], [_ENTRY, _OVER, _ENTRY, _OVER],
    [{}],
)  # fmt: skip
_WHYS = (
    "Failed to CUDA calloc async 40 bytes", "Cuda failure 2 'out of memory'", "Cuda failure 700 'an illegal access'",
    "3 MiB are free: out of memory",
)  # fmt: skip
_BARRIERS = ("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms\nmore",
    " [Rank 0]: Ranks 1, 3,12 failed to pass monitoredBarrier in 3 ms ",
             "[Rank 1]: Rank 1 timed out waiting for response from rank 0\n\nmore")  # fmt: skip


def _agreements_inputs() -> Rows:
    """What ranks agree on, and what is said of a call that does not end."""
    for (name, infos), nodes in product(_TOGETHER.items(), (1, 2)):
        config = agree_on(infos, nodes)
        yield f"{name}, {nodes}", config, type(config)(**json.loads(whole(config)[0].replace("_", " "))) == config
    for entries in _RECORDS:
        yield (
            f"record of {[each.get('state') for each in entries]}",
            group.stuck({"entries": entries}),
            group.stuck({"version": "2.10"}),
        )
    import torch

    for text, free, backend in product(_WHYS, (3 << 20, (1 << 30) - 1, 1 << 30, None), ("nccl", "gloo", None)):

        def asked(device: int, free: int | None = free) -> tuple[int, int]:
            if free is None:
                raise RuntimeError("CUDA error")
            return free, (80 + device) << 30

        error = RuntimeError(f"NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nLast error:\n{text}")
        with instead(torch.cuda, mem_get_info=asked):
            yield f"{text[:30]}, {free}, {backend}", group.why(error, backend, 1)
    for text, backend in product(_BARRIERS, ("gloo", "nccl")):
        waited: list[Any] = []

        def barrier(text: str = text, waited: list[Any] = waited, **how: Any) -> None:
            waited.extend(map(str, how.values()))
            raise RuntimeError(text)

        with instead(torch.distributed, monitored_barrier=barrier):
            try:
                yield f"barrier {backend} {text[:9]}", group.barrier(backend, 1.5)
            except group.MissedBarrier as missed:
                yield f"barrier {backend} {text[:9]}", str(missed), missed.ranks, waited
    for error in (
        RuntimeError("EADDRINUSE: in use\nx"),
        RuntimeError("The client socket has timed out\nTraceback\nmore"),
    ):
        made = mock.Mock(side_effect=error)
        with mock.patch.object(torch.distributed, "TCPStore", made):
            try:
                store.connect(seat(1), serve=True, timeout_s=7.0)
            except NcclprobeError as refused:
                yield (
                    f"store: {error}"[:20], type(refused).__name__, str(refused), *made.call_args.args,
                    str(made.call_args.kwargs),
                )  # fmt: skip
    ticks = iter([0.0, 0.5, 1.0, 3.0, 9.0, 9.1])
    slept: list[float] = []
    exchange = store.Exchange(SimpleNamespace(check=lambda keys: keys == ["a/1"]), seat(), 9.0)  # type: ignore[arg-type]
    with instead(store.time, sleep=slept.append):
        try:
            exchange._wait(["a/0", "a/1", "a/2"], lambda: next(ticks))
        except ProbeError as error:
            yield "waits", str(error), slept


_CODES = (0, 1, 2, 3, 4, 77, -2, -9, -15, -40, 129, 130, 137, 143, 200)


def _ends_inputs() -> Rows:
    """What ranks that were started here left behind, and what their end is called."""
    for code, by in product(_CODES, ("", "SIGTERM")):
        yield f"ended {code} {by}", launch.exit_text(code, by), launch.unexpected_exits({5: code, 3: 77, 4: 0})
    state = RankState(0, "h0", "timing")
    states = {
        0: state,
        1: replace(state, rank=1, host="h1", exit_reason="rank 0 is silent"),
        2: replace(state, rank=2, exit_reason="late", exit_code=3),
    }
    for number, (codes, by) in enumerate(
        product(({}, {1: 4}, {0: -9, 1: 4}, {2: 3, 1: 4}, {1: 143}, {0: -2, 2: 0}, {2: 1}), ("", "SIGINT"))
    ):
        for received in ({}, {1: "SIGTERM"}):
            own = {each: replace(was, signal=received.get(each, "")) for each, was in states.items()}
            found = [launch.lost_ranks(own, codes, log_ended=over) for over in (True, False)]
            yield (
                f"left {number} {codes} {by} {len(received)}",
                *found,
                launch.signalled_alone(own, RanksEnd(codes, by)),
            )
    for phase, by, late in product((rank_files.START, rank_files.IMPORTING, "timing"), ("", "SIGTERM"), (True, False)):
        with instead(rank_files, read_state=replace(state, phase=phase)):
            yield f"cut short in {phase} {by} {late}", launch.cut_short(Path(), "h0", RanksEnd({}, by, late))
            whys = [launch.refusal(Path("/nowhere"), Path("/nowhere/log")), launch.all_started(Path(), 3)]
            yield f"refused in {phase} {by} {late}", *whys
    with TemporaryDirectory() as folder:
        own = RankFile(folder, 3, "h0")
        for phase in ("x" * 127, "x" * 128, "x" * 129, "\u2603" * 400):
            own.set_phase(phase)
            yield f"phase of {len(phase)} {phase[0]!r}", len(rank_files.read_state(Path(folder), 3, "").phase)
        own.leave("y" * 300, 3)
        own.signalled("SIGTERM")
        yield "state", rank_files.read_state(Path(folder), 3, ""), rank_files.read_state(Path(folder), 4, "h4")
        for text in ("A=1\0B=a=b\0C\0", "", "\xff=1"):
            (Path(folder) / "environ").write_bytes(text.encode("latin-1"))
            yield f"environment {text!r}", rank_files.environment(Path(folder) / "environ")
    for code, fail_on, given in product(
        range(6),
        ("fail", "warn"),
        ({}, {"TORCHELASTIC_RUN_ID": "x"}, {"TORCHELASTIC_RUN_ID": "x", rank_files.FOLDER: "/f"}),
    ):
        yield f"exit {code} {fail_on} {len(given)}", rank_files.explanation(code, given, fail_on=fail_on)


def _watched_inputs() -> Rows:
    """What ends a rank whose main thread is elsewhere, turn by turn on the clock of a test."""
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
        {"_heartbeat_thread": True, "met": True},
        {"_heartbeat_thread": True}, {"_preparing": True}, {"_signal": "SIGINT"},
        {"_signal": "SIGINT", "_heartbeat_thread": True},
        {"_heartbeat_thread": True, "_heartbeat_age_s": 8.0}, {"_heartbeat_thread": True, "_heartbeat_age_s": 8.6},
        {"_paused_s": 60.5},
        {"_heartbeat_thread": True, "_heartbeat_age_s": 4.6}, {"_heartbeat_thread": True, "_heartbeat_age_s": 4.0},
        {"_look_again": 61.0},
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
    """Who is looked at before a launcher kills all, how a rank says that it leaves, and how long others are awaited."""
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


_STATES = (
    ("S", 0x400, "0", 77, {}), ("R", 0x404, "0", 77, {"RANK": "1"}), ("Z", 0, "0", 77, {"RANK": "2"}),
    ("T", 0, "100", 77, {"RANK": "4"}), ("t", 0, "101", 77, {"RANK": "5"}), ("X", 0, "80", 77, {"RANK": "6"}),
    ("D", 0, "4000", 78, {"RANK": "7"}), ("S", 0, "0", 77, {"RANK": "8", "MASTER_PORT": "29998"}),
    ("S", 0, "0", 77, {"RANK": "x"}), ("S", 0, "0", 77, {"RANK": "9"}),
    ("S", 4, "0", 77, {"RANK": "3", "LOCAL_RANK": "3"}),
)  # fmt: skip


def _processes_inputs() -> Rows:
    """Which processes of this host run, which have been killed, and which are ranks beside this one."""
    job = {"RANK": "0", "WORLD_SIZE": "10", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    me, gone = os.getpid(), 1 << 23
    yield "real", the_end.runs(me), the_end.lives(me), the_end.runs(gone), the_end.lives(gone)
    with TemporaryDirectory() as folder:
        for pid, (state, flags, pending, parent, changes) in enumerate(_STATES, 10):
            own = Path(folder, "proc", str(pid))
            own.mkdir(parents=True)
            (own / "stat").write_text(f"{pid} (a) S 1 b) {state} {parent} 1 1 0 -1 {flags} 0\n")
            (own / "status").write_text(f"Name:\ta\nSigPnd:\t0\nShdPnd:\t{pending}\nSigBlk:\t100\n")
            (own / "environ").write_text("\0".join(f"{name}={value}" for name, value in {**job, **changes}.items()))
        found = identity.identify(detect({**job, "RANK": "3"}), {**job, "RANK": "3"})
        with instead(the_end, Path=lambda name: Path(folder + str(name))):
            for pid, row in enumerate(_STATES, 10):
                yield f"{row}", the_end.runs(pid), the_end.lives(pid)
            for parent in (77, 78, 7):
                with instead(the_end.os, getppid=parent):
                    yield f"beside, of {parent}", sorted(the_end.running_siblings(found))  # type: ignore[arg-type]


class _Process:
    """A rank's process, which ends with a code at a time of the clock of a test."""

    def __init__(self, now: list[float], said: list[Any], at: float, code: int) -> None:
        self._now, self._said, self._at, self._code = now, said, at, code

    def poll(self) -> int | None:
        return self._code if self._now[0] >= self._at else None

    returncode = property(poll)

    def send_signal(self, number: int) -> None:
        self._said.append((self._now[0], int(number), self._at))


_INT, _TERM = 2, 15
_WAITS: tuple[tuple[tuple[tuple[float, int], ...], tuple[tuple[float, int], ...], float, tuple[int, float]], ...] = (
    (((9.0, 0), (9.2, 0)), (), 8.0, (1, 99.0)), (((2.0, 1), (50.0, 0)), (), 99.0, (1, 99.0)),
    (((50.0, 0), (2.0, -9)), (), 99.0, (1, 99.0)), (((99.0, 0), (99.0, 0)), (), 99.0, (1, 99.0)),
    (((5.0, 3), (5.2, 3)), ((4.0, _INT),), 99.0, (1, 99.0)), (((5.0, 0), (9.0, -2)), ((1.0, _INT),), 99.0, (1, 99.0)),
    (((90.0, 3), (90.0, 3)), ((4.0, _TERM), (6.0, _INT)), 99.0, (1, 99.0)),
    (((90.0, 3), (8.0, 3)), ((4.0, _INT), (4.0, _TERM)), 99.0, (1, 99.0)),
    (((90.0, 3), (90.0, 3)), (), 99.0, (1, 4.0)), (((90.0, 3), (90.0, 3)), (), 99.0, (0, 4.0)),
    (((4.0, 0), (90.0, 3)), (), 3.0, (1, 99.0)), (((4.0, 0), (4.0, 4)), (), 3.0, (1, 99.0)),
    (((2.0, 1), (90.0, 3)), ((2.5, _TERM),), 99.0, (1, 99.0)), (((2.0, 4), (2.0, 3)), (), 99.0, (1, 99.0)),
    (((90.0, 0), (90.0, 0)), (), 18.0, (1, 99.0)),
)  # fmt: skip


def _waits_inputs() -> Rows:
    """What is sent to ranks that run, what is shown meanwhile, and how long one waits for them."""
    for ends, told, over_at, (speaks, at) in _WAITS:
        now, said, received, seen = [0.0], list[Any](), list[int](), dict[str, float]()

        def sleep(seconds: float, now: Any = now, told: Any = told, received: Any = received) -> None:
            now[0] = round(now[0] + seconds, 1)
            received += [number for when, number in told if when == now[0]]

        def state(folder: object, rank: int, host: str, now: Any = now, speaks: Any = (speaks, at)) -> Any:
            phases = (rank_files.START, rank_files.IMPORTING, "timing")
            phase = phases[(now[0] >= 1 + rank / 2) + (now[0] >= 2 + rank / 2)]
            return SimpleNamespace(phase=phase, exit_reason="why" if rank == speaks[0] and now[0] >= speaks[1] else "")

        shown = SimpleNamespace(
            end=lambda now=now, seen=seen: seen.setdefault("end", now[0]),
            begin=lambda text, now=now, seen=seen: seen.setdefault(text, now[0]),
        )
        clock = SimpleNamespace(monotonic=lambda now=now: now[0], sleep=sleep)
        ranks: Any = [_Process(now, said, *each) for each in ends]
        with (
            mock.patch.object(launch, "time", clock),
            instead(rank_files, read_state=state),
            instead(launch, ends=lambda log, now=now, over_at=over_at: now[0] >= over_at),
        ):
            end = launch.wait_for(ranks, Path(), Path(), 20.0, shown, received)  # type: ignore[arg-type]
        yield f"{ends} {told} {over_at} {speaks} {at}", end, said, seen, now


def _imports(run: started.Run) -> None:
    """Rank 0 may still import torch on a busy machine, when the time of another runs out."""
    started.no_log(run)
    run.rank_files[0].set_phase(rank_files.IMPORTING)
    run.rank_files[1].leave("--timeout ran out while this rank was in phase 'reach the store at h0:1'", 3)


_LEFT_BEHIND: tuple[tuple[Any, RanksEnd], ...] = (
    (started.left, RanksEnd({0: -9, 1: 4})), (started.left, RanksEnd({1: 4})), (started.half_a_line, RanksEnd({0: -9})),
    (started.half_a_line, RanksEnd({0: 77})), (started.no_log, RanksEnd({1: -9})),
    (started.Run.closes, RanksEnd({1: -11})),
    (started.heart_stopped, RanksEnd({1: -11, 0: 4})), (started.Run.closes, RanksEnd({0: 4})), (None, started.LATE),
    (started.Run.closes, RanksEnd({}, "SIGTERM")), (started.Run.closes, started.LATE), (None, RanksEnd({1: 3})),
    *((started.signalled_before_they_met, RanksEnd({1: code, 0: 3})) for code in (-15, 143, 3)),
        (None, RanksEnd({}, "SIGINT")),
    (started.signalled_before_they_met, RanksEnd({1: 143, 0: 3}, "SIGTERM")),
    (_imports, started.LATE),
)  # fmt: skip
_NO_ROOM = SkippedRow("all_reduce", 1 << 40, "memory", "two buffers need 2 TiB per rank and a rank has only 8 GiB free")
_SKIPPED = (
    SkippedRow("reduce", None, "refused", "Unsupported data type"), replace(_NO_ROOM, op="gather"), _NO_ROOM,
    SkippedRow("all_gather", 8, "small", "8 B is too little for 2 ranks to share"),
        SkippedRow("reduce", 8, "time", "it would take 9 s"),
)  # fmt: skip
_LOOSE = [replace(ROW_OK, precision=each, precision_asked=0.02, batches=40) for each in (0.01, 0.05, 0.031)]
_FILE: dict[str, Any] = {"expect": "bands.toml", "sizes": (8, 1 << 20)}
_RUNS: tuple[tuple[float, dict[str, Any], Any, Any, Ending | None], ...] = (
    (1.0, {}, [ROW_OK], (), None), (500.0, {}, [ROW_OK], (), None), (ROW.busbw_GBps, {}, [ROW_OK], (), None),
    (1.0, {}, [ROW], (), None),
    (1.0, {}, [replace(ROW, wrong=2)], (), None), (1.0, {}, [ROW_OK], (), Ending(why="ended by SIGINT")),
    (1.0, {}, [ROW_OK], (), LOST),
    (1.0, {}, [ROW_OK], (), Ending(attendance=Attendance(2, stalled="timing"))), (0.0, {}, [ROW_OK], (), None),
    (1.0, {}, [replace(ROW_OK, precision=0.9, precision_asked=None)], (), None),
    (0.0, {"require_judged": True}, [ROW_OK], (), None),
    (0.0, {"expect": "b"}, [ROW_OK], (), None), (0.0, {"baseline": "s"}, [ROW_OK], (), None),
    (1.0, _FILE, [replace(ROW_OK, nbytes=8)], (), None),
    (1.0, _FILE, [replace(ROW_OK, nbytes=8), ROW_OK], (), None),
    (1.0, {"notes": ("sizes end at 512 KiB",)}, [ROW_OK], (), None),
    (1.0, {}, [ROW_OK], _SKIPPED[3:4], None), (1.0, {"expect": "b"}, [ROW_OK], _SKIPPED, None),
    (1.0, {}, _LOOSE, (), None),
    (1.0, {"met": False}, [], (), Ending(arrivals=Arrivals(2, (1,), 60.0))),
    (1.0, {"met": False}, [], (), Ending(why="ended by SIGINT")),
    (1.0, {"accepts": True}, [ROW_OK], (), None), (1.0, {}, [], (), None),
    (1.0, {}, [replace(ROW_OK, ranks=2, skew=Skew(8, 4000.0, 100.0, 9000.0, (10.0, 9000.0), (0, 5)))],
     (FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1),), None),
    *((1.0, {}, [replace(ROW_OK, iters=20, samples=Samples(by_rank=(100.0,) * 8, by_batch=each))], (), None)
      for each in ((100.0, 101.0, 6e4, 99.0, 100.0), (100.0, 101.0, 2e4, 99.0, 100.0), (1e5, 101e3, 16e4), ())),
)  # fmt: skip


def _reports_inputs() -> Rows:
    """What the report of a run says by its rows and its end, and by what ranks that were started here left."""
    import pytest

    for number, (low, options, rows, skipped, ending) in enumerate(_RUNS):
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            record = recorded(Path(folder) / "r", bands(low) if low else (), **options)
            for row in rows:
                record.add(row)
            record.record(*skipped)
            report = closed(record, Path(folder) / "r", ending)
        whys = [verdict.why for verdict in report.checks if verdict.why and of_run(report).get(verdict.id) == "unknown"]
        yield (
            f"run {number}", report.exit_code, [row.status for row in report.measurements], report.notes,
            of_run(report), whys, report.first_call,
            [each for verdict in report.checks if verdict.id == "run.straggler" for each in verdict.findings],
        )  # fmt: skip
    for number, (before, end) in enumerate(_LEFT_BEHIND):
        with (
            TemporaryDirectory() as folder,
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stderr(io.StringIO()) as said,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            run = started.Run(Path(folder), patch)
            if before:
                before(run)
            report = run.settle(end)
        whys = [started.why(report, name) for name in ("run.rank-lost", "run.init")]
        yield (
            f"left {number}", report.exit_code, len(report.measurements), started.findings(report), whys,
            said.getvalue(),
        )  # fmt: skip


def _calls_inputs() -> Rows:
    """What hosts that are started over ssh answer, and what they are told."""
    for ordered, said in product(
        (False, True), ([b'{"version": "9.9", "gpus": 8}'], [b'{"version": "0.0.1"}'], [b"{"],
        [b'{"codes": [0, 3], "report": "r"}'], [], [b"x"] * 3),
    ):  # fmt: skip
        for pieces, complaint in ((1, b""), (3, b"Permission denied\n\nssh: \x1b[31mgone \nrest")):
            call = here.Call("n7", selectors.DefaultSelector())
            call.ordered, call._process = ordered, SimpleNamespace(returncode=255, poll=lambda: 255)  # type: ignore[assignment]
            with (
                mock.patch.object(here, "__version__", "9.9"),
                instead(call._selector, unregister=None),
                mock.patch.object(call, "close"),
            ):
                lines = call._take_err(complaint)
                text = (
                    b"Welcome ncclprobe\n"
                    + b"".join(b"x " + there.MARK + each + b"\n" for each in said)
                    + b"half a line"
                )
                for at in range(0, len(text), -(-len(text) // pieces)):
                    call._take_out(text[at : at - (-len(text) // pieces)])
                states = [call.open, call.present, call.over]
                if call.open:
                    call.give_up()
            yield f"{ordered} {said[:1]} {pieces}", call.hello, call.outcome, call.failure, states, lines
    for ordered, code, last in product((True, False), (255, 1, None), ([], ["denied"])):
        call = here.Call("n7", selectors.DefaultSelector())
        call.ordered = ordered
        call._process = SimpleNamespace(returncode=code) if code else None  # type: ignore[assignment]
        call._last += last
        with mock.patch.object(call, "close"):
            call.give_up()
        yield f"gave up {ordered} {code} {last}", call.failure
    for hello_s in (1.0, 3.9, 60.0):
        yield f"within {hello_s}", here.command("me@n7", "/opt/a b/python", hello_s)
    for extra in (0, 1):
        call = here.Call("n7", selectors.DefaultSelector())
        pipe = Noted()
        call._process = SimpleNamespace(stdin=pipe)  # type: ignore[assignment]
        room = there.ORDER_BYTES - len(here.msgspec.json.encode(there.Order(("",), ()))) - 1
        try:
            call.order(there.Order(("w" * (room + extra),), ()))
            yield f"order with {extra}", [each[0] for each in pipe.calls], call.ordered
        except NcclprobeError as refused:
            yield f"order with {extra}", str(refused), call.ordered
    for spoken in (
        [b"ab", b"c\n"], [b""], [b"x" * there.ORDER_BYTES, b"y\n"], [b"x" * (there.ORDER_BYTES + 1), b"y\n"], [b"ab",
        b""], [b"\n"],
    ):  # fmt: skip
        left = iter(spoken)
        with instead(there.os, read=lambda handle, most, left=left: next(left)):
            yield f"line of {len(spoken[0])} {len(spoken)}", len(there._line())
    for connection in (
        "10.0.0.9 1 10.0.0.7 22", "::1 1 ::1 22", "a 1 127.0.0.1 22", "10.0.0.9 1 10.0.0.7", "", "a 1 fd00::7 22",
    ):  # fmt: skip
        with instead(there, _free_port=20_001), mock.patch.dict(os.environ, {"SSH_CONNECTION": connection}):
            yield f"reached {connection}", replace(there.hello(), version="", gpus=0)
    with TemporaryDirectory() as name:
        for number, text in enumerate(("a", "bb", "ccc")):
            (Path(name) / f"{2 - number}.jsonl").write_text(text)
        for most in (0, 1, 3, 4, 5, 6):
            with mock.patch.object(bounds, "KEPT_BYTES", most):
                yield f"captures in {most}", there.read_captures(Path(name))


_SMALL = dump({("read", "/a"): "one"}, "n0")


def _untimed(capture: tuple[str, str]) -> tuple[str, str]:
    """Return a node and its capture without its time and version."""
    return capture[0], re.sub(r'"(taken|tool)": "[^"]*"', "", capture[1])


def _kept_inputs() -> Rows:
    """What a run asks for, the captures of its nodes, and how its parts begin and end."""
    for parse, argv in ((bandwidth.parse, ""), (bandwidth.parse,
        "--op reduce -b 8 -e 64 --require-judged --expect /dev/null --baseline /dev/null"), (pairs.parse, ""),
                        (workload.parse, "ddp --groups tp=2"), (workload.parse, "fsdp,tp --dtype float16"),
                        (bandwidth.parse, "--no-transport-detection --backend gloo")):  # fmt: skip
        for backend in ("gloo", "nccl"):
            yield f"asked {argv} {parse.__module__[-9:]} {backend}", recorder.asked(parse(argv.split()), backend)
    for end in (Ending(), Ending(why="w"), LOST, Ending(arrivals=Arrivals(2, (1,)))):
        yield f"bare {end.why} {bool(end.attendance)}", int(recorder.bare_code(end))
    parts_: tuple[Any, ...] = ("pairs", "copies")
    for part, left_s in product(parts_, (0.0, -3.0, 59.9, 60.0, 61.0)):
        yield f"{part} with {left_s}", rank.too_late(part, left_s, 300.0), rank.skipped_for_lost_ranks(part)
    packed = node_snapshot.pack(_SMALL)
    assert packed
    size = len(base64.b64decode(packed))
    for more in (-1, 0):
        with mock.patch.object(node_snapshot, "MOST_PACKED_BYTES", size + more):
            yield f"packed with {more}", bool(node_snapshot.pack(_SMALL)), node_snapshot.pack(None)
    for name, text in {
        "right": packed,
        "not base64": "?",
        "not zlib": "YWJj",
        "no capture": node_snapshot.pack("x"),
        "number": 7,
        "cut": packed[:40],
    }.items():
        yield f"unpacked {name}", node_snapshot.unpack(text, "n0") == _SMALL
    one = node_snapshot.pack(dump({("read", "/b"): "two"}, "rank 1"))
    received = [[True, packed], [False, one], None, [True, None]]
    others = [[True, packed], [False, one], [False, packed], [True, None]], [[False, one], [False, one], [True, one]]
    for hosts, each in zip((HOSTS, tuple("abb")), others, strict=True):
        firsts = node_snapshot.captures_for_first_ranks(hosts, each)
        yield f"first ranks of {hosts[-1]}", [[[own, text == packed] for own, text in those] for those in firsts]
    given = [[False, one], [True, packed], [True, packed], [True, one]]
    for hosts, answered in ((HOSTS, received), (HOSTS, given), (("n0",) * 4, [[True, packed]] * 4)):
        yield (
            f"captures {hosts[-1]} {answered[0][0]}",
            list(map(_untimed, node_snapshot.node_captures(hosts, answered))),
        )
    for look, number in product((None, Noted(capture=_SMALL)), (0, 1)):
        exchange: Any = Others([[False, one]], rank=number)
        with instead(node_snapshot, rank_capture=lambda node: dump({("read", "/c"): "three"}, node)):
            found = node_snapshot.gather_captures(exchange, cast(Any, look), "n0", ("n0", "n0"))
        told = [[leads, _untimed(("", node_snapshot.unpack(text, "n0") or ""))] for leads, text in exchange.said]
        yield f"gathered {bool(look)} {number}", list(map(_untimed, found or ())), told
    for intact, left_s, parts, number in product(
        (True, False), (200.0, 10.0), (("pairs", "ladder"), ("pairs",)), (0, 1)
    ):
        noted = Noted()
        made: Any = rank.Rank.__new__(rank.Rank)
        made._options = replace(run_of().options, what=parts, timeout_s=100.0)
        made._watchdog, made._recorder = Noted(left_s=left_s), None if number else noted
        exchange = Others(False, rank=number)
        yield (
            f"begins {intact} {left_s} {parts} {number}", made._begins("pairs", intact, exchange), exchange.said,
            noted.calls,
        )  # fmt: skip
    for waits, backend, record in product(
        (None, Attendance(2), Attendance(2, (LostRank(0, "h", "p", "w"), LostRank(1, "h", "p", "w"))), LOST.attendance),
        (None, "nccl"),
        ("", "stuck"),
    ):
        noted, made = Noted(close=4), rank.Rank.__new__(rank.Rank)
        made._recorder, made._identity, made._backend, made._options = noted, seat(2), backend, run_of().options
        with instead(group, in_flight=record), instead(rank, explain_exit=None):
            code = made._conclude(Ending(attendance=waits))
        yield (
            f"concludes {waits and len(waits.lost)} {backend} {record}",
            code,
            [call[:2] for call in noted.calls if call[0] == "note"],
        )
    yield "watchdog", watchdog.first_line(RuntimeError(" a\nb")), watchdog.first_line(RuntimeError("x" * 300))


_STUCK: dict[str, Any] = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "state": "started"}
_DUMPS: dict[str, Any] = {
    "stuck": {"entries": [{**_STUCK, "retired": True}, {**_STUCK, "collective_seq_id": 8, "input_sizes": [[4]]}]},
    "point to point": {"entries": [{**_STUCK, "is_p2p": True, "p2p_seq_id": 3}, _STUCK, _STUCK]},
    "over": {"entries": [_STUCK, {**_STUCK, "state": "completed"}]}, "bare": {"entries": [{}]}, "empty": {},
}  # fmt: skip


def _torchs_inputs() -> Rows:
    """What each torch's flight recorder has of a call, how each torch aborts, and how a rank's failure is told."""
    import torch
    import torch.distributed as dist

    dumps = {"_dump_nccl_trace": pickle.dumps, "_dump_nccl_trace_json": _as_json, "_dump_fr_trace_json": _as_json}
    for name, record in _DUMPS.items():
        yield f"record {name}", group.stuck(record)
    tables = ((), *((each,) for each in dumps), tuple(dumps)[1:])
    for names, backend, first in product(tables, ("nccl", "gloo"), ("stuck", "empty", "[1, ")):
        held: dict[str, Any] = {
            each: partial(dumps[each], _DUMPS.get(first if each == names[0] else "stuck", b"[1, ")) for each in names
        }
        with (
            mock.patch.dict("sys.modules", {"torch._C._distributed_c10d": SimpleNamespace(**held)}),
            mock.patch.object(torch._C, "_distributed_c10d", SimpleNamespace(**held)),
        ):
            yield f"recorded {names} {backend} {first}", group.in_flight(backend)  # type: ignore[arg-type]
    for names, ways, backend in product(
        ((), ("abort",)),
        (("abort", "_abort", "_shutdown"), ("_abort", "_shutdown"), ("_shutdown",), ()),
        ("nccl", "gloo"),
    ):
        done: list[str] = []
        asked: Any = SimpleNamespace(**{name: partial(done.append, f"group.{name}") for name in names})
        backends = SimpleNamespace(**{name: partial(done.append, f"backend.{name}") for name in ways})
        asked._get_backend = lambda device, backends=backends: backends
        with mock.patch.object(dist, "group", SimpleNamespace(WORLD=asked)):
            group.abort(backend)  # type: ignore[arg-type]
            yield f"aborts {names} {ways} {backend}", done, group.aborter() is None
    for error, number in product(
        (None, UsageError("no room"), group.MissedBarrier("missed", (2, 1)), ProbeError("rank 1: reset"),
        RuntimeError("reset\nmore"), group.MissedBarrier("who", ()), KeyError("bug")), (0, 1),
    ):  # fmt: skip
        log, left = Noted(), watched.LeftError()

        def failed(*given: Any, log: Any = log, left: Any = left) -> None:
            log.failed(*given)
            raise left

        made: Any = rank.Rank.__new__(rank.Rank)
        made._watchdog = SimpleNamespace(start=log.start, stop=log.stop, failed=failed)
        made._recorder, made._look = (None, None) if number else (SimpleNamespace(open=log.open, keep=log.keep), log)
        made._backend, made._device, made._host = "gloo", 0, None
        made._measure = mock.Mock(return_value=3) if error is None else mock.Mock(side_effect=error)
        with instead(rank, leave=log.leave), instead(rank.interference, xids_behind="; XID 79"):
            try:
                made.run()
                ended = ""
            except (NcclprobeError, watched.LeftError, KeyError) as raised:
                ended = f"{type(raised).__name__} {raised}"
        yield f"run of {number}, {error!r}", ended, log.calls


def _as_json(record: Any) -> bytes:
    return record if isinstance(record, bytes) else json.dumps(record).encode()


FUNCTIONS = in_all_words(
    {
        "hearts": _hearts_inputs,
        "agreements": _agreements_inputs,
        "ends-of-ranks": _ends_inputs,
        "watched": _watched_inputs,
        "leaving": _leaving_inputs,
        "processes-here": _processes_inputs,
        "waits": _waits_inputs,
        "calls": _calls_inputs,
        "reports-of-runs": _reports_inputs,
        "kept-of-runs": _kept_inputs,
        "failures-of-ranks": _torchs_inputs,
    }
)
