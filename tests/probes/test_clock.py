"""What is inside a timed window, on a link whose time is simulated; and who comes late, told from made-up rounds."""

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from ncclprobe.model.errors import ProbeError
from ncclprobe.model.measurement import Mode, Skew
from ncclprobe.probes.arrival_skew import LATE_S, ROUNDS, WAIT_S, Arrival, arrive, rounds, skew
from ncclprobe.probes.clock import Batch, CpuClock, CudaClock, clock_of, time_batch
from ncclprobe.probes.collectives import Call
from tests.each_row import each_row

US = 1e-6


class SimulatedLink:
    """A device that takes `call_s` to be handed a call and `work_s` to do it, one call after another."""

    def __init__(self, call_s: float, work_s: float) -> None:
        self.time = self.busy_until_s = 0.0
        self.call_s, self.work_s = call_s, work_s
        self.log: list[str] = []

    def now(self) -> float:
        return self.time

    def call(self) -> None:
        self.log.append("call")
        self.time += self.call_s
        self.busy_until_s = max(self.busy_until_s, self.time) + self.work_s

    def synchronise(self) -> None:
        self.log.append("synchronise")
        self.time = max(self.time, self.busy_until_s)

    def barrier(self) -> None:
        raise AssertionError("a barrier belongs outside the timed window")

    def busy_until(self, instant: float) -> None:
        raise AssertionError("nobody is kept busy inside the timed window")

    def mark(self) -> float:
        """When the device has done all it was handed."""
        return max(self.time, self.busy_until_s)

    def between(self, first: float, last: float) -> float:
        return last - first

    def graph(self, calls: Sequence[Call]) -> Call:
        return lambda: [call() for call in calls]


@each_row(
    ("mode", "call_us", "work_us", "batch"),
    [
        # Handing over and working overlap; the device's own time is beside the wall clock's.
        ("queued", 2, 8, Batch(8.2 * US, 2 * US, 8.2 * US)),
        ("queued", 8, 1, Batch(8.1 * US, 8 * US, 8.1 * US)),  # a host slower than its link
        # Blocking calls do not overlap, and the host stands between them.
        ("blocking", 2, 8, Batch(10 * US, 10 * US, None)),
        ("graph", 0, 8, Batch(8 * US, 0.0, 8 * US)),  # it counts as the calls that it holds
    ],
)
def test_ten_calls_are_timed_to_the_end_of_the_last(mode: Mode, call_us: float, work_us: float, batch: Batch) -> None:
    link = SimulatedLink(call_us * US, work_us * US)
    calls, each = ([link.graph([link.call] * 10)], 10) if mode == "graph" else ([link.call] * 10, 1)
    found = time_batch(calls, mode, link, each=each)
    assert (found.seconds, found.issue_s) == pytest.approx((batch.seconds, batch.issue_s))
    assert found.device_s == (None if batch.device_s is None else pytest.approx(batch.device_s))
    waits = ["call", "synchronise"] * 10 if mode == "blocking" else ["call"] * 10 + ["synchronise"]
    assert link.log == waits


def test_the_device_decides_which_clock_it_is_and_a_cuda_barrier_names_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(clock_of(torch.device("cpu")), CpuClock)
    assert isinstance(clock_of(torch.device("cuda:3")), CudaClock)
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(dist, "barrier", lambda device_ids: asked.extend(device_ids))
    CudaClock().barrier()
    assert asked == [3]


class Alone(CpuClock):
    """The real clock, without a group."""

    def barrier(self) -> None:
        """Nobody else is here."""


def test_a_cpu_has_no_clock_of_its_own_and_no_graphs_and_keeps_appointments() -> None:
    clock = Alone()
    assert clock.between(clock.mark(), clock.mark()) is None
    with pytest.raises(ProbeError, match="which a CPU does not have"):
        clock.graph([lambda: None])
    calls: list[float] = []
    found = arrive(lambda: calls.append(clock.now()), clock)
    assert found.came_s - found.left_s >= WAIT_S
    assert found.came_s <= calls[0] <= found.came_s + found.inside_s


# Who comes late.


def made(late_s: dict[tuple[int, int], float], clocks_s: dict[int, float], ranks: int = 3) -> Skew | None:
    """Eight rounds in which rank r comes `late_s[r, round]` late, on clocks that are `clocks_s` ahead."""
    by_rank: dict[int, list[Arrival]] = {rank: [] for rank in range(ranks)}
    for number in range(8):
        left = float(number)
        came = [left + WAIT_S + late_s.get((rank, number), 0.0) for rank in range(ranks)]
        over = max(came) + 200 * US
        for rank, at in enumerate(came):
            ahead = clocks_s.get(rank, 0.0)
            by_rank[rank].append(Arrival(left + ahead, at + ahead, over - at))
    return skew(by_rank)


ON_TIME = [Arrival(float(number), number + WAIT_S, 0.1) for number in range(4)]
SLOW = [Arrival(float(number), number + WAIT_S, 0.5) for number in range(4)]
KEPT = [*ON_TIME[:3], Arrival(3.05, 3.05 + WAIT_S, 0.05)]


@each_row(
    ("found", "transfer_us", "arrival_us", "late_us", "late_rounds"),
    [
        (made({}, {1: 1e6, 2: -7.0}), 200, 0, (0, 0, 0), (0, 0, 0)),  # whatever their clocks say
        (made({(2, 1): 30e-3, (2, 4): 30e-3}, {2: 500.0}), 200, 7500, (0, 0, 7500), (0, 0, 2)),
        (made({(0, number): 5e-3 for number in range(8)}, {0: 500.0}, 2), 200, 5000, (5000, 0), (8, 0)),
        (made({(1, 0): LATE_S * 0.99, (1, 1): LATE_S * 1.01}, {}, 2), 200, 250, (0, 250), (0, 1)),
        # Whoever the barrier lets go late may have kept the others there; a slow link makes nobody late.
        (skew({0: ON_TIME, 1: KEPT}), 100e3, 12_500, (0, 0), (0, 0)),
        (skew({0: SLOW, 1: SLOW}), 500e3, 0, (0, 0), (0, 0)),
    ],
)
def test_a_late_rank_is_named_and_the_transfer_is_what_the_last_to_come_sees(
    found: Skew, transfer_us: float, arrival_us: float, late_us: tuple[float, ...], late_rounds: tuple[int, ...]
) -> None:
    assert (found.transfer_us, found.arrival_us) == pytest.approx((transfer_us, arrival_us), abs=0.1)
    assert found.late_us == pytest.approx(late_us, abs=0.1)
    assert (found.late_rounds, found.wait_us) == (late_rounds, 4000)


@each_row(("call_s", "number"), [(0.0, ROUNDS), (0.025, ROUNDS), (0.028, 7), (0.066, 3), (0.067, 0), (10.0, 0)])
def test_long_calls_are_not_made_again_for_this(call_s: float, number: int) -> None:
    assert rounds(call_s, budget_s=2.0) == number
    assert skew({}) is skew({0: [], 1: []}) is None, "without rounds nothing is known"
