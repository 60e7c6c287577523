"""Measure what one stream carries to a neighbour: short, repeated until two agree, and alone at both of its ends.

A node sends one stream at a time, because it sends one after the other, and receives one at a time, because its
listener queues the others (:mod:`ncclprobe.cluster.mesh.listeners`). So no two nodes need to agree on when. A bad
result of one pair cannot say which end it is: each node streams to two others, and two others stream to it.
"""

import time
from collections.abc import Mapping

from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER, STREAM_S, WHOLE_S
from ncclprobe.cluster.mesh.plan import Call
from ncclprobe.cluster.mesh.probe import TRY_S, Caller, TcpInfo, WrongPeer, reach, tcp_info
from ncclprobe.errors import NcclprobeError
from ncclprobe.facts.reach import MeshListener
from ncclprobe.localise.reach import LEAST_BYTES, LEAST_GBPS
from ncclprobe.model.values import Struct
from ncclprobe.wire import Wire, WireError

PARTNERS = 2
STREAM_BYTES = 8 << 20
"""At most, in a stream of at most STREAM_SECONDS: 10 Gbit/s need 7 ms, 100 Mbit/s fill the time."""

STREAM_SECONDS = 0.25
MAX_STREAMS = 5
AGREE = 0.8
"""Two streams whose rates are within this factor are trusted; a scheduler's pause makes one of them slower."""

_WAITING = 0.8  # of the time, as the kernel counts it: else a process was too busy to send or to take
_ANSWER_BYTES = 1024
_QUEUE_S = 5.0  # for a turn: others may stream to the same node, each for as long as a listener lets them


class Rate(Struct, frozen=True):
    """What the best stream carried, in 1e9 bit/s of payload, and the retransmitted TCP segments of all streams."""

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
    """Return the rates of the first PARTNERS of `calls` per role that carry a stream; `whole`: all of it must."""
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
    """Stream to one node; return None without a result: whether the node answers is judged elsewhere."""
    try:
        connection = await reach(caller, call, local, caller.limit(TRY_S))
    except (WireError, WrongPeer):
        return None
    rates: list[float] = []
    try:
        most = 2 if whole else MAX_STREAMS
        while len(rates) < 2 or (len(rates) < most and not _agree(rates)):
            rates.append(await _once(connection, caller, whole))
    except WireError:
        pass
    except _TooSlow as error:
        rates.append(error.rate_gbps)
    finally:
        kernel = tcp_info(connection)
        connection.close()
    return Rate(max(rates), kernel.resent, kernel.segments) if rates else None


def _agree(rates: list[float]) -> bool:
    *_, second, best = sorted(rates)
    return second >= AGREE * best


async def _once(connection: Wire, caller: Caller, whole: bool) -> float:
    """Send one stream, timed where it arrives; timed here where it did not all arrive in time."""
    seconds = WHOLE_S if whole else STREAM_S
    await connection.send({"do": "stream", "whole": whole}, caller.limit(TRY_S))
    await connection.receive(caller.limit(_QUEUE_S + PARTNERS * WHOLE_S * whole), _ANSWER_BYTES)
    limit, began, before = caller.limit(seconds), time.monotonic(), tcp_info(connection)
    try:
        return await _poured(connection, limit, began, LEAST_BYTES if whole else 0)
    except WireError as error:
        after, took_s = tcp_info(connection), time.monotonic() - began
        if error.kind != "silent" or limit >= caller.deadline or not _is_the_path(before, after, took_s, whole):
            raise
        raise _TooSlow(((after.acked_bytes or 0) - (before.acked_bytes or 0)) * 8 / took_s / 1e9) from None


def _is_the_path(before: TcpInfo, after: TcpInfo, took_s: float, whole: bool) -> bool:
    """Return whether it is known how much arrived, and that it was not for a busy process at either end."""
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
        raise WireError("garbled", "counted something else than was sent")
    return nbytes * 8 / seconds / 1e9
