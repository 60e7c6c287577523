"""Network interfaces of this namespace from the C library and the kernel: getifaddrs(3) and netdevice(7).

Answers have the form of psutil's ``net_if_addrs`` and ``net_if_stats``, by which captures name these questions; psutil
itself takes an eighth of the doctor's start to be imported.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from typing import Any

_GET_FLAGS, _GET_MTU = 0x8913, 0x8921  # SIOCGIFFLAGS, SIOCGIFMTU of linux/sockios.h
_BROADCAST, _POINT_TO_POINT = 1 << 1, 1 << 4
_FLAGS = (
    *("up", "broadcast", "debug", "loopback", "pointopoint", "notrailers", "running", "noarp"),
    *("promisc", "allmulti", "master", "slave", "multicast", "portsel", "automedia", "dynamic"),
)
"""The names of IFF_UP, IFF_BROADCAST … of linux/if.h, by their bit."""


class _IfAddrs(ctypes.Structure):
    """``struct ifaddrs`` of ifaddrs.h."""


_IfAddrs._fields_ = (
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),  # the broadcast address, or the other end of a point-to-point link
    ("data", ctypes.c_void_p),
)


def addresses() -> dict[str, list[dict[str, Any]]]:
    """Return each interface's addresses: family, address, netmask, broadcast and ptp. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        rows, at = [], first
        while at:
            if at.contents.address:
                rows.append((os.fsdecode(at.contents.name), _row(at.contents)))
            at = at.contents.next
    finally:
        libc.freeifaddrs(first)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, row in sorted(rows, key=lambda each: each[1]["family"]):
        if row["address"]:
            found.setdefault(name, []).append(row)
    return found


def states() -> dict[str, dict[str, Any]]:
    """Return each interface's flags by name and its MTU in bytes; one that goes away meanwhile is left out.

    Raises OSError.
    """
    found: dict[str, dict[str, Any]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(_Gone):
                bits, mtu = _asked(door, _GET_FLAGS, name) & 0xFFFF, _asked(door, _GET_MTU, name)
                flags = [flag for bit, flag in enumerate(_FLAGS) if bits >> bit & 1]
                found[name] = {"isup": "running" in flags, "mtu": mtu, "flags": ",".join(flags)}
    return found


class _Gone(Exception):
    """The interface is not there any more."""


def _asked(door: socket.socket, request: int, name: str) -> int:
    """Return the number that the kernel answers in a ``struct ifreq``."""
    try:
        answer = fcntl.ioctl(door, request, struct.pack("16si20x", os.fsencode(name), 0))
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            raise _Gone from None
        raise
    return int(struct.unpack_from("16si", answer)[1])


def _row(entry: Any) -> dict[str, Any]:
    """Return one entry of getifaddrs as psutil gives it; `address` is None for a family without a text form."""
    other = _text(entry.other)
    broadcast = entry.flags & _BROADCAST
    return {
        "family": _family(entry.address),
        "address": _text(entry.address),
        "netmask": _text(entry.netmask) if _family(entry.address) != socket.AF_PACKET else None,
        "broadcast": other if broadcast else None,
        "ptp": other if entry.flags & _POINT_TO_POINT and not broadcast else None,
    }


def _family(address: int) -> int:
    return ctypes.c_ushort.from_address(address).value


def _text(address: int | None) -> str | None:
    """Return a ``struct sockaddr`` as text: an IP address, with its interface where it is link-local, or a MAC."""
    if not address:
        return None
    family = _family(address)
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(address + 4, 4))
    if family == socket.AF_INET6:
        _, _, flow, raw, scope = struct.unpack("=HHI16sI", ctypes.string_at(address, 28))
        return socket.getnameinfo((socket.inet_ntop(family, raw), 0, flow, scope), socket.NI_NUMERICHOST)[0]
    if family == socket.AF_PACKET:
        length = ctypes.c_ubyte.from_address(address + 11).value
        return ":".join(f"{byte:02x}" for byte in ctypes.string_at(address + 12, length)) or None
    return None
