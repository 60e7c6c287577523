"""Network interfaces: flags and addresses from psutil (getifaddrs), the rest from sysfs."""

import contextlib
import json
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ncclprobe.errors import HostError, ParseError
from ncclprobe.host import Host
from ncclprobe.registry import collector

ROOT = "/sys/class/net"
_FAMILIES = {2: "inet", 10: "inet6"}  # AF_INET and AF_INET6 on Linux


@dataclass(frozen=True, slots=True)
class Address:
    """One address of one interface, in the words in which :mod:`ncclprobe.nccl.interfaces` wants it.

    `family` is ``inet`` or ``inet6``; `address` keeps its scope (``fe80::1%eth0``); `netmask` is written as an address.
    """

    name: str
    family: str
    address: str
    netmask: str
    running: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `speed_mbps` is None where the driver does not say, `driver` empty for a virtual one."""

    name: str
    index: int
    flags: frozenset[str]
    mtu: int
    speed_mbps: int | None = None
    driver: str = ""
    addresses: tuple[Address, ...] = ()

    @property
    def running(self) -> bool:
        """IFF_RUNNING: what NCCL demands of an interface since 2.28.3."""
        return "running" in self.flags

    @property
    def loopback(self) -> bool:
        """IFF_LOOPBACK."""
        return "loopback" in self.flags


@dataclass(frozen=True, slots=True)
class Interfaces:
    """All interfaces by index, the kernel's own order."""

    all: tuple[Interface, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        """Every address as getifaddrs(3) lists them: all IPv4 ones by interface, then all IPv6 ones."""
        listed = [address for interface in self.all for address in interface.addresses]
        return sorted(listed, key=lambda address: address.family)  # stable; "inet" < "inet6"


@collector
def interfaces(host: Host) -> Interfaces:
    """Every interface of this network namespace."""
    addresses = json.loads(host.ask("psutil", "net_if_addrs"))
    stats = json.loads(host.ask("psutil", "net_if_stats"))
    found = [_interface(host, name, addresses.get(name, []), stats[name]) for name in stats]
    return Interfaces(tuple(sorted(found, key=lambda i: i.index)))


def _interface(host: Host, name: str, rows: list[dict[str, Any]], stats: dict[str, Any]) -> Interface:
    speed = _optional(host, "read", f"{ROOT}/{name}/speed")  # EINVAL while the link is down
    driver = _optional(host, "link", f"{ROOT}/{name}/device/driver")  # a virtual interface has no device
    flags = frozenset(filter(None, stats["flags"].split(",")))
    return Interface(
        name=name,
        index=int(host.ask("read", f"{ROOT}/{name}/ifindex")),
        flags=flags,
        mtu=stats["mtu"],
        speed_mbps=int(speed) if speed and int(speed) > 0 else None,
        driver=driver.rpartition("/")[2],
        addresses=tuple(parse_address(name, row, "running" in flags) for row in rows if row["family"] in _FAMILIES),
    )


def _optional(host: Host, *question: str) -> str:
    with contextlib.suppress(HostError):
        return host.ask(*question)
    return ""


def parse_address(name: str, row: dict[str, Any], running: bool) -> Address:
    """One IPv4 or IPv6 row of psutil's net_if_addrs. A missing netmask is empty. Raises ParseError."""
    address, netmask = row["address"], row["netmask"] or ""
    try:
        ip_address(address)
        ip_address(netmask or address)
    except ValueError:
        raise ParseError(f"address of {name}: {row!r}") from None
    return Address(name, _FAMILIES[row["family"]], address, netmask, running)
