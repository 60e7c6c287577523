"""The functions of expectations whose answers are kept: machines, links, networks, copies, and what is assumed."""

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, product
from pathlib import Path
from typing import get_args

from expect import boxes, drawn, test_bands, test_baselines, test_bound, test_judged_logs, test_topology_file
from expect.boxes import A100, ALPS, B200, CAPTURES, GB300, H100, HIGH, MEGA, MESH, P4DE, PLAIN, RACK, SOCKETS, V100
from expect.nccl_machines import TOPOLOGIES

from ncclprobe.checks.run.rows import ROW
from ncclprobe.engine.expect_target import machine_of
from ncclprobe.expect import assumed, bands, bound, copies, evidence, network, sockets, visible
from ncclprobe.expect.composed import composed
from ncclprobe.expect.expected import describe, expectation, expecting, expecting_pairs
from ncclprobe.expect.pinned import pinned
from ncclprobe.expect.predict import predict
from ncclprobe.expect.recognise import Recognised, recognise, seen, should_be
from ncclprobe.expect.sockets import SocketInterface, SocketLink
from ncclprobe.expect.system import NodeSystem, Processor, Shape
from ncclprobe.expect.table import shape_of
from ncclprobe.expect.tables import machines
from ncclprobe.expect.topology_text import system_in
from ncclprobe.expect.tuner import constants
from ncclprobe.expect.tuner.constants import BEFORE, tuning
from ncclprobe.expect.tuner.search import graphs
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.measurement import Expectation, Retest, TimeStats
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import replace
from ncclprobe.nccl.from_matrix import facts_of as facts_of_matrix
from ncclprobe.nccl_tests import parse_text
from ncclprobe.nccl_tests.operation import ranks_by_ratio
from ncclprobe.nccl_tests.rows import DTYPES, Line, Setup, measurement
from tests import nccl_inputs, test_choices, test_topo, test_topology
from tests.facts import made_up_tables

Rows = Iterator[tuple[str, object]]


_OPERATIONS = ("all_reduce", "all_gather", "all_to_all", "broadcast", "sendrecv", "gather")
_RELEASES = ((2, 18, 3), (2, 21, 5), (2, 24, 3), (2, 26, 2), (2, 27, 3), (2, 28, 9), (2, 29, 7), (2, 30, 7))
_BOXES = (
    "8 x L40S, no P2P, 4 NICs x 25 Gb/s sockets",
    "4 x A100 PCIe, NVLink bridges, 1 socket, 2 NICs x 100 Gb/s ib, no GDR",
    "2 x RTX 4090", "8 x V100-SXM2, 4 x EDR", "8 x H200, 8 NICs x 400, NICs at PHB, Turin",
    "4 x H100 PCIe, PCIe switches, 2 NICs x 200 Gb/s roce", "8 x RTX PRO 6000, CX8",
)  # fmt: skip


def _machine_inputs() -> Rows:
    """All types of machines and some boxes: four of each, what calls reach, and what NCCL's search finds by release."""
    named = [(each.name, each.system(), each) for each in machines.table().values()]
    boxes = [(each, composed(each), None) for each in _BOXES]
    for name, system, machine in (*named, *boxes):
        for nodes in (1, 2, 4):
            shape = Shape((system.gpus,) * nodes)
            told = []
            for op, nbytes in product(_OPERATIONS, (8 << 10, 4 << 20, 1 << 30)):
                value = expectation(op, nbytes, shape, system, machine=machine)
                how = predict(system, shape, op, nbytes)
                told += [f"{value.value:.5g}/{value.threshold:.5g}/{value.worst}" if value else "-"]
                words = (
                    (how.algorithm, how.protocol, how.place, how.bottleneck, how.judged_by, how.links) if how else ()
                )
                told += ["/".join([*map(str, words), f"{how.time_us:.5g}" if how else "-"])]
            yield f"{nodes} {name}", told
    for gpu in ("dgx-h100", "dgx-a100", "dgx-b200", "gb200-nvl72", "dgx-1v", "dgx-b300"):
        system = machines.find(gpu).system()
        for release, nodes in product(_RELEASES, (1, 3)):
            shape = Shape((system.gpus,) * nodes)
            calls = [
                predict(system, shape, op, nbytes, release) for op in _OPERATIONS for nbytes in (64 << 10, 64 << 20)
            ]
            costs = [
                f"{how.algorithm}/{how.channels}/{how.latency_us:.5g}/{how.transfer_us:.5g}" for how in calls if how
            ]
            yield f"{nodes} {gpu}, {release}", (graphs(system, shape, release), costs)


