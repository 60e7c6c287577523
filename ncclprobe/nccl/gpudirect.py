"""How NCCL lets two GPUs of a node, and a GPU and a NIC, access each other's memory, and whether it uses NVLS.

Sources between GPUs: src/graph/paths.cc ncclTopoCheckP2p, src/transport/p2p.cc:130, src/transport/shm.cc:61,
src/transport/nvls.cc ncclNvlsInit, src/graph/search.cc:1124 (v2.30.7); older versions from their own tags. Both GPUs
are assumed to belong to ranks of one host that share /dev/shm. Not modelled: NCCL prefers the network if both GPUs
reach a NIC below their own switch faster than each other (bandwidths would be needed).

Sources between a GPU and a NIC: src/transport/net_ib/gdr.cc (the files that show a peer-memory module), src/init.cc
dmaBufSupported, src/graph/topo.cc:1651 and src/graph/paths.cc ncclTopoCheckGdr and ncclTopoComputePaths (v2.30.7); the
differences of older versions from their own tags. This covers only NCCL's own InfiniBand transport: a network plugin
decides for itself. In prose: docs/maintainers/nccl.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import PATHS, GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.nccl_selection import NvlsChoice
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.paths import PathType, Topology, device_topology
from ncclprobe.nccl.values import read_level, read_setting

NV_MEM, NV_MEM_NC, NVIDIA_PEERMEM = PATHS
_LOOKED_AT_SINCE = {NV_MEM: (2, 4), NV_MEM_NC: (2, 22), NVIDIA_PEERMEM: (2, 23)}
"""The first version of NCCL that checks each file. From 2.9.8 to 2.21 it also checked a name that no module uses."""

_DMA_BUF, _DMA_BUF_CUDA = (2, 13, 4), (11, 7)
_PXN = (2, 12)
_C2C, _P2C, _P2C_IS_A_LEVEL = (2, 26), (2, 27), (2, 29)
_PXN_C2C_BY_DEFAULT = (2, 28)
_READS_BY_CAPABILITY = (2, 19)
_AMPERE = (8, 0)

_FAR = {PathType.PHB: "across the host bridge (PHB or NODE)", PathType.SYS: "on another processor (SYS)"}

_WITHOUT = r"\b(GeForce|TITAN|GB10)\b"
"""Products without GPUDirect RDMA. NCCL asks CUDA (cudaDevAttrGPUDirectRDMASupported); NVML does not report it.

It exists for Tesla and Quadro (docs.nvidia.com/cuda/gpudirect-rdma). DGX Spark has none, because its memory is the
CPU's own (forums.developer.nvidia.com/t/348787).
"""


class Level(NamedTuple):
    """The farthest path that is still used, and its origin: a variable as it was written, or ``default``."""

    path: PathType
    origin: str = "default"

    def __str__(self) -> str:
        """Return ``the default level is PXB``, ``NCCL_NET_GDR_LEVEL=PIX``."""
        return f"the default level is {self.path.name}" if self.origin == "default" else self.origin


class KernelSupport(Struct, frozen=True):
    """How a NIC accesses GPU memory on this machine. `works` None: the files do not decide; `why` is the reason.

    The files are only prerequisites: NCCL itself tries when a job starts.
    """

    works: bool | None
    why: str


class Direct(Struct, frozen=True):
    """The decision for one GPU and one NIC. None: unknown.

    `path` is compared with the level; it is the relay's if NCCL uses one (PXN). Receiving and sending differ: without
    NVLink NCCL lets an old GPU's NIC write its memory but not read it.
    """

    gpu: str
    nic: str
    receives: bool | None
    sends: bool | None
    path: PathType | None
    why: str
    relay: str = ""


def user_level(settings: Settings, name: str, version: Version | None) -> Level | None:
    """Return the level set by NCCL_NET_GDR_LEVEL or NCCL_P2P_LEVEL; None if it is not set, or ignored."""
    text = settings.get(name)
    word = read_level(text, version) if text is not None else None
    return Level(PathType[word], f"{name}={text}") if word else None


def kernel_support(
    direct: GpuDirect, settings: Settings, version: Version | None, cuda: tuple[int, int]
) -> KernelSupport:
    """Return a peer-memory module that this NCCL checks for, otherwise DMA-BUF. `cuda` is the driver's CUDA version."""
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
        return False, f"DMA-BUF needs a driver for CUDA 11.7, but this one is for {cuda[0]}.{cuda[1]}"
    if direct.driver == "proprietary":
        return False, "DMA-BUF needs NVIDIA's open kernel module, but the proprietary one is loaded"
    if direct.dma_buf is None:
        kernel = direct.kernel if isinstance(direct.kernel, Absent) else None
        why = kernel.why if kernel else "whether this old kernel has DMA-BUF for RDMA cannot be seen"
        return None, why if not isinstance(direct.driver, Absent) else direct.driver.why
    return direct.dma_buf, "DMA-BUF: open kernel module, Linux >= 5.12" if direct.dma_buf else "no driver is loaded"


