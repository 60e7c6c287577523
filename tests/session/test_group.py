"""The measured group: who is missing from its first barrier, and what the flight recorder has of a call."""

import json
import pickle
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.session.ranks import group
from ncclprobe.session.ranks.identity import Backend
from tests.each_row import each_row

dist = pytest.importorskip("torch.distributed")


def entry(name: str, seq: int, state: str = "scheduled", **more: Any) -> dict[str, Any]:
    """One entry as torch 2.12 writes it."""
    fields = {"profiling_name": name, "collective_seq_id": seq, "state": state, "input_sizes": [[4]]}
    return {**fields, "p2p_seq_id": 0, "is_p2p": False, "retired": False, **more}


OVER = entry("nccl:broadcast", 6, "completed", retired=True)
STUCK = "nccl:all_reduce, call 7 of its group, sizes [[4]], is {} and not finished"


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
