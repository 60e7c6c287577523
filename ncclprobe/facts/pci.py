"""GPUs, NVSwitches and NICs on the PCI bus, and the bridges between them and the processors, from sysfs.

Every user may read every file except the config space. The kernel shows users without CAP_SYS_ADMIN only its first 64
bytes (pci_read_config in drivers/pci/pci-sysfs.c), so only root can see whether ACS is on. In a virtual machine the
hypervisor decides what the tree looks like.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from ncclprobe.facts.cpu import cpu_list
from ncclprobe.facts.field import attempt, learn, missing
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Failed, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

ROOT = "/sys/bus/pci/devices"
NVIDIA = 0x10DE
DeviceKind = Literal["gpu", "nic", "nvswitch", "npu"]

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_UNSET = 0x20000000  # IORESOURCE_UNSET, linux/ioport.h: the kernel found no room for this BAR
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_ENCODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130}  # from 64 GT/s on: FLITs
_ACS_ID = 0x0D  # PCI_EXT_CAP_ID_ACS, linux/pci_regs.h, as is the layout of its registers
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_ATS_ID = 0x0F  # PCI_EXT_CAP_ID_ATS
_EXPRESS_ID, _FIRST_CAPABILITY, _DEVICE_CONTROL = 0x10, 0x34, 8  # PCI_CAP_ID_EXP, PCI_CAPABILITY_LIST, PCI_EXP_DEVCTL
_MOST_CAPABILITIES = 48
_SHOWN_TO_ALL, _FIRST_EXTENDED, _CONFIG_BYTES = 64, 0x100, 0x1000


class Identity(Struct, frozen=True, tag=True):
    """A function's 24-bit class, the ids of its chip and board, and its driver, if one is bound."""

    class_code: int
    vendor: int
    device: int
    subsystem: tuple[int, int] = (0, 0)
    driver: str = ""

    @property
    def kind(self) -> DeviceKind | None:
        """Return NCCL's type of device (kvDictPciClass in graph/topo.cc), or None if it does not matter.

        0x068001 is IBM's NVLink bridge to a POWER9, 0x0c06 an old class of InfiniBand adapters.
        """
        base, subclass = self.class_code >> 16, self.class_code >> 8
        if base == 0x02 or subclass == 0x0C06:
            return "nic"
        if self.class_code == 0x068001:
            return "npu"
        if self.vendor != NVIDIA:
            return None
        return "gpu" if base == 0x03 else "nvswitch" if subclass == 0x0680 else None


class PciPosition(NamedTuple):
    """A function's root bus (``pci0000:40``) and its bridges, the nearest to the root first."""

    root: str
    bridges: tuple[str, ...] = ()

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the upstream ports of the switches above it, the nearest first.

        A switch is two bridges, an upstream and a downstream port. NCCL also climbs two at a time and ignores the one
        at the root (ncclTopoGetXmlFromSys in graph/xml.cc).
        """
        return self.bridges[-2::-2]


class PcieLink(Struct, frozen=True, tag=True):
    """A PCIe link: GT/s per lane and lanes, current and maximum. None: unknown to the kernel (a virtual function, a
    VM).

    An idle GPU lowers its speed, never its width: judge the current speed under load only.
    """

    speed_gtps: float | None
    width: int | None
    max_speed_gtps: float | None
    max_width: int | None

    @property
    def gbps(self) -> float | None:
        """Return the current Gb/s per direction after line coding, packet headers included."""
        return _gbps(self.speed_gtps, self.width)

    @property
    def max_gbps(self) -> float | None:
        """Return Gb/s per direction at this end's maximum speed and width."""
        return _gbps(self.max_speed_gtps, self.max_width)


class Errors(Struct, frozen=True, tag=True):
    """Advanced Error Reporting since boot: non-zero counts by the kernel's names (``BadTLP``)."""

    correctable: Mapping[str, int] = field(default_factory=dict)
    nonfatal: Mapping[str, int] = field(default_factory=dict)
    fatal: Mapping[str, int] = field(default_factory=dict)


