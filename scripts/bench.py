#!/usr/bin/env python3
"""What does measuring cost? ncclprobe's measuring loop beside a bare one, and an asked precision beside fixed calls.

    .venv/bin/python scripts/bench.py [--ranks N] [--pairs N] [--sizes 4K,1M,64M] [--rows N] [--json PATH]

1. Host time per call on torch's `fake` process group, whose collectives do nothing: ours beside a bare loop.
2. The time that ncclprobe reports for an all_reduce over gloo, divided by that of a loop written by hand, measured in
   turn: the median ratio of many pairs with its bootstrap interval. gloo is noisy; nothing is discarded.
3. The time that one row takes with an asked precision of ±2 %, divided by that with 5 untimed and 20 timed calls, in
   pairs as above; how many rows came to the precision, and how far the answers of both spread over the pairs.
4. The same decisions on made-up times around a known truth, where an answer is right or wrong: seconds of the link's
   own clock, and how many of 200 answers lie within 2 % of the truth. This says nothing of any network.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing

from ncclprobe.model.values import Struct

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ncclprobe import stats, units
from ncclprobe.host.live import LiveHost
from ncclprobe.model.measurement import Measurement
from ncclprobe.probes.clock import CpuClock, time_batch
from ncclprobe.probes.collectives import all_reduce
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.probe import BufferView
from ncclprobe.probes.sampling import Target, calls_per_batch, more_batches
from ncclprobe.probes.sweep import run
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange

MiB = 1 << 20
DEADLINE_S = 600
PRECISION = 0.02


class Overhead(Struct, frozen=True):
    """Microseconds of host time per call, medians over `rounds` alternating loops of `calls` calls."""

    calls: int
    rounds: int
    bare_us: float
    ours_us: float
    more_us: float


class Spread(Struct, frozen=True):
    """Ratios of pairs: the median with its 95 % bootstrap interval, and the extremes."""

    median: float
    low: float
    high: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        interval = f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return f"{interval} ({self.smallest:.2f} to {self.largest:.2f})"


class Ratio(Struct, frozen=True):
    """Time reported by ncclprobe over time of the loop by hand, for one size.

    `by_chance` is the same for pairs of two loops by hand: what a ratio can be on this machine with no difference.
    """

    nbytes: int
    ranks: int
    pairs: int
    reported: Spread
    by_chance: Spread


class Asked(Struct, frozen=True):
    """A row with ±2 % asked for, beside one of 5 untimed and 20 timed calls.

    `time` is the ratio of what the two take, `reached` the share of rows that came to ±2 % within the budget, and
    `precision` the median of what was reached. `ours` and `fixed` are the spreads of the answers: of the medians of the
    one and of the means of the other, their median absolute deviation over all pairs as a share of their median;
    `ours_s` and `fixed_s` are the median seconds of a row.
    """

    nbytes: int
    ranks: int
    pairs: int
    time: Spread
    reached: float
    precision: float
    ours: float
    fixed: float
    ours_s: float = 0.0
    fixed_s: float = 0.0


def overhead(calls: int = 2000, rounds: int = 41) -> Overhead:
    """Our queued loop beside a bare one, both on the fake group of this one process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    tensor = torch.zeros(1024)
    bound = all_reduce.run(BufferView(tensor, tensor, 0, 2, dist.ReduceOp.SUM))
    prepared, clock = [bound] * calls, CpuClock()
    bare, ours = [], []
    for _ in range(rounds):
        bare.append(bare_loop(tensor, calls))
        ours.append(time_batch(prepared, "queued", clock).seconds)
    dist.destroy_process_group()
    more = statistics.median(our - base for our, base in zip(ours, bare, strict=True))
    return Overhead(calls, rounds, statistics.median(bare) * 1e6, statistics.median(ours) * 1e6, more * 1e6)


def bare_loop(tensor: torch.Tensor, calls: int) -> float:
    """Seconds per call of what anyone would write."""
    started = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.perf_counter() - started) / calls


