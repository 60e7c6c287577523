"""Copies within a host and of its GPUs: their order, their places, their verdicts, and the threads that make them."""

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import answers

torch = pytest.importorskip("torch")

from ncclprobe.expect.copies import host_copy, judged
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.host import Host
from ncclprobe.model.errors import ProbeError
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.traffic import CopyRow
from ncclprobe.session.measure import copies
from ncclprobe.session.measure.copies import bound
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.ranks.identity import RankIdentity
from tests.each_row import each_row

_SLOT = host_copy(5, 16)
assert _SLOT
GEN5: dict[str, Expectation] = {"host": _SLOT}
CPUS = sorted(os.sched_getaffinity(0))


def test_all_threads_move_together_and_go_back_and_absent_processors_move_nothing() -> None:
    over, ready = threading.Event(), threading.Event()
    numbers: list[int] = []

    def bystander() -> None:
        numbers.append(threading.get_native_id())
        ready.set()
        over.wait(20.0)

    thread = threading.Thread(target=bystander)
    thread.start()
    ready.wait(20.0)
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == os.sched_getaffinity(numbers[0]) == set(CPUS[:1])
    with pytest.raises(ProbeError, match="processors"), bound([8000]):
        pass
    assert os.sched_getaffinity(0) == os.sched_getaffinity(numbers[0]) == set(CPUS)
    over.set()
    thread.join()
    nodes = copies.numa_nodes(answers({}))  # what taskset took away, a process may have back
    assert {cpu for cpus in nodes.values() for cpu in cpus} >= set(CPUS)
    assert os.sched_getaffinity(0) == set(CPUS)


@each_row(("nbytes", "number"), [(1 << 20, 1), (1_000_003, 3), (2, 5)])
def test_the_crew_copies_every_byte(nbytes: int, number: int) -> None:
    source = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    target = torch.zeros_like(source)
    with copies._Crew(number, source, target) as crew:
        crew.copy()
        assert torch.equal(source, target)


@each_row(
    ("rates", "case", "status"),
    [
        ((26.9, 26.8, 27.0), {}, "fail"),  # a slot at half its width
        ((48.0, 40.0, 54.0), {}, "inconclusive"),  # now fast, now slow: noise
        ((53.0, 31.0, 54.0), {}, "pass"),  # one hiccup is none
        # Of the far node, of all together and of both ways nothing is expected.
        *(
            ((27.0, 26.0, 28.0), case, "unjudged")
            for case in ({"near": False}, {"concurrent": True}, {"kind": "bidirectional"}, {"kind": "d2d"})
        ),
    ],
)
def test_a_copy_is_judged_by_its_link(rates: tuple[float, ...], case: dict[str, Any], status: str) -> None:
    made = {"node": "n0", "rank": 0, "kind": "h2d", "device": "GPU0", "nbytes": copies.NBYTES, "samples": 7, **case}
    row = judged(CopyRow(**dict(zip(("GBps", "min_GBps", "max_GBps"), rates, strict=True)), **made), GEN5)
    assert (row.status, "Gen5 x16" in row.why) == (status, status != "unjudged")


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
