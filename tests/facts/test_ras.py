"""Answers of NCCL's RAS: as client_support.cc of 2.24 and 2.30 prints them, and as 2.30.7 gave them of made states.

Recorded from 2 to 64 ranks on a processor: healthy, rank 1 stopped, killed or behind; asked three times in both forms.
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
