"""A machine as the cost model sees it: links and their speeds, whatever its name.

All nodes of a job are assumed to be equal, except for the number of GPUs that take part (:class:`Shape`). Bandwidths
are GB/s of 1e9 bytes per second, in one direction. Those ``as NCCL counts`` are NCCL's own constants
(src/graph/topo.h), which its search works with, not a datasheet's.
"""

from typing import Literal

from ncclprobe.model.values import Struct

NvlinkFabric = Literal["nvswitch", "mesh", "cube-mesh", "pairs", "none"]
"""Layouts of a node's NVLinks: switched, each GPU to each, the DGX-1's hybrid cube, bridged pairs, none."""
Network = Literal["ib", "roce", "efa", "tcpx", "tcpxo", "slingshot", "opa", "sockets"]
Processor = Literal["bdw", "skl", "spr", "emr", "amd", "arm", "power9", "zhaoxin", "yongfeng", "unknown"]
"""The class of processor that gives NCCL the speed between sockets; the first four are Intel's."""
NicPath = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
"""The path between a GPU and its nearest NIC, as `nvidia-smi topo -m` spells it."""
NcclVersion = tuple[int, int, int]
"""A release of NCCL: (2, 28, 9)."""
MOST_NICS = 64


class NodeSystem(Struct, frozen=True, kw_only=True):
    """One node. `gpu` is NVML's name, `compute_capability` 90 for 9.0, `gpus` the number of GPUs.

    `nvlinks` are those of one GPU, `nvlink_GBps` is one of them as NCCL counts. `domain_gpus` are joined by one NVLink
    fabric, over several nodes if that is more than `gpus`. `pcie_GBps` is a GPU's slot as NCCL counts, `p2p` whether
    GPUs reach each other over PCIe without the host, `at_roots` whether no single switch joins those of a NUMA node.
    `nics` serve GPUs, each with `nic_gbps` (1e9 bits per second), over `network` (None: unknown or none); `gdr` whether
    they access GPU memory directly. `source` is where this data comes from.
    """

    name: str
    gpu: str
    compute_capability: int
    gpus: int
    nvlinks: int = 0
    nvlink_GBps: float = 0.0
    fabric: NvlinkFabric = "none"
    domain_gpus: int = 0
    nvls: bool = False
    pcie_GBps: float
    p2p: bool = True
    at_roots: bool = False
    processor: Processor = "unknown"
    sockets: int = 1
    nics: int = 0
    nic_gbps: float = 0.0
    nic_path: NicPath = "PXB"
    network: Network | None = None
    gdr: bool = False
    source: str

    def joins(self, gpus: int) -> bool:
        """Return whether one NVLink fabric joins `gpus` GPUs of a node: a bridge has two or four."""
        return self.nvlinks > 0 and self.fabric != "none" and gpus <= (self.domain_gpus or self.gpus)

    @property
    def neighbours(self) -> int:
        """Return the number of other GPUs in its node that a GPU of a mesh has NVLinks to."""
        return min(self.domain_gpus or self.gpus, self.gpus) - 1

    @property
    def unified(self) -> bool:
        """Return whether GPU and NICs share one memory, so that data reaches a NIC without a copy (GB10)."""
        return self.compute_capability == 121

    @property
    def to_nic_GBps(self) -> float:
        """Return the rate of a GPU's link to its NICs, as NCCL counts.

        B300 with 800 Gb/s each are attached to them at Gen6, whatever the host's slot is (oracle-quickstart/oci-hpc,
        playbooks/roles/healthchecks/files/B300MP.xml: 64 GT/s below a root port of 32).
        """
        if self.unified:
            return max(self.pcie_GBps, self.nics * self.nic_gbps / 8)
        gen6 = self.compute_capability == 103 and self.nics * self.nic_gbps >= 800 * self.gpus
        return max(self.pcie_GBps, 96.0) if gen6 else self.pcie_GBps


class Shape(Struct, frozen=True):
    """The ranks of a job: the number of GPUs in use on each node, one rank each."""

    gpus: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return len(self.gpus)

    @property
    def ranks(self) -> int:
        return sum(self.gpus)
