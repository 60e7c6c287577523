"""NCCL's search for channels, for regular machines: from links and their speeds to the graphs of its cost model.

The search tries speeds from fast to slow and keeps the best of channels x speed; here the number of channels that fit
at a speed is counted from the links instead of tried path by path. Source: src/graph/search.cc:1074 ncclTopoCompute,
:1033 ncclTopoDupChannels, :726 NIC reservation, ncclTopoSearchTryNvls (v2.30.7), nccl_semantics.md §4.2.

Approximated: NICs are spread evenly over the GPUs that are near them, and a job with fewer GPUs per node uses its
share of them; GPUs on PCIe that may not copy directly hang at one root port each; a processor that is not known counts
as Skylake; the time limits of the search are not played, so that trees never do better than one chain per channel.
CollNet (SHARP) is left out. What has no such regularity is Absent, with the reason.
"""

import math
from collections.abc import Callable
from functools import lru_cache

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
from ncclprobe.expect.tuner.graphs import BALANCED_TREE, NVLS, RING, TREE, Graph, Graphs, PathWord, farther
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_MNNVL: NcclVersion = (2, 20, 0)
_NVLS: NcclVersion = (2, 17, 0)
_NVLS_BETWEEN_HOSTS: NcclVersion = (2, 21, 0)
_ENOUGH = 0.49
"""A speed below that share of the best is not tried any more."""
_DUPLICATED = 25.0
_WIDE = 50.0
_NIC_PATHS: dict[str, PathWord] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def islands(system: NodeSystem, shape: Shape, version: NcclVersion) -> tuple[int, ...]:
    """The ranks of each node as NCCL counts nodes: hosts that share an NVLink fabric (MNNVL, since 2.20) are one."""
    together = system.domain_gpus // system.gpus if system.gpus and version >= _MNNVL else 1
    if together <= 1:
        return shape.gpus
    return tuple(sum(shape.gpus[at : at + together]) for at in range(0, len(shape.gpus), together))


def graphs(system: NodeSystem, shape: Shape, version: NcclVersion) -> Graphs | Absent:
    """What NCCL's search finds for `shape` on nodes like `system`; Absent with the reason where it cannot be told.

    Nodes with different numbers of GPUs end on the least of channels and speeds, as NCCL agrees on them.
    """
    if not shape.gpus or min(shape.gpus) < 1 or shape.ranks < 2:
        return Absent("NCCL has nothing to search for fewer than two ranks")
    if max(shape.gpus) > system.gpus:
        return Absent(f"{max(shape.gpus)} ranks per node, but {system.name} has {system.gpus} GPUs")
    parts = islands(system, shape, version)
    network = len(parts) > 1
    if network and not (system.nics and system.nic_gbps > 0):
        return Absent(f"the NICs of {system.name} or their speed are not known")
    found = [_one_island(system, gpus, network, version) for gpus in sorted(set(parts))]
    for one in found:
        if isinstance(one, Absent):
            return one
    return _agreed([one for one in found if not isinstance(one, Absent)])


class _Island(Struct, frozen=True, kw_only=True):
    """The links of one node: how many channels fit at a speed, by `ring` and `chain`, within it alone.

    `fastest` is the best path between two GPUs, `total` what leaves one GPU, `least` the fewest channels to try.
    """

    gpus: int
    kind: PathWord
    fastest: float
    total: float
    ring: Callable[[float], int]
    least: int = 1


@lru_cache(maxsize=4096)
def _one_island(system: NodeSystem, gpus: int, network: bool, version: NcclVersion) -> Graphs | Absent:
    inside = _inside(system, gpus, version)
    if isinstance(inside, Absent):
        return inside
    steps = speeds(system.compute_capability, version, network=network)
    nics = _Nics.of(system, gpus) if network else None
    ring = _ring(system, inside, nics, steps)
    if ring is None:
        return Absent(f"no channel of NCCL's speeds fits the links of {system.name}")
    tree = _tree(ring, inside, nics, steps)
    since = _NVLS if gpus <= system.gpus else _NVLS_BETWEEN_HOSTS
    multicast = system.nvls and system.fabric == "nvswitch" and gpus > 1 and version >= since
    nvls = _nvls(system, inside, nics, steps) if multicast and system.compute_capability >= 90 else None
    return Graphs(ring=ring, tree=tree, nvls=nvls, source=f"search over the links of {system.name}")


