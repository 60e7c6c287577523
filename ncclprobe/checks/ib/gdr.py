"""How the NICs lie to the GPUs, and whether they reach their memory: GPUDirect RDMA."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ncclprobe.checks import IMAGE, JOB, NODE
from ncclprobe.checks.env import as_evidence
from ncclprobe.checks.ib import GDR_GROUP, active, distances, groups, listed, rdma_job, single_node, taken, typical
from ncclprobe.checks.ib.fixtures import NO_NCCL, ONE_NODE, PLAIN, TWO_NODES, fabric, gpus, pci, port
from ncclprobe.expect.tables.machines import named as machine_named
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import grouped
from ncclprobe.nccl.gpudirect import Direct, decide, kernel_support, supported
from ncclprobe.nccl.hcas import fast, gbps
from ncclprobe.nccl.paths import Topology, machine_topology

METAL, GUEST = Machine(virtual=False), Machine(virtual=True)


@check(
    group=GDR_GROUP,
    slows=True,
    bad=lambda: [(fabric(port(1, state="DOWN")), PLAIN, pci(), gpus(), METAL)],
    good=lambda: [(fabric(), PLAIN, pci(), gpus(), METAL)],
    requires="ib.state",
    applies=rdma_job,
)
def gpu_near(fabric: Fabric, settings: Settings, pci: Pci, gpus: Gpus, machine: Machine | Absent) -> Iterator[Finding]:
    """A GPU has no NIC near it, or fewer than the other GPUs.

    Right: Every GPU has a NIC near it, and all have the same number.
    Why: if a GPU's NIC is not below the same PCI switch, the data goes through the CPU without GPUDirect
    (src/graph/paths.cc), or the GPU shares another GPU's NIC. The slowest GPU sets the pace of every collective. If
    most GPUs of a machine have their own NIC, a GPU without one has lost it, or a card is in the wrong slot.
    Fix: compare the slots with those of a healthy node (lspci -tv), and look for a NIC that is missing or down.
    """
    nics = list(dict.fromkeys(port.device for port in fast(active(taken(fabric, settings)))))
    topology = distances(pci, gpus, fabric)
    found = groups(topology, nics)
    if nics and topology.gpus and not found:
        raise Unlearned("the PCI tree does not show the distance between GPUs and NICs")
    usual, tell, unread = typical(found, nics), warn, _unread(fabric, settings, pci)
    if isinstance(machine, Machine) and machine.virtual:
        tell = note  # the tree is what the hypervisor shows
    for group in found:
        share = group.share(nics)
        if share >= usual:
            continue
        subject = listed(group.gpus)
        sources = ("/sys/bus/pci/devices", "/sys/class/infiniband/*/ports/*/state")
        if unread:
            message = (
                f"it is unknown which NICs are near: the position, state or rate of {listed(unread)} could not be read"
            )
            yield note(subject, message, evidence=sources)
            continue
        if not group.nics:
            message = f"{_nearest(topology, group.gpus[0], nics)}; most GPUs have a NIC below their own switch"
        else:
            message = f"{listed(group.nics)} for {len(group.gpus)} GPUs; most have {usual:g} NIC each"
        yield tell(subject, message, **NODE, evidence=sources)


def _unread(fabric: Fabric, settings: Settings, pci: Pci) -> list[str]:
    """Return the NICs whose place, state or rate is unknown."""
    ports = taken(fabric, settings)
    names = {port.device for port in ports if isinstance(port.state, Absent) or isinstance(port.rate, Absent)}
    for each in fabric.devices:
        card = pci.devices.get(each.pci) if isinstance(each.pci, str) else None
        placed = card is not None and not isinstance(card.place, Absent)
        names |= {each.name} if any(port.device == each.name for port in ports) and not placed else set()
    return sorted(names)


def _nearest(topology: Topology, gpu: str, nics: list[str]) -> str:
    known = {nic: path for nic in topology.nics if (path := topology.paths[gpu, nic]) is not None}
    nic = min((each for each in nics if each in known), key=lambda each: known[each])
    nearer = [each for each in known if known[each] < known[nic]]
    passed = f"the nearest NIC, {listed(nearer)}, is down, slow or excluded; the next" if nearer else "the nearest NIC"
    return f"{passed} is {nic} at {known[nic].name}"


@check(
    group=GDR_GROUP,
    slows=True,
    bad=lambda: [(fabric(), PLAIN, pci(moved=(3,)), gpus(), METAL)],
    good=lambda: [(fabric(), PLAIN, pci(moved=(3,)), gpus(), GUEST)],
    applies=rdma_job,
)
def numa(fabric: Fabric, settings: Settings, pci: Pci, gpus: Gpus, machine: Machine | Absent) -> Iterator[Finding]:
    """NICs and GPUs are not distributed equally over the NUMA nodes.

    Right: NICs and GPUs are distributed equally over the NUMA nodes.
    Why: NCCL pins its proxy threads and buffers near the GPU. Traffic to a NIC on another NUMA node crosses the link
    between the sockets, without GPUDirect even twice.
    Fix: on bare metal, compare the slots with those of a healthy node. If a NIC's NUMA node is -1, the firmware or
    hypervisor does not report it, and NCCL assumes node 0.
    """
    ports = fast(active(taken(fabric, settings)))
    places = {device.name: device.pci for device in fabric.devices if isinstance(device.pci, str)}
    cards = {port.device: pci.devices[places[port.device]] for port in ports if places.get(port.device) in pci.devices}
    nodes = {name: card.numa_node for name, card in cards.items() if isinstance(card.numa_node, int)}
    if cards and not nodes:
        raise Unlearned("no NIC's NUMA node could be read")
    homes = [pci.devices[a].numa_node for gpu in gpus.all if gpu.pci and (a := normal(gpu.pci)) in pci.devices]
    known = [home for home in homes if isinstance(home, int) and home >= 0]
    several = len(set(known)) > 1
    for name, node in nodes.items():
        if node < 0 and several:
            source = seen(f"/sys/bus/pci/devices/{cards[name].address}/numa_node", str(node))
            yield note(name, "the firmware does not say which NUMA node it is on", evidence=source)
    wanted, have = Counter(known), Counter(node for node in nodes.values() if node >= 0)
    if (
        not several
        or len(nodes) != len(homes)
        or len(known) < len(homes)
        or have.total() < len(nodes)
        or wanted == have
    ):
        return
    tell = note if isinstance(machine, Machine) and machine.virtual else warn
    for node in sorted(wanted | have):
        if have[node] > wanted[node]:
            names = [name for name, where in nodes.items() if where == node]
            message = f"NUMA node {node} has {have[node]} of the NICs but {wanted[node]} of the GPUs"
            yield tell(listed(names), message, **NODE, evidence="/sys/bus/pci/devices/*/numa_node")


NOTHING = GpuDirect({}, (5, 15), "proprietary")
BARE = NvLinks(((),) * 4)
_PREVENT = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C", "NCCL_PXN_DISABLE", "NCCL_PXN_C2C")
_ORIGIN = ("/sys/module", "/sys/kernel/mm/memory_peers", "/proc/driver/nvidia/version", "/sys/bus/pci/devices")


@check(
    group=GDR_GROUP,
    slows=True,
    bad=lambda: [(fabric(), PLAIN, NOTHING, gpus(), pci(), BARE, NO_NCCL, TWO_NODES, METAL)],
    good=lambda: [(fabric(), PLAIN, NOTHING, gpus(), pci(), BARE, NO_NCCL, ONE_NODE, METAL)],
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
    instead of 180). It has two requirements. The kernel must support it, with a peer-memory module or DMA-BUF. A NIC
    must be below the same PCI switch as the GPU, or as another GPU that NVLink connects to it (src/graph/paths.cc).
    Fix: run modprobe nvidia-peermem (NCCL >= 2.23), or use NVIDIA's open kernel module on Linux >= 5.12.
    NCCL_NET_GDR_LEVEL=SYS allows longer paths; measure the bandwidth to see whether they are faster on this machine.
    """
    ports = fast(active(taken(fabric, settings)))
    version = software.nccl_version if isinstance(software, Software) else None
    able = {f"GPU{gpu.index}": gpu for gpu in gpus.all if not gpu.lost and supported(gpu)}
    names = [f"GPU{gpu.index}" for gpu in gpus.all if not supported(gpu)]
    if names:
        product = next(gpu.name for gpu in gpus.all if not supported(gpu))
        yield note(listed(names), f"{product} does not support GPUDirect RDMA", evidence=seen("NVML", product))
    if not ports or not able:
        return
    available = kernel_support(direct, settings, version, gpus.cuda)
    if available.works is None:
        raise Unlearned(available.why)
    tell = _how_bad(ports, launch, nvlinks)
    if not available.works:
        whose = JOB if "NCCL_DMABUF_ENABLE" in available.why else IMAGE
        yield tell("GPUDirect RDMA", available.why, evidence=_ORIGIN, **whose)
    elif isinstance(pci, Absent):
        yield note("GPUDirect RDMA", f"the distance between GPUs and NICs is unknown: {pci.why}", evidence=_ORIGIN)
    else:
        nics = list(dict.fromkeys(port.device for port in ports))
        used = Fabric(tuple(device for device in fabric.devices if device.name in nics))
        topology = machine_topology(pci, gpus, nvlinks, used)
        able = {name: gpu for name, gpu in able.items() if name in topology.gpus}
        made = decide(topology, able, nics, settings, version)
        asked = any(settings.get(name) is not None for name in (*_PREVENT, "NCCL_NET_GDR_READ"))
        usual = decide(topology, able, nics, Settings(), version) if asked else made
        yield from _disabled_by_settings(made, usual, settings)
        unsure = tell is note or _another_tree(machine, settings)
        yield from _too_far(made, usual, list(able), note if unsure else warn)


