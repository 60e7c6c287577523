"""Dumps of torch's flight recorder: every release's keys, real ones, and which rank wrote them."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

from ncclprobe.facts.files.flight_child import MAX_FRAMES, dump
from ncclprobe.facts.files.flight_records import (
    COMPLETED,
    RETIRED,
    STARTED,
    FlightCall,
    FlightFrame,
    FlightGroup,
    rank_of,
    read_dumps,
)
from ncclprobe.logs.read import kind_of
from tests.each_row import each_row

RECORDED = sorted((Path(__file__).resolve().parents[1] / "data" / "failures").glob("*/fr_trace_rank_*.gz"))

ENTRY: dict[str, Any] = {
    "record_id": 40,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 41,
    "p2p_seq_id": 0,
    "op_id": 41,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1_700_000_000_000_000_000,
    "input_sizes": [[8, 4]],
    "input_dtypes": ["BFloat16"],
    "output_sizes": [[8, 4]],
    "output_dtypes": ["BFloat16"],
    "state": "started",
    "time_discovered_started_ns": 1_700_000_000_000_000_500,
    "time_discovered_completed_ns": None,
    "retired": False,
    "timeout_ms": 600_000,
    "is_p2p": False,
    "frames": [{"name": "step", "filename": "/job/train.py", "line": 12}],
}
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
STATUS = {"0": {"last_enqueued_collective": 41, "last_started_collective": 41, "last_completed_collective": 40}}


def whole(version: str, **changes: Any) -> dict[str, Any]:
    return {"version": version, "pg_config": CONFIG, "pg_status": STATUS, "entries": [ENTRY], **changes}


@each_row(
    ("version", "key"),
    [("2.1", ""), ("2.3", ""), ("2.5", "nccl_version"), ("2.7", "nccl_version"), ("2.10", "comm_lib_version")],
)
def test_the_keys_of_every_release(version: str, key: str) -> None:
    found = dump(whole(version, **({key: "2.28.9"} if key else {})))
    assert (found.version, found.library) == (version, "2.28.9" if key else "")
    assert found.groups == (FlightGroup("nccl", "0", "default_pg", (0, 1, 2, 3), 41, 41, 40, 600.0),)
    assert found.calls == (FlightCall("all_reduce", False, "[8, 4]", "[8, 4]", 32, 32, "BFloat16", "BFloat16"),)
    assert found.stacks[found.column("stack")[0]] == (FlightFrame("step", "/job/train.py", 12),)
    assert (found.column("seq")[0], found.column("state")[0], found.first_record) == (41, STARTED, 40)


def test_json_has_texts_for_numbers_and_zeros_for_none() -> None:
    status = {"0": {name: str(value) for name, value in STATUS["0"].items()}}
    entry = {**ENTRY, "process_group": ["0", "default_pg"], "time_discovered_completed_ns": 0}
    del entry["frames"]
    text = json.dumps(whole("2.10", entries=[entry], pg_status=status)).encode()
    (found,) = read_dumps([("rank_2.json", text)]).dumps
    assert (found.rank, found.groups[0].completed, found.column("state")[0]) == (2, 40, STARTED)
    assert kind_of(text) == "flight-recorder"


def test_a_dump_of_active_entries_alone_and_one_without_entries() -> None:
    assert len(dump(whole("2.10", entries=[]))) == 0
    found = dump({"version": "2.10", "pg_config": CONFIG, "pg_status": STATUS})
    assert (len(found), found.groups[0].ranks) == (0, (0, 1, 2, 3))


def test_sends_are_numbered_apart_from_collectives() -> None:
    send = {**ENTRY, "profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 7}
    found = dump(whole("2.10", entries=[send]))
    assert (found.column("seq")[0], found.calls[0].p2p, found.calls[0].op) == (7, True, "send 0->1")


def test_states() -> None:
    states = [("scheduled", False), ("started", True), ("completed", True)]
    entries = [{**ENTRY, "state": state, "retired": retired} for state, retired in states]
    found = dump(whole("2.10", entries=entries))
    assert list(found.column("state")) == [0, STARTED | RETIRED, STARTED | COMPLETED | RETIRED]


def test_many_tensors_and_long_stacks_are_shortened() -> None:
    entry = {**ENTRY, "input_sizes": [[2]] * 500, "frames": [ENTRY["frames"][0] | {"line": n} for n in range(90)]}
    found = dump(whole("2.10", entries=[entry]))
    assert found.calls[0].inputs == "[2], [2], [2], … (500 tensors)"
    assert found.calls[0].input_numel == 1000
    assert len(found.stacks[1]) == MAX_FRAMES


@each_row(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3),
        ("logs/comm_lib_trace_rank_12.gz", 12),
        ("job/rank3.late.fr.pickle", 3),
        ("dump_7.json", 7),
        ("host4/trace.pickle", None),
        ("2026-11-22_rank=5.pkl", 5),
    ],
)
def test_the_name_of_a_file_says_its_rank(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


def test_the_groups_say_the_rank_where_the_name_does_not_or_is_wrong() -> None:
    groups = (FlightGroup("nccl", "0", "", (0, 1, 2, 3)), FlightGroup("nccl", "5", "", (2, 9)))
    assert rank_of("trace.pickle", groups) == 2
    assert rank_of("trace_rank_3", groups) == 2
    assert rank_of("trace.pickle", groups[:1]) is None


def test_of_several_dumps_of_a_rank_the_newest_is_taken_and_the_one_with_stacks() -> None:
    old, new = whole("2.10"), whole("2.10", entries=[{**ENTRY, "time_created_ns": ENTRY["time_created_ns"] + 10**9}])
    bare = whole("2.10", entries=[{key: value for key, value in new["entries"][0].items() if key != "frames"}])
    files = [("a/rank_1", new), ("b/rank_1", old), ("c/rank_1", bare), ("none", new)]
    found = read_dumps((name, pickle.dumps(data, 2)) for name, data in files)
    assert [each.source for each in found.dumps] == ["a/rank_1"]
    assert [each.source for each in found.unplaced] == ["none"]


def test_every_dump_that_torch_wrote_is_read() -> None:
    found = read_dumps((str(path), gzip.decompress(path.read_bytes())) for path in RECORDED)
    assert not found.unread
    assert not found.unplaced
    assert len(RECORDED) > 60
    assert {each.version for each in found.dumps} == {"2.10"}
    assert all(each.left_out == 0 and len(each) for each in found.dumps)
