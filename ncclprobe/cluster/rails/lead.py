"""Node 0's side: ask every node for its rails, run the plan wave by wave, and measure slow or dead rails again.

The search is that of pairs of ranks (:mod:`ncclprobe.localise.pairs.suspects`), with the rails of nodes in the place of
ranks. A node that does not answer an order in time is not asked again; it has cost one wave.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures

import msgspec

from ncclprobe.cluster.mesh.plan import NCCL
from ncclprobe.cluster.rails.node import RailEnds, RailJob, RailNode, RailsOrder, Runner
from ncclprobe.cluster.rails.plan import (
    Budget,
    Job,
    RailPlan,
    Wave,
    cross_wave,
    describe_plan,
    fastest,
    plan_rails,
    waves,
)
from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts.reach import MeshListener, RailRow, Rails
from ncclprobe.host import Host
from ncclprobe.localise.pairs.rounds import PairRound
from ncclprobe.localise.pairs.samples import End, Result
from ncclprobe.localise.pairs.suspects import localise_slowness, lost_with_several
from ncclprobe.localise.rails import results, tried
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl.selection import MOST_QUEUE_PAIRS

_LIST_S = 8.0
_REPLY_S = 2.0
_STEPS = 4
"""Steps of a test that may each take all of its patience: what does not hang fails at the first."""
GPU_ROUNDS = 3
"""Rounds in which GPU memory is tested: with one partner alone either end may be the slow one; with an odd number of
nodes
each sits out one round.
"""
_STEP_SHARE, _LEAST_S, _MOST_S = 1 / 24, 1.0, 30.0
"""Share of the run's time that one step of one test may take, and its bounds: 7.5 s of the usual 180 s."""
BUSY = 0.02
"""Share of its rate that a port may carry before a test: beyond it, the traffic and the test would
disturb each other.
"""


class RailsWanted(Struct, frozen=True):
    """The command line's request for rails, and the means to test them.

    `run` runs one end of a test, `host` has the counters of this node's ports. `force`: test even busy ports.
    """

    run: Runner
    host: Host
    budget: Budget = field(default_factory=Budget)
    force: bool = False


class Fleet(Struct, frozen=True):
    """The participants: names by node rank, ids at the coordinator of all but node 0, and everyone's listeners."""

    names: Mapping[int, str]
    ids: Mapping[int, str]
    listening: Mapping[int, Sequence[MeshListener]]


