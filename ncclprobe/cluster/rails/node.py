"""A node's side: list its rails, and run the tests that node 0 orders, all of one order at once.

The two ends of a test meet over a connection of their own, between the listeners of the mesh: the leading end calls,
and
both prove the mesh's key. The code that runs a test is passed in: this package knows no verbs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import quantiles
from typing import Annotated, Any, Literal, Protocol

import msgspec

from ncclprobe.cluster.mesh.listeners import Listeners
from ncclprobe.cluster.mesh.plan import check_other
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts import traffic
from ncclprobe.facts.infiniband import Fabric, Rate
from ncclprobe.facts.reach import RailRow
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.rails import RailChannel, RailFailure, RailOutcome, RailPort, RailTest
from ncclprobe.model.snapshot import Snapshot, learned
from ncclprobe.model.values import Struct, asdict, field, replace
from ncclprobe.nccl.selection import choose_rails, crossing, gpu_rails
from ncclprobe.wire import Wire, WireError, connect

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class RailJob(Struct, frozen=True, kw_only=True):
    """One test as seen by one end: its rail `rail` with rail `other` of node `to`.

    The leading end (`leads`) calls the other at `address` and `port`, from its own address `source`. `queue_pairs`:
    what
    both ends agree on. `gpu`: with the memory of the rail's GPU.
    """

    number: _Number
    to: _Number
    rail: _Number
    other: _Number
    leads: bool
    queue_pairs: _Number
    test: RailTest
    together: _Number = 1
    step: _Number = 0
    gpu: bool = False
    address: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    source: str = ""


class RailsOrder(Struct, frozen=True):
    """``list``: list this node's rails, and their own traffic; ``test``: run `jobs`, all at once.

    The answer is due in `seconds`.
    """

    do: Literal["list", "test"]
    seconds: float
    jobs: Annotated[tuple[RailJob, ...], msgspec.Meta(max_length=bounds.RAIL_PORTS)] = ()


class RailEnds(Struct, frozen=True):
    """A node's rails, in NCCL's order; `gpus`: which of them can use GPU memory.

    `rates_gbps` of each, 0 if unknown. `moved_gbps`: what each port (``mlx5_0:1``) carried before any test.
    """

    ports: Annotated[tuple[RailPort, ...], msgspec.Meta(max_length=bounds.RAIL_PORTS)] = ()
    rates_gbps: tuple[float, ...] = ()
    gpus: tuple[bool, ...] = ()
    why: str = ""
    cross: str = ""
    moved_gbps: dict[str, float] = field(default_factory=dict)


_LOOK_S = 0.5
"""Between two readings of the NIC counters, before any test."""
_GREETING_S = 5.0
_LAST_S = 1.0
"""Margin between the end of the tests and the time when an answer is due."""
_MOST_S = 120.0
"""Seconds after which an order is over, whatever node 0 sends."""
_TIMEOUT = 14
"""The timeout exponent of queue pairs: 4.096 µs × 2^14 = 67 ms. NCCL's own 20 and 7 retries take half a minute and more
to report a dead path, 14 half a second (2 s on devices that take four times as long, as InfiniBand Architecture 1,
9.7.6.1.3, allows). It matters only on paths that lose packets for longer than that; 14 was NCCL's own default up to
2.14.
"""
_TOGETHER_S = 2.0
"""How long a node's rails wait for each other: one whose path is dead takes longer than the others."""
_KEPT = 9
"""Quantiles kept of a test's many times."""


class Runner(Protocol):
    """Runs one end of a test; returns by `deadline` (time.monotonic()), whatever the driver does."""

    def __call__(
        self,
        port: RailPort,
        test: RailTest,
        *,
        leads: bool,
        channel: RailChannel,
        deadline: float,
        before: Callable[[str], Awaitable[None]] | None = None,
    ) -> Awaitable[RailOutcome]:
        """Return what this end saw. `before` is awaited with the name of each step before it begins."""


class Start:
    """Barrier of a node's rails before each step, so that they share it from its beginning."""

    def __init__(self, rails: int) -> None:
        self._left = rails
        self._waiting: dict[str, list[asyncio.Event]] = {}

    async def __call__(self, step: str) -> None:
        """Wait until all remaining rails have reached this step, but no longer than a failing rail may take."""
        mine = asyncio.Event()
        self._waiting.setdefault(step, []).append(mine)
        self._release()
        try:
            await asyncio.wait_for(mine.wait(), _TOGETHER_S)
        except asyncio.TimeoutError:  # who has not come by now is waited for no more
            self._left = min(self._left, len(self._waiting[step]))

    def leave(self) -> None:
        """Wait for one rail less."""
        self._left -= 1
        self._release()

    def _release(self) -> None:
        for waiting in self._waiting.values():
            if len(waiting) >= self._left:
                for each in waiting:
                    each.set()


