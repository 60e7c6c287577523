"""The kernel's settings that decide whether connections succeed: /proc/sys/net, which every user may read."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from ncclprobe.facts.field import learn
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.host import Host
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

T = TypeVar("T")
ROOT = "/proc/sys/net"
_MAX_PORT = 65535


class Ipv4Settings(Struct, frozen=True):
    """How one interface treats addresses, as the kernel applies it: the greater of its own setting and that of "all".

    0 is the default, which answers for and announces the addresses of the other interfaces too
    (Documentation/networking/ip-sysctl.rst).
    """

    arp_ignore: int | Absent
    arp_announce: int | Absent


class Sysctls(Struct, frozen=True):
    """`ephemeral_ports` are first and last; `reserved_ports` the ranges in it that the kernel does not give out.

    `interfaces` has those whose settings can matter: two or more with addresses of one IPv4 subnet.
    """

    ephemeral_ports: tuple[int, int] | Absent
    reserved_ports: tuple[tuple[int, int], ...] | Absent
    somaxconn: int | Absent
    interfaces: Mapping[str, Ipv4Settings] = field(default_factory=dict)


@collector
def sysctls(host: Host, interfaces: Interfaces | Absent) -> Sysctls:
    """Read three files, and where interfaces share a subnet two more and two per interface; open to every user."""
    shared = [] if isinstance(interfaces, Absent) else sharing_a_subnet(interfaces)
    return Sysctls(
        ephemeral_ports=_ask(host, "ipv4/ip_local_port_range", port_range),
        reserved_ports=_ask(host, "ipv4/ip_local_reserved_ports", port_list),
        somaxconn=_ask(host, "core/somaxconn", number),
        interfaces={interface.name: _ipv4(host, interface.name) for interface in shared},
    )


def sharing_a_subnet(interfaces: Interfaces) -> list[Interface]:
    """Return the interfaces with an IPv4 address in a subnet of another: there ARP and filters choose wrongly."""
    subnets = {i.name: i.subnets for i in interfaces.all if not i.loopback}
    owners = Counter(subnet for found in subnets.values() for subnet in found)
    return [i for i in interfaces.all if any(owners[subnet] > 1 for subnet in subnets.get(i.name, ()))]


def _ipv4(host: Host, name: str) -> Ipv4Settings:
    def effective(setting: str) -> int | Absent:
        found = [_ask(host, f"ipv4/conf/{where}/{setting}", number) for where in ("all", name)]
        numbers = [value for value in found if not isinstance(value, Absent)]
        return max(numbers) if len(numbers) == len(found) else next(v for v in found if isinstance(v, Absent))

    return Ipv4Settings(effective("arp_ignore"), effective("arp_announce"))


def _ask(host: Host, name: str, parse: Callable[[str], T]) -> T | Absent:
    return learn(host, parse, "read", f"{ROOT}/{name}")


def number(text: str) -> int:
    """Return one whole number. Raises ParseError."""
    return _numbers(text, 1)[0]


def port_range(text: str) -> tuple[int, int]:
    """Parse ``32768\\t60999``. Raises ParseError."""
    first, last = _numbers(text, 2)
    return first, last


def port_list(text: str) -> tuple[tuple[int, int], ...]:
    """Return the kernel's list of ports, ``29500,40000-40010``, as ranges; empty is none. Raises ParseError."""
    ranges = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part, re.ASCII)
        if not match or int(match[2] or match[1]) > _MAX_PORT:
            raise ParseError(f"list of ports: {text[:80]!r}")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return tuple(ranges)


def _numbers(text: str, count: int) -> list[int]:
    words = text.split()
    if len(words) != count or not all(re.fullmatch(r"-?\d{1,20}", word, re.ASCII) for word in words):
        raise ParseError(f"{count} whole numbers expected: {text[:80]!r}")
    return [int(word) for word in words]
