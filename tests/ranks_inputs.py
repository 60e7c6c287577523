"""What ranks agree on, what a run keeps, and how the calls of ranks fail: rows of `FUNCTIONS`."""

import base64
import json
import pickle
import re
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from session import test_watchdog as watched
from session.records import LOST

from ncclprobe.commands import bandwidth, pairs, workload
from ncclprobe.facts.run.samples import Arrivals, Attendance, LostRank
from ncclprobe.host.capture import dump
from ncclprobe.model.errors import NcclprobeError, ProbeError, UsageError
from ncclprobe.model.values import replace
from ncclprobe.session.measure import node_snapshot, rank, recorder
from ncclprobe.session.ranks import group, store
from ncclprobe.session.ranks.identity import RankInfo, agree_on
from ncclprobe.session.watchdog import watchdog
from ncclprobe.session.watchdog.ending import Ending
from tests.one_rank import HOSTS, Noted, Others, Rows, in_all_words, instead, run_of, seat, whole

_INFO = RankInfo("n0", 7, {"torch": "2.13.0", "nccl": "2.28.9"}, "nccl", "GPU-0", usable=8)
_MIG = [replace(_INFO, instance=f"MIG-{number}") for number in range(2)]
_NEWER = [replace(each, versions={"torch": "2.12.0", "nccl": "2.30.7"}) for each in _MIG]
_ROOMY = [_INFO, replace(_INFO, gpu="GPU-1"), replace(_INFO, host="n1")]
_GLOO = replace(_INFO, backend="gloo", gpu=None)
_TOGETHER: dict[str, list[RankInfo]] = {
    "three": _ROOMY, "two": _ROOMY[:2], "gloo": [_GLOO] * 2, "a note": [replace(_GLOO, note="no GPU")],
    "ids": [replace(each, host_id="a") for each in _ROOMY[:2]], "instances": _NEWER, "old instances": _MIG,
    "one instance": [_NEWER[0]] * 2, "2.30.beta": [replace(each, versions={"nccl": "2.30.b"}) for each in _MIG],
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
    """The configuration that ranks agree on, and the messages for calls that hang, fail or time out."""
    for (name, infos), nodes in product(_TOGETHER.items(), (1, 2)):
        config = agree_on(infos, nodes)
        yield f"{name}, {nodes}", config, type(config)(**json.loads(whole(config)[0])) == config
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
        RuntimeError("The client socket has timed out\nTraceback\nmore")):  # fmt: skip
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


_SMALL = dump({("read", "/a"): "one"}, "n0")


def _untimed(capture: tuple[str, str]) -> tuple[str, str]:
    """Return a node and its capture without the time and the version."""
    return capture[0], re.sub(r'"(taken|tool)": "[^"]*"', "", capture[1])


def _kept_inputs() -> Rows:
    """What a run asks for, which captures of its nodes it keeps, and how its parts begin and end."""
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
    odd = {"right": packed, "not base64": "?", "not zlib": "YWJj", "no capture": node_snapshot.pack("x"), "number": 7}
    for name, text in (odd | {"cut": packed[:40]}).items():
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
        (None, "nccl"), ("", "stuck")):  # fmt: skip
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
    """What each torch's flight recorder shows of a call, how each torch aborts, and how a rank reports a failure."""
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
        ((), ("abort",)), (("abort", "_abort", "_shutdown"), ("_abort", "_shutdown"), ("_shutdown",), ()),
        ("nccl", "gloo")):  # fmt: skip
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


FUNCTIONS = in_all_words({
    "agreements": _agreements_inputs, "kept-of-runs": _kept_inputs, "failures-of-ranks": _torchs_inputs,
})  # fmt: skip
