"""NCCL's search for channels on regular machines: from links and their speeds to the graphs of its cost model.

A graph has channels, speeds and path types for each pattern; :mod:`ncclprobe.expect.topology_text` reads the same from
NCCL's own output.

The search tries speeds from fast to slow and keeps the best product of channels and speed. Here the number of channels
that fit at a speed is computed from the links instead of tried path by path. Source: src/graph/search.cc:1074
ncclTopoCompute, :330 ncclTopoSearchRecGpu, :1033 ncclTopoDupChannels, :726 NIC reservation, ncclTopoSearchTryNvls
src/include/graph.h (v2.30.7), docs/maintainers/nccl.md.

It finds what NCCL's own code finds for the machines of tests/data/nccl. Assumed, because a NodeSystem does not have it:
NICs are spread evenly over the GPUs near them, and a job with fewer GPUs per node uses its share of them; GPUs on PCIe
that may not copy directly are below one root port each; an unknown processor counts as Skylake. CollNet (SHARP) is left
out. Irregular machines are Absent, with the reason.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, get_args

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.constants import (
    INTEL,
    INTEL_OVERHEAD,
    MOST_CHANNELS,
    MOST_NVLS,
    LOCAL_GBps,
    Speeds,
    between_sockets_GBps,
    nvlink_GBps,
    speeds,
)
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct

PathWord = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
"""NCCL's path types, nearest first (those of 2.28 and later)."""

WORDS: Final[tuple[PathWord, ...]] = get_args(PathWord)

BALANCED_TREE, SPLIT_TREE, TREE, RING, NVLS, COLLNET_DIRECT = range(1, 7)
"""The numbers after ``Pattern``: the first two differ in which GPU of a node talks to which neighbour."""


class Graph(Struct, frozen=True, kw_only=True):
    """One pattern. `bw_intra` and `bw_inter` are GB/s of one channel, within a node and between nodes.

    `channels` are the search's, before NCCL doubles them. `latency_inter_us` is the net plugin's.
    """

    pattern: int
    channels: int
    bw_intra: float
    bw_inter: float
    type_intra: PathWord
    type_inter: PathWord
    same_channels: bool = True
    latency_inter_us: float = 0.0


class Graphs(Struct, frozen=True, kw_only=True):
    """The patterns of one communicator; None: NCCL does not use it. `source` is who determined them."""

    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    source: str


def farther(one: PathWord, other: PathWord) -> PathWord:
    """Return the longer of two path types."""
    return max(one, other, key=WORDS.index)


_PATIENCE = 256
"""Steps of the search on channels along one path (one per GPU and channel, plus one) before it mixes paths."""
_ON_A_SWITCH = 4
"""More GPUs than this on one socket use two switches, as 4U servers are built."""


class _Within(Struct, frozen=True, kw_only=True):
    """The links of one node: how many channels fit at a speed within the node, and how many along one path.

    `fastest` is the best path between two GPUs, `total` the rate out of one GPU, `least` the fewest channels to try.
    `path` is None if every ring uses the same one. `open` counts channels that leave the node through a NIC; None: as
    many. `turns`: chains over the slots may differ in direction, which NCCL does not try between AMD sockets.
    """

    gpus: int
    kind: PathWord
    fastest: float
    total: float
    ring: Callable[[float], int]
    path: Callable[[float], int] | None = None
    open: Callable[[float], int] | None = None
    least: int = 1
    turns: bool = True

    def chains(self, speed: float, wanted: int) -> bool:
        """Return whether this many chains fit: each uses one direction only, and among three or more GPUs one spares
        its links.

        NCCL finds chains that spare other GPUs than the first while it backtracks over few channels.
        """
        if self.gpus > 2 and self.kind == "NVL" and self.open and (self.gpus == 3 or not self.path):
            back = (self.gpus - 2) * (wanted - self.ring(speed))
            return back <= 0 or (self.open(speed) >= wanted and back <= _BACK)
        one_way = self.turns and (self.gpus == 2 or self.least == 2)
        return self.ring(speed) * (2 if one_way else 1) >= wanted

    def leaving(self, speed: float) -> int:
        """Return how many channels that leave the node fit; one GPU of each spares its links."""
        return MOST_CHANNELS if self.gpus == 1 else max(self.ring(speed), self.open(speed) if self.open else 0)

    def same(self, channels: int, speed: float, found: int) -> bool:
        """Return whether all `channels` use one path, `found` of them before NCCL doubles them."""
        fits = (self.path or self.ring)(speed)
        return channels <= fits and found * (self.gpus + 1) <= _PATIENCE


