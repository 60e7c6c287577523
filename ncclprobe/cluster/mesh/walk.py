"""Make all of one node's calls: concurrently, failed ones twice, then the streams; end by the deadline.

A call goes to a listener from the local interface of that role, checks its node, and measures what passes and how fast.

The kernel's view of a connection is read by the offsets of struct tcp_info (include/uapi/linux/tcp.h), which has only
ever grown: an offset holds for every kernel; an older one returns fewer bytes.

The rate of one stream is measured in short turns, until two agree, with no other stream at either end. A node sends one
stream at a time, and its listener queues incoming ones (:mod:`ncclprobe.cluster.mesh.listeners`), so that nodes need
not
agree on a time. A bad result of one pair does not show which end is at fault: each node streams to two others, and two
others stream to it.

A call without an answer while this process itself could not run is not evidence about the other node: it is repeated
and
does not count. Streams that were slow or lost packets are measured again without others, because the first measurement
shared the nodes' time. On the first paths of a node on which large messages stall, small packets are tried.
"""

import asyncio
import contextlib
import ipaddress
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median_high

from ncclprobe import wire
from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER, STREAM_S, WHOLE_S, Listeners
from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.facts.reach import MeshListener, Path, Paths
from ncclprobe.localise.reach import LEAST_BYTES, LEAST_GBPS, LOSSY, LOSSY_RESENT
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.values import Struct, replace
from ncclprobe.wire import Wire, WireError

TRY_S = 2.0
"""For connect, handshake and echoes. A lost SYN is sent again after one second (RFC 6298)."""

LARGE_S = 2.0
"""For 256 KiB each way: a link of 10 Mbit/s takes 0.2 s."""

_SIZE_S = 1.0
"""For 256 KiB in one direction; a healthy path takes milliseconds."""
_SMALL_PACKET = 1280
"""Bytes that every IPv6 path, and every tunnel in use, carries (RFC 8200)."""
_LARGE_PACKET = 1500
_HEADERS = {4: 40, 6: 60}  # of IP and TCP
_ECHOES = 5
_ANSWER_BYTES = 1024
_DETAIL_CHARACTERS = 160


class Caller(Struct, frozen=True):
    """The run's key, and the deadline of all calls."""

    key: bytes
    deadline: float

    def limit(self, seconds: float) -> float:
        """Return the deadline of a step that may take `seconds`."""
        return min(self.deadline, time.monotonic() + seconds)

    def outcome(self, error: WireError, limit: float) -> str:
        """Return how a path ended; ``late`` if this run's own time ended, which never blames the other side."""
        return "late" if error.kind in ("filtered", "silent") and limit >= self.deadline else error.kind


class WrongPeer(NcclprobeError):
    """Another node of this run answers at the address."""


