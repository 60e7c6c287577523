"""One end of a pair: over NCCL its first transfer connects, on the host and without a limit, and must end in time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from ncclprobe.probes import pairs
from tests.each_row import each_row

LIMIT_S = 60.0


class Done:
    """A CUDA event, and what torch returns for a call, both over at once."""

    def record(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait(self, *_: object) -> bool:
        return True


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> pairs.PairEndpoint:
    """An endpoint of rank 0 that takes its device for a GPU; `torch.cuda` and the transfers are replaced."""
    made = pairs.PairEndpoint(0, torch.device("cpu"), (8, 16))
    made._device = torch.device("cuda", 0)
    made.transfers = 4
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(pairs.dist, "P2POp", lambda *call: call)
    monkeypatch.setattr(torch.cuda, "Event", Done)
    monkeypatch.setattr(made, "_verify", lambda *_: pairs.PairTiming())
    monkeypatch.setattr(pairs, "_APART_S", 0.0)
    return made


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[list[Any]]]:
    """Have every batch of calls do something; returns the batches with the thread of each."""

    def does(what: Callable[[], object]) -> list[list[Any]]:
        made: list[list[Any]] = []

        def call(calls: list[Any]) -> list[Done]:
            made.append([threading.current_thread(), *calls])
            what()
            return [Done()]

        monkeypatch.setattr(pairs.dist, "batch_isend_irecv", call)
        return made

    return does


def test_a_peer_that_never_connects_costs_the_deadline_and_no_more(
    endpoint: pairs.PairEndpoint, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    batch(lambda: over.wait(LIMIT_S))
    monkeypatch.setattr(pairs, "_GRACE_S", 0.0)
    try:
        found = endpoint.measure("latency", 0, 1, 0.05)
        assert (found.why, found.fit, endpoint.lost) == ("timed out while the two ranks connected", False, True)
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == "connect":
                thread.join(LIMIT_S)


def test_a_gpu_that_does_not_finish_is_a_pair_that_timed_out(
    endpoint: pairs.PairEndpoint, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(lambda: None)
    monkeypatch.setattr(Done, "query", lambda self: False)
    found = endpoint.measure("forth", 0, 1, 0.05)
    assert (found.why, found.fit, found.seconds) == ("timed out", False, ())


def test_once_connected_nothing_stands_between_the_clock_and_the_call(endpoint: pairs.PairEndpoint, batch: Any) -> None:
    made = batch(lambda: None)
    assert endpoint.measure("latency", 0, 1, LIMIT_S).why == ""
    here = threading.current_thread()
    assert [caller is here for caller, *_ in made] == [False] * 4 + [True] * (len(made) - 4)  # two pings and back
    assert len(made) == 2 * (2 + 20)


@each_row(
    ("kind", "first", "ways", "timed"),
    [
        ("forth", 0, [["isend"]] * 4 + [["irecv"]], 5), ("forth", 1, [["irecv"]] * 4 + [["isend"]], 0),
        ("back", 0, [["irecv"]] * 4 + [["isend"]], 0), ("back", 1, [["isend"]] * 4 + [["irecv"]], 5),
        ("both", 0, [["isend"], ["irecv"]] + [["isend", "irecv"]] * 4, 5),
        ("both", 1, [["irecv"], ["isend"]] + [["isend", "irecv"]] * 4, 5), ("latency", 0, [["isend"], ["irecv"]], 1),
        ("latency", 1, [["irecv"], ["isend"]], 0),
    ],
)  # fmt: skip
def test_a_sample_is_of_several_transfers_and_one_wait_and_only_who_sends_keeps_times(
    endpoint: pairs.PairEndpoint, batch: Any, kind: Any, first: int, ways: list[list[str]], timed: int
) -> None:
    """Rank 0 is the `first` of the two, or the second."""
    made = batch(lambda: None)
    assert len(endpoint.measure(kind, first, 1 - first, LIMIT_S).seconds) == timed
    calls = [[call[0].__name__ for call in own] for _, *own in made]
    assert calls[: len(ways)] == calls[-len(ways) :] == ways
    assert len(calls) == (2 + (20 if kind == "latency" else pairs.SAMPLES)) * len(ways)
    assert {call[2] for _, *own in made for call in own} == {1}, "the peer"


@each_row("at", [None, 5, 1021])
def test_a_byte_that_arrives_wrong_is_counted_and_shown_with_its_sender(at: int | None) -> None:
    end = pairs.PairEndpoint(0, torch.device("cpu"), (8, 3000))

    def arrives(out: Any, into: Any, peer: int, until: float, times: int = 1) -> None:
        if into is not None and len(into) > 8:
            pairs.pattern(1, 0, torch.device("cpu")).fill(into, 0)
            if at is not None:
                into[at] ^= 1

    end._move = arrives
    found = end.measure("back", 0, 1, LIMIT_S)
    assert (found.wrong, found.why) == (int(at is not None), "")
    assert found.mismatch is None if at is None else (found.mismatch.offset, found.mismatch.source) == (at, 1)
    assert end.measure("forth", 0, 1, LIMIT_S).wrong is None
