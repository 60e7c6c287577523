"""What GPUDirect RDMA needs of the kernel: a peer-memory module, or DMA-BUF on both the NIC's and the GPU's side.

All of it is readable to everyone. Whether DMA-BUF really works, NCCL asks the drivers when a job starts: it registers a
dummy buffer (net_ib/gdr.cc) and reads the GPU's CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED (init.cc). No file tells either,
so these are prerequisites only.
"""

import json
import re
from collections.abc import Mapping
from typing import Literal

from ncclprobe.errors import ParseError
from ncclprobe.facts.field import attempt, learn, missing
from ncclprobe.facts.system import System
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

PATHS = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
"""The files whose existence is a peer-memory module to NCCL, as any of them (ibGdrSupportInitOnce in net_ib/gdr.cc)."""

DRIVER = "/proc/driver/nvidia/version"
DMA_BUF_KERNEL = (5, 12)
"""The first Linux whose RDMA core registers DMA-BUF memory; distributions have carried it back to older ones."""

Flavour = Literal["open", "proprietary"]


class GpuDirect(Struct, frozen=True):
    """The prerequisites. Absent in a field: could not be read.

    `peer_memory`: version by path of :data:`PATHS`, of those that exist. `kernel`: Linux's major and minor number.
    `driver`: which of NVIDIA's kernel modules is loaded, of which only the open one exports DMA-BUFs; None: neither.
    `rdma_cm`: whether /dev/infiniband has the node of the RDMA connection manager.
    """

    peer_memory: Mapping[str, str] | Absent = field(default_factory=dict)
    kernel: tuple[int, int] | Absent = DMA_BUF_KERNEL
    driver: Flavour | Absent | None = "open"
    rdma_cm: bool | Absent = True

    @property
    def dma_buf(self) -> bool | None:
        """Return whether kernel and driver are such that DMA-BUF can work. None: not known, as on an older kernel.

        Of an older kernel the number does not tell what its distribution has carried back.
        """
        if self.driver in ("proprietary", None):
            return False
        if isinstance(self.driver, Absent) or isinstance(self.kernel, Absent):
            return None
        return True if self.kernel >= DMA_BUF_KERNEL else None


@collector
def gpudirect(host: Host, system: System | Absent) -> GpuDirect:
    """Read modules, kernel and driver."""
    driver = learn(host, flavour, "read", DRIVER)
    nodes = learn(host, json.loads, "list", "/dev/infiniband")
    return GpuDirect(
        peer_memory=_peer_memory(host),
        kernel=system if isinstance(system, Absent) else attempt(lambda: kernel_version(system.kernel)),
        driver=None if missing(driver) else driver,
        rdma_cm=False if missing(nodes) else nodes if isinstance(nodes, Absent) else "rdma_cm" in nodes,
    )


def _peer_memory(host: Host) -> Mapping[str, str] | Absent:
    found = {path: learn(host, str.strip, "read", path) for path in PATHS}
    refused = [reported for reported in found.values() if isinstance(reported, Absent) and not missing(reported)]
    return refused[0] if refused else {path: reported for path, reported in found.items() if isinstance(reported, str)}


def flavour(text: str) -> Flavour:
    """Return /proc/driver/nvidia/version: ``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 570.86.15 …``."""
    match = re.search(r"^NVRM version:\s+NVIDIA UNIX (.*?)Kernel Module\b", text, re.MULTILINE)
    if not match:
        raise ParseError(f"{DRIVER}: {text[:80]!r}")
    return "open" if match[1].strip() == "Open" else "proprietary"


def kernel_version(text: str) -> tuple[int, int]:
    """Return major and minor of a release such as ``5.15.0-1053-nvidia``."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})\b", text)
    if not match:
        raise ParseError(f"kernel release: {text[:40]!r}")
    return int(match[1]), int(match[2])
