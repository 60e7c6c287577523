"""Speeds as NCCL counts them, and the steps of its search, per version. GB/s of 1e9 bytes, one direction.

Sources: src/graph/topo.h:17 (links), src/graph/search.cc (speed arrays, v2.20.5 to v2.30.7),
docs/how/nccl-cost-model.md. What changed between versions is a row of a table, not a branch of the code.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ncclprobe.expect.system import NcclVersion, Processor

LOCAL_GBps: Final = 5000.0
"""Between a GPU and itself."""
PCI_GBps: Final = 12.0
"""A slot of Gen3 x16, below which NCCL gives its rings 256 threads only."""
MOST_CHANNELS: Final = 32
"""Of a search; the communicator has up to twice as many."""
MOST_NVLS: Final = 32
"""GPUs that pull out of the switch (NCCL_MAX_NVLS_ARITY)."""

INTEL: Final[frozenset[Processor]] = frozenset(("bdw", "skl", "spr", "emr"))
INTEL_OVERHEAD: Final = 6 / 5
"""GPU traffic across an Intel root complex costs that much more of its slot."""

_SOCKETS: Final[Mapping[Processor, float]] = MappingProxyType(
    {
        "bdw": 6.0,
        "skl": 10.0,
        "spr": 22.0,
        "emr": 40.0,
        "amd": 16.0,
        "arm": 6.0,
        "power9": 32.0,
        "zhaoxin": 6.0,
        "yongfeng": 9.0,
        "unknown": 10.0,
    }
)
"""Between two sockets; an unknown processor is taken as Skylake, the middle of them."""
_SOCKETS_BEFORE: Final[tuple[tuple[NcclVersion, Mapping[Processor, float]], ...]] = (
    ((2, 26, 0), MappingProxyType({"spr": 10.0, "emr": 10.0})),
)
_NVLINK_BEFORE: Final[tuple[tuple[NcclVersion, float], ...]] = (((2, 27, 5), 40.0), ((2, 25, 0), 20.6))
"""Up to this version a link of Blackwell's counted for that."""


def between_sockets_GBps(processor: Processor, version: NcclVersion) -> float:
    """Return what NCCL takes the link between two sockets to carry."""
    speed = _SOCKETS[processor]
    for since, before in _SOCKETS_BEFORE:
        speed = before.get(processor, speed) if version < since else speed
    return speed


def nvlink_GBps(compute_capability: int, link_GBps: float, version: NcclVersion) -> float:
    """Return one NVLink as `version` counts it, where the newest counts `link_GBps`."""
    for since, speed in _NVLINK_BEFORE:
        if version < since and compute_capability // 10 == 10:
            link_GBps = min(link_GBps, speed)
    return link_GBps


Speeds = tuple[float, ...]
_INTRA: Final[Speeds] = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
_INTER: Final[Speeds] = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_INTRA_90: Final[Speeds] = (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)
_INTER_90: Final[Speeds] = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
_INTRA_100: Final[Speeds] = (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)
_INTRA_100_BEFORE: Final[Speeds] = (90, 80, 70, 60, 50, 40, 30, 24, 20, 19)
_SLOW_100: Final[Speeds] = (42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)

_STEPS: Final[tuple[tuple[NcclVersion, int, Speeds, Speeds], ...]] = (
    ((2, 30, 0), 100, _INTRA_100, (96, 86, 80, 48, 45.1, *_SLOW_100)),
    ((2, 29, 7), 100, _INTRA_100, (96, 80, 48, 45.1, *_SLOW_100)),
    ((2, 29, 0), 100, _INTRA_100, (96, 48, 45.1, *_SLOW_100)),
    ((2, 27, 6), 100, (*_INTRA_100_BEFORE, 18), (96, 48, 45.1, *_SLOW_100)),
    ((2, 27, 5), 100, (*_INTRA_100_BEFORE, 18), (48, 45.1, *_SLOW_100)),
    ((2, 27, 0), 100, (*_INTRA_100_BEFORE, 18), (47.9, 45, *_SLOW_100)),
    ((2, 25, 0), 100, _INTRA_100_BEFORE, (48, 45, *_SLOW_100)),
    ((2, 22, 0), 90, _INTRA_90, _INTER_90),
    ((0, 0, 0), 90, (60, 50, 40, 30, 24, 20, 15, 12, 6, 3), _INTER_90),
    ((0, 0, 0), 0, _INTRA, _INTER),
)
"""Since which version, from which compute capability on: the speeds tried within a node, and with a network."""


def speeds(compute_capability: int, version: NcclVersion, *, network: bool) -> Speeds:
    """Return the speeds of a channel that the search tries, fastest first."""
    for since, least, intra, inter in _STEPS:
        if version >= since and compute_capability >= least:
            return inter if network else intra
    raise AssertionError("the last row takes everything")
