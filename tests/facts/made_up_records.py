"""Dumps of torch's flight recorder and answers of NCCL's RAS: `texts-records.txt` keeps what is made of each."""

import gzip
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.checks.log import silence
from ncclprobe.facts.files.flight_child import MAX_INTEGER, dump, read
from ncclprobe.facts.files.flight_records import (
    COLUMNS,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
    is_dump,
    rank_of,
    records,
)
from ncclprobe.facts.files.ras import RasStatus, by_operation, read_answer
from ncclprobe.logs.read import kind_of

FRAME = {"name": "step", "filename": "/job/train.py", "line": 12}
ENTRY: dict[str, Any] = {
    "record_id": 40, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 41, "p2p_seq_id": 0,
    "op_id": 41, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000,
    "input_sizes": [[8, 4]], "input_dtypes": ["BFloat16"], "output_sizes": [[8, 4]], "output_dtypes": ["BFloat16"],
    "state": "started", "time_discovered_started_ns": 1_700_000_000_000_000_500,
    "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600_000, "is_p2p": False,
    "frames": [FRAME]}  # fmt: skip
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
STATUS = {"0": {"last_enqueued_collective": 41, "last_started_collective": 41, "last_completed_collective": 40}}
GOOD = pickle.dumps({"version": "2.4", "entries": [ENTRY]}, 2)


def whole(version: str, **changes: Any) -> dict[str, Any]:
    """Return a dump of this version, as torch writes it."""
    return {"version": version, "pg_config": CONFIG, "pg_status": STATUS, "entries": [ENTRY], **changes}


def of(*entries: Any, **changes: Any) -> FlightDump:
    """Return what is made of these changes to an entry."""
    return dump(whole("2.10", entries=[{**ENTRY, **each} for each in entries], **changes))


def _told(found: FlightDump | str) -> object:
    if isinstance(found, str):
        return found.partition("Error: ")[0]
    columns = {name: list(found.column(name)) for name in COLUMNS}
    return found.version, found.library, found.groups, found.calls, found.stacks, columns, (
        found.first_record, found.left_out, found.source, found.rank)  # fmt: skip


def _entry(change: dict[str, Any] | None) -> object:
    """What is told of an entry, and of one of torch behind it: groups, calls, stacks and columns that differ."""
    usual, found = of({}), dump(whole("2.10", entries=[change if change is None else {**ENTRY, **change}, ENTRY]))
    more = [(each, getattr(found, each)) for each in ("groups", "calls", "stacks")
            if getattr(found, each) != getattr(usual, each)]  # fmt: skip
    columns = [(name, list(found.column(name))) for name in COLUMNS if len({*found.column(name)}) > 1]
    return found.left_out, found.first_record, columns, more


def _group(config: object, status: object = None) -> object:
    return dump(whole("2.10", pg_config={"0": config}, pg_status={"0": status})).groups


def _kept(*dumps: tuple[str, int, Any]) -> object:
    """The sources of the dumps that are kept, of these names and ages."""
    made = [(name, of(*({"time_created_ns": created, "frames": [FRAME | {"line": n}]} for n in range(frames))))
            for name, created, frames in dumps]  # fmt: skip
    found = records([*made, ("odd", "why")])
    return [[(each.source, each.rank) for each in those] for those in (found.dumps, found.unplaced)], found.unread


_GROUPS = (FlightGroup("nccl", "0", "", (0, 1, 2, 3)), FlightGroup("nccl", "5", "", (2, 9)))
_LAST = ("enqueued", "started", "completed")
HEAD = (
    "NCCL version 2.30.7 compiled with CUDA 13.0\nCUDA runtime version 13000, driver version 13000\n\n"
    "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n"
    "(total)   per node  per process    (total)  (total)\n      2          4            1          8        8\n"
    "\nCommunicators... (2.05s)\n=============\n\n"
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    "    #  in group  per comm  per node  per comm  in group\n    0         1         2       3-4         8         8"
    "   RUNNING  INCOMPLETE\n\n"
)
DEAD_24 = (
    f"{HEAD}Errors\n======\n\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    "  Process 411 on node 10.0.0.2 managing GPU 1\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
    "  Missing communicator data from 1 rank\n  The missing rank: 5\n\nWarnings\n========\n\nTIMEOUT\n"
    "  Encountered 2 communication timeouts while gathering communicator data\n"
)
COUNTS = (
    f"{HEAD}Warnings\n========\n\n#0-0 (cf264af53edbe986) MISMATCH\n"
    "  Communicator ranks have different AllReduce operation counts\n  6 ranks have launched up to operation 40\n"
    "  2 ranks have launched up to operation 39\n  Rank 4 -- GPU 0 managed by process 410 on node 10.0.0.2\n"
    "  Rank 5 -- GPU 1 (NVML 5) managed by process 411 on node 10.0.0.2\n"
)
MONITOR = "[2025-12-19 13:07:07] PEER_DEAD: Process 77 on node 10.0.0.2 managing GPU 1\n"
_COMM, _AT = "#0-0 (ab12) MISMATCH\n", " -- GPU 3 managed by process 12 on node h9"
_RECORDED = Path(__file__).resolve().parents[1] / "data" / "nccl_ras.jsonl.gz"