class PcieSettings(Struct, frozen=True, tag=True):
    """A function's PCIe request settings, as firmware and kernel configured them.

    `max_read_bytes` (MaxReadReq) and `max_payload_bytes` bound one request. `relaxed_ordering` lets it pass others.
    `ats`: it requests address translations from the IOMMU itself; None if it cannot.
    """

    max_read_bytes: int
    max_payload_bytes: int
    relaxed_ordering: bool
    ats: bool | None = None

    def __str__(self) -> str:
        """Return the settings in lspci's words."""
        words = [f"MaxReadReq {self.max_read_bytes}", f"MaxPayload {self.max_payload_bytes}"]
        words.append(f"RlxdOrd{'+' if self.relaxed_ordering else '-'}")
        return " ".join((*words, *([f"ATS{'+' if self.ats else '-'}"] if self.ats is not None else [])))


class Device(Struct, frozen=True):
    """A GPU, NIC, NVSwitch or NPU. Absent in a field: could not be read.

    `numa_node` -1: the firmware does not set it. `iommu`: the type of its IOMMU group; None if there is none. `bars`:
    for a GPU, bytes of BAR 0 to 5, 0 for one that is unused or has no address; BAR 1 maps its memory. `settings`: None
    if it is not on PCI Express.
    """

    address: str
    identity: Identity
    place: PciPosition | Absent
    link: PcieLink | Absent
    numa_node: int | Absent = -1
    local_cpus: tuple[int, ...] | Absent = ()
    iommu: str | Absent | None = None
    errors: Errors | Absent = Errors()
    bars: tuple[int, ...] | Absent = ()
    settings: PcieSettings | Absent | None = None


class Bridge(Struct, frozen=True):
    """A root port or a switch port above a device.

    `link`: read for a switch's upstream port only; another port's link is that of the device below it. `acs`: the
    Access Control Services that are switched on, in lspci's words; None: it has no such capability.
    """

    address: str
    identity: Identity | Absent
    link: PcieLink | Absent | None = None
    acs: frozenset[str] | Absent | None = None


class Pci(Struct, frozen=True):
    """NCCL's devices by address, the bridges above them, and functions whose kind was unreadable."""

    devices: Mapping[str, Device] = field(default_factory=dict)
    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    unread: Mapping[str, Absent] = field(default_factory=dict)

    def of(self, kind: DeviceKind) -> tuple[Device, ...]:
        """Return the devices of one kind, by address."""
        return tuple(device for device in self.devices.values() if device.identity.kind == kind)


@collector
def pci(host: Host) -> Pci:
    """Read every GPU, NIC and NVSwitch, and the bridges above them. One small file per function identifies it."""
    names = sorted(json.loads(host.ask("list", ROOT)))
    seen = {name: learn(host, identity, "read", f"{ROOT}/{name}/uevent") for name in names}
    known = {name: who for name, who in seen.items() if not isinstance(who, Absent)}
    devices = {name: _device(host, name, who) for name, who in known.items() if who.kind}
    places = [device.place for device in devices.values() if not isinstance(device.place, Absent)]
    switches = {address for place in places for address in place.switches}
    return Pci(
        devices=devices,
        bridges={
            address: _bridge(host, address, seen.get(address, Absent("not on the bus")), address in switches)
            for address in sorted({address for place in places for address in place.bridges})
        },
        unread={name: who for name, who in seen.items() if isinstance(who, Absent) and not missing(who)},
    )


def _device(host: Host, address: str, who: Identity) -> Device:
    folder = f"{ROOT}/{address}"
    iommu = learn(host, str.strip, "read", f"{folder}/iommu_group/type")
    return Device(
        address=address,
        identity=who,
        place=learn(host, place, "link", folder),
        link=attempt(lambda: _link(host, folder)),
        numa_node=learn(host, integer, "read", f"{folder}/numa_node"),
        local_cpus=learn(host, cpu_list, "read", f"{folder}/local_cpulist"),
        iommu=None if missing(iommu) else iommu,
        errors=attempt(lambda: _errors(host, folder)),
        bars=learn(host, bars, "read", f"{folder}/resource") if who.kind == "gpu" else (),
        settings=learn(host, settings, "bytes", f"{folder}/config") if who.kind in ("gpu", "nic") else None,
    )