class _Stopped(NcclprobeError):
    """The connection ended: `outcome` is the path's outcome, the message describes it."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


async def walk_path(caller: Caller, call: Call, local: MeshListener) -> Path:
    """Test one path, once. A failure is an outcome, never an error."""
    path = untried(call, local)
    if time.monotonic() >= caller.deadline:
        return path
    path = replace(path, tries=1, detail="")
    if family_of(local.address) != family_of(call.address):
        return replace(path, outcome="unreachable", detail=f"from {local.address}: IPv4 and IPv6 cannot connect")
    limit = caller.limit(TRY_S)
    try:
        connection = await reach(caller, call, local, limit)
    except WrongPeer as error:
        return replace(path, outcome="wrong-peer", detail=str(error))
    except WireError as error:
        return replace(path, outcome=caller.outcome(error, limit), detail=str(error)[:_DETAIL_CHARACTERS])
    try:
        return await _measure(caller, path, connection)
    finally:
        connection.close()


def untried(call: Call, local: MeshListener) -> Path:
    """Return the row of a path that was not tried for lack of time."""
    return Path(call.to, call.role, local.interface, local.address, call.address, "late", "not tested: no time left", 0)


async def reach(
    caller: Caller, call: Call, local: MeshListener, deadline: float, options: wire.SocketOptions = ()
) -> Wire:
    """Connect to the node of `call`. Raises WireError, WrongPeer."""
    address = add_scope(call.address, local)  # a listener of this run: it has all of the time to greet
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
    """Return `path`, whose large outgoing messages stalled, with the packet size that passes.

    If small packets stall as well, size is not the reason: a stream shows how slow it is.
    """
    if _refused_here(call, local, path.path_mtu or _LARGE_PACKET):
        return replace(path, refused=True)
    if await _passes(caller, call, local, wire.segments_of(_SMALL_PACKET - _HEADERS[family_of(call.address)])):
        return replace(path, passes=_SMALL_PACKET)
    return replace(path, outcome="ok")


async def _passes(caller: Caller, call: Call, local: MeshListener, options: wire.SocketOptions) -> bool:
    """Return whether a large message arrives over a connection with these options."""
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
    """Return whether this node's own kernel refuses to send a packet of `nbytes`, but sends a small one.

    A firewall in the output hook reports it to the sender of a datagram (EPERM), and not to TCP, because it sees those
    packets before the card segments them. No process listens at the destination.
    """
    family = family_of(call.address)
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind((local.address, 0))
        sock.sendto(b"", (call.address, call.port))
        try:
            sock.sendto(bytes(nbytes - _HEADERS[family]), (call.address, call.port))
        except PermissionError:
            return True
    return False


async def _measure(caller: Caller, path: Path, connection: Wire) -> Path:
    """Measure round trips of small messages, then a large message out, then one back."""
    outcome, detail, trips = "ok", "", [float("inf")]
    try:
        await _run_step(caller, TRY_S, lambda limit: _round_trips(connection, trips, limit))
        await _run_step(caller, LARGE_S, lambda limit: _send_large(connection, limit), "stalled-out")
        await _run_step(caller, LARGE_S, lambda limit: _receive_large(connection, limit), "stalled-back")
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


async def _run_step(
    caller: Caller, seconds: float, step: Callable[[float], Awaitable[None]], silent: str = "silent"
) -> None:
    """Run one step within `seconds`. Raises _Stopped, with the outcome `silent` if no answer arrived."""
    limit = caller.limit(seconds)
    try:
        await step(limit)
    except WireError as error:
        outcome = caller.outcome(error, limit)
        raise _Stopped(silent if outcome == "silent" else outcome, str(error)) from None


async def _round_trips(connection: Wire, trips: list[float], limit: float) -> None:
    """Measure round trips; the last of `trips` is the shortest so far."""
    for number in range(_ECHOES):
        began = time.monotonic()
        await connection.send({"echo": number}, limit)
        if (await connection.receive(limit, _ANSWER_BYTES)).get("echo") != number:
            raise WireError("garbled", "does not answer the question it was sent")
        trips.append(min(trips[-1], time.monotonic() - began))


async def _send_large(connection: Wire, limit: float) -> None:
    await connection.send({"do": "take"}, limit)
    await connection.send_filler(FILLER, limit)
    await connection.receive(limit, _ANSWER_BYTES)


async def _receive_large(connection: Wire, limit: float) -> None:
    await connection.send({"do": "give"}, limit)
    await connection.discard(CHUNK_BYTES, limit)


def family_of(address: str) -> int:
    """Return 4 or 6, by the address; a scope after "%" does not count."""
    return ipaddress.ip_address(address.partition("%")[0]).version


def add_scope(address: str, local: MeshListener) -> str:
    """Scope the other side's link-local address to this node's interface."""
    bare = address.partition("%")[0]
    return f"{bare}%{local.interface}" if ipaddress.ip_address(bare).is_link_local and ":" in bare else bare


_PMTU, _TOTAL_RETRANS, _BYTES_ACKED, _SEGS_OUT, _MIN_RTT, _BUSY, _RWND_LIMITED = 60, 100, 120, 136, 148, 168, 176
_NBYTES = 184
_NO_RTT = 0xFFFFFFFF


class TcpInfo(Struct, frozen=True):
    """`path_mtu` in bytes; `resent` of `segments` sent by this side; the kernel's shortest round trip.

    `acked_bytes` have arrived at the other side's kernel. The kernel's round trips do not wait for a process to be
    scheduled. `waiting_s`: time spent waiting for the path alone, with data in flight and room at the other side. None:
    not reported by this kernel.
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
    micros, busy, full = (
        _read_number_at(answer, _MIN_RTT),
        _read_number_at(answer, _BUSY, 8),
        _read_number_at(answer, _RWND_LIMITED, 8),
    )
    return TcpInfo(
        path_mtu=_read_number_at(answer, _PMTU) or None,
        resent=_read_number_at(answer, _TOTAL_RETRANS),
        segments=_read_number_at(answer, _SEGS_OUT),
        rtt_s=None if micros is None or micros == _NO_RTT else max(1, micros) / 1e6,
        acked_bytes=_read_number_at(answer, _BYTES_ACKED, 8),
        waiting_s=None if busy is None or full is None else (busy - full) / 1e6,
    )


