"""A real Slurm on the lab's hosts: what it says of switches."""

import sys

import pytest

from . import Lab, launchers, why_not

pytestmark = pytest.mark.slow

need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")


@need_slurm
def test_a_node_alone_below_its_switch_is_told_by_what_slurm_says_of_switches() -> None:
    switches = "SwitchName=leaf7 Nodes=n[0-1]\nSwitchName=leaf8 Nodes=n2\nSwitchName=spine Switches=leaf[7-8]\n"
    doctor = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--select", "sync.location"]
    with Lab(hosts=3) as lab, launchers.slurm(lab, switches=switches) as slurm:
        done = slurm.run(
            ["srun", "-N3", "--ntasks-per-node=1", *doctor], {"NCCLPROBE_TOKEN": "a secret of this user"}, 60.0
        )
    assert "WARN  sync.location  n2" in done.out, done.err
    told = " ".join(done.out.split())
    assert "is the only node below leaf switch leaf8; the other 2 nodes are below leaf7" in told
