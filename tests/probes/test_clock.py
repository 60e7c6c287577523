"""What is inside a timed window, and what is not, on a link whose time is simulated."""

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from ncclprobe.model.errors import ProbeError
from ncclprobe.model.measurement import Mode
from ncclprobe.probes.clock import CpuClock, CudaClock, clock_of, time_batch
from ncclprobe.probes.collectives import Call
from tests.each_row import each_row


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
    ("mode", "log"), [("queued", ["call", "call", "call", "synchronise"]), ("blocking", ["call", "synchronise"] * 3)]
)
def test_queued_calls_are_waited_for_once_and_blocking_ones_each(mode: Mode, log: list[str]) -> None:
    link = SimulatedLink(1e-6, 5e-6)
    time_batch([link.call] * 3, mode, link)
    assert link.log == log


def test_queued_calls_overlap_handing_over_and_working() -> None:
    link = SimulatedLink(call_s=2e-6, work_s=8e-6)
    batch = time_batch([link.call] * 10, "queued", link)
    assert batch.seconds == pytest.approx((2e-6 + 10 * 8e-6) / 10)
    assert batch.issue_s == pytest.approx(2e-6)


def test_blocking_calls_do_not_overlap_and_issue_is_the_whole_time() -> None:
    link = SimulatedLink(call_s=2e-6, work_s=8e-6)
    batch = time_batch([link.call] * 10, "blocking", link)
    assert batch.seconds == pytest.approx(10e-6)
    assert batch.issue_s == batch.seconds


def test_a_host_slower_than_its_link_shows_in_the_issue_time() -> None:
    link = SimulatedLink(call_s=8e-6, work_s=1e-6)
    batch = time_batch([link.call] * 100, "queued", link)
    assert batch.issue_s == pytest.approx(batch.seconds, rel=0.01)


def test_the_device_decides_which_clock_it_is() -> None:
    assert isinstance(clock_of(torch.device("cpu")), CpuClock)
    assert isinstance(clock_of(torch.device("cuda:3")), CudaClock)


def test_a_cuda_barrier_names_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(dist, "barrier", lambda device_ids: asked.extend(device_ids))
    CudaClock().barrier()
    assert asked == [3]


def test_the_devices_own_time_is_beside_the_wall_clocks() -> None:
    link = SimulatedLink(call_s=2e-6, work_s=8e-6)
    batch = time_batch([link.call] * 10, "queued", link)
    assert batch.device_s == pytest.approx(batch.seconds)
    assert time_batch([link.call] * 10, "blocking", link).device_s is None  # the host stands between the calls


def test_a_graph_of_calls_counts_as_the_calls_that_it_holds() -> None:
    link = SimulatedLink(call_s=0.0, work_s=8e-6)
    batch = time_batch([link.graph([link.call] * 10)], "graph", link, each=10)
    assert batch.seconds == pytest.approx(8e-6)


def test_a_cpu_has_no_clock_of_its_own_and_no_graphs() -> None:
    clock = CpuClock()
    assert clock.between(clock.mark(), clock.mark()) is None
    with pytest.raises(ProbeError, match="which a CPU does not have"):
        clock.graph([lambda: None])


def test_a_busy_host_returns_no_sooner_than_it_should() -> None:
    clock = CpuClock()
    until = clock.now() + 1e-3
    clock.busy_until(until)
    assert clock.now() >= until
