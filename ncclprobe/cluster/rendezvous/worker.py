"""Run the side of every node but rank 0's: send the capture, try the plan, leave when told."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from ncclprobe import bounds
from ncclprobe.cluster.rails.messages import RailsOrder
from ncclprobe.cluster.rendezvous.messages import CHUNK_CHARS, DataOrder, Hello, Leave, parse
from ncclprobe.facts.reach import ClockOffset
from ncclprobe.wire import Wire, WireError

_PINGS = 8
_GOODBYE_S = 0.2


class Worker:
    """One node's connection to rank 0, over `wire`. Every method raises WireError where rank 0 is lost or late."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def join(self, hello: Hello, capture: str, deadline: float) -> None:
        """State this node's identity and hand over `capture`. Raises Refused where rank 0 refuses it."""
        listeners = list(hello.listeners)
        fields = {"id": hello.id, "node_rank": hello.node_rank, "name": hello.name, "listeners": listeners}
        await self._wire.send({"hello": fields}, deadline)
        await self._expect("go", bool, deadline)
        for at in range(0, max(1, len(capture)), CHUNK_CHARS):
            more = at + CHUNK_CHARS < len(capture)
            await self._wire.send({"capture": capture[at : at + CHUNK_CHARS], "more": more}, deadline)
        await self._expect("welcome", bool, deadline)

    async def clock(self, deadline: float) -> ClockOffset:
        """Measure this node's clock against rank 0's: of several round trips take the shortest, at its middle."""
        await self._ping(0, deadline)  # the first is slow: caches, and a coordinator with others to welcome
        best = min([await self._ping(number, deadline) for number in range(1, _PINGS)], key=lambda seen: seen.rtt_s)
        await self._wire.send({"ready": True}, deadline)
        return best

    async def _ping(self, number: int, deadline: float) -> ClockOffset:
        wall_s, started = time.time(), time.monotonic()
        await self._wire.send({"ping": number}, deadline)
        theirs_s = await self._expect("wall_s", float, deadline)
        rtt_s = time.monotonic() - started
        return ClockOffset(offset_s=wall_s + rtt_s / 2 - theirs_s, rtt_s=rtt_s)

    async def next_instruction(self, deadline: float) -> bytes | dict[str, Any] | DataOrder | RailsOrder | Leave:
        """Return what this node is to do next: listen to who proves this key, probe by a plan, write, try rails, or
        leave.
        """
        message = await self._wire.receive(deadline, bounds.PLAN_BYTES)
        if "listen" in message:
            return self._key(parse(message, "listen", str))
        if "data" in message:
            return parse(message, "data", DataOrder)
        if "rails" in message:
            return parse(message, "rails", RailsOrder)
        return parse(message, "plan", dict[str, Any]) if "plan" in message else parse(message, "leave", Leave)

    def _key(self, sealed: str) -> bytes:
        try:
            return self._wire.seal(bytes.fromhex(sealed))
        except ValueError:
            raise WireError("garbled", "sent a key that is none") from None

    async def listening(self, deadline: float) -> None:
        """Say that this node listens."""
        await self._wire.send({"listening": True}, deadline)

    async def report(self, samples: Mapping[str, Any], deadline: float) -> None:
        """Send the measured samples, by name."""
        await self._wire.send({"samples": dict(samples)}, deadline)

    async def _expect(self, key: str, kind: Any, deadline: float) -> Any:
        return parse(await self._wire.receive(deadline, bounds.HELLO_BYTES), key, kind)

    async def give_up(self) -> None:
        """Say that this node lives, and leaves because rank 0 did not answer in time: a node that died says nothing."""
        with contextlib.suppress(WireError):
            await self._wire.send({"late": True}, time.monotonic() + _GOODBYE_S)

    def close(self) -> None:
        """Hang up."""
        self._wire.close()