def within(system: NodeSystem, gpus: int, version: NcclVersion) -> _Within | Absent:
    """Return the links within a node, by their layout."""
    if gpus == 1:
        return _Within(gpus=1, kind="LOC", fastest=LOCAL_GBps, total=LOCAL_GBps, ring=lambda _: MOST_CHANNELS)
    link = nvlink_GBps(system.compute_capability, system.nvlink_GBps, version)
    joined = system.joins(gpus) and link
    if joined and system.fabric == "nvswitch":
        total = system.nvlinks * link
        spread = total * gpus / (gpus - 1)
        return _Within(
            gpus=gpus,
            kind="NVL",
            fastest=total,
            total=total,
            ring=lambda speed: fit(total, speed),
            open=lambda speed: fit(spread, speed),
        )
    if joined and system.fabric == "mesh":
        return _mesh(system, gpus, link)
    if joined and system.fabric == "cube-mesh":
        return _cube(system, gpus, link)
    if joined and system.fabric == "pairs":
        total = system.nvlinks * link
        return _Within(gpus=2, kind="NVL", fastest=total, total=total, ring=lambda speed: fit(total, speed))
    if not system.pcie_GBps:
        return Absent(f"the speed of the slots of {system.name} is not known")
    return _slots(system, gpus, version, link if system.nvlinks else 0.0)


def fit(capacity: float, speed: float) -> int:
    """Return how many channels of `speed` a link carries; NCCL rounds the remainder to thousandths."""
    return math.floor(round(capacity / speed, 6))


def _mesh(system: NodeSystem, gpus: int, link: float) -> _Within | Absent:
    """Return a full mesh, whose channels are directed Hamiltonian cycles; four GPUs lack an odd one."""
    others = system.neighbours
    if system.nvlinks % others:
        return _uneven(system, gpus, link)
    pair = system.nvlinks // others * link

    def ring(speed: float) -> int:
        shared = fit(pair, speed)
        return (gpus - 1) * shared - (1 if gpus == 4 and shared % 2 else 0)

    return _Within(
        gpus=gpus,
        kind="NVL",
        fastest=pair,
        total=pair * (gpus - 1),
        ring=ring,
        path=lambda speed: fit(pair, speed),
        open=lambda speed: gpus * fit(pair, speed),
    )


def _uneven(system: NodeSystem, gpus: int, link: float) -> _Within | Absent:
    """Return four GPUs with one link to two neighbours and two to the third (half a DGX-1): each link is in a ring."""
    if (system.gpus, system.nvlinks) != (4, 4):
        return Absent(f"{system.nvlinks} NVLinks do not divide among {system.gpus - 1} neighbours")
    if gpus not in (2, 4):
        return Absent(f"their NVLinks depend on which {gpus} of the 4 GPUs take part")
    total = system.nvlinks * link if gpus == 4 else link
    return _Within(gpus=gpus, kind="NVL", fastest=2 * link, total=total, ring=lambda speed: fit(total, speed))


def _cube(system: NodeSystem, gpus: int, link: float) -> _Within | Absent:
    """Return the DGX-1's hybrid cube mesh: with all eight GPUs one ring per link; no other number is regular.

    Only pairs of links are faster than one link, and these form one ring of all eight.
    """
    if system.gpus != 8 or gpus not in (4, 8):
        return Absent(f"{gpus} GPUs of a hybrid cube mesh: their NVLinks depend on which ones")
    links = system.nvlinks if gpus == 8 else min(4, system.nvlinks)

    def path(speed: float) -> int:
        return 2 * fit(2 * link, speed)

    def ring(speed: float) -> int:
        return links * fit(link, speed) if speed <= link else path(speed)

    return _Within(gpus=gpus, kind="NVL", fastest=2 * link, total=links * link, ring=ring, path=path)


