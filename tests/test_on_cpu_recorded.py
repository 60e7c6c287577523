"""What our commands said with torch's CUDA build and NVIDIA's NCCL on a processor: recorded, and judged here again.

They were recorded on a stand-in of CUDA, some with other releases of torch. No number of a row means anything.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from ncclprobe.commands import report as report_command
from tests.each_row import each_row

RECORDED = Path(__file__).resolve().parent / "data" / "on_cpu"
CASES = {
    str(path.parent.relative_to(RECORDED)): json.loads(path.read_text()) for path in sorted(RECORDED.rglob("case.json"))
}
REPORTS = [name for name in CASES if (RECORDED / name / "report.json.gz").exists()]
JOBS = [name for name in CASES if Path(name).name.startswith("job-")]


def report_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((RECORDED / name / "report.json.gz").read_bytes()))
    return found


@each_row("name", REPORTS)
def test_a_recorded_report_renders_and_ends_as_it_did(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(gzip.decompress((RECORDED / name / "report.json.gz").read_bytes()))
    assert report_command.main([str(path), "-q"]) == report_of(name)["exit_code"]


@each_row("name", JOBS)
def test_the_logs_of_a_job_name_cause_and_rank(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "report.json"
    files = [str(each) for each in sorted((RECORDED / name).glob("*.gz"))]
    assert explain.main([*files, "--json", str(path), "-q"]) == 0
    found = json.loads(path.read_text())["causes"]
    if not case["code"]:
        assert found == []
        return
    first = found[0]
    assert case["code"] in {first["code"], *first["could_be"]}
    assert first["ranks"] == case["at_fault"]


def test_what_is_kept_is_small_and_names_no_machine() -> None:
    files = [path for path in RECORDED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 7 << 18
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"/root/" not in data
        assert b"/tmp/" not in data