def _read_number_at(answer: bytes, offset: int, nbytes: int = 4) -> int | None:
    field = answer[offset : offset + nbytes]
    return int.from_bytes(field, sys.byteorder) if len(field) == nbytes else None


PARTNERS = 2
STREAM_BYTES = 8 << 20
"""Maximum bytes of a stream of at most STREAM_SECONDS: 10 Gbit/s need 7 ms, 100 Mbit/s fill the time."""

STREAM_SECONDS = 0.25
MAX_STREAMS = 5
AGREE = 0.8
"""Two streams whose rates are within this factor are trusted; a scheduler's pause slows one of them."""

_WAITING = 0.8  # of the time, as the kernel counts it: else a process was too busy to send or to take
_QUEUE_S = 5.0  # for a turn: others may stream to the same node, each for as long as a listener lets them


class Rate(Struct, frozen=True):
    """Rate of the best stream, in 1e9 bit/s of payload, and the retransmitted TCP segments of all streams."""

    rate_gbps: float
    resent: int | None
    segments: int | None


class _TooSlow(NcclprobeError):
    """A stream did not end in time, nor did its connection; `rate_gbps` is what was acknowledged."""

    def __init__(self, rate_gbps: float) -> None:
        super().__init__(f"{rate_gbps:g} Gbit/s")
        self.rate_gbps = rate_gbps


async def stream_to_neighbours(
    caller: Caller, calls: list[Call], listeners: Mapping[str, MeshListener], whole: bool = False
) -> dict[Call, Rate]:
    """Return the rates of the first PARTNERS of `calls` per role that carry a stream; `whole`: all of it."""
    measured: dict[Call, Rate] = {}
    for call in calls:
        done = sum(call.role == other.role for other in measured)
        if done < PARTNERS and time.monotonic() < caller.deadline:
            rate = await _stream(caller, call, listeners[call.role], whole)
            if rate is not None:
                measured[call] = rate
                whole = whole and rate.rate_gbps >= LEAST_GBPS  # once shown, a short look is enough for the others
    return measured


async def _stream(caller: Caller, call: Call, local: MeshListener, whole: bool) -> Rate | None:
    """Stream to one node; None without a result: whether the node answers is judged elsewhere."""
    try:
        connection = await reach(caller, call, local, caller.limit(TRY_S))
    except (WireError, WrongPeer):
        return None
    rates: list[float] = []
    try:
        most = 2 if whole else MAX_STREAMS
        while len(rates) < 2 or (len(rates) < most and not agree(rates)):
            rates.append(await _send_stream(connection, caller, whole))
    except WireError:
        pass
    except _TooSlow as error:
        rates.append(error.rate_gbps)
    finally:
        kernel = tcp_info(connection)
        connection.close()
    return Rate(max(rates), kernel.resent, kernel.segments) if rates else None


def agree(rates: list[float]) -> bool:
    """Return whether the two best rates are near each other."""
    *_, second, best = sorted(rates)
    return second >= AGREE * best


