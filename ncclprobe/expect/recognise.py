"""Recognise the machine type: the only one that fits the facts, or none and why; and the links that the facts show.

The facts are the links and NICs that are present now, without a NIC that fell out or an NVLink that is down. A type of
:mod:`ncclprobe.expect.tables.machines` has what the machine should have. If a fact is missing, the field falls back to
NCCL's assumption, and `source` mentions it.

Firmware that names the type (AWS, NVIDIA's own machines) decides, and the visible parts are compared with the type's. A
cloud whose firmware gives only the cloud's name leaves the types that the GPUs fit. There, parts may be missing,
because parts fail and none is added, but no more than half of them: half a machine is another product. If no firmware
names the type, every part must be present except NVLinks that are down. The expected links are the recognised type's,
or those that are visible.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclprobe.expect import assumed
from ncclprobe.expect.composed import composed, product_called
from ncclprobe.expect.system import NcclVersion, Network, NicPath, NodeSystem, Processor
from ncclprobe.expect.system import NvlinkFabric as Joined
from ncclprobe.expect.tables import gpus as gpu_table
from ncclprobe.expect.tables.machines import MachineType, Match, named, table
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import UsageError
from ncclprobe.model.layout import first_of
from ncclprobe.model.snapshot import Absent, learned
from ncclprobe.model.values import Struct, field, replace
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


_NVLINKS = "NVLinks of a GPU"
_NO_RDMA = (None, "sockets", "slingshot")
"""Networks whose NICs cannot be told apart for certain from the machine's other NICs."""
_FROM_HERE = ("nics", "nic_gbps", "network", "gdr", "nic_path", "processor", "sockets")


class MachineFacts(Struct, frozen=True):
    """The facts that tell types apart. None: unknown; `unknown` lists what and why.

    `gpus` includes those on the PCI bus that a container may not be given. `nvlinks` are those up on the GPU with the
    fewest. `nics` are those that serve GPUs, whether their port is up or not.
    """

    cloud: str = ""
    vendor: str = ""
    product: str = ""
    cpu: str = ""
    gpu_names: tuple[str, ...] = ()
    gpus: int | None = None
    nvlinks: int | None = None
    nics: int | None = None
    nic_gbps: float | None = None
    unknown: tuple[str, ...] = ()


class TypeDifference(Struct, frozen=True):
    """One property that differs from the type. `seen` None: unknown."""

    what: str
    seen: str | int | float | None
    expected: str | int | float

    def __str__(self) -> str:
        """Return ``NICs: 7, expected 8``."""
        seen = "not known" if self.seen is None else f"{self.seen:g}" if isinstance(self.seen, float) else self.seen
        expected = f"{self.expected:g}" if isinstance(self.expected, float) else self.expected
        return f"{self.what}: {seen}, expected {expected}"


class Recognised(Struct, frozen=True):
    """The only type that fits, or None. `candidates` are names: one, several (ambiguous), or none.

    `differs`: how this machine differs from the type (a NIC that fell out). `why` is one sentence for the reader.
    """

    machine: MachineType | None
    candidates: tuple[str, ...] = ()
    differs: tuple[TypeDifference, ...] = ()
    why: str = ""


def seen(facts: Facts, firmware: Firmware | Absent) -> MachineFacts:
    """Collect the identifying facts of a machine."""
    said = firmware if isinstance(firmware, Firmware) else Firmware()
    nics = nics_of(facts)
    names = sorted({gpu.name for gpu in facts.gpus.all if gpu.name}) if isinstance(facts.gpus, Gpus) else []
    links = nvlink_fabric(facts)[1] if isinstance(facts.nvlinks, NvLinks) else None
    missing = {"firmware": firmware, "GPUs": facts.gpus, "NVLinks": facts.nvlinks, "RDMA devices": facts.fabric}
    return MachineFacts(
        cloud=said.cloud,
        vendor=said.dmi.vendor,
        product=said.dmi.product,
        cpu=facts.cpus.model if isinstance(facts.cpus, Cpus) else "",
        gpu_names=tuple(names),
        gpus=_gpus(facts),
        nvlinks=links,
        nics=nics.count + nics.idle if nics.count + nics.idle or not isinstance(facts.fabric, Absent) else None,
        nic_gbps=nics.gbps,
        unknown=tuple(f"{name}: {fact.why}" for name, fact in missing.items() if isinstance(fact, Absent)),
    )


