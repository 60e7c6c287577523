"""Hold which other nodes this one could reach, on which of its interfaces, and how well, as a run measured it."""

from typing import NamedTuple

from ncclprobe.facts.reach import Flood, sample
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field


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
    had no more time, which says nothing; nor does ``hung-up``: a listener with too many callers does so. `rtt_s` is the
    shortest round trip of several. `rate_gbps` is what one stream carried there (1e9 bit/s of payload), `resent` of
    `segments` its TCP retransmissions, in the better of `streams` measurements of what was doubtful.
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


@collector
def paths(host: Host) -> Paths:
    """Read what this node measured of the others."""
    return sample(host, "paths", Paths)
