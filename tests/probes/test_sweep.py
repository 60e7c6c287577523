"""The sweep in one process: its steps on torch's fake group, its arithmetic on times made up here."""

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncclprobe.errors import ProbeError, UsageError
from ncclprobe.host import Replay
from ncclprobe.model import Library, Measurement
from ncclprobe.ops import OPS
from ncclprobe.probes import Probe
from ncclprobe.probes.sweep import Plan, Skipped, run, tally
from ncclprobe.registry import discover

KiB = 1 << 10
ROOMY = Replay({("read", "/proc/meminfo"): "MemAvailable: 99999999 kB\n"})


def plan(**changes: object) -> Plan:
    """Two ranks, one size, one of everything that costs time."""
    defaults: dict[str, object] = {
        "ops": ("all_reduce",),
        "sizes": (64 * KiB,),
        "rank": 0,
        "ranks": 2,
        "backend": "gloo",
        "footprint_bytes": 64 * KiB,
        "verify": False,
    }
    return Plan(**(defaults | changes))  # type: ignore[arg-type]


class Alone:
    """An exchange for a rank whose peers all say the same as it does, or what `others` says."""

    def __init__(self, ranks: int, others: Sequence[float] | None = None) -> None:
        self.ranks, self.others = ranks, others

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Our values and the others'."""
        return [list(values)] + [list(self.others or values)] * (self.ranks - 1)

    def agree(self, value: float) -> float:
        """We are rank 0."""
        return value


class Link:
    """A clock that only calls move: `latency_s` and the bytes at `bytes_per_s` for each."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.time, self.latency_s, self.bytes_per_s = 0.0, latency_s, bytes_per_s
        self.log: list[str] = []

    def all_reduce(self, tensor: object, op: object) -> None:
        self.log.append("call")
        self.time += self.latency_s + len(tensor) * 4 / self.bytes_per_s  # type: ignore[arg-type]

    def now(self) -> float:
        return self.time

    def synchronise(self) -> None:
        self.log.append("synchronise")

    def barrier(self) -> None:
        self.log.append("barrier")


@pytest.fixture(scope="module", autouse=True)
def fake_group() -> Iterator[None]:
    """A process group in which every collective returns at once and moves nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """A link of 10 us and 1 GB/s behind dist.all_reduce."""
    link = Link(latency_s=10e-6, bytes_per_s=1e9)
    monkeypatch.setattr(dist, "all_reduce", link.all_reduce)
    return link


def measured(plan: Plan, link: Link | None = None) -> list[Measurement | Skipped]:
    return list(run(plan, Alone(plan.ranks), lambda phase: None, clock=link, host=ROOMY))


def test_a_sweep_recovers_the_link_it_runs_on(link: Link) -> None:
    rows = measured(plan(sizes=(1 << 10, 1 << 20)), link)
    assert [row.time_us.mean for row in rows if isinstance(row, Measurement)] == pytest.approx([11.024, 1058.576])


