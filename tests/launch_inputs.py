"""How ranks that were started here or over ssh run, end and are reported: rows of `FUNCTIONS`."""

import contextlib
import io
import os
import selectors
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from session import test_launch as started
from session.records import LOST, ROW_OK, bands, closed, of_run, why
from session.records import recorder as recorded

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.launcher import detect
from ncclprobe.facts.run.samples import Arrivals, Attendance
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.measurement import FirstCall, Samples, Skew, SkippedRow
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.session.ranks import identity, launch, rank_files
from ncclprobe.session.ranks.launch import RanksEnd
from ncclprobe.session.ranks.rank_files import RankFile, RankState
from ncclprobe.session.ssh import here, there
from ncclprobe.session.watchdog import ending as the_end
from ncclprobe.session.watchdog.ending import Ending
from tests.one_rank import Noted, Rows, in_all_words, instead

_CODES = (0, 1, 2, 3, 4, 77, -2, -9, -15, -40, 129, 130, 137, 143, 200)


def _ends_inputs() -> Rows:
    """How each exit code is described, which ranks are reported lost, and what the files of ranks contain."""
    for code, by in product(_CODES, ("", "SIGTERM")):
        yield f"ended {code} {by}", launch.exit_text(code, by), launch.unexpected_exits({5: code, 3: 77, 4: 0})
    state = RankState(0, "h0", "timing")
    states = {
        0: state, 1: replace(state, rank=1, host="h1", exit_reason="rank 0 is silent"),
        2: replace(state, rank=2, exit_reason="late", exit_code=3)}  # fmt: skip
    for number, (codes, by) in enumerate(
        product(({}, {1: 4}, {0: -9, 1: 4}, {2: 3, 1: 4}, {1: 143}, {0: -2, 2: 0}, {2: 1}), ("", "SIGINT"))
    ):
        for received in ({}, {1: "SIGTERM"}):
            own = {each: replace(was, signal=received.get(each, "")) for each, was in states.items()}
            found = [launch.lost_ranks(own, codes, log_ended=over) for over in (True, False)]
            yield (
                f"left {number} {codes} {by} {len(received)}", *found, launch.signalled_alone(own, RanksEnd(codes, by)),
            )  # fmt: skip
    for phase, by, late in product((rank_files.START, rank_files.IMPORTING, "timing"), ("", "SIGTERM"), (True, False)):
        with instead(rank_files, read_state=replace(state, phase=phase)):
            yield f"cut short in {phase} {by} {late}", launch.cut_short(Path(), "h0", RanksEnd({}, by, late))
            whys = [launch.refusal(Path("/nowhere"), Path("/nowhere/log")), launch.all_started(Path(), 3)]
            yield f"refused in {phase} {by} {late}", *whys
    for at, failed, code, phase in (
        ("start_own", OSError(11, "busy"), 0, ""), ("make", OSError(28, "full"), 0, ""), ("find_spec", None, 0, ""),
        ("_run", None, 2, rank_files.IMPORTING), ("_run", None, 2, "timing"), ("_run", None, 3, rank_files.IMPORTING),
    ):  # fmt: skip

        def run(*given: Any, phase: str = phase, code: int = code) -> int:
            RankFile(given[3], 0, "h0").set_phase(phase)
            return code

        refused, options = mock.Mock(return_value=77), bandwidth.parse(["-q", "--backend", "gloo"])
        double = run if at == "_run" else mock.Mock(side_effect=failed, return_value=None)
        for asked in ((), (refused,)):
            with mock.patch.object(launch.scratch if at == "make" else launch, at, double):
                try:
                    told: object = launch.launch(2, options, ask(options.judging, (), Job(), MEASURED), *asked)
                except NcclprobeError as error:
                    told = str(error)
            yield f"begun {at} {code} {phase} {len(asked)}", told, str(refused.mock_calls)
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
        range(6), ("fail", "warn"),
        ({}, {"TORCHELASTIC_RUN_ID": "x"}, {"TORCHELASTIC_RUN_ID": "x", rank_files.FOLDER: "/f"})):  # fmt: skip
        yield f"exit {code} {fail_on} {len(given)}", rank_files.explanation(code, given, fail_on=fail_on)


_STATES = (
    ("S", 0x400, "0", 77, {}), ("R", 0x404, "0", 77, {"RANK": "1"}), ("Z", 0, "0", 77, {"RANK": "2"}),
    ("T", 0, "100", 77, {"RANK": "4"}), ("t", 0, "101", 77, {"RANK": "5"}), ("X", 0, "80", 77, {"RANK": "6"}),
    ("D", 0, "4000", 78, {"RANK": "7"}), ("S", 0, "0", 77, {"RANK": "8", "MASTER_PORT": "29998"}),
    ("S", 0, "0", 77, {"RANK": "x"}), ("S", 0, "0", 77, {"RANK": "9"}),
    ("S", 4, "0", 77, {"RANK": "3", "LOCAL_RANK": "3"}),
)  # fmt: skip


