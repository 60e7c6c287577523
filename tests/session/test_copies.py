"""Copies within a host and of its GPUs: their order, their places, their verdicts, and the threads that make them."""

import os
import threading

import pytest
from conftest import answers

torch = pytest.importorskip("torch")

from ncclprobe.model.errors import ProbeError
from ncclprobe.session.measure import copies
from ncclprobe.session.measure.copies import bound
from tests.each_row import each_row

CPUS = sorted(os.sched_getaffinity(0))


def test_all_threads_move_together_and_go_back_and_absent_processors_move_nothing() -> None:
    over, ready = threading.Event(), threading.Event()
    numbers: list[int] = []

    def bystander() -> None:
        numbers.append(threading.get_native_id())
        ready.set()
        over.wait(20.0)

    thread = threading.Thread(target=bystander)
    thread.start()
    ready.wait(20.0)
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == os.sched_getaffinity(numbers[0]) == set(CPUS[:1])
    with pytest.raises(ProbeError, match="processors"), bound([8000]):
        pass
    assert os.sched_getaffinity(0) == os.sched_getaffinity(numbers[0]) == set(CPUS)
    over.set()
    thread.join()
    nodes = copies.numa_nodes(answers({}))  # what taskset took away, a process may have back
    assert {cpu for cpus in nodes.values() for cpu in cpus} >= set(CPUS)
    assert os.sched_getaffinity(0) == set(CPUS)


@each_row(("nbytes", "number"), [(1 << 20, 1), (1_000_003, 3), (2, 5)])
def test_the_crew_copies_every_byte(nbytes: int, number: int) -> None:
    source = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    target = torch.zeros_like(source)
    with copies.Crew(number, source, target) as crew:
        crew.copy()
        assert torch.equal(source, target)
