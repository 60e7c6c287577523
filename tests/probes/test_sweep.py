"""The sweep in one process: its steps on torch's fake group."""

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import ProbeError, UsageError
from ncclprobe.model.measurement import Library, Measurement, SkippedRow
from ncclprobe.model.ops import OPS
from ncclprobe.model.registry import discover
from ncclprobe.probes import nccl_library
from ncclprobe.probes.collectives import Call, Probe
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.sweep import run
from probes.plans import KiB, plan
from tests.each_row import each_row

ROOMY = Replay({("read", "/proc/meminfo"): "MemAvailable: 99999999 kB\n"})


class Alone:
    """An exchange for a rank whose peers all say the same as it does, or what `others` says."""

    def __init__(self, ranks: int, others: object = None) -> None:
        self.ranks, self.others = ranks, others

    def collect(self, value: object) -> list[object]:
        """Our value and the others'."""
        return [value] + [value if self.others is None else self.others] * (self.ranks - 1)

    def share(self, value: object) -> object:
        """We are rank 0."""
        return value


class Link:
    """A clock that only calls move: `latency_s` and the bytes at `bytes_per_s` for each."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.time, self.latency_s, self.bytes_per_s = 0.0, latency_s, bytes_per_s
        self.log: list[str] = []

    def all_reduce(self, tensor: object, op: object, _group: None) -> None:
        self.log.append("call")
        self.time += self.latency_s + len(tensor) * 4 / self.bytes_per_s  # type: ignore[arg-type]

    def now(self) -> float:
        return self.time

    def synchronise(self) -> None:
        self.log.append("synchronise")

    def barrier(self) -> None:
        self.log.append("barrier")

    def busy_until(self, instant: float) -> None:
        self.log.append("busy")
        self.time = max(self.time, instant)

    def mark(self) -> float:
        return self.time

    def between(self, first: float, last: float) -> float:
        return last - first

    def graph(self, calls: Sequence[Call]) -> Call:
        self.log.append(f"graph of {len(calls)}")
        return lambda: [call() for call in calls]


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


def measured(plan: Plan, link: Link | None = None) -> list[Measurement | SkippedRow]:
    return list(run(plan, Alone(plan.ranks), lambda phase: None, clock=link, host=ROOMY))


def test_a_sweep_recovers_the_link_it_runs_on(link: Link) -> None:
    rows = measured(plan(sizes=(1 << 10, 1 << 20)), link)
    assert [row.time_us.mean for row in rows if isinstance(row, Measurement)] == pytest.approx([11.024, 1058.576])


def test_the_order_of_things_is_that_of_nccl_tests(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedNccl((2, 28, 9), "/site/lib/libnccl.so.2", (2, 27, 5))
    monkeypatch.setattr(nccl_library, "loaded", lambda: loaded)
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
    rows = run(plan(ops=("all_gather",), verify=True, batches=2, rounds=3), Alone(2), phases.append, host=ROOMY)
    list(rows)
    assert phases == [
        "allocating 2 x 64 KiB",
        "all_gather first call out of place",
        "all_gather first call in place",
        "all_gather 64 KiB warm-up",
        "all_gather 64 KiB out of place untimed call",
        "all_gather 64 KiB out of place batch 1",
        "all_gather 64 KiB out of place batch 2",
        "all_gather 64 KiB out of place appointments",
        "all_gather 64 KiB out of place verify",
        "all_gather 64 KiB out of place gather",
        "all_gather 64 KiB in place untimed call",
        "all_gather 64 KiB in place batch 1",
        "all_gather 64 KiB in place batch 2",
        "all_gather 64 KiB in place appointments",
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
    assert skipped == SkippedRow("all_gather", 8, "small", "8 B is too little for 2 ranks to share")
    assert [row.nbytes for row in rows if isinstance(row, Measurement)] == [64, 64]


def refuse(*args: object) -> None:
    raise TypeError("Input tensor data type is not supported for NCCL process group\nException raised from …")


def test_what_the_backend_refuses_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    monkeypatch.setattr(dist, "broadcast", refuse)
    skipped, row = measured(plan(ops=("broadcast", "all_reduce")), link)
    why = "Input tensor data type is not supported for NCCL process group"
    assert skipped == SkippedRow("broadcast", None, "refused", why)
    assert isinstance(row, Measurement)


@each_row(("refused_here", "others"), [(True, False), (False, True)])
def test_a_call_refused_by_some_ranks_only_is_a_lost_measurement_on_all(
    monkeypatch: pytest.MonkeyPatch, refused_here: bool, others: bool
) -> None:
    if refused_here:
        monkeypatch.setattr(dist, "broadcast", refuse)

    class Divided(Alone):
        def collect(self, value: object) -> list[object]:
            return [value, others if len(phases) > 1 else value]

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

    def all_reduce(tensor: object, op: object, _group: None) -> None:
        if next(calls, "dead") == "dead":
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1234\nmore")

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with pytest.raises(ProbeError) as lost:
        list(run(plan(warmup=5), Alone(2), lambda phase: None, host=ROOMY))
    assert str(lost.value) == "rank 0: all_reduce 64 KiB warm-up: Connection closed by peer [127.0.0.1]:1234"


def test_more_memory_than_the_fullest_rank_has_is_refused_before_it_is_taken() -> None:
    rows = run(plan(sizes=(1 << 40,)), Alone(2, others=1 << 20), lambda phase: None, host=ROOMY)
    with pytest.raises(UsageError, match=r"^1 TiB: two buffers need 2 TiB .* only 1 MiB free; .* \(-b and -e\)"):
        next(rows)


def test_a_gpu_without_room_is_refused_with_its_rank_and_where_its_holders_are_named() -> None:
    rows = run(plan(sizes=(1 << 40,), backend="nccl"), Alone(2, others=1 << 20), lambda phase: None, host=ROOMY)
    named = r"rank 1 has only 1 MiB free without what NCCL itself needs; .* nvidia-smi --query-compute-apps=\S+ --\S+$"
    with pytest.raises(UsageError, match=named):
        next(rows)


def test_ranks_of_one_host_share_its_memory() -> None:
    host = Replay({("read", "/proc/meminfo"): "MemAvailable: 1024 kB\n"})
    needs_half = plan(sizes=(256 * KiB,), ranks=4)
    with pytest.raises(UsageError, match="256 KiB free"):
        next(run(needs_half, Alone(4), lambda phase: None, host=host))


def test_sizes_without_room_are_left_out_and_said_of_every_operation() -> None:
    rows = measured(plan(ops=("broadcast", "reduce"), sizes=(KiB, 1 << 40, 1 << 41)))
    left_out = [row for row in rows if isinstance(row, SkippedRow)]
    assert [(row.op, row.nbytes, row.cause) for row in left_out] == [
        (op, nbytes, "memory") for op in ("broadcast", "reduce") for nbytes in (1 << 40, 1 << 41)
    ]
    assert "2 TiB per rank and rank 0 has only" in left_out[0].why
    assert [row.nbytes for row in rows if isinstance(row, Measurement)] == [KiB, KiB]


def slow_link(monkeypatch: pytest.MonkeyPatch, **changes: object) -> list[Measurement | SkippedRow]:
    """Sizes of 1 and 4 MiB over a link on which a call of the larger takes a second."""
    link = Link(0.0, bytes_per_s=4 << 20)
    monkeypatch.setattr(dist, "all_reduce", link.all_reduce)
    return measured(plan(**{"sizes": (4 << 20, 1 << 20), "precision": 0.02, "budget_s": 1.0, **changes}), link)


def test_a_size_that_would_take_too_long_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out, row = slow_link(monkeypatch, longest_s=5.0)
    assert isinstance(left_out, SkippedRow)
    assert (left_out.op, left_out.nbytes, left_out.cause) == ("all_reduce", 4 << 20, "time")
    assert left_out.why == "a row of it would take 12 s, and may take 5"
    assert isinstance(row, Measurement)
    assert row.nbytes == 1 << 20


@each_row("changes", [{"longest_s": 60.0}, {"longest_s": None}, {"longest_s": 5.0, "precision": None}])
def test_no_size_is_left_out_that_has_time_or_whose_number_of_calls_is_fixed(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    rows = slow_link(monkeypatch, **changes)
    assert [row.nbytes for row in rows if isinstance(row, Measurement)] == [4 << 20, 1 << 20]


def test_only_reductions_have_a_reduction() -> None:
    rows = measured(plan(ops=("broadcast", "reduce"), redop="max"))
    assert [row.redop for row in rows if isinstance(row, Measurement)] == [None, "max"]


def exhausted(*_args: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 KiB.\nMore.")


def test_a_device_out_of_memory_is_said_with_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclprobe.probes.sweep.allocate", exhausted)
    said = r"rank 0: allocating 2 x 64 KiB: out of memory: CUDA out of memory\. Tried .* KiB\.$"
    with pytest.raises(ProbeError, match=said):
        measured(plan())


def test_a_first_call_without_memory_is_no_refusal_of_the_operation(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_reduce", exhausted)
    with pytest.raises(ProbeError, match=r"^rank 0: all_reduce first call in place: out of memory: "):
        measured(plan(), link)


class Unsteady(Link):
    """A link on which the first `unsteady` batches take turns between as long as it says and half as long again."""

    def __init__(self, latency_s: float, unsteady: int = 1 << 30) -> None:
        super().__init__(latency_s, bytes_per_s=1e12)
        self.batches, self.unsteady = 0, unsteady

    def barrier(self) -> None:
        self.batches += 1

    def all_reduce(self, tensor: object, op: object, _group: None) -> None:
        self.time += self.latency_s * (1.5 if self.batches <= self.unsteady and self.batches % 2 else 1.0)


def adaptive(link: Link, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Measurement:
    monkeypatch.setattr(dist, "all_reduce", link.all_reduce)
    [row] = measured(plan(precision=0.02, **changes), link)
    assert isinstance(row, Measurement)
    return row


def test_a_steady_link_takes_five_batches_of_as_many_calls_as_last_long_enough(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = adaptive(link, monkeypatch)
    assert (row.batches, row.iters) == (5, round(5e-3 / (10e-6 + 65536 / 1e9)))
    assert row.precision == pytest.approx(0.0)
    assert row.precision_asked == 0.02


def test_an_unsteady_link_takes_more_until_the_interval_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    row = adaptive(Unsteady(1e-3, unsteady=6), monkeypatch)
    assert 5 < row.batches < 100
    assert row.precision is not None
    assert row.precision <= 0.02


def test_what_the_budget_cannot_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Unsteady(1e-3)
    row = adaptive(link, monkeypatch, budget_s=0.25)
    assert 0.2 < link.time < 0.3
    assert row.precision is not None
    assert row.precision > 0.02
    assert row.batches < 60


def test_a_call_longer_than_the_budget_is_made_often_enough_for_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    row = adaptive(Unsteady(10.0), monkeypatch, budget_s=2.0, warmup=0)
    assert (row.iters, row.batches) == (1, 5)
    assert row.interval_us is not None


def test_ranks_other_than_zero_do_as_they_are_told() -> None:
    """A rank that decided by itself would wait in a barrier that nobody else enters."""
    answers: list[object] = [[1 << 40, 2], False, 3, 2, 0]  # room, refusals, calls per batch, two batches more, none

    class Follower:
        def collect(self, value: object) -> None:
            return None

        def share(self, value: object) -> object:
            assert value is None
            return answers.pop(0)

    [row] = list(run(plan(rank=1, precision=0.02), Follower(), lambda phase: None, host=ROOMY))
    assert isinstance(row, Measurement)
    assert (row.iters, row.batches, answers) == (3, 7, [])


def test_a_graph_holds_a_whole_batch_and_is_its_one_call(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedNccl((2, 28, 9), "/site/lib/libnccl.so.2", (2, 27, 5))
    monkeypatch.setattr(nccl_library, "loaded", lambda: loaded)
    row, _ = measured(
        plan(sizes=(64 * KiB, 256 * KiB), warmup=0, iters=4, batches=2, backend="nccl", mode="graph"), link
    )
    assert isinstance(row, Measurement)
    assert row.mode == "graph"
    assert row.time_us.mean == pytest.approx(10 + 65.536)
    assert [what for what in link.log if what.startswith("graph")] == ["graph of 4"] * 2


def test_appointments_are_kept_apart_from_the_timed_batches(link: Link) -> None:
    [row] = measured(plan(rounds=3), link)
    assert isinstance(row, Measurement)
    assert link.log[-12:] == ["barrier", "busy", "call", "synchronise"] * 3
    assert row.skew is not None
    assert (row.skew.rounds, row.skew.arrival_us, row.skew.late_us) == (3, 0.0, (0.0, 0.0))
    assert row.skew.transfer_us == pytest.approx(75.536)


def test_every_batch_of_long_calls_is_a_phase_of_its_own_and_short_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A phase has a deadline, so it must not grow with the calls; but a heartbeat each would wear the store out."""
    for latency_s, phases in ((10e-6, ["batch 1 to 5"]), (1.0, [f"batch {n}" for n in range(1, 6)])):
        link, said = Link(latency_s, 1e12), list[str]()
        monkeypatch.setattr(dist, "all_reduce", link.all_reduce)
        list(run(plan(precision=0.02), Alone(2), said.append, clock=link, host=ROOMY))
        assert [phase.removeprefix("all_reduce 64 KiB in place ") for phase in said if " batch " in phase] == phases
