"""How this node reached rank 0 of its job, or how far it got: a run's measurement, not a machine's fact.

The other nodes that this one could reach, on each of its interfaces, and how well, as a run measured it.

A node's view of its rails: its RDMA ports, each tried with one of another node as NCCL would connect the two.
"""

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from ncclprobe.host import SAMPLE, Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError
from ncclprobe.model.rails import Bytes, RailOutcome, RailPort
from ncclprobe.model.registry import Collector
from ncclprobe.model.values import Struct, field

T = TypeVar("T")


def sample(host: Host, name: str, kind: type[T]) -> T:
    """Return what a run measured, as `kind`. It may come from another node: nothing is believed to be well formed."""
    text = host.ask(SAMPLE, name)
    try:
        reported: Any = json.loads(text)
        return msgspec.convert(reported, kind, str_keys=True)
    except (ValueError, msgspec.ValidationError) as error:
        raise ParseError(f"sample {name}: {error}") from None


def collector_of(fact: type, run: Callable[[Host], Any]) -> Collector:
    """Return the collector of `fact` that `run` is, under the name by which `ncclprobe explain` calls it."""
    run.__name__ = re.sub(r"\B(?=[A-Z])", "_", fact.__name__).lower()
    return Collector(run, fact)


def _sample(fact: type, name: str) -> Collector:
    return collector_of(fact, lambda host: sample(host, name, fact))


class Reach(Struct, frozen=True):
    """The way to rank 0, as it was at the last of `tries` in `seconds`.

    `outcome` is ``ok``, or the step at which it failed: ``resolve``, ``route``, or a kind of
    :class:`~ncclprobe.wire.WireError`: refused, filtered, unreachable, address, denied, reset, silent, foreign,
    stranger … `detail` is the description. `address` is the one of `addresses` that was called, `source` this side's
    and `interface` the one that has it. `seen` are all outcomes, in order of first appearance: a port that was refused
    and is open now, say.
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
    seen: tuple[str, ...] = ()


reach = _sample(Reach, "reach")


class ClockOffset(Struct, frozen=True):
    """How far this node's clock is ahead of rank 0's, in seconds, and the round trip of that measurement.

    The error is at most half the round trip: the shortest of several was taken.
    """

    offset_s: float
    rtt_s: float


clock_offset = _sample(ClockOffset, "clock")


class Trouble(Struct, frozen=True):
    """A connection to rank 0 that no node completed: the caller, what was wrong with it, and its node rank."""

    peer: str
    kind: str
    detail: str
    node_rank: int | None = None


class Flood(Struct, frozen=True):
    """An address with more callers than a listener has room for; so many `connections` were closed."""

    address: str
    connections: int


class Proof(Struct, frozen=True):
    """How the nodes of this run prove to each other that they belong to it: by `origin`, the origin of their secret.

    `proved`: they have one. `trusted`: they have none, and --trust-network waives it.
    """

    origin: str
    proved: bool
    trusted: bool = False


proof = _sample(Proof, "proof")


class Gathering(Struct, frozen=True):
    """Rank 0's wait for the others: `waited_s` in all, and the connections that failed.

    `allowed_s`: how long it was to wait, had no other work taken time.
    `came` are the node ranks that rank 0 admitted; `lost` those of them that ended, fell silent or made no sense before
    the run was over. `floods` are the addresses that rank 0 disconnected to make room.
    """

    expected: int
    waited_s: float
    troubles: tuple[Trouble, ...] = ()
    lost: tuple[Trouble, ...] = ()
    came: tuple[int, ...] = ()
    floods: tuple[Flood, ...] = ()
    allowed_s: float = 0.0


gathering = _sample(Gathering, "gathering")


class RollCall(Struct, frozen=True):
    """That the rank which speaks for this node waited for its node's other ranks: for `expected` of them."""

    expected: int


roll_call = _sample(RollCall, "roll")


class HostFailure(Struct, frozen=True):
    """A host of --hosts that takes no part, in the `words` of ssh or of that host.

    `kind`: ``ssh`` did not connect, ``absent``: ncclprobe did not start, ``silent``: no answer in time, ``version``:
    another version, ``lost``: it ended before it reported.
    """

    host: str
    kind: str
    words: str


class StartedHosts(Struct, frozen=True):
    """The hosts that ncclprobe was to be started on over ssh: so many, and those that take no part."""

    asked: int
    failed: tuple[HostFailure, ...] = ()


