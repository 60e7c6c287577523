"""Nodes as processes of their own: stopped ones, and in the lab firewalls, black holes and slow links."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from lab import Lab, faults, why_not

from ncclprobe.checks.launch.mesh import Pair, tries
from ncclprobe.checks.path import loss, rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.reach import Gathering, Paths
from ncclprobe.facts.reach import Path as Walked
from ncclprobe.localise.reach import LOSSY_SEGMENTS, Suspect, blame, lossy
from ncclprobe.model.snapshot import Absent, Every

pytestmark = pytest.mark.slow

NODE = Path(__file__).with_name("one_node.py")
in_lab = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")


def argv(folder: Path, me: int, nodes: int, *addresses: str, seconds: float = 25.0, manner: str = "walk") -> list[str]:
    return [sys.executable, str(NODE), str(folder), str(me), str(nodes), str(seconds), manner, *addresses]


def walked(folder: Path) -> dict[int, Paths]:
    texts = {int(path.name.split(".")[1]): path.read_text() for path in sorted(folder.glob("paths.*.json"))}
    return {me: msgspec.convert(json.loads(text), Paths, str_keys=True) for me, text in texts.items()}


def by_name(every: dict[int, Paths]) -> Every[Paths]:
    return Every({paths.names[me]: paths for me, paths in every.items()})


def tried(every: dict[int, Paths], role: str = "nccl0") -> dict[Pair, Walked]:
    return {each.pair: each.path for each in tries(by_name(every)) if each.path.role == role}


def suspects(every: dict[int, Paths]) -> set[tuple[str, tuple[str, ...]]]:
    failed = {pair: path.outcome for pair, path in tried(every).items() if path.outcome != "ok"}
    bad = {pair[::-1] if outcome == "stalled-back" else pair for pair, outcome in failed.items()}
    return named(blame(tried(every).keys(), bad))


def slow(every: dict[int, Paths]) -> set[str]:
    """Whose paths carry little: a shaper that is full drops packets, and that may be said instead."""
    paths, nics, gatherings = by_name(every), Every[Interfaces | Absent]({}), Every[Gathering | Absent]({})
    return {finding.subject for finding in (*rate.run(paths, nics, gatherings), *loss.run(paths, nics))}


def named(culprits: tuple[Suspect[str], ...]) -> set[tuple[str, tuple[str, ...]]]:
    return {(culprit.kind, culprit.nodes) for culprit in culprits}


@contextlib.contextmanager
def children(folder: Path, nodes: int, stopped: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    manners = {stopped: "stop"}
    lines = [argv(folder, me, nodes, f"127.78.0.{me + 1}", manner=manners.get(me, "walk")) for me in range(nodes)]
    running = [subprocess.Popen(line) for line in lines]
    try:
        yield running
    finally:
        for child in running:
            child.kill()
            child.wait()


def test_a_stopped_node_is_silent_for_all_and_the_others_are_not_suspected(tmp_path: Path) -> None:
    with children(tmp_path, 4, stopped=2):
        until = time.monotonic() + 40
        while len(every := walked(tmp_path)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
    assert sorted(every) == [0, 1, 3]
    for seen in every.values():
        assert {row.to: row.outcome for row in seen.rows if row.outcome != "ok"} == {2: "silent"}
        assert sum(row.rate_gbps is not None for row in seen.rows) == 2
    assert suspects(every) == {("node", ("node 2",))}


def lab_walk(lab: Lab, folder: Path, seconds: float = 25.0) -> dict[int, Paths]:
    nodes = len(lab.hosts)
    jobs = [
        host.start(argv(folder, me, nodes, *(host.address(nic) for nic in range(lab.nics)), seconds=seconds))
        for me, host in enumerate(lab.hosts)
    ]
    for job in jobs:
        done = job.wait(seconds + 40)
        assert (done.code, done.err) == (0, "")
    return walked(folder)


@in_lab
def test_a_link_at_a_tenth_of_the_others_is_slow_out_of_its_node(tmp_path: Path) -> None:
    with Lab(hosts=4) as lab, faults.shaped(lab["n1"], 40), contextlib.ExitStack() as others:
        for name in ("n0", "n2", "n3"):
            others.enter_context(faults.shaped(lab[name], 400))
        every = lab_walk(lab, tmp_path)
    assert slow(every) == {"node 1"}
    rates = {pair: path.rate_gbps for pair, path in tried(every).items() if path.rate_gbps is not None}
    assert all(gbps < 0.06 for pair, gbps in rates.items() if pair[0] == "node 1")
    assert all(0.1 < gbps < 0.6 for pair, gbps in rates.items() if pair[0] != "node 1")


@in_lab
def test_a_link_too_slow_for_a_whole_stream_has_a_rate_all_the_same(tmp_path: Path) -> None:
    with Lab(hosts=2) as lab, faults.shaped(lab["n1"], 3):
        every = lab_walk(lab, tmp_path)
    assert 0.0005 < (tried(every)["node 1", "node 0"].rate_gbps or 0.0) < 0.006
    assert slow(every) == {"node 1 -> node 0"}


@in_lab
def test_lost_packets_are_counted_where_they_are_lost(tmp_path: Path) -> None:
    with Lab(hosts=3) as lab, faults.lossy(lab["n2"], 5, to="in"):
        every = lab_walk(lab, tmp_path)
    resent = {pair: (path.resent or 0, path.segments or 0) for pair, path in tried(every).items()}
    streams = {pair: counts for pair, counts in resent.items() if counts[1] > LOSSY_SEGMENTS}  # not the other way's
    assert named(blame(streams.keys(), lossy(streams))) == {("into", ("node 2",))}
