"""Real launchers on the lab's hosts: ranks land where they should, and two clusters at once do not collide."""

import sys
from pathlib import Path

import pytest

from ncclprobe.report import json as as_json

from . import Lab, LabError, faults, launchers, why_not

pytestmark = pytest.mark.slow

SAY = ["sh", "-c", 'echo "$(hostname) $(ulimit -l) $NCCL_SOCKET_IFNAME ${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}"']
SCRIPT = """
import datetime, socket, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
total = torch.ones(1)
dist.all_reduce(total)
print(socket.gethostname(), dist.get_rank(), int(total), flush=True)
dist.destroy_process_group()
"""
need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")
need_mpirun = pytest.mark.skipif(bool(why_not(*launchers.MPIRUN)), reason=why_not(*launchers.MPIRUN) or "here")
need_lab = pytest.mark.skipif(bool(why_not()), reason=why_not() or "here")


@need_slurm
@pytest.mark.every_time
@pytest.mark.parametrize("ipv6", [False, True])
def test_slurm_runs_a_task_on_every_host_with_its_variables_and_limits(ipv6: bool) -> None:
    with Lab(hosts=3, ipv4=not ipv6, ipv6=ipv6) as lab, launchers.slurm(lab) as slurm:
        with faults.environment(lab.hosts[1], NCCL_SOCKET_IFNAME="eth9"), faults.low_memlock(lab.hosts[2]):
            done = slurm.run(["srun", "-N3", *SAY], timeout_s=30.0)
        said = sorted(line.split() for line in done.out.splitlines())
        assert done.code == 0, done.err
        assert [words[0] for words in said] == ["n0", "n1", "n2"]
        assert [words[2] for words in said] == ["0", "eth9", "2"]
        assert said[2][1] == "64"
        assert said[0][1] != "64"


@need_slurm
def test_a_node_alone_below_its_switch_is_told_by_what_slurm_says_of_switches() -> None:
    switches = "SwitchName=leaf7 Nodes=n[0-1]\nSwitchName=leaf8 Nodes=n2\nSwitchName=spine Switches=leaf[7-8]\n"
    doctor = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--select", "sync.location"]
    with Lab(hosts=3) as lab, launchers.slurm(lab, switches=switches) as slurm:
        done = slurm.run(["srun", "-N3", "--ntasks-per-node=1", *doctor], timeout_s=60.0)
    assert "WARN  sync.location  n2" in done.out, done.err
    assert "alone below leaf switch leaf8; the other 2 nodes are below leaf7" in done.out


@need_slurm
def test_a_script_climbs_from_one_rank_over_its_node_to_all_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, report = tmp_path / "meet.py", tmp_path / "report.json"
    script.write_text(MEET)
    accept = [
        sys.executable,
        "-m",
        "ncclprobe",
        "accept",
        "--backend",
        "gloo",
        "--timeout",
        "150",
        "--json",
        str(report),
    ]
    argv = [*accept, "--ladder", "--ladder-metric", "rate", "--", sys.executable, str(script)]
    with Lab(hosts=2) as lab, launchers.slurm(lab) as slurm:
        done = slurm.run(["srun", "-N2", "--ntasks-per-node=2", *argv], timeout_s=170.0)
    rows = [(row.rung, row.ranks, row.nodes, row.ended, row.metric) for row in as_json.read(str(report)).script]
    expected = [("rank", 1, 1), ("node", 2, 1), ("job", 4, 2)]
    assert rows == [(*each, "well", 100.0 * each[1]) for each in expected], done.out + done.err
    assert "script on 2 ranks 2 x (100 %), 4 ranks 4 x (100 %)" in done.out


MEET = """\
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert "SLURM_PROCID" not in os.environ and 0 <= int(os.environ["LOCAL_RANK"]) < 2
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:  # all ranks of this rung, and no other, meet at the address that they were given
    family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family) as server:
        server.bind(("", where[1]))
        server.listen()
        server.settimeout(30)
        came = sorted(int(server.accept()[0].recv(8)) for _ in range(world - 1))
    assert came == list(range(1, world)), came
    print(f"rate: {100 * world}")
else:
    for _ in range(100):
        try:
            with socket.create_connection(where, timeout=5) as peer:
                peer.sendall(str(rank).encode())
            break
        except OSError:
            time.sleep(0.2)
"""


@need_slurm
def test_two_slurms_at_once_do_not_collide() -> None:
    with Lab(hosts=2) as one, Lab(hosts=3) as two, launchers.slurm(one) as small, launchers.slurm(two) as large:
        assert len(large.run(["srun", "-N3", "hostname"], timeout_s=30.0).out.split()) == 3
        assert len(small.run(["srun", "-N2", "hostname"], timeout_s=30.0).out.split()) == 2


@need_slurm
def test_a_slurm_that_cannot_start_says_why() -> None:
    with Lab(hosts=1) as lab, pytest.raises(LabError, match="NoSuchSetting"), launchers.slurm(lab, "NoSuchSetting=1"):
        pass


@need_mpirun
def test_mpirun_starts_a_rank_on_every_host_with_its_variables() -> None:
    with Lab(hosts=3) as lab, faults.environment(lab.hosts[2], NCCL_SOCKET_IFNAME="eth9"):
        done = launchers.mpirun(lab, SAY, env={"NCCL_DEBUG": "INFO"}).wait(60.0)
    said = sorted(line.split() for line in done.out.splitlines())
    assert done.code == 0, done.err
    assert [(words[0], words[-1]) for words in said] == [("n0", "0"), ("n1", "1"), ("n2", "2")]
    assert said[2][2] == "eth9"


@need_lab
@pytest.mark.every_time
def test_torchrun_meets_on_all_hosts(tmp_path: Path) -> None:
    """The static rendezvous; that of c10d is in the matrix."""
    pytest.importorskip("torch")
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    with Lab(hosts=2) as lab:
        jobs = launchers.torchrun(lab, [str(script)], env={"GLOO_SOCKET_IFNAME": "eth0"})
        done = launchers.wait_all(jobs, 100.0)
    assert [one.code for one in done] == [0, 0], (done, sys.executable)
    assert sorted(line.split()[0] for one in done for line in one.out.splitlines()) == ["n0", "n1"]
    assert {line.split()[2] for one in done for line in one.out.splitlines()} == {"2"}