def supported(gpu: Gpu) -> bool:
    """Return whether this product supports GPUDirect RDMA."""
    return not re.search(_WITHOUT, gpu.name)


def gdr_level(settings: Settings, version: Version | None) -> Level:
    """Return NCCL_NET_GDR_LEVEL, otherwise PXB; from 2.29 on P2C, unless NCCL_NET_GDR_C2C is 0."""
    asked = user_level(settings, "NCCL_NET_GDR_LEVEL", version)
    over_c2c = reaches(version, _P2C_IS_A_LEVEL) and read_setting(settings, "NCCL_NET_GDR_C2C", 1, version)
    return asked or Level(PathType.P2C if over_c2c else PathType.PXB)


def _counts_as(path: PathType, settings: Settings, version: Version | None) -> PathType:
    """Return how a version classifies the path from a Grace's GPU to a NIC of its CPU, for comparison with the level.

    P2C since 2.29. Before, C2C if NCCL_NET_GDR_C2C enables it (the default from 2.27 on), otherwise the distance to the
    CPU.
    """
    if path is not PathType.P2C or reaches(version, _P2C_IS_A_LEVEL):
        return path
    by_default = int(reaches(version, _P2C))
    if reaches(version, _C2C) and read_setting(settings, "NCCL_NET_GDR_C2C", by_default, version):
        return PathType.C2C
    return PathType.P2C if reaches(version, _P2C) else PathType.PHB


def _relays(topology: Topology, settings: Settings, version: Version | None) -> Mapping[tuple[str, str], str]:
    """Return the relay GPU (PXN) for each pair of GPU and NIC that NCCL connects through one."""
    if not reaches(version, _PXN) or read_setting(settings, "NCCL_PXN_DISABLE", 0, version) == 1:
        return {}
    if reaches(version, _P2C) and read_setting(
        settings, "NCCL_PXN_C2C", int(reaches(version, _PXN_C2C_BY_DEFAULT)), version
    ):
        return topology.relays
    found = topology.relays.items()
    return {pair: relay for pair, relay in found if relay and topology.paths[relay, pair[1]] is not PathType.P2C}


def decide(
    topology: Topology,
    gpus: Mapping[str, Gpu],
    nics: Iterable[str],
    settings: Settings,
    version: Version | None = None,
) -> tuple[Direct, ...]:
    """Return the decision for every pair of GPU and NIC, if the kernel supports it. `gpus` as named in `topology`."""
    level, relays = gdr_level(settings, version), _relays(topology, settings, version)
    sends = {name: _sends(topology, name, gpu, settings, version) for name, gpu in gpus.items() if supported(gpu)}
    counts = {path: _counts_as(path, settings, version) for path in PathType}
    found = []
    for nic in nics:
        for gpu in gpus:
            relay = relays.get((gpu, nic), "")
            path = topology.paths.get((relay or gpu, nic))
            if gpu not in sends:
                found.append(Direct(gpu, nic, False, False, path, f"{gpus[gpu].name} has no GPUDirect RDMA"))
            elif path is None:
                why = "the PCI tree does not show how far apart they are"
                found.append(Direct(gpu, nic, None, None, None, why))
            else:
                found.append(_decide((gpu, nic), relay, path, counts[path], level, sends[gpu]))
    return tuple(found)


def nearest_nics(gpus: Gpus | Absent, pci: Pci | Absent, fabric: Fabric | Absent) -> list[PathType]:
    """Return the distance from each GPU to its nearest NIC; none if it is not known."""
    if isinstance(gpus, Absent) or isinstance(pci, Absent) or isinstance(fabric, Absent):
        return []
    nics = {device.name: normal(device.pci) for device in fabric.devices if isinstance(device.pci, str)}
    paths = device_topology(pci, gpus, Absent("not asked"), nics).paths
    rows = [[path for nic in nics if (path := paths.get((f"GPU{gpu.index}", nic)))] for gpu in gpus.all]
    return [min(row) for row in rows if row]


def _decide(
    pair: tuple[str, str], relay: str, path: PathType, counted: PathType, level: Level, sending: tuple[bool | None, str]
) -> Direct:
    """Return NCCL's decision for a GPU and a NIC at `path`, which counts as `counted`."""
    gpu, nic = pair
    through = f" through {relay} (PXN)" if relay else ""
    if counted > level.path:
        where = _FAR.get(counted, f"at {counted.name}")
        later = " (from 2.27 on a NIC of the same Grace is near)" if counted is not path else ""
        return Direct(gpu, nic, False, False, counted, f"{nic} is {where}{through}, {level}{later}", relay)
    sends, why = sending
    near = f"{nic} is at {counted.name}{through}, within {level.path.name}"
    return Direct(gpu, nic, True, sends, counted, f"{near}; {why}" if why else near, relay)


