"""What decides whether connections succeed on a node: listeners, packet filters and kernel settings.

Ports are read from /proc/net/tcp and tcp6, never found by connecting: a listener that counts its clients would count us
(sparkrun#259). Every user may read both files, for all users' sockets in this network namespace. Only the lines of
listening sockets are used, without their owners.

Reading the filters needs CAP_NET_ADMIN (root): both nftables, with the rules that iptables-nft created in it, and the
list of iptables' own tables. Without it, the command is not started. The filters are then unknown; there may still be a
firewall.

The settings are those of /proc/sys/net, which every user may read.
"""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeVar

from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.process import Process
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field, replace

LISTENING = r"^ *(sl|\d+: [0-9A-F]+:[0-9A-F]{4} [0-9A-F]+:[0-9A-F]{4} 0A) "  # the header, and state TCP_LISTEN
_ROW = re.compile(r"\s*\d+: ((?:[0-9A-F]{8}){1,4}):([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A .*")


class Listener(Struct, frozen=True):
    """One listening socket. ``0.0.0.0`` and ``::`` accept connections to any address of the node."""

    address: str
    port: int


class Ports(Struct, frozen=True):
    """Every listening TCP socket of this network namespace, and the number of sockets in TIME_WAIT."""

    listeners: tuple[Listener, ...]
    time_wait: int | Absent

    def on(self, port: int) -> tuple[Listener, ...]:
        """Return the sockets that listen on `port`."""
        return tuple(listener for listener in self.listeners if listener.port == port)


@collector
def ports(host: Host) -> Ports:
    """Read three files. Needs no privileges."""
    found = [*listening(host.ask("lines", "/proc/net/tcp", LISTENING)), *_ipv6(host)]
    return Ports(tuple(found), learn(host, time_wait, "read", "/proc/net/sockstat"))


def _ipv6(host: Host) -> tuple[Listener, ...]:
    try:
        return listening(host.ask("lines", "/proc/net/tcp6", LISTENING))
    except Missing:  # a kernel without IPv6
        return ()


def listening(text: str) -> tuple[Listener, ...]:
    """Parse the listening sockets of a table with a header. Raises ParseError."""
    header, *rows = text.splitlines() or [""]
    if header.split()[:2] != ["sl", "local_address"]:
        raise ParseError(f"/proc/net/tcp: {text[:80]!r}")
    return tuple(map(_listener, rows))


def _listener(row: str) -> Listener:
    match = _ROW.fullmatch(row)
    if not match or len(match[1]) not in (8, 32):
        raise ParseError(f"/proc/net/tcp: {row[:120]!r}")
    return Listener(str(_address(match[1])), int(match[2], 16))


def _address(text: str) -> IPv4Address | IPv6Address:
    """Decode one or four 32-bit numbers in host byte order, which is little-endian on all machines that run CUDA."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"<{len(words)}I", *words)
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def time_wait(text: str) -> int:
    """Parse the number of TIME_WAIT sockets in /proc/net/sockstat. Raises ParseError."""
    match = re.search(r"^TCP: .*\btw (\d{1,18})\b", text, re.MULTILINE | re.ASCII)
    if not match:
        raise ParseError(f"/proc/net/sockstat: {text[:80]!r}")
    return int(match[1])


LEGACY = {"ipv4": "/proc/net/ip_tables_names", "ipv6": "/proc/net/ip6_tables_names"}
_INWARD = ("ingress", "prerouting", "input")


class Chain(Struct, frozen=True):
    """One base chain of nftables that filters incoming packets, by its place (``inet/filter/input``).

    `otherwise`: what happens to a packet that no rule decides on, ``accept``, ``drop`` or ``reject``: the chain's
    policy, or its last rule if that applies to all packets. `rules`: the number of other rules. Neither they nor the
    chains that they jump to are read.
    """

    name: str
    otherwise: str = "accept"
    rules: int | Absent = 0


class Firewall(Struct, frozen=True):
    """Filters of incoming packets: base chains of nftables, and tables of iptables, as ``ipv4/filter``."""

    chains: tuple[Chain, ...] | Absent
    legacy: tuple[str, ...] | Absent


@collector
def firewall(host: Host, process: Process) -> Firewall:
    """Read two files and run nft, once more per chain. Needs CAP_NET_ADMIN (root)."""
    if "net_admin" not in process.capabilities:
        raise Denied("firewall: only root (CAP_NET_ADMIN) may read the rules")
    legacy = attempt(lambda: _legacy(host))
    found = attempt(lambda: chains(host.ask("run", "nft", "-j", "list", "chains")))
    if isinstance(found, Absent):
        return Firewall(found, legacy)
    asked = tuple(_add_rules(host, each) for each in found[: bounds.FIREWALL_CHAINS])
    return Firewall((*asked, *found[bounds.FIREWALL_CHAINS :]), legacy)


def _legacy(host: Host) -> tuple[str, ...]:
    found: list[str] = []
    for family, path in LEGACY.items():
        try:
            found += [f"{family}/{table}" for table in host.ask("read", path).split()]
        except Missing:  # the module is not loaded: no table of its
            continue
    return tuple(found)


def _add_rules(host: Host, chain: Chain) -> Chain:
    """Add the chain's rules. nft reads its arguments as one text, so an unusual name is not passed to it."""
    if not re.fullmatch(r"[a-z0-9]+(/[A-Za-z_][\w.-]*){2}", chain.name, re.ASCII):
        return chain
    found = attempt(lambda: rules(host.ask("run", "nft", "-j", "list", "chain", *chain.name.split("/"))))
    if isinstance(found, Absent):
        return replace(chain, rules=found)
    count, verdict = found
    return replace(chain, otherwise=verdict or chain.otherwise, rules=count - bool(verdict))


