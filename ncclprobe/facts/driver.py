"""NVIDIA's kernel driver, fabric manager and IMEX service, and the prerequisites of GPUDirect RDMA.

Every user may read the driver's version. The fabric manager is a service of the host: a container sees neither its
program nor its process, so their absence there proves nothing.

IMEX lets machines of one NVLink rack share memory. Its guide (docs.nvidia.com/multi-node-nvlink-systems/imex-guide):
nodes_config.cfg lists one address per line and must be the same on all nodes; `nvidia-imex-ctl -q` prints READY once
the domain is up. Neither needs privileges. In a container the service usually runs outside, and neither is visible.

GPUDirect RDMA needs a peer-memory module, or DMA-BUF support in both the NIC's and the GPU's driver. When a job starts,
NCCL asks the drivers whether DMA-BUF works: it registers a dummy buffer (net_ib/gdr.cc) and reads the GPU's
CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED (init.cc). No file shows either, so these are only prerequisites.
"""

import re
from collections.abc import Mapping
from typing import Literal

from ncclprobe.facts.field import attempt, learn, missing
from ncclprobe.facts.machine import System
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

NODES = "/etc/nvidia-imex/nodes_config.cfg"
_LONGEST_STATE = 40


class Imex(Struct, frozen=True):
    """`nodes`: the domain's addresses, in order. `state`: the service's own word, such as READY."""

    nodes: tuple[str, ...] | Absent
    state: str | Absent


@collector
def imex(host: Host, gpus: Gpus) -> Imex:
    """Read nodes_config.cfg and run nvidia-imex-ctl -q if a GPU belongs to a multi-node NVLink domain."""
    if not any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in gpus.all):
        raise Failed("no GPU is part of a cluster of machines")
    return Imex(learn(host, nodes, "read", NODES), learn(host, state, "run", "nvidia-imex-ctl", "-q"))


def nodes(text: str) -> tuple[str, ...]:
    """Parse nodes_config.cfg: one address per line, # begins a comment. Raises ParseError if there are too many."""
    found = [line.partition("#")[0].strip() for line in text.splitlines()]
    listed = tuple(line for line in found if line)
    if len(listed) > bounds.IMEX_NODES:
        raise ParseError(f"{NODES}: {len(listed)} nodes")
    return listed


def state(text: str) -> str:
    """Return the last line of ``nvidia-imex-ctl -q``. Raises ParseError if it is empty."""
    lines = text.strip().splitlines()
    if not lines or len(lines[-1]) > _LONGEST_STATE:
        raise ParseError(f"nvidia-imex-ctl -q: {text[:80]!r}")
    return lines[-1].strip()


VERSION = "/proc/driver/nvidia/version"
PID_FILE = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
_PROCESS = "nv-fabricmanager"[:15]  # what the kernel keeps of a name (TASK_COMM_LEN)

Flavour = Literal["open", "proprietary"]


class Driver(Struct, frozen=True):
    """The loaded kernel module: version and flavour. Only the open flavour exports DMA-BUFs."""

    version: str
    flavour: Flavour


class FabricManager(Struct, frozen=True):
    """The installed fabric manager's version, and whether its process runs. Absent: not visible."""

    version: str
    running: bool | Absent


@collector
def driver(host: Host) -> Driver:
    """Read /proc/driver/nvidia/version. Needs no privileges; Missing if the module is not loaded or is hidden."""
    return loaded(host.ask("read", VERSION))


def loaded(text: str) -> Driver:
    """Parse the "NVRM version" line, which has two forms. Raises ParseError.

    ``NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug …`` and ``NVIDIA UNIX Open Kernel Module for x86_64 570.158.01
    Release Build (…)``.
    """
    match = re.search(r"^NVRM version: (NVIDIA UNIX .*?)\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE | re.ASCII)
    if not match:
        raise ParseError(f"{VERSION}: {text[:120]!r}")
    return Driver(match[2], "open" if "Open Kernel Module" in match[1] else "proprietary")


@collector
def fabric_manager(host: Host) -> FabricManager:
    """Read ``nv-fabricmanager --version`` and the process in its pid file. Needs no privileges; fails in containers."""
    version = fabric_manager_version(host.ask("run", "nv-fabricmanager", "--version"))
    return FabricManager(version, attempt(lambda: _running(host)))


def fabric_manager_version(text: str) -> str:
    """Parse ``Fabric Manager version is : 535.104.05``. Raises ParseError."""
    match = re.search(r"Fabric Manager version is\s*:\s*(\d+(?:\.\d+)+)", text, re.ASCII)
    if not match:
        raise ParseError(f"nv-fabricmanager --version: {text[:120]!r}")
    return match[1]


def _running(host: Host) -> bool:
    """Return whether the process in the pid file is the fabric manager. Without the file, it was not started."""
    try:
        pid = int(host.ask("read", PID_FILE))
    except Missing:
        return False
    except ValueError:
        raise ParseError(f"{PID_FILE}: no number") from None
    try:
        return host.ask("read", f"/proc/{pid}/comm").strip() == _PROCESS
    except Missing:
        return False


PATHS = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
"""Any of these files means to NCCL that a peer-memory module is loaded (ibGdrSupportInitOnce in net_ib/gdr.cc)."""

DMA_BUF_KERNEL = (5, 12)
"""The first Linux whose RDMA core registers DMA-BUF memory; distributions have backported it to older ones."""


class GpuDirect(Struct, frozen=True):
    """Prerequisites of GPUDirect RDMA. Absent in a field: could not be read.

    `peer_memory`: version by path, for each of :data:`PATHS` that exists. `kernel`: Linux's major and minor number.
    `driver`: the flavour of NVIDIA's kernel module that is loaded; None: no module.
    """

    peer_memory: Mapping[str, str] | Absent = field(default_factory=dict)
    kernel: tuple[int, int] | Absent = DMA_BUF_KERNEL
    driver: Flavour | Absent | None = "open"

    @property
    def dma_buf(self) -> bool | None:
        """Return whether kernel and driver allow DMA-BUF. None: unknown.

        An older kernel's version does not show what its distribution has backported.
        """
        if self.driver in ("proprietary", None):
            return False
        if isinstance(self.driver, Absent) or isinstance(self.kernel, Absent):
            return None
        return True if self.kernel >= DMA_BUF_KERNEL else None


@collector
def gpudirect(host: Host, system: System | Absent, driver: Driver | Absent) -> GpuDirect:
    """Read which peer-memory modules are loaded, and combine them with the kernel's and the driver's version."""
    return GpuDirect(
        peer_memory=_peer_memory(host),
        kernel=system if isinstance(system, Absent) else attempt(lambda: kernel_version(system.kernel)),
        driver=driver.flavour if isinstance(driver, Driver) else None if missing(driver) else driver,
    )


def _peer_memory(host: Host) -> Mapping[str, str] | Absent:
    found = {path: learn(host, str.strip, "read", path) for path in PATHS}
    refused = [reported for reported in found.values() if isinstance(reported, Absent) and not missing(reported)]
    return refused[0] if refused else {path: reported for path, reported in found.items() if isinstance(reported, str)}


def kernel_version(text: str) -> tuple[int, int]:
    """Parse major and minor of a release such as ``5.15.0-1053-nvidia``. Raises ParseError."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})\b", text)
    if not match:
        raise ParseError(f"kernel release: {text[:40]!r}")
    return int(match[1]), int(match[2])
