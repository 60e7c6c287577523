"""NCCL's constants, version by version: speeds of links, the steps of its search, constants of its cost model.

Speeds are GB/s of 1e9 bytes in one direction. Sources: src/graph/topo.h:17 (links), src/graph/search.cc (speed arrays,
v2.20.5 to v2.30.7), docs/maintainers/nccl.md. A change between versions is a row of a table, not a branch in the code.

The constants of the cost model are from src/graph/tuning.cc and src/plugin/tuner, compared tag by tag from v2.20.5 to
v2.30.7; latencies are microseconds, bandwidths GB/s. The newest are :class:`Tuning`'s defaults, and :data:`BEFORE` has
what each release replaced. A version older than 2.20 counts as 2.20: no supported torch includes one.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal

from ncclprobe.expect.system import NcclVersion, Processor
from ncclprobe.model.values import Struct, field, replace

LOCAL_GBps: Final = 5000.0
"""Between a GPU and itself."""
PCI_GBps: Final = 12.0
"""A Gen3 x16 slot; below this NCCL gives its rings 256 threads only."""
MOST_CHANNELS: Final = 32
"""The most channels of a search; the communicator has up to twice as many."""
MOST_NVLS: Final = 32
"""The most GPUs that pull from the switch (NCCL_MAX_NVLS_ARITY)."""

INTEL: Final[frozenset[Processor]] = frozenset(("bdw", "skl", "spr", "emr"))
INTEL_OVERHEAD: Final = 6 / 5
"""GPU traffic across an Intel root complex uses this much more of its slot."""

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
"""Between two sockets; an unknown processor counts as Skylake, the middle value."""
_SOCKETS_BEFORE: Final[tuple[tuple[NcclVersion, Mapping[Processor, float]], ...]] = (
    ((2, 26, 0), MappingProxyType({"spr": 10.0, "emr": 10.0})),
)
_NVLINK_BEFORE: Final[tuple[tuple[NcclVersion, float], ...]] = (((2, 27, 5), 40.0), ((2, 25, 0), 20.6))
"""Before this version, a Blackwell NVLink counted for this rate."""


def between_sockets_GBps(processor: Processor, version: NcclVersion) -> float:
    """Return NCCL's figure for the link between two sockets."""
    speed = _SOCKETS[processor]
    for since, before in _SOCKETS_BEFORE:
        speed = before.get(processor, speed) if version < since else speed
    return speed


def nvlink_GBps(compute_capability: int, link_GBps: float, version: NcclVersion) -> float:
    """Return the rate of one NVLink as `version` counts it, given the newest version's figure."""
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
"""Minimum version, minimum compute capability, and the speeds tried within a node, and with a network."""


def speeds(compute_capability: int, version: NcclVersion, *, network: bool) -> Speeds:
    """Return the channel speeds that the search tries, fastest first."""
    for since, least, intra, inter in _STEPS:
        if version >= since and compute_capability >= least:
            return inter if network else intra
    raise AssertionError("the last row takes everything")


Algorithm = Literal["Tree", "Ring", "NVLS", "NVLSTree", "PAT"]
Protocol = Literal["LL", "LL128", "Simple"]
Hardware = Literal["NVLINK", "PCI", "NET"]
Latencies = Mapping[Algorithm, tuple[float, float, float]]
"""Microseconds for LL, LL128 and Simple."""
Limits = tuple[tuple[float, float, float], ...]
"""Rows Volta, Ampere, Hopper, Blackwell; columns one node, two, more."""

ALGORITHMS: Final[tuple[Algorithm, ...]] = ("Tree", "Ring", "NVLS", "NVLSTree", "PAT")
"""In NCCL's order, which breaks ties. CollNet needs SHARP or a plugin, and is left out."""
PROTOCOLS: Final[tuple[Protocol, ...]] = ("LL", "LL128", "Simple")

_ONES: Final = (1.0, 1.0, 1.0, 1.0)
_LL: Final = (*_ONES, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, *_ONES)
_LL128: Final = (*_ONES, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, *(0.9,) * 4, 1.0, 1.0, 1.0)
_SIMPLE: Final = (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9)
CORRECTIONS: Final[Mapping[Protocol, tuple[float, ...]]] = MappingProxyType(
    {"LL": _LL, "LL128": _LL128, "Simple": _SIMPLE}
)
"""The share of its bandwidth that a tree keeps at 64 B x 2^n."""

_ZERO: Final = (0.0, 0.0, 0.0)
_BASE: Final[Latencies] = MappingProxyType(
    {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4), "NVLS": _ZERO, "NVLSTree": _ZERO, "PAT": (8.0, 8.0, 8.0)}
)
_NVLINK: Final[Latencies] = MappingProxyType(
    {
        "Tree": (0.6, 1.25, 4.0),
        "Ring": (0.6, 1.9, 3.4),
        "NVLS": (0.0, 0.0, 25.0),
        "NVLSTree": (0.0, 0.0, 25.0),
        "PAT": (0.0, 0.0, 4.0),
    }
)
_PCI: Final[Latencies] = MappingProxyType(
    {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7), "NVLS": _ZERO, "NVLSTree": _ZERO, "PAT": (0.0, 0.0, 4.0)}
)
_NET: Final[Latencies] = MappingProxyType(
    {
        "Tree": (5.0, 8.5, 14.0),
        "Ring": (2.7, 4.0, 14.0),
        "NVLS": (0.0, 0.0, 18.0),
        "NVLSTree": (0.0, 0.0, 20.9),
        "PAT": (0.0, 0.0, 14.0),
    }
)


def _replace_simple(latencies: Latencies, simple: Mapping[Algorithm, float]) -> Latencies:
    """Replace the values for Simple in `latencies`."""
    return MappingProxyType({name: (*each[:2], simple.get(name, each[2])) for name, each in latencies.items()})