def _graph_inputs() -> Rows:
    """What NCCL's search finds on machines with one part another, by release, or why it is not guessed."""
    cube, few = replace(V100, fabric="cube-mesh"), replace(V100, gpus=4, fabric="mesh")
    odd = (cube, few, replace(few, nvlinks=4), replace(few, nvlinks=5), replace(A100, fabric="mesh", gpus=6),
           replace(H100, nics=32, nic_gbps=100), replace(H100, nvls=False), replace(PLAIN, processor="amd"),
           replace(SOCKETS, nics=4, nic_gbps=10), replace(PLAIN, processor="bdw", gpus=8, nics=1))  # fmt: skip
    for number, system in enumerate((*_ALL, *odd)):
        for gpus in dict.fromkeys(((system.gpus,), (system.gpus,) * 2, (system.gpus, 1), (3,), (2, 2, 2))):
            for release in ((2, 18, 3), (2, 23, 4), (2, 30, 7)):
                found = graphs(system, Shape(gpus), release)
                told = found.why if isinstance(found, Absent) else found
                yield f"{number} {system.name} {gpus} {release}", told


def _copy_inputs() -> Rows:
    """What copies reach: of each slot, between GPUs, to each Grace, and over the NVLinks of each type of machine."""
    for generation, width in product((1, 2, 3, 4, 5, 6), (4, 8, 16)):
        ways = product((True, False), (True, False))
        between = [copies.p2p_pcie_copy(generation, width, same_socket=near, p2p=p2p) for near, p2p in ways]
        yield f"Gen{generation} x{width}", (copies.host_copy(generation, width), between)
    for gpus, capability in product((1, 2), (90, 100, 103)):
        yield f"{gpus} GPUs of {capability} on a Grace", copies.c2c_copy(gpus, capability)
    for name, machine in machines.table().items():
        yield name, (copies.nvlink_copy(machine.system()), copies.slot(machine.system().pcie_GBps))
    row = CopyRow(node="n", rank=0, kind="h2d", device="GPU0", nbytes=1 << 28, GBps=0.0, min_GBps=0.0, max_GBps=0.0,
                  samples=7)  # fmt: skip
    slot = {kind: copies.host_copy(4, 16) for kind in ("host", "d2d")}
    for kind, near, together in product(("h2d", "d2h", "d2d", "bidirectional", "memset"), (True, False), (True, False)):
        rows = [
            copies.judged(replace(row, kind=kind, near=near, concurrent=together, GBps=rate, max_GBps=most), slot)
            for rate, most in product((8.7, 8.9, 21.4, 21.5), (8.7, 8.9, 21.5))  # a third of 26.8, and 0.68 of 31.5
        ]
        yield f"{kind}, near {near}, together {together}", [(each.status, each.threshold_GBps) for each in rows]


def _socket_inputs() -> Rows:
    """What gloo and NCCL reach over TCP, by the rate and its source, at the edges of sizes."""
    for gbps, known in product((1, 10, 32, 100, 400), ("reported", "measured")):
        link = SocketLink(gbps, "eth0 of n", known)
        for op in ("all_reduce", "all_gather", "broadcast", "gather", "all_to_all"):
            sizes = ((1 << 20) - 1, 1 << 20, (64 << 20) - 1, 64 << 20)
            told = ([sockets.gloo(op, each, link) for each in sizes], sockets.nccl(op, link))
            yield f"{op} over {gbps} {known}", told
    faces = [SocketInterface(*each, False) for each in (("a", "eth0", 25), ("b", "eth1", 10), ("c", "eth0", 25))]
    odd = [SocketInterface("d", *each) for each in (("veth1", 10, True), ("x", None, False), ("x", 1, None))]
    yield "slowest", [sockets.slowest(each) for each in (faces, [], *([*faces, one] for one in odd))]
    paths = ([9.0, 9.4, 0.9, 9.1, 9.3, 0.0], [9.0, 0.9], [9.0, 0.9, 0.0], [3.0, 1.0, 2.0])
    yield "typical", [sockets.typical(each) for each in paths]


