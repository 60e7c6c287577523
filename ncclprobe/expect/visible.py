"""The links of a machine that its facts show: those that are present now, without a NIC that fell out or an NVLink that
is down. If a fact is missing, the field falls back to NCCL's assumption, and `source` mentions it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ncclprobe.expect.system import Network, NicPath, NodeSystem, Processor
from ncclprobe.expect.system import NvlinkFabric as Joined
from ncclprobe.expect.tables import gpus as gpu_table
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.paths import Topology, connected, device_topology

AMAZON = 0x1D0F
NIC_PATHS: tuple[NicPath, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NCCL_UNKNOWN_SLOT_GBPS = 12.0  # of a slot whose speed it cannot read NCCL says Gen3 x16 (graph/topo.h)
_XEON = re.compile(r"xeon\(r\) (?:platinum|gold|silver|bronze) \d(\d)\d\d")
_XEON_6 = re.compile(r"xeon\(r\) 6\d{3}p")
_XEON_OLD = re.compile(r"xeon\(r\) cpu e[57]-\d+\w* v[34]")
_SCALABLE: Mapping[str, Processor] = {"1": "skl", "2": "skl", "3": "skl", "4": "spr", "5": "emr"}


class Facts(Struct, frozen=True):
    """The facts that links and speeds are derived from; each may be Absent."""

    gpus: Gpus | Absent
    nvlinks: NvLinks | Absent
    pci: Pci | Absent
    fabric: Fabric | Absent
    interfaces: Interfaces | Absent
    cpus: Cpus | Absent
    peers: PeerAccess | Absent
    gpudirect: GpuDirect | Absent


class Nics(Struct, frozen=True):
    """The NICs that serve GPUs: the fastest of those nearest to one. `idle` counts further ones whose port is down.

    `gbps` is the rate of one, None if none is up or none reports it. `names` are those counted.
    """

    count: int = 0
    gbps: float | None = None
    network: Network | None = None
    path: NicPath | None = None
    names: tuple[str, ...] = ()
    idle: int = 0


def system_of(facts: Facts, name: str = "this machine") -> NodeSystem | Absent:
    """Return this machine as the cost model sees it; Absent if its GPUs are unknown or of several kinds.

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
    nics, assumed = nics_of(facts), _list_assumptions(facts, product)
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
        at_roots=domain < len(present) and _meet_at_host_bridge(facts.pci),
        processor=_processor(facts, product),
        sockets=_sockets(facts.cpus),
        nics=nics.count,
        nic_gbps=nics.gbps or 0.0,
        nic_path="PXB" if product and product.c2c_GBps else nics.path or "PXB",
        network=nics.network,
        gdr=_has_gdr(facts.gpudirect, nics),
        source="this machine's NVML, sysfs and PCI tree" + (f"; assumed: {', '.join(assumed)}" if assumed else ""),
    )


def _capability(gpu: Gpu, product: gpu_table.GpuProduct | None) -> int | Absent:
    if isinstance(gpu.compute, tuple):
        return gpu.compute[0] * 10 + gpu.compute[1]
    return product.compute_capability if product else Absent(f"compute capability of {gpu.name}: {gpu.compute.why}")


def _list_assumptions(facts: Facts, product: gpu_table.GpuProduct | None) -> list[str]:
    """List what is assumed because a fact is missing."""
    missing = {"NVLinks": facts.nvlinks, "RDMA devices": facts.fabric, "processor": facts.cpus, "P2P": facts.peers}
    assumed = [name for name, fact in missing.items() if isinstance(fact, Absent)]
    return assumed if product else [*assumed, "PCIe and P2P as for an unlisted product"]


def nccl_link_GBps(capability: int) -> float:
    """Return the rate of one NVLink as NCCL counts it, by compute capability (src/graph/topo.h)."""
    if capability >= 100:
        return 40.1
    if capability >= 90:
        return 20.6
    if capability == 86:
        return 12.0
    return 20.0 if capability >= 70 else 18.0


