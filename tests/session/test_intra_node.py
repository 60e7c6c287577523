"""Copies are judged by their link, what nobody expected anything of stays unjudged."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rank_lab
from conftest import answers

from ncclprobe.commands import bandwidth, pairs, workload
from ncclprobe.commands import copies as copies_command
from ncclprobe.expect.copies import host_copy, judged
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.host import Host
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.traffic import CopyRow
from ncclprobe.session.measure import copies
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.ranks.identity import RankIdentity

_SLOT = host_copy(5, 16)
assert _SLOT
GEN5: dict[str, Expectation] = {"host": _SLOT}
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[rank_lab.Lab]:
    found = rank_lab.Lab(tmp_path)
    yield found
    found.clear()


def copy(median: float, low: float, high: float, **more: Any) -> CopyRow:
    row = {"node": "n0", "rank": 0, "kind": "h2d", "device": "GPU0", "nbytes": copies.NBYTES, "samples": 7, **more}
    return CopyRow(GBps=median, min_GBps=low, max_GBps=high, **row)


def test_a_slot_at_half_its_width_fails_under_load() -> None:
    row = judged(copy(26.9, 26.8, 27.0), GEN5)
    assert row.status == "fail"
    assert "Gen5 x16" in row.why


@pytest.mark.parametrize("case", [{"near": False}, {"concurrent": True}, {"kind": "bidirectional"}, {"kind": "d2d"}])
def test_of_the_far_node_of_all_together_and_of_both_ways_nothing_is_expected(case: dict[str, Any]) -> None:
    row = copy(27.0, 26.0, 28.0, **case)
    assert judged(row, GEN5) == row


def test_a_copy_that_is_now_fast_now_slow_is_noise_and_one_hiccup_is_none() -> None:
    assert judged(copy(48.0, 40.0, 54.0), GEN5).status == "inconclusive"
    assert judged(copy(53.0, 31.0, 54.0), GEN5).status == "pass"


class Together:
    """The exchange of one rank that speaks for two of one node."""

    def collect(self, value: Any) -> list[Any]:
        return [value, value]

    def share(self, value: Any) -> Any:
        return value


def _run(identity: RankIdentity, host: Host, set_phase: Callable[[str], None], node: NodeSnapshot, device: str) -> Any:
    """What copies need to know of a run."""
    return SimpleNamespace(
        identity=identity, host=host, exchange=Together(), set_phase=set_phase, node=node, device=device
    )


def test_a_gpu_copies_from_near_and_far_memory_to_its_peer_and_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What torch would do is replaced; the order of things, the places and the verdicts are not."""
    torch = pytest.importorskip("torch")
    bound: list[tuple[int, ...]] = []
    samples = [53.0] * 7
    places = {0: 0xAF, 1: 0x3B}  # CUDA's order is not NVML's
    looked = NodeSnapshot("n0")
    looked._found = (
        Snapshot("n0", {Gpus: Gpus((Gpu(0, pci="00000000:3B:00.0"), Gpu(1, pci="00000000:AF:00.0")), "", (13, 0))}),
        {},
    )

    def properties(device: Any) -> SimpleNamespace:
        number = device if isinstance(device, int) else device.index
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=places[number], pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(copies, "gpu_buffers", lambda device, nbytes, cpus: bound.append(tuple(cpus)))
    monkeypatch.setattr(
        copies, "host_copies", lambda kept: ((kind, samples) for kind in ("h2d", "d2h", "bidirectional"))
    )
    monkeypatch.setattr(copies, "peer_copy", lambda device, peer, nbytes: samples)
    monkeypatch.setattr(copies, "by_kind", lambda facts: GEN5)
    monkeypatch.setattr(copies, "numa_nodes", lambda host: {0: (0,), 1: (1,)})
    host = answers({("read", "/sys/bus/pci/devices/0000:af:00.0/numa_node"): "1\n"})
    phases: dict[int, list[str]] = {0: [], 1: []}
    played = {}
    for rank, names in phases.items():
        who = RankIdentity("environment", rank, 2, rank, 2, 1, "n0", 0)
        measuring = copies.Copies(_run(who, host, names.append, looked, f"cuda:{rank}"))
        played[rank] = measuring, measuring.play()
    assert len(phases[0]) == len(phases[1])  # the watchdog takes the rank in the earlier one for the one to blame
    assert [name for name in phases[0] if "wait" in name] == [name for name in phases[1] if "wait" in name]
    measuring, rows = played[0]
    rows = rows[: len(rows) // 2]  # the other half is the other rank's
    assert bound[:2] == [(1,), (0,)]
    assert {row.status for row in rows} == {"unjudged"}  # a sample holds no verdict
    verdicts = [judged(row, measuring.expected.nodes["n0"]) for row in rows]
    assert [row.peer for row in rows if row.device == "GPU0"] == ["GPU1"]
    seen = [(row.kind, row.numa, row.near, row.peer, row.concurrent, row.status) for row in verdicts]
    assert seen == [
        ("h2d", 1, True, "", False, "pass"),
        ("d2h", 1, True, "", False, "pass"),
        ("bidirectional", 1, True, "", False, "unjudged"),
        ("h2d", 0, False, "", False, "unjudged"),
        ("d2h", 0, False, "", False, "unjudged"),
        ("bidirectional", 0, False, "", False, "unjudged"),
        ("d2d", None, None, "GPU0", False, "unjudged"),
        ("d2d", None, None, "GPU1", False, "unjudged"),  # by the first rank too, which has its contexts
        ("h2d", 1, True, "", True, "unjudged"),
        ("d2h", 1, True, "", True, "unjudged"),
        ("bidirectional", 1, True, "", True, "unjudged"),
        ("d2d", None, None, "GPU0", True, "unjudged"),
    ]


def test_a_gpu_that_another_process_has_to_itself_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    asked: list[tuple[Any, Any]] = []
    current = ["cuda:0"]

    def busy(device: Any, peer: Any, nbytes: int) -> list[float]:
        asked.append((device, peer))
        current.append(peer)
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(copies, "peer_copy", busy)
    identity = RankIdentity("environment", 0, 8, 0, 8, 1, "n0", 0)
    measuring = copies.Copies(_run(identity, answers({}), print, NodeSnapshot("n0"), "cuda:0"))
    assert [row for source in range(8) for row in measuring._to_peers(source)] == []
    assert len(asked) == 1  # it is not tried 56 times
    assert current[-1] == "cuda:0"  # what comes next is not of the GPU that refused
    assert "EXCLUSIVE_PROCESS" in measuring.note
    monkeypatch.setattr(copies, "peer_copy", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    measuring.note = ""
    with pytest.raises(RuntimeError, match="out of memory"):
        list(measuring._to_peers(0))


def test_what_taskset_took_away_a_process_may_have_back() -> None:
    found = copies.numa_nodes(answers({}))
    assert {cpu for cpus in found.values() for cpu in cpus} >= set(CPUS)
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.parametrize(
    ("parse", "option"),
    [
        (bandwidth.parse, "--pairs"),
        (bandwidth.parse, "--copies"),
        (bandwidth.parse, "--groups=tp=2"),
        (bandwidth.parse, "--params=7B"),
        (pairs.parse, "--op=all_gather"),
        (pairs.parse, "--precision=2"),
        (copies_command.parse, "-e=1M"),
        (copies_command.parse, "--expect=bands.toml"),
        (workload.parse, "--redop=max"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(parse: Callable[[list[str]], object], option: str) -> None:
    with pytest.raises(UsageError, match="is not a known option of"):
        parse([option])


@pytest.mark.slow
def test_one_rank_copies_within_its_memory_and_needs_no_launcher(lab: rank_lab.Lab) -> None:
    own = ["-m", "ncclprobe", "copies", "--backend", "gloo"]
    run = lab.start([*own, "--json", str(lab.report_path)])
    assert run.wait() == 0, run.err
    rows = lab.report().copies
    assert {(row.kind, row.device) for row in rows} >= {("host", "cpu"), ("host", "cpu memcpy")}
    assert all(row.status == "unjudged" and row.min_GBps > 0 for row in rows)
    assert "within host" in run.out


@pytest.mark.slow
def test_copies_that_nothing_judged_are_no_pass_where_they_must_be_judged(lab: rank_lab.Lab) -> None:
    run = lab.start(["-m", "ncclprobe", "copies", "--backend", "gloo", "--require-judged"])
    assert run.wait() == 3, run.err
    assert "no expectation for copies is known on this machine" in " ".join(run.out.split())