def _processes_inputs() -> Rows:
    """Which processes on this host run, which were killed, and which are other ranks of the same job."""
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
    """A rank's process that exits with this code at this time of a fake clock."""

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
    (((90.0, 3), (8.0, 3)), ((4.0, _INT), (4.0, _TERM)), 99.0, (1, 99.0)), (((90.0, 3), (90.0, 3)), (), 99.0, (1, 4.0)),
    (((90.0, 3), (90.0, 3)), (), 99.0, (0, 4.0)), (((4.0, 0), (90.0, 3)), (), 3.0, (1, 99.0)),
    (((4.0, 0), (4.0, 4)), (), 3.0, (1, 99.0)), (((2.0, 1), (90.0, 3)), ((2.5, _TERM),), 99.0, (1, 99.0)),
    (((2.0, 4), (2.0, 3)), (), 99.0, (1, 99.0)), (((90.0, 0), (90.0, 0)), (), 18.0, (1, 99.0)),
)  # fmt: skip


def _waits_inputs() -> Rows:
    """Which signals running ranks get, what is shown meanwhile, and how long the launcher waits for them."""
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
            begin=lambda text, now=now, seen=seen: seen.setdefault(text, now[0]))  # fmt: skip
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
    """Rank 0 may still be importing torch on a busy machine when another rank times out."""
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
    (started.signalled_before_they_met, RanksEnd({1: 143, 0: 3}, "SIGTERM")), (_imports, started.LATE),
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
    (1.0, {}, [ROW], (), None), (1.0, {}, [replace(ROW, wrong=2)], (), None),
    (1.0, {}, [ROW_OK], (), Ending(why="ended by SIGINT")), (1.0, {}, [ROW_OK], (), LOST),
    (1.0, {}, [ROW_OK], (), Ending(attendance=Attendance(2, stalled="timing"))), (0.0, {}, [ROW_OK], (), None),
    (1.0, {}, [replace(ROW_OK, precision=0.9, precision_asked=None)], (), None),
    (0.0, {"require_judged": True}, [ROW_OK], (), None), (0.0, {"expect": "b"}, [ROW_OK], (), None),
    (0.0, {"baseline": "s"}, [ROW_OK], (), None), (1.0, _FILE, [replace(ROW_OK, nbytes=8)], (), None),
    (1.0, _FILE, [replace(ROW_OK, nbytes=8), ROW_OK], (), None),
    (1.0, {"notes": ("sizes end at 512 KiB",)}, [ROW_OK], (), None), (1.0, {}, [ROW_OK], _SKIPPED[3:4], None),
    (1.0, {"expect": "b"}, [ROW_OK], _SKIPPED, None), (1.0, {}, _LOOSE, (), None),
    (1.0, {"met": False}, [], (), Ending(arrivals=Arrivals(2, (1,), 60.0))),
    (1.0, {"met": False}, [], (), Ending(why="ended by SIGINT")), (1.0, {"accepts": True}, [ROW_OK], (), None),
    (1.0, {}, [], (), None),
    (1.0, {}, [replace(ROW_OK, ranks=2, skew=Skew(8, 4000.0, 100.0, 9000.0, (10.0, 9000.0), (0, 5)))],
     (FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1),), None),
    *((1.0, {}, [replace(ROW_OK, iters=20, samples=Samples(by_rank=(100.0,) * 8, by_batch=each))], (), None)
      for each in ((100.0, 101.0, 6e4, 99.0, 100.0), (100.0, 101.0, 2e4, 99.0, 100.0), (1e5, 101e3, 16e4), ())),
)  # fmt: skip


def _reports_inputs() -> Rows:
    """What the report of a run says, given its rows and its ending, or the files that local ranks left behind."""
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
        whys = [why(report, name) for name in ("run.rank-lost", "run.init")]
        yield (
            f"left {number}", report.exit_code, len(report.measurements), started.findings(report), whys,
            said.getvalue(),
        )  # fmt: skip


def _calls_inputs() -> Rows:
    """What hosts that are started over ssh answer, how such a call fails, and what is sent to them."""
    for ordered, said in product(
        (False, True), ([b'{"version": "9.9", "gpus": 8}'], [b'{"version": "0.0.1"}'], [b"{"],
        [b'{"codes": [0, 3], "report": "r"}'], [], [b"x"] * 3),
    ):  # fmt: skip
        for pieces, complaint in ((1, b""), (3, b"Welcome\nPermission denied\n\nssh: \x1b[31mgone \nrest")):
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
    for ordered, more in product((False, True), (0, 1)):
        call = here.Call("n7", selectors.DefaultSelector())
        call.ordered = ordered
        with mock.patch.multiple(bounds, SSH_LINES_BYTES=20, REPORT_BYTES=20, KEPT_BYTES=10):
            call._take_out(b"x" * (19 + 10 * ordered) + b"\n" + b"y" * more)
            lines = call._take_err(b"c" * 19 + b"\n"), call._take_err(b"d" * more + b"\n"), len(call._last)
        yield f"{more} beyond, {ordered}", call.failure, lines
    with mock.patch.object(here, "start", side_effect=OSError(2, "not found")):
        try:
            here.Call("n7", selectors.DefaultSelector()).start("python3", 9.0)
        except NcclprobeError as absent:
            yield "no ssh", str(absent)
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


FUNCTIONS = in_all_words({
    "ends-of-ranks": _ends_inputs, "processes-here": _processes_inputs, "waits": _waits_inputs, "calls": _calls_inputs,
    "reports-of-runs": _reports_inputs,
})  # fmt: skip
