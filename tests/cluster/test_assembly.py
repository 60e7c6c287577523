"""The parts of an assembly, where no second process is needed; with many, tests/lab plays them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.cluster.gather import Times, node_name, parse_rank_answers
from ncclprobe.cluster.gather.coordinator import listeners_of, replayed, snapshots_of, troubles, unique_names
from ncclprobe.cluster.rendezvous.coordinator import Peer
from ncclprobe.cluster.rendezvous.messages import Hello
from ncclprobe.engine import captures, diagnose
from ncclprobe.engine.diagnose import Judging
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.reach import MEASURED
from ncclprobe.host.capture import dump
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

MACHINES = Path(__file__).parents[1] / "captures"


def peer(name: str, rank: int, capture: Path = Path(), **details: Any) -> Peer:
    wire: Any = None
    return Peer(
        Hello(f"{name}/{rank}", rank, name), wire, f"10.0.0.{rank}", capture, details.pop("extra", False), **details
    )


def test_every_part_of_a_run_ends_before_the_run() -> None:
    times = Times(time.monotonic(), timeout_s=10.0, wait_s=600.0)
    assert times.meeting() < times.mesh() < times.end == times.start + 10.0


def test_a_node_that_began_late_waits_as_long_as_it_states_while_the_run_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = Times(100.0, timeout_s=40.0, wait_s=600.0)
    for now, waits_s in ((100.0, 20.0), (108.0, 20.0), (125.0, 5.0)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert times.meeting() - now == waits_s
    assert times.allowed_s == 20.0


def test_nodes_of_one_name_are_told_apart() -> None:
    names = unique_names("n0", [peer("n0", 1), peer("n1", 2), peer("n3", 3)])
    assert set(names.values()) == {"n0#1", "n1", "n3"}
    twins = [peer("n1", 2), Peer(Hello("other", 2, "n1"), None, "", Path(), True)]  # type: ignore[arg-type]
    assert len(set(unique_names("n0", twins).values())) == 2


def test_no_node_is_called_at_an_address_that_its_own_capture_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"eth0": [{"address": "10.0.0.1"}, {"address": "fe80::1%eth0"}]}
    told = {("psutil", "net_if_addrs"): json.dumps(rows), ("read", "/a"): "10.0.0.9"}
    announced = [
        {"role": f"nccl{number}", "interface": "eth0", "address": address, "port": 4000}
        for number, address in enumerate(("10.0.0.1", "10.0.0.9", "fe80::1%eth0"))
    ]
    captures = {
        "true": dump(told, "n1"),
        "none": dump({}, "n1"),
        "garbled": dump({("psutil", "net_if_addrs"): "[1"}, "n1"),
    }
    kept = {}
    for name, text in captures.items():
        (tmp_path / name).write_text(text)
        node = peer("n1", 1, tmp_path / name)
        node = replace(node, hello=replace(node.hello, listeners=tuple(announced)))
        kept[name] = [each.address for each in listeners_of(node)]
    assert kept == {"true": ["10.0.0.1", "fe80::1%eth0"], "none": [], "garbled": []}
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "ncclprobe: node 1 listens at 10.0.0.9, which its capture lacks: not contacted"


def test_the_scheduler_knows_a_node_by_a_better_name() -> None:
    assert node_name(Launch(names=("gpu-0", "gpu-1")), Snapshot("localhost", {}), 1) == "gpu-1"
    assert node_name(Launch(), Snapshot("localhost", {}), 1) == "localhost"


def test_ranks_call_themselves_by_their_number_in_the_job() -> None:
    told = {1: dump({("read", "/a"): "one"}, "rank 12"), 2: dump({}, "rank None"), 3: "no capture"}
    assert parse_rank_answers(Launch(rank=8), told) == {12: {("read", "/a"): "one"}, 10: {}, 11: {}}


def test_a_node_that_was_lost_is_remembered_with_what_went_wrong() -> None:
    told = peer("n1", 1, samples={"paths": {}})
    lost, mute = troubles([told, peer("n2", 2, lost="reset: hung up: at once"), peer("n3", 3)])
    assert (lost.peer, lost.kind, lost.detail, lost.node_rank) == ("10.0.0.2", "reset", "hung up: at once", 2)
    assert (mute.kind, mute.node_rank) == ("silent", 3)


@each_row(
    ("text", "lost"),
    [
        (dump({("read", "/a"): "one"}, "n1"), ""),
        ('{"capture": 1}\n{"like": "/etc/passwd"}\n', "garbled: the capture of n1:2: unknown row"),
        ("", "garbled: the capture of n1: the file is empty"),
        ("[" * 10_000, "garbled: the capture of n1 is not a capture"),
    ],
)
def test_a_capture_from_another_node_is_like_no_file_of_ours_and_breaks_nothing(
    text: str, lost: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    one = peer("n1", 1, path)
    (replay,) = replayed([one], {one.hello.id: "n1"})
    assert one.lost.startswith(lost)
    assert replay.node == "n1"


def test_nodes_that_are_judged_as_they_arrive_are_judged_as_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three nodes sent what they know: one is sick, one broke its capture, and one of two has the same name."""
    monkeypatch.setattr(captures, "FEW", 0)
    monkeypatch.setattr("ncclprobe.engine.workers.cores", lambda: 2)
    machines = (MACHINES / "hgx-h100.jsonl", MACHINES / "hgx-h200.jsonl", MACHINES / "hgx-h200.jsonl")
    texts = [*(each.read_text() for each in machines), '{"capture": 1}\n{"like": "00001.jsonl"}\n']
    texts[1] = texts[1].replace('"4: ACTIVE', '"1: DOWN', 1)
    paths = {"me": 0, "listeners": {}, "paths": []}
    peers = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number:05}.jsonl"
        path.write_text(text)
        samples = {"clock": {"offset_s": 0.001 * number, "rtt_s": 0.001}, "paths": paths | {"me": number}}
        peers.append(peer("twin" if number else "n1", number, path, samples=samples if number != 2 else None))
    question = diagnose.ask(Judging(), ("doctor",), Job())
    collectors = discover("ncclprobe.facts", Collector, diagnose.MACHINE)
    part: Any = type("Part", (), {"collectors": collectors})
    names = unique_names("n0", peers)
    reports = []
    for workers in (None, captures.arrival_workers(question, 4)):
        for each in peers:
            each.lost = ""
            if workers:
                workers.add(each.capture, each.hello.name)
        try:
            snapshots = list(snapshots_of(part, peers, names, workers))
        finally:
            if workers:
                workers.__exit__()
        said = diagnose.diagnose(question, snapshots)
        assert [bool(each.said) for each in snapshots] == [bool(workers)] * 3 + [False]
        assert peers[3].lost.startswith("garbled: the capture of twin")
        reports.append(replace(said, started="", duration_s=0.0))
    assert [each.node for each in snapshots] == list(names.values())
    assert reports[0] == reports[1]
    assert {finding.subject for verdict in reports[0].checks for finding in verdict.findings} >= {"mlx5_0:1"}


def test_no_check_of_one_node_needs_what_is_measured_once_its_capture_is_sent() -> None:
    question = diagnose.ask(Judging(), ("doctor",), Job())
    own = [check for check in question.checks if not check.compares]
    needs = {need.fact for check in own for need in (*check.needs, *(check.applies.needs if check.applies else ()))}
    assert len(own) > 100
    assert not needs & MEASURED
