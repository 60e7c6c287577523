"""Nodes of one job meet within this process, walk one another's paths and rails, and are judged by node 0.

tests/lab plays them as processes on hosts of their own.
"""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import zoo
from launching import free_port
from zoo.answers import Answers
from zoo.sick import file, resolves, variables

from ncclprobe.cluster import gather
from ncclprobe.cluster.gather import NodePlace, Times, assemble
from ncclprobe.cluster.gather import coordinator as node_0
from ncclprobe.cluster.gather.coordinator import run_coordinator, unique_names
from ncclprobe.cluster.gather.part import LocalNode
from ncclprobe.cluster.gather.worker import run_worker
from ncclprobe.cluster.mesh import listeners, plan
from ncclprobe.cluster.rails import node as rail_node
from ncclprobe.cluster.rails.lead import RailsWanted
from ncclprobe.cluster.rendezvous import token
from ncclprobe.cluster.rendezvous.coordinator import Peer
from ncclprobe.cluster.rendezvous.messages import Hello, Leave
from ncclprobe.cluster.rendezvous.siblings import hand_over
from ncclprobe.cluster.rendezvous.token import find_token
from ncclprobe.commands import main
from ncclprobe.engine import captures, diagnose
from ncclprobe.engine.collect import capture_facts
from ncclprobe.engine.diagnose import Judging
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.reach import MEASURED, ClockOffset, Gathering, Paths, Rails, Reach
from ncclprobe.host.capture import Replay, dump, load
from ncclprobe.model.errors import Missing, UsageError
from ncclprobe.model.rails import RailOutcome, RailPort, RailTest
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.signals import ENDING, Interrupted
from tests.each_row import each_row

SECRET = "a secret of the nodes of this job"
VERDICT = "waiting for node 0's verdict on all nodes"
LITTLE = tuple(each for each in discover("ncclprobe.facts", Collector, diagnose.MACHINE) if each.produces is System)
COLLECTORS = discover("ncclprobe.facts", Collector, diagnose.MACHINE)


@pytest.fixture(autouse=True)
def _on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listeners, plan, rail_node):  # all nodes are on the loopback here
        monkeypatch.setattr(module, "check_other", lambda address: None)
    monkeypatch.setattr(rail_node, "_LOOK_S", 0.0)


def here(number: int) -> str:
    return f"127.78.0.{number + 1}"