def rank(number: int, **more: Any) -> dict[str, Any]:
    """Return a rank as RAS tells of it in JSON."""
    gone = {"unresponsive": False, "considered_dead": False}
    return {"rank": number, "host": "h", "pid": number, "cuda_dev": 0, "nvml_dev": 0, "status": gone | more}


def as_json(ranks: list[dict[str, Any]], missing: list[dict[str, Any]]) -> bytes:
    """Return an answer in JSON about one communicator."""
    comm = {"hash": "0xae94423cfbb2ef4a", "size": 4, "ranks": ranks, "missing_ranks": missing}
    return json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm]}).encode()


def _answer(said: str | bytes) -> object:
    data = said if isinstance(said, bytes) else said.encode()
    found = read_answer("ras", data)
    statements = [tuple(getattr(each, name) for name in each.__struct_fields__) for each in found.statements]
    return kind_of(data), found.version, statements, found.launched, [*by_operation(found)]


def _recorded_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(_RECORDED.read_bytes()).splitlines()]


def _recorded(name: str, moment: str) -> object:
    return next(_answer(row["answers"][moment]) for row in _recorded_rows() if row["name"] == name)


def _counts(*counts: Mapping[str, int]) -> bytes:
    ranks = [{**rank(number), "cuda_dev": number % 2, "collective_counts": each} for number, each in enumerate(counts)]
    return as_json([*ranks, {**rank(9), "pid": None}, {**rank(0), "host": "g"}], [])


