"""Small fleets for the examples of the checks: nodes of equal rails, whose tests succeed unless an argument changes
them.

What both ends of a test see follows from the ways between them: a dead way loses what is sent over it and the
acknowledgements of what is sent the other way, as on a reliable connection.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.rails import (
    RailAddress,
    RailArrival,
    RailDirection,
    RailFailure,
    RailOutcome,
    RailPort,
    RailQueuePair,
    RailStream,
    RailTest,
)
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import Struct, field, replace

Carries = Callable[[End, End, bool], float]
"""From one end to another, with a GPU's memory or not: the share of the usual rate; 0: the way is dead."""
RETRY = "transport retry counter exceeded: nothing acknowledged what was sent"
_TEST = RailTest(message_bytes=1 << 20, messages=64, directions=("out", "in", "both"))


def _all_well(src: End, dst: End, gpu: bool) -> float:
    return 1.0


class World(Struct, frozen=True):
    """A fleet. `addresses` changes what an end reports about itself, `local` is what fails at an end by itself.

    `small_only`: ends to and from which only small messages pass. `wrong`: wrong bytes among those written to an end.
    `latency_us`: of the ends that are slower than USUAL_US. `gpus`: every rail has one near it.
    """

    nodes: tuple[str, ...] = ("n0", "n1", "n2")
    rails: int = 2
    rate_gbps: float = 400.0
    carries: Carries = _all_well
    addresses: Mapping[End, Mapping[str, Any]] = field(default_factory=dict)
    ports: Mapping[End, Mapping[str, Any]] = field(default_factory=dict)
    local: Mapping[End, RailFailure] = field(default_factory=dict)
    small_only: tuple[End, ...] = ()
    wrong: Mapping[End, int] = field(default_factory=dict)
    latency_us: Mapping[End, float] = field(default_factory=dict)
    gpus: bool = False

    def port(self, end: End, gpu: bool = False) -> RailPort:
        """Return what NCCL chooses at `end`."""
        port = RailPort(device=f"mlx5_{end.rail}", gid_index=3, queue_pairs=1, timeout=14)
        port = replace(port, **self.ports.get(end, {}))
        return replace(port, memory="cuda-dmabuf", gpu=end.rail) if gpu else port

    def address(self, end: End) -> RailAddress:
        """Return what `end` reports about itself."""
        number = self.nodes.index(end.node)
        port = self.port(end)
        address = RailAddress(
            device=port.device, port=1, link_layer="Ethernet", state="ACTIVE", rate_gbps=self.rate_gbps, lid=0,
            gid_index=port.gid_index, gid=f"{'0' * 20}ffff0a{end.rail:02x}00{number % 250 + 1:02x}",
            gid_type="RoCE v2", pkey=0xFFFF, active_mtu=4096, mtu=4096, queue_pairs=(RailQueuePair(100 + number, 0),),
            address=1 << 40, rkey=7, nbytes=1 << 26, mailbox_address=1 << 41, mailbox_rkey=8,
        )  # fmt: skip
        return replace(address, **self.addresses.get(end, {}))

    def outcomes(
        self, one: End, other: End, test: RailTest = _TEST, gpu: bool = False
    ) -> tuple[RailOutcome, RailOutcome]:
        """Return what both ends of a test see, the leading one's first."""
        ends = (one, other)
        asked = [RailOutcome(asked=self.port(end, gpu)) for end in ends]
        own = [self.local.get(end) for end in ends]
        if any(own):
            peer = RailFailure(step="open", kind="peer", text="the other end failed first")
            return tuple(replace(each, failures=(mine or peer,)) for each, mine in zip(asked, own, strict=True))  # type: ignore[return-value]
        addresses = [self.address(end) for end in ends]
        told = zip(asked, addresses, addresses[::-1], strict=True)
        seen = [replace(each, own=own, peer=peer) for each, own, peer in told]
        ways = [self.carries(one, other, gpu), self.carries(other, one, gpu)]
        if test.round_trips and all(ways):
            late = max(self.latency_us.get(end, _USUAL_US) for end in ends)
            seen[0] = replace(seen[0], half_round_trip_us=(late * 0.95, late, late * 1.1))
        if any(end in self.small_only for end in ends):
            ways = [0.0, 0.0]
        for direction in test.directions:
            for writer in {"out": (0,), "in": (1,), "both": (0, 1)}[direction]:
                self._write(seen, ends, ways, test, writer, direction)
        return seen[0], seen[1]

    def _write(
        self, seen: list[RailOutcome], ends: tuple[End, End], ways: list[float], test: RailTest, writer: int,
        direction: RailDirection,
    ) -> None:  # fmt: skip
        """Add to what both ends have `seen` what one of them writes."""
        reader, nbytes = 1 - writer, test.message_bytes * test.messages
        rate = ways[writer] * self.rate_gbps / 8 * _EFFICIENCY
        wrong = self.wrong.get(ends[reader], 0)
        came = RailArrival(
            direction=direction, checked_bytes=nbytes, arrived_bytes=nbytes if ways[writer] else 0, wrong_bytes=wrong
        )
        seen[reader] = replace(seen[reader], arrivals=(*seen[reader].arrivals, came))
        if all(ways):
            stream = RailStream(
                direction=direction, nbytes=nbytes, seconds=nbytes / rate / 1e9, work_s=1e-4,
            )  # fmt: skip
            seen[writer] = replace(seen[writer], streams=(*seen[writer].streams, stream))
        else:
            failure = RailFailure(step="write", kind="completion", text=RETRY, direction=direction, status=12)
            seen[writer] = replace(seen[writer], failures=(*seen[writer].failures, failure))


