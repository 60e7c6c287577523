"""GPUDirect RDMA: whether NICs reach the memory of the GPUs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ncclprobe.checks.env import as_evidence
from ncclprobe.checks.ib.fixtures import (
    NO_NCCL,
    ONE_NODE,
    PLAIN,
    TWO_NODES,
    fabric,
    gpus,
    pci,
)
from ncclprobe.checks.ib.gpu_nic_affinity import METAL
from ncclprobe.checks.ib.selection import active, listed, rdma_job, single_node, taken
from ncclprobe.errors import Unlearned
from ncclprobe.facts.gpudirect import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.gpudirect import Direct, KernelSupport, decide, kernel_support, supported
from ncclprobe.nccl.hcas import fast, gbps
from ncclprobe.topology.paths import of_machine

_NOTHING = GpuDirect({}, (5, 15), "proprietary")
_BARE = NvLinks(((),) * 4)
_PREVENT = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C", "NCCL_PXN_DISABLE", "NCCL_PXN_C2C")
_ORIGIN = ("/sys/module", "/sys/kernel/mm/memory_peers", "/proc/driver/nvidia/version", "/sys/bus/pci/devices")


@check(
    slows=True,
    bad=lambda: [(fabric(), PLAIN, _NOTHING, gpus(), pci(), _BARE, NO_NCCL, TWO_NODES, METAL)],
    good=lambda: [(fabric(), PLAIN, _NOTHING, gpus(), pci(), _BARE, NO_NCCL, ONE_NODE, METAL)],
    required=True,
    applies=rdma_job,
)
def gdr(
    fabric: Fabric,
    settings: Settings,
    direct: GpuDirect,
    gpus: Gpus,
    pci: Pci | Absent,
    nvlinks: NvLinks | Absent,
    software: Software | Absent,
    launch: Launch | Absent,
    machine: Machine | Absent,
) -> Iterator[Finding]:
    """GPUDirect RDMA is not available for a GPU.

    Right: GPUDirect RDMA is available for every GPU.
    Why: without GPUDirect RDMA every byte is copied through host memory, at a fraction of the rate (nccl#1676: 10 GB/s
    instead of 180). NCCL needs a way in the kernel, a peer-memory module that it looks for or DMA-BUF, and a NIC
    within a PCI switch of the GPU, or of one that NVLink joins to it (src/graph/paths.cc).
    Fix: modprobe nvidia-peermem (NCCL >= 2.23), or the open kernel module on Linux >= 5.12. NCCL_NET_GDR_LEVEL=SYS
    would allow farther paths; measured bandwidth shows whether the processor carries them well.
    """
    ports = fast(active(taken(fabric, settings)))
    version = software.nccl_version if isinstance(software, Software) else None
    able = {f"GPU{gpu.index}": gpu for gpu in gpus.all if not gpu.lost and supported(gpu)}
    yield from _without(gpus)
    if not ports or not able:
        return
    available = kernel_support(direct, settings, version, gpus.cuda)
    if available.works is None:
        raise Unlearned(available.why)
    tell = _how_bad(ports, launch, nvlinks)
    if not available.works:
        yield tell("GPUDirect RDMA", available.why, **_whose(available), evidence=_ORIGIN)
    elif isinstance(pci, Absent):
        yield note("GPUDirect RDMA", f"how far GPUs and NICs are apart is not known: {pci.why}", evidence=_ORIGIN)
    else:
        nics = list(dict.fromkeys(port.device for port in ports))
        used = Fabric(tuple(device for device in fabric.devices if device.name in nics))
        topology = of_machine(pci, gpus, nvlinks, used)
        able = {name: gpu for name, gpu in able.items() if name in topology.gpus}
        made, usual = (decide(topology, able, nics, by, version) for by in (settings, Settings()))
        yield from _by_settings(made, usual, settings)
        unsure = tell is note or _another_tree(machine, settings)
        yield from _too_far(made, usual, list(able), note if unsure else warn)


def _how_bad(ports: Sequence[Port], launch: Launch | Absent, nvlinks: NvLinks | Absent) -> Callable[..., Finding]:
    """Return a note where nothing leaves the node, or only management's NICs do; a failure for NVLink across nodes."""
    large = any(port.link_layer == "InfiniBand" or (gbps(port) or 0) >= 100 for port in ports)
    if single_node(launch) or not large:
        return note
    linked = isinstance(nvlinks, NvLinks) and any(isinstance(row, tuple) and row for row in nvlinks.gpus)
    return fail if linked and isinstance(launch, Launch) and launch.several_nodes else warn


