"""Transports, channels, algorithms and protocols: ours beside what ranks of NCCL 2.30.7 printed on made-up machines."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ncclprobe.checks.env.fixtures import having
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.topology_text import Xml, system_in
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.constants import Algorithm, Protocol
from ncclprobe.expect.tuner.search import Graph, Graphs, graphs
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.gpudirect import Direct, Maker, decide, p2p_level, peer_transports
from ncclprobe.nccl.paths import Topology as TopologyPaths
from ncclprobe.nccl.paths import machine_topology
from ncclprobe.nccl.values import Settings
from tests.expect.nccl_machines import TOPOLOGIES, Topology, settings_of

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "on_cpu" / "choices.jsonl.gz"
VERSION: NcclVersion = (2, 30, 7)
MACHINES = {each.name: each for each in TOPOLOGIES}
_MAKERS: dict[str, Maker] = {"spr": "intel", "skl": "intel", "bdw": "intel", "amd": "amd", "arm": "arm"}
_NAMES = {name: op for op, name in cost.FUNCTIONS.items()}
_PROTOCOLS: dict[str, Protocol] = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
_ALGORITHMS: dict[str, Algorithm] = {"RING": "Ring", "TREE": "Tree", "NVLS": "NVLS", "NVLS_TREE": "NVLSTree"}
_TREE = cost.Forced(frozenset[Algorithm](("Tree",)), frozenset[Protocol](("LL", "Simple")))
_NEAR = {"PXB": "PIX"}
_NOT_TREE = cost.Forced(None, frozenset[Protocol](("LL", "Simple")))


class Line(Struct, frozen=True):
    """One thing that NCCL prints, and what ours says of it; None: that it does not know."""

    machine: str
    settings: str
    kind: str
    about: str
    theirs: object
    ours: object


@cache
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]


def lines() -> Iterator[Line]:
    for row in recorded():
        machine, settings = MACHINES[row["machine"]], row["settings"]
        place = (machine.name, " ".join(f"{name}={value}" for name, value in settings.items()))
        for about, theirs, ours in _transports(machine, row):
            yield Line(*place, "transport", about, theirs, ours)
        if not any("P2P" in name for name in settings):  # what P2P costs is not in the model of a machine
            for kind, about, theirs, ours in _tuned(machine, row):
                yield Line(*place, kind, about, theirs, ours)


def _transports(machine: Topology, row: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Within a node which one; between nodes whether the NIC that NCCL takes reaches the GPU's memory."""
    facts = Xml(machine.xml(), machine.name).facts()
    paths = machine_topology(facts[Pci], facts[Gpus], facts[NvLinks], facts[Fabric])
    word = "OK" if machine.p2p else "CNS"
    every = {(one, other): word for one in range(machine.gpus) for other in range(machine.gpus) if one != other}
    settings = having(**row["settings"])
    level = p2p_level(settings, VERSION, _MAKERS[machine.cpu], machine.gpus)
    for each in peer_transports(paths, PeerAccess(every, every), settings, level, VERSION):  # type: ignore[arg-type]
        own = tuple(int(name.removeprefix("GPU")) for name in (each.one, each.other))
        for first in range(0, machine.gpus * machine.nodes, machine.gpus):
            pair = "-".join(str(first + number) for number in own)
            if pair in row["pairs"]:
                yield pair, row["pairs"][pair], each.transport
    direct = {each.gpu: each for each in _nearest(paths, facts[Gpus], settings)}
    for pair, theirs in row["pairs"].items():
        if theirs.startswith("NET"):
            sender, receiver, end = pair.split("-")
            one = direct[f"GPU{int(sender if end == 'send' else receiver) % machine.gpus}"]
            reaches = machine.gdr and (one.sends if end == "send" else one.receives)
            yield pair, theirs, "NET/GDRDMA" if reaches else "NET"


def _nearest(paths: TopologyPaths, gpus: Gpus, settings: Settings) -> Iterator[Direct]:
    """Of each GPU what is decided for the NIC that is nearest."""
    by_name = {f"GPU{gpu.index}": gpu for gpu in gpus.all}
    for name, gpu in by_name.items():
        made = decide(paths, {name: gpu}, paths.nics, settings, VERSION)
        yield from sorted(made, key=lambda each: each.path or 99)[:1]


