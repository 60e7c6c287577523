"""Real jobs that failed, with the cause that they have by construction: what is named of each, and of no other rank.

tests/data/failures: gloo and NCCL in the lab. tests/data/on_cpu: torch's CUDA build and NVIDIA's NCCL on a stand-in of
CUDA. tests/data/gpu: three ranks on one H100 (reports/gpu/h100.md). tests/data/refused_starts: the published NCCL above
a driver that refuses; only the driver was ours.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from ncclprobe.commands import report as report_command
from tests.each_row import each_row
from tests.recorded_jobs import read

DATA = Path(__file__).resolve().parents[1] / "data"
FAILURES, ON_CPU = DATA / "failures", DATA / "on_cpu"
CASES = sorted(path.parent for path in FAILURES.glob("*/case.json"))
CROSSED = "desync-crossed-groups"
"""gloo does not record which ranks a group has: late, or in another call."""

SILENT = ("silent-", "nccl-killed", "nccl-late")
"""The rank that fell silent is named, with its last line where its log was given; one that wrote nothing has none."""


def reported(folder: Path, files: Iterable[Path], *options: str) -> dict[str, Any]:
    report = folder / "report.json"
    assert explain.main([*map(str, sorted(files)), "--json", str(report), "-q", *options]) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def causes(folder: Path, tmp_path: Path, pattern: str = "*.gz") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reported(tmp_path, folder.glob(pattern))["causes"]
    return found


def codes(cause: Mapping[str, Any]) -> set[str]:
    return {cause["code"], *cause["could_be"]}


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_the_cause_that_was_made_is_the_cause_that_is_named(folder: Path, tmp_path: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    found = causes(folder, tmp_path)
    if not case["code"]:
        assert found == []
        return
    first = found[0]
    assert case["code"] in codes(first)
    assert folder.name == CROSSED or "unknown" not in codes(first)
    ranks = {*first["ranks"]}
    assert not ranks or not case["ranks"] or ranks & {*case["ranks"]}
    if case["ranks"] and first["confidence"] == "named":
        assert ranks <= {*case["ranks"]}, "a wrong rank is never named"
    assert first["evidence"][0]["text"]
    if folder.name.startswith(SILENT):
        assert first["ranks"] == case["ranks"]
        assert [each["rank"] for each in first["suspects"]] in ([], case["ranks"])
        for each in first["suspects"]:
            assert bool(each["last_line"]) == bool(each["source"])


@each_row("folder", [path for path in CASES if list(path.glob("fr_*"))], ids=lambda path: path.name)
def test_logs_alone_never_name_another_cause(folder: Path, tmp_path: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    named = causes(folder, tmp_path, "*.log.gz")
    assert bool(named) == (folder.name != "healthy-recorded")
    for found in named[:1]:
        assert case["code"] in codes(found) or found["code"] == "unknown"


def test_flight_records_of_some_ranks_narrow_and_do_not_mislead(tmp_path: Path) -> None:
    """Of four ranks' dumps any two: the rank that called another operation is named only where its dump is there."""
    rows = {"[01]": ("unknown", None), "[03]": ("unknown", None), "[13]": ("unknown", None),
            "[12]": ("collective-desync", [1, 2]), "[023]": ("collective-desync", [2])}  # fmt: skip
    for some, (code, ranks) in rows.items():
        (found,) = causes(FAILURES / "desync-other-operation", tmp_path, f"fr_trace_rank_{some}.gz")
        assert (found["code"], found["confidence"] == "unknown") == (code, code == "unknown"), some
        assert ranks is None or found["ranks"] == ranks


def test_a_dump_of_no_known_rank_is_said(tmp_path: Path) -> None:
    nameless = tmp_path / "trace.gz"
    nameless.write_bytes((FAILURES / "desync-other-operation" / "fr_trace_rank_0.gz").read_bytes())
    (found,) = reported(tmp_path, [nameless])["not_understood"]
    assert "with an unknown rank" in found["text"]


H100 = read(DATA / "gpu/h100-2.28.9.jsonl.gz")
UNNOTICED = {"healthy", "other-size", "other-dtype"}
"""Well, or well as far as anything tells: NCCL compares neither sizes nor types, and all ranks exited with 0."""
HANGS = {"other-algorithm"}
"""It hangs without a word of anybody: NCCL compares no settings of which it prints none."""


def on_gpu(name: str, folder: Path, *patterns: str) -> list[dict[str, Any]]:
    for path, text in H100[name]["files"].items():
        (folder / path).write_text(text)
    found: list[dict[str, Any]] = reported(folder, (path for each in patterns for path in folder.glob(each)))["causes"]
    return found