class RailRun:
    """One run of the plan."""

    def __init__(
        self, wanted: RailsWanted, node: RailNode, coordinator: Coordinator, fleet: Fleet, deadline: float
    ) -> None:
        self._wanted, self._node, self._coordinator, self._fleet = wanted, node, coordinator, fleet
        self._deadline = deadline
        left_s = max(0.0, deadline - time.monotonic())
        self._budget = replace(wanted.budget, patience_s=min(_MOST_S, max(_LEAST_S, _STEP_SHARE * left_s)))
        self._loop = asyncio.get_running_loop()
        self._ends: dict[int, RailEnds] = {}
        self._rows: dict[int, list[RailRow]] = {}
        self._planned: dict[int, int] = {}
        self._silent: set[int] = set()
        self._number = 0
        self._rank = {name: rank for rank, name in fleet.names.items()}
        self._words = ""

    async def run(self) -> dict[int, Rails]:
        """Return what each node saw, by rank, without nodes that never answered."""
        answers = await self._order({rank: RailsOrder("list", _LIST_S) for rank in self._fleet.names}, _LIST_S)
        for rank, said in answers.items():
            with contextlib.suppress(msgspec.ValidationError):  # then its rails are not known, and the checks say so
                self._ends[rank] = msgspec.convert(said, RailEnds)
        untested = self._busy_port() or self._nothing_to_try()
        if not untested:
            with contextlib.suppress(TimeoutError):  # a wave that is late; what came by then is kept
                await run_in_thread(self._search, self._deadline + _REPLY_S)
        return {rank: self._rails_of(rank, untested) for rank in sorted(self._ends)}

    def _rails_of(self, rank: int, untested: str) -> Rails:
        ends = self._ends[rank]
        return Rails(
            rank, dict(self._fleet.names), ends.ports, ends.why, untested, ends.cross, ends.moved_gbps,
            self._planned.get(rank, 0), tuple(self._rows.get(rank, ())), "" if rank else self._words,
            () if rank else tuple(self._fleet.names[each] for each in sorted(self._silent)),
        )  # fmt: skip

    def _busy_port(self) -> str:
        """Return why nothing may be tested: a port carries other traffic; empty if none does."""
        for rank, ends in self._ends.items() if not self._wanted.force else ():
            for port, rate in zip(ends.ports, ends.rates_gbps, strict=False):
                name = f"{port.device}:{port.port}"
                moved = ends.moved_gbps.get(name, 0.0)
                if rate and moved > BUSY * rate:
                    return (
                        f"{name} of {self._fleet.names[rank]} carried {moved:.3g} Gb/s before the test: "
                        "another job may be using it; --force tests anyway"
                    )
        return ""

    def _nothing_to_try(self) -> str:
        if sum(bool(ends.ports) for ends in self._ends.values()) > 1:
            return ""
        whys = (f": {ends.why}" for ends in self._ends.values() if ends.why and not ends.ports)
        return f"fewer than two nodes have a rail to test{next(whys, '')}"

    @property
    def _rails(self) -> dict[str, list[int]]:
        return {
            self._fleet.names[rank]: list(range(len(ends.ports))) for rank, ends in self._ends.items() if ends.ports
        }

    def _search(self) -> None:
        """Run the round-robin, then retests, on a thread of its own, because it waits for one wave after the other."""
        rails, rates = self._rails, [rate for ends in self._ends.values() for rate in ends.rates_gbps]
        crossing = any(ends.cross for ends in self._ends.values()) or len({len(each) for each in rails.values()}) > 1
        plan = plan_rails(len(rails), max(map(len, rails.values())), fastest(rates), self._budget, cross=crossing)
        self._words = describe_plan(plan)
        localise_slowness(rails, _Measure(self, plan, rails), count=plan.rounds, excluded=self._excluded)

    def _excluded(self, seen: Sequence[Result]) -> frozenset[End]:
        """Return the ends not to measure any more: lost with several partners, or of a node that did not answer."""
        gone = {self._fleet.names[rank] for rank in self._silent}
        return lost_with_several(seen) | {End(name, rail) for name in gone for rail in self._rails.get(name, ())}

    def with_gpus(self, wave: Wave) -> Wave:
        """Return the tests of `wave` that have a GPU near the rail at both ends."""
        ends = {self._fleet.names[rank]: each.gpus for rank, each in self._ends.items()}
        return tuple(
            job for job in wave if all(any(ends[end.node][end.rail : end.rail + 1]) for end in (job.one, job.other))
        )

    def play(self, wave: Wave, step: int, *, gpu: bool = False) -> list[Result]:
        """Have the nodes run the tests of one wave; return the samples that count for the search."""
        patience_s = self._budget.patience_s * _STEPS
        if time.monotonic() + patience_s > self._deadline:
            for end in (end for job in wave for end in (job.one, job.other)):
                self._count(self._rank[end.node])  # planned, and not made: the checks say so
            return []
        if not wave:
            return []
        playing = asyncio.run_coroutine_threadsafe(self._play(wave, step, patience_s, gpu), self._loop)
        try:
            return playing.result(patience_s + 3 * _REPLY_S)
        except futures.TimeoutError:  # Python 3.10 has a class of its own for it
            raise TimeoutError from None

    async def _play(self, wave: Wave, step: int, patience_s: float, gpu: bool) -> list[Result]:
        orders: dict[int, list[RailJob]] = {}
        for job in wave:
            for rank, each in self._jobs(job, step, gpu):
                orders.setdefault(rank, []).append(each)
                self._count(rank)
        timed = {rank: RailsOrder("test", patience_s, tuple(jobs)) for rank, jobs in orders.items()}
        seen: dict[int, list[RailRow]] = {}
        for rank, said in (await self._order(timed, patience_s)).items():
            with contextlib.suppress(msgspec.ValidationError):
                # Another node's word is not believed to be well formed: only what answers `jobs`.
                wanted = {
                    job.number: (job.to, job.rail, job.other, job.leads, job.together, job.step) for job in orders[rank]
                }
                fitting = {
                    row.number: row
                    for row in msgspec.convert(said.get("rows", ()), list[RailRow])
                    if wanted.get(row.number) == (row.to, row.rail, row.other, row.leads, row.together, row.step)
                }
                seen[rank] = list(fitting.values())
                self._rows.setdefault(rank, []).extend(seen[rank])
        names = self._fleet.names
        return [] if gpu else results(tried({names[rank]: rows for rank, rows in seen.items()}, names))

    def _count(self, rank: int) -> None:
        self._planned[rank] = self._planned.get(rank, 0) + 1

    def _jobs(self, job: Job, step: int, gpu: bool) -> Iterable[tuple[int, RailJob]]:
        """Yield the two ends of a test with their nodes, the leading end first."""
        one, other = self._rank[job.one.node], self._rank[job.other.node]
        mine = {each.role: each for each in self._fleet.listening[one]}
        theirs = [each for each in self._fleet.listening[other] if each.role in mine]
        best = sorted(theirs, key=lambda each: not each.role.startswith(NCCL))[:1]
        address, source, port = (best[0].address, mine[best[0].role].address, best[0].port) if best else ("", "", 0)
        self._number += 1
        ports = self._ends[one].ports[job.one.rail], self._ends[other].ports[job.other.rail]
        queue_pairs = max(each.queue_pairs for each in ports)
        leader = RailJob(
            number=self._number, to=other, rail=job.one.rail, other=job.other.rail, leads=True,
            queue_pairs=max(1, min(queue_pairs, MOST_QUEUE_PAIRS)), test=replace(job.test, seed=self._number),
            together=job.together, step=step, gpu=gpu, address=address, port=port, source=source,
        )  # fmt: skip
        yield one, leader
        swapped = replace(leader, to=one, rail=job.other.rail, other=job.one.rail, leads=False)
        yield other, replace(swapped, address="", port=0, source="")

    async def _order(self, orders: Mapping[int, RailsOrder], seconds: float) -> dict[int, dict[str, object]]:
        """Have nodes follow orders, this one among them; a node that is late is not asked again."""
        ids = {rank: key for rank, key in self._fleet.ids.items() if rank in orders and rank not in self._silent}
        deadline = time.monotonic() + seconds + _REPLY_S
        theirs = {key: orders[rank] for rank, key in ids.items()}
        asking = asyncio.create_task(self._coordinator.order("rails", theirs, deadline))
        answers: dict[int, dict[str, object]] = {}
        if 0 in orders:
            answers[0] = await self._node.follow(orders[0])
        said = await asking
        answers |= {
            rank: said[key]["rails"] for rank, key in ids.items() if isinstance(said.get(key, {}).get("rails"), dict)
        }
        self._silent |= {rank for rank in ids if rank not in answers}
        return answers


