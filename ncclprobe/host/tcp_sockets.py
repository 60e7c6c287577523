"""TCP sockets of this network namespace, as the kernel reports them, and the processes that own them.

The kernel's data on connections is from sock_diag(7), which every user may read, but only for the own network
namespace: inet_diag_req_v2, inet_diag_msg (linux/inet_diag.h) and tcp_info (linux/tcp.h), as far as the kernel fills it
in.
"""

import json
import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Missing

_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 4, 20, 0x301, 2, 3
_INFO = 2
ESTABLISHED, LISTENING = 1, 10
_STATES = {ESTABLISHED: "established", 2: "connecting", 8: "closed by its peer"}
_AT_PORT = {ESTABLISHED: "established", LISTENING: "listening"}
_HEADER, _MESSAGE = 16, 72
_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on an IPv6 socket; the other end uses only the rest."""
_ANSWER_S = 1.0


def same_network(process: Path) -> None:
    """Check that a process is in this one's network namespace. Raises Denied if it is not."""
    if Path("/proc/self/ns/net").readlink() != (process / "ns/net").readlink():
        raise Denied(f"process {process.name} is in another network namespace: attach inside its container")


def connections(pids: Collection[str]) -> str:
    """Return the TCP connections of `pids` as JSON, those that a call waits on first.

    A connection that several of them share, such as workers that a rank has forked, belongs to the first.
    """
    owners: dict[int, str] = {}
    for pid in pids:
        with suppress(OSError):
            same_network(Path(f"/proc/{pid}"))
            owners = dict.fromkeys(sockets_of(pid, bounds.JOB_FILES), pid) | owners
    if not owners:
        raise Missing("no rank whose sockets can be read")
    found = [
        {"pid": int(owners[inode]), "inode": inode, **connection_of(family, message)}
        for family, inode, message in sockets(_STATES)
        if inode in owners
    ]
    found.sort(key=lambda each: -each["unacknowledged_bytes"] - each["unread_bytes"])
    return json.dumps(found[: bounds.JOB_CONNECTIONS])


def at_port(port: int, pids: Collection[str]) -> str:
    """Return as JSON the node's TCP sockets that listen on `port` or were accepted there, whoever owns them.

    The process is 0 if it is not one of `pids`; `stranger` is the listener if it did not start any of them. Raises
    Denied if these are in another network namespace.
    """
    owners: dict[int, str] = {}
    for pid in pids:
        same_network(Path(f"/proc/{pid}"))
        owners = dict.fromkeys(sockets_of(pid, bounds.JOB_FILES), pid) | owners
    found = []
    for family, inode, message in sockets(_AT_PORT, port):
        each = {"pid": int(owners.get(inode, 0)), "inode": inode, **connection_of(family, message)}
        state = _AT_PORT[message[1]]
        stranger = _stranger(inode, pids) if state == "listening" and inode not in owners else ""
        found.append({**each, "state": state, "unacknowledged_bytes": 0, "unread_bytes": 0, "stranger": stranger})
    return json.dumps(found[: bounds.JOB_CONNECTIONS])


def _stranger(inode: int, pids: Collection[str]) -> str:
    """Return the process that has a socket, ``4711 (python3)``; empty: unknown, or an ancestor of one of `pids`."""
    above = set(pids)
    for pid in pids:
        while (pid := parent_of(pid)) not in ("", "0", "1"):
            above.add(pid)
    if any(inode in sockets_of(pid) for pid in above):
        return ""
    others = (name for name in os.listdir("/proc") if name.isdecimal() and name not in above)  # noqa: PTH208
    owner = next((pid for pid in others if inode in sockets_of(pid, bounds.JOB_FILES)), "")
    return f"{owner} ({_text(owner, 'comm').strip()})" if owner else ""


def parent_of(pid: str) -> str:
    """Return the pid of the parent of a process; empty if it has ended."""
    return "".join(_text(pid, "stat").rpartition(")")[2].split()[1:2])


def _text(pid: str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def sockets_of(pid: str, most: int | None = None) -> Iterator[int]:
    """Yield the inodes of the sockets among the first `most` files of a process (None: all).

    Yields nothing if it has exited or belongs to another user.
    """
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:most]:  # noqa: PTH208
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if link.startswith("socket:["):
                    yield int(link[8:-1])


def sockets(
    states: Collection[int], port: int = 0, peer_port: int = 0
) -> Iterator[tuple[socket.AddressFamily, int, memoryview]]:
    """Yield family, inode and message of each TCP socket in `states` of this network namespace; port 0: any.

    The kernel filters them. Reading /proc/net/tcp would walk its table of all connections, milliseconds each time.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in dumped(family, sum(1 << state for state in states), port, peer_port):
            yield family, struct.unpack_from("=I", message, 68)[0], message


def dumped(family: int, states: int, port: int, peer_port: int) -> Iterator[memoryview]:
    """Yield the kernel's messages about sockets of these states and ports; port 0 is any."""
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), states)
    request += struct.pack("!2H44x", port, peer_port)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_ANSWER_S)
        asked.sendall(struct.pack("=IHHII", _HEADER + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            answer = memoryview(asked.recv(1 << 18))
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", answer, _HEADER)[0]
                    raise OSError(code, os.strerror(code), "sock_diag")
                yield answer[_HEADER:length]
                answer = answer[(length + 3) & ~3 :]


def ends(family: int, message: memoryview) -> tuple[str, str]:
    """Return a socket's own address and its peer's: ``10.0.0.1:4711``."""
    size = 4 if family == socket.AF_INET else 16
    ports = struct.unpack_from("!2H", message, 4)
    hosts = [socket.inet_ntop(family, bytes(message[at : at + size])).removeprefix(_MAPPED) for at in (8, 24)]
    local, peer = (f"[{end}]:{port}" if ":" in end else f"{end}:{port}" for end, port in zip(hosts, ports, strict=True))
    return local, peer


def connection_of(family: int, message: memoryview) -> dict[str, Any]:
    """Return what the kernel's message says of a connection: its ends, state, queues (bytes) and times."""
    state = message[1]
    unread, unacknowledged = struct.unpack_from("=2I", message, 56)
    local, peer = ends(family, message)
    info = _tcp_info(message[_MESSAGE:])
    sizes = {"unacknowledged_bytes": unacknowledged, "unread_bytes": unread}
    return {"local": local, "peer": peer, "state": _STATES.get(state, str(state)), **sizes, **info}


def _tcp_info(attributes: memoryview) -> dict[str, Any]:
    """Return the useful fields of a tcp_info; an older kernel sends a shorter one."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO:
            info = bytes(attributes[4:length]).ljust(136, b"\0")
            data_ms, acknowledgement_ms = struct.unpack_from("=2I", info, 52)
            heard_s = min(data_ms, acknowledgement_ms) / 1e3
            counts = {"retransmits": info[2], "probes": info[3], "heard_s": heard_s}
            acknowledged, received = struct.unpack_from("=2Q", info, 120)
            return {**counts, "acknowledged_bytes": acknowledged, "received_bytes": received}
        attributes = attributes[max((length + 3) & ~3, 4) :]
    return {}
