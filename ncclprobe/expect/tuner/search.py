"""NCCL's search for channels, for regular machines: from links and their speeds to the graphs of its cost model.

The search tries speeds from fast to slow and keeps the best of channels x speed; here the number of channels that fit
at a speed is counted from the links instead of tried path by path. Source: src/graph/search.cc:1074 ncclTopoCompute,
:1033 ncclTopoDupChannels, :726 NIC reservation, ncclTopoSearchTryNvls (v2.30.7), docs/how/nccl-cost-model.md.

It comes to what NCCL's own code finds for the machines of tests/data/nccl. Assumed, because a NodeSystem does not say:
NICs are spread evenly over the GPUs that are near them, and a job with fewer GPUs per node uses its share of them;
GPUs on PCIe that may not copy directly hang at one root port each; a processor that is not known counts as Skylake.
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
    speeds,
)
from ncclprobe.expect.tuner.graphs import BALANCED_TREE, NVLS, RING, TREE, Graph, Graphs, PathWord, farther
from ncclprobe.expect.tuner.within import Within, fit, within
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_NVLS_BETWEEN_HOSTS: NcclVersion = (2, 21, 0)
_NVLS_OF_TWO: NcclVersion = (2, 28, 7)
_ENOUGH = 0.49
"""A speed below that share of the best is not tried any more."""
_DUPLICATED = 25.0
_WIDE = 50.0
_NIC_PATHS: dict[str, PathWord] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def nvlink_domains(system: NodeSystem, shape: Shape) -> tuple[int, ...]:
    """The ranks of each node as NCCL counts nodes: hosts that share an NVLink fabric (MNNVL) are one."""
    together = system.domain_gpus // system.gpus if system.gpus else 1
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
    parts = nvlink_domains(system, shape)
    network = len(parts) > 1
    if network and not (system.nics and system.nic_gbps > 0):
        return Absent(f"the NICs of {system.name} or their speed are not known")
    found = [_one_domain(system, gpus, network, version) for gpus in sorted(set(parts))]
    for one in found:
        if isinstance(one, Absent):
            return one
    return _agreed([one for one in found if not isinstance(one, Absent)])


@lru_cache(maxsize=4096)
def _one_domain(system: NodeSystem, gpus: int, network: bool, version: NcclVersion) -> Graphs | Absent:
    inside = within(system, gpus, version)
    if isinstance(inside, Absent):
        return inside
    steps = speeds(system.compute_capability, version, network=network)
    nics = _Nics.of(system, gpus) if network else None
    ring = _ring(system, inside, nics, steps)
    if ring is None:
        return Absent(f"no channel of NCCL's speeds fits the links of {system.name}")
    tree = _tree(system, ring, inside, nics, steps)
    nvls = _nvls(system, inside, nics, steps) if _multicast(system, gpus, version) else None
    return Graphs(ring=ring, tree=tree, nvls=nvls, source=f"search over the links of {system.name}")


def _multicast(system: NodeSystem, gpus: int, version: NcclVersion) -> bool:
    """Whether NCCL has its switches reduce: not over hosts before 2.21, nor for two GPUs before 2.28.7."""
    if not system.nvls or system.fabric != "nvswitch" or system.compute_capability < 90 or gpus < 2:
        return False
    return version >= (_NVLS_BETWEEN_HOSTS if gpus > system.gpus else _NVLS_OF_TWO if gpus == 2 else (0, 0, 0))


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
        charged = (path == "PHB" or not system.gdr) and system.processor in INTEL
        twice = 2 if not system.gdr and path != "PHB" else 1  # a switch's way to the processor carries GPU and NIC
        return cls(
            count=max(1, system.nics * gpus // system.gpus),
            gpus=gpus,
            speed=system.nic_gbps / 8,
            slot=(system.to_nic_GBps or LOCAL_GBps) / (INTEL_OVERHEAD if charged else 1.0) / twice,
            kind=path if system.gdr else farther(path, "PHB"),
        )

    @property
    def fastest(self) -> float:
        """The best path from a GPU to a NIC."""
        return min(self.speed, self.slot)

    def channels(self, speed: float) -> int:
        """How many fit: a NIC reserves whole GB/s and is crossed by each channel once per direction."""
        one = min(fit(self.speed, speed), fit(self.speed, int(speed)) if speed >= 1 else MOST_CHANNELS)
        slots = fit(self.slot, speed)
        near = min(self.count, self.gpus)
        return min(one * self.count, slots * near)


class _Best(Struct, frozen=True):
    channels: int
    speed: float


def _ring(system: NodeSystem, inside: Within, nics: _Nics | None, steps: Speeds) -> Graph | None:
    fits = _ring_fits(inside, nics)
    fastest = nics.fastest if nics else inside.fastest
    first = _descend(fits, steps, fastest, inside.total, inside.least)
    if first is None:
        return None
    best = _duplicated(first, system.compute_capability)
    best = _raised(best, fits, steps)
    return Graph(
        pattern=RING,
        channels=best.channels,
        bw_intra=best.speed,
        bw_inter=best.speed,
        type_intra=inside.kind,
        type_inter=_to_nic(system, inside, nics, first) if nics else "PIX",
        same_channels=_one_path(inside, nics, first, best),
    )


def _one_path(inside: Within, nics: "_Nics | None", first: "_Best", best: "_Best") -> bool:
    """Whether all channels take one path: between nodes each starts at a NIC of its own."""
    if nics is None:
        return inside.same(best.channels, best.speed, first.channels)
    return best.channels == 1 or inside.gpus == 1 or nics.count == 1


def _to_nic(system: NodeSystem, inside: Within, nics: "_Nics", first: "_Best") -> PathWord:
    """Return how far a ring's last GPU is from its NIC: the first GPU's, over NVLink (PXN), or one of its own."""
    if inside.kind != "NVL":
        return _over_slots(inside, nics)
    lone = system.compute_capability >= 90 and inside.gpus > 1 and nics.count >= inside.gpus
    closed = first.channels <= inside.ring(first.speed)
    return farther(nics.kind, "PXN") if lone and closed else nics.kind


def _over_slots(inside: Within, nics: "_Nics") -> PathWord:
    """Without NVLink the way to the NIC leads as far as that to the farthest GPU, past a switch."""
    return farther(nics.kind, inside.kind) if inside.kind in ("PHB", "SYS") else nics.kind


def _ring_fits(inside: Within, nics: "_Nics | None") -> Callable[[float], int]:
    """With a network a ring leaves its node once, so that one GPU of each channel spares its NVLinks.

    NCCL looks first for rings that come back to their NIC, and for no more where these fill the links.
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


