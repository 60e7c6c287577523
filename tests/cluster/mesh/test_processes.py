"""Nodes as processes of their own: a stopped one, and in the lab slow links and lost packets."""

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from lab import Lab, faults, why_not

from ncclprobe.checks.launch.mesh import Pair, tries
from ncclprobe.checks.path import loss, rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.reach import Gathering, Paths
from ncclprobe.facts.reach import Path as Walked
from ncclprobe.localise.reach import LOSSY_SEGMENTS, blame, lossy
from ncclprobe.model.snapshot import Absent, Every

pytestmark = pytest.mark.slow
NODE = Path(__file__).with_name("one_node.py")
in_lab = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")


def argv(folder: Path, me: int, nodes: int, *addresses: str, manner: str = "walk") -> list[str]:
    return [sys.executable, str(NODE), str(folder), str(me), str(nodes), "25", manner, *addresses]


def walked(folder: Path) -> Every[Paths]:
    texts = {int(path.name.split(".")[1]): path.read_text() for path in sorted(folder.glob("paths.*.json"))}
    every = {me: msgspec.convert(json.loads(text), Paths, str_keys=True) for me, text in texts.items()}
    return Every({paths.names[me]: paths for me, paths in every.items()})


def tried(every: Every[Paths]) -> dict[Pair, Walked]:
    return {each.pair: each.path for each in tries(every)}


def test_a_stopped_node_is_silent_for_all_and_the_others_are_not_suspected(tmp_path: Path) -> None:
    lines = [argv(tmp_path, me, 4, f"127.78.0.{me + 1}", manner="stop" if me == 2 else "walk") for me in range(4)]
    running = [subprocess.Popen(line) for line in lines]
    try:
        until = time.monotonic() + 40
        while len(every := walked(tmp_path)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        for child in running:
            child.kill()
            child.wait()
    assert {pair: path.outcome for pair, path in tried(every).items() if path.outcome != "ok"} == {
        (f"node {me}", "node 2"): "silent" for me in (0, 1, 3)
    }
    assert all(sum(row.rate_gbps is not None for row in seen.rows) == 2 for _, seen in every.items())


def lab_walk(lab: Lab, folder: Path) -> Every[Paths]:
    jobs = [host.start(argv(folder, me, len(lab.hosts), host.address())) for me, host in enumerate(lab.hosts)]
    for job in jobs:
        done = job.wait(65.0)
        assert (done.code, done.err) == (0, "")
    return walked(folder)


@in_lab
def test_a_link_too_slow_for_a_whole_stream_has_a_rate_all_the_same(tmp_path: Path) -> None:
    with Lab(hosts=2) as lab, faults.shaped(lab["n1"], 3):
        every = lab_walk(lab, tmp_path)
    assert 0.0005 < (tried(every)["node 1", "node 0"].rate_gbps or 0.0) < 0.006
    nics, gatherings = Every[Interfaces | Absent]({}), Every[Gathering | Absent]({})
    # a shaper that is full drops packets, and that may be said instead
    found = (*rate.run(every, nics, gatherings), *loss.run(every, nics))
    assert {finding.subject for finding in found} == {"node 1 -> node 0"}


@in_lab
def test_lost_packets_are_counted_where_they_are_lost(tmp_path: Path) -> None:
    with Lab(hosts=3) as lab, faults.lossy(lab["n2"], 5, to="in"):
        every = lab_walk(lab, tmp_path)
    resent = {pair: (path.resent or 0, path.segments or 0) for pair, path in tried(every).items()}
    streams = {pair: counts for pair, counts in resent.items() if counts[1] > LOSSY_SEGMENTS}  # not the other way's
    found = blame(streams.keys(), lossy(streams))
    assert {(culprit.kind, culprit.nodes) for culprit in found} == {("into", ("node 2",))}
