"""Routes and policy rules: the main table from /proc/net, rules and other tables from ip(8) if it is installed.

Needs no privileges. Rules are in no file: without iproute2, something other than the main table may decide.
"""

import json
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from ncclprobe.facts.field import attempt, learn
from ncclprobe.host import Host
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_UP, _REJECT = 0x1, 0x200  # linux/route.h
_ANYCAST, _LOCAL = 0x0010_0000, 0x8000_0000  # linux/ipv6_route.h
_USUAL = {("local", "all"), ("main", "all"), ("default", "all")}  # what every namespace starts with
_ORDINARY = "unicast"


class Route(Struct, frozen=True):
    """The route of packets to `destination` (``10.0.0.0/8``; all: ``0.0.0.0/0``). No `gateway`: directly connected.

    `interface` is empty for a route over several next hops, and for a refusal: see `kind` (``unicast``, ``unreachable``
    …). `source` is the packets' source address, if the route sets one.
    """

    destination: str
    interface: str
    gateway: str = ""
    metric: int = 0
    source: str = ""
    table: str = "main"
    kind: str = _ORDINARY


class Rule(Struct, frozen=True):
    """One policy rule: packets from `source` to `destination` ("all" or a prefix) use `table`.

    `interface` restricts it to packets that enter or leave there; `action` replaces the table if packets are refused.
    Rules with smaller priorities come first.
    """

    priority: int
    table: str
    source: str = "all"
    destination: str = "all"
    interface: str = ""
    action: str = ""

    def takes(self, source: str, destination: str) -> bool:
        """Return whether the rule applies to packets from `source` (empty: unknown) to `destination`."""
        pairs = ((self.source, source), (self.destination, destination))
        return all(prefix == "all" or (each and ip_address(each) in ip_network(prefix)) for prefix, each in pairs)


class Routes(Struct, frozen=True):
    """Routes of this network namespace: IPv4's main table, and IPv6's except local, multicast and anycast ones.

    `rules` are IPv4's. `tables` are the routes of all IPv4 tables, read only if there are `policy` rules.
    """

    main: tuple[Route, ...]
    rules: tuple[Rule, ...] | Absent
    tables: tuple[Route, ...] | Absent = ()

    @property
    def default_interfaces(self) -> tuple[str, ...]:
        """Return the interfaces with a default route in the main tables."""
        names = [route.interface for route in self.main if route.destination in ("0.0.0.0/0", "::/0")]
        return tuple(dict.fromkeys(names))

    def leaving(self, address: str, source: str = "") -> Route | None:
        """Return the route of a packet from `source` to `address`; None: no route.

        Applies rule order, longest prefix and smallest metric. Ignores IPv6 rules and rules with an interface.
        """
        own = self.tables if isinstance(self.tables, tuple) else ()
        names = [rule.table for rule in self.policy if not rule.interface and rule.takes(source, address)]
        for table in (*names, "main"):
            found = [each for each in (self.main if table == "main" else own) if each.table == table]
            fitting = [each for each in found if ip_address(address) in ip_network(each.destination)]
            if fitting:
                return max(fitting, key=lambda each: (ip_network(each.destination).prefixlen, -each.metric))
        return None

    @property
    def policy(self) -> tuple[Rule, ...]:
        """Return the rules that an administrator added."""
        rules = () if isinstance(self.rules, Absent) else self.rules
        return tuple(rule for rule in rules if (rule.table, rule.source) not in _USUAL)


@collector
def routes(host: Host) -> Routes:
    """Read two files and ``ip rule``; ``ip route`` only if rules use other tables. Needs no privileges."""
    found = Routes(
        (*main4(host.ask("read", "/proc/net/route")), *_main6(host)), learn(host, rules, "run", *_IP, "rule")
    )
    if not found.policy:
        return found
    return Routes(
        found.main, found.rules, attempt(lambda: tables(host.ask("run", *_IP, "route", "show", "table", "all")))
    )


_IP = ("ip", "-j", "-4")


def _main6(host: Host) -> tuple[Route, ...]:
    try:
        return main6(host.ask("read", "/proc/net/ipv6_route"))
    except Missing:  # a kernel without IPv6: known to have none
        return ()


