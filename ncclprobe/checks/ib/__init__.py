"""InfiniBand and RoCE: the NICs and ports that NCCL's own transport takes, one at a time and against each other.

Here: which ports the checks are about, which of them serve the GPUs, and what the others of their kind are like.
"""

from collections.abc import Collection, Iterable, Sequence

from ncclprobe.facts.infiniband import Fabric, Port, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.model.registry import CheckGroup, applies
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.stats import median_low
from ncclprobe.model.values import Struct
from ncclprobe.nccl.hcas import layer_fits, select
from ncclprobe.nccl.paths import PathType, Topology, machine_topology

GDR_GROUP = CheckGroup("gdr", "GPUDirect RDMA is not available between a GPU and a NIC near it")
LOSSES_GROUP = CheckGroup("losses", "A port loses packets, or goes down repeatedly")
ROCE_GROUP = CheckGroup("roce", "An Ethernet port is not configured as RoCE needs")

SYSFS = "/sys/class/infiniband"


@applies
def rdma_job(job: Job, fabric: Fabric) -> bool:
    """to jobs on GPUs (--backend nccl) if there are RDMA devices that NCCL's own transport can use."""
    return job.backend == "nccl" and any(layer_fits(port) for device in hardware(fabric) for port in device.ports)


@applies
def rdma_or_soft_job(job: Job, fabric: Fabric) -> bool:
    """to jobs on GPUs (--backend nccl) if there are RDMA devices, or soft-RoCE, that NCCL's own transport uses."""
    return job.backend == "nccl" and any(layer_fits(port) for port in meant(fabric).ports)


def hardware(fabric: Fabric) -> tuple[RdmaDevice, ...]:
    """Return the devices without those that are software only: soft-RoCE has no place on any bus."""
    return tuple(device for device in fabric.devices if device.pci is not None)


def meant(fabric: Fabric) -> Fabric:
    """Return the devices that a job is meant to use: software devices only if there are no others."""
    return Fabric(hardware(fabric) or fabric.devices)


def taken(fabric: Fabric, settings: Settings) -> tuple[Port, ...]:
    """Return the ports that NCCL would take if all were active: of a known layer, not kept out by NCCL_IB_HCA."""
    found = select(meant(fabric), settings.get("NCCL_IB_HCA") or "")
    parts = (found.taken, found.beyond, found.down, found.closed, found.unknown)
    wanted = {port.name for part in parts for port in part}
    return tuple(port for port in fabric.ports if port.name in wanted)


def active(ports: Iterable[Port]) -> tuple[Port, ...]:
    """Return the ports that carry data."""
    return tuple(port for port in ports if port.state == "ACTIVE")


def kind(fabric: Fabric, port: Port) -> tuple[str, str, int]:
    """Return what makes ports siblings: the same board, link layer and number."""
    device = next(device for device in fabric.devices if device.name == port.device)
    names = [text for text in (device.board, device.model) if isinstance(text, str) and text]
    layer = port.link_layer if isinstance(port.link_layer, str) else ""
    return (names[0] if names else "", layer, port.number)


def single_node(launch: Launch | Absent) -> bool:
    """Return whether the job is known to stay on this node, if NCCL needs no NIC."""
    return isinstance(launch, Launch) and launch.nnodes == 1


def distances(pci: Pci | Absent, gpus: Gpus | Absent, fabric: Fabric) -> Topology:
    """Return how far GPUs and NICs are apart; empty if that cannot be known."""
    if isinstance(pci, Absent) or isinstance(gpus, Absent):
        return Topology()
    return machine_topology(pci, gpus, Absent("not needed for these distances"), fabric)


class Group(Struct, frozen=True):
    """GPUs that have the same nearest NICs: within a PCI switch or on one Grace. No `nics`: they are farther away."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]

    def share(self, working: Collection[str]) -> float:
        """Return how many of the NICs that are `working` there are for each of the GPUs."""
        return sum(nic in working for nic in self.nics) / len(self.gpus)


def groups(topology: Topology, nics: Sequence[str]) -> tuple[Group, ...]:
    """Return the GPUs by the nearest of `nics`; GPUs without a known distance are left out."""
    found: dict[tuple[str, ...], list[str]] = {}
    for gpu in topology.gpus:
        known = {nic: path for nic in nics if (path := topology.paths.get((gpu, nic))) is not None}
        if known:
            best = min(known.values())
            near = tuple(nic for nic, path in known.items() if path == best) if best <= PathType.P2C else ()
            found.setdefault(near, []).append(gpu)
    return tuple(Group(tuple(gpus), near) for near, gpus in found.items())


def typical(found: Sequence[Group], working: Collection[str]) -> float:
    """Return the share that at least half of the GPUs have."""
    shares = [group.share(working) for group in found for _ in group.gpus]
    return median_low(sorted(shares)) if shares else 0.0


def serving(found: Iterable[Group]) -> frozenset[str]:
    """Return the NICs that are the nearest of some GPU."""
    return frozenset(nic for group in found for nic in group.nics)


def listed(names: Sequence[str]) -> str:
    """Return names for a person: ``GPU0``, ``GPU0 and GPU1``, ``GPU0, GPU1 and GPU2``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))
