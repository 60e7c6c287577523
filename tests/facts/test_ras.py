"""Answers of NCCL's RAS, written as client_support.cc of 2.24 and 2.30 prints them."""

import json
from typing import Any

import pytest

from ncclprobe.checks.log import silence as checks
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


def said(text: str | bytes) -> RasStatus:
    return RasStatus((read_answer("ras", text.encode() if isinstance(text, str) else text),))


def test_a_dead_process_with_its_rank_which_2_24_tells_elsewhere() -> None:
    (found,) = list(checks.ras_dead_process.run(said(DEAD_24)))
    assert found.subject == "rank 5"
    assert found.message.startswith("process 411 on 10.0.0.2, GPU 1 ")
    assert (found.evidence[0].source, found.evidence[0].line) == ("ras", 22)
    assert found.occurrence is not None
    assert (found.occurrence.ranks, found.occurrence.hosts) == ((5,), ("10.0.0.2",))


def test_ranks_behind_and_the_processes_that_are_listed() -> None:
    answer = read_answer("ras", COUNTS.encode())
    most, few = answer.statements
    assert (most.nranks, most.value, most.processes) == (6, "40", ())
    assert few.processes == (RasProcess("10.0.0.2", 410, "0", 4), RasProcess("10.0.0.2", 411, "1", 5))
    assert few.operation == "AllReduce"
    (found,) = list(checks.ras_rank_behind.run(RasStatus((answer,))))
    assert found.subject == "ranks 4-5"
    assert found.occurrence is not None
    assert found.occurrence.codes == ("timeout-straggler", "collective-desync")


def test_of_several_answers_in_one_text_the_last_holds() -> None:
    assert read_answer("ras", (DEAD_24 + HEAD).encode()).statements == ()


def test_a_job_at_work_has_nothing_to_say() -> None:
    assert read_answer("ras", HEAD.encode()).statements == ()


def rank(number: int, **status: Any) -> dict[str, Any]:
    gone = {"unresponsive": False, "considered_dead": False}
    return {"rank": number, "host": "h", "pid": number, "cuda_dev": 0, "nvml_dev": 0, "status": gone | status}


def as_json(ranks: list[dict[str, Any]], missing: list[dict[str, Any]]) -> bytes:
    comm = {"hash": "0xae94423cfbb2ef4a", "size": 4, "ranks": ranks, "missing_ranks": missing}
    return json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm]}).encode()


def test_json_says_the_same() -> None:
    gone = as_json(
        [rank(0, init_state=0)], [rank(1, unresponsive=True), rank(2, unresponsive=True, considered_dead=True)]
    )
    assert [(each.kind, each.processes[0].rank) for each in read_answer("j", gone).statements] == [
        ("dead", 2),
        ("missing", 1),
    ]
    assert kind_of(gone) == "ras"


def test_json_counts_are_compared() -> None:
    ranks = [{**rank(n), "collective_counts": {"AllReduce": 9 - (n == 2), "AllGather": 4 + (n == 2)}} for n in range(4)]
    (found,) = list(checks.ras_other_operations.run(said(as_json(ranks, []))))
    assert found.subject == "rank 2"
    assert list(checks.ras_rank_behind.run(said(as_json(ranks, [])))) == []


def test_errors_of_ranks_are_consequences() -> None:
    (found,) = list(checks.ras_error.run(said(as_json([rank(0, async_error=6), rank(1), rank(2)], []))))
    assert "Remote process error" in found.message
    assert found.severity.value == "warn"


def test_the_monitor_tells_a_dead_process() -> None:
    line = "[2025-12-19 13:07:07] PEER_DEAD: Process 77 on node 10.0.0.2 managing GPU 1\n"
    assert kind_of(line.encode()) == "ras"
    (found,) = list(checks.ras_dead_process.run(said(line)))
    assert found.subject == "10.0.0.2"


@each_row("data", [b"", b"loss 3.1\n", b"{}", b'{"nccl_version": 7}', b"{" * 100_000])
def test_other_texts_are_no_answer(data: bytes) -> None:
    with pytest.raises(ParseError):
        read_answer("ras", data)


@each_row("text", [HEAD, DEAD_24, COUNTS])
def test_text_is_known_by_what_it_holds(text: str) -> None:
    assert kind_of(text.encode()) == "ras"
