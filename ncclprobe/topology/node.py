"""How a node is built, from its facts: GPUs, NICs, NUMA nodes, and NCCL's path types between them."""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from ncclprobe.errors import ParseError
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Pci, PcieLink, normal
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology, NumaRow
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.topology.paths import Topology, of_devices, of_machine

T = TypeVar("T")


def layout(snapshot: Snapshot) -> NodeTopology:
    """Return the devices of a node and how far they are apart. RDMA devices come before interfaces that are none."""
    pci, gpus, links = _fact(snapshot, Pci), _fact(snapshot, Gpus), _fact(snapshot, NvLinks)
    fabric, interfaces, cpus = _fact(snapshot, Fabric), _fact(snapshot, Interfaces), _fact(snapshot, Cpus)
    gaps = [fact.why for fact in (pci, gpus, links, fabric, interfaces, cpus) if isinstance(fact, Absent)]
    try:
        paths = _paths(pci, gpus, links, fabric, interfaces)
    except ParseError as error:  # an address as no PCI bus has it
        paths, gaps = None, [*gaps, str(error)]
    return NodeTopology(
        gpus=None if isinstance(gpus, Absent) else tuple(_gpus(gpus, pci)),
        nics=None if isinstance(fabric, Absent) else tuple(_nics(fabric, interfaces, pci)),
        numa=None if isinstance(cpus, Absent) else tuple(NumaRow(node.id, ranges(node.cpus)) for node in cpus.numa),
        paths=paths,
        why="; ".join(dict.fromkeys(gaps)),
    )


def _fact(snapshot: Snapshot, kind: type[T]) -> T | Absent:
    fact: T | Absent = snapshot.facts.get(kind, Absent(f"{kind.__name__} was never collected"))
    return fact


def _gpus(gpus: Gpus, pci: Pci | Absent) -> Iterator[DeviceRow]:
    for gpu in gpus.all:
        row = _row(f"GPU{gpu.index}", gpu.name, _address(gpu), pci)
        width, most = gpu.pcie_width, gpu.pcie_max_width
        if isinstance(width, int) and isinstance(most, int):
            row = replace(row, pcie_width=width, pcie_max_width=most)
        yield row


def _address(gpu: Gpu) -> str | None:
    try:
        return normal(gpu.pci)
    except ParseError:
        return None


def _nics(fabric: Fabric, interfaces: Interfaces | Absent, pci: Pci | Absent) -> Iterator[DeviceRow]:
    for device in fabric.devices:
        words = [word for word in (device.model, device.board) if isinstance(word, str) and word]
        yield _row(device.name, " ".join(words), device.pci if isinstance(device.pci, str) else None, pci)
    drivers = {} if isinstance(interfaces, Absent) else {each.name: each.driver for each in interfaces.all}
    for name, address in _other_nics(fabric, interfaces).items():
        yield _row(name, drivers[name], address, pci)


def _other_nics(fabric: Fabric, interfaces: Interfaces | Absent) -> dict[str, str]:
    """Return the PCI addresses of the interfaces that do not belong to an RDMA device."""
    taken = {device.pci for device in fabric.devices}
    every = () if isinstance(interfaces, Absent) else interfaces.all
    return {each.name: each.pci for each in every if each.pci and each.pci not in taken}


def _row(name: str, model: str, address: str | None, pci: Pci | Absent) -> DeviceRow:
    device = pci.devices.get(address) if isinstance(pci, Pci) and address else None
    numa = device.numa_node if device and isinstance(device.numa_node, int) else None
    cpus = ranges(device.local_cpus) if device and not isinstance(device.local_cpus, Absent) else None
    link = device.link if device and isinstance(device.link, PcieLink) else None
    return DeviceRow(name, model, address, numa, cpus, link.width if link else None, link.max_width if link else None)


def ranges(numbers: Iterable[int]) -> str:
    """Return the kernel's list format: ``0-3,8,10-11``."""
    runs = [
        [number for _, number in run] for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)


def _paths(
    pci: Pci | Absent,
    gpus: Gpus | Absent,
    links: NvLinks | Absent,
    fabric: Fabric | Absent,
    interfaces: Interfaces | Absent,
) -> dict[str, dict[str, str | None]] | None:
    """Return the paths in NCCL's words. Without the NVLinks nothing is said: any path between GPUs may differ."""
    if isinstance(pci, Absent) or isinstance(gpus, Absent) or isinstance(links, Absent) or isinstance(fabric, Absent):
        return None
    rdma = of_machine(pci, gpus, links, fabric)  # apart: of a Grace's NICs NCCL brings the nearest nearer
    others = of_devices(pci, gpus, links, _other_nics(fabric, interfaces))
    unread = {f"GPU{index}" for index, row in enumerate(links.gpus) if isinstance(row, Absent)}
    return {gpu: {**_words(others, gpu, unread), **_words(rdma, gpu, unread)} for gpu in rdma.gpus}


def _words(topology: Topology, gpu: str, unread: Collection[str]) -> dict[str, str | None]:
    """Return the path types in words. `unread`: the GPUs whose NVLinks are not known."""
    ends = [end for end in (*topology.gpus, *topology.nics) if end != gpu]
    unknown = {end for end in ends if end in topology.gpus and (gpu in unread or end in unread)}
    found = {end: None if end in unknown else topology.paths[gpu, end] for end in ends}
    return {end: path.name if path is not None else None for end, path in found.items()}