_LL_MAX: Final[Limits] = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128: Final[Limits] = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_TREE_LL128: Final[Limits] = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE: Final[Limits] = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_TREE: Final[Limits] = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))


def _replace_row(limits: Limits, row: int, *values: float) -> Limits:
    """Replace one row of `limits`."""
    one, two, more = values
    return (*limits[:row], (one, two, more), *limits[row + 1 :])


class Tuning(Struct, frozen=True, kw_only=True):
    """One version's constants. The defaults are those of 2.30.

    `ring_ll` is LL's share of the bus, `ring_ll_copies` that of an operation within a node that does not reduce.
    `gathers_ratio` is what NVLS keeps when it gathers or scatters. `nvls_ratio` is what NVLS kept of its bandwidth
    before it had an efficiency per generation (None: it has). `corrected` is the number of steps of the trees'
    correction, and `nvls_tree_corrected` whether Blackwell's NVLSTree uses them too. `inter_steps` are added to the 2(M
    - 1) steps of an all-reduce that cross the network. `ll128_generations`: None: every one since Volta.
    `ll128_lonely`: what LL128 keeps with one GPU per node. `lonely_net`: one GPU per node waits as long for the network
    as a tree does.
    """

    base: Latencies = field(default_factory=lambda: _BASE)
    nvlink: Latencies = field(default_factory=lambda: _NVLINK)
    pci: Latencies = field(default_factory=lambda: _PCI)
    net: Latencies = field(default_factory=lambda: _NET)
    ll_max: Limits = _LL_MAX
    ring_ll128: Limits = _RING_LL128
    tree_ll128: Limits = _TREE_LL128
    tree: Limits = _TREE
    nvls_tree: Limits | None = _NVLS_TREE
    nvls_efficiency: tuple[float, float, float, float] = (0.0, 0.0, 0.85, 0.74)
    nvls_ratio: float | None = None
    nvls_gathers: Literal["whole", "share"] = "share"
    gathers_ratio: float = 1.0
    ring_ll: float = 0.5
    ring_ll_copies: float = 0.5
    pat: float = 0.75
    corrected: int = 23
    nvls_tree_corrected: bool = True
    inter_steps: int = 0
    ll128_generations: tuple[int, ...] | None = None
    ll128_lonely: float = 0.92
    lonely_net: bool = True
    ring_returns: bool = False

    def hardware(self, kind: Hardware) -> Latencies:
        """Return the latency of one hop."""
        return {"NVLINK": self.nvlink, "PCI": self.pci, "NET": self.net}[kind]


BEFORE: Final[tuple[tuple[NcclVersion, Mapping[str, Any]], ...]] = (
    ((2, 30, 0), {"nvls_tree": _replace_row(_NVLS_TREE, 3, 0.0, 96.0, 43.8)}),
    ((2, 29, 7), {"ring_ll128": _replace_row(_RING_LL128, 3, 34.5, 34.6, 34.5)}),
    ((2, 29, 0), {"ring_ll128": _replace_row(_RING_LL128, 3, 73.4, 34.6, 73.4), "nvls_tree_corrected": False}),
    (
        (2, 28, 9),
        {"nvls_tree": _replace_row(_NVLS_TREE, 3, 0.0, 96.0, 43.1), "net": _replace_simple(_NET, {"NVLSTree": 14.0})},
    ),
    ((2, 28, 7), {"ring_ll128": _replace_row(_RING_LL128, 3, 73.4, 73.4, 73.4)}),
    (
        (2, 28, 0),
        {
            "nvls_tree": None,
            "nvls_ratio": 5 / 6,
            "tree_ll128": _replace_row(_TREE_LL128, 3, 73.4, 73.4, 58.0),
            "tree": _replace_row(_TREE, 3, 77.4, 82.8, 72.0),
        },
    ),
    ((2, 27, 0), {"nvls_gathers": "whole", "ll128_generations": (70, 80, 90, 100, 120)}),
    (
        (2, 25, 0),
        {
            "ll128_generations": (70, 80, 90),
            "ll_max": _replace_row(_LL_MAX, 3, *_LL_MAX[2]),
            "ring_ll128": _replace_row(_RING_LL128, 3, *_RING_LL128[2]),
            "tree_ll128": _replace_row(_TREE_LL128, 3, *_TREE_LL128[2]),
            "tree": _replace_row(_TREE, 3, *_TREE[2]),
        },
    ),
    ((2, 24, 0), {"pat": 0.85, "ring_returns": True}),
    (
        (2, 23, 0),
        {
            "pat": 0.0,
            "gathers_ratio": 5 / 6,
            "base": _replace_simple(_BASE, {"Tree": 0.0}),
            "nvlink": _replace_simple(_NVLINK, {"Tree": 28.0}),
            "pci": _replace_simple(_PCI, {"Tree": 28.0}),
            "net": _replace_simple(_NET, {"Tree": 28.0, "NVLSTree": 14.0}),
            "inter_steps": 2,
            "ll128_lonely": 0.7,
            "lonely_net": False,
        },
    ),
    (
        (2, 21, 0),
        {
            "ring_ll": 0.25,
            "ring_ll_copies": 1 / 3,
            "nvlink": _replace_simple(_NVLINK, {"Tree": 28.0, "NVLS": 23.0, "NVLSTree": 23.0}),
            "ll_max": (*_LL_MAX[:2], _LL_MAX[1], _LL_MAX[1]),
        },
    ),
)
"""Version and the constants that differed before it, newest first: each also applies to all older versions."""


@cache
def tuning(version: NcclVersion) -> Tuning:
    """Return the constants of `version`."""
    found = Tuning()
    for since, differences in BEFORE:
        found = replace(found, **differences) if version < since else found
    return found
