"""PCIe links of GPUs and NICs: lanes, speed, settings of requests, and whether a NIC fits its slot."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ncclprobe.checks import NODE
from ncclprobe.checks.gpu import blanks, most_frequent, named
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.pci import LINK_GROUP, bare_metal, gpu_devices, rdma_cards, same_slot
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.machine import Machine, is_virtual
from ncclprobe.facts.nvml import Gpu, Gpus, unsupported
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PcieSettings, PciPosition
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import ONCE, Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import grouped, replace

_GPU, _NIC = Identity(0x030200, 0x10DE, 1), Identity(0x020700, 0x15B3, 1)
METAL = Machine(virtual=False)
WIDE = PcieLink(2.5, 16, 32.0, 16)


def gpu_at(bus: int, width: int = 16, kind: Identity = _GPU) -> Device:
    """Return a GPU of 16 lanes, for examples."""
    return Device(f"0000:{bus:02x}:00.0", kind, PciPosition(f"pci0000:{bus:02x}"), replace(WIDE, width=width))


def node(*devices: Device) -> tuple[Gpus, Pci]:
    """Return these GPUs as NVML and sysfs show them, for examples."""
    return box(*map(_to_nvml_gpu, devices)), Pci({device.address: device for device in devices})


def _to_nvml_gpu(device: Device) -> Gpu:
    width = device.link.width if isinstance(device.link, PcieLink) else None
    gpu = replace(HEALTHY, pci=f"0000{device.address}", pcie_generation=1, pcie_max_generation=5)
    return replace(gpu, pcie_width=width or 16, pcie_max_width=16)


CHIP_TO_CHIP = Absent("NVML nvmlDeviceGetMaxPcieLinkWidth: Not Supported", "Failed")
EQUAL, UNEQUAL = node(gpu_at(1), gpu_at(2), gpu_at(3)), node(gpu_at(1), gpu_at(2, 8), gpu_at(3))


@applies
def on_pcie(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs that have a PCIe link (on Grace NVML reports none)."""
    known = [] if isinstance(gpus, Absent) else [gpu for _, gpu in named(gpus)]
    return job.backend == "nccl" and not (known and all(unsupported(gpu.pcie_width) for gpu in known))


@check(
    group=LINK_GROUP,
    slows=True,
    bad=lambda: [(*UNEQUAL, METAL)],
    good=lambda: [(*EQUAL, METAL)],
    required=True,
    requires="gpu.smi-canary",
    applies=on_pcie,
)
def gpu_width(gpus: Gpus, pci: Pci | Absent, machine: Machine | Absent) -> Iterator[Finding]:
    """A GPU uses fewer PCIe lanes than it supports, or than its siblings use.

    Right: Every GPU uses all its PCIe lanes.
    Why: with half the lanes, the rate to the host, to the NIC and to GPUs without NVLink is halved. The speed falls
    when a GPU is idle, but the width never changes by itself.
    Fix: reseat the GPU or its riser, and check the slot's lanes in the firmware setup. If that does not help, have it
    repaired.
    """
    unknown, devices = {}, gpu_devices(pci, gpus)
    widths = {name: gpu.pcie_width for name, gpu in named(gpus) if isinstance(gpu.pcie_width, int)}
    for name, gpu in named(gpus):
        like = [i.pcie_max_width for i in _same_model(gpu, gpus) if isinstance(i.pcie_max_width, int)]
        now, best = gpu.pcie_width, gpu.pcie_max_width
        if isinstance(now, Absent) or isinstance(best, Absent):
            unknown[name] = now if isinstance(now, Absent) else best if isinstance(best, Absent) else CHIP_TO_CHIP
        elif now < best:
            siblings = max((width for other, width in widths.items() if other != name), default=0)
            message = f"runs at PCIe x{now}, but GPU and slot support x{best}"
            evidence = f"NVML of {gpu.pci}: current and maximum link width"
            if siblings <= now and (is_virtual(machine) or _drives_screens(devices.get(name))):
                yield note(name, f"{message}; its siblings run at the same width", evidence=evidence)
            else:
                yield fail(name, message, **NODE, evidence=evidence)
        elif best < (usual := most_frequent(like)):
            message = f"supports at most PCIe x{best}; {like.count(usual)} of {len(like)} support x{usual}"
            by_design = is_virtual(machine) or _drives_screens(devices.get(name)) or 2 * like.count(usual) <= len(like)
            tell = note if by_design else warn
            yield tell(name, message, **NODE, evidence="nvmlDeviceGetMaxPcieLinkWidth")
    yield from _switches(devices, pci, is_virtual(machine))
    yield from blanks(unknown, sum(1 for _ in named(gpus)), "nvmlDeviceGetCurrPcieLinkWidth")


