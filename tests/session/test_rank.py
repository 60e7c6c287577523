"""One rank between the answers of the others: what it tells them of its GPU, before anything is measured."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.host.capture import Replay
from ncclprobe.model.snapshot import Job
from ncclprobe.session.measure import rank as module
from ncclprobe.session.measure.rank import Rank
from ncclprobe.session.ranks.identity import RankIdentity, RunConfig
from tests.each_row import each_row


def rank(number: int, *argv: str) -> Rank:
    """That rank of two on one node, which is to measure NCCL."""
    options = command_line.parse([*argv, "-q", "-b", "1M", "-e", "1M"])
    question = ask(options.judging, ("bandwidth",), Job(), MEASURED)
    identity = RankIdentity("environment", number, 2, number, 2, 1, "n0", 0)
    return Rank(options, question, identity, Replay({}, node="n0"), (), "nccl")


@each_row("apart", [True, False])
def test_ranks_that_see_a_gpu_each_tell_of_it_before_anything_is_expected(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Expecting(Exception):
        pass

    def nothing(*args: Any) -> None:
        pass

    def expects(run: Any) -> None:
        raise Expecting

    own, told = rank(1), list[Any]()
    for name in ("resolve", "connect", "Exchange"):
        monkeypatch.setattr(module, name, lambda *args, **how: None)
    watchdog = SimpleNamespace(set_phase=nothing, attach=nothing, late_s=0.0)
    agreed = RunConfig("nccl", 1, apart=apart)
    for name, value in {
        "_watchdog": watchdog,
        "_torch": nothing,
        "_agree": lambda exchange, torch: agreed,
        "_context": nothing,
        "_expect": expects,
    }.items():
        monkeypatch.setattr(own, name, value)
    monkeypatch.setattr(module, "share_gpus", lambda exchange, look, here, hosts: told.append((look, here)))
    with pytest.raises(Expecting):
        own._measure()
    assert told == [(None, own._hostname)] * apart
