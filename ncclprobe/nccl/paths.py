"""The distances between GPUs and NICs of one node: as NCCL computes them, and as nvidia-smi prints them.

Pure: from the PCI tree, its NUMA nodes and the NVLinks. NCCL's rules are those of NCCL 2.30.7, graph/xml.cc (the tree),
graph/topo.cc (its links) and graph/paths.cc (a path's type is that of its worst link). Not modelled: bandwidths
(between paths of equal type NCCL prefers the faster), GPUs that may not use P2P, NICs without GPUDirect, NIC fusion,
and the virtual links of Broadcom's switch module.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import combinations, pairwise, product, takewhile
from typing import Literal, NamedTuple, TypeVar

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition, normal
from ncclprobe.model.errors import ParseError
from ncclprobe.model.hostlist import fold_numbers
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology, NumaRow
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import Same, Struct, field, replace


class PathType(IntEnum):
    """NCCL's path types, nearest first. The words are stable, the numbers are of NCCL >= 2.28 (graph/topo.h).

    LOC itself, NVL NVLink, NVB NVLink over another GPU, C2C chip to chip, PIX one PCI switch, PXB several, P2C C2C to
    the NIC's CPU, PXN NVLink to a GPU near the NIC, PHB through the CPU, SYS between CPUs.
    """

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9


class _Node(NamedTuple):
    """A node of NCCL's graph: a GPU, NIC, PCI switch, CPU (NUMA node) or the one NVSwitch that represents all."""

    kind: Literal["gpu", "nic", "pci", "cpu", "nvs"]
    id: str = ""


UNKNOWN_CPU, NVSWITCH = _Node("cpu", "?"), _Node("nvs")
Graph = Mapping[_Node, Iterable[tuple[_Node, PathType]]]
Ways = Mapping[_Node, tuple[_Node, ...]]
Links = Mapping[str, Counter[_Node]]  # how many NVLinks lead where, by the GPU's address
Pair = tuple[str, str]
_CHIP_TO_CHIP = r"\b(GH200|GB200|GB300|GB10)\b"  # the products with NVLink-C2C to their CPU


class Topology(Struct, frozen=True):
    """The distances between `gpus` and `nics`, which are PCI addresses by name (``GPU0``, ``mlx5_0``).

    `paths` holds NCCL's path type from each GPU to each GPU and NIC without relays, `relays` the GPU that NCCL prefers
    as a relay (PXN), `smi` the word of nvidia-smi's matrix for each pair, including pairs of NICs. None: the tree does
    not decide it, because a place or a NUMA node could not be read, or a device is not on the PCI bus.
    """

    gpus: Mapping[str, str] = field(default_factory=dict)
    nics: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[Pair, PathType | None] = field(default_factory=dict)
    relays: Mapping[Pair, str] = field(default_factory=dict)
    smi: Mapping[Pair, str | None] = field(default_factory=dict)

    def path(self, gpu: str, other: str) -> PathType | None:
        """Return NCCL's path from `gpu`, including PXN (off with NCCL_PXN_DISABLE=1)."""
        return PathType.PXN if (gpu, other) in self.relays else self.paths[gpu, other]

    def near(self, gpu: str) -> tuple[str, ...]:
        """Return the NICs nearest to `gpu`, whatever their rate; empty if nothing is known."""
        known = {nic: path for nic in self.nics if (path := self.paths[gpu, nic]) is not None}
        nearest = min(known.values(), default=None)
        return tuple(nic for nic, path in known.items() if path == nearest)


