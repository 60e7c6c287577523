"""Network interfaces: flags and addresses from psutil (getifaddrs), the rest from sysfs.

Every user may read them, but only those of this network namespace. A container without the host's network sees its own
veth, but not the NICs or the bond below it.
"""

import contextlib
import json
import re
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from ncclprobe.facts.field import learn
from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

ROOT = "/sys/class/net"
_OF_MEMBERS = ("bond", "team")  # virtual interfaces with a speed: the sum of their members'
_FAMILIES = {2: "inet", 10: "inet6"}  # AF_INET and AF_INET6 on Linux
_ENDS_HERE = (
    r"(virbr|vmnet|lxcbr|lxdbr|podman|nerdctl|cbr|tmfifo_net|kube-ipvs|nodelocaldns)\d*"
    r"|docker.*|cni[\d-].*|br-[0-9a-f]{12}|(veth|cali|lxc).+|lo"
)
_OVER_USB = ("cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host")  # a management board's, or an adapter's
_HPES_BOARD = ip_network("16.1.15.0/30")  # of iLO's virtual NIC, on every machine (iLO, The Redfish Host Interface)


class Address(Struct, frozen=True):
    """One address of one interface, in the terms of :mod:`ncclprobe.nccl.interfaces`.

    `name` is the interface's, or the label of an IPv4 address (``eth0:1``): getifaddrs(3) reports only the label, and
    NCCL treats it as an interface. `family` is ``inet`` or ``inet6``; `address` keeps its scope (``fe80::1%eth0``);
    `netmask` is written as an address.
    """

    name: str
    family: str
    address: str
    netmask: str
    running: bool


class Interface(Struct, frozen=True):
    """One interface. `speed_mbps` is None if the driver does not report it; `driver` is empty for a virtual one.

    `virtual`: the kernel created it (lo, veth, bridge, bond, vlan, tunnel …); None: unknown. `kind` is the type that a
    virtual interface reports (``bond``, ``bridge``, ``vlan``; empty: none, as for lo and veth). `pci` is the address of
    the function behind it; empty if there is none (a VM's network may be on another bus). `master` is the bond or
    bridge that it belongs to. `carrier_changes` counts both directions since the driver was loaded: a bring-up is 1 or
    2.
    """

    name: str
    index: int
    flags: frozenset[str]
    mtu: int
    speed_mbps: int | None = None
    driver: str = ""
    addresses: tuple[Address, ...] = ()
    virtual: bool | None = None
    kind: str = ""
    pci: str = ""
    master: str = ""
    carrier_changes: int | None = None

    @property
    def subnets(self) -> set[str]:
        """Return the subnets of its IPv4 addresses: ``192.0.2.0/24``."""
        own = [a for a in self.addresses if a.family == "inet" and a.netmask]
        return {str(ip_interface(f"{a.address}/{a.netmask}").network) for a in own}

    @property
    def running(self) -> bool:
        """Return IFF_RUNNING, which NCCL requires of an interface since 2.28.3."""
        return "running" in self.flags

    @property
    def loopback(self) -> bool:
        """Return IFF_LOOPBACK."""
        return "loopback" in self.flags

    @property
    def ends_here(self) -> bool:
        """Return whether its name is a container engine's, a hypervisor's or a DPU's, or it leads to a management
        board.

        A container's own end of a veth pair is called eth0; one called veth or cali is the machine's end. A management
        board is attached over USB and has link-local addresses or HPE's. A USB adapter with other addresses is a
        network.
        """
        if re.fullmatch(_ENDS_HERE, self.name):
            return True
        own = (ip_address(each.address) for each in self.addresses)
        return self.driver in _OVER_USB and all(each.is_link_local or each in _HPES_BOARD for each in own)

    @property
    def leads_out(self) -> bool:
        """Return whether other nodes may be reachable through it."""
        return not (self.loopback or self.kind == "dummy" or self.ends_here)