def _gpus(facts: Facts) -> int | None:
    """Return NVML's count or the PCI bus's, whichever is higher."""
    by_nvml = len(facts.gpus.all) if isinstance(facts.gpus, Gpus) else None
    by_pci = len(facts.pci.of("gpu")) if isinstance(facts.pci, Pci) else None
    return max((count for count in (by_nvml, by_pci) if count is not None), default=None)


def recognise(facts: MachineFacts, types: Iterable[MachineType] | None = None) -> Recognised:
    """Return the type that fits, among `types` or all known ones; a site's own take precedence."""
    known = list(table().values() if types is None else types)
    possible = [machine for machine in known if _host_fits(machine.match, facts)]
    if not possible:
        return Recognised(None, why=_unrecognised(facts))
    judged = [(machine, differences(machine, facts)) for machine in possible]
    exact = [machine for machine, differs in judged if not differs]
    fitting = exact or [machine for machine, differs in judged if _are_faults(machine, differs)]
    if not fitting:
        return Recognised(None, why=_nearest(judged))
    fitting = [machine for machine in fitting if machine.origin] or fitting  # a site knows its machines
    if len(fitting) > 1 or fitting[0].match.twins:
        names = tuple(sorted({m.name for m in fitting} | {t for m in fitting for t in m.match.twins}))
        return Recognised(None, names, why=f"ambiguous: {' and '.join(names)} fit; choose one with --machine")
    differs = differences(fitting[0], facts)
    why = f"{fitting[0].name}" + (f", though {'; '.join(map(str, differs))}" if differs else "")
    return Recognised(fitting[0], (fitting[0].name,), differs, why)


def should_be(found: Recognised, here: NodeSystem | Absent) -> NodeSystem | Absent:
    """Return the machine as its type should be; fields that no source states are as seen (`here`).

    For a board that any maker uses, the NICs are the maker's choice, so they are those present.
    """
    if found.machine is None:
        return here
    links, known = found.machine.links, found.machine.system()
    if isinstance(here, Absent):
        return known
    unsaid = [name for name in _FROM_HERE if name in links.unverified]
    if links.nics is None or links.nic_gbps is None:
        unsaid += [name for name in ("nics", "nic_gbps", "network") if name not in unsaid]
    return replace(known, **{name: getattr(here, name) for name in unsaid})


def _host_fits(match: Match, facts: MachineFacts) -> bool:
    """Return whether firmware and processor allow this type."""
    if match.by_name_only:
        return False
    if match.elsewhere and (facts.cloud or not facts.vendor or facts.vendor == "NVIDIA"):
        return False
    return (
        (not match.cloud or match.cloud == facts.cloud)
        and (not match.vendor or match.vendor == facts.vendor)
        and (not match.products or any(_begins(facts.product, product) for product in match.products))
        and (not match.cpus or any(word in facts.cpu.split() for word in match.cpus))
        and (bool(match.products) or not facts.gpu_names or set(facts.gpu_names) <= set(match.gpu_names))
        and (bool(match.products) or bool(facts.gpu_names))
    )


def _begins(product: str, words: str) -> bool:
    """Return whether a DMI name begins with `words`: ``DGXA100 920-23687-2530-000`` is a ``DGXA100``."""
    wanted = words.split()
    return product.split()[: len(wanted)] == wanted


def differences(machine: MachineType, facts: MachineFacts) -> tuple[TypeDifference, ...]:
    """Return how a machine differs from a type. Properties that no source states are not compared."""
    links, match = machine.links, machine.match
    found = []
    alike = set(facts.gpu_names) <= set(match.gpu_names)
    if not alike:
        found.append(TypeDifference("GPUs", ", ".join(facts.gpu_names), " or ".join(match.gpu_names)))
    if facts.gpus != links.gpus:
        found.append(TypeDifference("GPUs", facts.gpus, links.gpus))
    if facts.nvlinks is not None and facts.nvlinks != links.nvlinks and alike and facts.gpu_names:
        found.append(TypeDifference(_NVLINKS, facts.nvlinks, links.nvlinks))
    if links.nics is not None and links.network not in _NO_RDMA and "nics" not in links.unverified:
        if facts.nics != links.nics:
            rate = f"{links.nic_gbps:g} Gb/s " if links.nic_gbps else ""
            found.append(TypeDifference(f"{rate}NICs", facts.nics, links.nics))
        if links.nic_gbps is not None and facts.nic_gbps is not None and facts.nic_gbps != links.nic_gbps:
            found.append(TypeDifference("Gb/s per NIC", facts.nic_gbps, links.nic_gbps))
    return tuple(found)