def main4(text: str) -> tuple[Route, ...]:
    """Parse the routes of /proc/net/route that are up and refuse nothing. Addresses are little-endian. Raises
    ParseError.
    """
    lines = text.splitlines()
    if not lines or lines[0].split()[:3] != ["Iface", "Destination", "Gateway"]:
        raise ParseError(f"/proc/net/route: {text[:80]!r}")
    return tuple(route for line in lines[1:] if (route := _route4(line)))


def _route4(line: str) -> Route | None:
    try:
        name, destination, gateway, flags, _refs, _use, metric, mask = line.split()[:8]
        if not int(flags, 16) & _UP or int(flags, 16) & _REJECT:
            return None
        network = IPv4Network((_ipv4(destination), str(_ipv4(mask))))
        hop = _ipv4(gateway)
        return Route(str(network), name, str(hop) if int(hop) else "", int(metric))
    except (ValueError, struct.error):
        raise ParseError(f"/proc/net/route: {line[:120]!r}") from None


def _ipv4(text: str) -> IPv4Address:
    return IPv4Address(struct.pack("<I", int(text, 16)))


def main6(text: str) -> tuple[Route, ...]:
    """Parse the routes of /proc/net/ipv6_route to other machines: not local, multicast, anycast or refused."""
    return tuple(route for line in text.splitlines() if (route := _route6(line)))


def _route6(line: str) -> Route | None:
    try:
        destination, bits, _source, _source_bits, gateway, metric, _refs, _use, flags, name = line.split()
        network = IPv6Network((_ipv6(destination), int(bits, 16)))
        hop, state = _ipv6(gateway), int(flags, 16)
        if not state & _UP or state & (_REJECT | _ANYCAST | _LOCAL) or network.is_multicast:
            return None
        return Route(str(network), name, str(hop) if int(hop) else "", int(metric, 16))
    except ValueError:
        raise ParseError(f"/proc/net/ipv6_route: {line[:120]!r}") from None


def _ipv6(text: str) -> IPv6Address:
    return IPv6Address(bytes.fromhex(text))


def rules(text: str) -> tuple[Rule, ...]:
    """Parse ``ip -j rule``. Raises ParseError, also for iproute2 before 4.17, which ignores -j here and prints text."""
    return tuple(_rule(row) for row in _rows(text, "ip rule"))


def _rule(row: dict[str, Any]) -> Rule:
    return Rule(
        priority=_number(row.get("priority")),
        table=str(row.get("table", "")),
        source=_selector(row, "src"),
        destination=_selector(row, "dst"),
        interface=str(row.get("iif") or row.get("oif") or ""),
        action=str(row.get("action", "")),
    )


def _selector(row: dict[str, Any], key: str) -> str:
    """Parse ``{"src": "10.2.0.0", "srclen": 16}`` as a prefix; a single address has no length, and "all" is a word."""
    address, length = str(row.get(key, "all")), row.get(f"{key}len")
    return address if address == "all" else _prefix(address if length is None else f"{address}/{length}")


def tables(text: str) -> tuple[Route, ...]:
    """Parse ``ip -j -4 route show table all``, without the table of this node's own addresses."""
    rows = _rows(text, "ip route")
    return tuple(_route(row) for row in rows if row.get("table") != "local")


def _route(row: dict[str, Any]) -> Route:
    destination = str(row.get("dst", "default"))
    return Route(
        destination="0.0.0.0/0" if destination == "default" else _prefix(destination),
        interface=str(row.get("dev", "")),
        gateway=str(row.get("gateway", "")),
        metric=_number(row.get("metric", 0)),
        source=str(row.get("prefsrc", "")),
        table=str(row.get("table", "main")),
        kind=str(row.get("type", _ORDINARY)),
    )


def _prefix(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        raise ParseError(f"ip: no prefix: {text[:60]!r}") from None


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise ParseError(f"ip: no number: {value!r:.60}")
    return value


def _rows(text: str, what: str) -> list[dict[str, Any]]:
    """Decode a JSON array of objects. Raises ParseError."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise ParseError(f"{what}: not JSON: {text[:80]!r}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParseError(f"{what}: not an array of objects: {text[:80]!r}")
    return rows
