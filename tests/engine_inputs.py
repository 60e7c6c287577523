"""What the engine makes of facts, runs and logs that differ in one thing: rows of `FUNCTIONS`, kept word for word."""

import errno
import io
import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import groupby, product
from pathlib import Path
from typing import Any
from unittest import mock

from report import samples

from ncclprobe import api, signals
from ncclprobe.checks.env.fixtures import fabric, gpus, having, hcas, interface, over, port
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.commands import main, over_ssh
from ncclprobe.commands.doctor import data_path
from ncclprobe.engine import diagnose, inventory, measured
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import worst
from ncclprobe.facts.cpu import Cpus, NumaNode
from ncclprobe.facts.data_paths import DataPath, DataPaths, Mount
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.memory import Memory
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import normal
from ncclprobe.facts.placement import GROUP, ZONE, Placement
from ncclprobe.facts.process import SharedMemory
from ncclprobe.facts.reach import HostFailure, Paths, RailRow, Rails, StartedHosts
from ncclprobe.facts.reach import Path as Way
from ncclprobe.facts.run.samples import (
    Copies,
    Expected,
    ExpectedCopies,
    Localised,
    MeasuredPairs,
    NicTraffic,
    Notes,
    Participants,
    RunRequest,
    Skipped,
)
from ncclprobe.facts.run.samples import Rows as RunRows
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Finding, Related, Status, Verdict, fail, note, warn
from ncclprobe.model.measurement import Band, Measurement, Samples, SkippedRow
from ncclprobe.model.nccl_selection import Decision, DirectChoice, NetworkChoice
from ncclprobe.model.pair_results import PairRow, RankNics
from ncclprobe.model.rails import RailOutcome, RailPort
from ncclprobe.model.report import NodeEnvironment, PlacementLevel, Report
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.traffic import CopyRow, NicBytes, OperationTraffic
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests import (
    test_api,
    test_catalogue,
    test_compare,
    test_diagnose,
    test_expected,
    test_files_of_commands,
    test_hosts,
    test_topo,
)

Rows = Iterator[tuple[str, object]]


_JOB = Job()


def _areas(nodes: Sequence[Mapping[type, Any]], *verdicts: Verdict, job: Job = _JOB, expected: int | None = None,
           rows: str = "") -> object:  # fmt: skip
    """Return each area with its words, its worst result and the checks behind it."""
    snapshots = [Snapshot(f"n{number}", facts) for number, facts in enumerate(nodes)]
    found = inventory.areas(snapshots, verdicts, job, expected, rows)
    return {each.name: (each.values.split(), each.status.value, each.ids, each.unseen) for each in found}


_ACTIVE, _DOWN = NvLink(0, "active"), NvLink(0, "inactive")
_EIGHT, _TWO = gpus(8), gpus(2)
_WIDE = Gpus(tuple(replace(each, pcie_width=16, pcie_max_generation=5) for each in _EIGHT.all), "550.127.08", (12, 4))
_MIXED = replace(_WIDE, all=(replace(_WIDE.all[0], name="", pcie_width=8), *_WIDE.all[1:7],
                             replace(_WIDE.all[7], pcie_max_generation=Absent("no"))), driver="")  # fmt: skip
_NAMELESS = replace(_TWO, all=tuple(replace(each, name="") for each in _TWO.all))
_NAMED = replace(_NAMELESS, all=(_TWO.all[0], _NAMELESS.all[1]))
_PORTS = [port(f"mlx5_{number}") for number in range(4)]
_NETS = (
    interface("lo", 1, "127.0.0.1"), replace(interface("eth0", 2, "10.0.0.5"), speed_mbps=25000),
    interface("eth1", 3, "10.1.0.5"), replace(interface("eth2", 4, "10.2.0.5"), addresses=()),
    interface("docker0", 5, "172.17.0.1", virtual=True), replace(interface("eth3", 6, "10.3.0.5"), flags=frozenset()),
    replace(interface("eth4", 7, "10.4.0.5"), speed_mbps=2500), interface("eth5", 8, "10.5.0.5"),
)  # fmt: skip
_NETS = (replace(_NETS[0], flags=frozenset({"running", "loopback"})), *_NETS[1:])


def _network(*, why: str = "because", refused: bool = False, **changes: Any) -> Mapping[type, Any]:
    """Choices of a network, or of none."""
    usual = over("IB")
    taken = replace(NetworkChoice("IB", "", ("mlx5_0:1", "mlx5_1:1"), 800.0, ""), **changes)
    chosen = replace(usual, network=Decision(() if refused else (taken,), why))
    return {type(usual): chosen}


def _direct(*able: bool | None) -> Mapping[type, Any]:
    ((kind, choices),) = _network().items()
    rows = tuple(DirectChoice(f"GPU{n}", (), each, each, None, None, "") for n, each in enumerate(able))
    return {kind: replace(choices, gpudirect=Decision(rows, ""))}