def _inside(system: NodeSystem, gpus: int, version: NcclVersion) -> _Island | Absent:
    """The links within a node, by how they are laid."""
    if gpus == 1:
        return _Island(gpus=1, kind="LOC", fastest=LOCAL_GBps, total=LOCAL_GBps, ring=lambda _: MOST_CHANNELS)
    link = nvlink_GBps(system.compute_capability, system.nvlink_GBps, version)
    joined = system.nvlinks and link
    if joined and system.fabric == "nvswitch":
        total = system.nvlinks * link
        return _Island(gpus=gpus, kind="NVL", fastest=total, total=total, ring=lambda speed: _fit(total, speed))
    if joined and system.fabric == "mesh":
        return _mesh(system, gpus, link)
    if joined and system.fabric == "cube-mesh":
        return _cube(system, gpus, link)
    if joined and system.fabric == "pairs" and gpus == 2:
        total = system.nvlinks * link
        return _Island(gpus=2, kind="NVL", fastest=total, total=total, ring=lambda speed: _fit(total, speed))
    if not system.pcie_GBps:
        return Absent(f"the speed of the slots of {system.name} is not known")
    return _slots(system, gpus, version, link if joined else 0.0)


def _fit(capacity: float, speed: float) -> int:
    """How many channels of `speed` a link carries; NCCL rounds what is left to thousandths."""
    return math.floor(round(capacity / speed, 6))


def _mesh(system: NodeSystem, gpus: int, link: float) -> _Island | Absent:
    """Each GPU joined to each: directed Hamiltonian cycles, of which an odd share of four GPUs lacks one."""
    others = system.gpus - 1
    if system.nvlinks % others:
        return _uneven(system, gpus, link)
    pair = system.nvlinks // others * link

    def ring(speed: float) -> int:
        shared = _fit(pair, speed)
        return (gpus - 1) * shared - (1 if gpus == 4 and shared % 2 else 0)

    return _Island(gpus=gpus, kind="NVL", fastest=pair, total=pair * (gpus - 1), ring=ring)


def _uneven(system: NodeSystem, gpus: int, link: float) -> _Island | Absent:
    """Four GPUs with one link to two neighbours and two to the third (half a DGX-1): every link is in some ring."""
    if (system.gpus, system.nvlinks) != (4, 4):
        return Absent(f"{system.nvlinks} NVLinks do not divide among {system.gpus - 1} neighbours")
    if gpus not in (2, 4):
        return Absent(f"which {gpus} of the 4 GPUs take part decides over their NVLinks")
    total = system.nvlinks * link if gpus == 4 else link
    return _Island(gpus=gpus, kind="NVL", fastest=2 * link, total=total, ring=lambda speed: _fit(total, speed))


def _cube(system: NodeSystem, gpus: int, link: float) -> _Island | Absent:
    """The DGX-1's hybrid cube mesh: with all eight GPUs one ring per link; no other number is regular."""
    if system.gpus != 8 or gpus not in (4, 8):
        return Absent(f"{gpus} GPUs of a hybrid cube mesh: which ones decides over their NVLinks")
    links = system.nvlinks if gpus == 8 else min(4, system.nvlinks)
    total = links * link
    return _Island(gpus=gpus, kind="NVL", fastest=2 * link, total=total, ring=lambda speed: links * _fit(link, speed))


def _slots(system: NodeSystem, gpus: int, version: NcclVersion, link: float) -> _Island:
    """GPUs that reach each other over PCIe, some of them in bridged pairs (`link` above zero)."""
    crosses = system.sockets > 1 and gpus > math.ceil(system.gpus / system.sockets)
    between = between_sockets_GBps(system.processor, version) if crosses else math.inf
    through_root = not crosses and not system.p2p
    overhead = INTEL_OVERHEAD if through_root and system.processor in INTEL else 1.0
    path = min(system.pcie_GBps, between)
    bridged = system.nvlinks * link
    kind: PathWord = "SYS" if crosses else "PHB" if through_root else "PXB"

    def ring(speed: float) -> int:
        return min(_fit(system.pcie_GBps, speed * overhead), _fit(between, speed) if crosses else MOST_CHANNELS)

    split = 2 if bridged and gpus == 4 else 1
    return _Island(
        gpus=gpus, kind=kind, fastest=max(path, bridged), total=max(system.pcie_GBps, bridged), ring=ring, least=split
    )


