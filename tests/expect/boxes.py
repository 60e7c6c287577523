"""Regular machines for search, costs and network, with the links of docs/maintainers/nccl.md; and captured ones."""

from functools import cache
from pathlib import Path
from typing import Any

import zoo

from ncclprobe.engine.collect import collect
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.search import Graphs, graphs
from ncclprobe.expect.visible import Facts
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

LATEST: NcclVersion = (2, 30, 7)
H100 = NodeSystem(
    name="H100", gpu="NVIDIA H100 80GB HBM3", compute_capability=90, gpus=8, nvlinks=18, nvlink_GBps=20.6,
    fabric="nvswitch", domain_gpus=8, nvls=True, pcie_GBps=48, processor="spr", sockets=2, nics=8, nic_gbps=400,
    network="ib", gdr=True, source="src/graph/topo.h (v2.30.7)",
)  # fmt: skip
AMPERE = {"compute_capability": 80, "nvlinks": 12, "nvlink_GBps": 20.0, "nvls": False, "pcie_GBps": 24}
A100 = replace(H100, name="A100", gpu="NVIDIA A100-SXM4-40GB", processor="amd", nic_gbps=200, **AMPERE)
B200 = replace(H100, name="B200", gpu="NVIDIA B200", compute_capability=100, nvlink_GBps=40.1)
V100 = replace(A100, name="V100", compute_capability=70, nvlinks=6, pcie_GBps=12, processor="skl")
NO_NVLINK = {"nvlinks": 0, "nvlink_GBps": 0, "fabric": "none", "domain_gpus": 0}
PLAIN = replace(A100, name="PCIe", gpus=2, pcie_GBps=12, processor="skl", **NO_NVLINK)
MESH = replace(A100, name="mesh", gpus=4, domain_gpus=4, fabric="mesh")
SOCKETS = replace(PLAIN, name="TCP", gpus=1, sockets=1, network="sockets", gdr=False, nic_path="PHB")
MEGA = replace(H100, name="A3 Mega", nic_gbps=200, network="tcpxo")
HIGH = replace(H100, name="A3 High", nics=4, nic_gbps=200, network="tcpx")
P4DE = replace(A100, name="p4de", nics=4, nic_gbps=100, network="efa")
ALPS = replace(H100, name="Alps", gpus=4, domain_gpus=4, nics=4, nic_gbps=200, network="slingshot")
RACK = replace(B200, name="GB200", gpus=4, domain_gpus=72)
GB300 = replace(B200, name="GB300", gpus=4, domain_gpus=64, nics=4, nic_gbps=800, pcie_GBps=96)
NODE, PAIR = Shape((8,)), Shape((8, 8))
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def found(system: NodeSystem, shape: Shape, version: NcclVersion = LATEST) -> Graphs:
    """What the search finds, which must be something."""
    answer = graphs(system, shape, version)
    assert isinstance(answer, Graphs), answer
    return answer


CAPTURES = sorted(zoo.CAPTURES.glob("*.jsonl")) + sorted((zoo.CAPTURES / "sick").glob("*.jsonl"))
WANTED = (Gpus, NvLinks, Pci, Fabric, Interfaces, Cpus, PeerAccess, GpuDirect)


@cache
def facts_of(path: Path) -> tuple[Facts, Firmware | Absent]:
    """Those of one capture."""
    known: Any = collect(load(path), discover("ncclprobe.facts", Collector))
    return Facts(*(known[kind] for kind in WANTED)), known[Firmware]


def named(name: str) -> tuple[Facts, Firmware | Absent]:
    """Those of the capture of this name, healthy or sick."""
    (path,) = [path for path in CAPTURES if path.stem == name]
    return facts_of(path)
