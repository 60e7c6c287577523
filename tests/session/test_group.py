"""The measured group: how long it may take to abort it, and to ask its flight recorder."""

import threading
from types import SimpleNamespace

import pytest

from ncclprobe.session.ranks import group

dist = pytest.importorskip("torch.distributed")


def test_nccl_is_aborted_or_asked_in_no_more_than_a_moment_and_gloo_never_aborted(
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
