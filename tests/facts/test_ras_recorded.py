"""What NCCL 2.30.7's RAS said of jobs of 2 to 64 ranks on a processor, whose state is known because it was made.

Recorded from ranks on a processor: a healthy job, one whose rank 1 was stopped or killed, one whose
rank 1 is behind; each asked three times, as text and as JSON.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from ncclprobe.facts.files.ras import read_answer
from tests.each_row import each_row

PATH = Path(__file__).resolve().parents[1] / "data" / "nccl_ras.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(PATH.read_bytes()).splitlines()]
CODES = {"killed": "rank-crashed", "stopped": "timeout-straggler", "behind": "timeout-straggler"}
ANSWERS = [pytest.param(row, moment, id=f"{row['name']} {moment}") for row in ROWS for moment in row["answers"]]


def test_jobs_of_2_to_64_ranks_were_asked() -> None:
    assert {row["ranks"] for row in ROWS} >= {2, 4, 8, 16, 32, 64}
    assert {row["state"] for row in ROWS} == {"healthy", *CODES}


@each_row(("row", "moment"), ANSWERS)
def test_an_answer_tells_of_rank_1_alone_where_something_was_made(
    row: dict[str, Any], moment: str, tmp_path: Path
) -> None:
    said, report = tmp_path / "ras", tmp_path / "report.json"
    said.write_text(row["answers"][moment])
    answer = read_answer("ras", said.read_bytes())
    assert answer.version == "2.30.7"
    assert bool(answer.statements) is (row["state"] != "healthy")
    assert explain.main([str(said), "--json", str(report), "-q"]) == 0
    causes = json.loads(report.read_text())["causes"]
    if row["state"] == "healthy":
        assert causes == []
        return
    (first,) = causes
    assert CODES[row["state"]] in {first["code"], *first["could_be"]}
    assert first["ranks"] == [1]
