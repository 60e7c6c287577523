"""A real Slurm on the lab's hosts: what it says of switches, and a script that climbs to all nodes."""

import sys
from pathlib import Path

import pytest

from ncclprobe.report import json as as_json

from . import Lab, launchers, why_not

pytestmark = pytest.mark.slow

need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")


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
