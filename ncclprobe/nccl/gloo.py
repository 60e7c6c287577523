"""The addresses that torch's gloo groups listen on, and whether two nodes' devices can connect.

A gloo group has one device for each name in GLOO_SOCKET_IFNAME, otherwise one on the address of the host's own name,
and 127.0.0.1 if that name does not resolve to an address of this host. The first device of every rank is connected with
the first of every other, the second with the second. The rank with the greater of two addresses connects, from any
address of its own, and the other listens.

Sources: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp createDefaultDevice and Options::create_default, Utils.hpp
split (torch 2.13; 2.x before it reads the same in init.cpp, 1.x also accepted a name of one character);
gloo/transport/tcp/device.cc lookupAddrForIface, lookupAddrForHostname, sockaddrToInterfaceName and Device::isInitiator,
rendezvous in tcp/context.cc. The cases of tests/nccl/test_gloo.py are the real one's.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from itertools import combinations

from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_LONGEST_NAME = 63  # torch's buffer is HOST_NAME_MAX, 64, with the NUL: gethostname(2) refuses one more
_LOOPBACK = "127.0.0.1"


class Device(Struct, frozen=True):
    """The address that a rank listens on, and the interface that gloo assigns to it.

    `fallback`: the host's own name does not resolve to one of its addresses, so torch uses 127.0.0.1.
    """

    interface: str
    address: str
    fallback: bool = False

    @property
    def version(self) -> int:
        """Return the IP version, 4 or 6."""
        return ip_address(self.address).version

    @property
    def loopback(self) -> bool:
        """Return whether this is a loopback address."""
        return ip_address(self.address.partition("%")[0]).is_loopback


class Refused(Struct, frozen=True):
    """torch fails to start here, for the reason `why`."""

    why: str


Chosen = Device | Refused | Absent
"""Absent: whether the kernel allows gloo to bind the address cannot be seen from outside."""


def named(ifname: str) -> tuple[str, ...]:
    """Return the interfaces that GLOO_SOCKET_IFNAME names; empty if the host's own name decides.

    A single character counts as not set. Nothing is trimmed. An empty piece is a name, except at the end.
    """
    if len(ifname) < 2:
        return ()
    pieces = ifname.split(",")
    return tuple(pieces if pieces[-1] else pieces[:-1])


def devices(interfaces: Interfaces, ifname: str, hostname: str, resolved: Sequence[str]) -> tuple[Chosen, ...]:
    """Return the devices of a rank, in order.

    `resolved` are the numeric addresses that getaddrinfo(3) returns for `hostname`, in order; may be empty.
    """
    if names := named(ifname):
        return tuple(interface_address(interfaces, name) for name in names)
    return (hostname_address(interfaces, hostname, resolved),)


def interface_address(interfaces: Interfaces, name: str) -> Chosen:
    """Return the first address of exactly this interface, IPv4 before IPv6, as getifaddrs(3) lists them."""
    if not name:
        return Refused("an empty name is not an interface")
    own = next((each for each in interfaces.addresses if each.name == name), None)
    if own is None:
        return Refused(f"{name!r} is not an interface of this node that has an address")
    return _bind_doubt(interfaces, own) or _device(interfaces, own.address)


def hostname_address(interfaces: Interfaces, hostname: str, resolved: Sequence[str]) -> Chosen:
    """Return the first bindable address of the host's own name, otherwise 127.0.0.1."""
    if len(hostname) > _LONGEST_NAME:
        return Refused(f"the host's name has {len(hostname)} characters, and torch reads at most {_LONGEST_NAME}")
    for address in resolved:
        if found := _bind(interfaces, address):
            return found
    found = _bind(interfaces, _LOOPBACK)
    if isinstance(found, Device):
        return Device(found.interface, found.address, fallback=True)
    return found or Refused("the host's own name leads to none of its addresses, and it has no 127.0.0.1")


def _bind(interfaces: Interfaces, address: str) -> Chosen | None:
    """Return the device on `address`; None if bind(2) fails, so that the next one is tried."""
    own = next((each for each in interfaces.addresses if same(each.address, address)), None)
    if own is not None:
        return _bind_doubt(interfaces, own) or _device(interfaces, address)
    parsed = ip_address(address)
    if isinstance(parsed, IPv4Address):
        if _is_loopback(interfaces, parsed):
            return _device(interfaces, address)
        nobodys = parsed.is_unspecified or parsed.is_multicast or _is_broadcast(interfaces, parsed)
    else:
        nobodys = parsed.is_unspecified
    return Refused(f"the host's own name leads to {address}, which is the address of no interface") if nobodys else None


