"""How much is measured, and what the times of all ranks become, on clocks of this test: rows of `FUNCTIONS`."""

import asyncio
import errno
import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import accumulate, count, product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from conftest import answers
from fake_verbs import channels
from probes.test_sweep import Alone, plan
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncclprobe.checks.rail.fixtures import World
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model import training as steps
from ncclprobe.model.errors import Missing, NcclprobeError
from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.ops import OPS
from ncclprobe.model.rails import RailArrival, RailPort, RailStream, RailTest
from ncclprobe.model.registry import discover
from ncclprobe.model.training import Grid, Model
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes import arrival_skew, buffers, clock, nccl_library, sweep, training
from ncclprobe.probes import pairs as ends
from ncclprobe.probes.arrival_skew import Arrival
from ncclprobe.probes.buffers import Pattern
from ncclprobe.probes.clock import CudaClock
from ncclprobe.probes.collectives import Probe, Slice
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.probes.pairs import PairEndpoint, PairTiming
from ncclprobe.probes.plan import MOST_BATCHES, Target, calls_per_batch, more_batches
from ncclprobe.probes.sweep import RankResult
from ncclprobe.probes.training import Bench
from ncclprobe.probes.verbs import abi, library, pair, traffic
from ncclprobe.probes.verbs import port as verbs_port
from ncclprobe.probes.verbs.library import VerbsError
from ncclprobe.probes.verbs.messages import Answer, Request
from ncclprobe.session.measure import ladder, nic_traffic
from tests.one_rank import NOWHERE, Noted, Others, Rows, in_all_words, instead