def _link(host: Host, folder: str) -> PcieLink:
    """Read the link. Raises HostError if one of its four files is missing: the function is not on PCI Express."""
    return PcieLink(
        speed_gtps=speed(host.ask("read", f"{folder}/current_link_speed")),
        width=width(host.ask("read", f"{folder}/current_link_width")),
        max_speed_gtps=speed(host.ask("read", f"{folder}/max_link_speed")),
        max_width=width(host.ask("read", f"{folder}/max_link_width")),
    )


def _errors(host: Host, folder: str) -> Errors:
    """Read the AER counters. Raises HostError if the firmware handles errors itself, or the function has no AER."""
    correctable, nonfatal, fatal = (
        aer(host.ask("read", f"{folder}/aer_dev_{severity}")) for severity in ("correctable", "nonfatal", "fatal")
    )
    return Errors(correctable, nonfatal, fatal)


def _bridge(host: Host, address: str, who: Identity | Absent, switch: bool) -> Bridge:
    folder = f"{ROOT}/{address}"
    link = attempt(lambda: _link(host, folder)) if switch else None
    return Bridge(address, who, link, learn(host, acs, "bytes", f"{folder}/config"))


@lru_cache(4096)
def normal(address: str) -> str:
    """Spell an address as sysfs does: ``00000000:C4:00.0`` (NVML) and ``c4:00.0`` are ``0000:c4:00.0``. Raises
    ParseError.
    """
    match = _ADDRESS.fullmatch(address if address.count(":") > 1 else f"0000:{address}")
    if not match:
        raise ParseError(f"PCI address: {address[:40]!r}")
    domain, bus, slot, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def place(text: str) -> PciPosition:
    """Parse a function's link: ``../../../devices/pci0000:40/0000:40:01.0/0000:41:00.0``.

    A part above the last address that is not an address is not a bridge: ACPI nodes of a Hyper-V guest, or an NVMe
    controller with its own bus. Raises ParseError.
    """
    parts = text.strip().split("/")
    start = len(parts)
    while start and _ADDRESS.fullmatch(parts[start - 1]):
        start -= 1
    if start in (0, len(parts)):
        raise ParseError(f"PCI path: {text[:120]!r}")
    return PciPosition(parts[start - 1], tuple(parts[start:-1]))


def identity(text: str) -> Identity:
    """Parse a function's ``uevent``: PCI_CLASS, PCI_ID, PCI_SUBSYS_ID in hex, and DRIVER if one is bound."""
    reported = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    try:
        vendor, device = _ids(reported["PCI_ID"])
        return Identity(
            int(reported["PCI_CLASS"], 16),
            vendor,
            device,
            _ids(reported.get("PCI_SUBSYS_ID", "0:0")),
            reported.get("DRIVER", ""),
        )
    except (KeyError, ValueError):
        raise ParseError(f"PCI uevent: {text[:120]!r}") from None


def _ids(text: str) -> tuple[int, int]:
    vendor, device = text.split(":")
    return int(vendor, 16), int(device, 16)


def integer(text: str) -> int:
    """Parse a decimal number, such as a NUMA node or -1. Raises ParseError."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise ParseError(f"number: {text[:40]!r}")
    return int(text)


def speed(text: str) -> float | None:
    """Parse GT/s per lane: ``16.0 GT/s PCIe``, before Linux 5.7 ``16 GT/s``; None: "Unknown", "Unknown speed"."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?) GT/s(?: PCIe)?", text.strip())
    if not match and not text.startswith("Unknown"):
        raise ParseError(f"PCIe speed: {text[:40]!r}")
    return float(match[1]) if match else None


def width(text: str) -> int | None:
    """Parse lanes. None for an invalid width: 0 without a link, 63 or 255 read from a device that is gone."""
    lanes = integer(text)
    return lanes if lanes in _WIDTHS else None


