"""The sweep in one process: its steps on torch's fake group."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import ProbeError
from ncclprobe.model.measurement import Library, Measurement, SkippedRow
from ncclprobe.probes import nccl_library, sweep
from ncclprobe.probes.collectives import Call
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.sweep import run
from tests.each_row import each_row

KiB = 1 << 10
ROOMY = Replay({("read", "/proc/meminfo"): "MemAvailable: 99999999 kB\n"})


def plan(**changes: object) -> Plan:
    """Two ranks, one size, one of everything that costs time."""
    defaults: dict[str, object] = {
        "ops": ("all_reduce",), "sizes": (64 * KiB,), "rank": 0, "ranks": 2, "backend": "gloo",
        "footprint_bytes": 64 * KiB, "verify": False, "rounds": 0,
    }  # fmt: skip
    return Plan(**(defaults | changes))  # type: ignore[arg-type]


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


def linked(monkeypatch: pytest.MonkeyPatch, link: Link) -> Link:
    """That link behind dist.all_reduce."""
    monkeypatch.setattr(dist, "all_reduce", link.all_reduce)
    return link


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """A link of 10 us and 1 GB/s behind dist.all_reduce."""
    return linked(monkeypatch, Link(latency_s=10e-6, bytes_per_s=1e9))


def swept(plan: Plan, link: Link | None = None) -> list[Measurement | SkippedRow]:
    return list(run(plan, Alone(plan.ranks), lambda phase: None, clock=link, host=ROOMY))


def measured(plan: Plan, link: Link | None = None) -> list[Measurement]:
    """The rows of a sweep in which nothing is skipped."""
    rows = swept(plan, link)
    assert not [row for row in rows if isinstance(row, SkippedRow)]
    return [row for row in rows if isinstance(row, Measurement)]


def raising(error: type[Exception], text: str) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise error(text)

    return call


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedNccl((2, 28, 9), "/site/lib/libnccl.so.2", (2, 27, 5))
    monkeypatch.setattr(nccl_library, "loaded", lambda: loaded)


def test_a_sweep_recovers_the_link_it_runs_on_and_its_footprint_does_not_depend_on_the_sizes(link: Link) -> None:
    rows = measured(plan(sizes=(1 << 10, 1 << 20)), link)
    assert [row.time_us.mean for row in rows] == pytest.approx([11.024, 1058.576])
    for sizes in ((8,), (8, 4 * KiB)):
        assert {row.footprint_bytes for row in measured(plan(sizes=sizes), link)} == {64 * KiB}


@pytest.mark.usefixtures("nccl")
def test_the_order_of_things_is_that_of_nccl_tests(link: Link) -> None:
    row, _ = measured(plan(sizes=(64 * KiB, 256 * KiB), warmup=3, iters=4, batches=2, backend="nccl"), link)
    assert (row.mode, row.library) == ("queued", Library("nccl", "2.28.9"))
    first_call = ["call", "synchronise"]
    warm_up = (["call"] * 3 + ["synchronise"]) * 3  # 64, 128 and 256 KiB: doubling, although -f was 4
    batch = ["barrier"] + ["call"] * 4 + ["synchronise"]
    size = ["call", "synchronise", *batch, *batch]
    assert link.log == [*first_call, *warm_up, *size, *size]


@pytest.mark.usefixtures("nccl")
def test_a_graph_holds_a_whole_batch_and_is_its_one_call(link: Link) -> None:
    sizes = (64 * KiB, 256 * KiB)
    row, _ = measured(plan(sizes=sizes, warmup=0, iters=4, batches=2, backend="nccl", mode="graph"), link)
    assert (row.mode, row.time_us.mean) == ("graph", pytest.approx(10 + 65.536))
    assert [what for what in link.log if what.startswith("graph")] == ["graph of 4"] * 2


def test_the_host_says_what_comes_next_before_anything_that_may_block() -> None:
    phases: list[str] = []
    list(run(plan(ops=("all_gather",), verify=True, batches=2, rounds=3), Alone(2), phases.append, host=ROOMY))
    steps = ("untimed call", "batch 1", "batch 2", "appointments", "verify", "gather")
    assert phases == [
        "allocating 2 x 64 KiB",
        "all_gather first call out of place",
        "all_gather first call in place",
        "all_gather 64 KiB warm-up",
        *(f"all_gather 64 KiB {place} {step}" for place in ("out of place", "in place") for step in steps),
    ]


@each_row(("latency_s", "phases"), [(10e-6, ["batch 1 to 5"]), (1.0, [f"batch {n}" for n in range(1, 6)])])
def test_every_batch_of_long_calls_is_a_phase_of_its_own_and_short_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, latency_s: float, phases: list[str]
) -> None:
    """A phase has a deadline, so it must not grow with the calls; but a heartbeat each would wear the store out."""
    link, said = linked(monkeypatch, Link(latency_s, 1e12)), list[str]()
    list(run(plan(precision=0.02), Alone(2), said.append, clock=link, host=ROOMY))
    assert [phase.removeprefix("all_reduce 64 KiB in place ") for phase in said if " batch " in phase] == phases


def test_appointments_are_kept_apart_from_the_timed_batches(link: Link) -> None:
    [row] = measured(plan(rounds=3), link)
    assert link.log[-12:] == ["barrier", "busy", "call", "synchronise"] * 3
    assert row.skew is not None
    assert (row.skew.rounds, row.skew.arrival_us, row.skew.late_us) == (3, 0.0, (0.0, 0.0))
    assert row.skew.transfer_us == pytest.approx(75.536)


def test_a_collective_that_fetches_nothing_from_the_other_rank_is_wrong_by_that_much() -> None:
    assert [row.wrong for row in measured(plan(ops=("all_gather",), verify=True))] == [2 * 8 * KiB] * 2  # of two ranks


@each_row("redop", ["sum", "prod", "min", "max", "avg"])
def test_each_reduction_is_torchs(redop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops: list[object] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op, group: ops.append(op))
    measured(plan(redop=redop))
    assert {*map(str, ops)} == {f"RedOpType.{'PRODUCT' if redop == 'prod' else redop.upper()}"}


# What is left out.


def test_what_the_backend_refuses_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    why = "Input tensor data type is not supported for NCCL process group"
    monkeypatch.setattr(dist, "broadcast", raising(TypeError, f"{why}\nException raised from …"))
    skipped, row = swept(plan(ops=("broadcast", "all_reduce")), link)
    assert skipped == SkippedRow("broadcast", None, "refused", why)
    assert isinstance(row, Measurement)


# What ends the run.


@each_row(("refused_here", "others"), [(True, False), (False, True)])
def test_a_call_refused_by_some_ranks_only_is_a_lost_measurement_on_all(
    monkeypatch: pytest.MonkeyPatch, refused_here: bool, others: bool
) -> None:
    if refused_here:
        monkeypatch.setattr(dist, "broadcast", raising(TypeError, "not supported"))

    class Divided(Alone):
        def collect(self, value: object) -> list[object]:
            return [value, others if len(phases) > 1 else value]

    phases: list[str] = []
    with pytest.raises(ProbeError, match=r"broadcast first call: failed on 1 of 2 ranks"):
        list(run(plan(ops=("broadcast",)), Divided(2), phases.append, host=ROOMY))


CLOSED = "Connection closed by peer [10.0.0.2]:4711"
FULL = "CUDA out of memory. Tried to allocate 64.00 KiB."


FIRST = "broadcast first call in place"


@each_row(
    ("broken", "error", "text", "words"),
    [  # ranks that all lost each other in the first call have not refused it; nor is an error of the backend a refusal
        (("broadcast", "barrier"), RuntimeError, CLOSED, f"barrier after broadcast failed with .*{re.escape(CLOSED)}"),
        (("warm_up_size",), RuntimeError, f"{CLOSED}\nx", f"^rank 0: broadcast 64 KiB warm-up: {re.escape(CLOSED)}$"),
        (("broadcast",), dist.DistBackendError, "NCCL error in: X.cpp:1", f"^rank 0: {FIRST}: NCCL error in: X.cpp:1$"),
        (("broadcast",), torch.OutOfMemoryError, f"{FULL}\n.", f"^rank 0: {FIRST}: out of memory: {re.escape(FULL)}$"),
        (("allocate",), torch.OutOfMemoryError, f"{FULL}\nMore.",
         rf"^rank 0: allocating 2 x 64 KiB: out of memory: {re.escape(FULL)}$"),
    ],
)  # fmt: skip
def test_what_breaks_a_step_is_told_with_the_rank_and_the_phase(
    monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...], error: type[Exception], text: str, words: str
) -> None:
    for name in broken:
        monkeypatch.setattr(dist if name in ("broadcast", "barrier") else sweep, name, raising(error, text))
    with pytest.raises(ProbeError, match=words):
        swept(plan(ops=("broadcast",)))


# How many calls a precision takes.


class Unsteady(Link):
    """A link on which the first `unsteady` batches take turns between as long as it says and half as long again."""

    def __init__(self, latency_s: float, unsteady: int = 1 << 30) -> None:
        super().__init__(latency_s, bytes_per_s=1e12)
        self.batches, self.unsteady = 0, unsteady

    def barrier(self) -> None:
        self.batches += 1

    def all_reduce(self, tensor: object, op: object, _group: None) -> None:
        self.time += self.latency_s * (1.5 if self.batches <= self.unsteady and self.batches % 2 else 1.0)


@each_row(
    ("made", "changes", "iters", "batches", "reached"),
    [
        (lambda: Link(10e-6, 1e9), {}, round(5e-3 / (10e-6 + 65536 / 1e9)), (5, 5), True),
        (lambda: Unsteady(1e-3, unsteady=6), {}, 5, (6, 99), True),
        (lambda: Unsteady(1e-3), {"budget_s": 0.25}, 5, (6, 59), False),
        (lambda: Unsteady(10.0), {"budget_s": 2.0, "warmup": 0}, 1, (5, 5), False),  # often enough for an interval
    ],
)
def test_batches_are_added_until_the_interval_is_narrow_or_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], Link], changes: dict[str, Any], iters: int,
    batches: tuple[int, int], reached: bool,
) -> None:  # fmt: skip
    link = linked(monkeypatch, made())
    [row] = measured(plan(precision=0.02, **changes), link)
    assert (row.iters, row.precision_asked) == (iters, 0.02)
    assert batches[0] <= row.batches <= batches[1]
    assert row.interval_us is not None
    assert row.precision is not None
    assert (row.precision <= 0.02) is reached
    assert changes.get("budget_s") != 0.25 or 0.2 < link.time < 0.3


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