def _are_faults(machine: MachineType, differs: Iterable[TypeDifference]) -> bool:
    """Return whether these differences are faults of this type, rather than signs of another type."""
    match = machine.match
    if match.products:
        return all(isinstance(d.expected, int | float) for d in differs)
    return all(_lost(d) and (match.cloud or d.what == _NVLINKS) for d in differs)


def _lost(difference: TypeDifference) -> bool:
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or difference.what == "Gb/s per NIC":
        return False
    return seen is None or expected / 2 < seen < expected


def _nearest(judged: Iterable[tuple[MachineType, tuple[TypeDifference, ...]]], most: int = 3) -> str:
    """Describe the types with the fewest differences."""
    ranked = sorted(judged, key=lambda pair: (_far(pair[1]), pair[0].name))
    least = [pair for pair in ranked if _far(pair[1]) == _far(ranked[0][1])]
    told = [f"{machine.name} ({'; '.join(map(str, differs))})" for machine, differs in least]
    return f"no machine type fits; nearest: {first_of(told, most)}"


def _far(differs: Iterable[TypeDifference]) -> float:
    return sum(map(_distance, differs))


def _distance(difference: TypeDifference) -> float:
    """Return the distance of two values: 1 plus their relative difference, 2 for names and unknown values."""
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or seen is None:
        return 2.0
    return 1 + abs(seen - expected) / max(seen, expected, 1)


def _unrecognised(facts: MachineFacts) -> str:
    """Return why no type is possible."""
    if facts.unknown and not facts.gpu_names:
        return f"no machine type fits; not known: {'; '.join(facts.unknown)}"
    gpus = f"{facts.gpus or 0} of {', '.join(facts.gpu_names)}" if facts.gpu_names else "no GPU"
    host = " ".join(filter(None, (facts.vendor, facts.product)))
    return f"no machine type has {host} with {gpus}" if host else f"the firmware names no machine, which has {gpus}"


_FACTS = {
    "gpus": Gpus,
    "nvlinks": NvLinks,
    "pci": Pci,
    "fabric": Fabric,
    "interfaces": Interfaces,
    "cpus": Cpus,
    "peers": PeerAccess,
    "gpudirect": GpuDirect,
}
assert set(_FACTS) == {*Facts.__struct_fields__}


class ExpectationContext(Struct, frozen=True):
    """The basis of expectations: `system`, or why there is none; `machine`, the recognised type.

    `why` is one sentence for the reader, `nccl` the version found there, `settings` what NCCL would read there.
    """

    system: NodeSystem | Absent
    machine: MachineType | None = None
    why: str = ""
    nccl: NcclVersion | None = None
    settings: Settings = field(default_factory=Settings)


def expectation_context(known: Mapping[type, Any]) -> ExpectationContext:
    """Build the context from the facts of one node, by type.

    A recognised type defines its machine, so that a NIC that fell out counts as lost. An unknown machine is taken as
    its links are now, because nothing else is known.
    """
    facts = _facts_of(known)
    if (told := _context_of_text(known)) is not None:
        return told
    found = recognise(seen(facts, known.get(Firmware, Absent("was not asked"))))
    software, settings = learned(known, Software), learned(known, Settings) or Settings()
    version = software.nccl_version if software else None
    if found.machine:
        differs = "; ".join(map(str, found.differs))
        why = f"this is {found.machine.name}" + (f", but for {differs}" if differs else "")
        return ExpectationContext(should_be(found, system_of(facts)), found.machine, why, version, settings)
    why = f"{found.why}; taken by its links as they are now"
    context = ExpectationContext(system_of(facts), None, why, version, settings)
    return _add_usual_nics(_add_board_links(context, facts), facts) if NamedMachine in known else context


def _facts_of(known: Mapping[type, Any]) -> Facts:
    """Return the facts that an expectation is based on. NICs of which a text shows only some do not count."""
    facts = Facts(**{name: known.get(kind, Absent("was not asked")) for name, kind in _FACTS.items()})
    cut = isinstance(facts.fabric, Fabric) and facts.fabric.cut
    return replace(facts, fabric=Absent("the pasted texts do not show every NIC")) if cut else facts


