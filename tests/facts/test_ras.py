"""Answers of NCCL's RAS: as client_support.cc of 2.24 and 2.30 prints them, and as 2.30.7 gave them of made states.

Recorded from 2 to 64 ranks on a processor: a healthy job, one whose rank 1 was stopped or killed, one whose rank 1 is
behind; each asked three times, as text and as JSON.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.log import silence as checks
from ncclprobe.commands import explain
from ncclprobe.facts.files.ras import RasProcess, RasStatus, read_answer
from ncclprobe.logs.read import kind_of
from ncclprobe.model.errors import ParseError
from tests.each_row import each_row

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


def status(text: str | bytes) -> RasStatus:
    return RasStatus((read_answer("ras", text.encode() if isinstance(text, str) else text),))


def rank(number: int, **of: Any) -> dict[str, Any]:
    gone = {"unresponsive": False, "considered_dead": False}
    return {"rank": number, "host": "h", "pid": number, "cuda_dev": 0, "nvml_dev": 0, "status": gone | of}


def as_json(ranks: list[dict[str, Any]], missing: list[dict[str, Any]]) -> bytes:
    comm = {"hash": "0xae94423cfbb2ef4a", "size": 4, "ranks": ranks, "missing_ranks": missing}
    return json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm]}).encode()


def test_a_dead_process_with_its_rank_which_2_24_tells_elsewhere() -> None:
    (found,) = list(checks.ras_dead_process.run(status(DEAD_24)))
    assert (found.subject, found.message.startswith("process 411 on 10.0.0.2, GPU 1 ")) == ("rank 5", True)
    assert (found.evidence[0].source, found.evidence[0].line) == ("ras", 22)
    assert (found.occurrence.ranks, found.occurrence.hosts) == ((5,), ("10.0.0.2",))
    (found,) = list(checks.ras_dead_process.run(status(MONITOR)))
    assert found.subject == "10.0.0.2"


def test_ranks_behind_and_the_processes_that_are_listed() -> None:
    most, few = status(COUNTS).answers[0].statements
    assert (most.nranks, most.value, most.processes) == (6, "40", ())
    assert few.processes == (RasProcess("10.0.0.2", 410, "0", 4), RasProcess("10.0.0.2", 411, "1", 5))
    assert few.operation == "AllReduce"
    (found,) = list(checks.ras_rank_behind.run(status(COUNTS)))
    assert (found.subject, found.occurrence.codes) == ("ranks 4-5", ("timeout-straggler", "collective-desync"))


def test_json_says_the_same_and_its_counts_are_compared() -> None:
    dead = rank(2, unresponsive=True, considered_dead=True)
    gone = as_json([rank(0, init_state=0)], [rank(1, unresponsive=True), dead])
    statements = read_answer("j", gone).statements
    assert [(each.kind, each.processes[0].rank) for each in statements] == [("dead", 2), ("missing", 1)]
    counts = [{"collective_counts": {"AllReduce": 9 - (n == 2), "AllGather": 4 + (n == 2)}} for n in range(4)]
    ranks = [{**rank(n), **each} for n, each in enumerate(counts)]
    (found,) = list(checks.ras_other_operations.run(status(as_json(ranks, []))))
    assert (found.subject, [*checks.ras_rank_behind.run(status(as_json(ranks, [])))]) == ("rank 2", [])
    (found,) = list(checks.ras_error.run(status(as_json([rank(0, async_error=6), rank(1), rank(2)], []))))
    assert ("Remote process error" in found.message, found.severity.value) == (True, "warn")  # a consequence


def test_answers_are_known_by_what_they_hold_and_of_several_the_last_holds() -> None:
    for text in (HEAD, DEAD_24, COUNTS, MONITOR, as_json([rank(0)], []).decode()):
        assert kind_of(text.encode()) == "ras"
    assert (
        read_answer("ras", (DEAD_24 + HEAD).encode()).statements == read_answer("ras", HEAD.encode()).statements == ()
    )
    for data in (b"", b"loss 3.1\n", b"{}", b'{"nccl_version": 7}', b"{" * 100_000):
        with pytest.raises(ParseError):
            read_answer("ras", data)


PATH = Path(__file__).resolve().parents[1] / "data" / "nccl_ras.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(PATH.read_bytes()).splitlines()]
CODES = {"killed": "rank-crashed", "stopped": "timeout-straggler", "behind": "timeout-straggler"}
ANSWERS = [pytest.param(row, moment, id=f"{row['name']} {moment}") for row in ROWS for moment in row["answers"]]


@each_row(("row", "moment"), ANSWERS)
def test_an_answer_tells_of_rank_1_alone_where_something_was_made(
    row: dict[str, Any], moment: str, tmp_path: Path
) -> None:
    said, report = tmp_path / "ras", tmp_path / "report.json"
    said.write_text(row["answers"][moment])
    answer = read_answer("ras", said.read_bytes())
    assert (answer.version, bool(answer.statements)) == ("2.30.7", row["state"] != "healthy")
    assert explain.main([str(said), "--json", str(report), "-q"]) == 0
    causes = json.loads(report.read_text())["causes"]
    assert [each["ranks"] for each in causes] == ([] if row["state"] == "healthy" else [[1]])
    assert all(CODES[row["state"]] in {each["code"], *each["could_be"]} for each in causes)
