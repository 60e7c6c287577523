"""What the checks of PCIe must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import over
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
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Bridge, Device, Errors, Identity, Pci, PcieLink, PcieSettings, PciPosition
from ncclprobe.model.nccl_selection import Choices, Decision, PeerChoice
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

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


_PARTLY = [replace(FULL, **{name: None}) for name in ("speed_gtps", "width", "max_speed_gtps", "max_width")]
_PEERS = PeerAccess({(0, 1): "OK", (0, 2): "OK"}, {}, {(0, 1): "OK", (0, 2): "NS"})
_PAIR = node(gpu_at(1), gpu_at(2))[0]
_PAIR_8 = node(gpu_at(1, 8), gpu_at(2))
_NARROW_SLOT = (replace(_PAIR_8[0], all=(replace(_PAIR_8[0].all[0], pcie_max_width=8), _PAIR_8[0].all[1])), _PAIR_8[1])
_UNEXPLAINED = replace(node(gpu_at(1))[0].all[0], throttle=Absent("Not Supported"))
_CARD = cards(nic(0, PcieLink(16.0, 16, 32.0, 16)))
_DOWN = replace(_CARD[0].devices[0], ports=(replace(_CARD[0].devices[0].ports[0], state="DOWN"),))
_DENIED = Absent("permission denied", "Denied")
_BLIND = {name: replace(each, iommu=_DENIED) for name, each in below_a_switch().devices.items()}
_NO_FILE = Absent("read /sys/bus/pci/devices/0000:03:00.0/aer_dev_correctable: not there", "Missing")
_ONE_LOST = replace(TWO, all=(TWO.all[0], replace(TWO.all[1], lost="GPU is lost")))


def _bridges(**flags: frozenset[str]) -> dict[str, Bridge]:
    """Return bridges by the last part of their addresses, each with these flags of ACS."""
    names = {name: f"0000:{name[1:3]}:{name[3:]}.0" for name in flags}
    return {names[name]: Bridge(names[name], Absent("not read"), acs=found) for name, found in flags.items()}


# A root port and a port to storage are not between a GPU and a NIC.
_GRACES = [replace(ONE.all[0], name=f"NVIDIA {each}") for each in ("GH200 480GB", "GB200", "GB300", "GB10")]
_ELSEWHERE = _bridges(b0001=frozenset({"SrcValid", "ReqRedir", "UpstreamFwd"}), b0207=frozenset({"ReqRedir"}))
_ROOTS = _bridges(b0001=frozenset({"ReqRedir"}), b0002=frozenset({"ReqRedir"}))
_APART = {
    f"0000:0{n}:00.0": Device(
        f"0000:0{n}:00.0", Identity(*kind, 1), PciPosition("pci0000:00", (f"0000:00:0{n}.0",)), FULL
    )
    for n, kind in ((1, (0x030200, 0x10DE)), (2, (0x020700, 0x15B3)))
}


def _between_gpus(*ways: tuple[str, str]) -> Choices:
    """Return what NCCL does between the GPUs of two pairs, or of the first."""
    pairs = (("GPU0", "GPU1"), ("GPU2", "GPU3"))
    return replace(over(""), p2p=Decision(tuple(PeerChoice(pairs, *way, False, "") for way in ways), ""))


_OVER_PCIE = _between_gpus(("P2P", "PIX"), ("SHM", "SYS"))
_BETWEEN = (_OVER_PCIE, _between_gpus(("P2P", "NVL")), _between_gpus(("SHM", "PHB")))
_REDIRECTED = below_a_switch("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
_topology_agree = rows_of(matrix=printed("NV4"), pci=TREE, gpus=TWO, links=NO_LINKS, fabric=Fabric(), machine=METAL)
_settings = rows_of(pci=linked(CARDS, LARGE, _SMALL, LARGE), gpus=EQUAL[0], fabric=FABRIC)
_UNASKED = Absent("not asked")
CASES: Cases = {
    "pci.topology-agree": [
        _topology_agree("NOTE unknown: GPU0 and GPU1", printed("PXB")),  # the same to NCCL
        _topology_agree("WARN unknown: GPU0 and GPU1", printed("SOC")),  # the old name of SYS
        _topology_agree("WARN unknown: GPU0 and GPU1", printed("PXB"), LINKED),
        _topology_agree("UNKNOWN: no pair of devices is in both", printed("PIX"), Pci()),
        _topology_agree(printed("PIX", "topo-mp"), LINKED), _topology_agree(links=Absent("NVML: not permitted")),
        _topology_agree(_ONE_LOST), _topology_agree(LINKED), _topology_agree(printed("PXB", "topo-mp"), LINKED),
        _topology_agree(printed("PHB"), GUEST),
        _topology_agree(NvLinks((Absent("late", "TimedOut"), *LINKED.gpus[1:]))),
    ],
    "pci.link/gpu-width": [
        ("NOTE unknown: GPU1", box(EQUAL[0].all[0], replace(EQUAL[0].all[1], pcie_width=_DENIED)), Pci(), METAL),
        ("FAIL node: 0000:40:00.0, 0000:41:00.0", *_below_switches(8, 8, 16, 16, 16), METAL), (*_NARROW_SLOT, METAL),
        ("FAIL node: GPU0", *node(gpu_at(1, 8)), METAL), ("FAIL node: GPU0", *node(gpu_at(1, 4), gpu_at(2)), GUEST),
        ("WARN node: GPU1", HALF_SLOT, Pci(), METAL), ("FAIL node: 0000:40:00.0", *_below_switches(8, 16, 16), METAL),
        ("FAIL node: GPU1", *node(gpu_at(1), gpu_at(2, 8), gpu_at(3)), METAL), (*node(gpu_at(1, 8)), GUEST),
        ("FAIL node: GPU0, GPU1", *node(gpu_at(1, 4), gpu_at(2, 8), gpu_at(3)), GUEST),
        ("FAIL node: GPU0, GPU1", *node(gpu_at(1, 8), gpu_at(2, 8)), METAL), (*node(gpu_at(1, 8), gpu_at(2, 8)), GUEST),
        ("NOTE unknown: 0000:40:00.0, 0000:41:00.0, 0000:42:00.0", *_below_switches(8, 8, 8), METAL),
        (*_below_switches(8, 8, 16, 16), METAL), (*_below_switches(8, 16, 16), GUEST), (EQUAL[0], Pci(), GUEST),
        (*_below_switches(16, 16, 16), METAL), (*node(gpu_at(1, 8, _SCREEN), gpu_at(2, 8, _SCREEN)), METAL),
    ],
    "pci.link/function-link": [
        ("FAIL node: 0000:01:00.0", node(gpu_at(1, 8), gpu_at(2), gpu_at(3))[1]),
        (cards(*((nic(n, link)) for n, link in enumerate(_PARTLY)))[1],),
        ("WARN node: 0000:a0:00.0", cards(nic(0, OLD_SLOT))[1]),
        ("FAIL node: 0000:a1:00.0", cards(nic(0, FULL), nic(1, OLD_SLOT), nic(2, FULL))[1]), (cards(nic(0, FULL))[1],),
    ],
    "pci.link/gpu-gen": [
        ("WARN node: GPU0, GPU1, GPU3", box(*reversed(SLOW_SLOT.all), SLOW_SLOT.all[1], *EQUAL[0].all)),
        *((replace(_PAIR, all=tuple(replace(gpu, pcie_generation=n) for gpu in _PAIR.all)),) for n in range(1, 6)),
        (box(_UNEXPLAINED),),
    ],
    "pci.link/nic-link": [
        *(("NOTE unknown: mlx5_1", *cards(nic(0, FULL), nic(1, each))) for each in _PARTLY),
        ("FAIL node: mlx5_0", *cards(nic(0, HALF))),
        ("FAIL node: mlx5_0", *cards(nic(0, OLD_SLOT, 100.0), nic(1, FULL, 100.0))),
        cards(nic(0, OLD_SLOT, 200.0), nic(1, OLD_SLOT, 200.0)), cards(nic(0, FULL), nic(1, UNTOLD)),
    ],
    "pci.link/nic-fits": [
        ("WARN node: mlx5_0, mlx5_1", *cards(nic(0, FULL, 400.0), nic(0, FULL, 600.0, function=1))),
        ("WARN node: mlx5_0", *cards(nic(0, HALF), nic(1, FULL))), cards(nic(0, OLD_SLOT, 200.0)),
        ("NOTE node: mlx5_0, mlx5_1", *cards(nic(0, FULL), nic(0, FULL, function=1))), (Fabric((_DOWN,)), _CARD[1]),
        cards(nic(0, FULL, 200.0), nic(0, FULL, 200.0, function=1)),
    ],
    "pci.settings": [
        _settings("NOTE unknown: mlx5_0", linked(CARDS, _DENIED, LARGE), gpus=Absent("no driver")),
        _settings("UNKNOWN: permission denied", linked(CARDS, _DENIED), gpus=Absent("no driver")),
        _settings("WARN node: mlx5_1", gpus=Absent("no driver")),
        _settings("WARN node: GPU0", linked(EQUAL[1], replace(_SMALL, ats=True), replace(_SMALL, ats=False)), Fabric()),
        _settings(linked(CARDS, None), gpus=Absent("no driver")),
        _settings(linked(CARDS, LARGE, _SMALL, LARGE, _SMALL), gpus=Absent("no driver")),
        _settings(linked(UNEQUAL[1], _SMALL), UNEQUAL[0], Fabric()),
    ],
    "pci.acs": [
        ("WARN node: PCIe switches", below_a_switch("CmpltRedir"), UNCHOSEN), (below_a_switch("SrcValid"), UNCHOSEN),
        ("WARN node: PCIe switches", _REDIRECTED, _between_gpus(("P2P", "SYS"), ("P2P", "PHB"))), (Pci(), UNCHOSEN),
        *(("WARN node: PCIe switches", _REDIRECTED, each) for each in _BETWEEN), (Pci(_APART, _ROOTS), UNCHOSEN),
        ("UNKNOWN: config space: only 64 bytes are readable, and ACS is beyond", below_a_switch(seen=False), UNCHOSEN),
        (replace(below_a_switch(), bridges={**below_a_switch().bridges, **_ELSEWHERE}), UNCHOSEN),
    ],
    "pci.iommu": [
        ("WARN node: IOMMU", below_a_switch(iommu="DMA"), ONE, Fabric(), _PEERS, UNCHOSEN),
        ("NOTE unknown: IOMMU", below_a_switch(iommu="DMA"), ONE, Fabric(), replace(_PEERS, nvlink=_PEERS.read),
            UNCHOSEN),
        *(("WARN node: IOMMU", below_a_switch(iommu="DMA"), ONE, WITH_NIC, NO_PEERS, each) for each in _BETWEEN),
        ("UNKNOWN: permission denied", replace(below_a_switch(), devices=_BLIND), ONE, Fabric(), _UNASKED, UNCHOSEN),
        (below_a_switch(iommu="DMA-FQ"), ONE, Fabric(), NO_PEERS, UNCHOSEN),
        *((below_a_switch(iommu="DMA"), box(each), WITH_NIC, NO_PEERS, UNCHOSEN) for each in _GRACES),
    ],
    "pci.aer": [
        ("WARN node: GPU0", with_errors(Errors(fatal={"DLP": 1, "SDES": 2}, nonfatal={"UnsupReq": 1})), ONE, Fabric()),
        ("UNKNOWN: no error counters: the firmware or hypervisor controls AER", with_errors(_NO_FILE), ONE, Fabric()),
        (with_errors(Errors(correctable={"BadTLP": 7}, nonfatal={"UnsupReq": 1})), ONE, Fabric()),
    ],
    "pci.bar1": [
        ("NOTE node: GPU0", box(window(SMALL_WINDOW, "NVIDIA GH200 480GB")), WITH_NIC),
        ("WARN node: GPU1", box(window(64 * GIB), window(SMALL_WINDOW), window(32 * GIB)), Fabric()),
        ("WARN node: GPU1", box(window(64 * GIB), window(SMALL_WINDOW)), Fabric()),
        (box(window(SMALL_WINDOW)), Fabric()), (box(window(SMALL_WINDOW, "NVIDIA GeForce RTX 4090")), WITH_NIC),
        (box(window(SMALL_WINDOW, "Tesla T4", (7, 5))), WITH_NIC),
    ],
}  # fmt: skip
