"""The links of a machine that a topology text describes.

A topology text is NCCL's XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) or ``nvidia-smi topo -m``. It is converted to the
facts that the machine itself would have given, and these to links. NCCL's own reading of the XML applies
(src/graph/topo.cc, v2.30.7: ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddNet): a slot without a speed is Gen3, one
without a width has 16 lanes, each NUMA node with GPUs is a processor, Intel's generations go by model number.

A document that declares a DOCTYPE or entities, or is larger than any that NCCL writes, is refused unread.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any, get_args
from xml.etree.ElementTree import Element

from ncclprobe.expect.composed import product_called, with_links
from ncclprobe.expect.system import Network, NodeSystem, Processor
from ncclprobe.expect.tables.gpus import GpuProduct, products
from ncclprobe.expect.tuner.search import WORDS, PathWord
from ncclprobe.expect.visible import Facts, nvlink_fabric, system_of
from ncclprobe.facts import topo_matrix
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvlink import NvLink, NvLinks, Remote
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition, normal
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError, UsageError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl import from_matrix

_UNSAID = Absent("the file does not say")
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
_INTEL: tuple[tuple[int, Processor], ...] = ((0xCF, "emr"), (0x8F, "spr"), (0x55, "skl"), (0, "bdw"))
_INTERFACE = re.compile(r"eth|en|bond|ib\d|lo")
"""Prefixes of kernel interfaces, which are the devices of NCCL's sockets."""
_VIRTUAL = re.compile(r"veth|docker|br-|virbr|cali|tunl|flannel|cni|lxc|vxlan|dummy|tap\d|tun\d|lo$")
"""Prefixes of interfaces that have no wire."""
_DEEPEST = 32
_LIMITS = {"sm": (30, 199), "link_width": (0, 32), "count": (1, 64), "bw": (1, 10**7), "speed": (-1, 10**7)}
"""Valid ranges: compute capability, lanes, links, MB/s of one C2C link, Mb/s of a NIC (-1: unknown to the driver)."""
CAPABILITY = "GPUs of compute capability"
ASSUMED = "assumed: slots and P2P as the GPU has them"


def system_in(text: str, path: str, gpu: str | None, nic_gbps: float | None, *, network: bool) -> NodeSystem:
    """Return the machine in `text`. `gpu` and `nic_gbps` give the product and the NICs' rate if the text lacks them.

    Raises UsageError naming `path` and the problem, or what a job over the `network` needs and the text lacks.
    """
    given = product_called(gpu, "--gpu") if gpu else None
    xml = Xml(text, path) if text.lstrip().startswith("<") else None
    known = xml.facts() if xml else _matrix_facts(text, path)
    product = given or _product(known, xml.pci_ids if xml else set(), path)
    known[Gpus] = Gpus(
        tuple(_add_product(each, product, path, by_name=xml is None) for each in known[Gpus].all), "", (0, 0)
    )
    facts = _facts(known)
    system = system_of(facts, path)
    if isinstance(system, Absent):
        raise UsageError(f"{path}: {system.why}")
    if product and product.wiring == "board" and not system.nvlinks and system.gpus > 1 and xml is None:
        raise UsageError(f"{path}: {product.name} has {product.nvlinks} NVLinks; this matrix shows none")
    if product and system.nvlinks > product.nvlinks:
        raise UsageError(f"{path}: shows {system.nvlinks} NVLinks of each GPU; {product.name} has {product.nvlinks}")
    homes = {device.numa_node for device in known[Pci].of("gpu")}
    major, minor = divmod(system.compute_capability, 10)
    name = product.name if product else f"{CAPABILITY} {major}.{minor}"
    system = replace(system, gpu=name, sockets=len(homes))
    system = xml.refined(system, product) if xml else _add_usual_parts(system, known[Fabric], path, network=network)
    if product and product.wiring == "board" and (system.fabric, system.nvlinks) == ("pairs", product.nvlinks):
        system = with_links(system, product)  # two of a board's GPUs: all of their links go to its switches
    if nic_gbps and not system.nic_gbps:
        system = replace(system, nic_gbps=nic_gbps)
    if network and not (system.nics and system.nic_gbps):
        lacks = "does not say how fast the NICs are: give --nic-rate GBPS" if system.nics else "shows no NIC"
        raise UsageError(f"{path}: {lacks}")
    return system