started_hosts = _sample(StartedHosts, "hosts")


class MeshListener(NamedTuple):
    """A listener of a node. `role`: ``nccl0`` is the first interface that NCCL would use; ``gloo0`` …; ``default``."""

    role: str
    interface: str
    address: str
    port: int


OUTCOMES = frozenset(
    {
        *("ok", "wrong-peer", "stalled-out", "stalled-back", "late", "refused", "filtered", "unreachable"),
        *("address", "denied", "reset", "hung-up", "silent", "foreign", "stranger", "too-big", "garbled"),
    }
)
"""How a path may end: see Path."""


class Path(Struct, frozen=True):
    """From this node to one listener of another, in `tries` tries; the last one counts, and any success.

    `outcome` is ``ok``; a kind of :class:`~ncclprobe.wire.WireError`; ``wrong-peer``: another node answered;
    ``stalled-out`` or ``stalled-back``: small messages pass, large ones do not arrive there or here; ``late``: the run
    had no more time, which is not evidence; nor is ``hung-up``: a listener with too many callers does so. `rtt_s` is
    the shortest round trip of several. `rate_gbps` is the rate of one stream there (1e9 bit/s of payload), `resent` of
    `segments` its TCP retransmissions, in the better of `streams` measurements of a doubtful path.

    `passes`: large messages arrive only in packets of this many bytes, IP header included; None: it was not tried.
    `refused`: this node's own kernel does not send large packets, because of a firewall.
    """

    to: int
    role: str
    interface: str
    source: str
    address: str
    outcome: str
    detail: str = ""
    tries: int = 1
    rtt_s: float | None = None
    path_mtu: int | None = None
    rate_gbps: float | None = None
    resent: int | None = None
    segments: int | None = None
    streams: int = 1
    passes: int | None = None
    refused: bool = False


class Paths(Struct, frozen=True):
    """All that node `me` tried. `names` are the nodes by rank, `listeners` its own.

    `unopened` holds, by role, why this node could not listen; `floods` the addresses that its listeners had to hang up
    on to have room.
    """

    me: int
    names: dict[int, str]
    listeners: tuple[MeshListener, ...] = ()
    rows: tuple[Path, ...] = ()
    unopened: dict[str, str] = field(default_factory=dict)
    floods: tuple[Flood, ...] = ()


paths = _sample(Paths, "paths")


class RailRow(Struct, frozen=True):
    """One rail as one of its ends saw it: number `rail` of this node, with number `other` of node `to`.

    `together`: how many rails of the two nodes were at work at the same time, this one among them. `leads`: this end
    called the other; its directions ``out`` are what it sent, those of the other end what that one sent. `step` is 0 in
    the plan and counts the rounds of retests from 1. `number` is of the test, the same at both ends. In each direction
    `nbytes` were to go within `patience_s`.
    """

    number: int
    to: int
    rail: int
    other: int
    leads: bool
    outcome: RailOutcome
    together: int = 1
    step: int = 0
    nbytes: Bytes = 0
    patience_s: float = 0.0


class Rails(Struct, frozen=True):
    """Node `me`'s view of its rails. `names` are the nodes by rank, `ports` its own in NCCL's order.

    `why`: why there is not a port, or what NCCL would use instead; `untested`: why no rail was tried although it was
    requested. `cross`: why the job would need rails of different numbers to reach each other; empty: it would not.
    `moved_gbps` is the rate of each port before the tests, 1e9 bit/s, of ports that report it. `planned` tests were
    requested from this node; there are fewer rows if the run ran out of time. `plan` is, on node 0, the request to the
    fabric, `silent` which nodes stopped answering meanwhile.
    """

    me: int
    names: dict[int, str]
    ports: tuple[RailPort, ...] = ()
    why: str = ""
    untested: str = ""
    cross: str = ""
    moved_gbps: dict[str, float] = field(default_factory=dict)
    planned: int = 0
    rows: Annotated[tuple[RailRow, ...], msgspec.Meta(max_length=bounds.RAIL_ROWS)] = ()
    plan: str = ""
    silent: tuple[str, ...] = ()


rails = _sample(Rails, "rails")


MEASURED: frozenset[type] = frozenset({ClockOffset, Paths, Rails})
"""What nodes measure once rank 0 has their captures; it only compares them by it."""