def _tree(system: NodeSystem, ring: Graph, inside: Within, nics: _Nics | None, steps: Speeds) -> Graph:
    """As many channels as the ring has; between nodes a tree may go faster within them, up to twice the NICs' speed."""
    if nics is None:
        return _tree_inside(ring, inside, steps)
    intra, inter = _tree_speeds(system, ring, inside, steps)
    return Graph(
        pattern=BALANCED_TREE if inside.gpus > 1 and _pairs_share(system, inside, nics) else TREE,
        channels=ring.channels,
        bw_intra=intra,
        bw_inter=inter,
        type_intra=ring.type_intra,
        type_inter=_over_slots(inside, nics),
        same_channels=ring.same_channels,
    )


def _tree_speeds(system: NodeSystem, ring: Graph, inside: Within, steps: Speeds) -> tuple[float, float]:
    """Within the node and between nodes. Over PCIe the first GPU's slot carries half of what goes to the NIC, too."""
    if inside.gpus > 1 and inside.kind != "NVL" and inside.least == 1:
        slots = system.pcie_GBps / (ring.channels + 0.5)
        speed = next((step for step in steps if step <= min(ring.bw_inter, slots)), ring.bw_inter)
        return speed, speed
    speed = ring.bw_intra
    for step in reversed([step for step in steps if step > ring.bw_inter]):
        if speed >= 2 * ring.bw_inter or inside.leaving(step) < ring.channels:
            break
        speed = step
    return speed, ring.bw_inter


def _pairs_share(system: NodeSystem, inside: Within, nics: "_Nics") -> bool:
    """Whether two GPUs can each carry half of a NIC: before Hopper over any path, since then as neighbours only."""
    return system.compute_capability < 90 or nics.count < inside.gpus


def _tree_inside(ring: Graph, inside: Within, steps: Speeds) -> Graph:
    chains = (step for step in steps if step <= inside.fastest and inside.chains(step) >= ring.channels)
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


def _nvls(system: NodeSystem, inside: Within, nics: _Nics | None, steps: Speeds) -> Graph | None:
    """One channel per GPU that pulls; its own links carry it twice, those of the others once."""
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