def _tuned(machine: Topology, row: dict[str, Any]) -> Iterator[tuple[str, str, object, object]]:
    system, shape = system_of(machine, row["settings"]), Shape((machine.gpus,) * machine.nodes)
    found = graphs(system, shape, VERSION)
    known = None if isinstance(found, Absent) else found
    ring, tree = row["graphs"]["4"], next(row["graphs"][each] for each in "123" if each in row["graphs"])
    nvls = [("nvls", row["graphs"]["5"])] if "5" in row["graphs"] else []
    for name, theirs in (("ring", ring), ("tree", tree), *nvls):
        graph = getattr(known, name) if known else None
        yield "channels", name, theirs[0], graph and graph.channels
        yield "speed and path", name, _seen(theirs), graph and _own(graph)
    for function, nbytes, algorithm, protocol, _ in row["choices"]:
        whole = nbytes * (shape.ranks if function in ("AllGather", "ReduceScatter") else 1)
        chosen = known and _chosen(known, system, shape, _NAMES[function], whole, "NCCL_ALGO" in row["settings"])
        about, taken = f"{function} {nbytes}", (_ALGORITHMS[algorithm], _PROTOCOLS[protocol])
        yield "algorithm and protocol", about, taken, chosen and chosen[:2]


def system_of(machine: Topology, settings: dict[str, str]) -> NodeSystem:
    """What we read in the file; NVLS is off where the settings do not say otherwise."""
    found = system_in(machine.xml(), machine.name, machine.product, None, network=machine.nodes > 1)
    return replace(found, nvls=found.nvls and "NCCL_NVLS_ENABLE" in settings)


def _chosen(
    found: Graphs, system: NodeSystem, shape: Shape, op: str, nbytes: int, forced: bool
) -> tuple[str, str, int] | None:
    rule = None if not forced else _TREE if op == "all_reduce" else _NOT_TREE
    best = cost.best(found, system, shape, op, nbytes, VERSION, rule)
    return (best.algorithm, best.protocol, best.channels) if best else None


def _seen(graph: list[Any]) -> tuple[float | str | bool, ...]:
    """Speeds and paths within a node and between nodes, and whether all channels take one path."""
    _, intra, inter, inside, outside, same = graph
    return round(intra, 1), round(inter, 1), _NEAR.get(inside, inside), _NEAR.get(outside, outside), bool(same)


def _own(graph: Graph) -> tuple[float | str | bool, ...]:
    return _seen([0, graph.bw_intra, graph.bw_inter, graph.type_intra, graph.type_inter, graph.same_channels])


OTHERWISE = {
    # The other GPU reaches the only NIC through the first, which ours does not hold, and LL128 does not go that way.
    ("a100-2-2-nodes", "speed and path"): 2,
    ("a100-2-2-nodes", "algorithm and protocol"): 3,
    # Two GPUs on two sockets, each with a NIC: NCCL's rings take one path, ours two, and a broadcast is slower.
    ("l40s-2-3-nodes", "speed and path"): 2,
    ("l40s-2-3-nodes", "algorithm and protocol"): 1,
}
"""How many lines differ, by machine and kind."""
NOT_KNOWN = {"pro6000-2", "pro6000-4", "pro6000-8"}
"""No speed of NCCL's list fits between AMD's sockets: it takes one channel, of 0.1 GB/s, and ours is not known."""


def test_each_machine_was_played_to_its_end_with_each_of_its_settings() -> None:
    played = [(row["machine"], row["settings"]) for row in recorded()]
    wanted = [(each.name, settings) for each in TOPOLOGIES for settings in settings_of(each)]
    assert sorted(played, key=str) == sorted(wanted, key=str)
    assert all({*row["exit_codes"]} == {0} for row in recorded())
    assert (len(played), len(MACHINES)) == (168, 60)


def where(line: Line) -> str:
    nodes = "nodes" if MACHINES[line.machine].nodes > 1 else "node"
    return f"{nodes}, NVLS" if "NVLS" in line.settings else nodes


def test_a_line_of_nccls_is_ours_too_but_for_what_is_named() -> None:
    found = list(lines())
    differing = Counter((each.machine, each.kind) for each in found if each.ours not in (None, each.theirs))
    assert differing == OTHERWISE
    assert {each.machine for each in found if each.ours is None} == NOT_KNOWN
    counts = Counter((where(each), each.kind) for each in found)
    kinds = ("transport", "channels", "speed and path", "algorithm and protocol")
    assert {place: tuple(counts[place, kind] for kind in kinds) for place, _ in counts} == {
        "node": (1331, 146, 146, 2806), "node, NVLS": (210, 51, 51, 652), "nodes": (845, 30, 30, 572),
        "nodes, NVLS": (382, 18, 18, 228),
    }  # fmt: skip
