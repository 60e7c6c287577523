"""What turns traffic between GPU and NIC off its short way, errors of the bus, and whether the driver agrees."""

from collections.abc import Iterator, Mapping
from itertools import combinations, takewhile

from ncclprobe.checks.gpu import blanks, gpu_job
from ncclprobe.checks.gpu.siblings import TREE, TWO
from ncclprobe.checks.gpu.state import GIB, HEALTHY, box
from ncclprobe.checks.pci import bare_metal, gpu_devices, rdma_cards
from ncclprobe.checks.pci.links import FULL, nic
from ncclprobe.facts.field import missing
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine, is_virtual
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Bridge, Device, Errors, Identity, Pci, PciPosition
from ncclprobe.facts.topo_matrix import Matrix, MatrixKind
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Certainty, Finding, note, seen, warn
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, unlearned
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.gpudirect import supported
from ncclprobe.nccl.paths import machine_topology

_REDIRECTS = frozenset({"ReqRedir", "CmpltRedir"})
_TURING = (7, 5)
SMALL_WINDOW = 256 << 20
_GRACE = ("GH200", "GB200", "GB300", "GB10")
_MOST_NAMED = 4

_UP, _DOWN = "0000:01:00.0", ("0000:02:00.0", "0000:02:01.0")
_PORT = Identity(0x060400, 0x1000, 0xC030)
RDMA, _NIC = nic(0, FULL)
UNREAD = Absent("config space: only 64 bytes are readable, and ACS is beyond (root sees it)", "Denied")


def below_a_switch(*acs: str, iommu: str = "identity", seen: bool = True) -> Pci:
    """Return a GPU and a NIC below one switch whose lower ports have `acs` switched on, for examples."""
    places = [PciPosition("pci0000:00", ("0000:00:01.0", _UP, port)) for port in _DOWN]
    gpu = Device("0000:03:00.0", Identity(0x030200, 0x10DE, 0x2335), places[0], FULL, iommu=iommu)
    card = replace(_NIC, place=places[1], iommu=iommu)
    ports = {port: Bridge(port, _PORT, acs=frozenset(acs) if seen else UNREAD) for port in _DOWN}
    return Pci({gpu.address: gpu, card.address: card}, {**ports, _UP: Bridge(_UP, _PORT)})


ONE = box(replace(HEALTHY, pci="00000000:03:00.0", bar1_bytes=256 * GIB))
WITH_NIC = Fabric((RDMA,))
NO_PEERS = PeerAccess()
UNCHOSEN = Absent("NCCL's choice is unknown")
NO_COUNTERS = Absent("no error counters: the firmware or hypervisor controls AER", "Missing")


_SINCE_BOOT = Certainty("medium", "since boot")


@check(
    slows=True,
    bad=lambda: [(below_a_switch("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), UNCHOSEN)],
    good=lambda: [(below_a_switch(), UNCHOSEN)],
    privilege="root",
    applies=bare_metal,
)
def acs(pci: Pci, choices: Choices | Absent) -> Iterator[Finding]:
    """A PCIe switch redirects traffic between its devices to the CPU (ACS).

    Right: No PCIe switch redirects traffic between its devices to the CPU (ACS).
    Why: with ACS redirection, GPUDirect traffic goes through the host bridge at a fraction of the rate, or hangs
    (nccl#1412, nccl#199; "PCI Access Control Services" in NCCL's troubleshooting guide).
    Fix: if the machine runs no virtual machines, turn ACS off in the firmware setup, or with setpci at each boot. Until
    then NCCL_P2P_DISABLE=1 makes GPUs without NVLink use host memory, which is slow but does not hang.
    """
    if not _may_redirect(pci):
        return
    judged, redirecting, unread = set[str](), set[str](), dict[str, Absent]()
    for port in _ports_between(pci):
        on = pci.bridges[port].acs if port in pci.bridges else Absent("not on the bus")
        judged.add(port)
        if isinstance(on, Absent):
            unread[port] = on
        elif on and on & _REDIRECTS:
            redirecting.add(port)
    dark = [each.acs for each in pci.bridges.values() if isinstance(each.acs, Absent)]
    if not judged and any(gap.refused == "NotCaptured" for gap in dark):  # a pasted matrix shows where switches are
        raise unlearned(dark)
    if unread and len(unread) == len(judged):
        why = next(iter(unread.values()))
        raise Unlearned(f"{why.why} (needs root)" if why.refused == "Denied" else why.why)
    if redirecting:
        named = first_of(sorted(redirecting), _MOST_NAMED)
        message = (
            f"{len(redirecting)} of {len(judged)} switch ports between GPUs and NICs redirect requests to the root"
        )
        evidence = seen("lspci -vvv", f"ACSCtl of {named}")
        message += peers_over_pcie(choices)
        yield warn("PCIe switches", message, blame="node", action="fix-image", evidence=evidence)
    if unread:
        yield from blanks(unread, len(judged), "/sys/bus/pci/devices/*/config")


def _may_redirect(pci: Pci) -> bool:
    """Return whether a port of any kind redirects, or is not known: which ports count takes long to find out."""
    places = [each.place for each in pci.devices.values() if isinstance(each.place, PciPosition)]
    if not {port for place in places for port in place.bridges} <= pci.bridges.keys():
        return True
    return any(isinstance(each.acs, Absent) or (each.acs or frozenset()) & _REDIRECTS for each in pci.bridges.values())


def _ports_between(pci: Pci) -> tuple[str, ...]:
    """Return the lower ports of switches between two devices, one of them a GPU, below their common bridge.

    A place's bridges are a root port, then an upper and a lower port of each switch.
    """
    ends = [device for device in pci.devices.values() if device.identity.kind in ("gpu", "nic")]
    ports: dict[str, None] = {}
    for one, other in combinations(ends, 2):
        kinds = {one.identity.kind, other.identity.kind}
        if isinstance(one.place, Absent) or isinstance(other.place, Absent) or "gpu" not in kinds:
            continue
        ways = one.place.bridges, other.place.bridges
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ways, strict=False)))
        if shared >= 2:  # an upper port at least: below a common root port alone there is no switch
            ports |= dict.fromkeys(port for way in ways for n, port in enumerate(way) if n >= shared and n % 2 == 0)
    return tuple(ports)