def topology(
    pci: Pci,
    gpus: Mapping[str, str],
    nics: Mapping[str, str],
    nvlinks: Mapping[str, Sequence[str]] | None = None,
    c2c: Collection[str] = (),
) -> Topology:
    """Compute the distances between `gpus` and `nics`: PCI addresses by name, empty for a NIC that is not on the bus.

    `nvlinks`: per GPU address, the remote address of each active NVLink, from NVML. `c2c`: addresses of the GPUs that
    have a chip-to-chip link to their CPU. Addresses are spelled as in sysfs.
    """
    ends = {name: _Node("gpu", address) for name, address in gpus.items()}
    ends |= {name: _Node("nic", address) for name, address in nics.items()}
    ways = {end: _way_up(pci, end) for end in ends.values()}
    links = {
        end.id: Counter(_nvlink_end(pci, remote, way[-1]) for remote in (nvlinks or {}).get(end.id, ()))
        for end, way in ways.items()
        if end.kind == "gpu"
    }
    graph = _graph(ways, links, c2c)
    found = {name: search(ends[name], graph) for name in gpus}
    paths = {(gpu, other): _known_path(found[gpu], ends[gpu], end, ways) for gpu in gpus for other, end in ends.items()}
    bare = Topology(gpus, nics, paths, smi=_smi(pci, gpus, nics, links))
    whole = replace(bare, paths={**paths, **_mark_p2c(bare, ends, ways, c2c)})
    return replace(whole, relays=_relays(whole))


def machine_topology(pci: Pci, gpus: Gpus, nvlinks: NvLinks | Absent, fabric: Fabric) -> Topology:
    """Compute the distances between the GPUs and RDMA devices of a machine, by name (``GPU0``, ``mlx5_0``).

    A lost GPU whose address is unknown is left out.
    """
    return device_topology(
        pci, gpus, nvlinks, {d.name: d.pci if isinstance(d.pci, str) else "" for d in fabric.devices}
    )


def device_topology(pci: Pci, gpus: Gpus, nvlinks: NvLinks | Absent, nics: Mapping[str, str]) -> Topology:
    """Compute the same for any NICs: PCI addresses by name, empty for one that is not on the bus.

    A link with an unknown other end leads to an NVSwitch if NVML reports one. NVML's answers about chip-to-chip links
    are not collected: the products that have them are known.
    """
    ours = {f"GPU{gpu.index}": gpu for gpu in gpus.all if gpu.pci}
    addresses = {name: normal(gpu.pci) for name, gpu in ours.items()}
    rows = () if isinstance(nvlinks, Absent) else nvlinks.gpus
    links = {addresses[f"GPU{n}"]: _remotes(row) for n, row in enumerate(rows) if f"GPU{n}" in addresses}
    c2c = tuple(addresses[n] for n in ours if re.search(_CHIP_TO_CHIP, ours[n].name))
    return _cached_topology(Same(pci), tuple(addresses.items()), tuple(nics.items()), tuple(links.items()), c2c)


@lru_cache(64)
def _cached_topology(
    pci: Same[Pci],
    gpus: tuple[tuple[str, str], ...],
    nics: tuple[tuple[str, str], ...],
    links: tuple[tuple[str, tuple[str, ...]], ...],
    c2c: tuple[str, ...],
) -> Topology:
    """Return :func:`topology`, cached for all checks, and for all equal nodes of a fleet."""
    return topology(pci.value, dict(gpus), dict(nics), dict(links), c2c)


def _remotes(links: Sequence[NvLink] | Absent) -> tuple[str, ...]:
    """Return the target of each active link; an unreported switch gets an address that no machine has."""
    active = () if isinstance(links, Absent) else [link for link in links if link.state == "active"]
    ends = [normal(i.remote_pci) if isinstance(i.remote_pci, str) and i.remote_pci else i.remote for i in active]
    return tuple(end for end in ends if isinstance(end, str) and end not in ("gpu", "ibm-npu", "unknown"))


def _graph(ways: Ways, links: Links, c2c: Collection[str]) -> Graph:
    edges: defaultdict[_Node, set[tuple[_Node, PathType]]] = defaultdict(set)

    def connect(one: _Node, other: _Node, kind: PathType) -> None:
        edges[one].add((other, kind))
        edges[other].add((one, kind))

    for end, way in ways.items():
        for below, above in pairwise((end, *way)):
            connect(below, above, PathType.PIX)
        if end.kind == "gpu":
            for remote in links[end.id]:
                connect(end, remote, PathType.NVL)
        if end.kind == "gpu" and end.id in c2c:
            connect(end, way[-1], PathType.C2C)
    for one, other in combinations({way[-1] for way in ways.values() if way}, 2):
        connect(one, other, PathType.SYS)
    return edges


