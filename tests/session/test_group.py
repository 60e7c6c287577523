"""The measured group: who is missing from its first barrier, and what the flight recorder has of a call."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.session.ranks import group

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have monitored_barrier fail with a text."""

    def fails(text: str) -> None:
        def monitored_barrier(timeout: timedelta, wait_all_ranks: bool) -> None:
            assert wait_all_ranks
            raise RuntimeError(text)

        monkeypatch.setattr(dist, "monitored_barrier", monitored_barrier)

    return fails


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms\nmore", (1,)),  # seen with torch 2.13
        ("[Rank 0]: Ranks 1, 3, 12 failed to pass monitoredBarrier in 3000 ms", (1, 3, 12)),
        ("[Rank 1]: Rank 1 timed out waiting for response from rank 0", ()),
    ],
)
def test_who_did_not_come_is_read_from_what_torch_says(
    text: str, ranks: tuple[int, ...], barrier: Callable[[str], None]
) -> None:
    barrier(text)
    with pytest.raises(group.MissedBarrier) as missed:
        group.barrier("gloo", 1.0)
    assert missed.value.ranks == ranks
    assert "\n" not in str(missed.value)


def test_nccl_has_no_such_barrier(barrier: Callable[[str], None]) -> None:
    barrier("called")
    group.barrier("nccl", 1.0)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], ""),
        ([{"retired": True, "profiling_name": "nccl:all_reduce"}], ""),
        (
            [
                {"retired": True, "profiling_name": "nccl:broadcast"},
                {
                    "retired": False,
                    "profiling_name": "nccl:all_reduce",
                    "collective_seq_id": 7,
                    "input_sizes": [[4]],
                    "state": "started",
                },
            ],
            "nccl:all_reduce, call 7 of its group, sizes [[4]], is started and not over",
        ),
    ],
)
def test_the_call_that_never_returned_is_the_last_that_is_open(entries: list[dict[str, Any]], words: str) -> None:
    assert group.last_open({"entries": entries}) == words


def test_a_record_of_another_torch_without_entries_says_nothing() -> None:
    assert group.last_open({"version": "2.10"}) == ""


def test_nccl_is_aborted_in_no_more_than_a_moment_and_gloo_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted, never = [], threading.Event()

    class World:
        def abort(self) -> None:
            aborted.append(1)
            never.wait(20)

    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=World()))
    monkeypatch.setattr(group, "_ABORT_S", 0.05)
    group.abort("gloo")
    assert aborted == []
    began = time.monotonic()
    group.abort("nccl")
    assert time.monotonic() - began < 15
    assert aborted == [1]
    never.set()


def test_a_recorder_that_never_answers_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(group, "_ABORT_S", 0.05)
    monkeypatch.setattr(group, "_recorded", lambda: str(never.wait(20)))
    assert group.in_flight() == ""
    never.set()


def test_the_recorder_of_this_torch_can_be_read() -> None:
    assert group.in_flight() == ""
