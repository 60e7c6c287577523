"""The first transfer of two ranks over NCCL connects them, on the host and without a limit: it must end in time."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from ncclprobe.probes import pairs

LIMIT_S = 60.0


class Works:
    """What torch returns for a batch of calls."""

    def wait(self, *_: object) -> bool:
        return True


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[pairs.PairEndpoint]:
    """An endpoint that takes its device for a GPU; `torch.cuda` and the transfers are replaced."""
    made = pairs.PairEndpoint(0, torch.device("cpu"), (8, 16))
    made._device = torch.device("cuda", 0)
    made.transfers = 4
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(pairs.dist, "P2POp", lambda *call: call)
    monkeypatch.setattr(torch.cuda, "Event", Done)
    monkeypatch.setattr(made, "_verify", lambda *_: pairs.PairTiming())
    return made


class Done:
    def record(self) -> None: ...

    def query(self) -> bool:
        return True


def test_a_peer_that_never_connects_costs_the_deadline_and_no_more(
    endpoint: pairs.PairEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(pairs.dist, "batch_isend_irecv", lambda calls: over.wait(LIMIT_S) and [Works()])
    monkeypatch.setattr(pairs, "_GRACE_S", 0.0)
    try:
        found = endpoint.measure("latency", 0, 1, 0.05)
        assert (found.why, found.fit) == ("timed out while the two ranks connected", False)
        assert endpoint.lost
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == "connect":
                thread.join(LIMIT_S)


def test_once_they_are_connected_nothing_stands_between_the_clock_and_the_call(
    endpoint: pairs.PairEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[Any] = []

    def batch(calls: object) -> list[Works]:
        callers.append(threading.current_thread())
        return [Works()]

    monkeypatch.setattr(pairs.dist, "batch_isend_irecv", batch)
    assert endpoint.measure("latency", 0, 1, LIMIT_S).why == ""
    here = threading.current_thread()
    assert [caller is here for caller in callers[:4]] == [False] * 4  # two pings there and back
    assert all(caller is here for caller in callers[4:])


@pytest.mark.parametrize(("kind", "calls"), [("forth", 4 + 1), ("both", 2 + 4)])
def test_a_sample_is_of_several_transfers_and_one_wait(
    endpoint: pairs.PairEndpoint, monkeypatch: pytest.MonkeyPatch, kind: Any, calls: int
) -> None:
    made = 0

    def batch(calls: object) -> list[Works]:
        nonlocal made
        made += 1
        return [Works()]

    monkeypatch.setattr(pairs.dist, "batch_isend_irecv", batch)
    monkeypatch.setattr(pairs, "_APART_S", 0.0)
    assert len(endpoint.measure(kind, 0, 1, LIMIT_S).seconds) == pairs.SAMPLES
    assert made == (pairs._WARM_UPS + pairs.SAMPLES) * calls


def test_what_torch_raises_while_they_connect_is_the_reason(
    endpoint: pairs.PairEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(calls: object) -> list[Works]:
        raise RuntimeError("NCCL error: remote process exited\nmore")

    monkeypatch.setattr(pairs.dist, "batch_isend_irecv", refused)
    assert endpoint.measure("forth", 0, 1, LIMIT_S).why == "NCCL error: remote process exited"
