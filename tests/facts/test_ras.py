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
from ncclprobe.facts.files.ras import RasStatus, read_answer
from tests.each_row import each_row
from tests.facts.made_up_records import COUNTS, DEAD_24, MONITOR, as_json, rank


def status(text: str | bytes) -> RasStatus:
    return RasStatus((read_answer("ras", text.encode() if isinstance(text, str) else text),))


def test_a_dead_process_with_its_rank_which_2_24_tells_elsewhere() -> None:
    (found,) = list(checks.ras_dead_process.run(status(DEAD_24)))
    assert (found.subject, found.message.startswith("process 411 on 10.0.0.2, GPU 1 ")) == ("rank 5", True)
    assert (found.evidence[0].source, found.evidence[0].line) == ("ras", 22)
    assert (found.occurrence.ranks, found.occurrence.hosts) == ((5,), ("10.0.0.2",))
    (found,) = list(checks.ras_dead_process.run(status(MONITOR)))
    assert found.subject == "10.0.0.2"


def test_ranks_behind_and_the_processes_that_are_listed() -> None:
    (found,) = list(checks.ras_rank_behind.run(status(COUNTS)))
    assert (found.subject, found.occurrence.codes) == ("ranks 4-5", ("timeout-straggler", "collective-desync"))


def test_json_says_the_same_and_its_counts_are_compared() -> None:
    counts = [{"collective_counts": {"AllReduce": 9 - (n == 2), "AllGather": 4 + (n == 2)}} for n in range(4)]
    ranks = [{**rank(n), **each} for n, each in enumerate(counts)]
    (found,) = list(checks.ras_other_operations.run(status(as_json(ranks, []))))
    assert (found.subject, [*checks.ras_rank_behind.run(status(as_json(ranks, [])))]) == ("rank 2", [])
    (found,) = list(checks.ras_error.run(status(as_json([rank(0, async_error=6), rank(1), rank(2)], []))))
    assert ("Remote process error" in found.message, found.severity.value) == (True, "warn")  # a consequence


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