class _Measure:
    """Measures the rounds of the search, with extra tests in the first ones."""

    def __init__(self, run: RailRun, plan: RailPlan, rails: Mapping[str, Sequence[int]]) -> None:
        self._run, self._plan, self._rails = run, plan, rails
        self._rounds = 0

    def __call__(self, pairs: PairRound, step: int) -> list[Result]:
        """Measure each pair, all rails of two nodes together; run the extra tests in the first rounds."""
        self._rounds += 1
        if self._rounds <= GPU_ROUNDS:
            self._measure_extra(pairs, step)
        return [result for wave in waves(pairs, self._plan) for result in self._run.play(wave, step)]

    def _measure_extra(self, pairs: PairRound, step: int) -> None:
        """Test every rail alone, with GPU memory, and with rails of other numbers."""
        alone = list(waves(pairs, self._plan, alone=True))
        for wave in alone:
            direct = self._run.with_gpus(wave)
            if (self._rounds == 1 and self._plan.alone) or direct:
                self._run.play(wave, step)
            self._run.play(direct, step, gpu=True)
        if self._plan.cross and self._rounds <= 1 + len(self._rails) % 2:  # of an odd number each sits out one round
            nodes = list(dict.fromkeys((one.node, other.node) for one, other in pairs))
            self._run.play(cross_wave(self._rails, nodes, self._plan), step)