def _way_up(pci: Pci, end: _Node) -> tuple[_Node, ...]:
    """Return the switches above a device, nearest first, and the CPU at the top."""
    device = pci.devices.get(end.id)
    if device is None or isinstance(device.place, Absent):
        return (UNKNOWN_CPU,)
    numa = device.numa_node
    cpu = UNKNOWN_CPU if isinstance(numa, Absent) else _Node("cpu", str(numa))
    return (*(_Node("pci", address) for address in _switches(pci, device.place)), cpu)


def _switches(pci: Pci, place: PciPosition) -> list[str]:
    """Return the switches above a device, without the second level of Broadcom switches that only look like two.

    ncclTopoFlattenBcmSwitches in graph/topo.cc.
    """
    kept: list[str] = []
    above: Identity | None = None
    for address in reversed(place.switches):
        bridge = pci.bridges.get(address)
        identity = bridge.identity if bridge and isinstance(bridge.identity, Identity) else None
        if above and identity and _broadcom(above, 0) and _broadcom(above, 0) == _broadcom(identity, 1):
            above = None  # a level is fused once
        else:
            kept.insert(0, address)
            above = identity
    return kept


def _broadcom(identity: Identity, level: int) -> int:
    """Return the PCIe generation of a Broadcom switch in base mode, 0 for any other (getBcmGen in graph/topo.cc)."""
    chip, board = (identity.vendor, identity.device, identity.subsystem[0]), identity.subsystem[1] >> 12
    if chip == (0x1000, 0xC010, 0x1000) and board == 0xA:
        return 4
    return 5 if chip == (0x1000, 0xC030, 0x1000) and board == level else 0


def _nvlink_end(pci: Pci, remote: str, cpu: _Node) -> _Node:
    """Return the node that a link leads to. As in NCCL, a remote end that is not on the machine is an NVSwitch."""
    kind = pci.devices[remote].identity.kind if remote in pci.devices else None
    if kind == "gpu":
        return _Node("gpu", remote)
    return cpu if kind == "npu" else NVSWITCH


def search(start: _Node, graph: Graph) -> dict[_Node, PathType]:
    """Return the best path type from `start` to every reachable node (ncclTopoSetPaths in graph/paths.cc)."""
    found: dict[_Node, tuple[PathType, int]] = {start: (PathType.LOC, 0)}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        so_far, hops = found[node]
        for remote, link in graph.get(node, ()):
            step = _step(node, remote, link, relay=node.kind == "gpu" and node != start, hops=hops)
            if step is None:
                continue
            candidate = (max(so_far, step), hops + 1)
            if remote not in found or candidate < found[remote]:
                found[remote] = candidate
                waiting.append(remote)
    return {node: path for node, (path, _) in found.items()}


def _step(node: _Node, remote: _Node, link: PathType, relay: bool, hops: int) -> PathType | None:
    """Extend a path by one link; None if NCCL does not: through a GPU, except for one NVLink hop."""
    if relay:
        allowed = link is PathType.NVL and remote.kind == "gpu" and hops == 1
        return PathType.NVB if allowed else None
    if node.kind == remote.kind == "pci":
        return PathType.PXB
    if link is PathType.PIX and "cpu" in (node.kind, remote.kind):
        return PathType.PHB
    return link


def _known_path(found: Mapping[_Node, PathType], start: _Node, end: _Node, ways: Ways) -> PathType | None:
    """Return the path to `end`; None if it crosses an unknown CPU."""
    path = found.get(end)
    unknown = UNKNOWN_CPU in (ways[start][-1], ways[end][-1])
    return None if unknown and path is not None and path >= PathType.PHB else path