def test_the_order_of_things_is_that_of_nccl_tests(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    row, _ = measured(plan(sizes=(64 * KiB, 256 * KiB), warmup=3, iters=4, batches=2, backend="nccl"), link)
    assert isinstance(row, Measurement)
    assert (row.mode, row.library) == ("queued", Library("nccl", "2.28.9"))
    first_call = ["call", "synchronise"]
    warm_up = (["call"] * 3 + ["synchronise"]) * 3  # 64, 128 and 256 KiB: doubling, although -f was 4
    batch = ["barrier"] + ["call"] * 4 + ["synchronise"]
    size = ["call", "synchronise", *batch, *batch]
    assert link.log == [*first_call, *warm_up, *size, *size]


def test_gloo_is_always_blocking(link: Link) -> None:
    [row] = measured(plan(mode="queued"), link)
    assert isinstance(row, Measurement)
    assert (row.mode, row.library.name) == ("blocking", "gloo")
    assert link.log[-2:] == ["call", "synchronise"]


def test_the_host_says_what_comes_next_before_anything_that_may_block() -> None:
    phases: list[str] = []
    rows = run(plan(ops=("all_gather",), verify=True, batches=2), Alone(2), phases.append, host=ROOMY)
    list(rows)
    assert phases == [
        "allocating 2 x 64 KiB",
        "all_gather first call out of place",
        "all_gather first call in place",
        "all_gather 64 KiB warm-up",
        "all_gather 64 KiB out of place untimed call",
        "all_gather 64 KiB out of place batch 1 of 2",
        "all_gather 64 KiB out of place batch 2 of 2",
        "all_gather 64 KiB out of place verify",
        "all_gather 64 KiB out of place gather",
        "all_gather 64 KiB in place untimed call",
        "all_gather 64 KiB in place batch 1 of 2",
        "all_gather 64 KiB in place batch 2 of 2",
        "all_gather 64 KiB in place verify",
        "all_gather 64 KiB in place gather",
    ]


def test_a_collective_that_fetches_nothing_from_the_other_rank_is_wrong_by_that_much() -> None:
    rows = measured(plan(ops=("all_gather",), verify=True))
    assert [row.wrong for row in rows if isinstance(row, Measurement)] == [2 * 8 * KiB] * 2  # of two ranks


def test_every_operation_runs_in_every_place_and_all_are_bound() -> None:
    rows = [row for row in measured(plan(ops=tuple(OPS))) if isinstance(row, Measurement)]
    assert [(row.op, row.place) for row in rows] == [(op.name, place) for op in OPS.values() for place in op.places]
    assert {probe.name for probe in discover("ncclprobe.probes", Probe)} == set(OPS)


def test_the_footprint_is_reported_and_does_not_depend_on_the_sizes(link: Link) -> None:
    for sizes in ((8,), (8, 4 * KiB)):
        for row in measured(plan(sizes=sizes), link):
            assert isinstance(row, Measurement)
            assert row.footprint_bytes == 64 * KiB


def test_a_size_too_small_to_share_is_said_and_not_measured() -> None:
    skipped, *rows = measured(plan(ops=("all_gather",), sizes=(8, 64), ranks=2))
    assert skipped == Skipped("all_gather", 8, "8 B is too little for 2 ranks to share")
    assert [row.nbytes for row in rows if isinstance(row, Measurement)] == [64, 64]


def refuse(*args: object) -> None:
    raise TypeError("Input tensor data type is not supported for NCCL process group\nException raised from …")


def test_what_the_backend_refuses_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    monkeypatch.setattr(dist, "broadcast", refuse)
    skipped, row = measured(plan(ops=("broadcast", "all_reduce")), link)
    why = "Input tensor data type is not supported for NCCL process group"
    assert skipped == Skipped("broadcast", None, why)
    assert isinstance(row, Measurement)


@pytest.mark.parametrize(("refused_here", "others"), [(True, 0.0), (False, 1.0)])
def test_a_call_refused_by_some_ranks_only_is_a_lost_measurement_on_all(
    monkeypatch: pytest.MonkeyPatch, refused_here: bool, others: float
) -> None:
    if refused_here:
        monkeypatch.setattr(dist, "broadcast", refuse)

    class Divided(Alone):
        def gather(self, values: Sequence[float]) -> list[list[float]]:
            return [list(values), [others if len(phases) > 1 else values[0]]]

    phases: list[str] = []
    with pytest.raises(ProbeError, match=r"broadcast first call: failed on 1 of 2 ranks"):
        list(run(plan(ops=("broadcast",)), Divided(2), phases.append, host=ROOMY))


def closed(*args: object) -> None:
    raise RuntimeError("Connection closed by peer [10.0.0.2]:4711")


def test_ranks_that_all_lost_each_other_in_the_first_call_have_not_refused_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "broadcast", closed)
    monkeypatch.setattr(dist, "barrier", closed)
    with pytest.raises(ProbeError, match=r"barrier after broadcast failed with .*Connection closed by peer"):
        measured(plan(ops=("broadcast",)))


def test_an_error_of_the_backend_itself_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def unhandled(*args: object) -> None:
        raise dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error")

    monkeypatch.setattr(dist, "broadcast", unhandled)
    with pytest.raises(ProbeError, match=r"rank 0: broadcast first call in place: NCCL error"):
        measured(plan(ops=("broadcast",)))


def test_a_failure_names_rank_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([None] * 3)

    def all_reduce(tensor: object, op: object) -> None:
        if next(calls, "dead") == "dead":
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1234\nmore")

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with pytest.raises(ProbeError) as lost:
        list(run(plan(warmup=5), Alone(2), lambda phase: None, host=ROOMY))
    assert str(lost.value) == "rank 0: all_reduce 64 KiB warm-up: Connection closed by peer [127.0.0.1]:1234"


