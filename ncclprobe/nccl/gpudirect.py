"""GPUDirect RDMA: whether NCCL lets a NIC read and write a GPU's memory itself, and why not.

Sources: src/transport/net_ib/gdr.cc (the files whose existence is a peer-memory module), src/init.cc dmaBufSupported,
src/graph/topo.cc:1651 and src/graph/paths.cc ncclTopoCheckGdr and ncclTopoComputePaths (v2.30.7); the differences of
older versions from their own tags. docs/how/nccl-selection.md says it in prose. Only NCCL's own InfiniBand transport is
meant: a network plugin decides for itself.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ncclprobe.facts.gpudirect import PATHS, GpuDirect
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpu
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.values import read_level, read_setting
from ncclprobe.topology.paths import PathType, Topology

NV_MEM, NV_MEM_NC, NVIDIA_PEERMEM = PATHS
_LOOKED_AT_SINCE = {NV_MEM: (2, 4), NV_MEM_NC: (2, 22), NVIDIA_PEERMEM: (2, 23)}
"""From which version on NCCL looks at each file. From 2.9.8 to 2.21 it also asked for a name that no module uses."""

_DMA_BUF, _DMA_BUF_CUDA = (2, 13, 4), (11, 7)
_PXN = (2, 12)
_C2C, _P2C, _P2C_IS_A_LEVEL = (2, 26), (2, 27), (2, 29)
_PXN_C2C_BY_DEFAULT = (2, 28)
_READS_BY_CAPABILITY = (2, 19)
_AMPERE = (8, 0)

_FAR = {PathType.PHB: "across the host bridge (PHB or NODE)", PathType.SYS: "on another processor (SYS)"}

_WITHOUT = re.compile(r"\b(GeForce|TITAN|GB10)\b")
"""Products without GPUDirect RDMA, which NCCL asks CUDA about (cudaDevAttrGPUDirectRDMASupported) and NVML keeps back.

It is for Tesla and Quadro (docs.nvidia.com/cuda/gpudirect-rdma); DGX Spark has none, for its memory is the CPU's own
(forums.developer.nvidia.com/t/348787).
"""


class Level(NamedTuple):
    """The farthest path that is still used, and what set it: a variable as it was written, or ``default``."""

    path: PathType
    origin: str = "default"

    def __str__(self) -> str:
        """Return ``the default level is PXB``, ``NCCL_NET_GDR_LEVEL=PIX``."""
        return f"the default level is {self.path.name}" if self.origin == "default" else self.origin


class KernelSupport(Struct, frozen=True):
    """How a NIC reaches GPU memory on this machine. `works` None: the files do not tell; `why` says it in words.

    What the files say are prerequisites: NCCL itself tries, when a job starts.
    """

    works: bool | None
    why: str


class Direct(Struct, frozen=True):
    """The decision for one GPU and one NIC. None: not known.

    `path` is what is compared with the level: the relay's, where NCCL goes over one (PXN). Receiving and sending
    differ: without NVLink NCCL has an old GPU's NIC write its memory but not read it.
    """

    gpu: str
    nic: str
    receives: bool | None
    sends: bool | None
    path: PathType | None
    why: str
    relay: str = ""


def user_level(settings: Settings, name: str, version: Version | None) -> Level | None:
    """Return what NCCL_NET_GDR_LEVEL or NCCL_P2P_LEVEL asks for; None where it is not set, or ignored."""
    text = settings.get(name)
    word = read_level(text, version) if text is not None else None
    return Level(PathType[word], f"{name}={text}") if word else None


def kernel_support(
    direct: GpuDirect, settings: Settings, version: Version | None, cuda: tuple[int, int]
) -> KernelSupport:
    """Return a peer-memory module that this NCCL looks for, else DMA-BUF. `cuda` is the driver's version of CUDA."""
    modules = direct.peer_memory
    seen = () if isinstance(modules, Absent) else tuple(path for path in PATHS if path in modules)
    found = next((path for path in seen if reaches(version, _LOOKED_AT_SINCE[path])), None)
    if found:
        return KernelSupport(True, f"a peer-memory module is loaded ({found})")
    works, why = _dma_buf(direct, settings, version, cuda)
    if works:
        return KernelSupport(True, why)
    if isinstance(modules, Absent):
        return KernelSupport(None, f"whether a peer-memory module is loaded is not known ({modules.why}), and {why}")
    unseen = f"NCCL {_written(version)} does not look at {seen[0]}, later versions do" if seen else "none is loaded"
    return KernelSupport(works, f"no peer-memory module: {unseen}; {why}")


def has_dma_buf(direct: GpuDirect, settings: Settings, version: Version | None, cuda: tuple[int, int]) -> bool:
    """Return whether NCCL registers GPU memory by DMA-BUF, which it prefers to a peer-memory module."""
    return bool(_dma_buf(direct, settings, version, cuda)[0])


def _written(version: Version | None) -> str:
    return ".".join(map(str, version or ()))


def _dma_buf(
    direct: GpuDirect, settings: Settings, version: Version | None, cuda: tuple[int, int]
) -> tuple[bool | None, str]:
    if not reaches(version, _DMA_BUF):
        return False, f"DMA-BUF is not known to NCCL {_written(version)}"
    if read_setting(settings, "NCCL_DMABUF_ENABLE", 1, version) == 0:
        return False, f"NCCL_DMABUF_ENABLE={settings.get('NCCL_DMABUF_ENABLE')} turns DMA-BUF off"
    if cuda < _DMA_BUF_CUDA:
        return False, f"DMA-BUF takes a driver for CUDA 11.7, this one is for {cuda[0]}.{cuda[1]}"
    if direct.driver == "proprietary":
        return False, "DMA-BUF takes NVIDIA's open kernel module, and the proprietary one is loaded"
    if direct.dma_buf is None:
        kernel = direct.kernel if isinstance(direct.kernel, Absent) else None
        why = kernel.why if kernel else "whether this old kernel has DMA-BUF for RDMA cannot be seen"
        return None, why if not isinstance(direct.driver, Absent) else direct.driver.why
    return direct.dma_buf, "DMA-BUF: open kernel module, Linux >= 5.12" if direct.dma_buf else "no driver is loaded"


