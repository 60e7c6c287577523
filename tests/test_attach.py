"""`ncclprobe attach` as its users run it: on real jobs of torch with gloo, and on looks that were kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import hangs

pytest.importorskip("torch")
SLOW = pytest.mark.slow  # three ranks of torch each: one that hangs and one that does not run every time


def ncclprobe(*argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ncclprobe", *argv, "--no-config"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=ROOT, check=False)


@pytest.mark.parametrize(
    "way", ["another collective", *(pytest.param(way, marks=SLOW) for way in ("sigstop", "gil held in C"))]
)
def test_the_rank_that_hangs_is_named_and_again_from_what_was_kept(way: str, tmp_path: Path) -> None:
    ranks = hangs.started(way, server=True)
    try:
        hangs.settled(ranks, 5.0)
        found, _ = hangs.looked(ranks, "server", tmp_path / "kept")
    finally:
        hangs.ended(ranks)
    assert hangs.judged(way, found)[0] == "right", found["standing"]
    again = ncclprobe("explain", str(tmp_path / "kept"), "--exit-code", "--json", str(tmp_path / "again.json"))
    assert again.returncode == 4, again.stderr
    told = json.loads((tmp_path / "again.json").read_text())
    assert (told["standing"], told["classes"]) == (found["standing"], found["classes"])


@pytest.mark.parametrize("way", ["rank 1 waits 1 s for data", pytest.param("fast", marks=SLOW)])
def test_a_healthy_job_is_not_called_stuck(way: str, tmp_path: Path) -> None:
    ranks = hangs.started(way, server=True)
    try:
        found, _ = hangs.looked(ranks, "server", None)
    finally:
        hangs.ended(ranks)
    assert hangs.judged(way, found)[0] == "right", found["standing"]


@pytest.mark.slow
def test_a_process_that_is_no_rank_is_refused_in_one_line() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        done = ncclprobe("attach", "--pid", str(process.pid), "--timeout", "20")
        process.kill()
    assert done.returncode == 2
    assert done.stderr.startswith("ncclprobe: no rank of a job was found on ")
    assert done.stderr.count("\n") == 1


def test_what_prepares_a_job_is_printed_and_is_what_the_jobs_above_run() -> None:
    done = ncclprobe("attach", "--prepare")
    assert done.returncode == 0
    assert done.stdout == hangs.PREPARE