def _ras_findings(text: bytes) -> object:
    checks = (silence.ras_dead_process, silence.ras_rank_behind, silence.ras_other_operations, silence.ras_error)
    found = RasStatus((read_answer("ras", text),))
    return [(each.severity.value, each.subject, each.message[:90], [(at.source, at.line) for at in each.evidence],
             each.occurrence) for check in checks for each in check.run(found)]  # fmt: skip


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    return {
        "dumps": (lambda more: _told(read(pickle.dumps(whole(**{"version": "2.10", **more}), 2))), [*({
            "version": version} for version in ("2.1", "2.3", 7)), {"nccl_version": "2.28.9"}, {"entries": []}, {
            "comm_lib_version": "2.28.3", "nccl_version": "2.28.9"}, {"comm_lib_version": "", "nccl_version": "2.28.9"},
            {"entries": [{**ENTRY, "profiling_name": f"nccl:{n}", "record_id": 9 - n, "frames": []} for n in range(3)]},
            {"entries": [{**ENTRY, "process_group": (f"{n}", f"g{n}"), "pg_id": n, "collective_seq_id": n,
            "timeout_ms": n, "input_sizes": [[n]]} for n in (1, 0, 1)], "pg_config": {**CONFIG, "1": {"desc": "tp",
            "ranks": [4, 5]}, "7": {"desc": "pp", "ranks": "[6, 7]"}, "8": {"desc": "none"}, "9" * 400: {
            "desc": "x" * 400, "ranks": "[1]"}}, "pg_status": {**STATUS, "1": {"last_enqueued_collective": 7}}}, {
            "entries": [None, 7, {}]}, {"entries": [{**ENTRY, "process_group": ("x" * 301, "y" * 301)}]}]),
        "an entry of a dump": (_entry, [None, {}, {"collective_seq_id": -1}, {"input_sizes": [["a"]]}, {"frames": 7},
            {"record_id": "first"}, {"collective_seq_id": MAX_INTEGER}, {"collective_seq_id": MAX_INTEGER + 1},
            {"collective_seq_id": 0}, {"input_sizes": [[MAX_INTEGER, 1]]}, {"input_sizes": [[MAX_INTEGER, 2]]},
            {"process_group": (7, "x")}, {"time_created_ns": None}, {"timeout_ms": "x"},
            {"input_sizes": [[MAX_INTEGER], [1]]}, {"process_group": ["1"]}, {"process_group": None},
            {"process_group": ["0", "default_pg"]}, {"frames": [1]}, {"frames": None}, *({"profiling_name": name}
            for name in ("gloo:a:b", "barrier", "nccl:", "nccl:send 0->1", 7)), {"profiling_name": "nccl:" + "x" * 301},
            {"timeout_ms": 1500}, {"pg_id": "0"}, {"time_created_ns": -1}, {"is_p2p": True, "p2p_seq_id": 7},
            {"seq_id": 5}, {"is_p2p": True, "input_sizes": []}, *({"state": state, "retired": retired}
            for state in ("scheduled", "completed", "odd") for retired in (True, 1)), {"retired": True},
            {"input_sizes": [[2]] * 4}, {"input_sizes": [[2]] * 3, "input_dtypes": ["Float", "Int", "Float"]}, {
            "input_sizes": [], "output_sizes": [[3], [2, 2]], "output_dtypes": ["Half"]}, {"input_sizes": [[1] * 60]},
            {"frames": [FRAME | {"line": n} for n in range(26)]}, {"frames": [FRAME, FRAME | {"name": "f" * 301}]},
            {"frames": [FRAME | {"line": -1}]}, {"time_discovered_completed_ns": 9}, {"input_dtypes": [7]}]),
        "a group of a dump": (_group, [*(({"ranks": said},) for said in ("[]", "[2]", " [0,  3] ", [1, "2", 3.5], 7,
            "[1, x, -2, --3]", "[1, x, -2]", "9" * 19, "9" * 18, "9" * 20, [MAX_INTEGER, MAX_INTEGER + 1])), (7,),
            ({}, ), ({"desc": 7, "ranks": "[1]"},), ({}, 7), *(({}, {f"last_{what}_collective": said for what,
            said in zip(_LAST, those, strict=True)}) for those in ((0, -1, "41"), ("-1", "0", None),
            ("9" * 19, "1" * 20, 1.5), (3, 2, 1))), ({}, {"last_started_collective": 5})]),
        "no dumps": (lambda data: _told(read(data)), [
            pickle.dumps({"weights": [1]}, 2), pickle.dumps(7, 2), b'{"entries": 7}', GOOD[:-9], GOOD.decode("latin-1"),
            "[" * 100_000, '{"entries": [' + "{}," * 10 + "1e999]}", pickle.dumps({"entries": [7, {}]}, 2), "[7, 7]",
            pickle.dumps({"entries": [], "pg_config": {"0": 7}, "pg_status": [1]}, 2), b"[]", b"", "{}", "null",
            b'{"pg_status": {}}', b'{"pg_config": {}}', pickle.dumps({"pg_config": {"0": {"ranks": "--5"}}}, 2)]),
        "a dump in JSON": (lambda more: _told(read(json.dumps(more))), [
            [ENTRY], whole("2.10", pg_status={"0": {name: str(value) for name, value in STATUS["0"].items()}}, entries=[
                {**ENTRY, "time_discovered_completed_ns": 0, "frames": None}])]),
        "heads of dumps": (lambda head: (is_dump(head), kind_of(head)), [b"\x80\x01", b"\x80\x02", b"\x80\x03",
            b"\x80\x04", b"\x80\x05", b"\x80\x06", b"\x00\x02", b"", b"loss 3", b'{"a": 1}', b'x["pg_config"', *(
            b' [{"%s"' % key for key in (b"profiling_name", b"pg_config", b"pg_status", b"collective_seq_id",
            b"nccl_comm_state")), b'{"pg_status"']),
        "the rank of a dump": (lambda name: (rank_of(name), rank_of(name, _GROUPS), rank_of(name, _GROUPS[:1])), [
            ("/tmp/nccl_trace_rank_3",), ("logs/comm_lib_trace_rank_12.gz",), ("job/rank3.late.fr.pickle",),
            ("dump_7.json",), ("host4/trace.pickle",), ("2026-11-22_rank=5.pkl",), ("rank1/rank2",), ("trace.pickle",),
            ("trace_rank_3",), ("rank_1_of_rank_2",), ("RANK0.x",), ("rank-1",), ("rank12345678",), ("a2.b.c.d",),
            ("a2.b.c.d.e",), ("a2.b3b",)]),
        "dumps of several files": (_kept, [
            (("a/rank_1", 9, 1), ("b/rank_1", 5, 1), ("c/rank_1", 9, 0), ("none", 9, 1), ("d/rank_0", 9, 1)),
            (("a/rank_1", 5, 1), ("b/rank_1", 5, 2), ("c/rank_1", 5, 1)), (("b/rank_10", 1, 1), ("a/rank_9", 1, 1))]),
        "what a call says": (str, [FlightCall("barrier"), FlightCall("a", inputs="[1]"),
            FlightCall("a", outputs="[2]", output_dtype="Half"), FlightCall("a", inputs="[1]", outputs="[2]",
            input_dtype="Int", output_dtype="Half"), FlightCall("a", input_dtype="Int")]),
        "frames": (lambda name, file: (str(frame := FlightFrame(name, file, 7)), frame.place, frame.function,
                                       frame.of_library), [
            ("A.B.f", "/job/a/train.py"), ("f", "x.py"), ("f", "<string>"), ("f", "/usr/lib/python3.12/threading.py"),
            ("f", "/v/site-packages/a.py"), ("f", "/usr/lib/dist-packages/a.py"), ("f", "/lib/perl/a.py")]),
        "findings of RAS": (lambda text: _ras_findings(text if isinstance(text, bytes) else text.encode()), [DEAD_24,
            MONITOR, COUNTS, *(as_json([{**rank(n), **each} for n, each in
            enumerate(ranks)], []) for ranks in ([{"collective_counts": {"AllReduce": 9 - (n == 2), "AllGather": 4 + (
            n == 2)}} for n in range(4)], [{"async_error": 6}, {}, {}]))]),
        "answers of RAS": (_answer, [HEAD, DEAD_24, COUNTS, MONITOR, DEAD_24 + HEAD,
            HEAD + HEAD.replace("2.30.7", "2.29.1") + COUNTS, "", "loss 3.1", "{}", '{"nccl_version": 7}',
            "{" * 100_000, ' {"nccl_version": "2.29", "communicators": []}',
            '{"nccl_version": "' + "9" * 50 + '", "communicators": []}', "Job summary", "Communicators... (1s)", *(
            HEAD + _COMM + f"  {line}  \n" for line in (
            "2 job processes are considered dead\n  Process 7 on node h managing GPUs 0,1  ",
            "Missing communicator data from 4 job processes\n  The missing ranks: 5, 7-9", "The missing rank: 5",
            "3 ranks have not launched any operations\n  Rank 1" + _AT, "4 ranks have status FINALIZE\n  Rank 1" + _AT,
            "5 ranks reported System error", "Rank 2 has launched up to operation 9" + _AT, "Rank 2 on h1" + _AT,
            "Rank 2 has not launched any operations" + _AT, "Rank 2 has status ABORT" + _AT,
            "Rank 2 reported Internal error" + _AT, "Rank 2 has status ABORT", "Encountered 1 communication timeout", *(
            f"Communicator ranks have different {what} operation counts\n"
            "  2 ranks have launched up to operation 4\n#1-0 (cd34) MISMATCH\n"
            "  3 ranks have launched up to operation 5\n  1 ranks have status X\nWarnings\n" "  1 ranks have status Y"
            for what in ("AllGather", "collective")),
            "Communicator ranks have different collective counts\n  1 ranks have launched up to operation 4",
            "Communicator ranks have different Reduce operation counts\n  1 ranks have status X" + "x" * 4100)),
            MONITOR.replace("DEAD", "UNRESPONSIVE").replace("GPU 1", "GPUs 1,2") + MONITOR, as_json(
            [rank(0, init_state=0)], [rank(1, unresponsive=True), rank(3),
            rank(2, unresponsive=True, considered_dead=True)]), *(as_json([rank(0, async_error=error), rank(1)], [])
            for error in range(9)), as_json([rank(0, async_error=6), rank(1, async_error=2), rank(2, async_error=6)],
            []), _counts({"AllReduce": 9, "AllGather": 4}, {"AllReduce": 9, "AllGather": 4},
            {"AllReduce": 8, "AllGather": 5}), _counts({"Reduce": 1}, {}), _counts({"Reduce": 1}, {"Reduce": 1})]),
        "recorded answers of RAS": (_recorded, [(row["name"], moment) for row in _recorded_rows()[::3]
                                                for moment in [*row["answers"]][-2:]])}  # fmt: skip
