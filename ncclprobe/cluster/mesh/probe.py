"""Probe one path: call a listener from the local interface of that role, check its node, see whether large packets
pass.

The kernel's view of a connection is read by the offsets of struct tcp_info (include/uapi/linux/tcp.h), which only ever
grew, so that an offset holds for every kernel; an older one returns fewer bytes.
"""

import contextlib
import ipaddress
import socket
import sys
import time
from collections.abc import Awaitable, Callable

from ncclprobe import wire
from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER
from ncclprobe.cluster.mesh.plan import Call
from ncclprobe.errors import NcclprobeError
from ncclprobe.facts.reach import MeshListener, Path
from ncclprobe.model.values import Struct, replace
from ncclprobe.wire import Wire, WireError

TRY_S = 2.0
"""For connecting, the handshake and the echoes. A lost SYN is sent again after one second (RFC 6298)."""

LARGE_S = 2.0
"""For 256 KiB each way: a link of 10 Mbit/s takes 0.2 s."""

_SIZE_S = 1.0
"""For the same in one direction, where a healthy path takes milliseconds."""
_SIZES = (576, 1280, 1360, 1400, 1420, 1450, 1472, 1480, 1492, 1500, 2044, 4000, 4200, 8000, 8500, 8900, 8950, 9000)
"""Packets of tunnels, clouds and LANs: RFC 791, RFC 8200, VXLAN, WireGuard, PPPoE, Ethernet, IPoIB, jumbo frames."""
_MAY_FRAGMENT = ((socket.IPPROTO_IP, 10, 0),)  # IP_MTU_DISCOVER, IP_PMTUDISC_DONT: ip(7)
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_HEADERS = {4: 40, 6: 60}  # of IP and TCP
_ECHOES = 5
_ANSWER_BYTES = 1024
_DETAIL_CHARACTERS = 160


class Caller(Struct, frozen=True):
    """The run's key, and the time by which all calls must be over."""

    key: bytes
    deadline: float

    def limit(self, seconds: float) -> float:
        """Return the end of a step that may take `seconds`."""
        return min(self.deadline, time.monotonic() + seconds)

    def outcome(self, error: WireError, limit: float) -> str:
        """Return how a path ended; ``late`` where this run's own time ended, which never blames the other side."""
        return "late" if error.kind in ("filtered", "silent") and limit >= self.deadline else error.kind


class WrongPeer(NcclprobeError):
    """Another node of this run answers at the address."""