@check(
    slows=True,
    bad=lambda: [(below_a_switch(iommu="DMA"), ONE, WITH_NIC, NO_PEERS, UNCHOSEN)],
    good=lambda: [(below_a_switch(), ONE, WITH_NIC, NO_PEERS, UNCHOSEN)],
    applies=bare_metal,
)
def iommu(
    pci: Pci, gpus: Gpus | Absent, fabric: Fabric | Absent, peers: PeerAccess | Absent, choices: Choices | Absent
) -> Iterator[Finding]:
    """The IOMMU translates the addresses of GPUs or NICs.

    Right: The IOMMU does not translate the addresses of GPUs and NICs.
    Why: each transfer between GPUs, or between a GPU and a NIC, then goes through the CPU for address translation. Jobs
    hang, or reach 6 GB/s instead of 20 (nccl#257, nccl-tests#115).
    Fix: boot with iommu=pt (and keep intel_iommu=on or amd_iommu=on), or turn the IOMMU off in the firmware. Until then
    NCCL_P2P_DISABLE=1 makes GPUs without NVLink use host memory, which is slow but does not hang.
    """
    if not any(isinstance(each.iommu, Absent) or str(each.iommu).startswith("DMA") for each in pci.devices.values()):
        return
    devices = gpu_devices(pci, gpus)
    if isinstance(fabric, Fabric):
        devices |= {name: device for name, (device, _) in rdma_cards(fabric, pci).items()}
    unknown = {name: device.iommu for name, device in devices.items() if isinstance(device.iommu, Absent)}
    translated = {name: str(device.iommu) for name, device in devices.items() if str(device.iommu).startswith("DMA")}
    if translated:
        kinds = ", ".join(sorted(set(translated.values())))
        names = first_of(translated, _MOST_NAMED)
        message = f"{len(translated)} of {len(devices)} devices have IOMMU groups of type {kinds}: {names}"
        evidence = "/sys/bus/pci/devices/*/iommu_group/type"
        if _direct(gpus, fabric, peers):
            more = peers_over_pcie(choices)
            yield warn("IOMMU", f"{message}{more}", blame="node", action="fix-image", evidence=evidence)
        else:
            yield note(
                "IOMMU",
                f"{message}; on this machine no traffic goes directly between devices over PCIe",
                evidence=evidence,
            )
    yield from blanks(unknown, len(devices), "/sys/bus/pci/devices/*/iommu_group/type")


def peers_over_pcie(choices: Choices | Absent) -> str:
    """Return what NCCL does all the same between GPUs that NVLink does not join, and what keeps it from that."""
    found = (choices.p2p.chosen if isinstance(choices, Choices) else None) or ()
    over = [each for each in found if each.transport == "P2P" and each.path and not each.path.startswith("NV")]
    if not over:
        return ""
    count, paths = sum(len(each.pairs) for each in over), ", ".join(sorted({str(each.path) for each in over}))
    return (
        f"; NCCL still writes from GPU to GPU over PCIe, for {plural(count, 'pair')} without NVLink ({paths}), "
        "unless NCCL_P2P_DISABLE=1"
    )