def _add_product(gpu: Gpu, product: GpuProduct | None, path: str, *, by_name: bool) -> Gpu:
    """Add what the product determines: everything for a matrix, the capability if no <gpu> has it."""
    if product is None:
        return gpu
    capability = divmod(product.compute_capability, 10)
    if isinstance(gpu.compute, tuple) and gpu.compute != capability:
        said, own = (".".join(map(str, each)) for each in (gpu.compute, capability))
        raise UsageError(f"{path}: has GPUs of compute capability {said}; {product.name} has {own}")
    return replace(gpu, name=product.name if by_name else "", compute=capability)


def _facts(known: Mapping[type, Any]) -> Facts:
    kinds = Gpus, NvLinks, Pci, Fabric, Interfaces, Cpus, PeerAccess, GpuDirect
    return Facts(*(known.get(kind, _UNSAID) for kind in kinds))


def _matrix_facts(text: str, path: str) -> dict[type, Any]:
    """Return the facts of the first matrix. Raises UsageError if there is none, or if it hides the NVLinks."""
    try:
        matrix = topo_matrix.parse(text)[0]
    except ParseError as error:
        raise UsageError(f"{path}: neither NCCL's XML nor the output of `nvidia-smi topo -m`: {error}") from None
    known = from_matrix.facts_of(matrix)
    lacking = next((fact for kind in (NvLinks, Pci) if isinstance(fact := known[kind], Absent)), None)
    if lacking or matrix.incomplete:
        raise UsageError(f"{path}: {lacking.why if lacking else matrix.incomplete[0]}")
    return known


def _add_usual_parts(system: NodeSystem, fabric: Fabric, path: str, *, network: bool) -> NodeSystem:
    """Add the usual parts that no matrix shows, but nothing that the NICs' names reveal."""
    amd = system.processor == "unknown"
    told = all(from_matrix.told_by_name(device.name) for device in fabric.devices)
    words = [*(["AMD CPUs"] if amd else []), *(["GPUDirect RDMA"] if network else [])]
    words += ["InfiniBand"] if network and not told else []
    processor: Processor = "amd" if amd else system.processor
    gdr = system.gdr and system.nic_path in ("PIX", "PXB")  # NCCL's NCCL_NET_GDR_LEVEL, unless it is set
    words = [word for word in words if gdr or word != "GPUDirect RDMA"]
    return replace(system, nic_gbps=0.0, processor=processor, gdr=gdr, source=f"{path}; {', '.join([ASSUMED, *words])}")


def _product(known: Mapping[type, Any], pci_ids: set[str], path: str) -> GpuProduct | None:
    """Return the GPU that the file means; None if several candidates are equivalent.

    No topology shows whether GPUs that NVLink does not join reach each other over PCIe. Raises UsageError asking for
    the product.
    """
    computes = {gpu.compute for gpu in known[Gpus].all}
    may_be = [gpu for gpu in products() if divmod(gpu.compute_capability, 10) in computes]
    may_be = [gpu for gpu in may_be if pci_ids & set(gpu.pci_ids)] or may_be
    if not may_be:
        raise UsageError(f"{path}: does not name the GPUs; give --gpu NAME, as nvidia-smi -L prints it")
    joined = nvlink_fabric(_facts(known))[2] >= len(known[Gpus].all)
    if not joined and len(known[Gpus].all) > 1 and len({gpu.p2p is not False for gpu in may_be}) > 1:
        names = " or ".join(gpu.name for gpu in may_be[:4])
        raise UsageError(
            f"{path}: the GPUs may be {names} or others, and not all of these models support P2P; give --gpu NAME"
        )
    return may_be[0] if len(may_be) == 1 else None


