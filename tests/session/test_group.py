"""The measured group: who is missing from its first barrier, and what the flight recorder has of a call."""

import json
import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.session.ranks import group
from ncclprobe.session.ranks.identity import Backend
from tests.each_row import each_row

dist = pytest.importorskip("torch.distributed")


@each_row(
    ("text", "ranks"),
    [
        ("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms\nmore", (1,)),  # seen with torch 2.13
        ("[Rank 0]: Ranks 1, 3, 12 failed to pass monitoredBarrier in 3000 ms", (1, 3, 12)),
        ("[Rank 1]: Rank 1 timed out waiting for response from rank 0", ()),
    ],
)
def test_who_did_not_come_is_read_from_what_torch_says_and_nccl_has_no_such_barrier(
    text: str, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def monitored_barrier(timeout: timedelta, wait_all_ranks: bool) -> None:
        assert (timeout, wait_all_ranks) == (timedelta(seconds=1), True)
        raise RuntimeError(text)

    monkeypatch.setattr(dist, "monitored_barrier", monitored_barrier)
    with pytest.raises(group.MissedBarrier) as missed:
        group.barrier("gloo", 1.0)
    assert (missed.value.ranks, str(missed.value)) == (ranks, text.partition("\n")[0])
    group.barrier("nccl", 1.0)


def entry(name: str, seq: int, state: str = "scheduled", **more: Any) -> dict[str, Any]:
    """One entry as torch 2.12 writes it."""
    fields = {"profiling_name": name, "collective_seq_id": seq, "state": state, "input_sizes": [[4]]}
    return {**fields, "p2p_seq_id": 0, "is_p2p": False, "retired": False, **more}


OVER = entry("nccl:broadcast", 6, "completed", retired=True)
STUCK = "nccl:all_reduce, call 7 of its group, sizes [[4]], is {} and not finished"


@each_row(
    ("entries", "words"),
    [
        ([], ""),
        ([OVER], ""),
        ([entry("nccl:all_reduce", 1, "completed")], ""),  # the watchdog retires it within 100 ms
        ([OVER, entry("nccl:all_reduce", 7, "started")], STUCK.format("started")),
        (
            [OVER, *(entry("nccl:all_reduce", 7 + number) for number in range(20))],
            f"{STUCK.format('scheduled')}; 19 more wait behind it",
        ),
        (  # the sends of a batch have no events of their own
            [entry("nccl:send 0->1", 5), OVER, entry("nccl:recv 0<-1", 6, is_p2p=True, p2p_seq_id=3)],
            "nccl:recv 0<-1, call 3 of its group, sizes [[4]], is scheduled and not finished",
        ),
    ],
)
def test_the_stuck_call_is_the_first_after_the_last_that_ended(entries: list[dict[str, Any]], words: str) -> None:
    assert group.stuck({"entries": entries}) == words
    assert group.stuck({"version": "2.10"}) == "", "a record of another torch"


RECORD = {"version": "2.10", "pg_config": {}, "entries": [OVER, entry("nccl:all_reduce", 7)]}
EMPTY = b'{"version": "2.10", "pg_config": {}}'


@each_row(
    ("torch", "backend", "words"),
    [
        ({"_dump_nccl_trace": lambda: pickle.dumps(RECORD)}, "nccl", STUCK.format("scheduled")),  # 2.4
        ({"_dump_nccl_trace_json": lambda: json.dumps(RECORD).encode()}, "nccl", STUCK.format("scheduled")),  # 2.5
        (  # 2.8 to 2.13: NCCL's calls are not in the recorder of the others
            {"_dump_nccl_trace_json": lambda: json.dumps(RECORD).encode(), "_dump_fr_trace_json": lambda: EMPTY},
            "nccl",
            STUCK.format("scheduled"),
        ),
        ({"_dump_nccl_trace_json": lambda: EMPTY, "_dump_fr_trace_json": lambda: EMPTY}, "nccl", ""),
        ({"_dump_nccl_trace_json": lambda: json.dumps(RECORD).encode()}, "gloo", ""),
        ({"_dump_fr_trace_json": lambda: json.dumps(RECORD).encode()}, "gloo", STUCK.format("scheduled")),
        ({"_dump_fr_trace_json": lambda: b"[1, "}, "gloo", ""),
        ({}, "nccl", ""),
    ],
)
def test_each_backend_is_asked_for_its_own_record_by_the_names_that_each_torch_has(
    torch: dict[str, Callable[[], bytes]], backend: Backend, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._C._distributed_c10d", SimpleNamespace(**torch))
    assert group.in_flight(backend) == words


def test_nccl_is_aborted_or_asked_in_no_more_than_a_moment_and_gloo_not_aborted_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert group.in_flight("gloo") == "", "the recorder of this torch can be read"
    aborted, never = [], threading.Event()

    def abort() -> None:
        aborted.append(1)
        never.wait(20)
        aborted.append(2)

    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=SimpleNamespace(abort=abort)))
    monkeypatch.setattr(group, "ABORT_S", 0.05)
    monkeypatch.setattr(group, "_recorded", lambda backend: str(never.wait(20)))
    group.abort("gloo")
    assert aborted == []
    group.abort("nccl")
    assert aborted == [1]
    assert group.in_flight("nccl") == ""
    never.set()


@each_row(
    ("group_has", "backend_has", "way"),
    [
        (("abort",), ("abort", "_shutdown"), "group.abort"),  # 2025
        ((), ("abort", "_shutdown"), "backend.abort"),  # 2.5 and 2.6
        ((), ("_shutdown",), "backend._shutdown"),  # 2.4, where it aborts
        ((), (), None),
    ],
)
def test_each_torch_is_asked_to_abort_by_the_name_that_it_has(
    group_has: tuple[str, ...], backend_has: tuple[str, ...], way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(owner: str, names: tuple[str, ...]) -> SimpleNamespace:
        return SimpleNamespace(**{name: partial(done.append, f"{owner}.{name}") for name in names})

    done: list[str] = []
    asked = made("group", group_has)
    asked._get_backend = lambda device: made("backend", backend_has)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=asked))
    assert (group.aborter() is None) == (way is None)
    group.abort("nccl")
    assert done == [way] * bool(way)


_FAILED = "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nLast error:\n{}"


@each_row(
    ("last", "free", "begins", "tells"),
    [
        ("Failed to CUDA calloc async 40 bytes", 3 << 20, "out of memory: ", "of the 80 GiB of GPU 1 3 MiB are free"),
        ("Cuda failure 2 'out of memory'", 3 << 20, "out of memory: ", "of the 80 GiB of GPU 1 3 MiB are free"),
        ("Failed to CUDA calloc async 40 bytes", 70 << 30, "NCCL error in", "70 GiB are free"),
        ("Failed to CUDA calloc async 40 bytes", None, "NCCL error in", "40 bytes"),
        ("Cuda failure 700 'an illegal memory access was encountered'", 3 << 20, "NCCL error in", "encountered'"),
    ],
)
def test_an_allocation_that_fails_within_nccl_is_for_want_of_memory_where_the_gpu_is_full(
    monkeypatch: pytest.MonkeyPatch, last: str, free: int | None, begins: str, tells: str
) -> None:
    import torch

    def asked(device: int) -> tuple[int, int]:
        if free is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return free, 80 << 30

    monkeypatch.setattr(torch.cuda, "mem_get_info", asked)
    said = group.why(RuntimeError(_FAILED.format(last)), "nccl", 1)
    assert said.startswith(begins)
    assert said.endswith(tells)