@each_row("patterns", [("*.log",), ("*.log", "*.fr.json")], ids=["logs", "logs and flight records"])
@each_row("name", sorted(H100.keys() - UNNOTICED - HANGS))
@pytest.mark.slow
@pytest.mark.every_time
def test_what_was_done_to_a_job_on_a_gpu_is_named_and_no_other_rank(
    name: str, patterns: tuple[str, ...], tmp_path: Path
) -> None:
    job, first = H100[name], on_gpu(name, tmp_path, *patterns)[0]
    assert job["code"] in codes(first)
    assert not job["ranks"] or {*first["ranks"]} <= {*job["ranks"]}


@each_row("name", sorted(UNNOTICED | HANGS))
def test_nothing_is_named_where_nothing_tells(name: str, tmp_path: Path) -> None:
    found = on_gpu(name, tmp_path, "*.log", "*.fr.json")
    assert [each for each in found if each["id"] != "log.slow-path/slow-path"] == []


def test_an_xid_of_a_process_that_is_no_rank_is_not_the_cause(tmp_path: Path) -> None:
    """The driver's log holds all jobs of a host: this line was of the job before."""
    line = "[   61.981258] NVRM: Xid (PCI:0000:00:06): 31, pid=815, name=python3, channel 0x00000044, MMU Fault"
    (tmp_path / "kernel.txt").write_text(line)
    first = on_gpu("other-op", tmp_path, "*.log", "kernel.txt")[0]
    assert {"collective-desync", "rank-crashed"} == {*first["could_be"]}
    assert "no log of this job names" not in first["message"]


@each_row("name", ["other-op", "skipped"])
def test_a_rank_that_closed_nccl_before_it_left_did_not_end_without_a_word(name: str, tmp_path: Path) -> None:
    assert "exited while the others continued" in json.dumps(on_gpu(name, tmp_path, "*.log")[0])


STAND_IN = {str(path.parent.relative_to(ON_CPU)): json.loads(path.read_text()) for path in ON_CPU.rglob("case.json")}


@each_row("name", [name for name in sorted(STAND_IN) if (ON_CPU / name / "report.json.gz").exists()])
def test_a_recorded_report_renders_and_ends_as_it_did(name: str, tmp_path: Path) -> None:
    report = gzip.decompress((ON_CPU / name / "report.json.gz").read_bytes())
    (tmp_path / "report.json").write_bytes(report)
    assert report_command.main([str(tmp_path / "report.json"), "-q"]) == json.loads(report)["exit_code"]


@each_row("name", [name for name in sorted(STAND_IN) if Path(name).name.startswith("job-")])
@pytest.mark.slow
@pytest.mark.every_time
def test_the_logs_of_a_job_on_a_stand_in_name_cause_and_rank(name: str, tmp_path: Path) -> None:
    case, found = STAND_IN[name], causes(ON_CPU / name, tmp_path)
    assert bool(found) == bool(case["code"])
    for first in found[:1]:
        assert case["code"] in codes(first)
        assert first["ranks"] == case["at_fault"]


REFUSED = [json.loads(line) for line in gzip.decompress((DATA / "refused_starts.jsonl.gz").read_bytes()).splitlines()]
NAMED = {
    0: {"cuda-driver-mismatch"},  # a driver that is too old
    2: {"oom"},
    3: {"rank-crashed", "gpu-hw-error"},
    **{code: {"cuda-driver-mismatch"} for code in (34, 36, 803, 804)},
    46: {"duplicate-gpu", "gpu-hw-error"},
    **{code: {"gpu-isolation", "world-size-mismatch"} for code in (100, 101)},
    304: {"kernel-pin-failure"},
    802: {"fabric-manager"},
    999: {"rank-crashed", "gpu-hw-error"},
}
"""By what cuInit returns: all that the first cause may be."""


def test_each_refusal_of_the_driver_is_named_in_each_of_eight_releases(tmp_path: Path) -> None:
    wrong = {}
    for number, row in enumerate(REFUSED):
        (log := tmp_path / f"{number}.log").write_text(row["log"])
        found = reported(tmp_path, [log], "--failed")["causes"]
        if (said := codes(found[0]) if found else set()) != NAMED[row["cuda"]]:
            wrong[row["nccl"], row["cuda"]] = said
    assert wrong == {}
    releases = {row["nccl"] for row in REFUSED}
    assert {(row["nccl"], row["cuda"]) for row in REFUSED} == {(each, code) for each in releases for code in NAMED}
    assert (len(releases), "2.32.3" in releases) == (8, True)
