"""How the NICs lie to the GPUs."""

from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.ib.fixtures import PLAIN, fabric, gpus, pci, port
from ncclprobe.checks.ib.selection import active, distances, groups, listed, rdma_job, taken, typical
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.model.findings import Finding, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.hcas import fast
from ncclprobe.topology.paths import Topology

METAL, GUEST = Machine(virtual=False), Machine(virtual=True, hypervisor="kvm")


@check(
    slows=True,
    bad=lambda: [(fabric(port(1, state="DOWN")), PLAIN, pci(), gpus(), METAL)],
    good=lambda: [(fabric(), PLAIN, pci(), gpus(), METAL)],
    requires="ib.state",
    applies=rdma_job,
)
def gpu_near(fabric: Fabric, settings: Settings, pci: Pci, gpus: Gpus, machine: Machine | Absent) -> Iterator[Finding]:
    """A GPU has no NIC near it, or fewer than the other GPUs have.

    Right: Every GPU has a NIC near it, and all equally many.
    Why: what a GPU sends to a NIC beyond its PCI switch crosses the processor, without GPUDirect (src/graph/paths.cc),
    or shares another GPU's NIC; the slowest GPU paces every collective. Where most GPUs of a machine have a NIC of
    their own, the one without has lost it, or a card is in the wrong slot.
    Fix: compare the slots with a healthy neighbour's (lspci -tv), and look for a NIC that is missing or down.
    """
    nics = list(dict.fromkeys(port.device for port in fast(active(taken(fabric, settings)))))
    topology = distances(pci, gpus, fabric)
    found = groups(topology, nics)
    if nics and topology.gpus and not found:
        raise Unlearned("the PCI tree does not tell how far GPUs and NICs are apart")
    usual, tell = typical(found, nics), warn
    if isinstance(machine, Machine) and machine.virtual:
        tell = note  # the tree is what the hypervisor shows
    for group in found:
        share = group.share(nics)
        if share >= usual:
            continue
        subject = listed(group.gpus)
        if not group.nics:
            message = f"{_nearest(topology, group.gpus[0], nics)}, where most GPUs have one below their own switch"
        else:
            message = f"{listed(group.nics)} for {len(group.gpus)} GPUs, where most have {usual:g} NIC each"
        sources = ("/sys/bus/pci/devices", "/sys/class/infiniband/*/ports/*/state")
        yield tell(subject, message, blame="node", action="repair", evidence=sources)


def _nearest(topology: Topology, gpu: str, nics: list[str]) -> str:
    known = {nic: path for nic in topology.nics if (path := topology.paths[gpu, nic]) is not None}
    nic = min((each for each in nics if each in known), key=lambda each: known[each])
    nearer = [each for each in known if known[each] < known[nic]]
    passed = f"{listed(nearer)} near it is down, slow or left out; the next" if nearer else "the nearest NIC"
    return f"{passed} is {nic} at {known[nic].name}"


@check(
    slows=True,
    bad=lambda: [(fabric(), PLAIN, pci(moved=(3,)), gpus(), METAL)],
    good=lambda: [(fabric(), PLAIN, pci(moved=(3,)), gpus(), GUEST)],
    applies=rdma_job,
)
def numa(fabric: Fabric, settings: Settings, pci: Pci, gpus: Gpus, machine: Machine | Absent) -> Iterator[Finding]:
    """NICs are distributed over the NUMA nodes differently from the GPUs.

    Right: NICs are distributed over the NUMA nodes as the GPUs are.
    Why: NCCL pins its proxy threads and buffers near the GPU; what goes to a NIC of another NUMA node crosses the link
    between the processors, twice without GPUDirect.
    Fix: on bare metal compare the slots with a healthy neighbour's; where a node is -1, the firmware or the hypervisor
    does not tell it, and NCCL takes the NIC for a neighbour of node 0.
    """
    ports = fast(active(taken(fabric, settings)))
    places = {device.name: device.pci for device in fabric.devices if isinstance(device.pci, str)}
    cards = {port.device: pci.devices[places[port.device]] for port in ports if places.get(port.device) in pci.devices}
    nodes = {name: card.numa_node for name, card in cards.items() if isinstance(card.numa_node, int)}
    if cards and not nodes:
        raise Unlearned("the NUMA node of no NIC could be read")
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
            message = f"NUMA node {node} has {have[node]} of the NICs, and {wanted[node]} of the GPUs"
            yield tell(
                listed(names), message, blame="node", action="repair", evidence="/sys/bus/pci/devices/*/numa_node"
            )