_USUAL_US, _EFFICIENCY = 3.0, 0.97


def rails_of(world: World, *, cross: bool = False) -> Every[Rails]:
    """Return what all nodes of `world` saw: every pair of nodes twice, all rails together."""
    rows: dict[str, list[RailRow]] = {node: [] for node in world.nodes}
    number = 0
    for one, other in combinations(world.nodes, 2):
        jobs = [(rail, rail, False, step) for rail in range(world.rails) for step in (0, 1)]
        jobs += [(rail, rail, True, 0) for rail in range(world.rails)] if world.gpus else []
        jobs += [(rail, (rail + 1) % world.rails, False, 0) for rail in range(world.rails)] if cross else []
        for mine, theirs, gpu, step in jobs:
            number += 1
            add_rows(rows, world, (End(one, mine), End(other, theirs)), number, gpu=gpu, step=step)
    names = dict(enumerate(world.nodes))
    return Every({
        node: Rails(
            me, names, tuple(world.port(End(node, rail)) for rail in range(world.rails)), planned=len(rows[node]),
            rows=tuple(rows[node]), cross="NCCL_CROSS_NIC=1 (environment)" if cross else "",
        )
        for me, node in names.items()
    })  # fmt: skip


def add_rows(
    rows: dict[str, list[RailRow]], world: World, ends: tuple[End, End], number: int, *, gpu: bool, step: int
) -> None:
    """Add the two rows of one test to those of their nodes."""
    for (mine, theirs), leads, outcome in zip(
        (ends, ends[::-1]), (True, False), world.outcomes(*ends, gpu=gpu), strict=True
    ):
        to = world.nodes.index(theirs.node)
        rows[mine.node].append(RailRow(number, to, mine.rail, theirs.rail, leads, outcome, world.rails, step))


def only(*ends: End, share: float = 0.0, out: bool = True, into: bool = True) -> Carries:
    """Return a fabric in which these ends send (`out`) and receive (`into`) a `share` of the usual rate."""

    def carries(src: End, dst: End, gpu: bool) -> float:
        return share if (out and src in ends) or (into and dst in ends) else 1.0

    return carries
