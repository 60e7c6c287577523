"""The commands for two nodes and for Slurm, as the documentation has them, on hosts of the lab."""

import shlex
import sys
import time

import pytest
from documentation import ROOT, Example, blocks, prints

from . import Lab, launchers, why_not
from .processes import Completed, Running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]
need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")
OURS = [sys.executable, "-m", "ncclprobe"]


def example(page: str, where: str) -> Example:
    """Return the one command of a page that is for `where`."""
    (found,) = (block for block in blocks(ROOT / "docs" / page) if block.comment == f"lab: {where}")
    (only,) = found.examples
    return only


def words(command: str) -> list[str]:
    """Return the words of a command, in which ncclprobe is that of this checkout, with the deadline of the lab."""
    found = [word for each in shlex.split(command) for word in (OURS if each == "ncclprobe" else [each])]
    return [*found, "--no-color"]


def secret(first: Running) -> str:
    """Return what node 0 prints before the command of node 1: NCCLPROBE_TOKEN=…"""
    while "--node-rank 1" not in first.err and first.popen.poll() is None:
        time.sleep(0.05)
    (line,) = (line for line in first.err.splitlines() if "--node-rank 1" in line)
    return line.split()[0].partition("=")[2]


def is_well(done: Completed, said: Example) -> bool:
    return done.code == 0 and prints(done.out, said.expected)


def test_two_nodes_are_looked_at_by_the_lines_of_the_page() -> None:
    first, second = (example("reference/many-nodes.md", host) for host in ("n0", "n1"))
    with Lab(hosts=2) as lab:
        began = lab.hosts[0].start(words(first.command))
        token = secret(began)
        name, *line = words(second.command)
        other = lab.hosts[1].run(line, {name.partition("=")[0]: token}, 60.0)
        done = began.wait(60.0)
        assert other.code == 0, other
        assert is_well(done, first), done


@need_slurm
def test_slurm_starts_the_doctor_by_the_line_of_the_page() -> None:
    said = example("deploy.md", "slurm")
    with Lab(hosts=2) as lab, launchers.slurm(lab) as cluster:
        done = cluster.run(words(said.command), timeout_s=90.0)
        assert is_well(done, said), done