class _Nics(Struct, frozen=True, kw_only=True):
    """The NICs of the GPUs that take part: `speed` of one, `slot` of one GPU, and the kind of path between them.

    Without GPUDirect the way leads over the processor, whatever lies between.
    """

    count: int
    gpus: int
    speed: float
    slot: float
    kind: PathWord

    @classmethod
    def of(cls, system: NodeSystem, gpus: int) -> "_Nics":
        path = _NIC_PATHS[system.nic_path]
        charged = path == "PHB" and system.processor in INTEL
        return cls(
            count=max(1, system.nics * gpus // system.gpus),
            gpus=gpus,
            speed=system.nic_gbps / 8,
            slot=(system.pcie_GBps or LOCAL_GBps) / (INTEL_OVERHEAD if charged else 1.0),
            kind=path if system.gdr else farther(path, "PHB"),
        )

    @property
    def fastest(self) -> float:
        """The best path from a GPU to a NIC."""
        return min(self.speed, self.slot)

    def channels(self, speed: float) -> int:
        """How many fit: a NIC reserves whole GB/s and is crossed by each channel once per direction."""
        one = min(_fit(self.speed, speed), _fit(self.speed, int(speed)) if speed >= 1 else MOST_CHANNELS)
        slots = _fit(self.slot, speed)
        near = min(self.count, self.gpus)
        return min(one * self.count, slots * near)


class _Best(Struct, frozen=True):
    channels: int
    speed: float


def _ring(system: NodeSystem, inside: _Island, nics: _Nics | None, steps: Speeds) -> Graph | None:
    fits = _ring_fits(inside, nics)
    fastest = nics.fastest if nics else inside.fastest
    best = _descend(fits, steps, fastest, inside.total, inside.least)
    if best is None:
        return None
    best = _duplicated(best, system.compute_capability)
    best = _raised(best, fits, steps)
    return Graph(
        pattern=RING,
        channels=best.channels,
        bw_intra=best.speed,
        bw_inter=best.speed,
        type_intra=inside.kind,
        type_inter=nics.kind if nics else "PIX",
        same_channels=nics is None or nics.count == 1,
    )


def _ring_fits(inside: _Island, nics: _Nics | None) -> Callable[[float], int]:
    """With a network a ring leaves its node once, so that one GPU of each channel spares its NVLinks."""

    def fits(speed: float) -> int:
        if nics is None:
            return min(MOST_CHANNELS, inside.ring(speed))
        spared = _spared(inside, speed)
        return min(MOST_CHANNELS, spared, nics.channels(speed))

    return fits


def _spared(inside: _Island, speed: float) -> int:
    if inside.gpus == 1:
        return MOST_CHANNELS
    if inside.kind != "NVL":
        return inside.ring(speed)
    return max(inside.ring(speed), _fit(inside.total * inside.gpus / (inside.gpus - 1), speed))


def _descend(
    fits: Callable[[float], int], steps: Speeds, fastest: float, total: float, least: int, most: int = MOST_CHANNELS
) -> _Best | None:
    """From fast to slow, until nothing better can come."""
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


def _duplicated(best: _Best, compute_capability: int) -> _Best:
    """Fast channels are split in two, so that enough of the GPU's processors copy."""
    fast = best.speed >= _DUPLICATED
    if not fast or (compute_capability > 80 and best.speed < _WIDE and best.channels > 4):
        return best
    channels = min(2 * best.channels, MOST_CHANNELS)
    return _Best(channels, best.speed / math.ceil(channels / best.channels))


def _raised(best: _Best, fits: Callable[[float], int], steps: Speeds) -> _Best:
    """The second pass: the same channels, faster while they fit."""
    for speed in reversed([step for step in steps if step > best.speed]):
        if fits(speed) < best.channels:
            break
        best = _Best(best.channels, speed)
    return best


def _tree(ring: Graph, inside: _Island, nics: _Nics | None, steps: Speeds) -> Graph:
    """As many channels as the ring has; between nodes a tree may go faster within them, up to twice the NICs' speed."""
    speed = ring.bw_intra
    for step in reversed([step for step in steps if nics and step > ring.bw_inter]):
        if speed >= 2 * ring.bw_inter or _spared(inside, step) < ring.channels:
            break
        speed = step
    return Graph(
        pattern=BALANCED_TREE if inside.gpus > 1 else TREE,
        channels=ring.channels,
        bw_intra=speed,
        bw_inter=ring.bw_inter,
        type_intra=ring.type_intra,
        type_inter=ring.type_inter,
        same_channels=ring.same_channels,
    )


def _nvls(system: NodeSystem, inside: _Island, nics: _Nics | None, steps: Speeds) -> Graph | None:
    """One channel per GPU that pulls; its own links carry it twice, those of the others once."""
    most = min(MOST_NVLS, inside.gpus)
    heads = most if nics is None else min(most, nics.count)

    def fits(speed: float) -> int:
        # Past the heads' own, each link carries every channel once and its own a second time.
        return min(heads, _fit(inside.total, speed) - 1, nics.channels(speed) if nics else heads)

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
    """As :func:`_descend`, but more channels win even where they carry less."""
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


def _agreed(found: list[Graphs]) -> Graphs:
    """What all nodes can do: the fewest channels, the least speeds, the farthest paths."""
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
