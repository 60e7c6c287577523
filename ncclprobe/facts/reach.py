"""How this node got through to rank 0 of its job, or how far it came: what a run measured, not what a machine knows."""

import json
from typing import Any, TypeVar

import msgspec

from ncclprobe.errors import ParseError
from ncclprobe.host import SAMPLE, Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

T = TypeVar("T")


class Reach(Struct, frozen=True):
    """The way to rank 0, as it was at the last of `tries` in `seconds`.

    `outcome` is ``ok``, or where it ended: ``resolve``, ``route``, or a kind of :class:`~ncclprobe.wire.WireError`:
    refused, filtered, unreachable, address, denied, reset, silent, foreign, stranger … `detail` says it in words.
    `address` is the one of `addresses` that was called, `source` this side's and `interface` the one that has it.
    `seen` are all outcomes, in the order in which they came first: a port that was refused and is open now, say.
    """

    target: str
    port: int
    outcome: str
    detail: str = ""
    addresses: tuple[str, ...] = ()
    address: str = ""
    source: str = ""
    interface: str = ""
    tries: int = 0
    seconds: float = 0.0
    resolve_s: float = 0.0
    seen: tuple[str, ...] = ()


class ClockOffset(Struct, frozen=True):
    """How far this node's clock is ahead of rank 0's, in seconds, and the round trip in which that was seen.

    The error is at most half the round trip: the shortest of several was taken.
    """

    offset_s: float
    rtt_s: float


class Trouble(Struct, frozen=True):
    """A connection to rank 0 from which no node came: who called, what was wrong with it, and at which node rank."""

    peer: str
    kind: str
    detail: str
    node_rank: int | None = None


class Flood(Struct, frozen=True):
    """An address from which more callers came than a listener has room for: so many `connections` were hung up on."""

    address: str
    connections: int


class Proof(Struct, frozen=True):
    """How the nodes of this run prove to each other that they belong to it: by `origin`, the origin of their secret.

    `proved`: they have one. `trusted`: they have none, and --trust-network says that none is needed.
    """

    origin: str
    proved: bool
    trusted: bool = False


class Gathering(Struct, frozen=True):
    """What rank 0 saw while it waited for the others: `waited_s` in all, and the connections that came to nothing.

    `allowed_s`: how long it was to wait, had nothing else taken time.
    `came` are the node ranks that rank 0 let in; `lost` those of them that ended, fell silent or made no sense before
    the run was over. `floods` are the addresses that rank 0 had to hang up on to have room.
    """

    expected: int
    waited_s: float
    troubles: tuple[Trouble, ...] = ()
    lost: tuple[Trouble, ...] = ()
    came: tuple[int, ...] = ()
    floods: tuple[Flood, ...] = ()
    allowed_s: float = 0.0


class RollCall(Struct, frozen=True):
    """That the rank which speaks for this node waited for its node's other ranks: for `expected` of them."""

    expected: int


@collector
def roll_call(host: Host) -> RollCall:
    """Read whether the other ranks of this node were waited for."""
    return sample(host, "roll", RollCall)


@collector
def reach(host: Host) -> Reach:
    """Read how this node reached rank 0."""
    return sample(host, "reach", Reach)


@collector
def clock_offset(host: Host) -> ClockOffset:
    """Read this node's clock against that of rank 0."""
    return sample(host, "clock", ClockOffset)


@collector
def gathering(host: Host) -> Gathering:
    """Read whom rank 0 waited for; on rank 0's node alone."""
    return sample(host, "gathering", Gathering)


@collector
def proof(host: Host) -> Proof:
    """Read how the nodes of this run prove to each other who they are; on rank 0's node, and on one that was alone."""
    return sample(host, "proof", Proof)


def sample(host: Host, name: str, kind: type[T]) -> T:
    """Return what a run measured, as `kind`. It may come from another node: nothing in it is believed to be well
    formed.
    """
    text = host.ask(SAMPLE, name)

    try:
        reported: Any = json.loads(text)
        return msgspec.convert(reported, kind, str_keys=True)
    except (ValueError, msgspec.ValidationError) as error:
        raise ParseError(f"sample {name}: {error}") from None