class Xml:
    """The elements of one host; of several hosts that share an NVLink fabric, the first represents all."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        root = xml_root(text, path, bounds.TOPO_BYTES, "write it again with NCCL_TOPO_DUMP_FILE")
        cpus = [each for each in root if each.tag == "cpu"]
        if root.tag != "system" or not cpus:
            raise UsageError(
                f"{path}: its XML is <{root.tag[:40]}>, not <system> with <cpu> as NCCL_TOPO_DUMP_FILE writes"
            )
        self.cpus = [cpu for cpu in cpus if cpu.get("host_hash") == cpus[0].get("host_hash")]
        self.hosts = len({cpu.get("host_hash") for cpu in cpus})
        self.nets = [*self._real_nets()]
        self.slots: list[tuple[Element, Device]] = []
        for node, cpu in enumerate(self.cpus):
            for number, child in enumerate(cpu):
                self.slots += self._below(child, (), self._number(cpu, "numaid", node), number)
        self.gpus = [(slot, device) for slot, device in self.slots if device.identity.kind == "gpu"]
        if not 0 < len(self.gpus) <= bounds.TOPO_DEVICES:
            raise UsageError(f"{path}: shows {len(self.gpus)} GPUs; a machine has 1 to {bounds.TOPO_DEVICES}")
        self.pci_ids = {slot.get("device", "").removeprefix("0x").upper() for slot, _ in self.gpus}

    def _number(self, element: Element, name: str, usual: int) -> int:
        text = element.get(name) or str(usual)
        number = int(text, 0) if re.fullmatch(r"-?(0|[1-9]\d{0,8}|0x[0-9a-fA-F]{1,8})", text) else None
        least, most = _LIMITS.get(name, (-1, 1 << 32))
        if number is None or not (least <= number <= most or number == usual):
            raise UsageError(
                f'{self.path}: {name}="{text[:40]}" of <{element.tag[:20]}> is not a value that NCCL writes'
            )
        return number

    def _below(self, slot: Element, above: tuple[str, ...], node: int, number: int) -> Iterator[tuple[Element, Device]]:
        """Yield every GPU and NIC under a slot of NUMA node `node`; a <nic> without a slot is attached to the
        processor.
        """
        if slot.tag not in ("pci", "nic") or len(above) > 2 * _DEEPEST:
            return
        busid = slot.get("busid", "") if slot.tag == "pci" else f"fffe:{node & 255:02x}:{number & 31:02x}.0"
        address = self._address("busid", busid)
        below = [child for child in slot if child.tag == "pci"]
        root = PciPosition(f"root {address}" if not above else above[0], above or (f"root {address}",))
        identity = self._identity(slot)
        if identity.kind in ("gpu", "nic") and not below:
            yield slot, Device(address, identity, root, PcieLink(None, None, None, None), node)
        for child in below:
            yield from self._below(child, (*root.bridges, address, f"{address} down"), node, number)

    def _address(self, name: str, text: str) -> str:
        try:
            return normal(text)
        except ParseError:
            raise UsageError(f'{self.path}: {name}="{text[:40]}" is not a PCI address') from None

    def _identity(self, slot: Element) -> Identity:
        if slot.tag == "nic":
            return Identity(0x020000, 0, 0)
        ids = [self._number(slot, name, 0) for name in ("class", "vendor", "device")]
        return Identity(ids[0], 0x10DE if ids[0] >> 16 == 0x03 else ids[1], ids[2])

    def facts(self) -> dict[type, Any]:
        """Return the facts that a machine with these elements would give."""
        links = NvLinks(tuple(tuple(self._links(slot)) for slot, _ in self.gpus))
        nets = [(net, device) for slot, device in self.slots for net in self._nets(slot)]
        nics = [self._nic(number, *each) for number, each in enumerate(nets)]
        return {
            Gpus: Gpus(tuple(self._gpu(n, slot, device) for n, (slot, device) in enumerate(self.gpus)), "", (0, 0)),
            NvLinks: links,
            Pci: Pci({device.address: device for _, device in self.slots}),
            Fabric: Fabric(tuple(nics)),
        }

    def _gpu(self, index: int, slot: Element, device: Device) -> Gpu:
        gpu = slot.find("gpu")
        sm = self._number(gpu, "sm", 0) if gpu is not None else 0
        generation = _GENERATIONS.get((slot.get("link_speed") or "").split(" ")[0], 3)
        return Gpu(
            index,
            pci=device.address,
            compute=divmod(sm, 10) if sm else _UNSAID,
            pcie_max_generation=generation,
            pcie_width=self._number(slot, "link_width", 16) or 16,
        )

    def _links(self, slot: Element) -> Iterator[NvLink]:
        for link in slot.iterfind("gpu/nvlink"):
            kind = link.get("tclass", "")
            remote: Remote = "gpu" if kind.startswith("0x03") else "ibm-npu" if kind == "0x068001" else "switch"
            end = self._address("target", link.get("target", "")) if remote == "gpu" else ""
            if end and end == self._address("busid", slot.get("busid", "")):  # Azure's ncv4-topo.xml: leads nowhere
                continue
            for _ in range(self._number(link, "count", 1)):
                yield NvLink(0, "active", remote=remote, remote_pci=end)

    def _nets(self, slot: Element) -> list[Element]:
        """Return the NICs of a slot: those that NCCL found there, otherwise one that no <net> describes."""
        nic = slot if slot.tag == "nic" else slot.find("nic")
        nets = [] if nic is None else [net for net in nic.findall("net") if net in self.nets]
        bare = slot.tag == "pci" and self._identity(slot).kind == "nic" and not any(True for _ in self._all_nets())
        return nets or ([slot] if bare else [])

    def _all_nets(self) -> Iterator[Element]:
        return iter(self.nets)

    def _real_nets(self) -> Iterator[Element]:
        """Yield each NIC once, without interfaces that have no wire, and without repeated elements."""
        for nic in (nic for cpu in self.cpus for nic in cpu.iter("nic")):
            seen: set[tuple[str, ...]] = set()
            for net in nic.iter("net"):
                own = tuple(net.get(name, "") for name in ("name", "dev", "port"))
                if not _VIRTUAL.match(own[0]) and (own not in seen or not all(own)):
                    yield net
                seen.add(own)

    def _nic(self, number: int, net: Element, device: Device) -> RdmaDevice:
        speed = self._number(net, "speed", 0)
        rate = Rate(speed / 1000, 1) if speed > 0 else Rate(10.0, 1)
        layer = "InfiniBand" if device.identity.class_code >> 8 == 0x0207 else "Ethernet"
        name = f"{net.get('name', '')}#{number}"
        return RdmaDevice(name, (Port(name, 1, "ACTIVE", "LinkUp", rate, layer),), device.address)

    def refined(self, system: NodeSystem, product: GpuProduct | None) -> NodeSystem:
        """Add what NCCL itself reads from the XML, and the boards' NVLinks if it has no <gpu>."""
        nets = list(self._all_nets())
        if product and all(slot.find("gpu") is None for slot, _ in self.gpus):
            system = with_links(system, product)
        c2c = next((link for slot, _ in self.gpus for link in slot.iterfind("gpu/c2c")), None)
        if c2c is not None and system.nic_path not in ("PIX", "PXB"):  # NCCL's P2C
            speed = self._number(c2c, "bw", 0) * self._number(c2c, "count", 1) / 1000
            system = replace(system, nic_path="PXB", pcie_GBps=max(system.pcie_GBps, speed))
        sockets = any(_INTERFACE.match(net.get("name", "")) for net in nets)
        network: Network | None = "sockets" if sockets else system.network
        return replace(
            system,
            p2p=product is None or product.p2p is not False or c2c is not None,
            processor=self._processor(),
            domain_gpus=system.domain_gpus * self.hosts,
            nic_gbps=system.nic_gbps if nets else 0.0,
            network=network,
            gdr=not sockets and bool(system.nics) and all(net.get("gdr", "1") == "1" for net in nets),
            source=self.path,
        )

    def _processor(self) -> Processor:
        cpu = self.cpus[0]
        arch, vendor = cpu.get("arch", ""), cpu.get("vendor", "").strip()
        if arch != "x86_64":
            return "arm" if arch == "arm64" else "power9" if arch == "ppc64" else "unknown"
        family, model = self._number(cpu, "familyid", 0), self._number(cpu, "modelid", 0)
        if vendor == "GenuineIntel":
            return next((name for least, name in _INTEL if family == 6 and model >= least), "bdw")
        if vendor in ("CentaurHauls", "Shanghai"):
            return "yongfeng" if (family, model) == (7, 0x5B) else "zhaoxin"
        return "amd" if vendor == "AuthenticAMD" else "unknown"


assert set(get_args(PathWord)) == set(WORDS)


def xml_root(text: str, path: str, most: int, remedy: str) -> ElementTree.Element:
    """Parse the root element. Raises UsageError, with the `remedy`, for what NCCL never writes."""
    if len(text.encode(errors="replace")) > most:
        raise UsageError(f"{path}: larger than {most >> 20} MiB: not an NCCL topology file")
    if re.search(r"<!(?:DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise UsageError(f"{path}: declares a document type or entities: not an NCCL topology file")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no XML ({str(error).partition(chr(10))[0][:80]}); {remedy}") from None
