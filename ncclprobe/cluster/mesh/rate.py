"""What one stream carries to a neighbour: short, repeated until two agree, and alone at both of its ends.

A node sends one stream at a time, because it sends one after the other, and receives one at a time, because its door
lets the others wait (:mod:`ncclprobe.cluster.mesh.listeners`). So no two nodes need to agree on when. A bad result of
one pair cannot say which end it is: each node streams to two others, and two others stream to it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER, STREAM_S
from ncclprobe.cluster.mesh.plan import Call
from ncclprobe.cluster.mesh.probe import TRY_S, Caller, Impostor, reach
from ncclprobe.cluster.mesh.tcp import tcp_info
from ncclprobe.errors import NcclprobeError
from ncclprobe.facts.paths import Door
from ncclprobe.wire import Wire, WireError

PARTNERS = 2
STREAM_BYTES = 8 << 20
"""At most, in a stream of at most STREAM_SECONDS: 10 Gbit/s need 7 ms, 100 Mbit/s fill the time."""

STREAM_SECONDS = 0.25
MAX_STREAMS = 5
AGREE = 0.8
"""Two streams whose rates are within this factor are believed; a scheduler's pause makes one of them slower."""

_ANSWER_BYTES = 1024
_QUEUE_S = 5.0  # for a turn: others may stream to the same node, each for as long as a door lets them


@dataclass(frozen=True, slots=True)
class Rate:
    """What the best stream carried, in 1e9 bit/s of payload, and the TCP segments sent again, of all streams'."""

    rate_gbps: float
    resent: int | None
    segments: int | None


class _TooSlow(NcclprobeError):
    """A stream did not end in its time, and the conversation with it; `rate_gbps` is what was acknowledged."""

    def __init__(self, rate_gbps: float) -> None:
        super().__init__(f"{rate_gbps:g} Gbit/s")
        self.rate_gbps = rate_gbps


async def stream_to_neighbours(caller: Caller, calls: list[Call], doors: Mapping[str, Door]) -> dict[Call, Rate]:
    """The rates of the first PARTNERS of `calls` on each road that carry a stream."""
    measured: dict[Call, Rate] = {}
    for call in calls:
        done = sum(call.road == other.road for other in measured)
        if done < PARTNERS and time.monotonic() < caller.deadline:
            rate = await _stream(caller, call, doors[call.road])
            if rate is not None:
                measured[call] = rate
    return measured


async def _stream(caller: Caller, call: Call, own: Door) -> Rate | None:
    """To one node; None where it did not come to a result: that the node answers is judged elsewhere."""
    try:
        talk = await reach(caller, call, own, caller.limit(TRY_S))
    except (WireError, Impostor):
        return None
    rates: list[float] = []
    try:
        while len(rates) < 2 or (len(rates) < MAX_STREAMS and not _agree(rates)):
            rates.append(await _once(talk, caller))
    except WireError:
        pass
    except _TooSlow as error:
        rates.append(error.rate_gbps)
    finally:
        kernel = tcp_info(talk)
        talk.close()
    return Rate(max(rates), kernel.resent, kernel.segments) if rates else None


def _agree(rates: list[float]) -> bool:
    *_, second, best = sorted(rates)
    return second >= AGREE * best


async def _once(talk: Wire, caller: Caller) -> float:
    """One stream, timed where it arrives; timed here where it did not all arrive in STREAM_S."""
    await talk.send({"do": "stream"}, caller.limit(TRY_S))
    await talk.receive(caller.limit(_QUEUE_S), _ANSWER_BYTES)
    limit, began, before = caller.limit(STREAM_S), time.monotonic(), tcp_info(talk).acked_bytes
    try:
        return await _poured(talk, limit, began)
    except WireError as error:
        after = tcp_info(talk).acked_bytes
        unknown = error.kind != "silent" or limit >= caller.deadline
        if unknown or before is None or after is None or after <= before:
            raise
        raise _TooSlow((after - before) * 8 / (time.monotonic() - began) / 1e9) from None


async def _poured(talk: Wire, limit: float, began: float) -> float:
    nbytes = 0
    while nbytes < STREAM_BYTES and time.monotonic() - began < STREAM_SECONDS:
        await talk.send({"do": "take"}, limit)
        await talk.pour(FILLER, limit)
        nbytes += CHUNK_BYTES
    await talk.send({"do": "done"}, limit)
    said = await talk.receive(limit, _ANSWER_BYTES)
    seconds = said.get("seconds")
    if said.get("nbytes") != nbytes or not isinstance(seconds, float) or seconds <= 0:
        raise WireError("garbled", "counted something else than was sent")
    return nbytes * 8 / seconds / 1e9