def supported(gpu: Gpu) -> bool:
    """Return whether GPUs of this product have GPUDirect RDMA at all."""
    return not _WITHOUT.search(gpu.name)


def gdr_level(settings: Settings, version: Version | None) -> Level:
    """Return NCCL_NET_GDR_LEVEL, else PXB; from 2.29 on P2C, unless NCCL_NET_GDR_C2C is 0."""
    asked = user_level(settings, "NCCL_NET_GDR_LEVEL", version)
    over_c2c = reaches(version, _P2C_IS_A_LEVEL) and read_setting(settings, "NCCL_NET_GDR_C2C", 1, version)
    return asked or Level(PathType.P2C if over_c2c else PathType.PXB)


def _counts_as(path: PathType, settings: Settings, version: Version | None) -> PathType:
    """Return what a version makes of the path from a Grace's GPU to a NIC of its CPU, for the comparison with the
    level.

    P2C since 2.29. Before, C2C if NCCL_NET_GDR_C2C says so (the default from 2.27 on), else as far as the CPU is.
    """
    if path is not PathType.P2C or reaches(version, _P2C_IS_A_LEVEL):
        return path
    by_default = int(reaches(version, _P2C))
    if reaches(version, _C2C) and read_setting(settings, "NCCL_NET_GDR_C2C", by_default, version):
        return PathType.C2C
    return PathType.P2C if reaches(version, _P2C) else PathType.PHB


def _relay(topology: Topology, gpu: str, nic: str, settings: Settings, version: Version | None) -> str:
    """Return the GPU over which NCCL goes from `gpu` to `nic` (PXN), or empty."""
    relay = topology.relays.get((gpu, nic), "")
    if not relay or not reaches(version, _PXN) or read_setting(settings, "NCCL_PXN_DISABLE", 0, version) == 1:
        return ""
    over_c2c = reaches(version, _P2C) and read_setting(
        settings, "NCCL_PXN_C2C", int(reaches(version, _PXN_C2C_BY_DEFAULT)), version
    )
    return relay if topology.paths[relay, nic] is not PathType.P2C or over_c2c else ""


def decide(
    topology: Topology,
    gpus: Mapping[str, Gpu],
    nics: Iterable[str],
    settings: Settings,
    version: Version | None = None,
) -> tuple[Direct, ...]:
    """Return every pair of a GPU and a NIC, where the kernel supports it. `gpus` by the names that `topology` has."""
    level = gdr_level(settings, version)
    return tuple(
        _decide(topology, gpus, pair, level, settings, version) for pair in ((g, n) for n in nics for g in gpus)
    )


def _decide(
    topology: Topology,
    gpus: Mapping[str, Gpu],
    pair: tuple[str, str],
    level: Level,
    settings: Settings,
    version: Version | None,
) -> Direct:
    gpu, nic = pair
    relay = _relay(topology, gpu, nic, settings, version)
    path = topology.paths.get((relay or gpu, nic))
    if not supported(gpus[gpu]):
        return Direct(gpu, nic, False, False, path, f"{gpus[gpu].name} has no GPUDirect RDMA")
    if path is None:
        return Direct(gpu, nic, None, None, None, "the PCI tree does not tell how far apart they are")
    counted = _counts_as(path, settings, version)
    through = f" through {relay} (PXN)" if relay else ""
    if counted > level.path:
        where = _FAR.get(counted, f"at {counted.name}")
        later = " (from 2.27 on a NIC of the same Grace is near)" if counted is not path else ""
        return Direct(gpu, nic, False, False, counted, f"{nic} is {where}{through}, {level}{later}", relay)
    sends, why = _sends(topology, gpu, gpus[gpu], settings, version)
    near = f"{nic} is at {counted.name}{through}, within {level.path.name}"
    return Direct(gpu, nic, True, sends, counted, f"{near}; {why}" if why else near, relay)


def _sends(
    topology: Topology, name: str, gpu: Gpu, settings: Settings, version: Version | None
) -> tuple[bool | None, str]:
    """Return whether a NIC may read the GPU's memory. Before Ampere only with NVLink, or where no other GPU is.

    Up to 2.18 that held for every GPU.
    """
    asked = read_setting(settings, "NCCL_NET_GDR_READ", -2, version)
    if asked == 0:
        return False, f"NCCL_NET_GDR_READ={settings.get('NCCL_NET_GDR_READ')} stages what is sent in host memory"
    peers = [other for other in topology.gpus if other != name]
    if asked > 0 or not peers or any(topology.paths[name, peer] is PathType.NVL for peer in peers):
        return True, ""
    if not reaches(version, _READS_BY_CAPABILITY):
        return False, f"NCCL {_written(version)} stages what is sent in host memory where GPUs have no NVLink"
    if isinstance(gpu.compute, Absent):
        return None, "its compute capability is not known, so not whether it sends directly too"
    if gpu.compute < _AMPERE:
        return False, "before compute capability 8.0, without NVLink, what is sent is staged in host memory"
    return True, ""
