"""The launch files for Slurm, in a real one: what they start, what they let through, and that they drain nothing."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import Lab, launchers, why_not
from .launchers import Slurm

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "ncclprobe" / "deploy"
SLURM = why_not(*launchers.SLURM, "sbatch", "scontrol", "gcc")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(SLURM), reason=SLURM or "Slurm is here")]


def executable(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def wrapper(lab: Lab, script: str, **variables: str) -> Path:
    """What a site writes around `script`: slurmd's own environment is not its host's, and PATH is short."""
    command = executable(lab.folder / "ncclprobe", f'exec {shlex.quote(sys.executable)} -m ncclprobe "$@"')
    given = {"PYTHONPATH": str(ROOT), "NCCLPROBE": str(command), **variables}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    # stdout of a prolog stands in no log unless it fails
    out = f">>{shlex.quote(str(lab.folder))}/said 2>&1"
    own = f". {lab.folder}/$SLURMD_NODENAME.env"
    return executable(lab.folder / f"site-{script}", own, *lines, f"{DEPLOY / script} {out}")


@contextmanager
def sick_second_node(*more: str, **variables: str) -> Iterator[Slurm]:
    """Two nodes with GPUs, of which the second has lost one, with our prolog and epilog; `more`: of slurm.conf."""
    with Lab(hosts=2) as lab:
        launchers.give_gpus(lab)
        lab["n1"].env["FAKE_NVML_LOST"] = "1"
        lab.save()
        prolog, health = wrapper(lab, "slurm_prolog", **variables), wrapper(lab, "slurm_health")
        settings = [f"Prolog={prolog}", f"Epilog={prolog}", f"HealthCheckProgram={health}"]
        with launchers.slurm(lab, *settings, *more) as cluster:
            yield cluster


def drained(cluster: Slurm) -> list[str]:
    lines = cluster.run(["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=10.0).out.splitlines()
    return [line.split()[0] for line in lines if "drain" in line]


def until_said(cluster: Slurm, enough: Callable[[list[str]], bool]) -> list[str]:
    """What the files said, which after a job may take a moment."""
    end_s, path = time.monotonic() + 60.0, cluster.lab.folder / "said"
    while not enough(lines := path.read_text().splitlines() if path.exists() else []):
        assert time.monotonic() < end_s, lines
        time.sleep(0.2)
    return lines


def batch(cluster: Slurm, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code of a batch job. `sbatch --wait` looks every ten seconds only."""
    job = cluster.run(["sbatch", "--parsable", *argv], env, timeout_s=20.0).out.strip()
    end_s = time.monotonic() + 90.0
    while time.monotonic() < end_s:
        shown = cluster.run(["scontrol", "show", "job", job], timeout_s=10.0).out
        ended = re.search(r"JobState=(?!PENDING|RUNNING|COMPLETING|CONFIGURING)", shown)
        if ended and (code := re.search(r"ExitCode=(\d+):", shown)):
            return int(code[1])
        time.sleep(0.2)
    raise AssertionError(shown)


def test_prolog_epilog_and_health_check_say_what_they_see_and_drain_nothing_by_default() -> None:
    with sick_second_node("HealthCheckInterval=2") as cluster:
        done = cluster.run(["srun", "-N2", "hostname"])
        assert (done.code, sorted(done.out.split())) == (0, ["n0", "n1"]), done.err
        for context in ("prolog_slurmd", "epilog_slurmd"):
            said = until_said(cluster, lambda lines, of=f" {context}: ": sum(of in line for line in lines) >= 2)
            lines = [line for line in said if f" {context}: " in line]
            assert (len(lines), sum("GPU1" in line and "FAIL" in line for line in lines)) == (2, 1), said
        health = "\n".join(until_said(cluster, lambda lines: any("to drain it" in line for line in lines)))
        assert "scontrol update nodename=n1 state=drain reason='FAIL" in health
        assert "nodename=n0" not in health
        assert drained(cluster) == []


def test_the_prolog_drains_a_bad_node_only_when_it_is_told_to() -> None:
    with sick_second_node(NCCLPROBE_DRAIN="1") as cluster:
        well = cluster.run(["srun", "-N1", "-w", "n0", "hostname"])
        assert (well.code, well.out) == (0, "n0\n"), well.err
        cluster.run(["srun", "-N1", "-w", "n1", "hostname"], timeout_s=60.0)
        assert drained(cluster) == ["n1"]


@pytest.mark.parametrize("broken", ["exit 1", "exit 2", "sleep 60", "kill -SEGV $$"])
def test_a_broken_ncclprobe_is_no_broken_node(tmp_path: Path, broken: str) -> None:
    command = executable(tmp_path / "ncclprobe", broken)
    env = {"NCCLPROBE": str(command), "NCCLPROBE_DRAIN": "1", "NCCLPROBE_SECONDS": "1", "PATH": "/usr/bin:/bin"}
    for script in ("slurm_prolog", "slurm_health"):
        if not (script == "slurm_health" and "sleep" in broken):
            assert subprocess.run([DEPLOY / script], env=env, capture_output=True, timeout=30).returncode == 0


def test_the_batch_script_starts_the_job_where_nothing_fails(tmp_path: Path) -> None:
    with Lab(hosts=2) as lab:
        launchers.give_gpus(lab)
        with launchers.slurm(lab) as cluster:
            own = f". {lab.folder}/$SLURMD_NODENAME.env"  # a task prolog that is late under load leaves n0's
            command = executable(lab.folder / "ncclprobe", own, f'exec {shlex.quote(sys.executable)} -m ncclprobe "$@"')
            for lost in (False, True):
                if lost:
                    lab["n1"].env["FAKE_NVML_LOST"] = "1"
                reports, out = tmp_path / str(lost), tmp_path / f"out-{lost}"
                reports.mkdir()
                env = {"NCCLPROBE": str(command), "PYTHONPATH": str(ROOT), "NCCLPROBE_REPORTS": str(reports),
                       "NCCLPROBE_OPTIONS": "--select gpu.* --select sync.*"}  # fmt: skip
                code = batch(cluster, ["-N2", f"--output={out}", str(DEPLOY / "slurm_batch"), "hostname"], env)
                said = out.read_text()
                (report,) = (json.loads(path.read_text()) for path in reports.glob("ncclprobe-*.json"))
                assert code == (4 if lost else 0), said
                assert ({"n0", "n1"} <= set(said.split("\n"))) is not lost
                assert [node["name"] for node in report["nodes"]] == ["n0", "n1"]
                assert ("--exclude=n1" in said) is lost