def nvlink_fabric(facts: Facts) -> tuple[Joined, int, int]:
    """Return the layout of the NVLinks, the number up on the GPU with the fewest, and the number of GPUs they join.

    The GPU with the fewest links paces all; one without any is not joined. Behind a rack's switches a machine sees only
    its own GPUs, so it counts those.
    """
    rows = [[link for link in row if link.remote != "ibm-npu"] for row in _active_links(facts)]
    counts = [len(row) for row in rows if row]
    if not counts:
        return "none", 0, 0
    fewest = min(counts)
    if all(link.remote == "switch" for row in rows for link in row):
        return "nvswitch", fewest, len(rows)
    peers = [{end for link in row if isinstance(end := link.remote_pci, str) and end} for row in rows]
    most = max(map(len, peers))
    if most == 1:
        return "pairs", fewest, 2
    if min(map(len, peers)) >= len(rows) - 1 or _has_equal_bridges(peers):
        return "mesh", fewest, most + 1
    return ("cube-mesh" if len(rows) == 8 else "mesh"), fewest, len(rows)


def _has_equal_bridges(peers: Sequence[set[str]]) -> bool:
    """Return whether GPUs are fully joined in groups of equal size: a bridge of H200 NVL has four."""
    return {len(group) for group in connected(peers)} == {len(ends) + 1 for ends in peers}


def _active_links(facts: Facts) -> list[list[NvLink]]:
    """Return the active links of each GPU, including those to a POWER9."""
    rows = facts.nvlinks.gpus if isinstance(facts.nvlinks, NvLinks) else ()
    return [[] if isinstance(row, Absent) else [link for link in row if link.state == "active"] for row in rows]


def _slot(facts: Facts, present: Sequence[Gpu], product: gpu_table.GpuProduct | None, link_GBps: float) -> float:
    """Return the slowest GPU's link to its CPU as NCCL counts it: C2C, NVLink on a POWER9, or a PCIe slot.

    For a slot, use the best generation, because an idle GPU lowers the current one, and the current width.
    """
    to_cpu = [sum(link.remote == "ibm-npu" for link in row) for row in _active_links(facts)]
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
    tables = (peers.read, peers.write) if isinstance(peers, PeerAccess) else ()
    said = [status for table in tables for status in table.values() if isinstance(status, str)]
    if said:
        return all(status == "OK" for status in said)
    return product is None or product.p2p is not False or product.c2c_GBps is not None


def _processor(facts: Facts, product: gpu_table.GpuProduct | None) -> Processor:
    """Return the class of processor by name; /proc/cpuinfo has none on Arm, but a CPU reached by C2C is Arm."""
    if product and product.c2c_GBps:
        return "arm"
    return processor(facts.cpus.model) if isinstance(facts.cpus, Cpus) else "unknown"