@applies
def rdma_in_text(named: NamedMachine | Absent, fabric: Fabric | Absent) -> bool:
    """to pasted texts that mention RDMA but show no devices."""
    return isinstance(named, NamedMachine) and named.rdma and isinstance(fabric, Absent)


@check(
    group=GDR_GROUP,
    slows=True,
    bad=lambda: [(NamedMachine(rdma=True, nodes=2), GpuDirect(driver="proprietary"), PLAIN)],
    good=lambda: [(NamedMachine(rdma=True, nodes=2), GpuDirect(), PLAIN)],
    applies=rdma_in_text,
)
def gdr_by_text(named: NamedMachine, direct: GpuDirect, settings: Settings) -> Iterator[Finding]:
    """A pasted text shows that the kernel has no GPUDirect RDMA.

    Right: A pasted text shows that the kernel supports GPUDirect RDMA.
    Why: without a peer-memory module, and without DMA-BUF (NVIDIA's open kernel module on Linux >= 5.12), every byte is
    copied through host memory.
    Fix: run modprobe nvidia-peermem on every node, and configure it to load at boot.
    """
    available = kernel_support(direct, settings, None, (12, 0))
    if available.works is None:
        raise Unlearned(available.why)
    if not available.works and "NCCL_DMABUF_ENABLE" not in available.why:
        tell = fail if named.nodes > 1 else warn
        yield tell("GPUDirect RDMA", available.why, evidence=_ORIGIN, **IMAGE)


