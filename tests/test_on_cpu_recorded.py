"""What our commands said with torch's CUDA build and NVIDIA's NCCL on a processor: recorded, and judged here again.

They were recorded on a stand-in of CUDA, some with other releases of torch. No number of a row means anything.
"""

import gzip
import json
import re
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
REFUSED = [name for name in REPORTS if {*CASES[name]["exit_codes"]} == {2}]
LOST = [name for name in REPORTS if CASES[name]["at_fault"] and name not in REFUSED]
UNDECIDED = {"bandwidth-kernel-hangs", "bandwidth-other-algorithm"}
"""All ranks wait in one call: NCCL's calls do not say whose kernel stands still."""
_ODD = re.compile("-no-|bogus|doctor-")
HEALTHY = [name for name in REPORTS if not CASES[name]["at_fault"] and not _ODD.search(name)]
DOCTORS = {
    "doctor-held": ("gpu.mode", "GPU1: its compute mode is exclusive-process, and another process has it"),
    "doctor-mig": ("gpu.mode", "GPU0, GPU1, GPU2, GPU3: split by MIG"),
    "doctor-ambiguous": ("env.visible", "CUDA_VISIBLE_DEVICES: names GPU-0000, which begins several UUIDs"),
    "doctor-none": ("env.visible", "CUDA_VISIBLE_DEVICES: is '-1': CUDA sees no GPU at all"),
}
JOBS = [name for name in CASES if Path(name).name.startswith("job-")]
APIS = [name for name in CASES if Path(name).name in ("api-stopped", "api-2")]


def report_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((RECORDED / name / "report.json.gz").read_bytes()))
    return found