def _direct(gpus: Gpus | Absent, fabric: Fabric | Absent, peers: PeerAccess | Absent) -> bool:
    """Return whether devices reach each other over PCIe: NIC and GPU with GPUDirect, or GPUs without NVLink.

    A Grace's GPU and NIC meet in the processor, which translates on purpose.
    """
    if isinstance(gpus, Absent):
        return False
    able = [gpu for gpu in gpus.all if supported(gpu) and not any(word in gpu.name for word in _GRACE)]
    with_nic = isinstance(fabric, Fabric) and any(isinstance(device.pci, str) for device in fabric.devices)
    over_pcie = isinstance(peers, PeerAccess) and any(
        status == "OK" and peers.nvlink.get(pair) != "OK" for pair, status in peers.read.items()
    )
    return bool(able) and (with_nic or over_pcie)


def with_errors(errors: Errors | Absent) -> Pci:
    """Return a GPU that has seen these, for examples."""
    gpu = Device("0000:03:00.0", Identity(0x030200, 0x10DE, 0x2335), PciPosition("pci0000:00"), FULL, errors=errors)
    return Pci({gpu.address: gpu})


@check(
    slows=True,
    bad=lambda: [(with_errors(Errors(fatal={"DLP": 1})), ONE, Fabric())],
    good=lambda: [(with_errors(Errors()), ONE, Fabric())],
    applies=gpu_job,
)
def aer(pci: Pci, gpus: Gpus | Absent, fabric: Fabric | Absent) -> Iterator[Finding]:
    """A GPU or NIC has had fatal errors on the PCI bus.

    Right: No GPU or NIC has had fatal errors on the PCI bus.
    Why: such an error ends the job and removes the device from the bus until it is reset. Other errors are reported as
    notes, because some happen at every boot.
    Fix: reseat the device, its riser or its cable. If the counts keep growing, have it repaired.
    """
    devices = gpu_devices(pci, gpus)
    if isinstance(fabric, Fabric):
        devices |= {name: device for name, (device, _) in rdma_cards(fabric, pci).items()}
    unknown = {}
    for name, device in devices.items():
        evidence = f"/sys/bus/pci/devices/{device.address}/aer_dev_*"
        if isinstance(device.errors, Absent):
            unknown[name] = NO_COUNTERS if missing(device.errors) else device.errors
        elif device.errors.fatal:
            message = f"has had fatal errors since boot: {_counted(device.errors.fatal)}"
            yield warn(name, message, blame="node", action="retest", confidence=_SINCE_BOOT, evidence=evidence)
        elif device.errors.nonfatal:
            counts = _counted(device.errors.nonfatal)
            yield note(name, f"has had errors since boot that were not fatal: {counts}", evidence=evidence)
    yield from blanks(unknown, len(devices), "/sys/bus/pci/devices/*/aer_dev_*")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def window(nbytes: int, name: str = "NVIDIA L40S", compute: tuple[int, int] = (8, 9)) -> Gpu:
    """Return a GPU of 48 GiB with this BAR 1, for examples."""
    return replace(ONE.all[0], name=name, memory_bytes=48 * GIB, bar1_bytes=nbytes, compute=compute)


