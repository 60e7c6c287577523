"""Pairs between hosts: who hangs on a slow card is named, and nobody else."""

import sys
import time
from pathlib import Path

import pytest

from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

from . import Lab, faults, why_not
from .run import ended

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]

HOSTS, DEADLINE_S = 4, 60.0


def play(lab: Lab, path: Path, *options: str) -> tuple[list[int], Report]:
    """One rank on every host, started by hand; the exit codes and rank 0's report."""
    jobs = {}
    for host in lab.hosts:
        seat = {"RANK": str(host.number - 1), "WORLD_SIZE": str(HOSTS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env = seat | {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        own = ["-m", "ncclprobe", "pairs", "--backend", "gloo", "--json", str(path), *options]
        jobs[host.name] = host.start([sys.executable, *own], env)
    done = ended(jobs, time.monotonic() + DEADLINE_S)
    assert not any(each.timed_out for each in done.values()), {name: each.err for name, each in done.items()}
    return [each.code for each in done.values()], as_json.read(str(path))


def test_the_host_whose_card_is_slow_is_named_and_no_other_node(tmp_path: Path) -> None:
    """Four hosts on two busy processors: a pair between two others may be slow for good reason, a node may not."""
    with Lab(hosts=HOSTS) as lab, faults.shaped(lab["n2"], 200.0):
        codes, report = play(lab, tmp_path / "report.json", "-e", "1M")
    assert report.localisation
    (culprit,) = [each for each in report.localisation.culprits if each.kind == "node"]
    assert (culprit.nodes, culprit.direction) == (("n2",), "out")
    assert culprit.ratio < 0.5
    assert culprit.retests > 0
    (finding,) = [f for v in report.checks if v.id == "run.pairs" for f in v.findings if f.blame == "node"]
    assert (finding.subject, finding.severity.value, finding.nodes) == ("out of n2", "fail", ("n2",))
    assert codes == [4] * HOSTS
    of_run = [verdict for verdict in report.checks if verdict.id.startswith("run.")]
    assert {verdict.node for verdict in of_run} == {None}  # they are about all nodes; findings name theirs
    assert {row.src_end for row in report.pairs} == {f"n{number} (eth0)" for number in range(HOSTS)}
