"""A machine of an unlisted type, from its own facts: the links and NICs that are there now.

A NIC that fell out, and an NVLink that is down, are not part of what is seen; what the machine should have, a type of
:mod:`.machines` says. Where a fact is missing, the field falls back on what NCCL would assume, and `source` says so.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ncclprobe.expect.system import Network, NicPath, NodeSystem, Processor
from ncclprobe.expect.system import NvlinkFabric as Joined
from ncclprobe.expect.tables import gpus as gpu_table
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.gpudirect import GpuDirect
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.nvml_p2p import PeerAccess
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.topology.paths import Topology, of_devices

AMAZON = 0x1D0F
NIC_PATHS: tuple[NicPath, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NCCL_UNKNOWN_SLOT_GBPS = 12.0  # of a slot whose speed it cannot read NCCL says Gen3 x16 (graph/topo.h)
_XEON = re.compile(r"xeon\(r\) (?:platinum|gold|silver|bronze) \d(\d)\d\d")
_XEON_6 = re.compile(r"xeon\(r\) 6\d{3}p")
_XEON_OLD = re.compile(r"xeon\(r\) cpu e[57]-\d+\w* v[34]")
_SCALABLE: Mapping[str, Processor] = {"1": "skl", "2": "skl", "3": "skl", "4": "spr", "5": "emr"}


class Facts(Struct, frozen=True):
    """The facts that links and speeds are read from; each may be Absent."""

    gpus: Gpus | Absent
    nvlinks: NvLinks | Absent
    pci: Pci | Absent
    fabric: Fabric | Absent
    interfaces: Interfaces | Absent
    cpus: Cpus | Absent
    peers: PeerAccess | Absent
    gpudirect: GpuDirect | Absent


class Nics(Struct, frozen=True):
    """The NICs that serve GPUs: the fastest of those nearest to one. `idle` are as many more whose port is not up.

    `gbps` is one of them, None where none is up or none tells. `names` are those counted.
    """

    count: int = 0
    gbps: float | None = None
    network: Network | None = None
    path: NicPath | None = None
    names: tuple[str, ...] = ()
    idle: int = 0


def system_of(facts: Facts, name: str = "this machine") -> NodeSystem | Absent:
    """This machine as the cost model sees it; Absent where its GPUs are not known or not all of one kind.

    A GPU that reaches its CPU by C2C is as near to the NICs of that CPU as below one switch (NCCL's P2C).
    """
    present = [gpu for gpu in facts.gpus.all if not gpu.lost] if isinstance(facts.gpus, Gpus) else []
    if isinstance(facts.gpus, Absent):
        return facts.gpus
    if len({gpu.name for gpu in present}) != 1:
        kinds = ", ".join(sorted({gpu.name for gpu in present}))
        return Absent(f"GPUs of several kinds: {kinds}" if present else "every GPU is lost")
    product = gpu_table.table().get(present[0].name)
    capability = _capability(present[0], product)
    if isinstance(capability, Absent):
        return capability
    joined, links, domain = nvlink_fabric(facts)
    nics, assumed = nics_of(facts), _assumed(facts, product)
    return NodeSystem(
        name=name,
        gpu=present[0].name,
        compute_capability=capability,
        gpus=len(present),
        nvlinks=links,
        nvlink_GBps=nccl_link_GBps(capability) if links else 0.0,
        fabric=joined,
        domain_gpus=domain,
        nvls=joined == "nvswitch" and capability >= 90,
        pcie_GBps=_slot(facts, present, product, nccl_link_GBps(capability)),
        p2p=_p2p(facts.peers, product),
        processor=_processor(facts, product),
        sockets=_sockets(facts.cpus),
        nics=nics.count,
        nic_gbps=nics.gbps or 0.0,
        nic_path="PXB" if product and product.c2c_GBps else nics.path or "PXB",
        network=nics.network,
        gdr=_gdr(facts.gpudirect, nics),
        source="this machine's NVML, sysfs and PCI tree" + (f"; assumed: {', '.join(assumed)}" if assumed else ""),
    )


def _capability(gpu: Gpu, product: gpu_table.GpuProduct | None) -> int | Absent:
    if isinstance(gpu.compute, tuple):
        return gpu.compute[0] * 10 + gpu.compute[1]
    return product.compute_capability if product else Absent(f"compute capability of {gpu.name}: {gpu.compute.why}")


def _assumed(facts: Facts, product: gpu_table.GpuProduct | None) -> list[str]:
    """What a missing fact made us assume."""
    missing = {"NVLinks": facts.nvlinks, "RDMA devices": facts.fabric, "processor": facts.cpus, "P2P": facts.peers}
    assumed = [name for name, fact in missing.items() if isinstance(fact, Absent)]
    return assumed if product else [*assumed, "PCIe and P2P as of an unlisted product"]


def nccl_link_GBps(capability: int) -> float:
    """One NVLink as NCCL counts it, by compute capability (src/graph/topo.h)."""
    if capability >= 100:
        return 40.1
    if capability >= 90:
        return 20.6
    if capability == 86:
        return 12.0
    return 20.0 if capability >= 70 else 18.0


def nvlink_fabric(facts: Facts) -> tuple[Joined, int, int]:
    """How the NVLinks are laid, how many the GPU with the fewest has up, and how many GPUs they join.

    The GPU with the fewest paces all; one with none at all is not joined. Of a rack's switches a machine sees only its
    own GPUs, so it counts those.
    """
    rows = [[link for link in row if link.remote != "ibm-npu"] for row in _up(facts)]
    counts = [len(row) for row in rows if row]
    if not counts:
        return "none", 0, 0
    fewest = min(counts)
    if all(link.remote == "switch" for row in rows for link in row):
        return "nvswitch", fewest, len(rows)
    peers = [{end for link in row if isinstance(end := link.remote_pci, str) and end} for row in rows]
    if max(map(len, peers)) == 1:
        return "pairs", fewest, 2
    if min(map(len, peers)) >= len(rows) - 1:
        return "mesh", fewest, len(rows)
    return ("cube-mesh" if len(rows) == 8 else "mesh"), fewest, len(rows)


def _up(facts: Facts) -> list[list[NvLink]]:
    """The active links of each GPU, those to a POWER9 included."""
    rows = facts.nvlinks.gpus if isinstance(facts.nvlinks, NvLinks) else ()
    return [[] if isinstance(row, Absent) else [link for link in row if link.state == "active"] for row in rows]


def _slot(facts: Facts, present: Sequence[Gpu], product: gpu_table.GpuProduct | None, link_GBps: float) -> float:
    """The slowest GPU's way to its CPU as NCCL counts it: C2C, NVLink on a POWER9, or a PCIe slot.

    Of a slot the best generation, because an idle GPU lowers the present one, and the present width.
    """
    to_cpu = [sum(link.remote == "ibm-npu" for link in row) for row in _up(facts)]
    if any(to_cpu):
        return link_GBps * min(filter(None, to_cpu))
    slots = [
        gpu_table.nccl_pcie_GBps(gpu.pcie_max_generation, gpu.pcie_width)
        for gpu in present
        if isinstance(gpu.pcie_max_generation, int) and isinstance(gpu.pcie_width, int) and gpu.pcie_width
    ]
    if product and product.c2c_GBps:
        return product.c2c_GBps
    by_name = (product.nccl_pcie_GBps if product else None) or _NCCL_UNKNOWN_SLOT_GBPS
    return min(slots, default=by_name)


def _p2p(peers: PeerAccess | Absent, product: gpu_table.GpuProduct | None) -> bool:
    if isinstance(peers, PeerAccess) and peers.read:
        return all(peers.read[pair] == "OK" and peers.write.get(pair) == "OK" for pair in peers.read)
    return product is None or product.p2p is not False or product.c2c_GBps is not None


def _processor(facts: Facts, product: gpu_table.GpuProduct | None) -> Processor:
    """By its name; /proc/cpuinfo gives none on Arm, but whatever a GPU reaches by C2C is one."""
    if product and product.c2c_GBps:
        return "arm"
    return processor(facts.cpus.model) if isinstance(facts.cpus, Cpus) else "unknown"


def processor(model: str) -> Processor:
    """NCCL's class of a processor, by the name in /proc/cpuinfo. NCCL goes by Intel's model numbers (graph/topo.cc).

    Xeon Scalable says its generation in the second digit; Granite Rapids (Xeon 6) counts as Emerald Rapids.
    """
    name = model.lower()
    if name.startswith("amd "):
        return "amd"
    if match := _XEON.search(name):
        return _SCALABLE.get(match[1], "unknown")
    if _XEON_6.search(name):
        return "emr"
    if _XEON_OLD.search(name):
        return "bdw"
    return "power9" if name.startswith("power9") else "unknown"


def _sockets(cpus: Cpus | Absent) -> int:
    """Sockets by the distances of NUMA nodes: those of one socket are nearer to each other than any of another.

    Two kinds of distance besides its own mean nodes per socket (NPS, SNC); with one kind, each node is a socket.
    """
    nodes = [node for node in cpus.numa if node.cpus] if isinstance(cpus, Cpus) else []
    far = sorted({distance for node in nodes for other in nodes if (distance := _distance(node.distances, other.id))})
    far = [distance for distance in far if distance > 10]
    if len(nodes) < 2 or not far:
        return 1
    if len(far) == 1:
        return len(nodes)
    near = [sum(_distance(nodes[0].distances, other.id) < far[-1] for other in nodes)]
    return max(1, round(len(nodes) / max(1, *near, 1)))


def _distance(distances: Sequence[int], node: int) -> int:
    return distances[node] if node < len(distances) else 0


def nics_of(facts: Facts) -> Nics:
    """The NICs that serve GPUs: RDMA devices, or network interfaces where there are none."""
    devices = _rdma(facts.fabric)
    if devices:
        up = {device.name: rate for device in devices if (rate := _rate(device)) is not None}
        serving = _serving(facts, {d.name: d.pci if isinstance(d.pci, str) else "" for d in devices})
        near = serving or tuple(device.name for device in devices)
        fastest = max((up[name] for name in near if name in up), default=None)
        names = tuple(name for name in near if name in up and up[name] == fastest)
        idle = sum(name not in up for name in near)
        return Nics(len(names), fastest, _network(devices, names or near, facts.pci), _path(facts, names), names, idle)
    return _interfaces(facts)


def _rdma(fabric: Fabric | Absent) -> list[RdmaDevice]:
    """RDMA devices that are on a bus: soft-RoCE serves no GPU."""
    return [d for d in fabric.devices if isinstance(d.pci, str)] if isinstance(fabric, Fabric) else []


def _rate(device: RdmaDevice) -> float | None:
    rates = [p.rate.gbps for p in device.ports if p.state == "ACTIVE" and not isinstance(p.rate, Absent)]
    return max(rates, default=None)


def _network(devices: Iterable[RdmaDevice], names: Sequence[str], pci: Pci | Absent) -> Network:
    chosen = [device for device in devices if device.name in names]
    seen = pci.devices if isinstance(pci, Pci) else {}
    if any(isinstance(d.pci, str) and d.pci in seen and seen[d.pci].identity.vendor == AMAZON for d in chosen):
        return "efa"
    if any(device.name.startswith("hfi1") for device in chosen):  # the kernel's driver of Omni-Path names them so
        return "opa"
    layers = Counter(port.link_layer for device in chosen for port in device.ports)
    return "ib" if layers["InfiniBand"] >= layers["Ethernet"] else "roce"


def _interfaces(facts: Facts) -> Nics:
    """What TCP would go over: the fastest interfaces of hardware that run, near the GPUs where that is known."""
    everything = facts.interfaces.all if isinstance(facts.interfaces, Interfaces) else ()
    found = {i.name: i for i in everything if i.running and not i.loopback and i.virtual is False and i.speed_mbps}
    near = _serving(facts, {name: i.pci for name, i in found.items()}) or tuple(found)
    fastest = max((_gbps(found[name]) for name in near), default=None)
    names = tuple(name for name in near if _gbps(found[name]) == fastest)
    network: Network = "slingshot" if any(found[name].driver.startswith("cxi") for name in names) else "sockets"
    return Nics(len(names), fastest, network if names else None, _path(facts, names), names)


def _gbps(interface: Interface) -> float:
    return (interface.speed_mbps or 0) / 1000


def _topology(facts: Facts, nics: Mapping[str, str]) -> Topology | None:
    if isinstance(facts.pci, Absent) or isinstance(facts.gpus, Absent):
        return None
    return of_devices(facts.pci, facts.gpus, facts.nvlinks, {name: _address(pci) for name, pci in nics.items()})


def _address(pci: str) -> str:
    return normal(pci) if pci else ""


def _serving(facts: Facts, nics: Mapping[str, str]) -> tuple[str, ...]:
    """The NICs that are nearest to some GPU, in their order; none where the tree does not tell."""
    topology = _topology(facts, nics)
    near = {nic for gpu in topology.gpus for nic in topology.near(gpu)} if topology else set()
    return tuple(name for name in nics if name in near)


def _path(facts: Facts, names: Sequence[str]) -> NicPath | None:
    """How far the GPU that is worst off has it to its nearest NIC."""
    places = {d.name: d.pci for d in _rdma(facts.fabric) if d.name in names and isinstance(d.pci, str)}
    if not places and isinstance(facts.interfaces, Interfaces):
        places = {i.name: i.pci for i in facts.interfaces.all if i.name in names}
    topology = _topology(facts, places)
    if topology is None:
        return None
    words = [
        [NIC_PATHS.index(word) for nic in places if (word := topology.smi[gpu, nic]) in NIC_PATHS]
        for gpu in topology.gpus
    ]
    return NIC_PATHS[max(min(row) for row in words)] if words and all(words) else None


def _gdr(gpudirect: GpuDirect | Absent, nics: Nics) -> bool:
    """Whether what GPUDirect RDMA needs is there; unknown counts as there, for an expectation must not be too low."""
    if nics.network not in ("ib", "roce", "efa", "slingshot", "opa"):
        return False
    if nics.network in ("efa", "slingshot") or isinstance(gpudirect, Absent):
        return True
    return bool(gpudirect.peer_memory) or gpudirect.dma_buf is not False