class _Stopped(NcclprobeError):
    """The connection ended: `outcome` is a path's outcome, the message says it in words."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


async def walk_path(caller: Caller, call: Call, local: MeshListener) -> Path:
    """Try one path, once. A failure is an outcome, never an error."""
    path = untried(call, local)
    if time.monotonic() >= caller.deadline:
        return path
    path = replace(path, tries=1, detail="")
    if _family(local.address) != _family(call.address):
        return replace(path, outcome="unreachable", detail=f"from {local.address}: IPv4 and IPv6 do not meet")
    limit = caller.limit(TRY_S)
    try:
        connection = await reach(caller, call, local, limit)
    except WrongPeer as error:
        return replace(path, outcome="wrong-peer", detail=str(error))
    except WireError as error:
        return replace(path, outcome=caller.outcome(error, limit), detail=str(error)[:_DETAIL_CHARACTERS])
    try:
        return await _measured(caller, path, connection)
    finally:
        connection.close()


def untried(call: Call, local: MeshListener) -> Path:
    """Return the row of a path for which there was no time."""
    return Path(call.to, call.role, local.interface, local.address, call.address, "late", "not tried: no time left", 0)


async def reach(
    caller: Caller, call: Call, local: MeshListener, deadline: float, options: wire.SocketOptions = ()
) -> Wire:
    """Connect to the node that `call` means. Raises WireError, WrongPeer."""
    address = _with_scope(call.address, local)  # a listener of this run: it has all of the time to greet
    connection = await wire.connect(
        address, call.port, caller.key, deadline, local.address, options=options, patience_s=TRY_S
    )
    try:
        who = await connection.receive(deadline, _ANSWER_BYTES)
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        connection.close()
        raise
    if who.get("node") != call.to:
        connection.close()
        raise WrongPeer(f"node {who.get('node')!s:.20}, {who.get('name')!s:.80}, answers there")
    return connection


async def sized(caller: Caller, call: Call, local: MeshListener, path: Path) -> Path:
    """Return `path`, on which large messages stalled on their way out, with the size of packets that do pass.

    As RFC 8899 searches, with sizes that networks have; each takes a connection whose packets are no larger.
    """
    largest = path.path_mtu or _SIZES[-1]
    sizes = [size for size in _SIZES if size < largest]
    if _refused_here(call, local, largest):
        return replace(path, drops="here", stops=largest)
    first, behind = 0, len(sizes)  # all below `first` pass, and those from `behind` do not
    while first < behind and time.monotonic() < caller.deadline:
        middle = (first + behind) // 2 if first else 0
        if await _passes(caller, call, local, wire.segments_of(sizes[middle] - _HEADERS[_family(call.address)])):
            first = middle + 1
        else:
            behind = middle
    if not first:  # it is not for the size of its packets: a stream tells how slow it is
        return replace(path, outcome="ok")
    whole = _family(call.address) == 4 and await _passes(caller, call, local, _MAY_FRAGMENT)
    stops = sizes[first] if first < len(sizes) else largest
    return replace(path, passes=sizes[first - 1], stops=stops, drops="whole" if whole else "any")


async def _passes(caller: Caller, call: Call, local: MeshListener, options: wire.SocketOptions) -> bool:
    """Return whether a large message arrives there, over a connection with these options."""
    try:
        connection = await reach(caller, call, local, caller.limit(TRY_S), options)
    except (WireError, WrongPeer):
        return False
    try:
        await _send_large(connection, caller.limit(_SIZE_S))
    except WireError:
        return False
    finally:
        connection.close()
    return True


def _refused_here(call: Call, local: MeshListener, nbytes: int) -> bool:
    """Return whether this node's own kernel refuses to send a packet of `nbytes`, and sends a small one.

    A firewall in the output hook says so to the sender of a datagram (EPERM), and not to TCP. Nobody listens there.
    """
    with contextlib.suppress(OSError), socket.socket(_FAMILIES[_family(call.address)], socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind((local.address, 0))
        sock.sendto(b"", (call.address, call.port))
        try:
            sock.sendto(bytes(nbytes - _HEADERS[_family(call.address)] + 12), (call.address, call.port))
        except PermissionError:
            return True
    return False


async def _measured(caller: Caller, path: Path, connection: Wire) -> Path:
    """Measure round trips of small messages, then a large one there, then one back."""
    outcome, detail, trips = "ok", "", [float("inf")]
    try:
        await _by(caller, TRY_S, lambda limit: _round_trips(connection, trips, limit))
        await _by(caller, LARGE_S, lambda limit: _send_large(connection, limit), "stalled-out")
        await _by(caller, LARGE_S, lambda limit: _receive_large(connection, limit), "stalled-back")
    except _Stopped as error:
        outcome, detail = error.outcome, str(error)[:_DETAIL_CHARACTERS]
    kernel = tcp_info(connection)
    return replace(
        path,
        outcome=outcome,
        detail=detail,
        rtt_s=kernel.rtt_s or (trips[-1] if len(trips) > 1 else None),
        path_mtu=kernel.path_mtu,
        resent=kernel.resent,
        segments=kernel.segments,
    )


async def _by(caller: Caller, seconds: float, step: Callable[[float], Awaitable[None]], silent: str = "silent") -> None:
    """Run one step in its time. Raises _Stopped, with the outcome `silent` where no answer came."""
    limit = caller.limit(seconds)
    try:
        await step(limit)
    except WireError as error:
        outcome = caller.outcome(error, limit)
        raise _Stopped(silent if outcome == "silent" else outcome, str(error)) from None


async def _round_trips(connection: Wire, trips: list[float], limit: float) -> None:
    """Keep the shortest so far at the end of `trips`."""
    for number in range(_ECHOES):
        began = time.monotonic()
        await connection.send({"echo": number}, limit)
        if (await connection.receive(limit, _ANSWER_BYTES)).get("echo") != number:
            raise WireError("garbled", "answers something else than it was asked")
        trips.append(min(trips[-1], time.monotonic() - began))


async def _send_large(connection: Wire, limit: float) -> None:
    await connection.send({"do": "take"}, limit)
    await connection.send_filler(FILLER, limit)
    await connection.receive(limit, _ANSWER_BYTES)


async def _receive_large(connection: Wire, limit: float) -> None:
    await connection.send({"do": "give"}, limit)
    await connection.discard(CHUNK_BYTES, limit)


def _family(address: str) -> int:
    return ipaddress.ip_address(address.partition("%")[0]).version


def _with_scope(address: str, local: MeshListener) -> str:
    """Give a link-local address of the other side this node's name of the link."""
    bare = address.partition("%")[0]
    return f"{bare}%{local.interface}" if ipaddress.ip_address(bare).is_link_local and ":" in bare else bare


_PMTU, _TOTAL_RETRANS, _BYTES_ACKED, _SEGS_OUT, _MIN_RTT, _BUSY, _RWND_LIMITED = 60, 100, 120, 136, 148, 168, 176
_NBYTES = 184
_NO_RTT = 0xFFFFFFFF


class TcpInfo(Struct, frozen=True):
    """`path_mtu` in bytes; `resent` of `segments` that this side sent; the shortest round trip that the kernel saw.

    `acked_bytes` have arrived at the other side's kernel. The kernel's round trips do not wait for a process to be
    scheduled. For `waiting_s` the path alone was waited for: something was sent, and the other side had room for it.
    None: this kernel does not say.
    """

    path_mtu: int | None = None
    resent: int | None = None
    segments: int | None = None
    rtt_s: float | None = None
    acked_bytes: int | None = None
    waiting_s: float | None = None


def tcp_info(connection: Wire) -> TcpInfo:
    """Return the kernel's current view of this connection."""
    return parse(connection.option(socket.IPPROTO_TCP, socket.TCP_INFO, _NBYTES) or b"")


def parse(answer: bytes) -> TcpInfo:
    """Parse the bytes that getsockopt(TCP_INFO) returned."""
    micros, busy, full = _at(answer, _MIN_RTT), _at(answer, _BUSY, 8), _at(answer, _RWND_LIMITED, 8)
    return TcpInfo(
        path_mtu=_at(answer, _PMTU) or None,
        resent=_at(answer, _TOTAL_RETRANS),
        segments=_at(answer, _SEGS_OUT),
        rtt_s=None if micros is None or micros == _NO_RTT else max(1, micros) / 1e6,
        acked_bytes=_at(answer, _BYTES_ACKED, 8),
        waiting_s=None if busy is None or full is None else (busy - full) / 1e6,
    )


def _at(answer: bytes, offset: int, nbytes: int = 4) -> int | None:
    field = answer[offset : offset + nbytes]
    return int.from_bytes(field, sys.byteorder) if len(field) == nbytes else None