def _slots(system: NodeSystem, gpus: int, version: NcclVersion, link: float) -> _Within:
    """Return GPUs that reach each other over PCIe, some in bridged pairs (`link` above zero)."""
    crosses = system.sockets > 1 and gpus > math.ceil(system.gpus / system.sockets)
    between = between_sockets_GBps(system.processor, version) if crosses else math.inf
    through_root = not crosses and (not system.p2p or system.at_roots or gpus > _ON_A_SWITCH)
    charged = (through_root or system.at_roots) and system.processor in INTEL
    overhead = INTEL_OVERHEAD if charged else 1.0
    path = min(system.pcie_GBps, between)
    bridged = system.nvlinks * link
    kind: PathWord = "SYS" if crosses else "PHB" if through_root else "PXB"

    def ring(speed: float) -> int:
        return min(fit(system.pcie_GBps, speed * overhead), fit(between, speed) if crosses else MOST_CHANNELS)

    def crossing(speed: float) -> int:
        # One ring each way, from the NIC of one socket to that of the other: not over AMD's, where NCCL forbids it.
        many = system.processor != "amd" and system.nics * gpus >= system.sockets * system.gpus
        return 2 if crosses and many and 2 * speed <= system.pcie_GBps and speed <= between else 0

    split = 2 if bridged and system.fabric == "pairs" and gpus == 4 else 1
    return _Within(
        gpus=gpus,
        kind=kind,
        fastest=max(path, bridged),
        total=max(system.pcie_GBps, bridged),
        ring=ring,
        open=crossing if gpus > 2 else None,
        least=split,
        turns=not (crosses and system.processor == "amd"),
    )


_NVLS_BETWEEN_HOSTS: NcclVersion = (2, 21, 0)
_NVLS_OF_TWO: NcclVersion = (2, 28, 7)
_ENOUGH = 0.49
"""Speeds below this share of the best are not tried."""
_BACK = 4
"""Channels over which NCCL's search backtracks in time: 4 of four B200, which get faster chains, not 6 of four H100."""
_DUPLICATED = 25.0
_WIDE = 50.0
_NIC_PATHS: dict[str, PathWord] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def nvlink_domains(system: NodeSystem, shape: Shape) -> tuple[int, ...]:
    """Return the ranks of each node as NCCL counts nodes: hosts that share an NVLink fabric (MNNVL) are one."""
    together = system.domain_gpus // system.gpus if system.gpus else 1
    if together <= 1:
        return shape.gpus
    return tuple(sum(shape.gpus[at : at + together]) for at in range(0, len(shape.gpus), together))


def graphs(system: NodeSystem, shape: Shape, version: NcclVersion) -> Graphs | Absent:
    """Return what NCCL's search finds for `shape` on nodes like `system`; Absent with the reason if unknown.

    Nodes with different numbers of GPUs get the fewest channels and lowest speeds of all, as NCCL agrees on them.
    """
    if not shape.gpus or min(shape.gpus) < 1 or shape.ranks < 2:
        return Absent("NCCL has nothing to search for fewer than two ranks")
    if max(shape.gpus) > system.gpus:
        return Absent(f"{max(shape.gpus)} ranks per node, but {system.name} has {plural(system.gpus, 'GPU')}")
    parts = nvlink_domains(system, shape)
    network = len(parts) > 1
    if network and not (system.nics and system.nic_gbps > 0):
        return Absent(f"the NICs of {system.name} or their speed are not known")
    found = [_one_domain(system, gpus, network, version) for gpus in sorted(set(parts))]
    for one in found:
        if isinstance(one, Absent):
            return one
    return _agree([one for one in found if not isinstance(one, Absent)])


@lru_cache(maxsize=4096)
def _one_domain(system: NodeSystem, gpus: int, network: bool, version: NcclVersion) -> Graphs | Absent:
    inside = within(system, gpus, version)
    if isinstance(inside, Absent):
        return inside
    steps = speeds(system.compute_capability, version, network=network)
    nics = _Nics.of(system, gpus) if network else None
    ring = _ring(system, inside, nics, steps)
    if ring is None:
        return Absent(f"no channel of NCCL's speeds fits the links of {system.name}: NCCL takes one, of no speed")
    tree = _tree(system, ring, inside, nics, steps)
    nvls = _nvls(system, inside, nics, steps) if _multicast(system, gpus, version) else None
    return Graphs(ring=ring, tree=tree, nvls=nvls, source=f"search over the links of {system.name}")


def _multicast(system: NodeSystem, gpus: int, version: NcclVersion) -> bool:
    """Return whether NCCL lets its switches reduce: not across hosts before 2.21, nor for two GPUs before 2.28.7."""
    if not system.nvls or system.fabric != "nvswitch" or system.compute_capability < 90 or gpus < 2:
        return False
    return version >= (_NVLS_BETWEEN_HOSTS if gpus > system.gpus else _NVLS_OF_TWO if gpus == 2 else (0, 0, 0))


