"""The launch files for Slurm, in a real one: what they start, what they let through, and that they drain nothing."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclprobe.fleet import store

from . import Lab, launchers, why_not
from .launchers import Slurm
from .run import give_gpus

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
    return executable(
        lab.folder / f"site-{script}", f". {lab.folder}/$SLURMD_NODENAME.env", *lines, f"{DEPLOY / script} {out}"
    )


@contextmanager
def sick_second_node(script: str, *more: str, **variables: str) -> Iterator[Slurm]:
    """Two nodes with GPUs, of which the second has lost one; `script` is its prolog and epilog, or its health check."""
    with Lab(hosts=2) as lab:
        give_gpus(lab)
        lab["n1"].env["FAKE_NVML_LOST"] = "1"
        lab.save()
        path = wrapper(lab, script, **variables)
        options = ("Prolog", "Epilog") if script.endswith("prolog") else ("HealthCheckProgram",)
        with launchers.slurm(lab, *(f"{option}={path}" for option in options), *more) as cluster:
            yield cluster


def states(cluster: Slurm) -> dict[str, str]:
    lines = cluster.run(["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=10.0).out.split("\n")
    return dict(line.split() for line in lines if line)


def said(cluster: Slurm) -> str:
    return (cluster.lab.folder / "said").read_text()


def found(cluster: Slurm, context: str) -> list[str]:
    """What both nodes said in this context, which after a job may take a moment."""
    end_s = time.monotonic() + 60.0
    while len(lines := [line for line in said(cluster).split("\n") if f" {context}: " in line]) < 2:
        assert time.monotonic() < end_s, said(cluster)
        time.sleep(0.2)
    return lines


def batch(cluster: Slurm, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code of a batch job. `sbatch --wait` looks every ten seconds only."""
    job = cluster.run(["sbatch", "--parsable", *argv], env, timeout_s=20.0).out.strip()
    end_s = time.monotonic() + 90.0
    while time.monotonic() < end_s:
        shown = cluster.run(["scontrol", "show", "job", job], timeout_s=10.0).out
        if re.search(r"JobState=(?!PENDING|RUNNING|COMPLETING|CONFIGURING)", shown):
            return int(re.search(r"ExitCode=(\d+):", shown)[1])  # type: ignore[index]
        time.sleep(0.2)
    raise AssertionError(shown)


def test_prolog_and_epilog_drain_nothing_by_default_and_say_what_they_see() -> None:
    with sick_second_node("slurm_prolog") as cluster:
        done = cluster.run(["srun", "-N2", "hostname"], timeout_s=60.0)
        assert (done.code, sorted(done.out.split())) == (0, ["n0", "n1"]), done.err
        for context in ("prolog_slurmd", "epilog_slurmd"):
            lines = found(cluster, context)
            assert (len(lines), sum("GPU1" in line and "FAIL" in line for line in lines)) == (2, 1), said(cluster)
        assert not any("drain" in state for state in states(cluster).values())


def test_the_prolog_drains_a_bad_node_only_when_it_is_told_to() -> None:
    with sick_second_node("slurm_prolog", NCCLPROBE_DRAIN="1") as cluster:
        well = cluster.run(["srun", "-N1", "-w", "n0", "hostname"], timeout_s=60.0)
        assert (well.code, well.out) == (0, "n0\n"), well.err
        cluster.run(["srun", "-N1", "-w", "n1", "hostname"], timeout_s=60.0)
        assert "drain" in states(cluster)["n1"]
        assert "drain" not in states(cluster)["n0"]


@pytest.mark.parametrize("broken", ["exit 1", "exit 2", "sleep 60", "kill -SEGV $$"])
def test_a_broken_ncclprobe_is_no_broken_node(tmp_path: Path, broken: str) -> None:
    command = executable(tmp_path / "ncclprobe", broken)
    env = {"NCCLPROBE": str(command), "NCCLPROBE_DRAIN": "1", "NCCLPROBE_SECONDS": "1", "PATH": "/usr/bin:/bin"}
    for script in ("slurm_prolog", "slurm_health"):
        if not (script == "slurm_health" and "sleep" in broken):
            assert subprocess.run([DEPLOY / script], env=env, capture_output=True, timeout=30).returncode == 0


def test_the_health_check_leaves_the_nodes_state_to_the_site() -> None:
    with sick_second_node("slurm_health", "HealthCheckInterval=2") as cluster:
        end_s = time.monotonic() + 40.0
        while not ((cluster.lab.folder / "said").exists() and "to drain it" in said(cluster)):
            assert time.monotonic() < end_s
            time.sleep(0.2)
        assert "scontrol update nodename=n1 state=drain reason='FAIL" in said(cluster)
        assert "nodename=n0" not in said(cluster)
        assert not any("drain" in state for state in states(cluster).values())


@pytest.mark.parametrize("lost", [False, True], ids=["healthy", "sick"])
def test_the_batch_script_starts_the_job_where_nothing_fails(tmp_path: Path, lost: bool) -> None:
    with Lab(hosts=2) as lab:
        give_gpus(lab)
        if lost:
            lab["n1"].env["FAKE_NVML_LOST"] = "1"
        lab.save()
        with launchers.slurm(lab) as cluster:
            own = f". {lab.folder}/$SLURMD_NODENAME.env"  # a task prolog that is late under load leaves n0's
            start = f'exec {shlex.quote(sys.executable)} -m ncclprobe "$@"'
            command = executable(lab.folder / "ncclprobe", own, start)
            env = {"NCCLPROBE": str(command), "PYTHONPATH": str(ROOT), "NCCLPROBE_REPORTS": str(tmp_path),
                   "NCCLPROBE_OPTIONS": "--select gpu.* --select sync.*"}  # fmt: skip
            out = tmp_path / "out"
            code = batch(cluster, ["-N2", f"--output={out}", str(DEPLOY / "slurm_batch"), "hostname"], env)
        report = json.loads(next(tmp_path.glob("ncclprobe-*.json")).read_text())
        started = {"n0", "n1"} <= set(out.read_text().split("\n"))
        assert code == (4 if lost else 0), out.read_text()
        assert started is not lost
        assert [node["name"] for node in report["nodes"]] == ["n0", "n1"]
        assert ("--exclude=n1" in out.read_text()) is lost


def wait_for(cluster: Slurm, partition: str, jobs: int) -> None:
    """Wait until so many jobs of a partition are there and run; 0: until all have ended."""
    end_s = time.monotonic() + 120.0
    state = ["-t", "R"] if jobs else []
    while len(cluster.run(["squeue", "-h", "-p", partition, *state], timeout_s=20.0).out.splitlines()) != jobs:
        assert time.monotonic() < end_s
        time.sleep(0.5)


def counted(lab: Lab) -> dict[str, int]:
    with store.opened(lab.folder / "fleet.db", 30.0) as fleet:
        return {each.name: each.tests for each in fleet.standings()}