@applies
def nics_of_a_named_machine(named: NamedMachine | Absent, fabric: Fabric | Absent) -> bool:
    """to pasted texts that name a machine type and list its RDMA devices."""
    listed = isinstance(fabric, Fabric) and bool(fabric.devices)
    return listed and isinstance(named, NamedMachine) and bool(named.type) and not (named.some_nics or named.given)


@check(
    group=GDR_GROUP,
    slows=True,
    bad=lambda: [(NamedMachine("DGX H100"), fabric())],
    good=lambda: [(NamedMachine("g6.48xlarge"), fabric())],
    applies=nics_of_a_named_machine,
)
def nics_by_text(named: NamedMachine, fabric: Fabric) -> Iterator[Finding]:
    """A pasted text lists fewer NICs than its machine type has.

    Right: A pasted text lists all NICs of its machine type.
    Why: NCCL silently ignores a NIC that fell off the bus or that a container does not get. Its GPUs then share the
    NICs of others.
    Fix: compare `lspci | grep -i -E "mellanox|amazon"` with a healthy node, and the kernel log for the missing device.
    """
    machine = machine_named(named.type)
    if machine is None or not machine.links.nics or machine.links.network not in ("ib", "roce", "efa"):
        return
    other = {"ib": "Ethernet", "roce": "InfiniBand"}.get(machine.links.network, "")
    listed = [each for each in fabric.devices if not any(port.link_layer == other for port in each.ports)]
    listed = listed or list(fabric.devices)  # makers put other NICs beside a board
    if len(listed) < machine.links.nics:
        message = f"the text lists {len(listed)}, but {machine.name} has {machine.links.nics} for its GPUs"
        yield warn("NICs", message, **NODE, evidence="the devices that the text lists")


