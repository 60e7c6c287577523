"""Dumps of torch's flight recorder: each release's keys, real ones, which rank wrote them, and ones made to harm."""

import gzip
import json
import os
import pickle
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclprobe.facts.files import flight_child, flight_records
from ncclprobe.facts.files.flight_child import MAX_ENTRIES, MAX_INTEGER, dump, read
from ncclprobe.facts.files.flight_records import (
    COMPLETED,
    RETIRED,
    STARTED,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
    is_dump,
    rank_of,
    read_dump,
    read_dumps,
)
from ncclprobe.host import limited_child
from ncclprobe.host.limited_child import MAX_ANSWER_BYTES, LimitedChild
from ncclprobe.logs.read import kind_of
from ncclprobe.model.errors import Denied, Failed, HostError, TimedOut
from ncclprobe.model.values import replace
from tests.each_row import each_row
from tests.facts.hostile_pickles import hostile, mutated

RECORDED = sorted((Path(__file__).resolve().parents[1] / "data" / "failures").glob("*/fr_trace_rank_*.gz"))
CHILD = "ncclprobe.facts.files.flight_child"
ENTRY: dict[str, Any] = {
    "record_id": 40, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 41, "p2p_seq_id": 0,
    "op_id": 41, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000,
    "input_sizes": [[8, 4]], "input_dtypes": ["BFloat16"], "output_sizes": [[8, 4]], "output_dtypes": ["BFloat16"],
    "state": "started", "time_discovered_started_ns": 1_700_000_000_000_000_500,
    "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600_000, "is_p2p": False,
    "frames": [{"name": "step", "filename": "/job/train.py", "line": 12}]}  # fmt: skip
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
STATUS = {"0": {"last_enqueued_collective": 41, "last_started_collective": 41, "last_completed_collective": 40}}
GOOD = pickle.dumps({"version": "2.4", "entries": [ENTRY]}, 2)


def whole(version: str, **changes: Any) -> dict[str, Any]:
    """Return a dump of this version, as torch writes it."""
    return {"version": version, "pg_config": CONFIG, "pg_status": STATUS, "entries": [ENTRY], **changes}


def of(*entries: Any, **changes: Any) -> FlightDump:
    """Return what is made of these changes to an entry."""
    return dump(whole("2.10", entries=[{**ENTRY, **each} for each in entries], **changes))


@each_row(
    ("version", "key"),
    [("2.1", ""), ("2.3", ""), ("2.5", "nccl_version"), ("2.7", "nccl_version"), ("2.10", "comm_lib_version")],
)
def test_the_keys_of_every_release(version: str, key: str) -> None:
    found = dump(whole(version, **({key: "2.28.9"} if key else {})))
    assert (found.version, found.library) == (version, "2.28.9" if key else "")
    assert found.groups == (FlightGroup("nccl", "0", "default_pg", (0, 1, 2, 3), 41, 41, 40, 600.0),)
    assert found.calls == (FlightCall("all_reduce", False, "[8, 4]", "[8, 4]", 32, 32, "BFloat16", "BFloat16"),)
    assert str(found.calls[0]) == "all_reduce of [8, 4] BFloat16"
    assert found.stacks[found.column("stack")[0]] == (FlightFrame("step", "/job/train.py", 12),)
    assert (found.column("seq")[0], found.column("state")[0], found.first_record) == (41, STARTED, 40)


def test_json_has_texts_for_numbers_and_zeros_for_none_and_may_be_a_list() -> None:
    status = {"0": {name: str(value) for name, value in STATUS["0"].items()}}
    entry = {**ENTRY, "process_group": ["0", "default_pg"], "time_discovered_completed_ns": 0}
    del entry["frames"]
    text = json.dumps(whole("2.10", entries=[entry], pg_status=status)).encode()
    (found,) = read_dumps([("rank_2.json", text)]).dumps
    assert (found.rank, found.groups[0].completed, found.column("state")[0]) == (2, 40, STARTED)
    assert kind_of(text) == "flight-recorder"
    bare = read(json.dumps([entry]))
    assert isinstance(bare, FlightDump)
    assert (len(bare), bare.groups[0].ranks, bare.groups[0].enqueued) == (1, (), None)