def _mark_p2c(
    topology: Topology, ends: Mapping[str, _Node], ways: Ways, c2c: Collection[str]
) -> dict[Pair, PathType | None]:
    """Mark P2C: from a GPU with a C2C link to the nearest NICs of the same CPU (ncclTopoComputePaths)."""
    return {
        (gpu, nic): PathType.P2C
        for gpu, address in topology.gpus.items()
        for nic in topology.near(gpu)
        if address in c2c and topology.paths[gpu, nic] is PathType.PHB and ways[ends[gpu]][-1] == ways[ends[nic]][-1]
    }


def _relays(topology: Topology) -> dict[Pair, str]:
    """Return PXN relays: a GPU with NVLink to ours, and near enough to the NIC (ncclTopoComputePaths)."""
    relays = {}
    near = {gpu: topology.near(gpu) for gpu in topology.gpus}
    for gpu, nic in product(topology.gpus, topology.nics):
        path = topology.paths[gpu, nic]
        if path is None or path < PathType.PXN:
            continue
        for other in topology.gpus:
            onwards, bridge = topology.paths[other, nic], topology.paths[other, gpu]
            if nic in near[other] and onwards is not None and onwards <= PathType.P2C and bridge is PathType.NVL:
                relays[gpu, nic] = other
                break
    return relays


def _smi(pci: Pci, gpus: Mapping[str, str], nics: Mapping[str, str], links: Links) -> dict[Pair, str | None]:
    """Return the word that `nvidia-smi topo -m` prints for each pair."""
    names = {**gpus, **nics}
    matrix: dict[Pair, str | None] = {}
    for one, other in product(names, names):
        count = nvlink_count(links, gpus[one], gpus[other]) if one in gpus and other in gpus else 0
        tree = tree_word(pci.devices.get(names[one]), pci.devices.get(names[other]))
        matrix[one, other] = "X" if one == other else f"NV{count}" if count else tree
    return matrix


def nvlink_count(links: Links, one: str, other: str) -> int:
    """Return the n of NVn: direct links to the other GPU, otherwise the links that both have to NVSwitches."""
    return links[one][_Node("gpu", other)] or min(links[one][NVSWITCH], links[other][NVSWITCH])


def tree_word(one: Device | None, other: Device | None) -> str | None:
    """Return PIX, PXB, PHB, NODE or SYS, by the legend of `nvidia-smi topo -m`; None if the tree does not decide.

    PIX at most one PCI switch between them, PXB several, PHB one host bridge, NODE two host bridges of one NUMA node.
    """
    if one is None or other is None or isinstance(one.place, Absent) or isinstance(other.place, Absent):
        return None
    if one.place.root != other.place.root:
        numa = (one.numa_node, other.numa_node)
        if any(isinstance(node, Absent) or node < 0 for node in numa):
            return None
        return "NODE" if numa[0] == numa[1] else "SYS"
    above, other_above = one.place.bridges, other.place.bridges
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above, other_above, strict=False)))
    if not common:
        return "PHB"
    return "PIX" if max(len(above), len(other_above)) - common <= 1 else "PXB"


T = TypeVar("T")


def layout(snapshot: Snapshot) -> NodeTopology:
    """Return the devices of a node and their distances. RDMA devices precede interfaces without RDMA."""
    pci, gpus, links = _fact(snapshot, Pci), _fact(snapshot, Gpus), _fact(snapshot, NvLinks)
    fabric, interfaces, cpus = _fact(snapshot, Fabric), _fact(snapshot, Interfaces), _fact(snapshot, Cpus)
    gaps = [fact.why for fact in (pci, gpus, links, fabric, interfaces, cpus) if isinstance(fact, Absent)]
    try:
        paths = _paths(pci, gpus, links, fabric, interfaces)
    except ParseError as error:  # an address as no PCI bus has it
        paths, gaps = None, [*gaps, str(error)]
    return NodeTopology(
        gpus=None if isinstance(gpus, Absent) else tuple(_gpus(gpus, pci)),
        nics=None if isinstance(fabric, Absent) else tuple(_nics(fabric, interfaces, pci)),
        numa=None if isinstance(cpus, Absent) else tuple(NumaRow(n.id, fold_numbers(n.cpus)) for n in cpus.numa),
        paths=paths,
        why="; ".join(dict.fromkeys(gaps)),
    )