def _switches(gpus: Mapping[str, Device], pci: Pci | Absent, virtual: bool) -> Iterator[Finding]:
    """Yield the switches above GPUs that have fewer lanes to the processor than they could.

    If as many of their kind have no more, or a hypervisor shows them, the board is assumed to be built so.
    """
    below = grouped(
        (address, name)
        for name, device in gpus.items()
        if isinstance(device.place, PciPosition)
        for address in device.place.switches
    )
    bridges = {} if isinstance(pci, Absent) else {each: pci.bridges[each] for each in below if each in pci.bridges}
    for address, bridge in bridges.items():
        link = bridge.link
        if not isinstance(link, PcieLink) or (link.width or 0) >= (link.max_width or 0) or not link.width:
            continue
        alike = [other.link for other in bridges.values() if other.identity == bridge.identity]
        widths = [other.width or 0 for other in alike if isinstance(other, PcieLink)]
        wider = sum(width > link.width for width in widths)
        message = f"the switch above {', '.join(below[address])} runs at x{link.width} but supports x{link.max_width}"
        message += f"; {wider} of {len(widths)} of its kind use more lanes"
        evidence = f"/sys/bus/pci/devices/{address}/current_link_width"
        if virtual or 2 * wider <= len(widths):
            yield note(address, message, evidence=evidence)
        else:
            remedy = "reseat the board or riser with the switch, or have it repaired. Then compare LnkSta in lspci"
            yield fail(address, message, **NODE, evidence=evidence, remedy=remedy)


def _drives_screens(device: Device | None) -> bool:
    """Return a card for workstations, whose boards often share 16 lanes between two slots."""
    return device is not None and device.identity.class_code >> 8 == 0x0300


AT_WORK = box(*(replace(gpu, throttle=(), pcie_generation=1 if gpu.index else 5) for gpu in EQUAL[0].all))


@check(
    group=LINK_GROUP,
    slows=True,
    bad=lambda: [(AT_WORK,)],
    good=lambda: [(EQUAL[0],)],
    requires="gpu.smi-canary",
    applies=on_pcie,
)
def gpu_gen(gpus: Gpus) -> Iterator[Finding]:
    """A GPU's PCIe link is slow under load, or supports less than its siblings' links.

    Right: Every GPU's PCIe link reaches its siblings' speed.
    Why: each generation doubles the rate to the host, to the NIC and to GPUs without NVLink. An idle GPU lowers its
    link to generation 1 and raises it at the first copy, so an idle link is judged by its maximum.
    Fix: check the slot's speed in the firmware setup, and reseat the GPU or its riser.
    """
    unknown = {}
    for name, gpu in named(gpus):
        now, best = gpu.pcie_generation, gpu.pcie_max_generation
        if isinstance(now, Absent) or isinstance(best, Absent):
            unknown[name] = now if isinstance(now, Absent) else CHIP_TO_CHIP
            continue
        usual = most_frequent(
            [i.pcie_max_generation for i in _same_model(gpu, gpus) if isinstance(i.pcie_max_generation, int)]
        )
        working = isinstance(gpu.throttle, tuple) and "gpu-idle" not in gpu.throttle
        if best < usual:
            message = f"supports at most PCIe generation {best}; its siblings support {usual}"
            yield warn(name, message, **NODE, evidence="nvmlDeviceGetMaxPcieLinkGeneration")
        elif working and now < best:
            message = f"runs at PCIe generation {now} of {best}, although it is not idle"
            evidence = "nvmlDeviceGetCurrPcieLinkGeneration"
            yield warn(name, message, blame="node", action="retest", confidence=ONCE, evidence=evidence)
    yield from blanks(unknown, sum(1 for _ in named(gpus)), "nvmlDeviceGetCurrPcieLinkGeneration")


def _same_model(gpu: Gpu, gpus: Gpus) -> list[Gpu]:
    return [other for _, other in named(gpus) if other.name == gpu.name]


def nic(number: int, link: PcieLink, gbps: float = 400.0, function: int = 0) -> tuple[RdmaDevice, Device]:
    """Return an RDMA device with one port, and its function, for examples."""
    address = f"0000:{0xA0 + number:02x}:00.{function}"
    port = Port(f"mlx5_{number + function}", 1, "ACTIVE", "LinkUp", Rate(gbps, 4, "NDR"))
    return (
        RdmaDevice(port.device, (port,), address),
        Device(address, _NIC, PciPosition(f"pci0000:{0xA0 + number:02x}"), link),
    )


def cards(*pairs: tuple[RdmaDevice, Device]) -> tuple[Fabric, Pci]:
    """Return a node with these NICs, for examples."""
    return Fabric(tuple(rdma for rdma, _ in pairs)), Pci({device.address: device for _, device in pairs})


FULL, HALF = PcieLink(32.0, 16, 32.0, 16), PcieLink(32.0, 8, 32.0, 16)
OLD_SLOT = PcieLink(16.0, 16, 32.0, 16)


