"""What is named of jobs that failed on a GPU: three ranks on one H100, torch 2.11, NCCL 2.28.9, recorded.

``scripts/gpu_hour.py`` recorded them; reports/gpu/h100.md has the tables.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from tests.recorded_jobs import read

ROOT = Path(__file__).resolve().parents[2]
JOBS = read(ROOT / "tests/data/gpu/h100-2.28.9.jsonl.gz")
UNNOTICED = {"healthy", "other-size", "other-dtype"}
"""Well, or well as far as anything tells: NCCL compares neither sizes nor types, and all ranks exited with 0."""
SILENT = {"other-algorithm"}
"""It hangs without a word of anybody: NCCL compares no settings of which it prints none."""


def explained(name: str, folder: Path, *patterns: str) -> list[dict[str, Any]]:
    for path, text in JOBS[name]["files"].items():
        (folder / path).write_text(text)
    files = [str(path) for pattern in patterns for path in sorted(folder.glob(pattern))]
    report = folder / "report.json"
    assert explain.main([*files, "--json", str(report), "-q"]) == 0
    found: list[dict[str, Any]] = json.loads(report.read_text())["causes"]
    return found


@pytest.mark.parametrize("patterns", [("*.log",), ("*.log", "*.fr.json")], ids=["logs", "logs and flight records"])
@pytest.mark.parametrize("name", sorted(JOBS.keys() - UNNOTICED - SILENT))
def test_what_was_done_to_the_job_is_named_and_no_other_rank(
    name: str, patterns: tuple[str, ...], tmp_path: Path
) -> None:
    job, first = JOBS[name], explained(name, tmp_path, *patterns)[0]
    assert job["code"] in {first["code"], *first["could_be"]}
    if job["ranks"]:
        assert {*first["ranks"]} <= {*job["ranks"]}


@pytest.mark.parametrize("name", sorted(UNNOTICED | SILENT))
def test_nothing_is_named_where_nothing_tells(name: str, tmp_path: Path) -> None:
    found = explained(name, tmp_path, "*.log", "*.fr.json")
    assert [each for each in found if each["id"] != "log.slow-path/slow-path"] == []


def test_an_xid_of_a_process_that_is_no_rank_is_not_the_cause(tmp_path: Path) -> None:
    """The driver's log holds all jobs of a host: this line was of the job before."""
    line = "[   61.981258] NVRM: Xid (PCI:0000:00:06): 31, pid=815, name=python3, channel 0x00000044, MMU Fault"
    (tmp_path / "kernel.txt").write_text(line)
    first = explained("other-op", tmp_path, "*.log", "kernel.txt")[0]
    assert {"collective-desync", "rank-crashed"} == {*first["could_be"]}
    assert "no log of this job names" not in first["message"]


@pytest.mark.parametrize("name", ["other-op", "skipped"])
def test_a_rank_that_closed_nccl_before_it_left_did_not_end_without_a_word(name: str, tmp_path: Path) -> None:
    first = explained(name, tmp_path, "*.log")[0]
    assert "exited while the others continued" in json.dumps(first)