def _fact(snapshot: Snapshot, kind: type[T]) -> T | Absent:
    fact: T | Absent = snapshot.facts.get(kind, Absent(f"{kind.__name__} was never collected"))
    return fact


def _gpus(gpus: Gpus, pci: Pci | Absent) -> Iterator[DeviceRow]:
    for gpu in gpus.all:
        row = _row(f"GPU{gpu.index}", gpu.name, _address(gpu), pci)
        width, most = gpu.pcie_width, gpu.pcie_max_width
        if isinstance(width, int) and isinstance(most, int):
            row = replace(row, pcie_width=width, pcie_max_width=most)
        yield row


def _address(gpu: Gpu) -> str | None:
    try:
        return normal(gpu.pci)
    except ParseError:
        return None


def _nics(fabric: Fabric, interfaces: Interfaces | Absent, pci: Pci | Absent) -> Iterator[DeviceRow]:
    for device in fabric.devices:
        words = [word for word in (device.model, device.board) if isinstance(word, str) and word]
        yield _row(device.name, " ".join(words), device.pci if isinstance(device.pci, str) else None, pci)
    drivers = {} if isinstance(interfaces, Absent) else {each.name: each.driver for each in interfaces.all}
    for name, address in _other_nics(fabric, interfaces).items():
        yield _row(name, drivers[name], address, pci)


def _other_nics(fabric: Fabric, interfaces: Interfaces | Absent) -> dict[str, str]:
    """Return the PCI addresses of interfaces that do not belong to an RDMA device."""
    taken = {device.pci for device in fabric.devices}
    every = () if isinstance(interfaces, Absent) else interfaces.all
    return {each.name: each.pci for each in every if each.pci and each.pci not in taken}


def _row(name: str, model: str, address: str | None, pci: Pci | Absent) -> DeviceRow:
    device = pci.devices.get(address) if isinstance(pci, Pci) and address else None
    numa = device.numa_node if device and isinstance(device.numa_node, int) else None
    cpus = fold_numbers(device.local_cpus) if device and not isinstance(device.local_cpus, Absent) else None
    link = device.link if device and isinstance(device.link, PcieLink) else None
    return DeviceRow(name, model, address, numa, cpus, link.width if link else None, link.max_width if link else None)


def _paths(
    pci: Pci | Absent,
    gpus: Gpus | Absent,
    links: NvLinks | Absent,
    fabric: Fabric | Absent,
    interfaces: Interfaces | Absent,
) -> dict[str, dict[str, str | None]] | None:
    """Return the paths in NCCL's words. Empty without NVLinks, because any path between GPUs may then differ."""
    if isinstance(pci, Absent) or isinstance(gpus, Absent) or isinstance(links, Absent) or isinstance(fabric, Absent):
        return None
    rdma = machine_topology(pci, gpus, links, fabric)  # apart: of a Grace's NICs NCCL brings the nearest nearer
    others = device_topology(pci, gpus, links, _other_nics(fabric, interfaces))
    unread = {f"GPU{index}" for index, row in enumerate(links.gpus) if isinstance(row, Absent)}
    return {gpu: {**_words(others, gpu, unread), **_words(rdma, gpu, unread)} for gpu in rdma.gpus}


def _words(topology: Topology, gpu: str, unread: Collection[str]) -> dict[str, str | None]:
    """Return the path types as words. `unread`: the GPUs whose NVLinks are unknown."""
    ends = [end for end in (*topology.gpus, *topology.nics) if end != gpu]
    unknown = {end for end in ends if end in topology.gpus and (gpu in unread or end in unread)}
    found = {end: None if end in unknown else topology.paths[gpu, end] for end in ends}
    return {end: path.name if path is not None else None for end, path in found.items()}


def connected(links: Iterable[set[str]]) -> list[set[str]]:
    """Return the groups that links join, each a set of its ends."""
    groups: list[set[str]] = []
    for ends in links:
        near = [group for group in groups if group & ends]
        groups = [group for group in groups if not group & ends] + [ends.union(*near)]
    return groups