@applies
def nics_with_links(job: Job, fabric: Fabric | Absent, pci: Pci | Absent, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, if the kernel knows the PCIe links of RDMA devices (not on virtual functions, or DGX Spark).

    Each port of a Spark is on two links on purpose, and each shows as a device with the whole port's rate.
    """
    split = isinstance(gpus, Gpus) and any(gpu.name == "NVIDIA GB10" for gpu in gpus.all)
    if job.backend != "nccl" or split or isinstance(fabric, Absent) or isinstance(pci, Absent):
        return job.backend == "nccl" and not split
    links = [device.link for device, _ in rdma_cards(fabric, pci).values()]
    return any(isinstance(link, Absent) or link.width is not None for link in links)


@check(
    group=LINK_GROUP,
    slows=True,
    bad=lambda: [cards(nic(0, FULL), nic(1, HALF))],
    good=lambda: [cards(nic(0, FULL), nic(1, FULL))],
    applies=nics_with_links,
)
def nic_link(fabric: Fabric, pci: Pci) -> Iterator[Finding]:
    """A NIC's PCIe link is narrower or slower than it could be.

    Right: Every NIC's PCIe link has its full width and speed.
    Why: the slot limits the rate of the NIC and of every NCCL ring through it.
    Fix: reseat the NIC or its riser, and check the slot's lanes and speed in the firmware setup. If that does not help,
    have it repaired.
    """
    found = rdma_cards(fabric, pci)
    unknown = {}
    for name, (device, ports) in found.items():
        link = device.link
        if isinstance(link, Absent) or None in (link.gbps, link.max_gbps):
            unknown[name] = link if isinstance(link, Absent) else Absent("the kernel does not report its PCIe link")
            continue
        if (link.gbps or 0) >= 0.999 * (link.max_gbps or 0):
            continue
        siblings = [other.link for other, _ in found.values() if other.identity == device.identity]
        wider = any(isinstance(i, PcieLink) and (i.gbps or 0) > (link.gbps or 0) for i in siblings)
        best = replace(link, speed_gtps=link.max_speed_gtps, width=link.max_width)
        message = f"runs at {_written(link)}, but supports {_written(best)}"
        evidence = f"/sys/bus/pci/devices/{device.address}/current_link_{{speed,width}}"
        short = (link.gbps or 0) < sum(_rate(port) for port in ports)
        if wider or (short and (link.width or 0) < (link.max_width or 0)):
            yield fail(name, message, **NODE, evidence=evidence)
        else:
            yield note(
                name,
                f"{message}; that is enough for its ports, or the slot supports no more" if not short else message,
                evidence=evidence,
            )
    yield from blanks(unknown, len(found), "/sys/bus/pci/devices/*/current_link_width")


@applies
def functions_alone(job: Job, fabric: Fabric | Absent, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, if neither NVML nor the RDMA stack names the functions of the bus."""
    return job.backend == "nccl" and isinstance(fabric, Absent) and isinstance(gpus, Absent)


@check(
    group=LINK_GROUP,
    slows=True,
    bad=lambda: [(node(gpu_at(1, 8))[1],)],
    good=lambda: [(node(gpu_at(1))[1],)],
    applies=functions_alone,
)
def function_link(pci: Pci) -> Iterator[Finding]:
    """A GPU's PCIe link has too few lanes, or a NIC's PCIe link is too narrow or too slow.

    Right: Every GPU and NIC has its full PCIe width, and every NIC its full PCIe speed.
    Why: the slot limits the rate of the device. An idle GPU lowers its link speed; a NIC does not.
    Fix: reseat the card or its riser, and check the slot's lanes and speed in the firmware setup.
    """
    every = (*pci.of("gpu"), *pci.of("nic"))
    for device in every:
        link = device.link
        if isinstance(link, Absent) or None in (link.gbps, link.max_gbps):
            continue
        best = replace(link, speed_gtps=link.max_speed_gtps, width=link.max_width)
        narrow = (link.width or 0) < (link.max_width or 0)
        if narrow or (device.identity.kind == "nic" and (link.gbps or 0) < 0.999 * (link.max_gbps or 0)):
            message = f"runs at {_written(link)}, but supports {_written(best)}"
            fast = [_gbps(each) for each in every if each.identity == device.identity]
            half = 2 * _gbps(device) <= max(fast)
            tell = fail if half and 2 * fast.count(max(fast)) > len(fast) else warn
            yield tell(device.address, message, **NODE, evidence=f"LnkSta and LnkCap of {device.address}")


def _gbps(device: Device) -> float:
    return 0.0 if isinstance(device.link, Absent) else device.link.gbps or 0.0


def _rate(port: Port) -> float:
    return 0.0 if isinstance(port.rate, Absent) else port.rate.gbps


def _written(link: PcieLink) -> str:
    return f"{link.speed_gtps:g} GT/s x{link.width}"


@check(
    group=LINK_GROUP,
    slows=True,
    bad=lambda: [cards(nic(0, OLD_SLOT))],
    good=lambda: [cards(nic(0, FULL))],
    requires="pci.link/nic-link",
    applies=nics_with_links,
)
def nic_fits(fabric: Fabric, pci: Pci) -> Iterator[Finding]:
    """A NIC's PCIe link carries less than its ports.

    Right: Every NIC's PCIe link carries as much as its ports.
    Why: 400 Gb/s require a generation 5 slot with 16 lanes. In a smaller slot the port never reaches its rate. Two
    ports on one card share its slot.
    Fix: move the NIC to a faster slot, or expect only the slot's rate.
    """
    found = rdma_cards(fabric, pci)
    unknown = {}
    for name, (device, _) in found.items():
        link, card = device.link, same_slot(found, name)
        if isinstance(link, Absent) or link.gbps is None:
            unknown[name] = link if isinstance(link, Absent) else Absent("the kernel does not report its PCIe link")
            continue
        ports = [port for other in card for port in found[other][1]]
        rate = sum(map(_rate, ports))
        if name == card[0] and link.gbps < rate:
            message = (
                f"its link of {_written(link)} carries {link.gbps:.0f} Gb/s, but its active ports carry {rate:g} Gb/s "
                "together"
            )
            evidence = (
                f"/sys/bus/pci/devices/{device.address}/current_link_{{speed,width}}",
                f"the rate of {', '.join(port.name for port in ports)}",
            )
            tell = note if link.gbps >= max(map(_rate, ports)) * 1.2 else warn
            yield tell(", ".join(card), message, blame="node", action="none", evidence=evidence)
    yield from blanks(unknown, len(found), "/sys/bus/pci/devices/*/current_link_speed")


LARGE = PcieSettings(4096, 256, True)


def linked(pci: Pci, *settings: PcieSettings | Absent | None) -> Pci:
    """Return these devices with these settings, in their order; the last one is for all others."""
    every = [*settings, *[settings[-1]] * len(pci.devices)]
    named = zip(pci.devices.items(), every, strict=False)
    return replace(pci, devices={address: replace(device, settings=each) for (address, device), each in named})


FABRIC, CARDS = cards(*(nic(number, FULL) for number in range(4)))


@check(
    slows=True,
    bad=lambda: [(linked(CARDS, replace(LARGE, relaxed_ordering=False), LARGE), Absent("no driver"), FABRIC)],
    good=lambda: [(linked(CARDS, LARGE), Absent("no driver"), FABRIC)],
    privilege="root",
    applies=bare_metal,
)
def settings(pci: Pci, gpus: Gpus | Absent, fabric: Fabric | Absent) -> Iterator[Finding]:
    """A GPU's or NIC's PCIe settings differ from those of its siblings.

    Right: All GPUs, and all NICs of the same model, have the same PCIe settings.
    Why: a NIC without relaxed ordering, or with MaxReadReq 512 instead of 4096, reads memory more slowly than the
    others and sets the pace of every ring. This happens after a card was replaced or reset, or if a script missed a
    card. If only one GPU translates addresses itself (ATS), its DMA takes another path.
    Fix: run `setpci -s ADDRESS CAP_EXP+8.w` to see the register. Set it to the value of the other cards at each boot,
    or in the firmware.
    """
    devices = gpu_devices(pci, gpus)
    if isinstance(fabric, Fabric):
        devices |= {name: device for name, (device, _) in rdma_cards(fabric, pci).items()}
    unknown = {name: device.settings for name, device in devices.items() if isinstance(device.settings, Absent)}
    if devices and len(unknown) == len(devices):
        raise Unlearned(next(iter(unknown.values())).why)
    models: dict[tuple[int, int], dict[str, PcieSettings]] = {}
    for name, device in devices.items():
        if isinstance(device.settings, PcieSettings):
            models.setdefault((device.identity.vendor, device.identity.device), {})[name] = device.settings
    for found in models.values():
        yield from _odd(found, devices)
    if unknown:
        yield from blanks(unknown, len(devices), "/sys/bus/pci/devices/*/config")


def _odd(found: Mapping[str, PcieSettings], devices: Mapping[str, Device]) -> Iterator[Finding]:
    """Yield those few of one model that differ from most."""
    usual, times = Counter(found.values()).most_common(1)[0]
    if 2 * times <= len(found):
        return
    for name, own in found.items():
        if own != usual:
            message = f"has {own}, but {times} of {len(found)} have {usual}"
            evidence = f"/sys/bus/pci/devices/{devices[name].address}/config (lspci -vvv: DevCtl)"
            yield warn(name, message, blame="node", action="fix-image", evidence=evidence)