async def _send_stream(connection: Wire, caller: Caller, whole: bool) -> float:
    """Send one stream, timed by the receiver; timed here if it did not all arrive in time."""
    seconds = WHOLE_S if whole else STREAM_S
    await connection.send({"do": "stream", "whole": whole}, caller.limit(TRY_S))
    await connection.receive(caller.limit(_QUEUE_S + PARTNERS * WHOLE_S * whole), _ANSWER_BYTES)
    limit, began, before = caller.limit(seconds), time.monotonic(), tcp_info(connection)
    try:
        return await _poured(connection, limit, began, LEAST_BYTES if whole else 0)
    except WireError as error:
        after, took_s = tcp_info(connection), time.monotonic() - began
        if error.kind != "silent" or limit >= caller.deadline or not limited_by_path(before, after, took_s, whole):
            raise
        raise _TooSlow(((after.acked_bytes or 0) - (before.acked_bytes or 0)) * 8 / took_s / 1e9) from None


def limited_by_path(before: TcpInfo, after: TcpInfo, took_s: float, whole: bool) -> bool:
    """Return whether the path limited the stream: how much arrived is known, and neither process was busy."""
    if before.acked_bytes is None or after.acked_bytes is None:
        return False
    if not whole:
        return after.acked_bytes > before.acked_bytes
    return after.waiting_s is not None and after.waiting_s - (before.waiting_s or 0) >= _WAITING * took_s


async def _poured(connection: Wire, limit: float, began: float, least: int) -> float:
    nbytes = 0
    while nbytes < least or (nbytes < STREAM_BYTES and time.monotonic() - began < STREAM_SECONDS):
        await connection.send({"do": "take"}, limit)
        await connection.send_filler(FILLER, limit)
        nbytes += CHUNK_BYTES
    await connection.send({"do": "done"}, limit)
    answer = await connection.receive(limit, _ANSWER_BYTES)
    seconds = answer.get("seconds")
    if answer.get("nbytes") != nbytes or not isinstance(seconds, float) or seconds <= 0:
        raise WireError("garbled", "received a different number of bytes than were sent")
    return nbytes * 8 / seconds / 1e9


AT_ONCE = 16
"""Concurrent calls of one node (docs/threat-model.md)."""


_TICK_S = 0.1
_OWN_LATE_S = 0.5  # of the two seconds of a try
_UNANSWERED = ("filtered", "silent", "stalled-out", "stalled-back")


class _OwnLateness:
    """How long this process's event loop could not run when it should have: `seconds`, since the start."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.seconds += max(0.0, time.monotonic() - began - _TICK_S)


async def walk(plan: NodePlan, listeners: Listeners, deadline: float) -> Paths:
    """Return how node `plan.me` reaches the others by `deadline` (time.monotonic()): one row per call of the plan."""
    caller = Caller(listeners.key, deadline)
    local = {listener.role: listener for listener in listeners.addresses}
    calls = [call for call in plan.calls if call.role in local]
    own = _OwnLateness()
    measuring = asyncio.ensure_future(own.measure())
    try:
        rows = await _make_calls(caller, calls, local, own)
        failed = [call for call in calls if rows[call].outcome != "ok"]
        again = [] if plan.thorough else failed
        for call, row in (await _make_calls(caller, again, local, own)).items():
            if row.tries and not (row.outcome == "late" and rows[call].tries):
                rows[call] = replace(row, tries=rows[call].tries + row.tries)
        if plan.thorough:
            await _try_small_packets(caller, rows, local)
    finally:
        measuring.cancel()
    open_calls = [call for call in plan.rates if call in rows and rows[call].outcome == "ok"]
    for call, rate in (await stream_to_neighbours(caller, open_calls, local, plan.thorough)).items():
        rows[call] = replace(rows[call], rate_gbps=rate.rate_gbps, resent=rate.resent, segments=rate.segments)
    unopened = dict(listeners.unopened)
    return Paths(plan.me, plan.names, listeners.addresses, tuple(rows.values()), unopened, listeners.floods)


async def _try_small_packets(caller: Caller, rows: dict[Call, Path], local: Mapping[str, MeshListener]) -> None:
    """Try small packets on the outgoing paths whose large messages stall."""
    stalled = [call for call, row in rows.items() if row.outcome == "stalled-out"]
    found = [sized(caller, call, local[call.role], rows[call]) for call in stalled]
    rows.update(zip(stalled, await asyncio.gather(*found), strict=True))


async def _make_calls(
    caller: Caller, calls: list[Call], local: Mapping[str, MeshListener], own: _OwnLateness
) -> dict[Call, Path]:
    """Make each of `calls` once, AT_ONCE at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Call) -> Path:
        async with places:
            while True:
                late_s = own.seconds
                path = await walk_path(caller, call, local[call.role])
                if path.outcome not in _UNANSWERED or own.seconds < late_s + _OWN_LATE_S:
                    return path

    if time.monotonic() >= caller.deadline:
        return {call: untried(call, local[call.role]) for call in calls}
    return dict(zip(calls, await asyncio.gather(*map(one, calls)), strict=True))