class Interfaces(Struct, frozen=True):
    """All interfaces by index, which is the kernel's order."""

    all: tuple[Interface, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        """Return every address in the order of getifaddrs(3): all IPv4 by interface, then all IPv6."""
        listed = [address for interface in self.all for address in interface.addresses]
        return sorted(listed, key=lambda address: address.family)  # stable; "inet" < "inet6"

    @property
    def by_name(self) -> dict[str, Interface]:
        """Map every interface by its name and by the labels of its addresses, as NCCL would name it."""
        labelled = {address.name: interface for interface in self.all for address in interface.addresses}
        return labelled | {interface.name: interface for interface in self.all}


@collector
def interfaces(host: Host) -> Interfaces:
    """Read every interface of this network namespace. Needs no privileges."""
    addresses = json.loads(host.ask("psutil", "net_if_addrs"))
    stats = json.loads(host.ask("psutil", "net_if_stats"))
    found = []
    for name in stats:
        with contextlib.suppress(Missing):  # containers come and go, and their interfaces with them
            found.append(_interface(host, name, _addresses_of(name, addresses, stats), stats[name]))
    return Interfaces(tuple(sorted(found, key=lambda i: i.index)))


def _addresses_of(name: str, addresses: dict[str, Any], stats: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return one interface's addresses with their labels, in order; psutil keeps no statistics for labels."""
    labels = [label for label in addresses if label == name or (label not in stats and label.split(":")[0] == name)]
    return [(label, row) for label in labels for row in addresses[label]]


def _interface(host: Host, name: str, rows: list[tuple[str, dict[str, Any]]], stats: dict[str, Any]) -> Interface:
    folder = f"{ROOT}/{name}"
    flags = frozenset(filter(None, stats["flags"].split(",")))
    virtual, pci = _place(learn(host, place, "link", folder))
    kind = device_type(_optional(host, "read", f"{folder}/uevent")) if virtual else ""
    has_speed = not virtual or kind in _OF_MEMBERS
    return Interface(
        name=name,
        index=int(host.ask("read", f"{folder}/ifindex")),
        flags=flags,
        mtu=stats["mtu"],
        addresses=tuple(
            parse_address(label, row, "running" in flags) for label, row in rows if row["family"] in _FAMILIES
        ),
        virtual=virtual,
        kind=kind,
        pci=pci,
        master="" if "loopback" in flags else _optional(host, "link", f"{folder}/master").rpartition("/")[2],
        speed_mbps=_positive(_optional(host, "read", f"{folder}/speed")) if has_speed else None,  # EINVAL while down
        driver="" if virtual else _optional(host, "link", f"{folder}/device/driver").rpartition("/")[2],
        carrier_changes=None if virtual else _positive(_optional(host, "read", f"{folder}/carrier_changes"), least=0),
    )


def _place(found: tuple[bool, str] | Absent) -> tuple[bool | None, str]:
    return (None, "") if isinstance(found, Absent) else found


def place(target: str) -> tuple[bool, str]:
    """Parse a link of /sys/class/net: whether the interface is virtual, and the PCI function behind it.

    ``../../devices/virtual/net/lo``, ``../../devices/pci0000:00/0000:00:1c.0/0000:02:00.0/net/eth0``.
    """
    functions = re.findall(r"(?<=/)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/)", target)
    return "/devices/virtual/" in target, functions[-1] if functions else ""


def device_type(uevent: str) -> str:
    """Return the interface's type from its uevent (DEVTYPE); empty if the driver sets none."""
    match = re.search(r"^DEVTYPE=(.+)$", uevent, re.MULTILINE)
    return match[1].strip() if match else ""


def _positive(text: str, least: int = 1) -> int | None:
    number = int(text) if re.fullmatch(r"-?\d{1,18}\s*", text, re.ASCII) else -1
    return number if number >= least else None


def _optional(host: Host, *question: str) -> str:
    with contextlib.suppress(HostError):
        return host.ask(*question)
    return ""


def parse_address(name: str, row: dict[str, Any], running: bool) -> Address:
    """Parse one IPv4 or IPv6 row of psutil's net_if_addrs. A missing netmask is empty. Raises ParseError."""
    address, netmask = row["address"], row["netmask"] or ""
    try:
        ip_address(address)
        ip_address(netmask or address)
    except ValueError:
        raise ParseError(f"address of {name}: {row!r}") from None
    return Address(name, _FAMILIES[row["family"]], address, netmask, running)