def test_more_memory_than_the_fullest_rank_has_is_refused_before_it_is_taken() -> None:
    rows = run(plan(sizes=(1 << 40,)), Alone(2, others=[float(1 << 20)]), lambda phase: None, host=ROOMY)
    with pytest.raises(UsageError, match=r"-e 1024 GiB: two buffers need 2048 GiB .* only 1 MiB free; .* smaller -e"):
        next(rows)


def test_ranks_of_one_host_share_its_memory() -> None:
    host = Replay({("read", "/proc/meminfo"): "MemAvailable: 1024 kB\n"})
    needs_half = plan(sizes=(256 * KiB,), ranks=4)
    with pytest.raises(UsageError, match="256 KiB free"):
        next(run(needs_half, Alone(4), lambda phase: None, host=host))


def tallied(rows: dict[int, list[float]], batches: int, verify: bool = True) -> Measurement:
    """A row for an all_reduce of 1 MB between as many ranks as there are rows."""
    op = OPS["all_reduce"]
    made = plan(ranks=max(2, len(rows)), batches=batches, iters=1, verify=verify)
    return tally(made, op, op.shape(1_000_000, made.ranks, 4), "in", 64, rows)


def test_bandwidth_comes_from_the_mean_time_and_not_from_the_mean_of_rates() -> None:
    row = tallied({0: [1e-3, 1e-3, 0.0], 1: [3e-3, 3e-3, 0.0]}, batches=1)
    assert row.time_us.mean == pytest.approx(2000)
    assert row.algbw_GBps == pytest.approx(0.5)  # the mean of 1 and 1/3 GB/s would be 0.67
    assert row.busbw_GBps == pytest.approx(0.5)


def test_batches_with_different_times_do_not_become_a_mean_of_rates_either() -> None:
    row = tallied({rank: [1e-3, 9e-3, 1e-3, 9e-3, 0.0] for rank in range(2)}, batches=2)
    assert row.algbw_GBps == pytest.approx(1e6 / 5e-3 / 1e9)


def test_a_sample_is_the_mean_over_ranks_of_one_batch() -> None:
    times = {0: [1e-3, 2e-3, 3e-3, 4e-3, 5e-3], 1: [3e-3, 4e-3, 5e-3, 6e-3, 7e-3]}
    row = tallied({rank: [*seconds, *[1e-6] * 5, 0.0] for rank, seconds in times.items()}, batches=5)
    spread = row.time_us
    assert (spread.min, spread.median, spread.max) == pytest.approx((2000, 4000, 6000))
    assert row.issue_us == pytest.approx(1)


def test_the_slowest_rank_is_named_even_if_another_has_the_worst_batch() -> None:
    rows = {0: [9e-3, 1e-3], 1: [6e-3, 6e-3], 2: [1e-3, 1e-3]}
    assert tallied({rank: [*row, *row, 0.0] for rank, row in rows.items()}, batches=2).slowest_rank == 1


def test_one_batch_has_a_mean_and_nothing_else() -> None:
    spread = tallied({0: [1e-3, 1e-3, 0.0]}, batches=1).time_us
    assert (spread.median, spread.min, spread.p95, spread.max, spread.stdev) == (None,) * 5


@pytest.mark.parametrize(("verify", "wrong"), [(True, 7), (False, None)])
def test_wrong_elements_are_summed_over_ranks_and_null_when_nobody_looked(verify: bool, wrong: int | None) -> None:
    assert tallied({0: [1e-3, 1e-3, 3.0], 1: [1e-3, 1e-3, 4.0]}, batches=1, verify=verify).wrong == wrong


def test_another_rank_than_0_speaks_for_itself() -> None:
    assert tallied({3: [1e-3, 1e-3, 0.0]}, batches=1).slowest_rank == 3


def test_only_reductions_have_a_reduction() -> None:
    rows = measured(plan(ops=("broadcast", "reduce"), redop="max"))
    assert [row.redop for row in rows if isinstance(row, Measurement)] == [None, "max"]


def test_a_device_out_of_memory_is_said_with_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 KiB.\nMore.")

    monkeypatch.setattr("ncclprobe.probes.sweep.allocate", exhausted)
    with pytest.raises(ProbeError, match=r"rank 0: allocating 2 x 64 KiB: CUDA out of memory. Tried .* KiB.$"):
        measured(plan())