def _how_bad(ports: Sequence[Port], launch: Launch | Absent, nvlinks: NvLinks | Absent) -> Callable[..., Finding]:
    """Return a note if nothing leaves the node, or only management's NICs do; a failure for NVLink across nodes."""
    large = any(port.link_layer == "InfiniBand" or (gbps(port) or 0) >= 100 for port in ports)
    if single_node(launch) or not large:
        return note
    linked = isinstance(nvlinks, NvLinks) and any(isinstance(row, tuple) and row for row in nvlinks.gpus)
    return fail if linked and isinstance(launch, Launch) and launch.several_nodes else warn


def _another_tree(machine: Machine | Absent, settings: Settings) -> bool:
    """Return whether the PCI tree is a hypervisor's, or a file gives NCCL one: what we see may not count."""
    return (isinstance(machine, Machine) and machine.virtual is True) or bool(settings.get("NCCL_TOPO_FILE"))


def _reached(made: Sequence[Direct], gpu: str) -> bool | None:
    """Return whether some NIC writes the GPU's memory; None if unknown of any, and no known one does."""
    said = [direct.receives for direct in made if direct.gpu == gpu]
    return True if True in said else None if None in said else False


def _disabled_by_settings(made: Sequence[Direct], usual: Sequence[Direct], settings: Settings) -> Iterator[Finding]:
    """Yield what NCCL would do, and the job's own settings prevent."""
    gpus = list(dict.fromkeys(direct.gpu for direct in made))
    lost = [gpu for gpu in gpus if _reached(usual, gpu) and not _reached(made, gpu)]
    name = next((name for name in _PREVENT if settings.get(name) is not None), "")
    if lost and name:
        yield _prevented(settings, name, f"disables GPUDirect RDMA for {listed(lost)}")
    pairs = zip(made, usual, strict=True)
    staged = {now.gpu for now, before in pairs if before.sends and now.receives and now.sends is False}
    if staged:
        message = f"makes {listed(sorted(staged))} send data through host memory"
        yield _prevented(settings, "NCCL_NET_GDR_READ", message)


def _prevented(settings: Settings, name: str, message: str) -> Finding:
    entry = settings.effective[name]
    remedy = f"unset {name}, unless it works around a fault. In that case it hides the fault"
    return warn(name, message, **JOB, evidence=as_evidence(entry), remedy=remedy)


def _too_far(
    made: Sequence[Direct], usual: Sequence[Direct], gpus: Sequence[str], tell: Callable[..., Finding]
) -> Iterator[Finding]:
    """Yield GPUs that are farther from every NIC than the level allows: a fault only if most are near enough."""
    unknown = [gpu for gpu in gpus if _reached(usual, gpu) is None]
    if unknown:
        message = "its distance from the NICs is unknown, so it is unknown whether NCCL uses GPUDirect RDMA"
        yield note(listed(unknown), message, evidence=_ORIGIN)
    far = [gpu for gpu in gpus if _reached(usual, gpu) is False and _reached(made, gpu) is not True]
    near = [gpu for gpu in gpus if _reached(usual, gpu)]
    odd = 2 * len(near) > len(gpus)
    for why, names in _alike(usual, far).items():
        message = f"no GPUDirect RDMA: the nearest NIC {why}, and no relay GPU (PXN) has a nearer one"
        if odd:
            for gpu in names:
                yield tell(gpu, message, **NODE, evidence=_ORIGIN)
        else:
            built = ". At least half of the GPUs have no GPUDirect RDMA, so the machine is built that way"
            yield note(listed(names), message + built, evidence=_ORIGIN)


def _alike(made: Sequence[Direct], gpus: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs by a phrase about the NIC that is nearest to them."""
    known = {gpu: [direct for direct in made if direct.gpu == gpu and direct.path is not None] for gpu in gpus}
    return grouped((min(found, key=lambda direct: direct.path or 0).why, gpu) for gpu, found in known.items())