class Visits:
    """Other nodes' connections for tests of this node, by test number."""

    def __init__(self) -> None:
        self._expected: dict[int, asyncio.Future[Wire]] = {}
        self._over: dict[int, asyncio.Event] = {}

    def expect(self, number: int) -> None:
        """Announce that another node will call for this test."""
        self._expected[number], self._over[number] = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def caller(self, number: int, deadline: float) -> Wire:
        """Return the connection of the node that called for this test. Raises WireError."""
        try:
            return await asyncio.wait_for(self._expected[number], max(0.001, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise WireError("silent", "the other node did not connect for this test") from None

    def done(self, number: int) -> None:
        """Hang up: the test is over."""
        self._expected.pop(number).cancel()
        self._over.pop(number).set()

    async def receive(self, number: object, wire: Wire) -> None:
        """Hand a caller to the test that it names, and return when the test is over; without such a test, hang up."""
        expected = self._expected.get(number) if isinstance(number, int) else None
        if expected is not None and not expected.done():
            over = self._over[int(str(number))]
            expected.set_result(wire)
            await over.wait()


class RailNode(Struct):
    """This node's contribution: its rails and, if they have one, the same with GPU memory."""

    snapshot: Snapshot
    host: Host
    listeners: Listeners
    run: Runner
    ports: tuple[RailPort, ...] = ()
    gpus: tuple[RailPort | None, ...] = ()
    visits: Visits = field(default_factory=Visits)

    def __post_init__(self) -> None:
        """Choose rails as NCCL would, and answer callers."""
        self.ports = choose_rails(self.snapshot).chosen or ()
        self.gpus = gpu_rails(self.snapshot, self.ports)
        self.listeners.visits = self.visits.receive

    async def follow(self, order: RailsOrder) -> dict[str, Any]:
        """Carry out `order`; return the answer as JSON values."""
        deadline = time.monotonic() + min(order.seconds, _MOST_S)
        if order.do == "list":
            return asdict(await self._ends(deadline))
        jobs = [job for job in order.jobs if job.rail < len(self.ports)]
        for job in jobs:
            if not job.leads:
                self.visits.expect(job.number)
        start = Start(len(jobs))
        rows = await asyncio.gather(*(self._row(job, deadline - _LAST_S, start) for job in jobs))
        return {"rows": [asdict(row) for row in rows]}

    async def _ends(self, deadline: float) -> RailEnds:
        try:
            moved = await run_in_thread(partial(port_rates, self.host), deadline - _LAST_S)
        except TimeoutError:  # a driver whose counters do not answer
            moved = {}
        fabric = learned(self.snapshot.facts, Fabric)
        known: Mapping[tuple[str, int], Any] = (
            {(port.device, port.number): port.rate for port in fabric.ports} if fabric else {}
        )
        rates = [known.get((port.device, port.port)) for port in self.ports]
        return RailEnds(
            ports=self.ports,
            rates_gbps=tuple([rate.gbps if isinstance(rate, Rate) else 0.0 for rate in rates]),
            gpus=tuple(gpu is not None for gpu in self.gpus),
            why=choose_rails(self.snapshot).why,
            cross=crossing(self.snapshot),
            moved_gbps=moved,
        )

    async def _row(self, job: RailJob, deadline: float, start: Start) -> RailRow:
        port = (self.gpus[job.rail] if job.gpu else None) or self.ports[job.rail]
        asked = replace(port, queue_pairs=max(1, job.queue_pairs), timeout=min(port.timeout, _TIMEOUT) or _TIMEOUT)
        try:
            outcome = await self._run_job(job, asked, deadline, start)
        except (WireError, ValueError) as error:
            failure = RailFailure(step="open", kind="channel", text=str(error))
            outcome = RailOutcome(asked=asked, failures=(failure,))
        finally:
            start.leave()
            if not job.leads:
                self.visits.done(job.number)
        nbytes, told = job.test.messages * job.test.message_bytes, brief(outcome)
        ends = job.number, job.to, job.rail, job.other, job.leads
        return RailRow(*ends, told, job.together, job.step, nbytes, job.test.seconds)

    async def _run_job(self, job: RailJob, asked: RailPort, deadline: float, start: Start) -> RailOutcome:
        """Meet the other end and run the test. Raises WireError if the two do not meet."""
        soon = min(deadline, time.monotonic() + _GREETING_S)
        channel = await (self._call(job, soon) if job.leads else self.visits.caller(job.number, soon))
        try:
            running = self.run(asked, job.test, leads=job.leads, channel=channel, deadline=deadline, before=start)
            return await asyncio.wait_for(running, max(0.001, deadline + _LAST_S / 2 - time.monotonic()))
        except asyncio.TimeoutError:
            raise WireError("silent", "the test did not end by its deadline") from None
        finally:
            if job.leads:
                channel.close()

    async def _call(self, job: RailJob, deadline: float) -> Wire:
        check_other(job.address)
        channel = await connect(job.address, job.port, self.listeners.key, deadline, job.source, patience_s=_GREETING_S)
        try:
            if (await channel.receive(deadline)).get("node") != job.to:
                raise WireError("foreign", f"{job.address} is another node's")
            await channel.send({"do": "rail", "number": job.number}, deadline)
        except WireError:
            channel.close()
            raise
        return channel


def port_rates(host: Host) -> dict[str, float]:
    """Return the rate of each port over _LOOK_S, in 1e9 bit/s."""
    before, began = traffic.read(host), time.monotonic()
    time.sleep(_LOOK_S)
    moved, seconds = traffic.moved(before, traffic.read(host), "rdma"), time.monotonic() - began
    return {
        name: round(max(count.sent, count.received) * 8e-9 / seconds, 3)
        for name, count in moved.items()
        if isinstance(count, traffic.Count)
    }


def brief(outcome: RailOutcome) -> RailOutcome:
    """Return `outcome` with its times reduced to ascending quantiles."""
    return replace(outcome, half_round_trip_us=_few(outcome.half_round_trip_us))


def _few(times: Sequence[float]) -> tuple[float, ...]:
    if len(times) <= _KEPT:
        return tuple(sorted(times))
    inner = quantiles(times, n=_KEPT - 1, method="inclusive")
    return tuple(round(each, 3) for each in (min(times), *inner, max(times)))
