"""The links within one node, and how many of NCCL's channels fit on them at a speed: counted, not tried path by path.

Source: src/graph/search.cc:1074 ncclTopoCompute and :330 ncclTopoSearchRecGpu (v2.30.7), docs/how/nccl-cost-model.md.
"""

import math
from collections.abc import Callable

from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.tuner.constants import (
    INTEL,
    INTEL_OVERHEAD,
    MOST_CHANNELS,
    LOCAL_GBps,
    between_sockets_GBps,
    nvlink_GBps,
)
from ncclprobe.expect.tuner.graphs import PathWord
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_PATIENCE = 256
"""Steps that the search takes over channels on one path, each a step per GPU and one more, before it mixes paths."""
_ON_A_SWITCH = 4
"""More GPUs than that on one socket are on two switches, as 4U servers are built."""


class Within(Struct, frozen=True, kw_only=True):
    """The links of one node: how many channels fit at a speed, within it alone, and how many of them on one path.

    `fastest` is the best path between two GPUs, `total` what leaves one GPU, `least` the fewest channels to try. `path`
    is null where every ring takes the same one, `open` counts those that leave the node by a NIC, null: as many.
    """

    gpus: int
    kind: PathWord
    fastest: float
    total: float
    ring: Callable[[float], int]
    path: Callable[[float], int] | None = None
    open: Callable[[float], int] | None = None
    least: int = 1

    def chains(self, speed: float) -> int:
        """As `ring`, for chains within the node: of two GPUs, or two bridged pairs, each takes one direction only."""
        return self.ring(speed) * (2 if self.gpus == 2 or self.least == 2 else 1)

    def leaving(self, speed: float) -> int:
        """Return how many fit that leave the node, so that one GPU of each spares its links."""
        return MOST_CHANNELS if self.gpus == 1 else max(self.ring(speed), self.open(speed) if self.open else 0)

    def same(self, channels: int, speed: float, found: int) -> bool:
        """Return whether all `channels` take one path, `found` of them before NCCL doubles them."""
        fits = (self.path or self.ring)(speed)
        return channels <= fits and found * (self.gpus + 1) <= _PATIENCE


def within(system: NodeSystem, gpus: int, version: NcclVersion) -> Within | Absent:
    """Return the links within a node, by how they are laid."""
    if gpus == 1:
        return Within(gpus=1, kind="LOC", fastest=LOCAL_GBps, total=LOCAL_GBps, ring=lambda _: MOST_CHANNELS)
    link = nvlink_GBps(system.compute_capability, system.nvlink_GBps, version)
    joined = system.nvlinks and link
    if joined and system.fabric == "nvswitch":
        total = system.nvlinks * link
        spread = total * gpus / (gpus - 1)
        return Within(
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
    if joined and system.fabric == "pairs" and gpus == 2:
        total = system.nvlinks * link
        return Within(gpus=2, kind="NVL", fastest=total, total=total, ring=lambda speed: fit(total, speed))
    if not system.pcie_GBps:
        return Absent(f"the speed of the slots of {system.name} is not known")
    return _slots(system, gpus, version, link if joined else 0.0)


def fit(capacity: float, speed: float) -> int:
    """Return how many channels of `speed` a link carries; NCCL rounds what is left to thousandths."""
    return math.floor(round(capacity / speed, 6))


def _mesh(system: NodeSystem, gpus: int, link: float) -> Within | Absent:
    """Each GPU joined to each: directed Hamiltonian cycles, of which an odd share of four GPUs lacks one."""
    others = system.gpus - 1
    if system.nvlinks % others:
        return _uneven(system, gpus, link)
    pair = system.nvlinks // others * link

    def ring(speed: float) -> int:
        shared = fit(pair, speed)
        return (gpus - 1) * shared - (1 if gpus == 4 and shared % 2 else 0)

    return Within(
        gpus=gpus,
        kind="NVL",
        fastest=pair,
        total=pair * (gpus - 1),
        ring=ring,
        path=lambda speed: fit(pair, speed),
        open=lambda speed: gpus * fit(pair, speed),
    )


def _uneven(system: NodeSystem, gpus: int, link: float) -> Within | Absent:
    """Return four GPUs with one link to two neighbours and two to the third (half a DGX-1): every link is in some
    ring.
    """
    if (system.gpus, system.nvlinks) != (4, 4):
        return Absent(f"{system.nvlinks} NVLinks do not divide among {system.gpus - 1} neighbours")
    if gpus not in (2, 4):
        return Absent(f"which {gpus} of the 4 GPUs take part decides over their NVLinks")
    total = system.nvlinks * link if gpus == 4 else link
    return Within(gpus=gpus, kind="NVL", fastest=2 * link, total=total, ring=lambda speed: fit(total, speed))


def _cube(system: NodeSystem, gpus: int, link: float) -> Within | Absent:
    """Return the DGX-1's hybrid cube mesh: with all eight GPUs one ring per link; no other number is regular.

    Faster than a link are only the pairs of links, which form one ring of all eight.
    """
    if system.gpus != 8 or gpus not in (4, 8):
        return Absent(f"{gpus} GPUs of a hybrid cube mesh: which ones decides over their NVLinks")
    links = system.nvlinks if gpus == 8 else min(4, system.nvlinks)

    def path(speed: float) -> int:
        return 2 * fit(2 * link, speed)

    def ring(speed: float) -> int:
        return links * fit(link, speed) if speed <= link else path(speed)

    return Within(gpus=gpus, kind="NVL", fastest=2 * link, total=links * link, ring=ring, path=path)


def _slots(system: NodeSystem, gpus: int, version: NcclVersion, link: float) -> Within:
    """Return GPUs that reach each other over PCIe, some of them in bridged pairs (`link` above zero)."""
    crosses = system.sockets > 1 and gpus > math.ceil(system.gpus / system.sockets)
    between = between_sockets_GBps(system.processor, version) if crosses else math.inf
    through_root = not crosses and (not system.p2p or gpus > _ON_A_SWITCH)
    overhead = INTEL_OVERHEAD if through_root and system.processor in INTEL else 1.0
    path = min(system.pcie_GBps, between)
    bridged = system.nvlinks * link
    kind: PathWord = "SYS" if crosses else "PHB" if through_root else "PXB"

    def ring(speed: float) -> int:
        return min(fit(system.pcie_GBps, speed * overhead), fit(between, speed) if crosses else MOST_CHANNELS)

    def crossing(speed: float) -> int:
        # One ring each way, from the NIC of one socket to that of the other: not over AMD's, where NCCL forbids it.
        many = system.processor != "amd" and system.nics * gpus >= system.sockets * system.gpus
        return 2 if crosses and many and 2 * speed <= system.pcie_GBps and speed <= between else 0

    split = 2 if bridged and gpus == 4 else 1
    return Within(
        gpus=gpus,
        kind=kind,
        fastest=max(path, bridged),
        total=max(system.pcie_GBps, bridged),
        ring=ring,
        open=crossing if gpus > 2 else None,
        least=split,
    )