class _Nics(Struct, frozen=True, kw_only=True):
    """The NICs of the GPUs in use: `speed` of one, `slot` of one GPU, and the path type between them.

    Without GPUDirect the path crosses the processor, whatever is in between.
    """

    count: int
    gpus: int
    speed: float
    slot: float
    kind: PathWord

    @classmethod
    def of(cls, system: NodeSystem, gpus: int) -> "_Nics":
        path = _NIC_PATHS[system.nic_path]
        charged = (path == "PHB" or not system.gdr) and system.processor in INTEL
        shared = not system.gdr and path in ("PIX", "PXB")  # a switch's way to the processor carries GPU and NIC
        twice = 2 if shared else 1
        return cls(
            count=max(1, system.nics * gpus // system.gpus),
            gpus=gpus,
            speed=system.nic_gbps / 8,
            slot=(system.to_nic_GBps or LOCAL_GBps) / (INTEL_OVERHEAD if charged else 1.0) / twice,
            kind=path if system.gdr else farther(path, "PHB"),
        )

    @property
    def fastest(self) -> float:
        """Return the rate of the best path from a GPU to a NIC."""
        return min(self.speed, self.slot)

    def channels(self, speed: float) -> int:
        """Return how many channels fit: a NIC reserves whole GB/s, and each channel crosses it once per direction."""
        one = min(fit(self.speed, speed), fit(self.speed, int(speed)) if speed >= 1 else MOST_CHANNELS)
        slots = fit(self.slot, speed)
        near = min(self.count, self.gpus)
        return min(one * self.count, slots * near)


class _Best(Struct, frozen=True):
    channels: int
    speed: float


def _ring(system: NodeSystem, inside: _Within, nics: _Nics | None, steps: Speeds) -> Graph | None:
    fits = _ring_fits(inside, nics)
    fastest = nics.fastest if nics else inside.fastest
    first = _descend(fits, steps, fastest, inside.total, inside.least)
    if first is None:
        return None
    best = _duplicate(first, system.compute_capability)
    best = _raise_speed(best, fits, steps)
    return Graph(
        pattern=RING,
        channels=best.channels,
        bw_intra=best.speed,
        bw_inter=best.speed,
        type_intra=inside.kind,
        type_inter=_path_to_nic(system, inside, nics, first) if nics else "PIX",
        same_channels=_one_path(inside, nics, first, best),
    )


def _one_path(inside: _Within, nics: "_Nics | None", first: "_Best", best: "_Best") -> bool:
    """Return whether all channels use one path; between nodes each starts at its own NIC."""
    if nics is None:
        return inside.same(best.channels, best.speed, first.channels)
    return best.channels == 1 or inside.gpus == 1 or nics.count == 1


def _path_to_nic(system: NodeSystem, inside: _Within, nics: "_Nics", first: "_Best") -> PathWord:
    """Return a ring's longest path to its NIC: the first GPU's, over NVLink (PXN), or a GPU's own."""
    if inside.kind != "NVL":
        return _path_over_slots(inside, nics)
    lone = system.compute_capability >= 90 and inside.gpus > 1 and nics.count >= inside.gpus
    closed = first.channels <= inside.ring(first.speed)
    return farther(nics.kind, "PXN") if lone and closed else nics.kind


def _path_over_slots(inside: _Within, nics: "_Nics") -> PathWord:
    """Return the path to the NIC without NVLink: past a switch, as long as that to the farthest GPU."""
    return farther(nics.kind, inside.kind) if inside.kind in ("PHB", "SYS") else nics.kind


def _ring_fits(inside: _Within, nics: "_Nics | None") -> Callable[[float], int]:
    """Return a function that counts rings that fit; with a network, one GPU of each channel spares its NVLinks.

    NCCL looks first for rings that return to their NIC, and stops if these use up the links.
    """

    def fits(speed: float) -> int:
        if nics is None:
            return min(MOST_CHANNELS, inside.ring(speed))
        most = min(MOST_CHANNELS, nics.channels(speed))
        closed = min(most, inside.ring(speed))
        return closed if closed * speed >= inside.total else min(most, inside.leaving(speed))

    return fits


def _descend(
    fits: Callable[[float], int], steps: Speeds, fastest: float, total: float, least: int, most: int = MOST_CHANNELS
) -> _Best | None:
    """Try speeds from fast to slow until no better result is possible."""
    start = next((at for at, speed in enumerate(steps) if speed <= fastest and speed * least <= total), len(steps) - 1)
    best: _Best | None = None
    for speed in steps[start:]:
        if best and speed / best.speed <= _ENOUGH:
            break
        channels = min(most, fits(speed))
        if channels >= least and (best is None or channels * speed > best.channels * best.speed):
            best = _Best(channels, speed)
        if best and (best.channels * best.speed >= total or best.channels == most):
            break
    return best


def _duplicate(best: _Best, compute_capability: int) -> _Best:
    """Split fast channels in two, so that enough of the GPU's processors copy."""
    fast = best.speed >= _DUPLICATED
    if not fast or (compute_capability > 80 and best.speed < _WIDE and best.channels > 4):
        return best
    channels = min(2 * best.channels, MOST_CHANNELS)
    return _Best(channels, best.speed / math.ceil(channels / best.channels))


def _raise_speed(best: _Best, fits: Callable[[float], int], steps: Speeds) -> _Best:
    """Run the second pass: raise the speed while the same channels fit."""
    for speed in reversed([step for step in steps if step > best.speed]):
        if fits(speed) < best.channels:
            break
        best = _Best(best.channels, speed)
    return best


def _tree(system: NodeSystem, ring: Graph, inside: _Within, nics: _Nics | None, steps: Speeds) -> Graph:
    """Return the tree with as many channels as the ring; between nodes it may be faster within them, up to twice the
    NICs' speed.
    """
    if nics is None:
        return _tree_inside(ring, inside, steps)
    intra, inter = _tree_speeds(system, ring, inside, steps)
    return Graph(
        pattern=BALANCED_TREE if inside.gpus > 1 and _pairs_share(system, inside, nics) else TREE,
        channels=ring.channels,
        bw_intra=intra,
        bw_inter=inter,
        type_intra=ring.type_intra,
        type_inter=_path_over_slots(inside, nics),
        same_channels=ring.same_channels,
    )


def _tree_speeds(system: NodeSystem, ring: Graph, inside: _Within, steps: Speeds) -> tuple[float, float]:
    """Return the speeds within the node and between nodes.

    Over PCIe the first GPU's slot also carries half of the traffic to the NIC, unless a bridge delivers the other
    socket's part.
    """
    inner = inter = ring.bw_inter
    slot = math.inf
    bridged = inside.kind == "SYS" and system.fabric == "pairs"
    if inside.gpus > 1 and inside.kind != "NVL" and inside.least == 1 and not bridged:
        charged = system.nic_path not in ("PIX", "PXB") and system.processor in INTEL
        slot = system.pcie_GBps / (INTEL_OVERHEAD if charged else 1.0)
        inner = inter = next((step for step in steps if step <= min(inter, slot / (ring.channels + 0.5))), inter)
    for step in reversed([step for step in steps if step > inter]):
        full = ring.channels * (step + inter / 2) > slot or inside.leaving(step) < ring.channels
        if inner >= 2 * inter or full:
            break
        inner = step
    return inner, inter


def _pairs_share(system: NodeSystem, inside: _Within, nics: "_Nics") -> bool:
    """Return whether two GPUs can each carry half of a NIC: before Hopper over any path, since then only
    as neighbours.
    """
    return system.compute_capability < 90 or nics.count < inside.gpus


def _tree_inside(ring: Graph, inside: _Within, steps: Speeds) -> Graph:
    chains = (step for step in steps if step <= inside.fastest and inside.chains(step, ring.channels))
    speed = next(chains, ring.bw_intra)
    return Graph(
        pattern=BALANCED_TREE,
        channels=ring.channels,
        bw_intra=speed,
        bw_inter=speed,
        type_intra=ring.type_intra,
        type_inter=ring.type_inter,
        same_channels=inside.same(ring.channels, speed, ring.channels),
    )


def _nvls(system: NodeSystem, inside: _Within, nics: _Nics | None, steps: Speeds) -> Graph | None:
    """Return one channel per pulling GPU; its own links carry it twice, those of the others once."""
    most = min(MOST_NVLS, inside.gpus)
    heads = most if nics is None else min(most, nics.count)

    def fits(speed: float) -> int:
        # Past the heads' own, each link carries every channel once and its own a second time.
        return min(heads, fit(inside.total, speed) - 1, nics.channels(speed) if nics else heads)

    fastest = nics.fastest if nics else inside.fastest
    least = heads if nics is None else 1
    best = _most_heads(fits, steps, fastest, inside.total * inside.gpus / (inside.gpus - 1), least, heads)
    if best is None:
        return None
    inter = best.speed
    for step in reversed([step for step in steps if step > best.speed]):
        if inter >= 2 * best.speed or (nics is not None and nics.channels(step) < best.channels):
            break
        inter = step
    return Graph(
        pattern=NVLS,
        channels=best.channels,
        bw_intra=best.speed,
        bw_inter=inter,
        type_intra="NVL",
        type_inter=nics.kind if nics else "PIX",
        same_channels=False,
    )


def _most_heads(
    fits: Callable[[float], int], steps: Speeds, fastest: float, total: float, least: int, most: int
) -> _Best | None:
    """Like :func:`_descend`, but prefer more channels even if they carry less."""
    start = next((at for at, speed in enumerate(steps) if speed <= fastest and speed * least <= total), len(steps) - 1)
    best: _Best | None = None
    for speed in steps[start:]:
        if best and (speed / best.speed <= _ENOUGH or best.channels == most):
            break
        channels = fits(speed)
        better = best is None or channels > best.channels or channels * speed > best.channels * best.speed
        if channels >= max(1, least) and better:
            best = _Best(channels, speed)
    return best


def _agree(found: list[Graphs]) -> Graphs:
    """Return what all nodes can do: the fewest channels, the lowest speeds, the longest paths."""
    one = found[0]
    for other in found[1:]:
        nvls = _least(one.nvls, other.nvls) if one.nvls and other.nvls else None
        ring, tree = _least(one.ring, other.ring), _least(one.tree, other.tree)
        one = Graphs(ring=ring, tree=tree, nvls=nvls, source=one.source)
    return one


def _least(one: Graph, other: Graph) -> Graph:
    return Graph(
        pattern=max(one.pattern, other.pattern),
        channels=min(one.channels, other.channels),
        bw_intra=min(one.bw_intra, other.bw_intra),
        bw_inter=min(one.bw_inter, other.bw_inter),
        type_intra=farther(one.type_intra, other.type_intra),
        type_inter=farther(one.type_inter, other.type_inter),
        same_channels=one.same_channels and other.same_channels,
        latency_inter_us=max(one.latency_inter_us, other.latency_inter_us),
    )


_NARROW = 0.8
"""Tolerance for the slot: Gen5 carries 48 of the 50 GB/s of a 400 Gb/s NIC, which is not a fault."""


class RankLinks(Struct, frozen=True, kw_only=True):
    """The rates at which one rank can send, GB/s in one direction: within its node by `kind` of link, and over its
    NICs.

    `gate` is ``nic``, or ``pcie`` if the slot of the GPU carries far less than its NICs.
    """

    kind: str
    inside_GBps: float
    gate: str


def rank_links(system: NodeSystem, shape: Shape, version: NcclVersion) -> RankLinks:
    """Return the links of one rank of `shape`."""
    largest = max(nvlink_domains(system, shape))
    per_gpu = system.nics / system.gpus if system.gpus else 0.0
    slot = system.to_nic_GBps or LOCAL_GBps
    nic = system.nic_gbps / 8
    kind, inside = _link_inside(system, largest, version)
    return RankLinks(
        kind=kind,
        inside_GBps=inside,
        gate="pcie" if slot < _NARROW * nic * max(1.0, per_gpu) else "nic",
    )


def _link_inside(system: NodeSystem, gpus: int, version: NcclVersion) -> tuple[str, float]:
    link = nvlink_GBps(system.compute_capability, system.nvlink_GBps, version)
    fabric = system.fabric
    if gpus == 1:
        return "local", LOCAL_GBps
    if system.joins(gpus):
        share = (gpus - 1) / max(1, system.neighbours) if fabric in ("mesh", "cube-mesh") else 1.0
        return "nvlink", system.nvlinks * link * share
    crosses = system.sockets > 1 and gpus > system.gpus / system.sockets
    between = between_sockets_GBps(system.processor, version) if crosses else LOCAL_GBps
    return ("inter-socket", between) if between < system.pcie_GBps else ("pcie", system.pcie_GBps)
