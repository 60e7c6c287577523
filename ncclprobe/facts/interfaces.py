"""Network interfaces: flags and addresses from psutil (getifaddrs), the rest from sysfs."""

import contextlib
import json
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from ncclprobe.errors import HostError, ParseError
from ncclprobe.host import Host
from ncclprobe.registry import collector

ROOT = "/sys/class/net"


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `speed_mbps` is None where the driver does not say, `driver` empty for a virtual one."""

    name: str
    index: int
    flags: frozenset[str]
    mtu: int
    speed_mbps: int | None = None
    driver: str = ""
    addresses: tuple[IPv4Interface | IPv6Interface, ...] = ()

    @property
    def running(self) -> bool:
        """IFF_RUNNING: what NCCL demands of an interface since 2.28.3."""
        return "running" in self.flags

    @property
    def loopback(self) -> bool:
        """IFF_LOOPBACK."""
        return "loopback" in self.flags


@dataclass(frozen=True, slots=True)
class Address:
    """One address of one interface, in the words in which :mod:`ncclprobe.nccl.interfaces` wants it."""

    name: str
    family: str
    address: str
    netmask: str
    running: bool


@dataclass(frozen=True, slots=True)
class Interfaces:
    """All interfaces by index, the kernel's own order."""

    all: tuple[Interface, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        """Every address as getifaddrs(3) lists them: all IPv4 ones by interface, then all IPv6 ones."""
        return [
            Address(i.name, "inet6" if version == 6 else "inet", str(a.ip), str(a.netmask), i.running)
            for version in (4, 6)
            for i in self.all
            for a in i.addresses
            if a.version == version
        ]


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
    return Interface(
        name=name,
        index=int(host.ask("read", f"{ROOT}/{name}/ifindex")),
        flags=frozenset(filter(None, stats["flags"].split(","))),
        mtu=stats["mtu"],
        speed_mbps=int(speed) if speed and int(speed) > 0 else None,
        driver=driver.rpartition("/")[2],
        addresses=tuple(address for row in rows for address in parse_address(row)),
    )


def _optional(host: Host, *question: str) -> str:
    with contextlib.suppress(HostError):
        return host.ask(*question)
    return ""


def parse_address(row: dict[str, Any]) -> tuple[IPv4Interface | IPv6Interface, ...]:
    """The IP address of one row of psutil's net_if_addrs; none for a link-layer (AF_PACKET) row."""
    text, mask = row["address"], row["netmask"]
    if row["family"] not in (2, 10):  # AF_INET, AF_INET6 on Linux
        return ()
    try:
        if row["family"] == 10 and mask:
            mask = str(bin(int(ip_interface(mask).ip)).count("1"))
        return (ip_interface(f"{text}/{mask}" if mask else text),)
    except ValueError:
        raise ParseError(f"interface address: {row!r}") from None
