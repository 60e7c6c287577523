"""Machines, descriptions, topologies and rows whose parts are drawn by number: what is expected of each is kept."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from expect import test_bands, test_baselines, test_machines, test_topology_file
from expect.boxes import A100, ALPS, B200, GB300, H100, HIGH, MEGA, P4DE, PLAIN, RACK, SOCKETS, V100, WANTED
from expect.test_recognise import ideal
from ncclprobe.checks.env.fixtures import having
from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect import assumed, bands, baselines, bound, composed, copies, elsewhere, log_findings, visible
from ncclprobe.expect.expected import Described, describe, expectation, expecting, expecting_pairs
from ncclprobe.expect.pinned import NOTHING, pinned
from ncclprobe.expect.predict import predict
from ncclprobe.expect.recognise import expectation_context, recognise, should_be
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.tables import gpus, machines
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.search import graphs
from ncclprobe.expect.visible import Facts
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric, Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import GpuFabric, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Linking, Plugin, Plugins, SharedLibrary
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Measurement, TimeStats
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl import networks
from ncclprobe.nccl.selection import choose, choose_rails, crossing
from ncclprobe.nccl_tests import Run
from tests import test_choices
from tests.drawn import altered, some_of, word

Rows = Iterator[tuple[str, object]]
_HOPPER = ("H100", "ETHERNET", "SMALL", "TRAY", "TRAYS", "MATRIX", "CARDS", "BARE")
_FILES = {
    **dict.fromkeys(_HOPPER, ("H200", "H100 SXM", "H100 NVL")),
    **dict.fromkeys(("GRACE", "C2C"), ("GH200", "H200")),
    **{"CUBE": ("V100-SXM2", "V100 PCIe"), "L40S": ("L40S", "RTX 4090"), "DESKTOP": ("RTX 4090", "L40S")},
    **{"OWN": ("A100 80GB PCIe", "A100 SXM"), "VIRTUAL": ("RTX 4090", "H200")},
}
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "link_speed": ("", *(f"{each} GT/s PCIe" for each in ("2.5", "5", "5.0", "8", "8.0", "16", "16.0", "32", "64.0",
        "9"))), "link_width": ("", "0", "1", "8", "32", "33", "x"),
    "sm": ("", "0", "30", "80", "90", "100", "199", "200"), "count": ("", "1", "2", "18", "64", "65"),
    "speed": ("", "-1", "0", "100000", "25000", "10000001"), "familyid": ("6", "7", "15"),
    "modelid": ("84", "85", "91", "142", "143", "206", "207", "0x8f"),
    "vendor": ("GenuineIntel", " AuthenticAMD ", "CentaurHauls", "Shanghai", "0x1d0f", "0x10de"),
    "arch": ("x86_64", "arm64", "ppc64", "riscv"), "gdr": ("0", "1", ""), "port": ("1", "2"), "dev": ("0", "1"),
    "name": ("eth0", "enp1", "bond0", "ib0", "lo", "docker0", "veth1", "cxi0", "hfi1_0", "mlx5_0", "rdmap1"),
    "tclass": ("0x030200", "0x068000", "0x068001", ""), "target": ("0000:11:00.0", "0000:10:00.0", "there"),
    "class": ("0x020000", "0x020700", "0x030200", "0x060400", ""), "busid": ("0000:10:00.0", "ffff:ff:1f.0", "there"),
    "host_hash": ("0xa", "0xb"), "numaid": ("-1", "0", "1", "99"), "device": ("0x2330", "0x2339", "0x26b9", ""),
    "bw": ("1", "40000", "10000000", "10000001"),
}  # fmt: skip
_TEXTS = (
    *(("GPU1", "GPU2"), ("NV18", "NV12"), ("NV18", "SYS"), ("mlx5_0", "rdmap0"), ("PIX", "SYS"), ("NODE", "PHB")),
    *(("<pci", "<nic"), ("</system>", ""), ("NIC0", "NIC1"), ("<cpu ", "<numa "), ("48-95", ""), ("<system", "<host")),
)


def topologies() -> Rows:
    """Yield the machine in each topology file of which some attributes or words are others, or the refusal."""
    for number in range(330):
        draw = Random(number)
        name, products = [*_FILES.items()][number % len(_FILES)]
        text = getattr(test_topology_file, name)
        there = sorted({*re.findall(r'(\w+)="', text)} & {*_ATTRIBUTES})
        for name in draw.sample(there, min(len(there), draw.randint(1, 2))):
            new, odds = draw.choice(_ATTRIBUTES[name]), draw.choice((0.1, 1.0))
            text = re.sub(rf'\b{name}="[^"]*"', lambda old: f'{name}="{new}"' if draw.random() < odds else old[0], text)  # noqa: B023
        text = text.replace(*draw.choice(_TEXTS), draw.choice((1, -1))) if not there or number % 9 == 0 else text
        gpu = draw.choice((None, *products, products[0], "H200"))
        rate = draw.choice((None, 400.0, 25.0))
        try:
            yield f"{number}", word(test_topology_file.read(text, gpu, rate, network=number % 4 > 0))
        except UsageError as refused:
            yield f"{number}", word(refused)


_PARTS = (
    *("NVLink bridges", "bridged", "nvlink bridge of 4", "bridges of 2", "NVL4", "4-way nvlink", "mesh", "no NVLink"),
    *("PCIe switches", "behind two CX8", "below 2 ConnectX-8s", "plx switch", "P2P", "no P2P", "GDR", "no gdr"),
    *("NICs at PIX", "nics at sys", "one socket", "dual socket", "over two sockets", "4 cpus", "four sockets"),
    *("2 per socket", "8 per cpu", "3 gpus per socket", "0 sockets", "0 per socket", "Rome", "grace", "broadwell"),
    *("granite rapids", "emr", "cascade lake", "unknown", "0 nics x 100", "8 x 50GB/s", "", "liquid"),
    *("4 NICs x 200 Gb/s roce", "8 x NDR", "8 x XDR", "2 x edr infiniband", "1 x 100GbE", "2 NICs per GPU x 400"),
    *("8 rails x 400 efa", "1 x 25 sockets", "4 nics x 200 tcpx", "8 x 200 tcpxo", "4 x 200 slingshot", "64 x 1 ib"),
    *("65 x 100 roce", "8 x CX-7 400G", "8 x 0", "4 x 100 opa", "4 x 100 token", "x" * 70),
)
_NAMES = (
    *("GB10", "H100", "DGX Spark", "dgx-h100", "MI300X", "Gaudi2", "Radeon", "Arc", "Intel Max 1550", "RTX 40", "A100"),
    *("NVIDIA H100 80GB HBM3", "GPU 0: NVIDIA L40S (UUID: GPU-1a)", "H20-3e", "RTX 4090 Laptop", "A100 80GB PCIe LC"),
    *(" Tesla V100-SXM2-16GB ", "GB200 NVL72, 4 trays", "DGX H100 , 12 hosts", "dgx-a100 x", "DGX " * 12),
    *("RTX", "4090 x2", "8 L40S x", "L40S x x", "L40S x\u0662", "3 x", "L40S NVL4 bridge of 4 mesh"),
)


def boxes() -> Rows:
    """Yield the machine in each description, and the meaning of each name, or the refusal."""
    products = [gpu.name for gpu in gpus.products()]
    names = [*_NAMES, *products, *(alias for gpu in gpus.products() for alias in gpu.aliases)]
    for number in range(360):
        draw = Random(number)
        count, name = draw.choice((1, 2, 2, 4, 4, 8, 8, 6, 16, 17, 0)), draw.choice(names)
        parts = draw.sample(_PARTS, draw.randint(0, 3))
        first = draw.choice(("{0} x {1}", "{0}x{1}", "{1} x{0}", "{1} x {0}", "{1} \u00d7 {0}")).format(count, name)
        text = f"{first} {parts[0]}" if number % 7 == 0 and parts else ", ".join([first, *parts])
        yield text, word(composed.is_composed(text), _called(composed.composed, text))
    whole = [machine.name for machine in machines.table().values()]
    for name in (*_NAMES, *names[::3], *whole, *(f"{each} NVL4" for each in names[::9])):
        alike = [each for each in ("NVIDIA H100 NVL", "NVIDIA L40S", "Other") if composed.same_gpu(name, each)]
        found = [_called(find, name) for find in (composed.product_called, composed.machine_called)]
        yield f"name {name}", word(composed.is_composed(name), composed.capability_of(name), alike, *found)


def _called(find: Callable[[str], Any], name: str) -> object:
    try:
        found = find(name)
    except UsageError as refused:
        return refused
    return found if isinstance(found, NodeSystem) else found.name


_OTHER: dict[str, Sequence[Any]] = {
    "cloud": ("", "aws", "gcp", "azure", "oracle"), "vendor": ("", "NVIDIA", "Supermicro", "Amazon EC2"),
    "product": ("", "p5.48xlarge", "DGXH100", "DGXA100 920", "DGX"), "cpu": ("", "Neoverse-V2", "AMD EPYC 9654"),
    "gpu_names": ((), ("NVIDIA H200",), ("NVIDIA H100 80GB HBM3", "NVIDIA L40S"), ("NVIDIA GB200",)),
    "gpus": (None, 0, 1, 4, 5, 7, 8, 9, 16), "nvlinks": (None, 0, 9, 10, 17, 18, 24),
    "nics": (None, 0, 1, 2, 4, 5, 7, 8, 9), "nic_gbps": (None, 100.0, 200.0, 400.0),
    "unknown": ((), ("GPUs: no driver", "firmware: denied")),
}  # fmt: skip


_SYSTEMS = (A100, ALPS, B200, GB300, H100, HIGH, MEGA, P4DE, PLAIN, RACK, SOCKETS, V100)
_OF_TYPES: dict[str, Sequence[Any]] = {
    "Links.nics": (None, 4), "Links.nic_gbps": (None, 100.0), "Links.unverified": (("nics",), ("network", "gdr"), ()),
    "Links.network": (None, "sockets", "slingshot", "roce"), "MachineType.origin": ("a site", "site 2"),
    "Match.cpus": (("EPYC", "Neoverse-V2"), ("Xeon",)), "Match.elsewhere": (True,), "Match.cloud": ("", "aws"),
    "Match.gpu_names": (("NVIDIA H100 80GB HBM3", "NVIDIA L40S"),), "Links.gpus": (2, 4), "Match.twins": (("x",), ()),
}  # fmt: skip


def types() -> Rows:
    """Yield what each machine is taken for of which one or two facts are others, among types of which some are."""
    every = list(machines.table().values())
    for number in range(600):
        draw = Random(number)
        machine = every[number % len(every)]
        own = altered(draw, machine, _OF_TYPES, 0.15) if number % 3 == 0 else machine
        known = [
            *(every[:: draw.choice((1, 1, -1, 3))] if number % 9 else [machine]),
            *([own] if own is not machine else []),
        ]
        changes = some_of(draw, _OTHER) if number % 6 else {}
        found = recognise(replace(ideal(draw.choice((machine, own))), **changes), known)
        rest = should_be(found, draw.choice(_SYSTEMS)) if number % 3 == 0 else ""
        yield f"{number} {machine.name} {sorted(changes)}", word(found.candidates, found.differs, found.why, rest)


_FIELDS: dict[str, Sequence[Any]] = {
    "gpus": (1, 2, 3, 4, 5, 6, 8), "nvlinks": (0, 4, 6, 12, 17),
    "fabric": ("none", "pairs", "mesh", "cube-mesh", "nvswitch"), "domain_gpus": (0, 2, 4, 8, 72),
    "nvls": (True, False), "pcie_GBps": (3.0, 12.0, 24.0, 48.0, 96.0), "p2p": (False,), "at_roots": (True,),
    "processor": ("unknown", "amd", "arm", "bdw", "skl", "spr", "emr", "zhaoxin", "yongfeng", "power9"),
    "sockets": (1, 2, 4), "nics": (0, 1, 2, 3, 4, 8, 16, 32),
    "nic_gbps": (0.0, 10.0, 25.0, 100.0, 200.0, 400.0, 800.0), "nic_path": ("PIX", "PXB", "PHB", "NODE", "SYS"),
    "gdr": (True, False), "network": (None, "ib", "roce", "efa", "tcpx", "tcpxo", "slingshot", "opa", "sockets"),
    "compute_capability": (70, 75, 80, 86, 89, 90, 100, 103, 120, 121), "nvlink_GBps": (12.0, 20.0, 40.1),
}  # fmt: skip
_SHAPES = ((2,), (4,), (8,), (8, 8), (4, 4), (8, 4), (4, 8), (1, 1), (8,) * 4, (4,) * 18, (2, 3, 1), (8,) * 9, (1,), ())
_OPS = ("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv",
        "gather", "xyzzy")  # fmt: skip
_RELEASES = ((2, 14, 3), (2, 18, 3), (2, 20, 5), (2, 22, 3), (2, 24, 3), (2, 26, 2), (2, 27, 0), (2, 28, 0), (2, 30, 0))
_SIZES = (0, 8, 4096, 1 << 20, (64 << 20) - 4, 64 << 20, 1 << 30)
_PINS = {
    "NCCL_ALGO": ("Ring", "Tree", "NVLS", "^NVLS", "Ring,Tree", "PAT", "allreduce:tree"), "NCCL_P2P_LEVEL": ("LOC",
        "SYS"), "NCCL_PROTO": ("LL", "LL128", "Simple", "^Simple", "^LL"), "NCCL_NVLS_ENABLE": ("0",),
    "NCCL_MNNVL_ENABLE": ("0",), "NCCL_MAX_NCHANNELS": ("1", "0", "16"),
    "NCCL_MIN_NCHANNELS": ("4", "32"), "NCCL_P2P_DISABLE": ("1",), "NCCL_SHM_DISABLE": ("1",),
    "NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("Socket", "IB"), "NCCL_NET_GDR_LEVEL": ("LOC", "PIX"),
    "NCCL_NET_GDR_READ": ("0",), "NCCL_IB_HCA": ("mlx5_0", "mlx5", "mlx5_0,mlx5_1", "mlx5,mlx5_3", "^mlx5_1"),
    "NCCL_CUMEM_ENABLE": ("0",),
}  # fmt: skip


def _system(draw: Random) -> NodeSystem:
    return replace(draw.choice(_SYSTEMS), **some_of(draw, _FIELDS, 3), name="x", source="y")


def systems() -> Rows:
    """Yield what is expected of one call on a machine of which some parts are others, and what NCCL's search finds."""
    for number in range(1500):
        draw = Random(number)
        system, shape, op = _system(draw), Shape(draw.choice(_SHAPES)), draw.choice(_OPS)
        nbytes, release = draw.choice(_SIZES), draw.choice(_RELEASES)
        if number >= 420:
            found = predict(system, shape, op, nbytes, release)
            names = ("algorithm", "protocol", "channels", "time_us", "wire_GBps", "confidence")
            short = found and tuple(getattr(found, name) for name in names)
            yield f"{number} {op} {nbytes} {shape.gpus}", word(short)
            continue
        settings = pinned(having(**some_of(draw, _PINS)), release) if number % 3 == 1 else NOTHING
        found = graphs(system, shape, release)
        told = [word(found)]
        if not isinstance(found, Absent) and op in cost.FUNCTIONS and nbytes:
            cells = cost.cells(found, system, shape, op, release)
            told += [word(cell.algorithm, cell.protocol, cell.latency_us, cell.algbw_GBps) for cell in cells]
            told += [word(cost.best(found, system, shape, op, nbytes, release, settings.left(op)))]
        if shape.gpus:
            told += [word(predict(system, shape, op, nbytes, release, left=settings.left(op)))]
            more = {"version": release, "settings": settings, "itemsize": draw.choice((4, 4, 1))}
            told += [word("expected", expectation(op, nbytes, shape, system, **more))]
        yield f"{number} {op} {nbytes} {shape.gpus}", [[each] for each in told]


