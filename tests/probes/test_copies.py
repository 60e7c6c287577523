"""Copies within the host beside a plain memcpy, and threads that are moved and put back."""

import os
import threading
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from ncclprobe.model.errors import ProbeError
from ncclprobe.session.measure import copies
from ncclprobe.session.measure.copies import bound
from tests.each_row import each_row

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def bystander() -> Iterator[int]:
    """A thread that does nothing, by its number."""
    over, ready = threading.Event(), threading.Event()
    numbers: list[int] = []

    def wait() -> None:
        numbers.append(threading.get_native_id())
        ready.set()
        over.wait(20.0)

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(20.0)
    yield numbers[0]
    over.set()
    thread.join()


def test_all_threads_move_together_and_go_back(bystander: int) -> None:
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == os.sched_getaffinity(bystander) == set(CPUS[:1])
    assert os.sched_getaffinity(0) == os.sched_getaffinity(bystander) == set(CPUS)


def test_processors_that_are_not_there_are_refused_and_nothing_moves() -> None:
    with pytest.raises(ProbeError, match="processors"), bound([8000]):
        pass
    assert os.sched_getaffinity(0) == set(CPUS)


def test_torch_and_memcpy_both_copy_and_the_pool_is_as_before() -> None:
    threads = torch.get_num_threads()
    found = dict(copies.memory_copies(4 << 20, CPUS, CPUS))
    assert set(found) == {"torch", "memcpy"}
    assert all(len(rates) == copies.SAMPLES and min(rates) > 0 for rates in found.values())
    assert torch.get_num_threads() == threads


@each_row(("nbytes", "number"), [(1 << 20, 1), (1_000_003, 3), (2, 5)])
def test_the_crew_copies_every_byte(nbytes: int, number: int) -> None:
    source = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    target = torch.zeros_like(source)
    with copies._Crew(number, source, target) as crew:
        crew.copy()
        assert torch.equal(source, target)
