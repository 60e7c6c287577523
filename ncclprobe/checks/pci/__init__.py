"""The PCI bus between processors, GPUs and NICs."""

from collections.abc import Mapping

from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.machine import Machine, is_virtual
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Device, Pci, normal
from ncclprobe.model.registry import CheckGroup, applies
from ncclprobe.model.snapshot import Absent, Job

LINK_GROUP = CheckGroup("link", "A PCIe link carries less than it could")


@applies
def bare_metal(job: Job, machine: Machine | Absent) -> bool:
    """to jobs on GPUs, if this is not a virtual machine."""
    return job.backend == "nccl" and not is_virtual(machine)


def gpu_devices(pci: Pci | Absent, gpus: Gpus | Absent) -> dict[str, Device]:
    """Return sysfs's record of the GPUs, by ``GPU3``, or by address if NVML does not number them."""
    if isinstance(pci, Absent):
        return {}
    if isinstance(gpus, Absent):
        return {device.address: device for device in pci.of("gpu")}
    places = {f"GPU{gpu.index}": normal(gpu.pci) for gpu in gpus.all if gpu.pci}
    return {name: pci.devices[place] for name, place in places.items() if place in pci.devices}


def rdma_cards(fabric: Fabric, pci: Pci) -> dict[str, tuple[Device, tuple[Port, ...]]]:
    """Return RDMA devices that are PCI functions, by name, each with its ports that are up."""
    found = {}
    for device in fabric.devices:
        if isinstance(device.pci, str) and device.pci in pci.devices:
            up = tuple(port for port in device.ports if port.state == "ACTIVE")
            found[device.name] = pci.devices[device.pci], up
    return found


def same_slot(cards: Mapping[str, tuple[Device, tuple[Port, ...]]], name: str) -> tuple[str, ...]:
    """Return the RDMA devices on the card that `name` is on: the functions of one slot share its link."""
    slot = cards[name][0].address.rpartition(".")[0]
    return tuple(other for other, (device, _) in cards.items() if device.address.rpartition(".")[0] == slot)
