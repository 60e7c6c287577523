"""Connectivity that a run measured: the way to rank 0, the paths to the other nodes, and the RDMA rails.

These are a run's measurements, not a machine's facts. Paths are tried on each interface. Each RDMA port is tried with a
port of another node as NCCL would connect the two.
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
    """Return a run's sample as `kind`. It may come from another node, so it is validated. Raises ParseError."""
    text = host.ask(SAMPLE, name)
    try:
        reported: Any = json.loads(text)
        return msgspec.convert(reported, kind, str_keys=True)
    except (ValueError, msgspec.ValidationError) as error:  # a ValueError from msgspec 0.21 on
        raise ParseError(f"sample {name}: {error}") from None


def collector_of(fact: type, run: Callable[[Host], Any]) -> Collector:
    """Turn `run` into the collector of `fact`, named as `ncclprobe explain` shows it."""
    run.__name__ = re.sub(r"\B(?=[A-Z])", "_", fact.__name__).lower()
    return Collector(run, fact)


def _sample(fact: type, name: str) -> Collector:
    return collector_of(fact, lambda host: sample(host, name, fact))


class Reach(Struct, frozen=True):
    """The way to rank 0, as of the last of `tries` within `seconds`.

    `outcome` is ``ok``, or the step that failed: ``resolve``, ``route``, or a kind of
    :class:`~ncclprobe.wire.WireError`: refused, filtered, unreachable, address, denied, reset, silent, foreign,
    stranger … `detail` describes it. `address` is the one of `addresses` that was tried, `source` this side's and
    `interface` the one that has it. `seen` are all outcomes in order of first appearance, such as a port that was
    refused first and is open now.
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

    The error is at most half the round trip; the measurement with the shortest one was kept.
    """

    offset_s: float
    rtt_s: float


clock_offset = _sample(ClockOffset, "clock")


class Trouble(Struct, frozen=True):
    """A connection to rank 0 that failed: the caller, the problem, and its node rank if known."""

    peer: str
    kind: str
    detail: str
    node_rank: int | None = None


class Flood(Struct, frozen=True):
    """An address that made more connections than a listener has room for; `connections` of them were closed."""

    address: str
    connections: int


class Proof(Struct, frozen=True):
    """How the nodes of this run authenticate each other; `origin` is the origin of their shared secret.

    `proved`: they share a secret. `trusted`: they have none, and --trust-network waives it.
    """

    origin: str
    proved: bool
    trusted: bool = False


proof = _sample(Proof, "proof")


class Gathering(Struct, frozen=True):
    """Rank 0's wait for the other nodes: `waited_s` in all, and the connections that failed.

    `allowed_s`: the time it would have waited if no other work had taken time. `came` are the node ranks that rank 0
    admitted; `lost` are those that exited, fell silent or sent garbage before the run was over. `floods` are the
    addresses that rank 0 disconnected to make room.
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
    """Shows that this node's reporting rank waited for the node's other ranks, `expected` of them."""

    expected: int


roll_call = _sample(RollCall, "roll")


class HostFailure(Struct, frozen=True):
    """A host of --hosts that does not take part, in the `words` of ssh or of that host.

    `kind`: ``ssh`` did not connect; ``absent``: ncclprobe did not start; ``silent``: no answer in time; ``version``:
    another version; ``lost``: it exited before it reported.
    """

    host: str
    kind: str
    words: str


class StartedHosts(Struct, frozen=True):
    """How many hosts ncclprobe was to be started on over ssh, and those that failed."""

    asked: int
    failed: tuple[HostFailure, ...] = ()


started_hosts = _sample(StartedHosts, "hosts")


class MeshListener(NamedTuple):
    """A node's listener. `role`: ``nccl0`` is the first interface that NCCL would use; ``gloo0`` …; ``default``."""

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
"""Possible outcomes of a path: see Path."""


class Path(Struct, frozen=True):
    """From this node to one listener of another, in `tries` tries; any success counts, otherwise the last try.

    `outcome` is ``ok``; a kind of :class:`~ncclprobe.wire.WireError`; ``wrong-peer``: another node answered;
    ``stalled-out`` or ``stalled-back``: small messages pass, large ones do not arrive there or here. ``late`` (the run
    was out of time) and ``hung-up`` (the listener had too many callers) are not evidence. `rtt_s` is the shortest round
    trip of several. `rate_gbps` is the rate of one stream to the listener (1e9 bit/s of payload), and `resent` of
    `segments` its TCP retransmissions, in the better of `streams` measurements of a doubtful path.

    `passes`: large messages arrive only in packets of this many bytes, IP header included; None: not tried. `refused`:
    this node's own kernel does not send large packets, because of a firewall.
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
    """Every path that node `me` tried. `names` are the nodes by rank, `listeners` its own.

    `unopened` holds, by role, why this node could not listen. `floods` are the addresses that its listeners
    disconnected to make room.
    """

    me: int
    names: dict[int, str]
    listeners: tuple[MeshListener, ...] = ()
    rows: tuple[Path, ...] = ()
    unopened: dict[str, str] = field(default_factory=dict)
    floods: tuple[Flood, ...] = ()


paths = _sample(Paths, "paths")


class RailRow(Struct, frozen=True):
    """One rail as one of its ends saw it: rail `rail` of this node, with rail `other` of node `to`.

    `together`: how many rails of the two nodes were busy at the same time, including this one. `leads`: this end
    initiated. ``out`` is what each end itself sent. `step` is 0 in the plan and counts the rounds of retests from 1.
    `number` identifies the test and is equal at both ends. In each direction `nbytes` had to pass within `patience_s`.
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

    `why`: why there is no port, or what NCCL would use instead. `untested`: why no rail was tried although it was
    requested. `cross`: why the job needs rails of different numbers to reach each other; empty: it does not.
    `moved_gbps` is the rate of each port before the tests, 1e9 bit/s, for ports that report it. `planned` tests were
    requested from this node; there are fewer rows if the run ran out of time. On node 0, `plan` is the request to the
    fabric. `silent` are nodes that stopped answering meanwhile.
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
"""Measurements that nodes make after rank 0 has their captures, which it uses only for comparisons."""