def _sends(
    topology: Topology, name: str, gpu: Gpu, settings: Settings, version: Version | None
) -> tuple[bool | None, str]:
    """Return whether a NIC may read the GPU's memory. Before Ampere only with NVLink, or if there is no other GPU.

    Up to 2.18 this applied to every GPU.
    """
    asked = read_setting(settings, "NCCL_NET_GDR_READ", -2, version)
    if asked == 0:
        return False, f"NCCL_NET_GDR_READ={settings.get('NCCL_NET_GDR_READ')} stages what is sent in host memory"
    peers = [other for other in topology.gpus if other != name]
    if asked > 0 or not peers or any(topology.paths[name, peer] is PathType.NVL for peer in peers):
        return True, ""
    if not reaches(version, _READS_BY_CAPABILITY):
        return False, f"NCCL {_written(version)} stages the data in host memory if the GPUs have no NVLink"
    if isinstance(gpu.compute, Absent):
        return None, "its compute capability is unknown, so it may not send directly"
    if gpu.compute < _AMPERE:
        return False, "before compute capability 8.0, without NVLink, what is sent is staged in host memory"
    return True, ""


Maker = Literal["amd", "intel", "zhaoxin", "arm", "power", ""]
Transport = Literal["P2P", "SHM", "NET"]

NEAR_BY_DEFAULT = (2, 23)
_DISABLED_IS_REPORTED = (2, 12)
_NVLS, _NVLS_FOR_TWO, _HOPPER, _MULTICAST_CUDA = (2, 17), (2, 29), (9, 0), (12, 1)


class PeerTransport(Struct, frozen=True):
    """NCCL's transport between two GPUs. `transport` None: unknown.

    `broken`: NVML denies P2P to GPUs that NVLink joins, so NCCL fails to start ("P2P is disabled between NVLINK
    connected GPUs") unless NCCL_IGNORE_DISABLED_P2P=1 lets it use another transport.
    """

    one: str
    other: str
    transport: Transport | None
    path: PathType | None
    why: str
    broken: bool = False


def maker(cpus: Cpus, machine: str) -> Maker:
    """Return the processors' maker as NCCL distinguishes them; `machine` is uname's. Empty: unknown to NCCL."""
    if machine.startswith(("aarch64", "arm")):
        return "arm"
    if machine.startswith("ppc64"):
        return "power"
    model = cpus.model.lower()
    words: dict[str, Maker] = {"amd": "amd", "intel": "intel", "zhaoxin": "zhaoxin", "centaur": "zhaoxin"}
    return next((cpu_maker for word, cpu_maker in words.items() if word in model), "")


def p2p_level(settings: Settings, version: Version | None, cpu: Maker, gpus: int) -> Level:
    """Return NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, otherwise PXB, and SYS between the two GPUs of an AMD machine.

    Up to 2.22 the default was SYS for any number of GPUs, and PXB for processors of Intel, Zhaoxin and Arm's makers.
    """
    if read_setting(settings, "NCCL_P2P_DISABLE", 0, version) == 1:
        return Level(PathType.LOC, f"NCCL_P2P_DISABLE={settings.get('NCCL_P2P_DISABLE')}")
    asked = user_level(settings, "NCCL_P2P_LEVEL", version)
    if asked:
        return asked
    if reaches(version, NEAR_BY_DEFAULT):
        return Level(PathType.SYS if cpu == "amd" and gpus <= 2 else PathType.PXB)
    return Level(PathType.PXB if cpu in ("arm", "intel", "zhaoxin") else PathType.SYS)


def peer_transports(
    topology: Topology,
    peers: PeerAccess | Absent,
    settings: Settings,
    level: Level,
    version: Version | None = None,
) -> tuple[PeerTransport, ...]:
    """Return the transport of every pair of GPUs, the lower number first."""
    return tuple(
        _peer_transport(topology, pair, peers, settings, level, version) for pair in combinations(topology.gpus, 2)
    )