def by_hand(nbytes: int, iters: int, exchange: Exchange) -> float:
    """A gloo benchmark in five lines: warm up, barrier, loop, mean over ranks. Seconds per operation."""
    tensor = torch.zeros(nbytes // 4)
    bare_loop(tensor, 5)
    dist.barrier()
    rows = exchange.collect(bare_loop(tensor, iters))
    return statistics.fmean(rows) if rows else 0.0


def row_of(nbytes: int, exchange: Exchange, **asked: Any) -> Measurement:
    """One row of ncclprobe's, over one slot, as the loop by hand has but one tensor."""
    plan = Plan(
        ops=("all_reduce",),
        sizes=(nbytes,),
        rank=dist.get_rank(),
        ranks=dist.get_world_size(),
        backend="gloo",
        verify=False,
        footprint_bytes=nbytes,
        **asked,
    )
    [row] = run(plan, exchange, lambda phase: None, host=LiveHost((), lambda name: False))
    assert isinstance(row, Measurement)
    return row


def ours(nbytes: int, iters: int, exchange: Exchange) -> float:
    """Seconds per operation as ncclprobe reports them."""
    return row_of(nbytes, exchange, iters=iters, batches=1, rounds=0).time_us.mean / 1e6


def asked(nbytes: int, pairs: int, exchange: Exchange) -> Asked:
    """Rows with an asked precision and with fixed calls, in turn; whoever goes first changes."""
    took: dict[bool, list[float]] = {True: [], False: []}
    rows: dict[bool, list[Measurement]] = {True: [], False: []}
    for number in range(pairs):
        for precise in (True, False) if number % 2 else (False, True):
            dist.barrier()
            how: dict[str, Any] = {"precision": PRECISION} if precise else {"iters": 20, "batches": 1, "rounds": 0}
            started = time.perf_counter()
            rows[precise].append(row_of(nbytes, exchange, warmup=5, **how))
            took[precise].append(time.perf_counter() - started)
    reached = [row.precision or 1.0 for row in rows[True]]
    return Asked(
        nbytes,
        dist.get_world_size(),
        pairs,
        spread([ours / fixed for ours, fixed in zip(took[True], took[False], strict=True)]),
        sum(share <= PRECISION for share in reached) / pairs,
        statistics.median(reached),
        deviation([row.time_us.median or row.time_us.mean for row in rows[True]]),
        deviation([row.time_us.mean for row in rows[False]]),
        statistics.median(took[True]),
        statistics.median(took[False]),
    )


class Simulated(Struct, frozen=True):
    """`rows` answers with ±2 % asked for and with 20 calls after 5, on calls of `call_us` with one kind of noise.

    `seconds` is what the one takes, `time` that over the other's; medians. The rest are shares of rows: those that
    came to ±2 %, those whose median lies within 2 % of the true one, and likewise the mean of 20 calls and the true
    mean.
    """

    noise: str
    call_us: float
    rows: int
    seconds: float
    time: float
    reached: float
    right: float
    fixed_right: float


NOISES: dict[str, Callable[[random.Random], float]] = {
    "quiet: ±1 %": lambda draw: draw.gauss(1.0, 0.01),
    "tail: 5 % on average, exponential": lambda draw: 1.0 + draw.expovariate(1 / 0.05),
    "hiccups: one call in 100 takes 20 times as long": lambda draw: 20.0 if draw.random() < 0.01 else 1.0,
    "bimodal: every other batch half as long again": lambda draw: 1.0,
}
BARRIER_S = 50e-6


def simulated(noise: str, call_s: float, rows: int) -> Simulated:
    """What sampling.py decides for `rows` rows. A barrier takes BARRIER_S, and to agree takes nothing."""
    draw = random.Random(3)

    def batch(calls: int, number: int) -> float:
        slow = 1.5 if noise.startswith("bimodal") and number % 2 else 1.0
        return slow * call_s * statistics.fmean(max(0.5, NOISES[noise](draw)) for _ in range(calls))

    target = Target(PRECISION, budget_s=2.0)
    iters = calls_per_batch(call_s, target)
    truth = statistics.median(batch(iters, number) for number in range(2000))
    mean = statistics.fmean(batch(20, number) for number in range(2000))
    took, medians, reached, fixed = [], [], [], []
    for _ in range(rows):
        samples: list[float] = []
        spent = call_s
        while more := more_batches(samples, spent, target):
            for _ in range(more):
                samples.append(batch(iters, len(samples)))
                spent += samples[-1] * iters + BARRIER_S
        took.append(spent)
        medians.append(statistics.median(samples))
        reached.append(stats.precision(samples) <= PRECISION)
        fixed.append(batch(20, draw.randrange(2)))
    return Simulated(
        noise,
        call_s * 1e6,
        rows,
        statistics.median(took),
        statistics.median(took) / (25 * mean + BARRIER_S),
        sum(reached) / rows,
        sum(abs(value / truth - 1) <= PRECISION for value in medians) / rows,
        sum(abs(value / mean - 1) <= PRECISION for value in fixed) / rows,
    )


def deviation(values: Sequence[float]) -> float:
    """The median absolute deviation as a share of the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / middle


def pair(number: int, nbytes: int, exchange: Exchange) -> tuple[float, float]:
    """Ours, and by hand again, each relative to a loop by hand: the one before or the one after, in turn."""
    iters = max(3, min(20, 64 * MiB // nbytes))
    before = by_hand(nbytes, iters, exchange)
    reported = ours(nbytes, iters, exchange)
    after = by_hand(nbytes, iters, exchange)
    reference, other = (before, after) if number % 2 else (after, before)
    return (reported / reference, other / reference) if reference else (0.0, 0.0)


def spread(ratios: Sequence[float]) -> Spread:
    """The statistics of `ratios`; nothing is left out."""
    low, high = stats.bootstrap(ratios)
    return Spread(statistics.median(ratios), low, high, min(ratios), max(ratios))


def rank_main(rank: int, ranks: int, folder: str, sizes: list[int], pairs: int, only_asked: bool = False) -> None:
    """One rank: measure all pairs, or those with an asked precision only; rank 0 leaves the ratios in `folder`."""
    store = dist.FileStore(f"{folder}/store", ranks)
    group = dist.PrefixStore("group", store)
    dist.init_process_group("gloo", store=group, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    identity = RankIdentity("environment", rank, ranks, rank, ranks, nnodes=1, address="", port=0)
    exchange = Exchange(store, identity, deadline_s=60)
    found: dict[str, list[Any]] = {"ratios": [], "asked": []}
    for nbytes in sizes:
        if not only_asked:
            reported, by_chance = zip(*(pair(number, nbytes, exchange) for number in range(pairs)), strict=True)
            found["ratios"].append(Ratio(nbytes, ranks, pairs, spread(reported), spread(by_chance)))
        found["asked"].append(asked(nbytes, pairs, exchange))
    if rank == 0:
        Path(folder, "found.json").write_bytes(msgspec.json.encode(found))
    dist.barrier()
    dist.destroy_process_group()


class Found(Struct, frozen=True):
    """What the ranks found, by size."""

    ratios: list[Ratio]
    asked: list[Asked]


def over_gloo(ranks: int, sizes: list[int], pairs: int) -> Found:
    """Start `ranks` processes, and no longer than the deadline wait for what they find."""
    deadline = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory() as folder:
        running = torch.multiprocessing.start_processes(
            rank_main, (ranks, folder, sizes, pairs), nprocs=ranks, join=False, daemon=True, start_method="spawn"
        )
        try:
            while not running.join(timeout=1):
                if time.monotonic() > deadline:
                    raise SystemExit(f"the ranks did not finish within {DEADLINE_S} s")
        finally:
            for process in running.processes:
                process.kill()
        return msgspec.json.decode(Path(folder, "found.json").read_bytes(), type=Found)


def main() -> None:
    """Run all comparisons and print them, or be one rank of the third (scripts/measure.py starts those elsewhere)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--sizes", default="4K,1M,64M", help="bytes of the all_reduce, binary suffixes")
    parser.add_argument("--rows", type=int, default=200, help="made-up rows for each kind of noise")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    parser.add_argument(
        "--only-rank", type=int, metavar="RANK", help="be only this rank of --ranks, for 3. alone, and …"
    )
    parser.add_argument("--meet", metavar="FOLDER", help="… meet the others there; what is found goes there too")
    given = parser.parse_args()
    if given.pairs < 1 or given.ranks < 2:
        parser.error("a ratio needs at least one pair, and two ranks")
    sizes = [units.parse_size(text) for text in given.sizes.split(",")]
    if given.only_rank is not None:
        if not given.meet:
            parser.error("--only-rank needs --meet")
        return rank_main(given.only_rank, given.ranks, given.meet, sizes, given.pairs, only_asked=True)
    cost = overhead()
    print(f"fake group, host time per call: bare {cost.bare_us:.2f} us, ours {cost.ours_us:.2f} us,", end=" ")
    print(f"{cost.more_us:+.2f} us (median of {cost.rounds} paired loops of {cost.calls} calls)")
    found = over_gloo(given.ranks, sizes, given.pairs)
    print(f"gloo all_reduce, {given.ranks} ranks, {given.pairs} pairs: median [95 % interval] (extremes)")
    for row in found.ratios:
        print(f"  {units.size(row.nbytes)}: reported / by hand {row.reported}; by hand / by hand {row.by_chance}")
    print(f"±{PRECISION:.0%} asked for, beside 5 untimed and 20 timed calls: ratio of the time that a row takes")
    for each in found.asked:
        print(f"  {units.size(each.nbytes)}: {each.time}; {each.reached:.0%} of rows came to it,", end=" ")
        print(f"the median row to {each.precision:.1%}; answers deviate by {each.ours:.1%}, fixed {each.fixed:.1%}")
    print("made-up times around a known truth: ±2 % asked for, beside 20 calls after 5")
    made_up = [simulated(noise, call_s, given.rows) for noise in NOISES for call_s in (20e-6, 2e-3, 50e-3)]
    for made in made_up:
        print(f"  {made.noise}, {made.call_us:g} us per call: {made.seconds:.3g} s,", end=" ")
        print(f"{made.time:.2f} times as long;", end=" ")
        print(f"{made.reached:.0%} came to it, {made.right:.0%} are right; of the fixed {made.fixed_right:.0%}")
    all_of_it = {"overhead": cost, "ratios": found.ratios, "asked": found.asked, "made_up": made_up}
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(all_of_it)))


if __name__ == "__main__":
    main()