def test_entries_are_columns_and_groups_without_entries_are_kept() -> None:
    assert len(of()) == 0
    found = dump({"version": "2.10", "pg_config": CONFIG, "pg_status": {"0": {"last_enqueued_collective": -1}}})
    assert (len(found), found.groups[0].ranks, found.groups[0].enqueued) == (0, (0, 1, 2, 3), None)
    send = of({"profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 7})  # numbered apart
    assert (send.column("seq")[0], send.calls[0].p2p, send.calls[0].op) == (7, True, "send 0->1")
    states = [("scheduled", False), ("started", True), ("completed", True), ("odd", False)]
    found = of(*({"state": state, "retired": retired} for state, retired in states))
    assert list(found.column("state")) == [0, STARTED | RETIRED, STARTED | COMPLETED | RETIRED, 0]
    found = of({"input_sizes": [[2]] * 4, "frames": [ENTRY["frames"][0] | {"line": n} for n in range(90)]},
               {"input_sizes": [[2]] * 3, "input_dtypes": ["Float", "Int", "Float"]}, {})  # fmt: skip
    assert [each.inputs for each in found.calls] == ["[2], [2], [2], … (4 tensors)", "[2], [2], [2]", "[8, 4]"]
    assert ([each.input_numel for each in found.calls], found.calls[1].input_dtype) == ([8, 6, 32], "Float+Int")
    assert [len(each) for each in found.stacks] == [0, 24, 1]


@each_row(
    ("change", "kept"),
    [
        (None, False), ({"collective_seq_id": -1}, False), ({"input_sizes": [["a"]]}, False), ({"frames": 7}, False),
        ({"record_id": "first"}, False), ({"collective_seq_id": MAX_INTEGER}, True),
        ({"collective_seq_id": MAX_INTEGER + 1}, False), ({"input_sizes": [[MAX_INTEGER, 1]]}, True),
        ({"input_sizes": [[MAX_INTEGER, 2]]}, False), ({"process_group": (7, "x")}, False),
        ({"time_created_ns": None}, True), ({"timeout_ms": "x"}, False), ({"collective_seq_id": 0}, True),
    ])  # fmt: skip
def test_entries_that_torch_would_not_write_are_left_out_and_counted(change: dict[str, Any] | None, kept: bool) -> None:
    found = dump(whole("2.10", entries=[{**ENTRY, **change} if change is not None else None, ENTRY]))
    assert (len(found), found.left_out) == ((2, 0) if kept else (1, 1))


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_child, "MAX_TABLE", 2)
    names = [{"process_group": (str(n), ""), "profiling_name": f"nccl:{n}"} for n in range(3)]
    assert (len(of(*names)), of(*names).left_out) == (2, 1)
    calls = [{"profiling_name": f"nccl:{n}"} for n in range(3)]
    assert (len(of(*calls)), of(*calls).left_out) == (2, 1)
    stacks = [{"frames": [ENTRY["frames"][0] | {"line": n}]} for n in range(3)]
    assert list(of(*stacks).column("stack")) == [1, 0, 0]  # the first is that of no stack
    entries = [{**ENTRY, "collective_seq_id": number} for number in range(MAX_ENTRIES + 7)]
    found = dump(whole("2.10", entries=entries))
    assert (len(found), found.left_out, found.column("seq")[-1]) == (MAX_ENTRIES, 7, MAX_ENTRIES + 6)


@each_row(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3), ("logs/comm_lib_trace_rank_12.gz", 12), ("job/rank3.late.fr.pickle", 3),
        ("dump_7.json", 7), ("host4/trace.pickle", None), ("2026-11-22_rank=5.pkl", 5), ("rank1/rank2", 2),
    ])  # fmt: skip
def test_the_name_of_a_file_says_its_rank_and_the_groups_where_it_does_not_or_is_wrong(
    name: str, rank: int | None
) -> None:
    assert rank_of(name) == rank
    groups = (FlightGroup("nccl", "0", "", (0, 1, 2, 3)), FlightGroup("nccl", "5", "", (2, 9)))
    assert rank_of("trace.pickle", groups) == rank_of("trace_rank_3", groups) == 2
    assert rank_of("rank_1_of_rank_2", groups[:1]) == 2
    assert rank_of("trace.pickle", groups[:1]) is None


