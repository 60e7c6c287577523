"""What the checks of PCIe must object to, and what they must accept."""

from ncclprobe.checks.gpu.siblings import TREE, TWO
from ncclprobe.checks.gpu.state import GIB, HEALTHY, box
from ncclprobe.checks.pci.links import (
    CARDS,
    EQUAL,
    FABRIC,
    FULL,
    HALF,
    LARGE,
    OLD_SLOT,
    UNEQUAL,
    cards,
    gpu_at,
    linked,
    nic,
    node,
)
from ncclprobe.checks.pci.tree import (
    METAL,
    NO_LINKS,
    NO_PEERS,
    ONE,
    SMALL_WINDOW,
    UNCHOSEN,
    WITH_NIC,
    below_a_switch,
    printed,
    window,
    with_errors,
)
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Bridge, Errors, Identity, Pci, PcieLink, PcieSettings, PciPosition
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

GUEST = Machine(virtual=True)
FOUR = tuple(NvLink(n, "active", remote="switch", remote_pci="0000FFFF:FF:FF.0") for n in range(4))
LINKED = NvLinks((FOUR, FOUR))
_SCREEN = Identity(0x030000, 0x10DE, 1)
HALF_SLOT = box(*(replace(HEALTHY, pcie_width=w, pcie_max_width=w) for w in (16, 8, 16, 16)))
SLOW_SLOT = box(*(replace(gpu, pcie_max_generation=4 if gpu.index else 5) for gpu in EQUAL[0].all))
UNTOLD = PcieLink(None, None, None, None)
_SMALL = PcieSettings(512, 256, True)


def _below_switches(*widths: int) -> tuple[Gpus, Pci]:
    """Return GPUs, each below a switch of its own with so many lanes to the processor."""
    gpus, found = node(*(gpu_at(bus + 1) for bus in range(len(widths))))
    uppers = [f"0000:{bus:02x}:00.0" for bus in range(0x40, 0x40 + len(widths))]
    places = [PciPosition("pci0000:00", ("0000:00:01.0", upper, "0000:80:00.0")) for upper in uppers]
    devices = {
        name: replace(each, place=where) for (name, each), where in zip(found.devices.items(), places, strict=True)
    }
    switch = Identity(0x060400, 0x1000, 0xC030)
    bridges = {
        upper: Bridge(upper, switch, PcieLink(32.0, width, 32.0, 16))
        for upper, width in zip(uppers, widths, strict=True)
    }
    return gpus, Pci(devices, bridges)


CASES = {
    "pci.topology-agree": Cases(
        bad=[("WARN unknown: GPU0 and GPU1", printed("PXB"), TREE, TWO, LINKED, Fabric(), METAL)],
        good=[
            (printed("PXB"), TREE, TWO, NO_LINKS, Fabric(), METAL),
            (printed("NV4"), TREE, TWO, LINKED, Fabric(), METAL),
            (printed("PXB", "topo-mp"), TREE, TWO, LINKED, Fabric(), METAL),
            (printed("PHB"), TREE, TWO, NO_LINKS, Fabric(), GUEST),
            (printed("NV4"), TREE, TWO, NvLinks((Absent("late", "TimedOut"), *LINKED.gpus[1:])), Fabric(), METAL),
        ],
    ),
    "pci.link/gpu-width": Cases(
        bad=[
            ("FAIL node: GPU0", *node(gpu_at(1, 8)), METAL),
            ("FAIL node: GPU0", *node(gpu_at(1, 4), gpu_at(2)), GUEST),
            ("WARN node: GPU1", HALF_SLOT, Pci(), METAL),
            ("FAIL node: 0000:40:00.0", *_below_switches(8, 16, 16), METAL),
        ],
        good=[
            (*_below_switches(8, 8, 8), METAL),
            (*_below_switches(8, 8, 16, 16), METAL),
            (*_below_switches(8, 16, 16), GUEST),
            (*_below_switches(16, 16, 16), METAL),
            (*node(gpu_at(1, 8, _SCREEN), gpu_at(2, 8, _SCREEN)), METAL),
            (EQUAL[0], Pci(), GUEST),
        ],
    ),
    "pci.link/gpu-gen": Cases(
        bad=[("WARN node: GPU0, GPU1, GPU3", box(*reversed(SLOW_SLOT.all), SLOW_SLOT.all[1], *EQUAL[0].all))],
        good=[],
    ),
    "pci.link/nic-link": Cases(
        bad=[("FAIL node: mlx5_0", *cards(nic(0, HALF)))],
        good=[
            cards(nic(0, OLD_SLOT, 200.0), nic(1, OLD_SLOT, 200.0)),
            cards(nic(0, FULL), nic(1, UNTOLD)),
        ],
    ),
    "pci.link/nic-fits": Cases(
        bad=[("WARN node: mlx5_0", *cards(nic(0, HALF), nic(1, FULL)))],
        good=[
            cards(nic(0, OLD_SLOT, 200.0)),
            cards(nic(0, FULL, 200.0), nic(0, FULL, 200.0, function=1)),
        ],
    ),
    "pci.settings": Cases(
        bad=[
            ("WARN node: mlx5_1", linked(CARDS, LARGE, _SMALL, LARGE), Absent("no driver"), FABRIC),
            (
                "WARN node: GPU0",
                linked(EQUAL[1], replace(_SMALL, ats=True), replace(_SMALL, ats=False)),
                EQUAL[0],
                Fabric(),
            ),
        ],
        good=[
            (linked(CARDS, None), Absent("no driver"), FABRIC),
            (linked(CARDS, LARGE, _SMALL, LARGE, _SMALL), Absent("no driver"), FABRIC),
            (linked(UNEQUAL[1], _SMALL), UNEQUAL[0], Fabric()),
        ],
    ),
    "pci.acs": Cases(
        good=[
            (below_a_switch("SrcValid"), UNCHOSEN),
            (Pci(), UNCHOSEN),
        ]
    ),
    "pci.iommu": Cases(
        bad=[],
        good=[
            (below_a_switch(iommu="DMA-FQ"), ONE, Fabric(), NO_PEERS, UNCHOSEN),
            (
                below_a_switch(iommu="DMA"),
                box(replace(ONE.all[0], name="NVIDIA GH200 480GB")),
                WITH_NIC,
                NO_PEERS,
                UNCHOSEN,
            ),
        ],
    ),
    "pci.aer": Cases(good=[(with_errors(Errors(correctable={"BadTLP": 7}, nonfatal={"UnsupReq": 1})), ONE, Fabric())]),
    "pci.bar1": Cases(
        bad=[("WARN node: GPU1", box(window(64 * GIB), window(SMALL_WINDOW)), Fabric())],
        good=[
            (box(window(SMALL_WINDOW)), Fabric()),
            (box(window(SMALL_WINDOW, "NVIDIA GeForce RTX 4090")), WITH_NIC),
            (box(window(SMALL_WINDOW, "Tesla T4", (7, 5))), WITH_NIC),
        ],
    ),
}
