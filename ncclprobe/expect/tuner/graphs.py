"""What NCCL's search hands to its cost model: channels, speeds and types of path for each pattern.

Found by :mod:`.search` from the links of a machine, or read by :mod:`.dumps` from what NCCL itself wrote. Source:
src/graph/search.cc:1074 ncclTopoCompute and src/include/graph.h (v2.30.7), docs/how/nccl-cost-model.md.
"""

from typing import Final, Literal

from ncclprobe.model.values import Struct

PathWord = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
"""NCCL's kinds of path, nearest first (those of 2.28 and later)."""

WORDS: Final[tuple[PathWord, ...]] = (
    "LOC",
    "NVL",
    "NVB",
    "C2C",
    "PIX",
    "PXB",
    "P2C",
    "PXN",
    "PHB",
    "SYS",
    "NET",
    "DIS",
)

BALANCED_TREE, SPLIT_TREE, TREE, RING, NVLS, COLLNET_DIRECT = range(1, 7)
"""The numbers after ``Pattern``: the two first differ in which GPU of a node talks to which of its neighbours."""


class Graph(Struct, frozen=True, kw_only=True):
    """One pattern. `bw_intra` and `bw_inter` are GB/s of one channel, within a node and between nodes.

    `channels` are those of the search, before NCCL doubles them. `latency_inter_us` is what the net plugin says.
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
    """The patterns of one communicator; None: NCCL has none there. `source` says who found them."""

    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    source: str


def farther(one: PathWord, other: PathWord) -> PathWord:
    """Return the worse of two kinds of path."""
    return max(one, other, key=WORDS.index)