def processor(model: str) -> Processor:
    """Return NCCL's class of a processor from its name in /proc/cpuinfo. NCCL uses Intel's model numbers
    (graph/topo.cc).

    Xeon Scalable has its generation in the second digit; Granite Rapids (Xeon 6) counts as Emerald Rapids.
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


def _meet_at_host_bridge(pci: Pci | Absent) -> bool:
    """Return whether GPUs of one NUMA node are below different root ports, so that a host bridge joins them."""
    ports: dict[int, set[str]] = {}
    for device in pci.of("gpu") if isinstance(pci, Pci) else ():
        if isinstance(device.numa_node, int) and not isinstance(device.place, Absent):
            ports.setdefault(device.numa_node, set()).add((*device.place.bridges, device.address)[0])
    return any(len(found) > 1 for found in ports.values())


def _sockets(cpus: Cpus | Absent) -> int:
    """Count sockets by NUMA distances: nodes of one socket are nearer to each other than to any of another.

    Two distances besides a node's own mean several nodes per socket (NPS, SNC); with one, each node is a socket.
    """
    nodes = [node for node in cpus.numa if node.cpus] if isinstance(cpus, Cpus) else []
    far = sorted(
        {distance for node in nodes for other in nodes if (distance := _distance_to(node.distances, other.id))}
    )
    far = [distance for distance in far if distance > 10]
    if len(nodes) < 2 or not far:
        return 1
    if len(far) == 1:
        return len(nodes)
    near = [sum(_distance_to(nodes[0].distances, other.id) < far[-1] for other in nodes)]
    return max(1, round(len(nodes) / max(1, *near, 1)))


def _distance_to(distances: Sequence[int], node: int) -> int:
    return distances[node] if node < len(distances) else 0


def nics_of(facts: Facts) -> Nics:
    """Return the NICs that serve GPUs: RDMA devices, or network interfaces if there are none."""
    devices = _hardware_rdma(facts.fabric)
    if devices:
        up = {device.name: rate for device in devices if (rate := _rate(device)) is not None}
        serving = _nearest_nics(facts, {d.name: d.pci if isinstance(d.pci, str) else "" for d in devices})
        near = serving or tuple(device.name for device in devices)
        fastest = max((up[name] for name in near if name in up), default=None)
        names = tuple(name for name in near if name in up and up[name] == fastest)
        idle = sum(name not in up for name in near)
        return Nics(len(names), fastest, _network(devices, names or near, facts.pci), _path(facts, names), names, idle)
    return _interfaces(facts)


def _hardware_rdma(fabric: Fabric | Absent) -> list[RdmaDevice]:
    """Return RDMA devices on a bus, or possibly on one: soft-RoCE serves no GPU."""
    return [d for d in fabric.devices if d.pci is not None] if isinstance(fabric, Fabric) else []


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
    if any(device.name.startswith("cxi") for device in chosen):
        return "slingshot"
    layers = Counter(port.link_layer for device in chosen for port in device.ports)
    return "ib" if layers["InfiniBand"] >= layers["Ethernet"] else "roce"


def _interfaces(facts: Facts) -> Nics:
    """Return the interfaces that TCP would use: the fastest running hardware ones, near the GPUs if known."""
    everything = facts.interfaces.all if isinstance(facts.interfaces, Interfaces) else ()
    found = {i.name: i for i in everything if i.running and not i.loopback and i.virtual is False and i.speed_mbps}
    near = _nearest_nics(facts, {name: i.pci for name, i in found.items()}) or tuple(found)
    fastest = max((_gbps(found[name]) for name in near), default=None)
    names = tuple(name for name in near if _gbps(found[name]) == fastest)
    network: Network = "slingshot" if any(found[name].driver.startswith("cxi") for name in names) else "sockets"
    return Nics(len(names), fastest, network if names else None, _path(facts, names), names)


def _gbps(interface: Interface) -> float:
    return (interface.speed_mbps or 0) / 1000


def _topology(facts: Facts, nics: Mapping[str, str]) -> Topology | None:
    if isinstance(facts.pci, Absent) or isinstance(facts.gpus, Absent):
        return None
    addresses = {name: normal(pci) if pci else "" for name, pci in nics.items()}
    return device_topology(facts.pci, facts.gpus, facts.nvlinks, addresses)


def _nearest_nics(facts: Facts, nics: Mapping[str, str]) -> tuple[str, ...]:
    """Return the NICs nearest to some GPU, in order; empty if the PCI tree does not show it."""
    topology = _topology(facts, nics)
    near = {nic for gpu in topology.gpus for nic in topology.near(gpu)} if topology else set()
    return tuple(name for name in nics if name in near)


def _path(facts: Facts, names: Sequence[str]) -> NicPath | None:
    """Return the path from a GPU to its nearest NIC: the longest over all GPUs, or the shortest if NVLink joins them
    all.

    The other GPUs reach the NIC through the nearest one (NCCL's PXN, and its rings: 8 V100 with one NIC are PHB to it,
    not SYS).
    """
    places = {d.name: d.pci for d in _hardware_rdma(facts.fabric) if d.name in names and isinstance(d.pci, str)}
    if not places and isinstance(facts.interfaces, Interfaces):
        places = {i.name: i.pci for i in facts.interfaces.all if i.name in names}
    topology = _topology(facts, places)
    if topology is None:
        return None
    words = [
        [NIC_PATHS.index(word) for nic in places if (word := topology.smi[gpu, nic]) in NIC_PATHS]
        for gpu in topology.gpus
    ]
    pick = min if nvlink_fabric(facts)[2] >= len(words) > 1 else max
    return NIC_PATHS[pick(min(row) for row in words)] if words and all(words) else None


def _has_gdr(gpudirect: GpuDirect | Absent, nics: Nics) -> bool:
    """Return whether GPUDirect RDMA is possible; unknown counts as yes, because an expectation must not be too low."""
    if nics.network not in ("ib", "roce", "efa", "slingshot", "opa"):
        return False
    if nics.network in ("efa", "slingshot") or isinstance(gpudirect, Absent):
        return True
    return bool(gpudirect.peer_memory) or gpudirect.dma_buf is not False