@each_row("name", REPORTS)
def test_a_recorded_report_renders_and_ends_as_it_did(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(gzip.decompress((RECORDED / name / "report.json.gz").read_bytes()))
    assert report_command.main([str(path), "-q"]) == report_of(name)["exit_code"]


@each_row("name", HEALTHY)
def test_what_was_healthy_moved_the_right_data_within_the_node(name: str) -> None:
    report = report_of(name)
    failing = {check["id"] for check in report["checks"] if check["status"] == "fail"}
    assert failing <= (
        {"run.copies"} if re.search("copies|accept", name) else set()
    )  # a processor copies slower than a link
    assert any(report[rows] for rows in ("measurements", "pairs", "copies", "steps"))
    for row in report["measurements"]:
        assert (row["backend"], row["wrong"], row["library"]["version"]) == ("nccl", 0, "2.30.7")
    networks = {row["transport"]["network"] for row in report["measurements"]}
    assert networks <= {"P2P CUMEM", None} or name.endswith("bandwidth-graph")


@each_row("name", LOST)
def test_the_rank_at_fault_is_named_and_no_other(name: str) -> None:
    checks = [check for check in report_of(name)["checks"] if check["status"] == "fail"]
    subjects = {finding["subject"] for check in checks for finding in check["findings"]}
    ranks = {subject for subject in subjects if subject.startswith("rank ")}
    assert ranks == (set() if Path(name).name in UNDECIDED else {f"rank {rank}" for rank in CASES[name]["at_fault"]})
    assert name not in UNDECIDED or "all ranks" in subjects
    assert name != "bandwidth-other-algorithm" or "NCCL_ALGO" in subjects


@each_row("name", ["devices-held", "devices-prohibited"])
def test_a_rank_that_gets_no_gpu_is_told_with_the_compute_mode_that_keeps_it_out(name: str) -> None:
    checks = {check["id"]: check for check in report_of(name)["checks"]}
    lost, related = checks["run.rank-lost"]["findings"], ("gpu.mode", f"GPU{CASES[name]['at_fault'][0]}")
    assert all("busy or unavailable" in each["message"] for each in lost)
    assert all(related in [(each["id"], each["subject"]) for each in finding["related"]] for finding in lost)
    assert checks["gpu.mode"]["status"] == "fail"


@each_row("name", ["devices-exclusive", "copies-exclusive", "accept-exclusive"])
def test_gpus_in_exclusive_mode_are_measured_and_what_needs_a_second_process_is_left_out(name: str) -> None:
    report = report_of(name)
    lines = "a GPU in the compute mode EXCLUSIVE_PROCESS does not take"
    copies = "copies between GPUs of n0 were left out: they are in the compute mode EXCLUSIVE_PROCESS"
    assert any(lines in note for note in report["notes"]) is (name != "copies-exclusive")
    assert (copies in report["notes"]) is (name != "devices-exclusive")
    assert {row["kind"] for row in report["copies"]} == (
        set() if name == "devices-exclusive" else {"h2d", "d2h", "bidirectional"}
    )


@each_row("name", DOCTORS)
def test_the_doctor_says_what_of_its_gpus_a_job_does_not_get(name: str) -> None:
    check, said = DOCTORS[name]
    (found,) = [each for each in report_of(name)["checks"] if each["id"] == check]
    assert any(f"{each['subject']}: {each['message']}".startswith(said) for each in found["findings"])
    assert report_of(name)["exit_code"] == (0 if name == "doctor-mig" else 4)
    assert bool(report_of(name)["scope"]["gpus"]) is (name != "doctor-mig")


def test_a_gpu_is_named_as_nvml_does_in_whatever_order_cuda_has_it() -> None:
    """CUDA's first GPU is NVML's last, which is busy; where ranks use the others nothing of it is heard."""
    checks = {check["id"]: check for check in report_of("devices-order")["checks"]}
    assert [(each["subject"], each["severity"]) for each in checks["gpu.busy"]["findings"]] == [("GPU3", "warn")]
    assert checks["gpu.busy"]["status"] == "warn"


@each_row("name", REFUSED)
def test_a_report_says_why_its_ranks_refused_what_was_asked(name: str) -> None:
    ranks = " and ".join(map(str, CASES[name]["at_fault"]))
    assert any(f"ranks {ranks} on n0 have the same GPU" in check["why"] for check in report_of(name)["checks"])


def test_an_allocation_of_nccls_own_that_fails_is_no_rank_lost() -> None:
    checks = {check["id"]: check for check in report_of("bandwidth-nccl-no-memory")["checks"]}
    assert checks["run.rank-lost"]["status"] != "fail"
    assert [each["subject"] for each in checks["run.out-of-memory"]["findings"]] == ["rank 0", "rank 1"]
    assert all(" are free" in each["message"] for each in checks["run.out-of-memory"]["findings"])


def test_a_rank_that_came_late_to_one_call_is_noted() -> None:
    (note,) = [each for each in report_of("bandwidth-slow")["notes"] if "stood still" in each]
    assert note.startswith("all_reduce 8 B: batch 4 of 5 took 5.0 s longer")


@each_row("name", [name for name in CASES if "rank-0" in name])
def test_who_is_left_without_rank_0_ends_as_its_report_does(name: str) -> None:
    said = gzip.decompress((RECORDED / name / "rank1.log.gz").read_bytes()).decode()
    assert "the store of rank 0 (rank 0 was on n0" in said
    assert CASES[name]["exit_codes"][1] == report_of(name)["exit_code"] == 4


@each_row("name", LOST)
def test_what_rank_0_waits_in_is_told_by_its_flight_recorder(name: str) -> None:
    """Up to 2.10 torch records nothing unless it is told to, and before 2.9 by another name."""
    if Path(name).name in ("bandwidth-killed", "bandwidth-stopped"):
        (note,) = [each for each in report_of(name)["notes"] if each.startswith("the flight recorder of rank 0")]
        assert "nccl:all_reduce, call " in note


@each_row("name", APIS)
def test_the_api_answers_within_its_deadline_and_leaves_the_callers_job_alive(name: str) -> None:
    """Its peer is stopped: then torch's own watchdog ends the job, in the job's next call."""
    path = RECORDED / name / ("run.log.gz" if name.endswith("api-2") else "rank0.log.gz")
    said = gzip.decompress(path.read_bytes()).decode()
    (seconds,) = re.findall(r"rank 0: asked for ([\d.]+) s", said)
    assert float(seconds) <= 30.0
    assert ("rank 0: ProbeError: " in said) is name.endswith("api-stopped")
    assert ("rank 0: done" in said) is name.endswith("api-2")


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