def test_of_several_dumps_of_a_rank_the_newest_is_taken_and_the_one_with_stacks() -> None:
    new = whole("2.10", entries=[{**ENTRY, "time_created_ns": ENTRY["time_created_ns"] + 10**9}])
    bare = whole("2.10", entries=[{key: value for key, value in new["entries"][0].items() if key != "frames"}])
    files = [("a/rank_1", new), ("b/rank_1", whole("2.10")), ("c/rank_1", bare), ("none", new), ("d/rank_0", new)]
    found = read_dumps([*((name, pickle.dumps(data, 2)) for name, data in files), ("odd", b"{")])
    assert [each.source for each in found.dumps] == ["d/rank_0", "a/rank_1"]
    assert ([each.source for each in found.unplaced], [each.source for each in found.unread]) == (["none"], ["odd"])


def test_every_dump_that_torch_wrote_is_read() -> None:
    packed = [(str(path), gzip.decompress(path.read_bytes())) for path in RECORDED]
    found = read_dumps(packed)
    assert (found.unread, found.unplaced, len(packed) > 60) == ((), (), True)
    assert {(each.version, each.left_out) for each in found.dumps} == {("2.10", 0)}
    assert all(map(len, found.dumps))
    assert all(is_dump(data[:4096]) for _, data in packed)
    for head in (b"", b"\x80\x01", b"\x80\x06", b"loss 3", b'{"a": 1}', b"x[" + b'"pg_config"'):
        assert not is_dump(head)
    assert is_dump(b"\x80\x05") and is_dump(b' [{"profiling_name"')  # noqa: PT018


# Harm.


@pytest.fixture(scope="module")
def child() -> Iterator[LimitedChild]:
    with LimitedChild(CHILD) as found:
        yield found


@each_row("name", hostile(Path("/")))
def test_a_hostile_dump_is_refused_or_holds_no_entry_and_runs_nothing(
    name: str, child: LimitedChild, tmp_path: Path
) -> None:
    found = read_dump(child, hostile(tmp_path / "mark")[name])
    assert isinstance(found, str) or not len(found)
    assert not (tmp_path / "mark").exists()
    after = read_dump(child, GOOD)
    assert isinstance(after, FlightDump), "the next dump is read"
    assert len(after) == 1
    reasons = {"os.system": "it asks for posix.system: a dump holds only data, so this may be an attack",
               "an index that wants 32 GiB": "reading it takes more than 512 MiB"}  # fmt: skip
    assert found == reasons.get(name, found)


def test_damage_of_any_sort_is_refused_or_read(child: LimitedChild) -> None:
    dice = random.Random(18)
    for _ in range(300):
        assert isinstance(read_dump(child, mutated(GOOD, dice)), FlightDump | str)


@each_row(
    ("data", "why"),
    [
        (pickle.dumps({"weights": [1]}, 2), "it holds no flight recorder's entries"),
        (pickle.dumps(7, 2), "it holds no flight recorder's entries"),
        (b'{"entries": 7}', "it holds no flight recorder's entries"),
        (GOOD[:-9], "it is damaged or cut: "),
        (GOOD.decode("latin-1"), "it is damaged or cut: "),  # a text is no pickle
        ("[" * 100_000, "it is damaged or cut: "),
        (json.dumps({"entries": [ENTRY], "pg_config": {"0": {"ranks": "[" + "9" * 5000 + "]"}}})[:-1], "it is damaged"),
        ('{"entries": [' + "{}," * 10 + "1e999]}", "it is damaged or cut: "),
        (pickle.dumps({"entries": [7, {}]}, 2), "none of its 2 entries is in torch's format"),
        (pickle.dumps({"entries": [], "pg_config": {"0": 7}, "pg_status": [1]}, 2), ""),
    ])  # fmt: skip
