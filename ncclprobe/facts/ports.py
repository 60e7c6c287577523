"""Which TCP ports are listened on, from /proc/net/tcp and tcp6. Never by connecting: a listener that counts its clients
would count us (sparkrun#259).

Everyone may read both files, for the sockets of every user in this network namespace. Only the lines of listening
sockets are looked at, and nothing that says whose they are.
"""

import re
import struct
from ipaddress import IPv4Address, IPv6Address

from ncclprobe.errors import Missing, ParseError
from ncclprobe.facts.field import learn
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

LISTENING = r"^ *(sl|\d+: [0-9A-F]+:[0-9A-F]{4} [0-9A-F]+:[0-9A-F]{4} 0A) "  # the header, and state TCP_LISTEN
_ROW = re.compile(r"\s*\d+: ((?:[0-9A-F]{8}){1,4}):([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A .*")


class Listener(Struct, frozen=True):
    """One listening socket. The addresses ``0.0.0.0`` and ``::`` take connections to any address of the node."""

    address: str
    port: int


class Ports(Struct, frozen=True):
    """Every listening TCP socket of this network namespace, and how many closed connections still hold a port."""

    listeners: tuple[Listener, ...]
    time_wait: int | Absent

    def on(self, port: int) -> tuple[Listener, ...]:
        """Return the sockets that listen on `port`."""
        return tuple(listener for listener in self.listeners if listener.port == port)


@collector
def ports(host: Host) -> Ports:
    """Read three files, open to every user."""
    found = [*listening(host.ask("lines", "/proc/net/tcp", LISTENING)), *_ipv6(host)]
    return Ports(tuple(found), learn(host, time_wait, "read", "/proc/net/sockstat"))


def _ipv6(host: Host) -> tuple[Listener, ...]:
    try:
        return listening(host.ask("lines", "/proc/net/tcp6", LISTENING))
    except Missing:  # a kernel without IPv6
        return ()


def listening(text: str) -> tuple[Listener, ...]:
    """Return the listening sockets of a table whose header is there. Raises ParseError."""
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
    """Return one or four 32-bit numbers, each in the machine's own order: little-endian on all that run CUDA."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"<{len(words)}I", *words)
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def time_wait(text: str) -> int:
    """Return the TIME_WAIT sockets that /proc/net/sockstat counts. Raises ParseError."""
    match = re.search(r"^TCP: .*\btw (\d{1,18})\b", text, re.MULTILINE | re.ASCII)
    if not match:
        raise ParseError(f"/proc/net/sockstat: {text[:80]!r}")
    return int(match[1])