def _device(interfaces: Interfaces, address: str) -> Chosen:
    """Return a device on a bindable address, if gloo finds its interface.

    For IPv4 it uses the interface of that address, and for 127/8 the first one with such an address.
    """
    local = ip_address(address) in _LOOPBACKS if "%" not in address and ":" not in address else False
    for each in interfaces.addresses:
        if same(each.address, address) or (local and each.family == "inet" and ip_address(each.address) in _LOOPBACKS):
            return Device(each.name, address)
    return Refused(f"{address} is the address of no interface")


_LOOPBACKS = ip_interface("127.0.0.0/8").network


def _bind_doubt(interfaces: Interfaces, own: Address) -> Absent | None:
    """Return why the kernel may refuse one of this host's own addresses; None if it does not."""
    interface = interfaces.by_name[own.name]
    if "up" not in interface.flags:
        return Absent(f"{own.name} is down: its address may or may not be bound to")
    if own.family == "inet6" and not own.running:
        return Absent(f"{own.name} has no carrier: its IPv6 address may not be ready")
    return None


def _is_loopback(interfaces: Interfaces, address: IPv4Address) -> bool:
    """Return whether an IPv4 address is in a network of a loopback interface, as all of 127/8 is."""
    return any(
        address in ip_interface(f"{each.address}/{each.netmask}").network
        for each in interfaces.addresses
        if each.family == "inet" and each.netmask and _up_loopback(interfaces, each.name)
    )


def _up_loopback(interfaces: Interfaces, name: str) -> bool:
    interface = interfaces.by_name[name]
    return interface.loopback and "up" in interface.flags


def _is_broadcast(interfaces: Interfaces, address: IPv4Address) -> bool:
    """Return whether an IPv4 address is a broadcast address here, which the kernel allows TCP to bind."""
    if address == IPv4Address("255.255.255.255"):
        return True
    networks = (
        ip_interface(f"{each.address}/{each.netmask}").network
        for each in interfaces.addresses
        if each.family == "inet" and each.netmask and "up" in interfaces.by_name[each.name].flags
    )
    return any(net.prefixlen < 31 and address in (net.broadcast_address,) for net in networks)


def same(one: str, other: str) -> bool:
    """Return whether two numeric addresses, including scope, are equal."""
    return ip_address(one) == ip_address(other)


def calls(one: Device, other: Device) -> bool:
    """Return whether `one` is the end that connects: the one with the greater address."""
    return ip_address(one.address.partition("%")[0]).packed > ip_address(other.address.partition("%")[0]).packed


def parted(one: Device, ones: Interfaces, other: Device, others: Interfaces) -> str:
    """Return why devices of two nodes certainly cannot connect; empty if that depends on the network.

    `ones` and `others` are the interfaces of their nodes: connecting to one's own address reaches oneself.
    """
    if one.version != other.version:
        return f"{one.address} and {other.address} are of different address families"
    if same(one.address, other.address):
        return f"both have {one.address}"
    caller, callers, listener = (one, ones, other) if calls(one, other) else (other, others, one)
    if listener.loopback or _own(callers, listener.address):
        return f"the node of {caller.address} calls {listener.address}, which is its own address"
    return ""


def _own(interfaces: Interfaces, address: str) -> bool:
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address) and parsed.scope_id:
        return False  # every link has its own
    return any(same(each.address, address) for each in interfaces.addresses)


class Node(Struct, frozen=True):
    """One node of a group: its interfaces, and its devices, which are the same for all its ranks."""

    interfaces: Interfaces
    devices: tuple[Chosen, ...]


class Parted(Struct, frozen=True):
    """Two nodes, in order of appearance, whose ranks certainly cannot connect, and why."""

    one: str
    other: str
    why: str


def partings(nodes: Mapping[str, Node]) -> Iterator[Parted]:
    """Yield each pair of nodes that certainly cannot connect. Unknown facts part nobody."""
    for (one, first), (other, second) in combinations(nodes.items(), 2):
        why = _why_parted(first, second)
        if why:
            yield Parted(one, other, why)


def _why_parted(one: Node, other: Node) -> str:
    if len(one.devices) != len(other.devices):
        return f"one listens on {len(one.devices)} addresses, the other on {len(other.devices)}"
    for mine, theirs in zip(one.devices, other.devices, strict=True):
        if isinstance(mine, Device) and isinstance(theirs, Device):
            why = parted(mine, one.interfaces, theirs, other.interfaces)
            if why:
                return why
    return ""