def test_what_is_no_dump_of_torch_says_so(data: bytes | str, why: str) -> None:
    found = read(data)
    assert found.startswith(why) if isinstance(found, str) and why else isinstance(found, FlightDump)


def test_an_entry_that_is_deeper_than_any_of_torch_ends_nothing() -> None:
    deep = json.dumps({"entries": [ENTRY, {**ENTRY, "input_sizes": 0}]})
    found = read(deep.replace(": 0}]}", f": {'[' * 900}{']' * 900}}}]}}"))
    assert isinstance(found, str) or (len(found), found.left_out) == (1, 1)


def test_a_dump_that_is_too_long_or_an_answer_that_is_nonsense_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering(LimitedChild):
        def __init__(self, answer: bytes | HostError) -> None:
            self.answer = answer

        def ask(self, request: bytes, patience_s: float) -> bytes:
            if isinstance(self.answer, HostError):
                raise self.answer
            return self.answer

    good = msgspec.msgpack.encode(of({}))
    assert read_dump(Answering(good), b"x") == of({})
    assert read_dump(Answering(TimedOut("late")), b"x") == "late"
    for nonsense in (b"\xc1", msgspec.msgpack.encode(replace(of({}), seq=b"")),
                     msgspec.msgpack.encode(replace(of({}), calls=()))):  # fmt: skip
        assert "the process that was asked answered nonsense" in str(read_dump(Answering(nonsense), b"x"))
    for module in (flight_child, flight_records):
        monkeypatch.setattr(module, "MAX_DUMP_BYTES", len(GOOD))
    assert (isinstance(read(GOOD), FlightDump), read(GOOD + b"x")) == (True, "it is longer than 0 MiB")
    assert read_dump(Answering(good), GOOD + b"x") == "it is longer than 0 MiB"


# The child itself.

OURS, MOST = "facts.child_for_tests", 1 << 20


@each_row(
    ("request_", "why"),
    [(b"open", "code 86"), (b"exec", "code 86"), (b"import", "code 86"), (b"memory", "ended with code"),
     (b"long", "64 MiB"), (b"x" * (MOST + 1), "ended with code 0"),
     (b"closes", "the process that was asked does not answer")])  # fmt: skip
def test_a_child_cannot_open_run_import_or_grow_and_the_next_request_has_another(request_: bytes, why: str) -> None:
    with LimitedChild(OURS) as child:
        with pytest.raises(Failed, match=why):
            child.ask(request_, 30.0)
        assert (child.started, child.ask(b"echo", 30.0), child.started) == (False, b"echo", True)
    assert not child.started


def test_a_child_has_memory_for_its_work_arrays_and_limits_on_all_else() -> None:
    with LimitedChild(OURS) as child:
        assert child.ask(b"some", 30.0) == b"\0"
        assert child.ask(b"array", 30.0) == bytes(3)
        assert child.ask(b"limits", 30.0) == b"0 0 0 0 268435456 268435456"
        assert child.ask(b"x" * MOST, 30.0) == b"x" * MOST
    with LimitedChild(OURS, 100) as child:
        assert child.ask(b"x" * 100, 30.0) == b"x" * 100
        with pytest.raises(Failed, match="the answer is longer than 0 MiB"):
            child.ask(b"x" * 101, 30.0)
    assert MAX_ANSWER_BYTES == 64 << 20


def test_a_child_that_is_late_killed_or_does_not_start_is_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with LimitedChild(OURS) as child:
        with pytest.raises(TimedOut, match="reading it took too long"):
            child.ask(b"sleep", 0.3)
        for sent, why in ((signal.SIGSTOP, "not taken in time"), (signal.SIGKILL, "was ended by SIGKILL")):
            child.ask(b"echo", 30.0)
            assert child._process
            os.kill(child._process.pid, sent)
            with pytest.raises(TimedOut if sent is signal.SIGSTOP else Failed, match=why):
                child.ask(b"x" * MOST, 0.5 if sent is signal.SIGSTOP else 30.0)
        assert child.ask(b"echo", 30.0) == b"echo"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(limited_child, "start_own", refuse)
    with LimitedChild(OURS) as child, pytest.raises(Denied):
        child.ask(b"echo", 30.0)
