"""A communicator as NCCL's cost model looks at it: its graphs, its ranks and nodes, and what its tables go by."""

from typing import Literal

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.constants import MOST_CHANNELS
from ncclprobe.expect.tuner.graphs import Graph, Graphs
from ncclprobe.expect.tuner.search import nvlink_domains
from ncclprobe.expect.tuner.tuning import Algorithm, Tuning, tuning
from ncclprobe.model.values import Struct

Function = Literal["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"]


class Communicator(Struct, frozen=True):
    """A communicator: `nodes` as NCCL counts them, and what its tables are looked up by."""

    graphs: Graphs
    system: NodeSystem
    ranks: int
    nodes: int
    version: NcclVersion

    @property
    def tuning(self) -> Tuning:
        """Return the constants of this version."""
        return tuning(self.version)

    @property
    def per_node(self) -> float:
        """Return ranks of each node, on average."""
        return self.ranks / self.nodes

    @property
    def generation(self) -> int:
        """Return the row of a table: Volta, Ampere, Hopper, Blackwell."""
        cc = self.system.compute_capability
        return 3 if cc >= 100 else 2 if cc >= 90 else 1 if cc >= 80 else 0

    @property
    def column(self) -> int:
        """Return the column of a table: one node, two, more."""
        return min(self.nodes, 3) - 1

    def graph(self, algorithm: Algorithm) -> Graph:
        """Return the channels that `algorithm` uses."""
        nvls = self.graphs.nvls or self.graphs.ring
        trees = self.graphs.tree
        return {"Tree": trees, "Ring": self.graphs.ring, "NVLS": nvls, "NVLSTree": nvls, "PAT": trees}[algorithm]

    def steps(self, function: Function) -> int:
        """Return how often a ring passes something on."""
        if function == "AllReduce":
            return 2 * (self.ranks - 1)
        return self.ranks - 1 if function in ("AllGather", "ReduceScatter") else self.ranks

    @property
    def channels(self) -> int:
        """Return twice the channels of the search, and twice more on fast rings between nodes
        (src/graph/connect.cc:460).

        Before 2.28 never fewer than NVLS has; Hopper's fast rings first, Blackwell's since 2.25.
        """
        most = 2 * MOST_CHANNELS if self.version >= (2, 25, 0) else MOST_CHANNELS
        count = min(most, 2 * min(self.graphs.ring.channels, self.graphs.tree.channels))
        hopper = self.system.compute_capability // 10 == 9
        fast = hopper or (self.system.compute_capability >= 90 and self.version >= (2, 25, 0))
        if fast and self.nodes > 1 and self.graphs.ring.bw_intra > 45 and count < 16:
            count *= 2
        return max(count, self.nvls_channels) if self.version < (2, 28, 0) and self.graphs.nvls else count

    @property
    def nvls_channels(self) -> int:
        """Return those of the switches' reduction, whatever the size of a call (src/transport/nvls.cc:203)."""
        if self.system.compute_capability < 100 or self.version < (2, 25, 0):
            return 16
        if self.version < (2, 27, 0):
            return 32
        if self.nodes == 1:
            return 24
        return self._nvls_channels_between() if self.version >= (2, 30, 0) else 32

    def _nvls_channels_between(self) -> int:
        """Return Blackwell's number, since 2.30: fewer where the NICs are the limit."""
        nic = min(self.system.nic_gbps / 8, self.system.to_nic_GBps)
        if nic < 48 or self.nodes == 2:
            return 32
        return 24 if nic < 96 or self.per_node <= 8 else 32


def communicator(graphs: Graphs, system: NodeSystem, shape: Shape, version: NcclVersion) -> Communicator:
    """That of all ranks of `shape`."""
    return Communicator(graphs, system, shape.ranks, len(nvlink_domains(system, shape)), version)