def _network_inputs() -> Rows:
    """The limit between nodes of each network: even and uneven ones, and racks; held by a node or not."""
    base = (H100, A100, B200, MEGA, HIGH, P4DE, ALPS, GB300, RACK, replace(H100, gdr=False, network="roce"))
    more = [replace(H100, network=each) for each in ("roce", "efa", "opa", "slingshot", "sockets", None)]
    slots = [replace(H100, pcie_GBps=24), replace(GB300, processor="arm"), replace(A100, gdr=False, pcie_GBps=48)]
    for system, odd in product((*base, *more, *slots), (False, True)):
        for nodes in (2, 4, 36):
            shape = Shape(((system.gpus,) * (nodes - odd)) + (max(1, system.gpus // 2),) * odd)
            calls = product(("all_reduce", "all_gather", "all_to_all", "sendrecv"), (None, 60.0, 1e4), (False, True))
            found = [network.limit(system, shape, op, node, ring=ring) for op, node, ring in calls]
            name = f"{system.name} {system.network} {system.pcie_GBps:g} {system.gdr}, {nodes} nodes, odd {odd}"
            told = [
                f"{e.rule.replace(' ', '_')}/{e.value_GBps:.5g}/{e.hard_GBps:.5g}/{e.confidence}" if e else "-"
                for e in found
            ]
            yield name, [network.domains(system, shape), list(dict.fromkeys(told))]


_ALL = (H100, A100, B200, MEGA, HIGH, P4DE, ALPS, GB300, RACK, V100, PLAIN, MESH, SOCKETS)
_ALL += (replace(PLAIN, sockets=1), replace(PLAIN, p2p=False), replace(PLAIN, compute_capability=121, network="roce"))
_ALL += tuple(replace(H100, network=each, gdr=gdr) for each in ("roce", "efa", None) for gdr in (True, False))
_ALL += (replace(H100, nic_gbps=800), replace(H100, gpus=4, fabric="mesh"), replace(PLAIN, gpus=8))
_SETTINGS = (
    *(
        {"NCCL_ALGO": text}
        for text in ("Ring", "Tree", "^NVLS", "allreduce:ring", "broadcast:ring", "nonsense", "NVLS")
    ),
    *({"NCCL_PROTO": text} for text in ("LL", "LL128", "Simple", "^Simple", "LL,Simple")),
    *({f"NCCL_{name}_NCHANNELS": text} for name, text in (("MAX", "1"), ("MAX", "2"), ("MAX", "32"), ("MIN", "1"))),
    *({"NCCL_MIN_NCHANNELS": text} for text in ("8", "32")),
    *({"NCCL_MAX_CTAS": "4"}, {"NCCL_MIN_CTAS": "64"}, {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_MNNVL_ENABLE": "0"}),
    *({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_SHM_DISABLE": "1"}),
    *({"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}, {"NCCL_NET": "IB"}, {"NCCL_NET_GDR_LEVEL": "LOC"}),
    *({"NCCL_IB_HCA": text} for text in ("mlx5_0", "=mlx5_0,mlx5_1", "^mlx5_0", "mlx5")),
    *({"NCCL_NET_GDR_READ": "0"}, {"NCCL_DMABUF_ENABLE": "0"}, {"NCCL_CROSS_NIC": "1"}, {"NCCL_CUMEM_ENABLE": "0"}),
)


def _weighed_inputs() -> Rows:
    """What each class of path may decide by size and nodes; the constants of each release; and what settings change."""
    number = Expectation(100.0, 0.0, "GB/s", "model", "why", "source")
    for system in _ALL:
        for nodes in (1, 2, 16, 600):
            shape, told = Shape((system.gpus,) * nodes), list[str]()
            for op, nbytes, late in product(("all_reduce", "sendrecv"), (*_DECADES, *_EDGES), (False, True)):
                each = evidence.weighed(number, system, shape, op, nbytes, by_time=late)
                told.append(f"{each.worst}/{each.threshold:g}/{each.gross or 0:g}/{each.confidence}")
            calls = ("all_reduce", "all_to_all", "gather")
            paths = [evidence.path_of(system, shape, op) for op in calls]
            paths += [evidence.deciding(system, shape, op) for op in calls]
            name = (
                f"{system.network} {system.gdr} {system.sockets} {system.p2p} {system.compute_capability} {system.gpus}"
            )
            yield f"{nodes} {system.name} {name} {system.gpus} x {system.nic_gbps}", (paths, told)
    yield "enough", [evidence.enough(*each) for each in product(range(1, 7), (9, 10, 11, 14, 15, 16))]
    yield "decades", [evidence.decade(10**power + less) for power in range(11) for less in (-1, 0)]
    every = [(cc, each, net) for cc, each, net in product((70, 80, 90, 100), _SPEEDS, (True, False))]
    yield "speeds", [constants.speeds(cc, each, network=net) for cc, each, net in every]
    kinds, since_ = get_args(Processor), ((2, 25, 9), (2, 26, 0))
    yield "sockets", [constants.between_sockets_GBps(each, since) for each, since in product(kinds, since_)]
    for version in [(2, 30, 7), *(since for since, _ in BEFORE), (2, 20, 5)]:
        yield f"before {version}", tuning((*version[:2], version[2] - 1))
    for settings, system in product(_SETTINGS, (H100, A100, RACK, PLAIN)):
        kept = pinned(merge(Environment(settings), ()), (2, 30, 7))
        calls_ = product(("all_reduce", "all_gather", "sendrecv"), (1, 3), (64 << 10, 1 << 33))
        found = [
            expectation(op, nbytes, Shape((system.gpus,) * nodes), system, settings=kept)
            for op, nodes, nbytes in calls_
        ]
        told = [f"{e.worst}/{e.value:.5g}/{e.threshold:.5g}/{e.gross}" if e else "-" for e in found]
        yield f"{settings} {system.name}", told


_SPEEDS = ((2, 30, 0), (2, 29, 7), (2, 29, 0), (2, 27, 6), (2, 27, 5), (2, 27, 0), (2, 25, 0), (2, 22, 0), (2, 20, 5))
_DECADES = tuple(3 * 10**power for power in range(3, 11))
_EDGES = ((64 << 20) - 1, 64 << 20, (64 << 20) + 1)


def _verdict_inputs() -> Rows:
    """The verdict on rates by what is expected, how wide the interval is, and what a second measurement says."""
    base = Expectation(100.0, 80.0, "GB/s", "baseline", "why", "source")
    kinds = {
        **{basis: replace(base, basis=basis) for basis in ("user", "baseline", "published", "model", "datasheet")},
        "warns": replace(base, basis="model", worst="warn", gross=33.3),
        "shown": replace(base, basis="model", worst="unjudged", threshold=0.0),
        "gross": replace(base, basis="model", worst="unjudged", threshold=0.0, gross=33.3),
    }
    again = (None, 40.0, 82.0, 99.0)
    for (name, expected), half, launch in product(kinds.items(), (None, 0.0, 0.01, 0.1), (False, True)):
        told = []
        for rate, second in product((20.0, 33.0, 34.0, 79.9, 80.0, 80.1, 84.0, 89.9, 90.1, 99.0, 130.0), again):
            ends = None if half is None else (20 * (1 - half), 20 * (1 + half))
            row = replace(ROW, busbw_GBps=rate, time_us=TimeStats(20.0), interval_us=ends, launch_bound=launch)
            retest = second and Retest(second, 20.0, (19.9, 20.1), 5)
            told.append(bands.judge(row, expected, retest=retest or None).status)
        yield f"{name}, {half}, launch {launch}", [f"{len(list(same))}*{word}" for word, same in groupby(told)]


def _log_inputs() -> Rows:
    """What is told of each judged log."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (log, options) in test_judged_logs.LOGS.items():
            yield name, [[line] for line in test_judged_logs.told(Path(folder), log, options)]


def _recognised_inputs() -> Rows:
    """What each capture shows and is taken for, and types with a part less, a part more, or a part not known."""

    def told(found: Recognised) -> object:
        return found.candidates, [str(each) for each in found.differs], found.why

    for path in CAPTURES:
        facts, firmware = boxes.facts_of(path)
        found, system = recognise(seen(facts, firmware)), visible.system_of(facts)
        better = should_be(found, system)
        changed = better if better != system else None
        source = system.source if isinstance(system, NodeSystem) else ""
        yield path.stem, (told(found), seen(facts, firmware), system, source, changed)


_TYPED = (
    *("8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce", "8 x L40S (8 per socket)", "8 x L40S (2 per socket)"),
    *("8x rtx 4090", "2 x A6000", "2 x A6000, NVLink bridges", "8 x H100 80GB HBM3", "8 x V100-SXM2"),
    *("8 x V100-SXM2, no NVLink", "8 x H200, 8 NICs x 400", "8 x H200, 8 NICs x 400, NICs at PHB", "1 x H100 SXM"),
    *("1 x H200 NVL", "1 x A100 80GB SXM", "1 x GB10", "1 x RTX 6000D", "1 x V100-SXM2", "1 x GH200", "4 x GH200"),
    *("8 x H200, 8 x 400 ib, no GDR", "8 x H200, no GDR, 8 x NDR, 8 X NDR", "8 x H200, 8x CX7 400G", "4 x H200 NVL"),
    *("8 x H200, 2 x 200GbE", "8 x H200, 2 x 200gb/s"),
    *("8 x H200, 2 NICs per GPU x 200 roce", "8 x H200, 8 rails x 400"),
    *("4 x H200 NVL bridges of 4", "4 x H100 80GB HBM3", "4 x H100 80GB HBM3, mesh", "8 x RTX PRO 6000"),
    *("1 x GB10, 2 NICs x 100 roce", "8 x L40S, Turin", "8 x L40S, Ice Lake", "8 x L40S, Emerald Rapids, 2 x NDR"),
    *("8 x L40S, PCIe switches", "8 x L40S, PCIe switches, 2 sockets"),
    *("8 x RTX PRO 6000, CX8", "8 x B200, 8 x 400 efa"),
    *("2 x V100 PCIe", "8 x A6000 bridged", "4 x T4, 1 x 25 sockets", "8 x H100 PCIe, 4 x HDR, 4 sockets, skl"),
    # Refused, or of more spellings.
    *("8 x V100", "RTX 6000D", "A100-SXM4-80GB", "2 x GB10", "2 x DGX Spark", "DGX Spark x2"),
    *("8 x RTX PRO 6000, two switches", "8 x RTX PRO 6000 Blackwell Max-Q, 1 socket"),
    *("A100 80GB", "8 x " + "L" * 397, "8 x L40S, intel"),
)


def _boxes_inputs() -> Rows:
    """What is understood and assumed of boxes as their owners type them, or the refusal."""
    for text in _TYPED:
        try:
            box = machine_of(text, None).system
            yield text, (box, box.source if isinstance(box, NodeSystem) else box)
        except NcclprobeError as refused:
            yield text, str(refused)


def _xml_inputs() -> Rows:
    """The machine in each topology file that NCCL was played with."""
    for each in TOPOLOGIES:
        yield each.name, system_in(each.xml(), each.name, each.product, None, network=each.nodes > 1)
    for name, given in test_topology_file.XML.items():
        yield name, test_topology_file.read(*given)


def _path_inputs() -> Rows:
    """The distances of machines by their links, NUMA nodes and the places of their NICs, with relays and near NICs."""
    for name, found in (*test_topology.scenes(), *test_topology.places()):
        told = [" ".join(test_topology.words(found, gpu).replace(",", "").split()) for gpu in found.gpus]
        near = [f"{gpu}:{'/'.join(found.near(gpu))}" for gpu in found.gpus]
        yield (
            name,
            (*told, *near, *(f"{one}-{other}:{word}" for (one, other), word in found.smi.items() if one[0] == "N")),
        )


def _table_inputs() -> Rows:
    """All that is read of each text of nccl-tests: rows, fingerprint, settings, networks, errors; and data types."""
    more = {
        "EFA": "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n",
        "FasTrak": "n0:1:1 [0] NCCL INFO Using network FasTrak\n",
        "a setting": "export NCCL_ALGO=Ring\n$ NCCL_PROTO=LL mpirun -np 8 ./all_reduce_perf -b 8\n",
    }
    made = {
        name: made_up_tables.HEAD + line + made_up_tables.NEW + made_up_tables.ALL_REDUCE for name, line in more.items()
    }
    for name, text in {**made_up_tables.TEXTS, **made}.items():
        try:
            yield name, parse_text(text, "log")
        except NcclprobeError as refused:
            yield name, str(refused)
    yield "data types", DTYPES


def _ratio_inputs() -> Rows:
    """How many ranks the ratio of the two bandwidths of an all_reduce shows, by their rounding."""
    for ranks in range(2, 161, 3):
        found = [shown_ranks(ranks, 1.15**power) for power in range(44)]
        yield f"{ranks} ranks", [f"{len(list(same))}*{each}" for each, same in groupby(found)]


def shown_ranks(ranks: int, rate: float) -> int | None:
    busbw, us = round(rate, 2), (1 << 30) / rate * 2 * (ranks - 1) / ranks / 1e3
    return ranks_by_ratio("all_reduce", [Line(1 << 30, 1 << 28, "float", "sum", "out", us, 0.1, busbw, 0)])


def _limit_inputs() -> Rows:
    """What is taken at each limit of what is read, and just beyond it."""

    def taken(read: Callable[[], object]) -> str:
        try:
            return "refused" if isinstance(read(), Absent) else "taken"
        except (NcclprobeError, ValueError):
            return "refused"

    def matrix(*gpus: str) -> object:
        words = {gpu: {**dict.fromkeys(gpus, "SYS"), gpu: "X"} for gpu in gpus}
        return facts_of_matrix(Matrix("topo-m", gpus, (), words, *[(None,) * len(gpus)] * 3))[Gpus]

    def linked(one: int, other: int) -> object:
        words = [["X", f"NV{one}", f"NV{other}"], [f"NV{one}", "X", "SYS"], [f"NV{other}", "SYS", "X"]]
        return facts_of_matrix(test_topo.matrix(words, 3))[NvLinks]

    def measured(nbytes: int, ranks: int, us: float) -> object:
        line = Line(nbytes, nbytes // 4, "float", "sum", "out", us, 0.0, 0.0, 0)
        return measurement(line, Setup("all_reduce", ranks, 1, "queued", 1, "2"))

    def kept(rate: float) -> object:
        found = test_baselines.keep([test_baselines.run(test_baselines.row(each)) for each in (rate, 100, 200 - rate)])
        return found if found.rows else Absent("none")

    entry, line = test_bands.toml(), bounds.TOML_LINE
    calls: dict[str, Callable[[int], object]] = {
        "letters of a device": lambda more: matrix("GPU1".ljust(bounds.TOPO_NAME + more, "1")),
        "devices": lambda more: matrix(*(f"GPU{n}" for n in range(bounds.TOPO_DEVICES + more))),
        "links of a GPU": lambda more: linked(9, 9 + more),
        "GPUs of a box": lambda more: composed(f"{16 + more} x L40S"),
        "letters of a box": lambda more: composed("8 x L40S, intel".ljust(400 + more).replace("intel", "Turin")),
        "nodes": lambda more: shape_of((1,), (1 << 16) + more, 8),
        "GPUs in use": lambda more: shape_of((8 + more,), 2, 8),
        "one rank": lambda more: shape_of((2 - more,), None, 8),
        "counts": lambda more: shape_of((8,) * (2 + more), 2, 8),
        "characters": lambda more: bands.from_toml(entry + "\n" * (bounds.TOML_CHARACTERS - len(entry) + more), "b"),
        "characters of a line": lambda more: bands.from_toml(f"{entry}#{'x' * (line - 1 + more)}\n", "b"),
        "bytes": lambda more: measured(bounds.BYTES // 4 * 4 + 4 * more, 8, 1e9),
        "ranks": lambda more: measured(1 << 30, bounds.JOB_RANKS + more, 1e9),
        "microseconds": lambda more: measured(1 << 30, 8, bounds.MOST_TIME_US * (1 + more / 1000)),
        "too short": lambda more: measured(4, 8, bounds.LEAST_TIME_US * (1 - more / 1000)),
        "noise": lambda more: kept(88.77 - more / 10),
    }
    for name, call in calls.items():
        yield name, [taken(functools.partial(call, more)) for more in (0, 1)]


def _captured_inputs() -> Rows:
    """Of captured nodes: what runs and copies on them should reach, what settings cost, and unlike nodes together."""
    nodes = {path.stem: test_bound.snapshot(path.stem).facts for path in CAPTURES if path.parent.name != "sick"}
    described = {name: describe(facts) for name, facts in nodes.items()}
    sizes = (8, 100, 1 << 20, 1 << 30)
    for name, facts in nodes.items():
        known = described[name]
        yield name, (known.machine, known.why, copies.by_kind(facts), bound.predicted(facts, 4))
        gpus = known.system.gpus if known.system else 8
        for count, ranks in product((1, 3), {gpus, max(1, gpus // 2), gpus + 1}):
            shape, given = Shape((ranks,) * count), {f"n{number}": known for number in range(count)}
            made = (expecting(("all_reduce", "all_gather", "gather"), sizes, 4, shape, given),
                    expecting_pairs(1 << 30, shape, given))  # fmt: skip
            own = [band for each in made for band in (*each.bands, *each.node_bands)]
            short = [f"{each}/{each.expectation.value:.4g}/{each.expectation.worst}" for each in own]
            yield f"{count} {name} of {ranks}", (short, [each.note for each in made])
    unlike = {name: described[name] for name in ("hgx-h100", "dgx-a100", "hgx-h200")}
    yield "unlike nodes", expecting(("all_reduce",), (1 << 30,), 4, Shape((8, 8, 8)), unlike)
    yield "no nodes", expecting(("all_reduce",), (1 << 30,), 4, Shape((8,)), {})
    for name, setting in product(("hgx-h100", "gb200-tray", "aws-p4d", "rtx4090-2", "l40s-8", "gcp-a3-mega"), _COSTLY):
        one, eight = (test_bound.costs(name, dict([setting.split("=", 1)]), nodes=nodes) for nodes in (None, 8))
        yield f"{name} {setting}", [one, eight.cost()]


_COSTLY = (
    *("NCCL_IB_HCA=mlx5_0", "NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_IB_HCA=mlx5", "NCCL_IB_DISABLE=1", "NCCL_NET=Socket"),
    *("NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_SHM_DISABLE=1", "NCCL_NET_GDR_READ=0", "NCCL_CROSS_NIC=1"),
    *("NCCL_NET_GDR_LEVEL=LOC", "NCCL_NET_GDR_LEVEL=PIX", "NCCL_NET_GDR_LEVEL=PXB", "NCCL_NVLS_ENABLE=0"),
    *("NCCL_MAX_NCHANNELS=1", "NCCL_MAX_NCHANNELS=8", "NCCL_MAX_NCHANNELS=32", "NCCL_MAX_CTAS=4"),
    *("NCCL_PROTO=LL", "NCCL_PROTO=^Simple,LL128", "NCCL_PROTO=LL128", "NCCL_PROTO=LL,Simple", "NCCL_PROTO=Simple"),
    *("NCCL_ALGO=Ring", "NCCL_ALGO=CollnetDirect", "NCCL_MNNVL_ENABLE=0", "FI_PROVIDER=tcp"),
    *("NCCL_CUMEM_ENABLE=0", "FI_PROVIDER=efa"),
)


_PROCESSORS = ("Intel(R) Xeon(R) Platinum 8168", "Intel(R) Xeon(R) Platinum 8358", "Intel(R) Xeon(R) Platinum 8480C",
               "INTEL(R) XEON(R) PLATINUM 8568Y+", "Intel(R) Xeon(R) 6972P", "Intel(R) Xeon(R) CPU E5-2698 v4",
               "AMD EPYC 7742 64-Core Processor", "AMD EPYC 9654", "Neoverse-V2", "POWER9", "")  # fmt: skip


def _assumed_inputs() -> Rows:
    """What nodes of a log may be, the usual first, with what weaker NICs they could have; and processors by name."""
    for text in ("two of a3-megagpu-8g", "8x H200", "8x H200 or 8x B200", "4 x L40S and 4x L40S", "8x faster"):
        yield text, assumed.gpus_in(text)
    for text in ("8 x H200", "2 x L40S", "4 x GH200", "8 x H200, 1 x NDR"):
        box = composed(text)
        nodes = [assumed.Node(box.gpu, box.gpus, *more) for more in ((1,), (2,), (2, "roce"), (2, "", 3))]
        yield (f"NICs of {text}", [(made := assumed.assume_nics(box, node)) and made.described for node in nodes])
    yield "processors", {name: visible.processor(name) for name in _PROCESSORS}
    yield "links", [visible.nccl_link_GBps(each) for each in (60, 70, 80, 86, 89, 90, 99, 100, 103, 120)]


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "machines": _machine_inputs, "graphs": _graph_inputs, "copies": _copy_inputs, "sockets": _socket_inputs,
    "network": _network_inputs, "weighed": _weighed_inputs, "verdicts": _verdict_inputs, "logs": _log_inputs,
    "tables": _table_inputs, "ratios": _ratio_inputs, "limits": _limit_inputs, "captured": _captured_inputs,
    "recognised": _recognised_inputs, "paths": _path_inputs, "choices": test_choices.rows, "boxes": _boxes_inputs,
    "xml": _xml_inputs, "assumed": _assumed_inputs, **nccl_inputs.FUNCTIONS, **drawn.FUNCTIONS,
}  # fmt: skip
"""The functions of each file with their input."""