@check(
    slows=True,
    bad=lambda: [(box(window(SMALL_WINDOW)), WITH_NIC)],
    good=lambda: [(box(window(64 * GIB)), WITH_NIC)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def bar1(gpus: Gpus, fabric: Fabric | Absent) -> Iterator[Finding]:
    """Only a small part of a GPU's memory is visible on the PCI bus (BAR 1).

    Right: All memory of every GPU is visible on the PCI bus (BAR 1).
    Why: over PCIe, a NIC and other GPUs can access only the memory inside that window. NCCL's buffers for many channels
    do not fit into 256 MiB, so GPUDirect fails or is not used.
    Fix: turn on "Above 4G decoding" and resizable BARs in the firmware setup. On A40, L40 and RTX boards choose the
    mode without displays (NVIDIA's displaymodeselector).
    """
    unknown = {}
    alive = [gpu for gpu in gpus.all if not gpu.lost]
    widest = {gpu.name: gpu.bar1_bytes for gpu in sorted(alive, key=_window) if isinstance(gpu.bar1_bytes, int)}
    for gpu in alive:
        name = f"GPU{gpu.index}"
        if isinstance(gpu.bar1_bytes, Absent):
            unknown[name] = gpu.bar1_bytes
        elif gpu.bar1_bytes <= SMALL_WINDOW:
            message = f"its BAR 1 is {gpu.bar1_bytes >> 20} MiB"
            if widest[gpu.name] > gpu.bar1_bytes:
                message += f", but {widest[gpu.name] >> 20} MiB on its siblings"
                yield warn(name, message, blame="node", action="fix-image", evidence="nvmlDeviceGetBAR1MemoryInfo")
            elif isinstance(fabric, Fabric) and fabric.devices and supported(gpu):
                by_design = isinstance(gpu.compute, Absent) or gpu.compute <= _TURING
                tell = note if by_design or any(word in gpu.name for word in _GRACE) else warn
                yield tell(name, message, blame="node", action="fix-image", evidence="nvmlDeviceGetBAR1MemoryInfo")
    yield from blanks(unknown, len(alive), "nvmlDeviceGetBAR1MemoryInfo")


def _window(gpu: Gpu) -> int:
    return gpu.bar1_bytes if isinstance(gpu.bar1_bytes, int) else -1


_MEANS = {"PIX": "PCIe switch", "PXB": "PCIe switch", **dict.fromkeys(("PHB", "NODE", "SYS", "SOC"), "processor")}

METAL = Machine(virtual=False)
NO_LINKS = NvLinks(((), ()))


def printed(word: str, kind: MatrixKind = "topo-m") -> Matrix:
    """Return the matrix of two GPUs, for examples."""
    links = {"GPU0": {"GPU0": "X", "GPU1": word}, "GPU1": {"GPU0": word, "GPU1": "X"}}
    return Matrix(kind, ("GPU0", "GPU1"), (), links, ("", ""), ("", ""), ("", ""))


@check(
    bad=lambda: [(printed("SYS"), TREE, TWO, NO_LINKS, Fabric(), METAL)],
    good=lambda: [(printed("PIX"), TREE, TWO, NO_LINKS, Fabric(), METAL)],
    requires="nvl.links",
    applies=gpu_job,
)
def topology_agree(
    matrix: Matrix,
    pci: Pci,
    gpus: Gpus,
    links: NvLinks | Absent,
    fabric: Fabric | Absent,
    machine: Machine | Absent,
) -> Iterator[Finding]:
    """sysfs and nvidia-smi disagree about how two devices are connected.

    Right: sysfs and nvidia-smi agree about how devices are connected.
    Why: NCCL uses sysfs and NVML, but people and launchers use `nvidia-smi topo -m`. If the two differ, one of them is
    wrong. Then processes are bound to the wrong NIC or CPUs, or NCCL does not use a nearby NIC.
    Fix: compare `lspci -tv` with `nvidia-smi topo -m` outside any container or job, because a cgroup hides CPUs from
    nvidia-smi. Then check NCCL's own view (NCCL_TOPO_DUMP_FILE), which is what counts.
    """
    own = machine_topology(
        pci,
        gpus,
        links if matrix.kind == "topo-m" else NvLinks(((),) * len(gpus.all)),
        fabric if isinstance(fabric, Fabric) else Fabric(),
    ).smi
    words = {(one, other): word for one, row in matrix.links.items() for other, word in row.items() if one != other}
    known = {pair: (own.get(pair), "SYS" if word == "SOC" else word) for pair, word in words.items()}  # its old name
    shared = {pair: (shown, said) for pair, (shown, said) in known.items() if shown is not None}
    if not shared and len(gpus.all) > 1:
        raise Unlearned("no pair of devices is in both the PCI tree and nvidia-smi's matrix")
    lost = {f"GPU{gpu.index}" for gpu in gpus.all if gpu.lost} | _unread(links)  # NVML does not tell their NVLinks
    differing = grouped(
        (words, f"{one} and {other}")
        for (one, other), words in shared.items()
        if words[0] != words[1] and one < other and not lost & {one, other}
    )
    for (shown, said), pairs in differing.items():
        message = f"{shown} according to sysfs and NVML, but {said} according to nvidia-smi"
        more = f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        same = _means(shown) == _means(said)
        tell = note if same or is_virtual(machine) or isinstance(links, Absent) else warn
        yield tell(pairs[0] + more, message, action="retest", evidence=("/sys/bus/pci/devices", "nvidia-smi topo -m"))


def _unread(links: NvLinks | Absent) -> set[str]:
    """Return the GPUs of whose NVLinks one at least could not be read."""
    rows = () if isinstance(links, Absent) else links.gpus
    gone = [isinstance(row, Absent) or any(isinstance(link.state, Absent) for link in row) for row in rows]
    return {f"GPU{n}" for n, unread in enumerate(gone) if unread}


def _means(word: str) -> str:
    """Return what a word means is between two devices; words with one meaning do not matter to NCCL."""
    return "NVLink" if word.startswith("NV") else _MEANS.get(word, word)