def _gbps(speed_gtps: float | None, lanes: int | None) -> float | None:
    if speed_gtps is None or lanes is None:
        return None
    return speed_gtps * _ENCODING.get(speed_gtps, 1.0) * lanes


def bars(text: str) -> tuple[int, ...]:
    """Parse the sizes of BAR 0 to 5, in bytes, from ``resource``: start, end and flags of each."""
    rows = re.findall(r"^0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})$", text, re.MULTILINE)[:6]
    if len(rows) < 6:
        raise ParseError(f"PCI resource: {text[:120]!r}")
    numbers = [[int(part, 16) for part in row] for row in rows]
    return tuple(end - start + 1 if end > start and not flags & _UNSET else 0 for start, end, flags in numbers)


def aer(text: str) -> dict[str, int]:
    """Parse the non-zero counts of an ``aer_dev_*`` file, without its total."""
    rows = re.findall(r"^(\S+) ([0-9]{1,20})$", text, re.MULTILINE)
    if not rows:
        raise ParseError(f"AER counters: {text[:80]!r}")
    return {name: int(count) for name, count in rows if int(count) and not name.startswith("TOTAL_ERR")}


def acs(text: str) -> frozenset[str] | None:
    """Return the Access Control Services that a port's config space enables; None: the port has no ACS.

    Raises Denied if only 64 bytes of the space are visible, as for users without CAP_SYS_ADMIN.
    """
    config = _whole_space(text, "ACS lies")
    for capability, offset in extended_capabilities(config):
        if capability == _ACS_ID and offset + 8 <= len(config):
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return frozenset(name for bit, name in enumerate(_ACS_BITS) if control >> bit & 1)
    return None


def _whole_space(text: str, what: str) -> bytes:
    """Return a config space that includes `what`. Raises Denied if only its first 64 bytes are visible."""
    config = config_space(text)
    if config[:4] == b"\xff" * 4:
        raise Failed("config space: the device does not answer (all bits are one)")
    if len(config) <= _SHOWN_TO_ALL:
        raise Denied(f"config space: only {len(config)} bytes are shown, and {what} beyond (root sees it)")
    return config


def settings(text: str) -> PcieSettings | None:
    """Return a function's PCIe request settings from its config space; None: it is not on PCI Express.

    Raises Denied as `acs` does.
    """
    config = _whole_space(text, "its PCIe settings lie")
    at = config[_FIRST_CAPABILITY] & 0xFC
    for _ in range(_MOST_CAPABILITIES):
        if not _SHOWN_TO_ALL <= at <= len(config) - 12:
            return None
        if config[at] == _EXPRESS_ID:
            control = int.from_bytes(config[at + _DEVICE_CONTROL : at + _DEVICE_CONTROL + 2], "little")
            read, payload = 128 << (control >> 12 & 7), 128 << (control >> 5 & 7)
            return PcieSettings(read, payload, bool(control & 0x10), _ats(config))
        at = config[at + 1] & 0xFC
    return None


def _ats(config: bytes) -> bool | None:
    for capability, offset in extended_capabilities(config):
        if capability == _ATS_ID and offset + 8 <= len(config):
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & 0x8000)
    return None


def config_space(text: str) -> bytes:
    """Decode a host's answer to ``bytes``: a length, and the non-zero rows in hex."""
    try:
        reported = json.loads(text)
        data = bytearray(min(int(reported["length"]), _CONFIG_BYTES))
        for offset, row in reported["rows"].items():
            at, raw = int(offset, 16), bytes.fromhex(row)
            data[at : at + len(raw)] = raw
        return bytes(data[:_CONFIG_BYTES])
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ParseError(f"config space: {text[:80]!r}") from None


def extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield id and offset of each PCI Express extended capability; stops if the list loops or leaves the space."""
    offset, seen = _FIRST_EXTENDED, set[int]()
    while _FIRST_EXTENDED <= offset <= len(config) - 4 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, offset
        offset = header >> 20