def _peer_transport(
    topology: Topology,
    pair: tuple[str, str],
    peers: PeerAccess | Absent,
    settings: Settings,
    level: Level,
    version: Version | None,
) -> PeerTransport:
    path = topology.paths[pair]
    if path is None:
        return PeerTransport(*pair, None, None, "the PCI tree does not show how far apart they are")
    if path > level.path:
        return PeerTransport(*pair, _fallback_transport(settings), path, f"{path.name}, {level}")
    ignore = read_setting(settings, "NCCL_IGNORE_DISABLED_P2P", 0, version)
    relayed = path is PathType.NVB  # NCCL then asks about each hop, over a GPU that is not known here
    if relayed or (ignore == 2 and reaches(version, _DISABLED_IS_REPORTED)):
        return PeerTransport(*pair, "P2P", path, f"{path.name}, within {level.path.name}")
    status = _status(peers, pair)
    if status is None:
        return PeerTransport(
            *pair, None, path, f"{path.name}, within {level.path.name}; NVML does not say whether P2P works"
        )
    if status == "OK":
        return PeerTransport(*pair, "P2P", path, f"{path.name}, within {level.path.name}")
    broken = path <= PathType.NVB and ignore == 0
    return PeerTransport(
        *pair,
        _fallback_transport(settings),
        path,
        f"{path.name}, but NVML reports {status} of P2P between them",
        broken,
    )


def _status(peers: PeerAccess | Absent, pair: tuple[str, str]) -> str | None:
    """Return NVML's word if it denies reads or writes, OK if it allows both, None if it does not report it."""
    if isinstance(peers, Absent):
        return None
    one, other = (int(name.removeprefix("GPU")) for name in pair)
    answers = [table.get((one, other)) for table in (peers.read, peers.write)]
    denied = [word for word in answers if isinstance(word, str) and word != "OK"]
    if denied:
        return denied[0]
    return "OK" if all(word == "OK" for word in answers) else None


def _fallback_transport(settings: Settings) -> Transport:
    """Return the transport without P2P: shared memory, and without that the network."""
    return "NET" if read_setting(settings, "NCCL_SHM_DISABLE", 0) == 1 else "SHM"


def nvls(gpus: Gpus, links: NvLinks | Absent, settings: Settings, version: Version | None = None) -> NvlsChoice:
    """Return whether NVLS can be used with one rank per GPU, and the first reason if not.

    Files and NVML cannot prove more than "yes": NCCL also asks CUDA for multicast, which fails if the fabric manager is
    unhealthy.
    """
    if not reaches(version, _NVLS):
        return NvlsChoice(False, f"NCCL {'.'.join(map(str, version or ()))} has none: it came with 2.17")
    if read_setting(settings, "NCCL_NVLS_ENABLE", 2, version) == 0:
        return NvlsChoice(False, f"NCCL_NVLS_ENABLE={settings.get('NCCL_NVLS_ENABLE')} turns it off")
    alive = [gpu for gpu in gpus.all if not gpu.lost]
    least = 2 if reaches(version, _NVLS_FOR_TWO) else 3
    if len(alive) < least:
        return NvlsChoice(False, f"{len(alive)} GPU{'s' * (len(alive) != 1)}: it takes {least} of one node")
    if gpus.cuda < _MULTICAST_CUDA:
        return NvlsChoice(False, f"the driver is for CUDA {gpus.cuda[0]}.{gpus.cuda[1]}: multicast came with 12.1")
    if any(gpu.mig is True for gpu in alive):
        return NvlsChoice(False, "MIG is on")
    capabilities = [gpu.compute for gpu in alive if not isinstance(gpu.compute, Absent)]
    if any(capability < _HOPPER for capability in capabilities):
        return NvlsChoice(False, f"compute capability {'.'.join(map(str, min(capabilities)))}: it takes 9.0")
    switched = _has_switches(links, [gpu.index for gpu in alive])
    if switched is False:
        return NvlsChoice(False, "no NVSwitch joins the GPUs")
    if switched is None or len(capabilities) < len(alive):
        return NvlsChoice(None, "NVML does not report which GPUs these are, or which devices their links reach")
    # GPUs that have not joined the fabric have no multicast.
    for fabric in [gpu.fabric for gpu in alive]:
        if isinstance(fabric, GpuFabric) and fabric.state in ("not-started", "in-progress"):
            return NvlsChoice(False, f"a GPU's registration with the NVLink fabric is {fabric.state}")
        if isinstance(fabric, GpuFabric) and fabric.state == "completed" and fabric.status:
            return NvlsChoice(False, f"a GPU's registration with the NVLink fabric failed (NVML error {fabric.status})")
    return NvlsChoice(True, "NVSwitches, compute capability 9.0 or more, and a driver with multicast")


def _has_switches(links: NvLinks | Absent, gpus: Sequence[int]) -> bool | None:
    """Return whether every GPU has an active link to an NVSwitch; None if NVML does not report it."""
    if isinstance(links, Absent):
        return None
    rows = [links.gpus[index] for index in gpus if index < len(links.gpus)]
    if any(isinstance(row, Absent) for row in rows):
        return None
    active = [[link for link in row if link.state == "active"] for row in rows if not isinstance(row, Absent)]
    return bool(active) and all(any(link.remote == "switch" for link in row) for row in active)
