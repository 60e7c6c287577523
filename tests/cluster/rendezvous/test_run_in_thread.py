"""Work on a thread of its own: its result or error arrives, and the caller waits no longer than the deadline."""

import asyncio
import threading

import pytest
from rendezvous_lab import soon

from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from tests.each_row import each_row


def test_what_work_returns_arrives() -> None:
    assert asyncio.run(run_in_thread(lambda: 7, soon())) == 7


@each_row("error", [OSError(2, "not there"), KeyError("a bug of ours"), AssertionError()])
def test_what_work_raises_is_raised_where_it_is_waited_for(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        asyncio.run(run_in_thread(work, soon()))


def test_work_that_does_not_come_back_is_left_behind() -> None:
    over, ended = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        asyncio.run(run_in_thread(lambda: over.wait(60) or ended.set(), soon(0.1)))
    assert not ended.is_set()
    over.set()


def test_a_process_that_may_start_no_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TimeoutError, match="cannot start a thread"):
        asyncio.run(run_in_thread(lambda: 7, soon()))