@cache
def machine(number: int, rank: int, nodes: int, sick: bool = False) -> dict[Any, Any]:
    """What a server answers whose first interface has an address of this host, and that may have a port down."""

    def moved(answers: Answers) -> None:
        said = answers.ask("psutil", "net_if_addrs")
        answers.said["psutil", "net_if_addrs"] = said.replace("10.0.0.11", here(number))

    seat = dict.fromkeys(("RANK", "NODE_RANK"), rank) | dict.fromkeys(("WORLD_SIZE", "NNODES"), nodes)
    given = {name: str(value) for name, value in {**seat, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items()}
    job = variables(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", **given)
    found = resolves("127.0.0.1", "127.0.0.1")
    down = [file("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")] if sick else []
    server = replace(zoo.MACHINES["hgx-h100"], name=f"n{number}", title=f"n{number}")
    return dict(zoo.answers(server, moved, job, found, *down))


class NoCounters:
    def ask(self, *question: str | int) -> str:
        raise Missing(str(question))


async def moves_all(port: RailPort, test: RailTest, *, channel: Any, deadline: float, **how: Any) -> RailOutcome:
    await channel.send({"device": port.device}, deadline)
    await channel.receive(deadline)
    return RailOutcome(asked=port)


class Meeting:
    """A job of `nodes` nodes. `judged` is what each node that judged was given, by its own name, and its report."""

    def __init__(self, nodes: int, folder: Path, **changes: Any) -> None:
        self.nodes, self.spool, self.changes, self.port = nodes, folder / "spool", changes, int(free_port())
        self.wait_s = 30.0  # nobody waits if all come
        self.judged: dict[str, tuple[Report, Sequence[Snapshot], Sequence[str], Sequence[str]]] = {}
        self.progress: list[str] = []
        self.spool.mkdir()

    def judge(self, snapshots: Sequence[Snapshot], missing: Sequence[str], notes: Sequence[str]) -> Report:
        select = ("launch.ranks", "launch.unproven", "launch.mesh", "launch.port", "sync.nodes", "ib.state")
        question = diagnose.ask(Judging(select=select), ("doctor",), Job())
        report = diagnose.diagnose(question, snapshots, missing=missing, notes=notes)
        self.judged[snapshots[0].node] = report, snapshots, missing, notes
        return report

    def place(self, rank: int, secret: str = SECRET, **launched: Any) -> NodePlace:
        launch = Launch("options", rank, self.nodes, 0, 1, self.nodes, rank, "127.0.0.1", self.port)
        launch, times = replace(launch, **launched), Times(time.monotonic(), 60.0, self.wait_s)
        found, leaves = find_token({"NCCLPROBE_TOKEN": secret}, launch), partial(diagnose.leaves, fail_on="fail")
        made = NodePlace(launch, found, times, COLLECTORS, "nccl", self.judge, leaves, progress=self.progress.append)
        return replace(made, **self.changes)

    def run(self, *nodes: tuple[str, int], secrets: Mapping[str, str] = MappingProxyType({})) -> dict[str, int]:
        """Play the nodes, each with a name and its rank; return their exit codes."""

        async def play(number: int, name: str, rank: int) -> int:
            part = self.place(rank, secrets.get(name, SECRET))
            answers = dict(machine(number, rank, self.nodes, name == "sick"))
            local = LocalNode(name, answers, {}, capture_facts(Replay(answers, name), COLLECTORS))
            local.add("proof", part.token.proof)
            return await (run_worker(part, local) if rank else run_coordinator(part, local, self.spool))

        async def all_of_them() -> list[int]:
            return list(await asyncio.gather(*(play(number, *node) for number, node in enumerate(nodes))))

        return dict(zip([name for name, _ in nodes], asyncio.run(all_of_them()), strict=True))

    def facts(self, kind: type) -> list[Any]:
        """The facts of this kind that node 0 judged, of all nodes that have one."""
        return [fact for each in self.judged["n0"][1] if isinstance(fact := each.facts[kind], kind)]


def test_nodes_meet_and_are_judged_by_what_each_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    met = Meeting(3, tmp_path, keep=tmp_path, rails=RailsWanted(moves_all, NoCounters()))
    codes = met.run(("n0", 0), ("sick", 1), ("n2", 2))
    assert codes == {"n0": 4, "sick": 4, "n2": 0}
    ((_, snapshots, missing, notes),) = met.judged.values()
    assert ([each.node for each in snapshots], missing) == (["n0", "sick", "n2"], ())
    assert notes == [f"options started 3 nodes, to meet at 127.0.0.1 (given), port {met.port}; token: NCCLPROBE_TOKEN"]
    (gathering,) = met.facts(Gathering)
    assert (gathering.expected, gathering.came, gathering.lost, gathering.allowed_s) == (2, (1, 2), (), 30.0)
    seen = {
        paths.me: {row.to: (row.outcome, row.tries, row.address) for row in paths.rows} for paths in met.facts(Paths)
    }
    assert seen == {me: {to: ("ok", 1, here(to)) for to in range(3) if to != me} for me in range(3)}
    assert {name for paths in met.facts(Paths) for name in paths.names.items()} == {(0, "n0"), (1, "sick"), (2, "n2")}
    assert [each.outcome for each in met.facts(Reach)] == ["ok", "ok"]
    assert all(abs(each.offset_s) < 1.0 for each in met.facts(ClockOffset))
    assert len(met.facts(ClockOffset)) == 2
    for each in met.facts(Rails):
        assert {row.to for row in each.rows} == {0, 1, 2} - {each.me}
        assert [row.outcome.failures for row in each.rows] == [()] * each.planned
    assert len(met.facts(Rails)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n0.jsonl", "n2.jsonl", "sick.jsonl", "spool"]
    assert load(tmp_path / "sick.jsonl").ask("sample", "paths")
    said = "ncclprobe: sick: FAIL ib.state mlx5_0:1: "
    (line,) = capsys.readouterr().err.splitlines()
    assert (line.startswith(said), line.endswith("; the report is on n0 (exit 4)")) == (True, True), line
    assert met.progress[-2:] == ["testing the paths between the nodes", "judging"]
    assert {"waiting for the nodes: 1 of 3 arrived", "calling node 0 at 127.0.0.1", VERDICT} <= {*met.progress}


def test_twins_strangers_and_who_is_missing_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    met = Meeting(4, tmp_path)
    met.wait_s = 4.0
    codes = met.run(("n0", 0), ("n1", 1), ("n1 ", 1), ("other", 2), secrets={"other": "a secret of another job"})
    assert (codes["n0"], codes["other"]) == (4, 3)
    report, snapshots, missing, _ = met.judged["n0"]
    assert len(snapshots) == 3
    assert sorted(missing) == ["node 2", "node 3"]
    found = {(each.id, one.subject) for each in report.checks for one in each.findings if one.severity.value == "fail"}
    assert found == {("launch.ranks", "node rank 1")}
    (gathering,) = met.facts(Gathering)
    assert {(each.kind, each.node_rank) for each in gathering.troubles} == {("stranger", None)}
    twins = [each.facts[Paths] for each in snapshots if each.node != "n0"]
    assert [isinstance(each, Paths) for each in twins] == [True, False]
    assert "another node has its rank, so it was not asked" in twins[1].why
    alone = met.judged["other"]
    assert (len(alone[1]), alone[3][0]) == (1, "rank 0 was not reached: only this node was judged")
    assert alone[1][0].facts[Reach].outcome == "stranger"


def test_a_report_that_cannot_be_written_ends_the_run_and_every_node_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unwritten(Meeting):
        def judge(self, snapshots: Sequence[Snapshot], missing: Sequence[str], notes: Sequence[str]) -> Report:
            raise UsageError("r.json: no space left")

    codes: list[int] = []

    async def run() -> None:
        met = Unwritten(2, tmp_path)
        parts = [met.place(0), met.place(1)]
        locals_ = [LocalNode(f"n{n}", dict(machine(n, n, 2)), {}, Snapshot(f"n{n}", {})) for n in (0, 1)]
        other = asyncio.ensure_future(run_worker(parts[1], locals_[1]))
        with pytest.raises(UsageError, match="no space left"):
            await run_coordinator(parts[0], locals_[0], met.spool)
        codes.append(await other)

    asyncio.run(run())
    assert codes == [3]
    assert "ncclprobe: n0 could not write the report: r.json: no space left\n" in capsys.readouterr().err


def test_the_options_of_a_command_reach_the_node_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[NodePlace] = []
    monkeypatch.setattr(gather, "assemble", lambda part: parts.append(part) or 3)
    monkeypatch.setenv("NCCLPROBE_TOKEN", SECRET)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    flags, kept = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "29500"], tmp_path / "kept"
    for rank, own, wait_s in ((1, [], 30.0), (0, ["--wait", "7"], 7.0)):
        given = ["--node-rank", str(rank), "--backend", "gloo", "--keep", str(kept), "--timeout", "77", *own]
        assert main(["doctor", "-q", "--no-config", *flags, *given]) == 3
        part = parts[-1]
        assert (part.launch.nnodes, part.launch.node_rank, part.backend, part.rails) == (2, rank, "gloo", None)
        assert (part.keep, part.attempt, kept.exists()) == (kept, "2", rank == 0)
        assert (part.times.timeout_s, part.times.wait_s) == (77.0, wait_s)


def test_a_port_that_is_taken_leaves_node_0_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        met = Meeting(2, tmp_path)
        met.port = other.getsockname()[1]
        assert met.run(("n0", 0)) == {"n0": 3}
    why, _ = met.judged["n0"][3]
    assert why.endswith("another process listens on it: the other nodes could not be reached"), why


def unwritable() -> None:
    raise OSError("read-only")


@each_row(
    ("launched", "secret", "why"),
    [
        ({"nnodes": 1, "world_size": 1}, SECRET, ""),
        ({"kind": "openmpi"}, "", "the nodes have no common secret to authenticate with: only this node was judged"),
        ({}, SECRET, "no folder for the other nodes' captures (read-only); set TMPDIR"),
        ({"master_addr": None}, SECRET, "MASTER_ADDR is not set and options started ranks on 2 nodes; set MASTER_ADDR"),
    ],
)
def test_a_node_without_others_judges_itself(
    launched: dict[str, Any], secret: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token, "is_here", lambda: False)
    monkeypatch.setattr(gather, "scratch", unwritable)
    met = Meeting(2, tmp_path, keep=tmp_path)
    part = replace(met.place(0, secret, **launched), collectors=LITTLE, given={("read", "/a"): "given"})
    assert assemble(part) == met.judged[next(iter(met.judged))][0].exit_code
    ((_, _, missing, notes),) = met.judged.values()
    assert (missing, " ".join(notes[:1]).startswith(why), bool(notes)) == ((), True, bool(why))
    assert any(path.suffix == ".jsonl" for path in tmp_path.iterdir()) is not bool(why)


def test_the_other_ranks_of_a_node_hand_over_what_only_they_see(tmp_path: Path) -> None:
    met, leaves = Meeting(1, tmp_path), list[Leave]()
    part = replace(met.place(0, local_world_size=3, world_size=3), collectors=LITTLE)

    def rank_1() -> None:
        text = dump({("read", "/a"): "seen by rank 1"}, "rank 1")
        leaves.append(asyncio.run(hand_over(part.token.local, 0, 1, text, part.times.end)))

    other = threading.Thread(target=rank_1)
    other.start()
    times = Times(time.monotonic(), 4.0, 1.0)  # rank 2 never comes
    assert assemble(replace(part, times=times)) in (0, 3)
    other.join(20.0)
    assert leaves == [Leave(0)]
    ((_, (snapshot,), _, _),) = met.judged.values()
    assert snapshot.node


def test_a_signal_ends_the_assembly_and_the_handlers_are_put_back(tmp_path: Path) -> None:
    part = replace(Meeting(1, tmp_path).place(0, local_world_size=2, world_size=2), collectors=LITTLE)
    before = [signal.getsignal(number) for number in ENDING]
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(Interrupted):
        assemble(part)
    assert [signal.getsignal(number) for number in ENDING] == before


def peer(name: str, rank: int, capture: Path = Path(), **details: Any) -> Peer:
    wire: Any = None
    return Peer(
        Hello(f"{name}/{rank}", rank, name), wire, f"10.0.0.{rank}", capture, details.pop("extra", False), **details
    )


def test_every_part_of_a_run_ends_before_it_and_a_late_node_waits_as_long_as_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = Times(100.0, timeout_s=40.0, wait_s=600.0)
    for now, waits_s, mesh in ((100.0, 20.0, 134.0), (108.0, 20.0, 134.0), (125.0, 5.0, 134.0)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert (times.meeting() - now, times.mesh()) == (waits_s, mesh)
    assert (times.allowed_s, times.rails(), times.end) == (20.0, 136.0, 140.0)
    assert replace(times, wait_s=7.0).allowed_s == 7.0
    assert replace(times, timeout_s=600.0).mesh() == 170.0


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
        "true": dump(told, "n1"), "none": dump({}, "n1"), "garbled": dump({("psutil", "net_if_addrs"): "[1"}, "n1"),
    }  # fmt: skip
    kept = {}
    for name, text in captures.items():
        (tmp_path / name).write_text(text)
        node = peer("n1", 1, tmp_path / name)
        node = replace(node, hello=replace(node.hello, listeners=tuple(announced)))
        kept[name] = [each.address for each in node_0.listeners_of(node)]
    assert kept == {"true": ["10.0.0.1", "fe80::1%eth0"], "none": [], "garbled": []}
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "ncclprobe: node 1 listens at 10.0.0.9, which its capture lacks: not contacted"


@each_row(
    ("text", "lost"),
    [
        (dump({("read", "/a"): "one"}, "n1"), ""),
        ('{"capture": 1}\n{"like": "/etc/passwd"}\n', "garbled: the capture of n1:2: unknown row"),
        ("", "garbled: the capture of n1: the file is empty"),
        ("[" * 10_000, "garbled: the capture of n1 is not a capture"),
    ],
)
def test_a_capture_from_another_node_is_no_file_of_ours_and_breaks_nothing(
    text: str, lost: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    one = peer("n1", 1, path)
    (replay,) = node_0.replayed([one], {one.hello.id: "n1"})
    assert one.lost.startswith(lost)
    assert replay.node == "n1"


def test_nodes_judged_as_they_arrive_are_judged_as_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three nodes sent what they know: one is sick, one broke its capture, and one of two has the same name."""
    monkeypatch.setattr(captures, "FEW", 0)
    monkeypatch.setattr("ncclprobe.engine.workers.cores", lambda: 2)
    machines = (zoo.CAPTURES / "hgx-h100.jsonl", zoo.CAPTURES / "hgx-h200.jsonl", zoo.CAPTURES / "hgx-h200.jsonl")
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
            snapshots = list(node_0.snapshots_of(part, peers, names, workers))
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