def published() -> Rows:
    """Yield what is expected around the sizes of each published number, with settings, bands and other machines."""
    for number, machine in enumerate(each for each in machines.table().values() if each.published or each.latencies):
        draw = Random(number)
        rates = [(row.op, row.gpus, row.nodes, row.min_bytes, row.max_bytes) for row in machine.published]
        times = [(row.op, row.gpus, row.nodes, 8, row.max_bytes) for row in machine.latencies]
        rows = draw.sample(rates, min(5, len(rates))) + times[:2]
        for op, count, nodes_, low, high in rows:
            sizes = {low - 1, low, (low + high) // 2, high, high + 1, 8, 1 << 34}
            for nbytes in sorted(draw.sample([size for size in sorted(sizes) if size < 1 << 40], 3)):
                shape = Shape((count,) * draw.choice((nodes_, nodes_, 1, 2)))
                settings = pinned(having(**some_of(draw, _PINS, 1)), (2, 30, 7)) if draw.random() < 0.4 else NOTHING
                given = [test_bands.ALL, ()][draw.random() < 0.9]
                system = draw.choice((machine.system(), machine.system(), None))
                found = expectation(op, nbytes, shape, system, machine=machine, given=given, settings=settings)
                yield f"{machine.name} {op} {nbytes} {shape.gpus} {settings}", word(found and replace(found, source=""))
    for number in range(60):
        draw, kinds = Random(number), list[Described]()
        for _ in range(draw.choice((1, 2, 3, 6))):
            pins = pinned(having(**some_of(draw, _PINS, 1)), (2, 30, 7)) if draw.random() < 0.2 else NOTHING
            system, nccl = draw.choice((*_SYSTEMS, None)), draw.choice((None, (2, 21, 5)))
            kinds += [Described(system, draw.choice((None, "DGX H100")), f"why {len(kinds)}", nccl, pins)]
        named = {f"n{place}": kinds[place % len(kinds)] for place in range(number % 8)}
        shape = Shape(draw.choice(_SHAPES[:-1]))
        found_ = (expecting(draw.sample(_OPS[1:9], 2), draw.sample(_SIZES, 2), 4, shape, named),
                  expecting_pairs(1 << 20, shape, named))  # fmt: skip
        bands = [(str(band), band.expectation.value, band.expectation.worst) for each in found_ for band in each.bands]
        own = [(str(band), band.like, band.expectation.value) for band in found_[0].node_bands]
        yield f"nodes {number}", [[word(bands)], [word(own)], *([word(each.note)] for each in found_)]


def _row(draw: Random) -> Measurement:
    ranks, rate = draw.choice((1, 2, 8, 8, 16, 16, 24)), draw.choice((0.01, 3.0, 20.0, 90.0, 200.0, 350.0, 990.0))
    more = {"op": _OPS, "wrong": (3, 0), "backend": ("gloo",), "dtype": ("int8", "f8e4m3"), "nodes": (1, 2, 3),
            "place": ("out",), "interval_us": (None, (15.0, 29.0))}  # fmt: skip
    row = replace(ROW, nbytes=draw.choice(_SIZES[1:]), busbw_GBps=rate, ranks=ranks, nodes=1 + (ranks > 8))
    return replace(row, time_us=TimeStats(20.0), **(some_of(draw, more) if draw.random() < 0.4 else {}))


def _place(draw: Random, number: int) -> elsewhere.Setup:
    names = ("dgx-h100", "dgx-a100", "a3-megagpu-8g", "gb200-nvl72", "p5.48xlarge")
    machine = draw.choice((*map(machines.find, names), None))
    system = machine.system() if machine else draw.choice((None, *_SYSTEMS, *_SYSTEMS))
    source = draw.choice(("parts", "parts; assumed: two sockets; assumed: none"))
    other = elsewhere.Alternative(draw.choice(_SYSTEMS), "give --domains")
    return elsewhere.Setup(
        system and replace(system, source=source), machine, draw.choice((None, 1, 2, 3)),
        pinned(having(**some_of(draw, _PINS, 1)), (2, 28, 3)) if number % 5 == 0 else NOTHING,
        failed=draw.choice(("", "", "", f"error {number}")), version=draw.choice((None, (2, 20, 5))),
        assumed=draw.choice(("", "8 NICs x 400 Gb/s ib")), not_judged="" if system else "not judged: no machine",
        alternatives=(other,) if number % 4 == 0 else (), name=draw.choice(("", "rack 7")),
    )  # fmt: skip


def runs() -> Rows:
    """Yield how rows are judged that were measured elsewhere: in text, as data, with exit code and headline."""
    for number in range(90):
        draw, made = Random(number), list[elsewhere.JudgedRun]()
        for table in range(1 + number % 3):
            place = _place(draw, number)
            rows = elsewhere.judge([_row(draw) for _ in range(4)], place)
            made.append(elsewhere.JudgedRun(rows, place, tuple(log_findings.steps(rows)), f"table {table}"))
            best, told = elsewhere.peak(rows), list[str]()
            if place.system:
                healthy = log_findings.Healthy(place.system, place.machine)
                shapes = [elsewhere.shape_of(row, place) for row in rows]
                told += map(str, log_findings.settings_cost(rows, shapes, draw.choice(("", "NCCL_X=1")), healthy))
            states = elsewhere.above(rows, place), elsewhere.refuted(rows), best and best.nbytes
            yield f"{number} {table}", word(states, told)
        data = elsewhere.as_json(made, ["a.log"], must=number % 2 == 0)
        text = elsewhere.as_text(made, ["a.log", "b.log"], width=9999) if number % 4 == 0 else ""
        yield f"{number}", [[word(line)] for line in (*text.splitlines(), {**data, "rows": ""})]
        for row in data["rows"]:
            row |= {"why": row["why"].partition("; model:")[0]}
            row |= {"expectation": [*(row["expectation"] or {}).values()][:2]}
        yield f"{number} rows", [[word(row)] for row in data["rows"]]


def usual() -> Rows:
    """Yield what each GPU's nodes may be, with what is weaker."""
    for number, product in enumerate(gpus.products()):
        draw = Random(number)
        more = draw.choice((1, 2, 19)), draw.choice(("", "", "roce", "efa")), draw.choice((0, 0, 4)), number % 3 == 0
        node = assumed.Node(product.name, draw.choice((1, 2, 3, 4, 6, 8)), *more)
        told = [word("fabric", assumed.fabric(node), assumed.board(node.gpu), assumed.foreign(node.gpu))]
        with contextlib.suppress(UsageError):
            found = [*assumed.candidates(node)]
            told += [word(e.described, e.words, e.system.nics, e.system.nic_gbps, e.machine is None) for e in found]
            less = assumed.weaker(found[number % len(found)])
            told += [word("weaker", each.described, each.system.network, each.system.gdr) for each in less]
        yield word(number, node), told
    for text in (*_NAMES, *assumed.UNNAMED, "Ascend", "gfx942", "AMD", "Metax", ""):
        yield f"foreign {text}", word(assumed.foreign(text), assumed.gpus_in(f"8 x {text}"))
    for text in ("on a3-highgpu-8g", "a3 highgpu 8g or a3-megagpu-8g", "8 x H200, 8x H100", "HGX H100", "DGX H100 NVL"):
        yield f"text {text}", word(assumed.gpus_in(text), assumed.machine_in(text) is None)


_UNREAD = Absent("denied")
_OF_NODES: dict[str, Sequence[Any]] = {
    "Gpu.lost": ("gone",), "Gpu.compute": (_UNREAD, (7, 5), (8, 6)), "Gpu.pcie_width": (0, 8, _UNREAD),
    "Gpu.mig": (True,), "Gpu.pcie_max_generation": (2, 4, _UNREAD),
    "Gpu.name": ("NVIDIA L40S", "NVIDIA X", "NVIDIA H200"), "Gpu.pci": ("",),
    "Gpu.fabric": (GpuFabric("completed", 0, "0000-00"), GpuFabric("completed", 3, "12-3"), GpuFabric("in-progress")),
    "NvLink.state": ("inactive", _UNREAD), "NvLink.remote": ("gpu", "switch", "ibm-npu", "unknown"),
    "NvLink.remote_pci": ("", _UNREAD), "NvLinks.gpus": ((), (_UNREAD,) * 8), "Port.state": ("DOWN", _UNREAD),
    "Port.rate": (Rate(100.0, 4), Rate(200.0, 4), _UNREAD),
    "Port.link_layer": ("Ethernet", "InfiniBand", "Unknown", _UNREAD),
    "RdmaDevice.pci": (None, _UNREAD, "0000:00:00.0"), "RdmaDevice.opens": (False, _UNREAD), "Fabric.cut": (True,),
    "Port.gids": ((), _UNREAD), "Interface.speed_mbps": (None, 1000, 25000, 100000),
    "Interface.driver": ("cxi_user", "gve"), "Interface.virtual": (True, False, None),
    "Interface.flags": (frozenset(), frozenset({"up", "running", "loopback"})),
    "Interface.name": ("hsn0", "docker0", "virbr0", "eth7"), "Interface.addresses": ((),),
    "Cpus.model": ("AMD EPYC 9654", "Intel(R) Xeon(R) 6972P", "POWER9", "x"), "NumaNode.cpus": ((),),
    "NumaNode.distances": ((10, 20), (10, 12, 32, 32), (10,), (20, 10)), "Device.numa_node": (-1, 0, 1, _UNREAD),
    "Device.place": (_UNREAD,), "PeerAccess.read": ({}, {(0, 1): "CNS"}, {(0, 1): _UNREAD}),
    "PeerAccess.write": ({}, {(0, 1): "TNS"}), "System.machine": ("aarch64",),
    "GpuDirect.peer_memory": ({}, _UNREAD, {"a": "1"}), "GpuDirect.kernel": (_UNREAD, (5, 4)),
    "GpuDirect.driver": (None, "open", "proprietary"),
    "NcclLibrary.version": ((2, 18, 3), (2, 21, 5), (2, 24, 3), None),
    "Plugin.flavour": ("ofi", "tcpx", "tcpxo", "gib", "sharp", "ucx", ""),
    "Plugin.names": (("IBext_v8",), ("AWS Libfabric",), ()), "Plugin.interfaces": ((4,), (5, 6), (11, 12), ()),
    "Plugin.reachable": (False, True), "Machine.cloud": ("aws", "gcp", "azure", "oracle", ""),
    "Machine.instance_type": ("p5.48xlarge", "a3-mega", ""), "Dmi.vendor": ("", "Supermicro"),
    "Dmi.product": ("", "DGXH100", "p4d.24xlarge"), "Plugins.shown": (False,), "Plugins.all": ((),),
}  # fmt: skip
_SET = _PINS | {
    "NCCL_NET_PLUGIN": ("none", "NONE,x", "ofi", "/opt/x.so", "a.so", "libnccl-net.so", ",ofi"),
    "FI_PROVIDER": ("efa", "tcp;ofi_rxm", "EFA", "^efa", "cxi"),
    "NCCL_NET": ("Socket", "IB", "AWS Libfabric", "gIB", "ibext", "UCX_v9", "x"),
    "NCCL_SOCKET_IFNAME": ("eth", "=hsn", "^lo", "x", "e"), "NCCL_COMM_ID": ("10.0.0.1:9", "node:9", "bad"),
    "CUDA_VISIBLE_DEVICES": ("0", "1,0", "", "MIG-1", "9", "GPU-x"), "NCCL_IB_TC": ("41", "106", "3"),
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": ("eth1,eth2",), "NCCL_FASTRAK_IFNAME": ("eth1",),
    "NCCL_COLLNET_ENABLE": ("0", "1"), "SHARP_COLL_ENABLE_SAT": ("0", "1"),
    "NCCL_TOPO_FILE": ("/opt/microsoft/x.xml", "/x"), "NCCL_IB_GID_INDEX": ("3", "-1"), "NCCL_PXN_DISABLE": ("1",),
    "NCCL_CROSS_NIC": ("1",), "LD_LIBRARY_PATH": ("/opt/amazon/efa/lib",),
    "NCCL_TUNER_PLUGIN": ("/opt/amazon/x.so", "none"), "NCCL_BUFFSIZE": ("8388608", "1"),
    "IB_RX_QUEUE_LEN": ("8192", "1"), "FI_EFA_FORK_SAFE": ("1",), "NCCL_IB_SPLIT_DATA_ON_QPS": ("0", "1"),
}  # fmt: skip
_NAMED = (
    *(NamedMachine(), NamedMachine("dgx-h100"), NamedMachine("p5.48xlarge", nodes=1), NamedMachine("", "h100", 8)),
    *(NamedMachine("", "A100", 8, 2), NamedMachine("", "L40S", 4), NamedMachine("", "zzz", 4)),
    *(NamedMachine("", "B200", 1), NamedMachine("gb200-nvl72", "GB200", 4, partial=True)),
)


def _renamed(fabric: Any, stem: str) -> Any:
    """Return RDMA devices, if they are known, by other names."""
    found = []
    for number, device in enumerate(fabric.devices if isinstance(fabric, Fabric) else ()):
        ports = tuple(replace(port, device=f"{stem}{number}") for port in device.ports)
        found.append(replace(device, name=f"{stem}{number}", ports=ports))
    return replace(fabric, devices=tuple(found)) if found else fabric


def _chosen(made: Choices, usual: Choices) -> Iterator[str]:
    """Yield the parts of a choice that are others, with few of their rows."""
    for name in made.__struct_fields__:
        part = getattr(made, name)
        if part != getattr(usual, name):
            rows = getattr(part, "chosen", None) or ()
            few = [replace(each, pairs=each.pairs[:2]) if name == "p2p" else each for each in (*rows[:2], *rows[-1:])]
            yield word(name, replace(part, chosen=(len(rows), *few)) if rows else part)


def _vendors(facts: Mapping[type, Any], made: Choices, number: int) -> str:
    given = facts[Settings]
    used = networks.in_use(given, facts[Machine], made)
    found = networks.compared(given, used or (*networks.TITLES,)[number % 8 : number % 8 + 2])
    other = [(each.name, rule.vendor, rule.leaves(each.value)) for each, rule in found.other]
    missing = [each.name for each in found.missing]
    return word("vendors", used, found.right, other, missing, networks.named_network(given))


def _settings(draw: Random, most: int) -> dict[type, Any]:
    given = having(**some_of(draw, _SET, most))
    values = {name: entry.value for name, entry in given.effective.items()}
    return {Settings: given, Environment: Environment(values)}


def nodes() -> Rows:
    """Yield what is concluded of each captured machine of which some facts are others, or absent."""
    captures = [path.stem for path in test_choices.CAPTURES]
    for number in range(170):
        draw, name = Random(number), captures[number % len(captures)]
        before = test_choices.snapshot(name)
        pool = {key: _OF_NODES[key] for key in draw.sample(sorted(_OF_NODES), 4)}
        odds = draw.choice((0.1, 0.5, 1.0))
        facts = {kind: altered(draw, fact, pool, odds) for kind, fact in before.facts.items()}
        gone = draw.sample([Gpus, NvLinks, Pci, Fabric, Interfaces, Cpus, PeerAccess, GpuDirect], number % 5 == 0)
        facts |= dict.fromkeys(gone, _UNREAD) | {Launch: Launch(nnodes=draw.choice((None, None, 1, 4)))}
        facts |= {Fabric: _renamed(facts[Fabric], draw.choice(("hfi1_", "cxi", "rdmap")))} if number % 6 == 0 else {}
        facts |= {NamedMachine: draw.choice(_NAMED)} if number % 4 == 1 else {}
        facts |= _settings(draw, 2) if number % 2 else {}
        here = Snapshot(name, facts)
        told = [*_chosen(choose(here), choose(before)), _vendors(facts, choose(here), number)]
        rails = choose_rails(here)
        told += [word("rails", rails.why, crossing(here), [(e.device, e.gid_index) for e in rails.chosen or ()][:3])]
        context = expectation_context(facts)
        told += [word("context", context.system, context.machine and context.machine.name, context.why, context.nccl)]
        told += [word("nics", visible.nics_of(Facts(*(facts.get(kind, _UNREAD) for kind in WANTED))))]
        told += [word("copies", {kind: each.value for kind, each in copies.by_kind(facts).items()})]
        told += [word("bound", bound.predicted(facts, draw.choice((1, 4))))]
        yield f"{number} {name}", [[each] for each in told]


def texts() -> Rows:
    """Yield what is expected of machines that pasted texts name, and of which they show some GPUs, links and ports."""
    of = ("Gpu.fabric", "NvLinks.gpus", "Port.state", "Port.rate", "Port.link_layer", "Fabric.cut", "Gpu.name")
    for number in range(160):
        draw, name = Random(number), ("hgx-h100", "gb200-tray", "l40s-8", "hgx-h200", "aws-p4d")[number % 5]
        pool = {key: _OF_NODES[key] for key in draw.sample(of, 2)} | {
            "NvLinks.gpus": ((_UNREAD,) * 8, (_UNREAD,) * 4, ())
        }
        odds = draw.choice((0.3, 1.0))
        facts = {kind: altered(draw, fact, pool, odds) for kind, fact in test_choices.snapshot(name).facts.items()}
        facts |= {NamedMachine: draw.choice(_NAMED)} | _settings(draw, 1)
        facts |= dict.fromkeys(
            draw.sample((Gpus, Fabric, Interfaces, Pci, Machine, NvLinks), draw.randint(0, 3)), _UNREAD
        )
        context, known = expectation_context(facts), describe(facts)
        bounds = bound.predicted(facts, draw.choice((1, 4)))
        told = [[word(each)] for each in ((context.system, context.why), known.machine, known.why, bounds)]
        yield f"{number} {name}", told


def plugins() -> Rows:
    """Yield the network of nodes with drawn plugins, settings and interfaces, and what vendors say of the settings."""
    paths = ("/usr/lib/libnccl-net.so", "/opt/x.so", "/lib/libnccl-net-ofi.so", "/usr/lib/a.so", "/x/libnccl-net-ib.so")
    own = {key: _OF_NODES[key] for key in _OF_NODES if key.partition(".")[0] in ("Interface", "Machine", "NcclLibrary")}
    own |= {key: _OF_NODES[key] for key in ("Port.state", "Port.link_layer", "Plugins.shown", "Fabric.cut")}
    for number in range(260):
        draw, name = Random(number), ("aws-p4d", "gcp-a3-mega", "hgx-h100", "rtx4090-2")[number % 4]
        pool = {key: own[key] for key in draw.sample(sorted(own), 2)}
        odds = draw.choice((0.3, 1.0))
        facts = {kind: altered(draw, fact, pool, odds) for kind, fact in test_choices.snapshot(name).facts.items()}
        made = [
            Plugin(path, "net", *(draw.choice(_OF_NODES[f"Plugin.{each}"]) for each in Plugin.__struct_fields__[2:6]))
            for path in draw.sample(paths, draw.randint(0, 3))
        ]
        needs = []
        for place in range(draw.randint(0, 2)):
            path, lacks = draw.choice(("", "/l.so")), draw.choice(((), ("a", "b")))
            needs.append(SharedLibrary(f"l{place}.so", draw.choice(paths), path, "", lacks))
        facts |= {Plugins: replace(facts[Plugins], all=tuple(made)), Linking: Linking(tuple(needs), draw.choice(paths))}
        facts |= _settings(draw, 3)
        found = choose(Snapshot(name, facts))
        told = [word(found.network), word("fast", found.fast_nics.why, len(found.fast_nics.chosen or ()))]
        yield f"{number} {name}", [[each] for each in (*told, _vendors(facts, found, number))]


_OF_RUNS: dict[str, Sequence[Any]] = {
    "precision": (0.01, 0.3, 0.9), "wrong": (3, 0), "status": ("fail", "inconclusive", "pass"), "place": ("out",),
    "interval_us": (None, (19.0, 21.0), (15.0, 25.0)), "ranks": (16,), "nbytes": (8 << 20, 64 << 20), "op": _OPS[2:4],
}  # fmt: skip


def sites() -> Rows:
    """Yield what is kept of drawn runs of a site, what is expected by it, and how other runs differ from it."""
    for number in range(120):
        draw, sets = Random(number), list[list[Run]]()
        level, noise = draw.choice((100.0, 40.0, 0.00001)), draw.choice((0.001, 0.03, 0.2))
        for shift in (1.0, draw.choice((0.7, 0.95, 1.0, 1.3))):
            made = []
            for at in range(draw.randint(1, 6)):
                own = [test_baselines.row(level * shift * draw.gauss(1, noise)) for _ in range(draw.randint(1, 3))]
                rows = [replace(row, **(some_of(draw, _OF_RUNS) if draw.random() < 0.4 else {})) for row in own]
                failed, name = draw.choice(("", "", "", "it hung")), draw.choice(("a", "b", f"r{at}"))
                made.append(test_baselines.run(*rows, name=f"{name}.json", failed=failed))
            sets.append([*made, *made[: draw.randrange(2)]])
        runs_, copies_ = baselines.distinct(sets[0])
        kept = baselines.keep(runs_, draw.choice((None, lambda row: 38.0)), accept_low=number % 2 == 0)
        made_site = baselines.Site("ncclprobe 0", "2026-01-02", None, [], list(kept.rows))
        found = [band.expectation for band in baselines.bands(made_site, "a.json", draw.choice(("", "; but x")))]
        old = draw.choice(
            (baselines.site_points(made_site), baselines.row_points(row for run in runs_ for row in run.rows))
        )
        new = baselines.row_points(row for run in sets[1] for row in run.rows)
        differs = baselines.differences(old, new, draw.choice((0.0, 0.05, 0.2)))
        told = [kept.refused, kept.flagged, copies_, *found, *differs]
        mine = [word(e.op, e.nbytes, e.place, e.ranks, e.busbw_GBps, e.mad_GBps, e.noise, e.runs) for e in kept.rows]
        yield f"{number}", [[word(each)] for each in (*told, *mine)]


def refused() -> Rows:
    """Yield what wrong files are refused with, without a parser's own words: machine types, bands, and topologies."""
    wrong: list[tuple[str, Callable[[], Any]]] = []
    for number, text in enumerate(test_machines.WRONG):
        wrong.append((f"machine {number}", partial(machines.from_toml, text, "a.toml")))
    for number, text in enumerate(test_bands.WRONG):
        wrong.append((f"band {number}", partial(bands.from_toml, text, "a.toml")))
    for number, (text, gpu) in enumerate(test_topology_file.REFUSED):
        wrong.append((f"topology {number} {gpu}", partial(test_topology_file.read, text, gpu)))
    for number, text in enumerate(test_machines.RIGHT):
        yield f"right {number}", word(machines.from_toml(text, "a.toml").published)
    for name, read in wrong:
        with pytest.raises(UsageError) as found:
            read()
        yield name, word(re.sub(r"(not TOML|no XML).*", r"\1", str(found.value)))


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "drawn-topologies": topologies, "drawn-boxes": boxes, "drawn-types": types, "drawn-systems": systems,
    "drawn-runs": runs, "drawn-usual": usual, "drawn-nodes": nodes, "drawn-plugins": plugins, "drawn-texts": texts,
    "drawn-published": published, "drawn-sites": sites, "refused": refused,
}  # fmt: skip
