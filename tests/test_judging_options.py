"""What the commands that judge have in common: the same options, the same meaning, and none swallowed elsewhere."""

import json
import re
import subprocess
from pathlib import Path

from tests.each_row import each_row
from tests.test_commands import ncclprobe

ROOT = Path(__file__).resolve().parent.parent
GATES = ("slurm_prolog", "slurm_health", "kubernetes_init.yaml", "kubernetes_job.yaml", "kubernetes_jobset.yaml")


def doctor(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return ncclprobe("doctor", "--backend", "gloo", *argv, cwd=folder)


def test_the_doctor_of_one_node_keeps_what_it_judged(tmp_path: Path) -> None:
    first = doctor(tmp_path, "--keep", "kept", "--json", "first.json", "--nodes-out", "lists")
    (capture,) = (tmp_path / "kept").iterdir()
    assert capture.stat().st_mode & 0o077 == 0
    again = doctor(tmp_path, str(capture), "--json", "again.json")
    assert first.returncode == again.returncode
    both = [json.loads((tmp_path / name).read_text())["checks"] for name in ("first.json", "again.json")]
    untitled = [[{**check, "title": ""} for check in checks] for checks in both]  # a title names the capture's node
    assert untitled[0] == untitled[1]
    told = doctor(tmp_path, str(capture), "--keep", "more")
    assert (told.returncode, "the captures are files already" in told.stderr) == (2, True)


@each_row("name", GATES)
def test_a_gate_that_is_shipped_reads_no_file_of_the_folder_it_stands_in(name: str) -> None:
    text = (ROOT / "ncclprobe" / "deploy" / name).read_text()
    calls = re.findall(r"ncclprobe\"? (?:doctor|bandwidth) .*", text)
    assert calls
    assert all("--no-config" in call for call in calls)