def chains(text: str) -> tuple[Chain, ...]:
    """Parse ``nft -j list chains`` (libnftables-json(5)): the base chains that filter incoming packets, without rules.

    Raises ParseError.
    """
    try:
        found = [item["chain"] for item in json.loads(text)["nftables"] if "chain" in item]
        return tuple(_chain(row) for row in found if row.get("hook") in _INWARD and row.get("type") == "filter")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"nft -j list chains: {text[:80]!r}") from None


def _chain(row: dict[str, Any]) -> Chain:
    name = "/".join(str(row[key]) for key in ("family", "table", "name"))
    return Chain(name, str(row.get("policy", "accept")), Absent(f"{name}: rules not read"))


def rules(text: str) -> tuple[int, str]:
    """Count the rules of ``nft -j list chain``, and return ``drop`` or ``reject`` if the last one refuses the rest.

    Raises ParseError.
    """
    try:
        found = [item["rule"]["expr"] for item in json.loads(text)["nftables"] if "rule" in item]
        last = [word for part in (found[-1] if found else ()) for word in part.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"nft -j list chain: {text[:80]!r}") from None
    verdict, of = last[-1] if last else ("", None)
    if verdict == "xt" and isinstance(of, dict):  # of iptables-nft
        verdict = str(of.get("name")).lower()
    holds_for_all = {name for name, _ in last[:-1]} <= {"counter", "log"}
    return len(found), verdict if holds_for_all and verdict in ("drop", "reject") else ""


T = TypeVar("T")
ROOT = "/proc/sys/net"
_MAX_PORT = 65535


class Ipv4Settings(Struct, frozen=True):
    """One interface's effective ARP settings: the kernel applies the greater of its own and that of "all".

    The default, 0, also answers for and announces the other interfaces' addresses
    (Documentation/networking/ip-sysctl.rst).
    """

    arp_ignore: int | Absent
    arp_announce: int | Absent


class Sysctls(Struct, frozen=True):
    """`ephemeral_ports` are first and last; `reserved_ports` are ranges in them that the kernel does not assign.

    `interfaces` has only interfaces whose settings can matter: two or more with addresses of one IPv4 subnet.
    """

    ephemeral_ports: tuple[int, int] | Absent
    reserved_ports: tuple[tuple[int, int], ...] | Absent
    interfaces: Mapping[str, Ipv4Settings] = field(default_factory=dict)


@collector
def sysctls(host: Host, interfaces: Interfaces | Absent) -> Sysctls:
    """Read two files, and if interfaces share a subnet two more and two per interface. Needs no privileges."""
    shared = [] if isinstance(interfaces, Absent) else sharing_a_subnet(interfaces)
    return Sysctls(
        ephemeral_ports=_ask(host, "ipv4/ip_local_port_range", port_range),
        reserved_ports=_ask(host, "ipv4/ip_local_reserved_ports", port_list),
        interfaces={interface.name: _ipv4(host, interface.name) for interface in shared},
    )


def sharing_a_subnet(interfaces: Interfaces) -> list[Interface]:
    """Return the interfaces that share an IPv4 subnet with another: ARP and filters may then choose the wrong one."""
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
    """Parse one whole number. Raises ParseError."""
    return _numbers(text, 1)[0]


def port_range(text: str) -> tuple[int, int]:
    """Parse ``32768\\t60999``. Raises ParseError."""
    first, last = _numbers(text, 2)
    return first, last


def port_list(text: str) -> tuple[tuple[int, int], ...]:
    """Parse the kernel's list of ports, ``29500,40000-40010``, into ranges; it may be empty. Raises ParseError."""
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