def _rail(*ports: int, tests: Sequence[int] = ()) -> Rails:
    rows = tuple(RailRow(number, 1, 0, 0, True, RailOutcome(asked=RailPort(device="mlx5_0"))) for number in tests)
    return Rails(0, {}, tuple(RailPort(device=f"mlx5_{number}") for number in ports), rows=rows)


def _routes(*outcomes: str) -> Paths:
    return Paths(0, {}, rows=tuple(Way(1, "gloo", "eth0", "a", "b", each) for each in outcomes))


def _at(zone: str, group: str, *tree: str, kind: str = "switch") -> Placement:
    outer = [PlacementLevel(each, name, "x") for each, name in ((ZONE, zone), (GROUP, group)) if name]
    return Placement((*outer, *(PlacementLevel(kind, name, "x") for name in tree)))


def _paths(*names: str) -> DataPaths:
    return DataPaths(tuple(DataPath(each, Mount(each, f"k{each[1:]}", "s"), Absent("no")) for each in names))


_GONE = Absent("x", "Missing")
_LIBRARY = NcclLibrary((2, 28, 9), "nvidia-nccl-cu12")
_MACHINES: Mapping[str, Sequence[Mapping[type, Any]]] = {
    "nothing": [{}],
    "GPUs": [{Gpus: _WIDE, NvLinks: NvLinks(((_ACTIVE, _ACTIVE), (_ACTIVE, _DOWN), (_DOWN,), Absent("no")))}],
    "GPUs with all links": [{Gpus: _TWO, NvLinks: NvLinks(((_ACTIVE, _ACTIVE),) * 2)}],
    "GPUs with no link": [{Gpus: _TWO, NvLinks: NvLinks(((), Absent("no")))}], "GPUs of two kinds": [{Gpus: _MIXED}],
    "no GPU in the text": [{Gpus: Gpus((), "550", (12, 4)), NamedMachine: NamedMachine(partial=True)}],
    "GPUs without a name, cut": [{Gpus: _NAMELESS, NamedMachine: NamedMachine(partial=True)}],
    "GPUs without a name": [{Gpus: _NAMELESS, NamedMachine: NamedMachine(gpus=2)}],
    "a GPU with a name, cut": [{Gpus: _NAMED, NamedMachine: NamedMachine(partial=True)}],
    "ports per GPU": [{Gpus: _TWO, Fabric: fabric(*_PORTS)}],
    "GPUs per port": [{Gpus: _EIGHT, Fabric: fabric(*_PORTS)}], "a port for each": [{Gpus: _TWO, Fabric: hcas(2)}],
    "odd ports": [{Gpus: _TWO, Fabric: hcas(3)}],
    "no port is up": [{Gpus: _TWO, Fabric: fabric(*(replace(each, state="DOWN") for each in _PORTS))}],
    "some are up": [{Gpus: _TWO, Fabric: fabric(*_PORTS[1:], replace(_PORTS[0], state="INIT", rate=Absent("no")))}],
    "states unknown": [{Fabric: fabric(*(replace(each, state=Absent("no")) for each in _PORTS))}],
    "ports of a text": [{Fabric: replace(fabric(*_PORTS), cut=True)}],
    "layers": [{Fabric: fabric(*(replace(_PORTS[0], device=f"d{n}", link_layer=each) for n, each in enumerate(
        ("Ethernet", "InfiniBand", "Unspecified", Absent("no"), "Ethernet"))))}],
    "no port": [{Fabric: Fabric()}], "sockets": [{Fabric: Fabric(), Interfaces: Interfaces(_NETS)}],
    "no socket": [{Fabric: Fabric(), Interfaces: Interfaces((_NETS[0],))}], "two rates": [_network()],
    "no rate": [_network(rate_gbps=None)],
    "a plugin": [_network(name="AWS Libfabric", plugin="libnccl-net.so", version="1.2")],
    "a plugin without version": [_network(name="gIB", plugin="libnccl-net.so")],
    "TCP": [_network(name="Socket", devices=("a0", "b1", "c2", "d3"), rate_gbps=50.0)],
    "TCP, no rate": [_network(name="Socket", devices=("a0",), rate_gbps=None)], "no network": [_network(refused=True)],
    "network unknown": [{type(over("")): over("")}],
    **{f"direct {able}": [_direct(*able)] for able in ((True, True), (True, False), (False, False), (True, None))},
    "host": [{Cpus: Cpus(tuple(range(96)), "x", tuple(NumaNode(n, (), ()) for n in range(2))),
              Memory: Memory(2 << 40, 1 << 40), SharedMemory: SharedMemory(100 << 30, 1 << 30)}],
    "host of one CPU": [{Cpus: Cpus((0,), "x", ())}],
    "NCCL": [{Software: Software({"torch": "2.9.1"}, (_LIBRARY, NcclLibrary((2, 19, 3), "other")))}],
    "NCCL without torch": [{Software: Software({}, (_LIBRARY,))}],
    "no NCCL": [{Software: Software({"torch": "2.9.1"})}],
    "settings": [{type(having()): having(
        NCCL_A="1", TORCH_B="1", GLOO_C="1", CUDA_D="1", UCX_E="1", FI_F="1", OFI_G="1", NVSHMEM_H="1", HOME="/")}],
    "own settings": [{type(having()): having(TORCH_CPP_LOG_LEVEL="1", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1", UCX_E="1")}],
    "no setting": [{type(having()): having(HOME="/")}], "data": [{DataPaths: _paths("/a", "/b", "/c")}],
    "more data": [{DataPaths: replace(_paths("/a", "/b", "/c", "/d", "/e"), rows=(
        DataPath("/z", Absent("no"), Absent("no")), *_paths("/a", "/b", "/c", "/d").rows))}],
    "alike": [{Gpus: _EIGHT}] * 3, "one differs": [{Gpus: _EIGHT}, {Gpus: _TWO}, {Gpus: _EIGHT}, {Gpus: _EIGHT}],
    "one without NVLink": [{Gpus: _TWO, NvLinks: NvLinks(((_ACTIVE,),) * 2)}, {Gpus: _TWO}, {}],
    "most without NVLink": [{Gpus: _TWO}, {Gpus: _TWO}, {Gpus: _TWO, NvLinks: NvLinks(((_ACTIVE,),) * 2)}],
    "five kinds": [{Gpus: gpus(count)} for count in (8, 8, 7, 6, 5, 4)],
    "four kinds": [{Gpus: gpus(count)} for count in (8, 8, 7, 6, 5)],
    "paths": [{Paths: _routes("ok", "ok")}, {Paths: _routes("ok")}],
    "a dead path": [{Paths: _routes("ok", "refused")}, {Paths: _routes("ok")}],
    "one zone": [{Placement: _at("z1", "g1", "spine", "leaf1")}] * 2,
    "two zones": [{Placement: _at(f"z{n}", f"g{n}", "spine", f"leaf{n}")} for n in (1, 2)],
    "one leaf name below two spines": [{Placement: _at("z1", "", f"s{n}", "leaf")} for n in (1, 2)],
    "blocks": [{Placement: _at("", "g1", f"b{n}", kind="block")} for n in (1, 1, 2)],
    "one place unknown": [{Placement: _at("z1", "", "leaf1")}, {}],
    "rails": [{Rails: _rail(0, 1, tests=(1, 2))}, {Rails: _rail(0, 1, tests=(2, 3))}, {Rails: _rail(0)}, {}],
    "no rail tried": [{Rails: _rail(0, 1)}] * 2,
}  # fmt: skip


def _area_verdicts() -> Rows:
    """The worst result of an area, over its checks that could look; and a node's own checks over a job's."""

    def of(id: str, *status: Status, required: bool = False, part: str = "") -> list[Verdict]:
        return [Verdict(id, f"n{n}", each, "t", required=required, part=part) for n, each in enumerate(status)]

    good, bad, warned, blind, skipped = Status.PASS, Status.FAIL, Status.WARN, Status.UNKNOWN, Status.SKIP
    ids = ("launch.a", "path.a", "sync.a", "gpu.a", "nvl.a", "pci.a", "ib.a", "rail.a", "host.a", "env.a", "data.a",
           "run.a")  # fmt: skip
    yield "each area", [_areas([{}], *of(each, bad)) for each in ids]
    parts = [of(name, bad, part="transport") for name in ("env.transport", "sync.network")]
    yield "transport", [_areas([{}], *each) for each in (*parts, of("env.transport", bad, part="other"))]
    for name, verdicts in {
        "well": of("ib.a", good, good), "one fails": of("ib.a", good, bad) + of("ib.b", warned) + of("ib.c", bad),
        "one warns": of("ib.a", warned, good), "blind": of("ib.a", blind, blind), "half blind": of("ib.a", blind, good),
        "blind, required": of("ib.a", blind, required=True) + of("ib.b", good), "skipped": of("ib.a", skipped),
        "skipped, blind": of("ib.a", skipped) + of("ib.b", blind), "blind, warned": of("ib.a", blind, warned),
    }.items():  # fmt: skip
        yield name, _areas([{Fabric: hcas(2)}], *verdicts)


def _areas_inputs() -> Rows:
    """What each area says of made-up machines, and which jobs a report covers."""
    for name, nodes in _MACHINES.items():
        yield name, _areas(nodes)
    yield from _area_verdicts()
    whole = {kind: fact for nodes in ("GPUs", "host", "NCCL", "settings", "two rates", "rails") for kind, fact in
             _MACHINES[nodes][0].items()}  # fmt: skip
    for backend in ("nccl", "gloo"):
        yield backend, _areas([whole, whole], job=Job(backend), expected=4, rows="3 rows")
    for here, expected in ((1, None), (1, 1), (1, 2), (2, 1), (3, 2000)):
        yield f"{here} of {expected}", _areas([{}] * here, expected=expected)
    sets = {"two": [_EIGHT, _TWO], "one unknown": [_EIGHT, None], "MIG": [replace(_TWO, all=(
        replace(_TWO.all[0], mig=True), replace(_TWO.all[1], mig=False)))], "none": [], "no driver": [_GONE],
        "one driver": [_GONE, _TWO], "denied": [Absent("x", "Denied")]}  # fmt: skip
    for name, facts in sets.items():
        for pasted in map(range, sorted({0, 1, len(facts)})):
            nodes = [Snapshot(f"n{n}", {Gpus: each}, pasted=n in pasted) for n, each in enumerate(facts)]
            yield f"scope {name}, {len(pasted)} pasted", inventory.scope(nodes, Job("gloo", apart=len(pasted) == 1))


_MiB, _GiB = 1 << 20, 1 << 30
_TWO_NODES = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl", {"torch": "2.9.1", "nccl": None}, 2,
                          gpus=("GPU-0000", "GPU-0003", 1, 2))  # fmt: skip
_OVER_GLOO, _ASKED = replace(_TWO_NODES, backend="gloo", gpus=()), RunRequest(ops=("all_reduce",), sizes=(_MiB, _GiB))
_BAND, _LOOSE = (
    Band("all_reduce", _MiB, _MiB, BAND), replace(BAND, threshold=0.0, worst="unjudged", known="loose: x"))  # fmt: skip
_LARGE = replace(ROW, nbytes=_GiB, wrong=0)
_PAIR = PairRow(src=0, dst=1, src_end="n0", dst_end="n1", GBps=20.0, min_us=1.0, max_us=1.0, samples_us=(1.0,) * 5,
                nbytes=1 << 26, latency_nbytes=8, latency_us=9.0, time_us=1.0)  # fmt: skip
_COPY = CopyRow(
    node="n0", rank=0, kind="h2d", device="GPU0", nbytes=1, GBps=12.0, min_GBps=12.0, max_GBps=12.0, samples=7
)
_SKIPS = tuple(SkippedRow(op, nbytes, cause, why) for op, nbytes, cause, why in (
    ("reduce", 8, "small", "too small"), ("all_reduce", _MiB, "time", "late"), ("all_reduce", _GiB, "time", "late"),
    ("pairs", None, "lost", "a rank was lost"), ("copies", None, "alone", "one rank"), ("gather", 4, "unable", "no"),
    ("scatter", None, "refused", "not there"), ("broadcast", _GiB, "memory", "no room"),
))  # fmt: skip


def _of_rows(*rows: Measurement, bands: Sequence[Band] = (), **asked: Any) -> dict[type, Any]:
    request = replace(_ASKED, **asked)
    return {RunRequest: request, Participants: _TWO_NODES, RunRows: RunRows(rows), Expected: Expected(tuple(bands))}


def _stalled(*batches: float, iters: int = 20) -> Measurement:
    return replace(ROW, iters=iters, samples=Samples((), batches))


def _vague(precision: float | None, nbytes: int = _MiB, asked: float = 0.02) -> Measurement:
    return replace(ROW, nbytes=nbytes, precision=precision, precision_asked=asked, batches=nbytes >> 20)


_LOW, _HOSTS = replace(_PAIR, src=1, dst=0), RankNics(("n0", "n1"))
_RUNS: Mapping[str, Mapping[type, Any]] = {
    "nothing": {}, "no rows": {RunRequest: replace(_ASKED, notes=("one", "two")), Notes: Notes(("three",))},
    "skipped": {RunRequest: _ASKED, Skipped: Skipped(_SKIPS)},
    "one skipped": {RunRequest: _ASKED, Skipped: Skipped(_SKIPS[1:2])}, "judged": _of_rows(ROW, bands=[_BAND]),
    "some judged": _of_rows(ROW, _LARGE, bands=[_BAND]),
    "some judged by a file": _of_rows(ROW, _LARGE, bands=[_BAND], expect="e.toml", baseline="b.json"),
    "some judged by a baseline": _of_rows(ROW, _LARGE, bands=[_BAND], baseline="b.json"),
    "none judged": _of_rows(ROW, _LARGE), "none judged by a file": _of_rows(ROW, expect="e.toml"),
    "none judged, a baseline": _of_rows(ROW, baseline="b.json"),
    "known loosely": _of_rows(ROW, _LARGE, bands=[replace(_BAND, expectation=_LOOSE), Band(
        "all_reduce", _GiB, _GiB, replace(_LOOSE, known="loose: y"))]),
    "known loosely, the last not": _of_rows(_LARGE, ROW, bands=[replace(_BAND, expectation=replace(_LOOSE, known=""))]),
    "stalled": _of_rows(_stalled(100.0, 50100.0, 100.0), _stalled(9e4, 1e5, 1.3e5), _stalled(100.0, 50099.0, 100.0)),
    "stalled, twice as long": _of_rows(_stalled(1e5, 2e5, 1e5), _stalled(1e5, 1e5, 2.1e5), _stalled()),
    "imprecise": _of_rows(_vague(0.05, 3 * _MiB), _vague(0.09, 7 * _MiB), _vague(0.02), _vague(0.021), ROW),
    "imprecise, unknown": _of_rows(_vague(0.05), _vague(None, 5 * _MiB), accepts=True),
    "precise": _of_rows(_vague(0.02), _vague(0.5, asked=0.0)),
    "one pair": {MeasuredPairs: MeasuredPairs(_HOSTS, (_PAIR, _LOW))},
    "pairs with a threshold": {MeasuredPairs: MeasuredPairs(_HOSTS, (_PAIR, _LOW)), Expected: Expected((
        replace(_BAND, op="sendrecv", high_bytes=_GiB),))},
    "pairs of which one is of a third rank": {MeasuredPairs: MeasuredPairs(_HOSTS, (_PAIR, replace(_PAIR, dst=2)))},
    "copies": {Copies: Copies((_COPY,)), RunRequest: _ASKED},
    "two copies": {Copies: Copies((_COPY, replace(_COPY, kind="d2h"))), ExpectedCopies: ExpectedCopies(
        {"n0": {"host": BAND}, "n1": {}})},
    "all": _of_rows(ROW, _LARGE, bands=[_BAND]) | {
        Copies: Copies((_COPY,)), MeasuredPairs: MeasuredPairs(_HOSTS, (_PAIR,))},
}  # fmt: skip


def _runs_inputs() -> Rows:
    """What is said of a run: its notes, how many numbers are judged, and its line in the list of areas."""
    for name, run in _RUNS.items():
        facts = measured.concluded(run)
        why = facts[Localised].why.split() if isinstance(facts[Localised], Absent) else facts[Localised].found.nodes
        told = [each.split() for each in measured.notes(facts)]
        yield name, (measured.judged(facts), measured.describe_run(facts).split(), why, told)
    other, own = (
        NodeEnvironment({"torch": "2.8.0", "driver": "550"}),
        NodeEnvironment({"torch": "2.8.0", "nccl": "2.27"}))  # fmt: skip
    for name, looked in (("both", {"n1": other, "n0": own}), ("other", {"n1": other}), ("none", {})):
        for who in (_TWO_NODES, replace(_TWO_NODES, hosts=()), replace(_TWO_NODES, versions={"x": None})):
            found = measured.environments({Participants: who}, dict(looked))
            shown = {key: each.versions for key, each in found.items()}
            yield f"environment {name}, {len(who.hosts)} {len(who.versions)}", shown
    accepts = replace(_ASKED, accepts=True)
    requests = (None, _ASKED, accepts, replace(accepts, backend="gloo"), replace(_ASKED, backend="gloo"))
    for asked, joined in product(requests, (None, _TWO_NODES, _OVER_GLOO)):
        run = {kind: fact for kind, fact in ((RunRequest, asked), (Participants, joined)) if fact}
        words = asked and (asked.accepts, asked.backend)
        yield f"job of {words}, {joined and joined.backend}", measured.job_of(run, Job(expect_gpus=8))


_DEVICES = frozenset({"GPU6", "GPU7", "mlx5_9:1", "mlx5_8", "eth4"})
_SUBJECTS = (
    "GPU7", "GPU6, GPU7", "GPU6,GPU7:", "GPU0, GPU7", "GPU7 and GPU0", "mlx5_9:1", "mlx5_9", "mlx5_8:1", "mlx5_9:1:2",
    "mlx5_8:1, mlx5_0:1", "mlx5_9:1, NCCL_DEBUG", "eth4, ib0", "eth4 bond0", "eth4, enp3s0", "eth4, /dev/shm",
    "NCCL_DEBUG", "/dev/shm", "",
)  # fmt: skip


def _idle_inputs() -> Rows:
    """Which findings concern only devices that a run did not use, what then counts, and which causes are named."""
    unused = {"n0": _DEVICES, "n1": frozenset({"GPU7"})}
    of_run: dict[type, Any] = {Participants: _TWO_NODES, RunRequest: _ASKED}
    for subject in _SUBJECTS:
        own = measured.concerns_only(fail(subject, "x"), _DEVICES)
        told = []
        for finding, node, id in product((fail, warn, note), ("n0", "n1", "n2", None), ("pci.width", "run.xids")):
            for nodes in ((), ("n0",), ("n0", "n1"), ("n0", "n2")) if node is None else ((),):
                given = replace(finding(subject, "x"), nodes=nodes)
                status = {fail: Status.FAIL, warn: Status.WARN, note: Status.PASS}[finding]
                verdict = Verdict(id, node, status, "t", findings=(given,), required=True)
                (found,) = measured.weighed([verdict], every_check(), unused, of_run)
                counts = len(measured.counted([found], every_check(), of_run))
                told.append(f"{found.status.value}-{found.findings[0].severity.value}-{found.required:d}{counts}")
        yield f"{subject!r}", (own, [f"{len(list(same))}*{word}" for word, same in groupby(told)])


def _said(id: str, node: str | None, *findings: Finding) -> Verdict:
    name, _, part = id.partition("/")
    return Verdict(name, node, worst(findings), "t", findings=findings, part=part)


_SEEN = (
    NicBytes("hgx", "mlx5_0:1", "rdma", _GiB, 0, 0.9, True), NicBytes("hgx", "mlx5_3:1", "rdma", 1, 0, 0.1, False),
    NicBytes("hgx", "mlx5_4:1", "rdma", 9, 0, 0.09, False), NicBytes("hgx", "mlx5_5:1", "rdma", 9, 0, None, None),
    NicBytes("hgx", "mlx5_7:1", "rdma", 0, 0, 0.0, True), NicBytes("other", "mlx5_6:1", "rdma", _GiB, 0, 0.9, True),
)  # fmt: skip


def _unused_inputs() -> Rows:
    """Which GPUs, ports and interfaces of a node a run did not use: by its ranks' GPUs, and what NICs carried."""
    whole = test_diagnose.machine()
    every = {kind: whole.facts[kind] for kind in (Gpus, Fabric, Interfaces)}
    address, uuid = normal(every[Gpus].all[2].pci), every[Gpus].all[5].uuid.removeprefix("GPU-")
    one, two = (replace(_TWO_NODES, hosts=("hgx", other), gpus=(0, 1)) for other in ("hgx", "other"))
    carried = {NicTraffic: NicTraffic((OperationTraffic("all_reduce", _GiB, _SEEN[:3]),
                                       OperationTraffic("broadcast", 8, _SEEN[3:])))}  # fmt: skip
    quiet = {NicTraffic: NicTraffic((OperationTraffic("all_reduce", _GiB, _SEEN[2:4]),))}
    for name, facts, who, run in (
        ("one node", every, one, {}), ("one node, carried", every, one, carried), ("two nodes", every, two, {}),
        ("two nodes, carried", every, two, carried), ("two nodes, nothing carried", every, two, quiet),
        ("over gloo", every, replace(two, backend="gloo", gpus=()), {}),
        ("over gloo, carried", every, replace(two, backend="gloo"), carried),
        ("by address and UUID", every, replace(one, gpus=(address, uuid)), {}),
        ("by what is not there", every, replace(one, gpus=("x", 9)), {}),
        ("GPUs not told", every, replace(one, gpus=()), {}),
        ("GPUs not told, over gloo", every, replace(one, backend="gloo", gpus=()), {}),
        ("other hosts", every, _TWO_NODES, {}), ("nobody", every, None, {}), ("no facts", {}, one, {}),
        ("no GPUs", {Fabric: every[Fabric]}, two, carried), ("no NICs", {Gpus: every[Gpus]}, two, carried),
        ("nothing chosen", {Gpus: every[Gpus], Interfaces: every[Interfaces]}, two, {}),
    ):  # fmt: skip
        asked: dict[type, Any] = {**run, **({Participants: who} if who else {})}
        for label, snapshot in ((name, Snapshot("hgx", facts)), (f"{name}, all facts", whole)):
            yield label, sorted(measured.unused_devices(snapshot, asked))


_CAUSES = (
    _said("env.forced-algo", "n0", warn("NCCL_ALGO", "is Tree"), note("NCCL_PROTO", "x")),
    _said("sync.network/mtu", None, replace(warn("eth0", "x"), nodes=("n1",))),
    _said("pci.link/gpu-width", "n1", fail("GPU3", "x8 of x16"), fail("GPU7", "x8")),
    _said("pci.link/gpu-width", "n0", fail("GPU7", "x8 of x16"), warn("GPU1", "x8")),
    _said("host.timesync", "n0", warn("clock", "no service")),
    _said("run.settings", None, fail("NCCL_PROTO", "differs")),
    _said("host.cpu/cpu-quota", "n0", *(warn(f"quota {number}", "low") for number in range(9))))  # fmt: skip


def _causes_inputs() -> Rows:
    """Which findings on the machines are named beside a finding on the run."""
    unused = {"n0": _DEVICES, "n1": frozenset({"GPU7"})}
    symptoms: list[tuple[str, str | None, tuple[str, ...], Callable[..., Finding]]] = [
        ("run.bandwidth", None, (), fail), ("run.bandwidth", None, (), note), ("run.bandwidth", None, ("n1",), warn),
        ("run.pairs", None, ("n0",), fail), ("run.pairs", None, ("n0", "n1"), fail), ("run.pairs", None, ("n2",), fail),
        ("run.rank-lost", None, (), fail), ("run.settings", None, (), fail), ("ib.rate", "n0", (), fail),
        ("run.bandwidth", "n1", (), fail),
    ]  # fmt: skip
    for id, node, nodes, finding in symptoms:
        given = replace(finding("it", "x"), nodes=nodes, related=(Related("x.y", "z"),))
        found = measured.relate([_said(id, node, given), *_CAUSES], every_check(), unused)
        beside = [f"{each.id}={each.subject}" for each in found[0].findings[0].related]
        others = [len(each.related) for verdict in found[1:] for each in verdict.findings]
        yield f"{id} {nodes} {node} {finding.__name__}", (beside, others)


def _printed(line: str, folder: str = ".", columns: str = "80", **variables: str) -> object:
    """Return the exit code of a command, and the words of each line that it prints."""
    out = io.StringIO()
    clean = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    clean |= {"HOME": "/home/u", "COLUMNS": columns, **variables}
    with mock.patch.dict(os.environ, clean, clear=True), redirect_stdout(out), redirect_stderr(out):
        try:
            code = main(shlex.split(line))
        except SystemExit as left:  # the page of a command
            code = int(left.code or 0)
    return code, [each.split() for each in out.getvalue().replace(f"{folder}/", "").splitlines()]


def _topo_inputs() -> Rows:
    """What `ncclprobe topo` prints of a text, with all words, at several widths of a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, option) in test_topo.TEXTS.items():
            Path(folder, "topo.txt").write_text(text, encoding="latin-1")
            wide = option.startswith("COLUMNS=")
            words = "" if wide else option
            yield name, _printed(f"topo {folder}/topo.txt {words}", folder, option[8:] if wide else "80")


def _written(folder: str, files: Mapping[str, Report | str]) -> str:
    """Write reports and texts to a folder; return their paths as words of a command line."""
    for name, each in files.items():
        Path(folder, name).write_text(each if isinstance(each, str) else as_json.render(each))
    return " ".join(f"{folder}/{name}" for name in files)


def _compared_inputs() -> Rows:
    """What `compare` prints of two files, and `baseline` of several, with all words; and the rows of the baseline."""
    with tempfile.TemporaryDirectory() as folder:
        for name, both in test_compare.COMPARED.items():
            named = {f"{which}.{'log' if isinstance(each, str) else 'json'}": each for which, each in
                     zip(("old", "new"), both, strict=True)}  # fmt: skip
            paths = _written(folder, named)
            yield (
                name,
                (_printed(f"compare {paths}", folder, "999"), _printed(f"compare {paths} -q --tolerance 0.3", folder)),
            )
        for name, (files, options) in test_compare.BASELINES.items():
            site = Path(folder, "site.json")
            site.unlink(missing_ok=True)
            printed = _printed(f"baseline {_written(folder, files)} {options} -o {site}", folder, "999")
            kept = json.loads(site.read_text()) if site.exists() else {"rows": [], "fingerprint": None}
            yield f"baseline: {name}", (printed, kept["rows"], kept["fingerprint"])


def _expected_inputs() -> Rows:
    """What `expect` prints, with all words."""
    for line in test_expected.LINES:
        name = line.replace(f"{test_expected.CAPTURES}/", "")
        yield name, _printed(f"expect {line}", str(test_expected.CAPTURES))
    for name in (
        "NCCL_ALGO=Ring", "NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_HCA=mlx5_0",
        "NCCL_IB_HCA=mlx5", "NCCL_NET_GDR_LEVEL=PIX", "NCCL_NET_GDR_LEVEL=",
    ):  # fmt: skip
        variable, _, value = name.partition("=")
        yield f"under {name}", _printed("expect --machine dgx-h100 --nodes 2 -b 8G -e 8G", **{variable: value})

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "topo.txt").write_text(test_topo.text(test_topo.EIGHT, 8))
        for words in ("", "--gpu H100", "--gpu 'H100 80GB HBM3'", "--gpu 'H100 80GB HBM3' --nodes 2",
                      "--gpu 'H100 80GB HBM3' --nic-rate 400 --nodes 2 --json -",
                      "--gpu 'H100 80GB HBM3' --nic-rate 400 --nodes 1 --algo ring"):  # fmt: skip
            yield f"topology {words}", _printed(f"expect --topology {folder}/topo.txt {words} -b 1G -e 1G", folder)


def _orders_inputs() -> Rows:
    """What each host starts, under which variables, and what of a command line it gets."""
    for name, (calls, asked) in test_hosts.CALLS.items():
        found = over_ssh.host_orders(asked, calls, ["pairs", "-q"], 59.6, {"config": "x"})
        told = [(order.words, [{**each, **({"NCCLPROBE_TOKEN": "secret"} if "NCCLPROBE_TOKEN" in each else {})}
                 for each in order.ranks], order.files, order.report, order.keep) for order in found]  # fmt: skip
        yield name, told
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "own.toml").write_text("x = 1\n")
        for line in (
            "doctor --hosts a,b --json r.json -q --timeout=9 --config F/own.toml --path data --backend gloo",
            "doctor --hosts=a --html=r --markdown r --junit r --prometheus r --nodes-out d --keep k -v --no-color",
            "bandwidth --hostfile h --expect F/own.toml --baseline=F/own.toml --op all_reduce=x -b 8 --remote-python p",
            "doctor --path=/a/../b --path ./c --select x --timeout", "doctor --config",
        ):  # fmt: skip
            try:
                words, texts = over_ssh.host_words(line.replace("F/", f"{folder}/").split())
                yield line, ([each.replace(str(Path.cwd()), "HERE") for each in words], texts)
            except UsageError as refused:
                yield line, str(refused)


def _failures_inputs() -> Rows:
    """What a report becomes if hosts took no part in it."""
    failed = tuple(
        HostFailure(f"h{n}", kind, "words") for n, kind in enumerate(("ssh", "absent", "silent", "version", "lost"))
    )
    well = samples.HEALTHY
    reports = {"healthy": well, "sick": samples.SICK, "cut": samples.INCONCLUSIVE, "bare": replace(well, nodes=()),
               "missing": replace(well, missing_nodes=("h1",)),
               "told": replace(well, pages={"a.b": "x"}, explained={"a.b": "x"})}  # fmt: skip
    ways: tuple[dict[str, Any], ...] = ({}, {"fail_on": "warn"}, {"gates": False}, {"ignore": ("sync.nodes",)})
    for (name, report), gone, options in product(reports.items(), ((), failed[:1], failed), ways):
        question = diagnose.ask(diagnose.Judging(**options), ("doctor",), Job())
        found = over_ssh.add_hosts(report, question, StartedHosts(3, gone))
        own = [(v.id, v.node, v.status, v.why, [f.line for f in v.findings]) for v in found.checks[-1:]]
        more = (found.coverage, sorted(found.pages), sorted(found.explained))
        yield f"{name}, {len(gone)} gone, {options}", (found.status, found.exit_code, found.missing_nodes, own, *more)
        if not options:
            twice = over_ssh.add_hosts(found, question, StartedHosts(3, failed))
            yield f"{name}, {len(gone)} gone, again", [each.key for each in twice.checks]


def _ends_inputs() -> Rows:
    """How a command ends that raises something, started by hand and as a rank."""
    errors: dict[str, BaseException | None] = {
        "usage": UsageError("no\tgood"), "interrupted": KeyboardInterrupt(), "terminated": signals.Interrupted(15),
        "memory": MemoryError(), "long": OSError(errno.ENAMETOOLONG, "too long", "x" * 90),
        "loop": OSError(errno.ELOOP, "loop"), "full": OSError(errno.ENOSPC, "full"),
        "closed": OSError(errno.EBADF, "closed"), "disk": OSError(errno.EIO, "disk"), "bug": KeyError("x"),
        "fails": None,
    }  # fmt: skip
    torchrun = {"TORCHELASTIC_RUN_ID": "x"}
    for name, error in errors.items():
        for variables in (
            {}, torchrun, torchrun | {"RANK": "0"}, torchrun | {"RANK": "1"}, torchrun | {"LOCAL_RANK": "1"},
            {"RANK": "1"}, {"NCCLPROBE_FOLDER": "/no"}, torchrun | {"RANK": "0", "NCCLPROBE_FOLDER": "/no"},
        ):  # fmt: skip
            for line in ("topo", "topo --fail-on warn", "topo --fail-on=warn")[: 1 if error else 3]:
                file = mock.patch("tempfile.NamedTemporaryFile", side_effect=OSError)
                with mock.patch("ncclprobe.commands.topo.main", side_effect=error, return_value=4), file:
                    yield f"{name} {variables} {line[5:]}", _printed(line, **variables)
    for line in ("", "-h", "--help-all", "help", "help topo", "help help", "version", "--version", "help version",
                 "help doctor", "checks x --help"):  # fmt: skip
        yield f"line {line}", _printed(line)
    paths = [data_path(text) for text in ("/data", "/data/", "/data:v2", "/a/../b", "sets", "/" + "x" * 1000)]
    yield "paths", [each.replace(str(Path.cwd()), "HERE") for each in paths]
    yield "ASCII", ["\u00b7\u00d7\u00b1\u2026\u2013\u2022\u00b5\u2192\u2019\u00e9a".encode("ascii", "plainly").decode()]


def _pages_inputs() -> Rows:
    """What is explained of checks, causes and variables, and which checks are listed, at two widths."""
    for name in test_catalogue.PAGES:
        yield name, _printed(f"explain {name}")
    for line in ("checks ib gpu.*", "checks host.shm", "checks host.limits --json -", "checks nvl sync"):
        for width in ("60", "200") if "--json" not in line else ("80",):
            yield f"{line}, {width}", _printed(line, columns=width)


def _site_inputs() -> Rows:
    """What `doctor` answers with a project file: named, and found in the working directory."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in test_files_of_commands.SITE_FILES.items():
            Path(folder, "site.toml").write_text(text)
            line = f"doctor {test_files_of_commands.HGX} -q"
            named = _printed(f"{line} --config {folder}/site.toml", folder)
            Path(folder, "site.toml").rename(Path(folder, "ncclprobe.toml"))
            os.chdir(folder)
            try:
                yield name, (named, _printed(line, folder))
            finally:
                os.chdir(before)


def _wrong_inputs() -> Rows:
    """What the API answers if it cannot be asked that."""
    for name, ask in test_api.WRONG.items():
        try:
            yield name, ask()
        except api.UsageError as refused:
            yield name, str(refused).replace(f"{test_api.ROOT}/", "").split()


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "areas": _areas_inputs, "runs": _runs_inputs, "idle": _idle_inputs, "unused": _unused_inputs,
    "causes-of-a-run": _causes_inputs, "compared": _compared_inputs, "site-files": _site_inputs,
    "topo-texts": _topo_inputs, "host-orders": _orders_inputs, "host-failures": _failures_inputs,
    "raised": _ends_inputs, "entries": _pages_inputs, "expected-lines": _expected_inputs, "wrong-asks": _wrong_inputs,
}  # fmt: skip