CPU = torch.device("cpu")
_WIDE = [0.5, 0.7, 1.0, 1.3, 1.5]
_CALLS = ((1e-4, 0.5), (1.0, 0.5), (5e-3, 0.5), (1e-8, 0.5), (0.0, 0.5), (1e-3, 20.0), (1e-3, 2.0))
_SAMPLES: tuple[tuple[list[float], float], ...] = (
    ([], 100.0), ([1.0] * 3, 100.0), ([1.0] * 5, 0.1), ([0.98, 0.98, 1.0, 1.03, 1.03], 0.01), (_WIDE, 0.01),
    (_WIDE, 1.5),
    (_WIDE, 1.9), (_WIDE, 50.0), ([1.0, 2.0] * (MOST_BATCHES // 2), 1e-3),
    (([1.0, 2.0] * (MOST_BATCHES // 2))[:-10], 1e-3),
    ([0.98, 0.99, 1.0, 1.01, 1.02], 0.1), ([0.98, 0.99, 1.0, 1.01, 1.0201], 0.1),
)  # fmt: skip
_WRONG = Mismatch(1, 2, None, "1", "2", "0x1", "0x2")
_RESULTS: dict[str, tuple[dict[str, Any], list[RankResult]]] = {
    "two ranks": ({}, [RankResult([1e-3], 1e-6), RankResult([3e-3], 3e-6)]),
    "five batches": ({}, [RankResult([0.001, 0.002, 0.003, 0.004, 0.009], 1e-6),
    RankResult([0.003, 0.002, 0.001, 0.006, 0.007], 1e-6)]),
    "a precision": ({"precision": 0.02}, [RankResult([1e-3] * 4 + [9e-3], 1e-6)] * 2),
    "slow in the middle": ({"ranks": 3}, [RankResult([9e-3, 1e-3], 0), RankResult([6e-3, 6e-3], 0),
    RankResult([1e-3, 1e-3], 0)]),
    "wrong": ({"ranks": 9}, [RankResult([1e-3], 0, 2e-4, 3, replace(_WRONG, rank=rank)) for rank in range(9)]),
    "one wrong": ({}, [RankResult([1e-3], 0, 2e-4, 0), RankResult([1e-3], 0, 4e-4, 7, _WRONG)]),
    "not all have a device": ({}, [RankResult([1e-3], 0, 2e-4, None), RankResult([1e-3], 0, None, 0)]),
    "launch bound": ({"backend": "nccl"}, [RankResult([1e-3], 8e-4)] * 2),
    "just not": ({"backend": "nccl"}, [RankResult([1e-3], 7.9e-4)] * 2),
    "blocking": ({"backend": "nccl", "mode": "blocking"}, [RankResult([1e-3], 1e-3)] * 2),
    "late": ({}, [RankResult([1e-3], 0, arrivals=[Arrival(1.0, 1.004, 0.2)]),
    RankResult([1e-3], 0, arrivals=[Arrival(5.0, 5.0061, 0.1)])]),
}  # fmt: skip


def _rows_inputs() -> Rows:
    """How many calls and batches there are, and the row of all ranks' results."""
    for call_s, budget_s in _CALLS:
        yield f"{call_s} in {budget_s}", calls_per_batch(call_s, Target(0.02, budget_s))
    for samples, spent_s in _SAMPLES:
        yield f"{samples[:5]} of {len(samples)} in {spent_s}", more_batches(samples, spent_s, Target(0.02, 2.0))
    for (name, (changes, results)), op in product(_RESULTS.items(), ("all_reduce", "all_gather")):
        made = plan(**changes)
        shape = OPS[op].shape(1_000_000, made.ranks, 4)
        with (
            instead(nccl_library, loaded=LoadedNccl((2, 28, 9), "", (2, 28, 9))),
            mock.patch.object(torch, "__version__", "2.9"),
        ):
            row = sweep.reduce_ranks(made, OPS[op], shape, "in", 64, 3, dict(enumerate(results)))
        told = RankResult.unpack(json.loads(json.dumps(results[-1].pack())))
        yield f"{op}, {name}", row, told == results[-1]
    for ranks, batches in ((100, 10), (100, 11), (2, 3)):
        found = sweep.samples_of([1e-3] * batches, [[1e-3] * batches] * ranks)
        yield f"{batches} of {ranks}", [len(each) for each in (found.by_rank, found.by_batch, found.each)]


def _rounds(
    late_s: Mapping[tuple[int, int], float], ahead_s: Mapping[int, float], ranks: int = 3
) -> dict[int, list[Arrival]]:
    """Eight rounds in which rank r comes `late_s[r, round]` late, on clocks that are `ahead_s`."""
    came = {
        number: [number + arrival_skew.WAIT_S + late_s.get((rank, number), 0.0) for rank in range(ranks)]
        for number in range(8)
    }
    return {
        rank: [
            Arrival(number + ahead_s.get(rank, 0.0), came[number][rank] + ahead_s.get(rank, 0.0),
                max(came[number]) + 2e-4 - came[number][rank])
            for number in range(8)
        ]
        for rank in range(ranks)
    }  # fmt: skip


def _clocks_inputs() -> Rows:
    """Who comes late, how often that is looked at, and what a GPU's clock marks."""
    late = {
        "nobody": _rounds({}, {1: 1e6, 2: -7.0}), "two rounds": _rounds({(2, 1): 0.03, (2, 4): 0.03}, {2: 500.0}),
        "the first": _rounds({(0, number): 5e-3 for number in range(8)}, {0: 500.0}, 2),
        "at the limit": _rounds({(1, 0): 0.99e-3, (1, 1): 1.01e-3, (0, 2): 2.5e-3}, {}, 2),
        "none": {}, "no round": {0: [], 1: []},
    }  # fmt: skip
    for name, rounds in late.items():
        found = arrival_skew.skew(rounds)
        rounded = found and {each: getattr(found, each) for each in found.__struct_fields__}
        yield name, {key: str(value) for key, value in (rounded or {}).items()}
    for call_s in (0.0, 0.025, 0.028, 0.066, 0.067, 10.0):
        yield f"rounds of {call_s}", arrival_skew.rounds(call_s, 2.0)
    log: list[str] = []
    event = lambda enable_timing: SimpleNamespace(  # noqa: E731 - a class of torch's
        record=lambda: log.append(f"record {enable_timing}"), elapsed_time=lambda last: 1500.0
    )
    graph = SimpleNamespace(replay=lambda: log.append("replay"))
    cuda: Any = Noted(graph=nullcontext(), current_device=3)
    cuda.Event, cuda.CUDAGraph = event, lambda: graph
    with (
        mock.patch.object(clock.torch, "cuda", cuda),
        instead(clock.dist, barrier=lambda device_ids: log.append(f"{device_ids}")),
    ):
        gpu: Any = CudaClock()
        gpu.synchronise()
        gpu.barrier()
        marks = gpu.mark(), gpu.mark()
        gpu.graph([lambda: log.append("call")] * 2)()
        yield "a GPU", gpu.between(*marks), log, [name for name, *_ in cuda.calls], cuda.calls[-1][-1]
    for device_s in (0.5, None):
        ends = SimpleNamespace(mark=lambda: "m", synchronise=lambda: None, between=lambda *_, s=device_s: s)
        own = SimpleNamespace(now=iter((1.0, 3.0, 7.0)).__next__, **vars(ends))
        yield f"queued, {device_s}", clock.time_batch([lambda: None] * 2, "queued", own, each=4)  # type: ignore[arg-type]
        ticks = SimpleNamespace(now=iter((10.0, 20.0, 21.0)).__next__, barrier=list, **vars(ends))
        ticks.busy_until = lambda at: log.append(f"{at:.3f}")
        yield f"arrives, {device_s}", arrival_skew.arrive(lambda: None, ticks), log[-1]  # type: ignore[arg-type]


_MEMINFO = "MemTotal:       32768 kB\nMemFree:          100 kB\nMemAvailable:   16384 kB\n"
_GROUPS: tuple[tuple[Any, ...], ...] = (
    (_MEMINFO, None, None, None), (_MEMINFO, "max\n", "4096\n", "inactive_file 0\n"), (_MEMINFO, "8192\n", "x\n", None),
    (_MEMINFO, "8192\n", "4096\n", "anon 1\ninactive_file 1024\n"), (_MEMINFO, "4096\n", "8192\n", None),
    (None, "8192\n", "4096\n", None), (None, None, None, None), (" MemAvailable: 9 kB\n", None, None, None),
)  # fmt: skip
_GPUS = (
    (70, None, 0, 0), (10, 40, 0, 0), (10, 60, 20, 0), (10, 60, 20, 8), (10, 20, 24, 0), (3, 0, 0, 0), (4, 0, 0, 0), (0,
    0, 0, 0),
)  # fmt: skip


def _rooms_inputs() -> Rows:
    """The memory that may be taken, what is left out without it, and what a buffer holds that is wrong."""
    for meminfo, *group in _GROUPS:
        files = {
            ("read", f"/sys/fs/cgroup/memory.{name}"): text
            for name, text in zip(("max", "current", "stat"), group, strict=True)
        }
        host = answers(
            {key: text or Missing("") for key, text in (files | {("read", "/proc/meminfo"): meminfo}).items()}
        )
        yield f"{str(meminfo)[:9]} {group}", buffers.free_bytes(CPU, host)
    for free, *held in _GPUS:
        stats = {
            f"{name}.all.current": each << 30
            for name, each in zip(buffers._HELD, held, strict=True)
            if each is not None
        }
        with instead(torch.cuda, mem_get_info=(free << 30, 80 << 30), memory_stats=stats):
            yield f"GPU of {free}, {held}", buffers.free_bytes(torch.device("cuda:0"), NOWHERE)
    yield (
        "footprints",
        [buffers.footprint(*each) for each in ((8, 1 << 16), (1 << 17, 1 << 16), (1000, 0), (512, 512), (513, 0))],
    )
    for dtype, tolerance in ((torch.float32, 0.25), (torch.int8, 0.0)):
        data = Pattern(
            torch.full((2, buffers.PERIOD), 4, dtype=dtype), torch.full((buffers.PERIOD,), 8, dtype=dtype), tolerance
        )
        came = torch.tensor([8, 10, 11, 6, 5, 8, 4, 4, 5], dtype=dtype)
        for parts in ([Slice(None, 0, 6), Slice(1, 2, 3)], [Slice(None, 0, 2)], [Slice(1, 0, 6), Slice(0, 0, 3)], []):
            yield f"{dtype} {parts}", data.wrong(came, parts), data.first_wrong(came, parts, 1)
    for changes, others in product(
        ({}, {"device": "cuda:1"}, {"ranks": 5, "nodes": 2}, {"backend": "nccl", "sizes": (8, 1 << 20, 1 << 13)}),
        ([], [900], [1100, 900, 900], [None]),
    ):
        for rank in (0, 1):
            made = plan(footprint_bytes=512, **changes)
            exchange = Others([700, 3] if rank else others, rank=rank)
            if others == [None]:
                room, fullest = sweep.least_room(made, Others(rank=0), None)
            else:
                room, fullest = sweep.least_room(made, exchange, 3000)  # type: ignore[arg-type]
            room = min(room, 1 << 20)
            fits = tuple(nbytes for nbytes in made.sizes if 2 * sweep.buffer_bytes(made, nbytes) <= room)
            try:
                skipped: Any = list(sweep.skipped_for_memory(made, fits, room, fullest))
            except NcclprobeError as refused:
                skipped = str(refused)
            yield f"{changes} {others}, rank {rank}", room, fullest, exchange.said, skipped
    for longest_s, nbytes, call_s, rank in product((None, 5.0, 60.0, 120.0), (1 << 19, 1 << 20), (1.0, 5.0), (0, 1)):
        context: Any = SimpleNamespace(plan=plan(precision=0.02, longest_s=longest_s), set_phase=lambda name: None,
                                       exchange=Others(7.0 if rank else [0.5, 2.0], rank=rank))  # fmt: skip
        late = sweep.too_long(context, "x", nbytes, (2 << 20, 8 << 20, 4 << 20), call_s)
        yield f"limit {longest_s}, {nbytes}, {call_s}, rank {rank}", late
    for precision, longest_s, warmup in product((None, 0.02), (None, 5.0), (0, 1, 3)):
        made = plan(precision=precision, longest_s=longest_s, warmup=warmup)
        ticks: list[str] = []
        own: Any = SimpleNamespace(
            now=lambda ticks=ticks: float(len(ticks)), synchronise=lambda ticks=ticks: ticks.append("wait")
        )
        seconds = sweep.warm_up_size(SimpleNamespace(plan=made, clock=own), lambda ticks=ticks: ticks.append("call"))  # type: ignore[arg-type]
        yield f"warm-up {precision} {longest_s} {warmup}", seconds, ticks


def _sent(order: list[str], op: str, wait: bool = True) -> Callable[..., Any]:
    """Stands for a call of torch's; the order of calls and waits is noted."""

    def issue(view: Any) -> Callable[[], None]:
        order.append(f"{op} {view}")
        return lambda: order.append(f"end of {op} {view}")

    return issue


def _training_inputs() -> Rows:
    """The calls and the compute of steps in their order, groups that share the network, and the rows of both."""
    for strategy, overlap in product(steps.STRATEGIES, (True, False)):
        order: list[str] = []
        items = steps.step(strategy, Model(params=3_000_000, layers=2, micro_batches=2))
        views: Any = {(item.op, item.nbytes): item.nbytes for item in items if isinstance(item, steps.Collective)}
        work: Any = SimpleNamespace(
            do=lambda chunks, order=order: order.append(f"{chunks:.4g}"), rest=lambda order=order: order.append("rest")
        )
        with mock.patch.object(training, "ISSUE", {name: _sent(order, name) for name in training.ISSUE}):
            training.play_step(items, views, work, 24.0, overlap)
        yield f"{strategy}, overlap {overlap}", order
    made: list[Any] = []
    with (
        mock.patch.object(training.torch, "mm", lambda a, b, out: made.append(len(a))),
        instead(training.torch, set_num_threads=made.append),
    ):
        seconds = iter(range(100))
        work = training.Work(CPU, SimpleNamespace(now=lambda: float(next(seconds)), synchronise=lambda: None))  # type: ignore[arg-type]
        begun = len(made)
        for chunks in (0.4, 0.4, 0.4, 1.0, 2.5):
            work.do(chunks)
            made.append("|")
        work.rest()
        work.do(0.9)
        yield "work", made[0], begun, made[begun:], work.chunk_s, work.flops
    grid, hosts = Grid(tp=2, dp=2), ["n0", "n1", "n0", "n1"]
    for kind, shared in product(("tp", "dp"), ([], [[1.0, 2.0], [3.0, 2.0], [0.5, 0.5], [9.0, 0.5]])):
        alone = [[1e-3, 3e-3, 2e-3], [3e-3, 3e-3, 4e-3], [9e-3, 1e-3, 1e-3], [1e-3, 1e-3, 1e-3]]
        group = training.Group(kind, (0, 1), OPS["all_reduce"].shape(1 << 20, 2, 4), lambda: None)  # type: ignore[arg-type]
        yield f"{kind} groups, {len(shared)}", training.group_row(grid, group, hosts, alone, shared)
    for one_s, device in product((0.001, 0.004, 0.05, 1.0), ("cpu", "cuda:0")):
        names: list[str] = []
        bench: Any = SimpleNamespace(
            plan=plan(device=device, warmup=0), slowest=lambda seconds: seconds, phase=lambda name,
                names=names: names.append(name) or nullcontext(),
            clock=Noted(), batch=lambda name, call, calls, names=names,
                s=one_s: names.append(f"{name}: {calls}") or s / calls,
        )  # fmt: skip
        groups: Any = [SimpleNamespace(kind=kind, call=lambda: None) for kind in ("tp", "dp", "pp")]
        counts: list[Any] = []
        played = lambda groups, each, counts=counts: counts.append(each) or [9.0, 4.0, 2.0]  # noqa: E731
        usual = {"tp": [0.001], "dp": [one_s, one_s / 2, one_s * 2], "pp": [0.003]}
        with instead(
            training, _run_in_threads=played, run_on_streams=lambda *given, f=played: [each / 2 for each in f(*given)]
        ):
            together = training.time_together(bench, groups, usual)  # type: ignore[arg-type]
        yield f"{one_s} s on {device}", training.time_one_kind(bench, groups[0]), names, together, counts
    log: list[str] = []
    cuda: Any = Noted(stream=nullcontext())
    cuda.Stream = lambda: f"s{len(log)}"
    cuda.Event = lambda enable_timing: SimpleNamespace(
        record=lambda stream: log.append(f"{enable_timing} {stream}"),
        elapsed_time=lambda end: float(len(log)),
        synchronize=None,
    )
    groups = [SimpleNamespace(call=lambda kind=kind: log.append(kind)) for kind in ("tp", "dp")]
    with mock.patch.object(training.torch, "cuda", cuda):
        yield "streams", training.run_on_streams(groups, [1, 3]), log, cuda.calls
    for grid_, sizes in ((Grid(), (8,)), (Grid(tp=2), (2,)), (Grid(pp=2), (0,))):
        bench = Bench(plan(sizes=sizes), Others(), lambda name: None, Noted())  # type: ignore[arg-type]
        try:
            yield f"{grid_} of {sizes}", len(list(training.play_groups(bench, grid_, ["n0", "n0"])))
        except NcclprobeError as refused:
            yield f"{grid_} of {sizes}", str(refused)
    usual = Model(params=3_000_000, layers=1)
    need = steps.memory_bytes("fsdp", usual)
    for asked, room in ((Model(params=3, layers=1), None), (usual, need), (usual, need - 1)):
        bench = Bench(plan(ranks=9), Others(), lambda name: None, Noted())  # type: ignore[arg-type]
        try:
            yield f"room {room}", len(list(training.play_strategy(bench, None, "fsdp", asked, room)))  # type: ignore[arg-type]
        except (NcclprobeError, AttributeError, ValueError) as refused:
            yield f"room {room}", f"{type(refused).__name__} {refused}"[:200]


class _Ticks:
    """A clock that moves on by some milliseconds at each look."""

    def __init__(self) -> None:
        self.now = accumulate(1e-3 * (1 + number * number % 7) for number in count()).__next__

    def nothing(self, *_: object) -> None: ...

    synchronise = barrier = busy_until = mark = between = nothing


def _in_groups_inputs() -> Rows:
    """Each step of training, of ladders and of counted calls, in a group whose calls return at once."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    looks, new_group, hosts = count(), dist.new_group, ["n0", "n0", "n1", "n1"]
    wanted = {op: nic_traffic.Calls(op, 64 << 10, turn) for op, turn in (("reduce", 3), ("all_gather", 2))}
    grids, model = (Grid(tp=2, dp=2), Grid(pp=4)), Model(3_000_000, 2, micro_batches=2)
    parts: Any = (
        ("counted", lambda bench: nic_traffic.count_traffic(
            bench.plan, wanted, bench.exchange, bench.set_phase, looks.__next__)),
        ("counted, none", lambda bench: nic_traffic.count_traffic(bench.plan, {}, *[None] * 3)),
        *((f"groups {grid}", lambda bench, grid=grid: training.play_groups(bench, grid, hosts)) for grid in grids),
        *((f"steps of {strategy}", lambda bench, each=strategy: training.play_strategy(
            bench, training.work_of(bench), each, model, None)) for strategy in steps.STRATEGIES),
        ("ladder", lambda bench: ladder.climb(
            bench.plan, steps.plan(hosts, pairs=True), ladder.LadderSizes(1 << 20, 1 << 16, 1.0), 9.0,
            bench.exchange, bench.set_phase)),
    )  # fmt: skip
    try:
        for name, played in parts:
            phases, took = list[str](), _Ticks()

            def opened(*given: Any, phases: list[str] = phases, **how: Any) -> Any:
                phases.append(f"{given} {how}")
                return new_group(*given, **how)

            bench: Any = Bench(plan(ranks=4, dtype="float16"), Alone(4), phases.append, took)
            with (
                instead(training.torch, mm=None),
                instead(training, _run_in_threads=lambda groups, counts: [2e-3 * each for each in counts]),
                instead(nic_traffic, clock_of=took), instead(ladder, clock_of=took), instead(dist, new_group=opened),
            ):  # fmt: skip
                yield name, list(played(bench)), phases
    finally:
        dist.destroy_process_group()


def _slots_inputs() -> Rows:
    """Where each operation sends from and receives, and what must stand there afterwards."""
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    held = buffers.allocate(64 << 10, torch.float32, CPU)
    starts = held.send.data_ptr(), held.recv.data_ptr()

    def place_of(view: torch.Tensor) -> list[object]:
        at = view.data_ptr() - starts[0]
        here = 0 <= at < 64 << 10
        return ["send" if here else "recv", at if here else view.data_ptr() - starts[1], len(view)]

    for op, ranks, nbytes in product(OPS.values(), (2, 3), (8, 1000, 33 << 10, 64 << 10)):
        shape = op.shape(nbytes, ranks, 4)
        for place, rank in product(op.places if shape.nbytes else (), (0, ranks - 1)):
            views = list(held.views(shape, place, rank, 70))
            few = [list(map(place_of, pair)) for pair in views[:2]]
            yield f"{op.name} {nbytes} of {ranks}, {place}, rank {rank}", len(views), few
    for name, ranks in product(probes, (2, 3)):
        yield (
            f"{name} of {ranks}", *([[each.source, each.start, each.count] for each in probes[name].result(rank, ranks,
            512)] for rank in range(ranks)),
        )  # fmt: skip


def _ends_inputs() -> Rows:
    """What one end of a pair makes of errors, of a new group, and of what arrives."""
    for device, words, fit in product(
        ("cpu", "cuda"), ("Connection reset by peer", "Timed out", *ends._PEER_GONE[:1]), (True, False)
    ):
        end = PairEndpoint(0, CPU, (8, 16))
        end._device, end._fit = torch.device(device), fit
        first = end._lost_timing(f"[x] {words} [y]")
        yield f"{device}: {words}, {fit}", first, end.lost, end._lost_timing("Broken pipe"), end.lost
    for answer in (None, RuntimeError("Timed out after 3 s\nmore")):
        asked: list[Any] = []

        def made(ranks: list[int], asked: list[Any] = asked, answer: Any = answer, **how: Any) -> str:
            asked.append([ranks, *map(str, how.values())])
            if answer:
                raise answer
            return "group"

        end = PairEndpoint(0, CPU, (8, 16))
        end._fit = False
        with instead(ends.dist, new_group=made):
            yield f"renewed: {answer}", end.renew((0, 2), 3.0), asked, end._fit
    timing = PairTiming((1.0, 2.0), "w", 3, _WRONG, fit=False)
    yield (
        "as JSON",
        *(ends.from_json(json.loads(json.dumps(ends.as_json(each)))) == each for each in (timing, PairTiming())),
    )
    yield (
        "patterns", [int((ends.pattern(src, dst, CPU).total.long() * torch.arange(1,
        1022)).sum()) for src in range(3) for dst in range(3)],
    )  # fmt: skip


_ERRORS = (
    "ENOMEM", "EFAULT", "EOPNOTSUPP", "ENOSYS", "EACCES", "EPERM", "ENOENT", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH",
    "EINVAL",
)  # fmt: skip
_VERBS = (
    "ibv_reg_mr", "ibv_reg_dmabuf_mr", "ibv_create_cq", "ibv_create_qp", "ibv_open_device", "ibv_modify_qp",
    "ibv_query_gid",
)  # fmt: skip
_FABRICS = ("fe80000000000000", "fec0000000050001", "fec0000000070001", "fec0000000000002")


def _verbs_inputs() -> Rows:
    """The reasons for a call that fails, and the way to the other end's port."""
    for name, error in product(_VERBS, _ERRORS):
        yield f"{name} {error}", library.hint(name, getattr(errno, error))
    for number in (0, 5):
        failure = library.refusal("ibv_open_device", number)
        yield f"refused with {number}", failure.failure("open", direction="out")
    guid = "0002c90300a1b2c3"
    for layer, mine, theirs, flags in product((abi.INFINIBAND, abi.ETHERNET), _FABRICS[:2], _FABRICS, (0, 1, 2)):
        for asked in (
            RailPort(device="d", gid_index=3),
            RailPort(device="d", port=2, service_level=3, traffic_class=106),
        ):
            if flags and asked.port == 2:
                continue
            made: Any = verbs_port.Port.__new__(verbs_port.Port)
            made.asked, made.gid = asked, bytes.fromhex(mine + guid)
            made.attr = abi.PortAttr(link_layer=layer, flags=flags)
            peer: Any = SimpleNamespace(gid=theirs + guid, lid=9)
            way = made._route(peer)
            route = [
                way.sl, way.port_num, way.dlid, way.is_global, bytes(way.grh.dgid).hex(), way.grh.sgid_index,
                way.grh.hop_limit,
            ]  # fmt: skip
            yield f"{layer} {mine} to {theirs}, {flags}, {asked.port}", [*route, way.grh.traffic_class]
    queue_pairs = [SimpleNamespace(contents=SimpleNamespace(qp_num=number)) for number in (7, 8)]
    for state, width, speed, mtu, layer in (
        (4, 2, 128, 5, 1), (1, 1, 1, 1, 2), (5, 4, 2, 2, 0), (6, 8, 4, 3, 2), (0, 16, 8, 4, 2), (-1, 3, 9, 9, 2),
        (2, 2, 16, 5, 2), (3, 2, 32, 5, 2),
        (4, 2, 64, 5, 2),
    ):  # fmt: skip
        for wanted in (None, 1024, 9000):
            made = verbs_port.Port.__new__(verbs_port.Port)
            made.asked, made.gid, made._gid_type, made._pkey = (
                RailPort(device="d", gid_index=3, mtu=wanted), bytes(range(16)), "RoCE v2", 5,
            )  # fmt: skip
            made.attr = abi.PortAttr(
                state=state, active_mtu=mtu, active_width=width, active_speed=speed, lid=9, link_layer=layer
            )
            made.library, made.queue_pairs, made._psns, made.region_bytes = (
                Noted(has=False), queue_pairs, [70, 80], 4096,
            )  # fmt: skip
            made.data, made.mailbox = SimpleNamespace(address=1 << 20), SimpleNamespace(address=1 << 21)
            made.data_mr, made.mailbox_mr = (SimpleNamespace(contents=SimpleNamespace(rkey=key)) for key in (11, 12))
            yield f"port {state} {width} {speed} {mtu} {layer}, {wanted}", made.address()
    for driver in ({"cuInit": lambda *_: 0}, {"cuInit": lambda *_: 3}, {}):
        said_, memory = list[str](), verbs_port._GpuMemory.__new__(verbs_port._GpuMemory)
        memory._announce, memory._cuda = said_.append, SimpleNamespace(**driver, cuGetErrorName=lambda *_: 0)  # type: ignore[assignment]
        try:
            yield f"driver with {list(driver)}", memory._call("cuInit", 0), said_  # type: ignore[func-returns-value]
        except VerbsError as refused:
            yield f"driver with {list(driver)}", refused.failure("open"), said_
    flushed, well = (0, 7, abi.FLUSHED, 9), (abi.WC_RECEIVED, 5, 0, 0)
    for polls in ([[]], [[well, (1, 2, 0, 0)]], [-5], [[well, (0, 1, 12, 0x8A), flushed]], [[flushed]],
                  [[flushed], -5, [flushed, (0, 1, 10, 2)]], [[(0, 1, 99, 0)]]):  # fmt: skip
        left, made = iter(polls), traffic.Traffic.__new__(traffic.Traffic)  # type: ignore[assignment]

        def poll(cq: int, most: int, at: int, left: Any = left, made: Any = made) -> int:
            found: Any = next(left, [])
            for place, values in enumerate(found if isinstance(found, list) else ()):
                (each := made._found[place]).opcode, each.wr_id, each.status, each.vendor_err = values
            return len(found) if isinstance(found, list) else found

        made._poll_cq, made._found, made._found_at = poll, (abi.WorkCompletion * 32)(), 0.0
        made.port = SimpleNamespace(cq=1)
        try:
            with mock.patch.object(traffic, "_LOST_S", 0.001):
                yield f"polls {polls}", made.completions(), made._found_at > 0
        except VerbsError as refused:
            yield f"polls {polls}", refused.failure("write")
    for kind, number in product(("a", "b"), (0, 1, 2, 3, 4, 8, 9, 10, 11)):
        made = verbs_port.Port.__new__(verbs_port.Port)
        said = [(number, f"event {number}"), (10, "port error")] if kind == "a" else [(number, f"event {number}")]
        made.asked, made.context, made.events, made.library = RailPort(device="d"), None, [], Noted(events=said)
        failure = made.look_at_events()  # type: ignore[assignment]
        yield f"event {number} {kind}", failure and str(failure), made.events


_AT = World().address(End("n1", 0))
_ODD: tuple[dict[str, Any], ...] = (
    {"failure": {"step": "open", "kind": "gone", "text": ""}}, {"address": {"device": "right"}}, {},
    {"address": asdict(replace(_AT, gid="0f" * 60))}, {"address": asdict(replace(_AT, queue_pairs=()))},
    {"failure": asdict(VerbsError("late", "l").failure("open"))},
)  # fmt: skip


class _Child:
    """Answers at once; the first request of a kind in `fails` fails, or waits until this end is stopped."""

    def __init__(self, name: str, fails: dict[str, Any], asked: list[str]) -> None:
        self._name, self._fails, self._asked, self._stopped = name, dict(fails), asked, asyncio.Event()
        self.stop, self.close = self._stopped.set, list[Any]

    async def start(self, patience_s: float) -> None: ...

    async def ask(self, request: Request) -> Answer:
        whose = request.peer.device if request.peer else request.port.device if request.port else ""
        way = f"{request.direction} {request.leads:d}{request.writes:d}{request.reads:d}"
        self._asked.append(f"{self._name} {request.do} {way} {whose} {request.step} {request.seconds:g}")
        if kind := self._fails.pop(request.do, ""):
            if kind == "waits":
                await self._stopped.wait()
                return Answer(stopped=True, events=("port error",))
            raise VerbsError(kind, f"{request.do} failed", call="ibv_x")
        stream = RailStream(direction=request.direction, nbytes=8, seconds=2.0, work_s=1.0)
        arrival = RailArrival(direction=request.direction, checked_bytes=8, arrived_bytes=8, wrong_bytes=0)
        return Answer(
            address=replace(_AT, device=self._name) if request.do in ("open", "renew", "connect") else None,
            half_round_trip_us=(1.0, 2.0) if request.do == "ping" else (), stream=stream if request.writes else None,
            arrival=arrival if request.do == "verify" else None,
        )  # fmt: skip


def _outcome(end: Any) -> list[Any]:
    """What one end found, without its times."""
    found = end.streams, end.arrivals, end.half_round_trip_us, end.own, end.peer, end.events
    steps = [name for name, _ in end.steps]
    return [end.failures, " ".join(steps), *(each and (len(each) if isinstance(each, tuple) else 1) for each in found)]


def _rail_ends_inputs() -> Rows:
    """What both ends of a rail make of each call that fails, of an end that waits, and of messages that are none."""
    steps_ = ("open", "connect", "ping", "prepare", "stream", "verify", "renew")
    failing = [({step: kind}, {}) for step, kind in product(steps_, ("completion", "died"))]
    failing += [({}, {}), ({"stream": "waits"}, {"stream": "refused"}), ({"stream": "completion", "renew": "late"}, {})]
    for (one, two), leads in product(failing, (True, False)):
        fails, began = {True: one if leads else two, False: two if leads else one}, list[str]()
        asked: dict[bool, list[str]] = {True: [], False: []}
        children = iter([_Child("left", fails[True], asked[True]), _Child("right", fails[False], asked[False])])

        async def played(began: list[str] = began) -> list[Any]:
            async def before(name: str) -> None:
                began.append(name)

            test = RailTest(round_trips=4, seconds=2.0, setup_seconds=3.0, directions=("out", "in", "both"))
            until = time.monotonic() + 60.0
            sides = zip(("left", "right"), channels(), (True, False), (before, None), strict=True)
            return await asyncio.gather(*(
                pair.run_rail(RailPort(device=name), test, leads=first, channel=side, deadline=until, before=own)
                for name, side, first, own in sides))  # fmt: skip

        with instead(pair, VerbsChild=children.__next__), mock.patch.object(pair, "_AFTER_S", 0.0):
            ends_ = asyncio.run(played())
        yield f"{one} {two} {leads}", *map(_outcome, ends_), began, *([] if one else (asked[True], asked[False]))
    for number, message in enumerate(_ODD):

        async def alone(message: dict[str, Any] = message) -> Any:
            here, there = channels()
            here.inbox.put_nowait(message)
            test, until = RailTest(round_trips=4, seconds=0.0, setup_seconds=0.0), time.monotonic() + 0.05
            end = await pair.run_rail(RailPort(device="left"), test, leads=True, channel=here, deadline=until)
            return *_outcome(end), there.inbox.qsize()

        with instead(pair, VerbsChild=lambda: _Child("left", {}, [])), mock.patch.object(pair, "GRACE_S", 0.0):
            yield f"message {number}", *asyncio.run(alone())


FUNCTIONS = in_all_words({
    "rows-of-ranks": _rows_inputs, "clocks": _clocks_inputs, "rooms": _rooms_inputs,
    "steps-of-ranks": _training_inputs, "in-groups": _in_groups_inputs, "rail-ends": _rail_ends_inputs,
    "ends": _ends_inputs, "slots": _slots_inputs, "verbs": _verbs_inputs,
})  # fmt: skip
