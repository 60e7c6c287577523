"""A call inside somebody's job: it ends at its deadline whatever torch is stuck in, and refuses what it cannot end."""

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.facts.environment import MEASURING
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import ProbeError, UsageError
from ncclprobe.session.measure import in_group
from ncclprobe.session.measure.in_group import Members
from ncclprobe.session.ranks import group as groups
from ncclprobe.session.ranks.identity import RunConfig
from tests.each_row import each_row

dist = pytest.importorskip("torch.distributed")


class Run:
    """What a rank does, as :class:`in_group._Run`; it may never come back."""

    def __init__(self, play: Any) -> None:
        self.phase, self.left, self._play = "all_reduce 64 KiB in place batch 2", 0, play

    def __call__(self, who: Members, host: Any, timeout_s: float) -> "Run":
        self.within_s = timeout_s
        return self

    def play(self, prepare: Any) -> Any:
        return self._play()

    def say_left(self) -> None:
        self.said = True

    def silent(self, within_s: float) -> tuple[int, ...]:
        return (1,)

    def leave(self, within_s: float) -> None:
        assert within_s > 0, "the caller waits for the abort too, before its deadline"
        self.left += 1


def measured(run: Run, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 30.0, took_s: float = 0.0) -> Any:
    monkeypatch.setattr(in_group, "members", lambda group: Members((0, 1), 0, "nccl"))
    monkeypatch.setattr(in_group, "_Run", run)
    asked = time.monotonic() - took_s
    return in_group.measured(None, lambda backend: pytest.fail("asked"), Replay({}, node="n"), timeout_s, asked)


def test_what_never_comes_back_is_left_behind_at_the_deadline_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    run = Run(lambda: never.wait(60))
    with pytest.raises(ProbeError, match=r"^rank 0: all_reduce 64 KiB in place batch 2 had not ended after 2 s$"):
        measured(run, monkeypatch, 2.0)
    assert run.within_s < 2.0, "what is to end in order must end before the caller has it back"
    assert run.left == 1
    never.set()


@each_row(
    ("raised", "kind", "words"),
    [
        (
            RuntimeError("NCCL error\nLast error:\nno route"),
            ProbeError,
            "rank 1 left no message, so it has ended or is stopped; rank 0: NCCL error; last error: no route",
        ),
        (UsageError("sizes: no"), UsageError, "sizes: no"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_what_is_raised_reaches_the_caller_once_nothing_of_ours_is_left(
    raised: BaseException, kind: type[BaseException], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> None:
        raise raised

    run = Run(play)
    with pytest.raises(kind) as caught:
        measured(run, monkeypatch)
    assert (str(caught.value), run.left) == (words, 1)


def test_the_time_that_imports_took_is_the_callers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(lambda: "the report")
    measured(run, monkeypatch, timeout_s=40.0, took_s=30.0)
    assert run.within_s < 10.0


def test_the_report_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(Run(lambda: "the report"), monkeypatch) == "the report"


def test_a_torch_that_cannot_abort_is_refused_before_anything_is_called() -> None:
    without = SimpleNamespace(_get_backend=lambda device: SimpleNamespace())
    with pytest.raises(UsageError, match=r"cannot abort a communicator of NCCL.*torchrun -m ncclprobe\.bandwidth"):
        in_group._refuse_without_abort("nccl", without)
    in_group._refuse_without_abort("nccl", SimpleNamespace(abort=lambda: None))
    in_group._refuse_without_abort("gloo", without)


class Group:
    """A group of NCCL by a torch that cannot abort it."""

    group_name = "ncclprobe/test"

    def _get_backend(self, device: Any) -> object:
        return object()


def part(monkeypatch: pytest.MonkeyPatch, made: Callable[[], Group], own: int = 0) -> in_group._Run:
    """One rank's part on GPUs, for which `made` makes the group in torch's place."""
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", dist.HashStore)
    monkeypatch.setattr(dist.distributed_c10d, "_new_process_group_helper", lambda *args, **how: (made(), None))
    return in_group._Run(Members((0, 1), own, "nccl"), Replay({}, node="n"), 30.0)


def test_no_thread_of_torchs_ends_the_callers_process_for_an_error_in_our_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch reads these settings where it makes a group."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    before, read = dict(os.environ), {}

    def made() -> Group:
        read.update({name: os.environ.get(name) for name in MEASURING})
        return Group()

    groups.forget(part(monkeypatch, made)._made(5.0))
    assert read == MEASURING
    assert dict(os.environ) == before


def test_a_caller_who_leaves_while_torch_makes_our_group_has_its_own_settings_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    before, left = dict(os.environ), []

    def made() -> Group:
        run.leave(1.0)
        left.append(dict(os.environ))
        return Group()

    run = part(monkeypatch, made)
    groups.forget(run._made(5.0))
    assert left == [before]


def test_nothing_is_measured_in_a_group_that_torch_could_not_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    run = part(monkeypatch, Group)
    with pytest.raises(UsageError, match="cannot abort a communicator of NCCL"), run._own_group():
        pytest.fail("a call was made that nothing could end")


@each_row("apart", [True, False])
def test_ranks_that_see_a_gpu_each_tell_of_it_before_anything_is_expected(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, done, hosts = part(monkeypatch, Group, own=1), list[Any](), ("n", "n")
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    monkeypatch.setattr(run, "_agree", lambda prepare: (None, None, (), RunConfig("nccl", 1, apart=apart), [], hosts))
    monkeypatch.setattr(in_group, "share_gpus", lambda exchange, look, here, told: done.append(told))
    monkeypatch.setattr(run, "_measure", lambda context: done.append("measured"))
    monkeypatch.setattr(in_group, "gather_captures", lambda *told: None)
    monkeypatch.setattr(run, "_everywhere", lambda report: report)
    run.play(lambda backend: pytest.fail("asked"))
    assert done == [hosts] * apart + ["measured"]