def _context_of_text(known: Mapping[type, Any]) -> ExpectationContext | None:
    """Return what pasted text names, if it does not show GPUs, or shows those of this type; None: it names nothing.

    The GPUs of a manifest do not reveal the network: such a machine is judged by what is inside it.
    """
    said, gpus, settings = learned(known, NamedMachine), learned(known, Gpus), learned(known, Settings) or Settings()
    if said is None:
        return None
    machine = named(said.type) if said.type else None
    if machine and (gpus is None or {gpu.name for gpu in gpus.all} <= {*machine.match.gpu_names}):
        return ExpectationContext(machine.system(), machine, f"the text names {machine.name}", None, settings)
    if gpus is not None or not said.gpu or said.gpus < 2:
        return None
    found, facts = _board(said), _facts_of(known)
    if found is None:
        return None
    if (nics := nics_of(facts)).count:
        shown = {"nics": nics.count, "nic_gbps": nics.gbps or 0.0, "network": nics.network, "gdr": True}
        found = replace(found, **shown)
    return ExpectationContext(found, None, f"the text names {said.gpus} x {found.gpu}", None, settings)


_ON_BOARDS = 8
_SOCKETED = ("", " sxm", " sxm4 80gb", " sxm2 32gb")
"""Suffixes that complete a short name such as h100 or a100, if a node has eight of them."""


def _board(said: NamedMachine) -> NodeSystem | None:
    name = product_named(said, said.gpus)
    return composed(f"{said.gpus} x {name}") if name else None


def product_named(said: NamedMachine, count: int) -> str:
    """Return NVML's name of the GPUs that a text names, by model or machine type; empty: none fits."""
    machine = named(said.type) if said.type else None
    if machine and machine.links.gpus == count:
        return machine.gpu
    for ending in _SOCKETED if count == _ON_BOARDS else ("",):
        try:
            return product_called(said.gpu + ending).name if said.gpu else ""
        except UsageError:
            continue
    return ""


def _add_board_links(context: ExpectationContext, facts: Facts) -> ExpectationContext:
    """Add the NVLinks of the board if texts show eight GPUs made for one, and no links."""
    system = context.system
    rows = () if isinstance(facts.nvlinks, Absent) else facts.nvlinks.gpus
    if isinstance(system, Absent) or system.gpus != _ON_BOARDS or not all(isinstance(row, Absent) for row in rows):
        return context
    product = gpu_table.table().get(system.gpu)
    if product is None or product.wiring != "board":
        return context
    board = composed(f"{system.gpus} x {system.gpu}")
    links = {name: getattr(board, name) for name in ("nvlinks", "nvlink_GBps", "fabric", "domain_gpus", "nvls", "p2p")}
    return replace(context, system=replace(system, **links), why=f"{context.why}; assumed: the NVLinks of its board")


def _add_usual_nics(context: ExpectationContext, facts: Facts) -> ExpectationContext:
    """Add NICs of the usual rate if texts name NICs but show neither rate nor state.

    A tray whose GPUs have joined a cluster of nodes belongs to a rack.
    """
    ports = facts.fabric.ports if isinstance(facts.fabric, Fabric) else ()
    system = context.system
    if isinstance(system, Absent) or system.nics:
        return context
    named = nics_of(facts).idle
    if not named or not all(isinstance(port.state, Absent) or isinstance(port.rate, Absent) for port in ports):
        return context
    try:
        usual = next(assumed.candidates(assumed.Node(system.gpu, system.gpus, 2)))
    except UsageError:
        return context
    found, why = usual.system, f"{context.why}; assumed: {usual.system.nic_gbps:g} Gb/s NICs"
    if found.domain_gpus > found.gpus:
        return (
            replace(context, system=found, machine=usual.machine, why=why)
            if _belong_to_cluster(facts.gpus)
            else context
        )
    network = system.network if system.network == "roce" else found.network
    nics = {"nics": named, "nic_gbps": found.nic_gbps, "network": network, "gdr": found.gdr}
    return replace(context, system=replace(system, **nics), why=why)


def _belong_to_cluster(gpus: Gpus | Absent) -> bool:
    known = gpus.all if isinstance(gpus, Gpus) else ()
    return any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in known)