_SIZED = 2
DOUBTFUL = 0.5
"""Share of the usual rate. No path is blamed above SLOW, so that a second look costs little and decides."""


def doubtful(plans: Mapping[int, NodePlan], seen: Mapping[int, Paths]) -> dict[int, NodePlan]:
    """Return which of `plans` each node should measure again, by rank, without nodes that have no doubtful path.

    A path that lost packets before it carried a stream gets one: a few hundred packets are too few to judge.
    """
    retests: dict[int, NodePlan] = {}
    usual = _median_rates(seen)
    for rank, paths in seen.items():
        doubtful_paths = {(row.to, row.role) for row in paths.rows if _is_doubtful(row, usual.get(row.role, 0.0))}
        stalled = [(row.to, row.role) for row in paths.rows if row.outcome == "stalled-out"][:_SIZED]
        calls = tuple(call for call in plans[rank].calls if (call.to, call.role) in {*doubtful_paths, *stalled})
        if calls:
            retests[rank] = replace(plans[rank], calls=calls, rates=calls, thorough=True)
    return retests


def merged(first: Paths, second: Paths) -> Paths:
    """Return `first` with the better of two measurements of each path."""
    better = {(row.to, row.role): row for row in second.rows if row.outcome == "ok" and row.rate_gbps is not None}
    looked = {(row.to, row.role): row for row in second.rows}
    rows = tuple(
        _better(_merge_stalled(row, looked.get((row.to, row.role))), better.get((row.to, row.role)))
        for row in first.rows
    )
    return replace(first, rows=rows, floods=second.floods or first.floods)


def _merge_stalled(row: Path, retest: Path | None) -> Path:
    """Return a path whose large messages stalled with the second look's result: slow, or stalled for packet size."""
    if retest is None or row.outcome != "stalled-out":
        return row
    if retest.outcome == "ok":
        known = retest.rate_gbps is not None
        return replace(row, outcome="ok" if known else "late", detail="large messages are slow", streams=2)
    tries = row.tries + retest.tries
    return replace(row, tries=tries, passes=retest.passes, refused=retest.refused)


def _better(row: Path, retest: Path | None) -> Path:
    if retest is None:
        return row
    rate = max(row.rate_gbps or 0.0, retest.rate_gbps or 0.0)
    counted = min((row, retest), key=_share)
    return replace(row, rate_gbps=rate, resent=counted.resent, segments=counted.segments, streams=2)


def _median_rates(seen: Mapping[int, Paths]) -> dict[str, float]:
    """Return the median over nodes of each sender's best rate, by role."""
    best: dict[str, dict[int, float]] = {}
    for rank, paths in seen.items():
        for row in paths.rows:
            mine = best.setdefault(row.role, {})
            mine[rank] = max(mine.get(rank, 0.0), row.rate_gbps or 0.0)
    return {role: median_high(rates.values()) for role, rates in best.items()}


def _is_doubtful(row: Path, usual: float) -> bool:
    slow = row.rate_gbps is not None and row.rate_gbps < DOUBTFUL * usual
    return row.outcome == "ok" and (
        slow
        or (row.rate_gbps is not None and row.rate_gbps < 2 * LEAST_GBPS)
        or ((row.resent or 0) >= LOSSY_RESENT and _share(row) > LOSSY / 2)
    )


def _share(row: Path) -> float:
    return (row.resent or 0) / (row.segments or 1)
