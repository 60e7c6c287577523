"""Whether GPUs may reach each other's memory."""

from collections.abc import Iterator

from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, P2pStatus, PeerAccess
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.topology.paths import PathType, of_machine

_WORDS = {
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
    "TNS": "not supported by the topology",
    "DR": "disabled by a registry key of the driver",
    "NS": "not supported",
    "U": "unknown to the driver",
}
_GPU_CLASS = Identity(0x030200, 0x10DE, 0x2335)
ADDRESSES = ("0000:03:00.0", "0000:04:00.0")
_PLACES = [PciPosition("pci0000:00", ("0000:00:01.0", "0000:01:00.0", f"0000:02:0{n}.0")) for n in (0, 1)]
_LINK = PcieLink(32.0, 16, 32.0, 16)
TREE = Pci({a: Device(a, _GPU_CLASS, place, _LINK) for a, place in zip(ADDRESSES, _PLACES, strict=True)})
TWO = box(*(replace(HEALTHY, pci=f"0000{address}") for address in ADDRESSES))
METAL, NO_LINKS = Machine(virtual=False), NvLinks(((), ()))


def access(status: P2pStatus, nvlink: P2pStatus) -> PeerAccess:
    """Return what NVML says of two GPUs, for examples."""
    both = ((0, 1), (1, 0))
    return PeerAccess(*(dict.fromkeys(both, said) for said in (status, status, nvlink)))


@applies
def several_gpus(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, where there are several."""
    return job.backend == "nccl" and (isinstance(gpus, Absent) or len(gpus.all) > 1)


@check(
    slows=True,
    bad=lambda: [(TWO, access("NS", "OK"), TREE, NO_LINKS, METAL)],
    good=lambda: [(TWO, access("OK", "OK"), TREE, NO_LINKS, METAL)],
    requires="gpu.smi-canary",
    applies=several_gpus,
)
def p2p(
    gpus: Gpus, peers: PeerAccess, pci: Pci | Absent, links: NvLinks | Absent, machine: Machine | Absent
) -> Iterator[Finding]:
    """GPUs have no access to each other's memory, though they are connected for it.

    Right: GPUs that are connected for it have access to each other's memory.
    Why: NCCL gives up where NVLink joins two GPUs and NVML denies them peer-to-peer access (graph/paths.cc, "P2P is
    disabled between NVLINK connected GPUs"), and goes through the host's memory, at about half
    the speed, where a PCIe switch does.
    Fix: NVLink: `systemctl start nvidia-fabricmanager`; look for MIG, confidential computing, a registry key of the
    driver. PCIe: turn ACS and the IOMMU's translation off, or leave it to the host. NCCL_IGNORE_DISABLED_P2P only hides
    it.
    """
    known = [status for table in (peers.read, peers.write) for status in table.values() if isinstance(status, str)]
    if not known:
        gaps = [status.why for status in peers.read.values() if isinstance(status, Absent)]
        raise Unlearned(gaps[0] if gaps else "NVML tells of no pair of GPUs")
    paths = {} if isinstance(pci, Absent) else of_machine(pci, gpus, links, Fabric()).paths
    virtual, stops = isinstance(machine, Machine) and machine.virtual is True, False
    for one, other in sorted(peers.read):
        denied = _denied(peers, one, other)
        if one > other or not denied:
            continue
        pair, evidence = f"GPU{one} and GPU{other}", "nvmlDeviceGetP2PStatus (nvidia-smi topo -p2p rw)"
        message = f"peer-to-peer access is {_WORDS[denied]} ({denied})"
        path = paths.get((f"GPU{one}", f"GPU{other}"))
        if _joined(peers, one, other) or path is PathType.NVL:
            stops = True  # NCCL gives up: nothing goes through the host's memory
            yield fail(
                pair, f"{message}, though NVLink connects them", blame="node", action="repair", evidence=evidence
            )
        elif path is None or path > PathType.PXB or virtual or denied == "GNS" or _desktop(gpus, one, other):
            continue  # NCCL would not use it, or only the hypervisor or the product can change it
        else:
            far = f"{message}, though one PCIe switch connects both ({path.name})"
            yield warn(pair, far, blame="node", action="fix-image", evidence=evidence)
    if not stops:
        yield from _by_design(peers)


def _denied(peers: PeerAccess, one: int, other: int) -> str:
    """Return NVML's word for a pair of which reads or writes are not allowed, in one direction at least; empty:
    none.
    """
    said = [table.get(pair) for table in (peers.read, peers.write) for pair in ((one, other), (other, one))]
    return next((word for word in said if isinstance(word, str) and word != "OK"), "")


def _joined(peers: PeerAccess, one: int, other: int) -> bool:
    return peers.nvlink.get((one, other)) == "OK" and peers.nvlink.get((other, one)) == "OK"


def _desktop(gpus: Gpus, *numbers: int) -> bool:
    """Return whether one of them is a product without peer-to-peer access over PCIe (nccl-tests#287)."""
    return any("GeForce" in gpu.name or "TITAN" in gpu.name for gpu in gpus.all if gpu.index in numbers)


def _by_design(peers: PeerAccess) -> Iterator[Finding]:
    """Yield one note where no pair has access: NCCL then goes through the host's memory for all of them."""
    words = {_denied(peers, one, other) for one, other in peers.read}
    if words and "" not in words and not any(status == "OK" for status in peers.nvlink.values()):
        message = f"no pair has peer-to-peer access ({', '.join(sorted(words))}): NCCL uses host memory"
        yield note("GPUs", message, evidence="nvmlDeviceGetP2PStatus (nvidia-smi topo -p2p rw)")