def _another_tree(machine: Machine | Absent, settings: Settings) -> bool:
    """Return whether the PCI tree is a hypervisor's, or NCCL is given one by a file: what we see may not be what
    counts.
    """
    return (isinstance(machine, Machine) and machine.virtual is True) or bool(settings.get("NCCL_TOPO_FILE"))


def _without(gpus: Gpus) -> Iterator[Finding]:
    names = [f"GPU{gpu.index}" for gpu in gpus.all if not supported(gpu)]
    if names:
        product = next(gpu.name for gpu in gpus.all if not supported(gpu))
        yield note(listed(names), f"{product} has no GPUDirect RDMA", evidence=seen("NVML", product))


def _whose(available: KernelSupport) -> dict[str, Any]:
    if "NCCL_DMABUF_ENABLE" in available.why:
        return {"blame": "job", "action": "fix-job"}
    return {"blame": "image", "action": "fix-image"}


def _reached(made: Sequence[Direct], gpu: str) -> bool | None:
    """Return whether some NIC writes the GPU's memory; None where that is not known of any, and no known one does."""
    said = [direct.receives for direct in made if direct.gpu == gpu]
    return True if True in said else None if None in said else False


def _by_settings(made: Sequence[Direct], usual: Sequence[Direct], settings: Settings) -> Iterator[Finding]:
    """Yield what NCCL would do, and the job's own settings prevent."""
    gpus = list(dict.fromkeys(direct.gpu for direct in made))
    lost = [gpu for gpu in gpus if _reached(usual, gpu) and not _reached(made, gpu)]
    name = next((name for name in _PREVENT if settings.get(name) is not None), "")
    if lost and name:
        yield _prevented(settings, name, f"disables GPUDirect RDMA for {listed(lost)}")
    pairs = zip(made, usual, strict=True)
    staged = {now.gpu for now, before in pairs if before.sends and now.receives and now.sends is False}
    if staged:
        message = f"copies what {listed(sorted(staged))} send through host memory"
        yield _prevented(settings, "NCCL_NET_GDR_READ", message)


def _prevented(settings: Settings, name: str, message: str) -> Finding:
    entry = settings.effective[name]
    remedy = f"unset {name}, unless it works around a fault; it then hides that fault"
    return warn(name, message, blame="job", action="fix-job", evidence=as_evidence(entry), remedy=remedy)


def _too_far(
    made: Sequence[Direct], usual: Sequence[Direct], gpus: Sequence[str], tell: Callable[..., Finding]
) -> Iterator[Finding]:
    """Yield GPUs that are farther from every NIC than the level allows: a fault only where most are near enough."""
    unknown = [gpu for gpu in gpus if _reached(usual, gpu) is None]
    if unknown:
        message = "its distance from the NICs is not known, so it is not known whether NCCL uses GPUDirect RDMA"
        yield note(listed(unknown), message, evidence=_ORIGIN)
    far = [gpu for gpu in gpus if _reached(usual, gpu) is False and _reached(made, gpu) is not True]
    near = [gpu for gpu in gpus if _reached(usual, gpu)]
    odd = 2 * len(near) > len(gpus)
    for why, names in _alike(usual, far).items():
        message = f"no GPUDirect RDMA: the nearest NIC {why}, and no relay GPU (PXN) has a nearer one"
        if odd:
            for gpu in names:
                yield tell(gpu, message, blame="node", action="repair", evidence=_ORIGIN)
        else:
            built = ". At least half of the GPUs have none: this is how the machine is built"
            yield note(listed(names), message + built, evidence=_ORIGIN)


def _alike(made: Sequence[Direct], gpus: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs by what is said of the NIC that is nearest to them."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        known = [(direct.path, direct.why) for direct in made if direct.gpu == gpu and direct.path is not None]
        found.setdefault(min(known, key=lambda pair: pair[0])[1], []).append(gpu)
    return found
