"""NCCL's rules on devices whose answers are kept: GPUDirect, levels, peers, multicast, GIDs, ports and interfaces."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, product
from typing import Any

from ncclprobe.checks.ib import fixtures
from ncclprobe.checks.run.traffic import nic_traffic
from ncclprobe.commands.topo import judged
from ncclprobe.facts.driver import PATHS, GpuDirect
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import GpuFabric, PeerAccess
from ncclprobe.facts.run.samples import NicTraffic
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl import gpudirect, log
from ncclprobe.nccl.algorithms import ALGORITHMS, PROTOCOLS, forces_ll128, parse_pin, stranded
from ncclprobe.nccl.gpudirect import Level, decide, gdr_level, has_dma_buf, kernel_support, nvls, p2p_level
from ncclprobe.nccl.hcas import caught_besides, parse_selector, pick, select, wish
from ncclprobe.nccl.interfaces import find_interfaces, same_subnet
from ncclprobe.nccl.nic_traffic import operation_traffic
from ncclprobe.nccl.paths import PathType, Topology, machine_topology
from ncclprobe.nccl.selection import rail_ports
from tests import test_topo
from tests.nccl import drawn, test_connections, test_gpudirect, test_hcas, test_interfaces, test_log

Rows = Iterator[tuple[str, object]]
MINORS = (3, 4, 11, 12, 13, 17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28, 29, 30)
RELEASES = (*((2, minor, 4) for minor in MINORS), None)
UNREAD = Absent("not read")


def brief(*values: object, why: str = "") -> str:
    """Values in one line, with the first words of a reason: which rule decided."""
    return "/".join([*map(str, values), " ".join(why.split()[:14])])


def runs(told: Iterable[str]) -> list[str]:
    """Return words with the number of times that each comes in a row."""
    return [f"{len(list(same))}*{word}" for word, same in groupby(told)]


def _direct_inputs() -> Rows:
    """Ways of the kernel by release; levels by settings; and what a GPU and a NIC do at each distance."""
    modules = (*((path,) for path in PATHS), PATHS, ())
    kernels: Any = (((5, 15), "open"), ((5, 15), "proprietary"), ((5, 15), None), ((5, 15), UNREAD), ((5, 4), "open"))
    drivers = [replace(GpuDirect({}, kernel), driver=each) for kernel, each in (*kernels, (UNREAD, "open"))]
    loaded: list[Any] = [*(dict.fromkeys(each, "1.0") for each in modules), UNREAD]
    for held, driver in product(loaded, drivers):
        direct = replace(driver, peer_memory=held)
        name = f"{len(held) if isinstance(held, dict) else held} {driver.driver} {driver.kernel}"
        for off in ("", "0"):
            settings = test_gpudirect.having(**({"DMABUF_ENABLE": off} if off else {}))
            told = []
            for release, cuda in product(RELEASES, ((11, 6), (11, 7))):
                found = kernel_support(direct, settings, release, cuda)
                told.append(brief(found.works, has_dma_buf(direct, settings, release, cuda), why=found.why))
            yield f"{name} {off} {loaded.index(held)}", runs(told)
    for text in ("", "LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "sys", "0", "2", "3", "4", "5", "-1"):
        for c2c in ("", "0", "1"):
            given = {"NET_GDR_LEVEL": text} if text else {}
            settings = test_gpudirect.having(**given, **({"NET_GDR_C2C": c2c} if c2c else {}))
            levels = [f"{gdr_level(settings, each).path.name}" for each in RELEASES]
            yield f"GDR level {text} {c2c}", runs(levels)
    for links, (name, values) in product((test_gpudirect.SWITCHED, test_gpudirect.UNLINKED), _GDR.items()):
        topology, gpus = test_gpudirect.four(far=(3,), links=links)
        gpus["GPU1"] = replace(gpus["GPU1"], compute=(7, 5))
        gpus["GPU2"] = replace(gpus["GPU2"], compute=UNREAD)
        for release in RELEASES:
            made = decide(topology, gpus, topology.nics, test_gpudirect.having(**values), release)
            told = [brief(e.receives, e.sends, e.path.name if e.path else None, e.relay) for e in made]
            yield f"{name}, {type(links).__name__}, {release}", runs(told)
    for release, (name, values) in product(RELEASES, _GDR.items()):
        chip = replace(fixtures.gpus(1).all[0], name="NVIDIA GH200 480GB")
        gh200 = replace(fixtures.gpus(1), all=(chip,))
        grace = machine_topology(fixtures.pci(1, far=(0,)), gh200, UNREAD, fixtures.fabric(count=1))
        (one,) = decide(grace, {"GPU0": chip}, ["mlx5_0"], test_gpudirect.having(**values), release)
        yield f"Grace, {name}, {release}", brief(one.receives, one.sends, one.path, why=one.why.partition(", ")[2])


_GDR: dict[str, dict[str, str]] = {
    **{"nothing set": {}, "no PXN": {"PXN_DISABLE": "1"}, "no PXN over C2C": {"PXN_C2C": "0"}},
    **{f"C2C {each}": {"NET_GDR_C2C": each} for each in "01"},
    **{f"read {each}": {"NET_GDR_READ": each} for each in "01"},
    **{f"level {each}": {"NET_GDR_LEVEL": each} for each in ("LOC", "PXB", "PHB", "SYS")},
}


def _peer_inputs() -> Rows:
    """Levels between GPUs by maker, release and settings; transports at each distance; multicast."""
    settings: dict[str, dict[str, str]] = {
        **{"nothing set": {}, "disabled": {"P2P_DISABLE": "1"}, "a word": {"P2P_DISABLE": "true"}},
        **{text: {"P2P_LEVEL": text} for text in ("LOC", "NVL", "PHB", "SYS", "nvl", "3")},
    }
    makers: Any = ("amd", "intel", "zhaoxin", "arm", "power", "")
    for (name, values), who in product(settings.items(), makers):
        calls = product((1, 2, 3, 8), RELEASES)
        levels = [p2p_level(test_gpudirect.having(**values), each, who, gpus) for gpus, each in calls]
        yield f"P2P level, {name}, {who}", runs(brief(e.path.name, e.origin) for e in levels)
    words: Any = ("OK", "TNS", "CNS", "NS", UNREAD)
    for path, ignore, shared in product((*PathType, None), ("", "1", "2"), ("", "1")):
        given = {"IGNORE_DISABLED_P2P": ignore} if ignore else {}
        both = test_gpudirect.having(**given, **({"SHM_DISABLE": shared} if shared else {}))
        two = Topology(gpus={"GPU0": "a", "GPU1": "b"}, paths={("GPU0", "GPU1"): path})
        for level, release in product((PathType.LOC, PathType.PXB, PathType.SYS), ((2, 11, 4), None)):
            found = []
            for read, write in product(words, words):
                access = PeerAccess({(0, 1): read}, {(0, 1): write})
                found += gpudirect.peer_transports(two, access, both, Level(level), release)
            name = f"{path}, {ignore}, {shared}, {level}, {release}"
            yield name, runs(brief(each.transport, each.broken) for each in found)
    kinds: list[dict[str, Any]] = [
        *({}, {"count": 1}, {"count": 2}, {"count": 3}, {"cuda": (12, 0)}, {"cuda": (12, 1)}, {"mig": True}),
        *({"compute": each} for each in ((8, 9), (9, 0), (10, 0), UNREAD)),
        *({"fabric": GpuFabric(state)} for state in ("not-started", "in-progress", "not-supported")),
        *({"fabric": GpuFabric("completed", status=1)}, {"fabric": UNREAD}, {"lost": "gone"}),
    ]
    rows: tuple[Any, ...] = (test_gpudirect.LINKED, test_gpudirect.BRIDGED, (), UNREAD)
    for number, changes in enumerate(kinds):
        gpus = test_gpudirect.hgx(**changes)
        told = []
        for row, release, value in product(rows, RELEASES, ("", "0", "2")):
            given = {"NVLS_ENABLE": value} if value else {}
            found = nvls(gpus, NvLinks((row,) * len(gpus.all)), test_gpudirect.having(**given), release)
            told.append(brief(found.available, why=found.why))
        yield f"NVLS {number} {' '.join(changes)}", runs(told)


def _port_inputs() -> Rows:
    """The GID of each table by settings and release; the ports that each list takes; parameters of connections."""
    tables = (test_connections.USUAL, test_connections.WIDER, test_connections.WIDER[2:], test_connections.USUAL[:2])
    wishes = [{}, *({f"NCCL_IB_{name}": text} for name, text in (
        ("ADDR_FAMILY", "AF_INET"), ("ADDR_FAMILY", "AF_INET6"), ("ROCE_VERSION_NUM", "1"), ("ROCE_VERSION_NUM", "2"),
        ("ADDR_RANGE", "10.0.0.0/8"), ("ADDR_RANGE", "2001:db8::/32"), ("ADDR_RANGE", "192.168.0.0/16"),
        ("GID_INDEX", "0"), ("GID_INDEX", "9"), ("GID_INDEX", "-1"), ("GID_INDEX", "x"),
    ))]  # fmt: skip
    for asked, (number, table), layer in product(wishes, enumerate(tables), ("Ethernet", "InfiniBand")):
        port, settings = test_connections.roce(*table, layer=layer), test_connections.settings(**asked)
        found = [pick(port, wish(settings, each), each) for each in RELEASES]
        yield f"GID {asked}, {number}, {layer}", runs(brief(each.index, each.by) if each else "-" for each in found)
    every = (test_hcas.ELEVEN, test_hcas.MIXED, test_hcas.fabric(*(test_hcas.port(f"n{i:02}") for i in range(40))))
    for text, release in product(("", "mlx5_1", "=mlx5_1", "^mlx5_1", "a:1,d:2", "n0", "^=n00,n01"), RELEASES):
        picked = [select(each, text, release) for each in every]
        parts = [(e.taken, e.down, e.unknown, e.closed, e.beyond) for e in picked]
        told = [[brief(len(own), *(p.name for p in own[:3])) for own in part] for part in parts]
        yield f"ports {text}, {release}", told
        selector = parse_selector(text, 32)
        if selector.entries:
            yield f"caught by {text}, {release}", caught_besides(selector.entries[0], test_hcas.ELEVEN, selector)
    numbers = {"IB_TIMEOUT": ("0", "31", "32"), "IB_RETRY_CNT": ("0", "8"), "IB_QPS_PER_CONNECTION": ("0", "1", "129"),
               "IB_SL": ("-1", "0", "16"), "IB_TC": ("-1", "256"), "IB_PKEY": ("1",),
               "IB_ADAPTIVE_ROUTING": ("0", "1", "x"), "IB_PCI_RELAXED_ORDERING": ("0", "1", "2")}  # fmt: skip
    for name, values in {"DEBUG": ("INFO",), **numbers}.items():
        for value in values:
            given = test_connections.settings(**{f"NCCL_{name}": value})
            rails = [rail_ports((test_connections.ROCE, test_connections.IB), given, each) for each in RELEASES]
            yield f"{name}={value}", list(dict.fromkeys(each for rail in rails for each in rail))


def _interface_inputs() -> Rows:
    """The interfaces that are taken by names, families, addresses and releases, and the step that took them."""
    zoo = test_interfaces.ZOO
    names = ("", "eth", "=eth0", "^eth0,lo", "ib,docker", "lo", "x")
    for ifname, family, address in product(names, (None, "inet", "inet6"), (None, "10.0.1.9", "fe80::9%eth1")):
        told = []
        for release, faces, limit in product(RELEASES, (zoo, zoo[:3], zoo[3:5], zoo[6:]), (1, 16)):
            choice = find_interfaces(
                faces, ifname=ifname, family=family, comm_id_address=address, limit=limit, version=release
            )  # type: ignore[type-var, misc]
            told.append(brief(choice.step, *(each.name for each in choice.interfaces)))
        yield f"{ifname}, {family}, {address}", runs(told)

    for face, other in product(test_interfaces.SUBNETS, test_interfaces.NEIGHBOURS):
        alike = [same_subnet(face, other, each) for each in (*RELEASES, (2, 28, 9), (2, 29, 2), (2, 30, 3))]
        yield f"{face.address} {face.netmask} {face.running} and {other}", runs(map(str, alike))


def _list_inputs() -> Rows:
    """What lists of devices say and take; what pins of algorithms and protocols leave to each collective."""
    lists = ("", ",,", "eth", "^eth", "=eth", "^=eth", "=^eth", "^^eth", "eth1", "=eth1", "=eth0, eth1", "eth0,^lo",
             "^docker,lo", "^=lo", "eth0:1", "mlx5_1", "=mlx5_1", "mlx5_0:1", "mlx5_0", "mlx5_0:-1", "mlx5_0::0:1",
             "^mlx5_0:1", "mlx5_0:1:2:3", "mlx5_0:x", "mlx5_0:1:2:3:4")  # fmt: skip
    names = ("eth0", "eth1", "eth10", "lo", "lo0", "docker0", "mlx5_0", "mlx5_1", "mlx5_12")
    for text in lists:
        selector = parse_selector(text, 32)
        taken = [f"{name}:{port}" for name, port in product(names, (-1, 1, 2)) if selector.takes(name, port)]
        yield f"list {text}", (selector, taken)
    pins = ("", "ring", "tree", "nvls", "^ring", "pat", "rng,tree", "allreduce:tree", "allreduce:pat", "allgather:nvls",
            "allreduce:nvls,ring", "ring;allreduce:tree", "broadcast:ring;;allreduce:^ring", "^", ":ring", "Ring,,TREE",
            "ring;tree", "allreduc:ring", "ring, tree", ";ring", "::", "allreduce:ring;tree", "tree",
            "ring;ring")  # fmt: skip
    protocols = ("", "LL", "LL128", "^LL", "LL256", "^LL,LL128,Simple", "allgather:LL", "allreduce:Simple")
    for text, release in product(pins, ((2, 23, 4), (2, 24, 3), (2, 30, 7))):
        pin = parse_pin(text, ALGORITHMS, release)
        kept = ["/".join([name, *sorted(left)]) for name, left in sorted(pin.kept.items())]
        left = [
            stranded(pin, parse_pin(each, PROTOCOLS, release), frozenset(lacks), version=release)
            for each, lacks in product(protocols, ((), ("NVLS",)))
        ]
        told = runs("/".join(each) or "none" for each in left)
        yield f"algorithms {text}, {release}", (bool(pin.error), pin.ignored, kept, told)
    yield "LL128", [f"{text}:{forces_ll128(parse_pin(text, PROTOCOLS))}" for text in (*protocols, "^LL128", "Simple")]


def _matrix_inputs() -> Rows:
    """What is found in matrices of which a pair, a row or a NIC is another; and what logs and counters say of NICs."""
    for (gpus, word), other in product(((8, "NV18"), (4, "NV4"), (2, "NV12"), (4, "SYS"), (3, "NODE")), _WORDS):
        whole = test_topo.server(gpus, word)
        changes = ({}, {(0, 1): other}, test_topo.row_of(gpus - 1, gpus, other), {(0, gpus): other},
                   test_topo.row_of(gpus, 2 * gpus, other), {(gpus, gpus + 1): other})  # fmt: skip
        for number, change in enumerate(changes):
            verdicts = judged((test_topo.matrix(test_topo.changed(whole, change), gpus),), "FILE")
            found = [f"{v.id}/{v.status.value}" for v in verdicts]
            found += [f"{f.severity.value}/{f.subject}/{f.message}" for v in verdicts for f in v.findings]
            yield f"{gpus} {word}, {number} {other}", found
    for name, texts in test_log.LINES.items():
        yield f"lines of {name}", [log.read(test_log.HEAD + text) for text in texts]
    for number, lines in enumerate(test_log.DEVICES):
        yield f"devices {number}", (test_log.said(*lines).devices(), test_log.said(*lines).gdr)
    mib = 1 << 20
    for nbytes, first, second in product((50_000, 64 * mib), (0, 4000, 6 * mib, 7 * mib, 70 * mib), (0, mib, 66 * mib)):
        seen = test_log.nodes(eth0=test_log.both(first), eth1=test_log.both(second))
        ways = [operation_traffic(op, nbytes, seen) for op in ("all_reduce", "all_gather")]
        try:
            named = [each.subject for each in nic_traffic.run(NicTraffic(tuple(ways)))]
        except Unlearned as gap:
            named = [str(gap)]
        yield f"{nbytes}: {first}, {second}", (ways, named)


_WORDS = ("NV1", "NV17", "PIX", "PXB", "PHB", "NODE", "SYS")


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "gpudirect": _direct_inputs, "peers": _peer_inputs, "ports": _port_inputs, "interfaces": _interface_inputs,
    "lists": _list_inputs, "matrices": _matrix_inputs, **drawn.FUNCTIONS,
}  # fmt: skip
"""The functions of each file with their input."""
