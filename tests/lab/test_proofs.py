"""Each way in which the nodes of a job prove that they belong to it, and what is said where there is none."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from . import Host, Lab, launchers, why_not
from .processes import Completed, Running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]
need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")
need_mpirun = pytest.mark.skipif(bool(why_not(*launchers.MPIRUN)), reason=why_not(*launchers.MPIRUN) or "here")

PORT = "29500"
DOCTOR = [sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", "--no-color", "--timeout", "40"]
BY_NAME = ["sh", "-c", 'exec "$@" --json "$0/$(uname -n).json"']


def by_hand(lab: Lab, host: Host, *more: str, env: Mapping[str, str] | None = None) -> Running:
    flags = ["--nnodes", "2", "--node-rank", str(host.number - 1), "--master-addr", "n0", "--master-port", PORT]
    return host.start([*DOCTOR, *flags, "--json", str(lab.folder / f"{host.name}.json"), *more], env)


def verdict(lab: Lab, check: str, host: str = "n0") -> dict[str, Any]:
    report = json.loads((lab.folder / f"{host}.json").read_text())
    found: dict[str, Any] = next(each for each in report["checks"] if each["id"] == check)
    return found


def nodes(lab: Lab) -> list[str]:
    return [each["name"] for each in json.loads((lab.folder / "n0.json").read_text())["nodes"]]


def test_by_hand_the_line_that_node_0_prints_starts_the_other_node() -> None:
    with Lab(hosts=2) as lab:
        first = by_hand(lab, lab.hosts[0])
        while "--node-rank 1" not in first.err and first.popen.poll() is None:
            pass
        (line,) = (line for line in first.err.splitlines() if "--node-rank 1" in line)
        token, *words = line.split()
        name, _, secret = token.partition("=")
        assert words[:2] == ["ncclprobe", "doctor"]
        second = lab.hosts[1].run([sys.executable, "-m", "ncclprobe.doctor", *words[2:]], {name: secret}, 60.0)
        done = first.wait(60.0)
        assert (done.code, second.code) == (0, 0), (done, second)
        assert verdict(lab, "launch.unproven")["status"] == "pass"
        assert secret not in (lab.folder / "n0.json").read_text()


def test_by_hand_a_node_without_the_line_is_told_where_to_find_it() -> None:
    with Lab(hosts=2) as lab:
        done = by_hand(lab, lab.hosts[1]).wait(30.0)
        assert (done.code, "the command that node 0 prints" in done.err) == (2, True)


def test_a_network_that_is_trusted_needs_no_secret_and_the_report_warns() -> None:
    with Lab(hosts=2) as lab:
        jobs = [by_hand(lab, host, "--trust-network") for host in lab.hosts]
        assert [job.wait(60.0).code for job in jobs] == [0, 0]
        assert verdict(lab, "launch.unproven")["status"] == "warn"


def test_a_file_in_a_home_of_all_nodes_is_enough() -> None:
    with Lab(hosts=2) as lab:
        path = lab.folder / ".config/ncclprobe/token"
        path.parent.mkdir(parents=True)
        path.touch(0o600)
        path.write_text("0123456789abcdef" * 4)
        jobs = [by_hand(lab, host, env={"HOME": str(lab.folder)}) for host in lab.hosts]
        assert [job.wait(60.0).code for job in jobs] == [0, 0]
        assert verdict(lab, "launch.unproven")["status"] == "pass"


def slurm(lab: Lab, *more: str, munge: bool = True) -> Completed:
    with launchers.slurm(lab) as cluster:
        if not munge:
            for host in lab.hosts:
                host.must("umount", "/run/munge")
        return cluster.run(["srun", "-N2", *BY_NAME, str(lab.folder), *DOCTOR, *more], {"MASTER_PORT": PORT}, 90.0)


@need_slurm
def test_under_slurm_munge_proves_them() -> None:
    with Lab(hosts=2) as lab:
        done = slurm(lab)
        assert done.code == 0, done
        assert verdict(lab, "launch.unproven")["status"] == "pass"
        assert verdict(lab, "launch.mesh")["status"] == "pass"
        assert "token: munge" in (lab.folder / "n0.json").read_text()


@need_slurm
def test_under_slurm_without_munge_each_node_is_alone_and_nothing_is_known_of_others() -> None:
    with Lab(hosts=2) as lab:
        done = slurm(lab, munge=False)
        assert done.code == 3, done
        assert nodes(lab) == ["n0"]
        for host in ("n0", "n1"):  # each says so
            unproven = verdict(lab, "launch.unproven", host)
            assert (unproven["status"], unproven["required"]) == ("unknown", True)
            assert "no secret" in unproven["why"]
        assert "--trust-network" in unproven["why"]


def mpi(lab: Lab, *more: str, env: Mapping[str, str] | None = None) -> Completed:
    given = {"MASTER_ADDR": "n0", "MASTER_PORT": PORT, **(env or {})}
    return launchers.mpirun(lab, [*BY_NAME, str(lab.folder), *DOCTOR, *more], env=given).wait(90.0)


@need_mpirun
def test_under_mpirun_the_users_own_token_proves_them_and_without_one_each_node_is_alone(tmp_path: Path) -> None:
    with Lab(hosts=2) as lab:
        assert mpi(lab, env={"NCCLPROBE_TOKEN": "a secret of this user"}).code == 0
        assert nodes(lab) == ["n0", "n1"]
    with Lab(hosts=2) as lab:
        done = mpi(lab)
        assert done.code == 3, done
        assert nodes(lab) == ["n0"]
        assert verdict(lab, "launch.unproven", "n1")["status"] == "unknown"


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with Lab(hosts=2) as lab:
        done = by_hand(lab, lab.hosts[0], env={"NCCLPROBE_TOKEN": "changeme"}).wait(30.0)
        assert (done.code, "openssl rand" in done.err) == (2, True)
