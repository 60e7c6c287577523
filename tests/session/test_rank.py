"""One rank between the answers of the others: what it tells them, notes of itself, and measures again. No store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from probes.plans import plan

from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.run.samples import Attendance, LostRank
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import ProbeError, UsageError
from ncclprobe.model.snapshot import Job
from ncclprobe.probes import sweep
from ncclprobe.report import json as as_json
from ncclprobe.session.measure import collectives
from ncclprobe.session.measure import rank as module
from ncclprobe.session.measure.rank import Rank
from ncclprobe.session.ranks import group
from ncclprobe.session.ranks.identity import Backend, RankIdentity, RunConfig
from ncclprobe.session.watchdog.ending import Ending
from tests.each_row import each_row

STUCK = "nccl:all_reduce, call 7 of its group, sizes [[4]], is started and not finished"


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


@each_row(
    ("lost", "backend", "noted"),
    [
        ((1,), "nccl", True),
        ((0, 1), "nccl", False),  # it is in no call that others could be blamed for
        ((1,), None, False),  # torch has made no group
    ],
)
def test_a_rank_that_waits_for_others_notes_what_the_flight_recorder_has_of_its_call(
    lost: tuple[int, ...], backend: Backend | None, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str | None, str] = {"nccl": STUCK}
    monkeypatch.setattr(group, "in_flight", asked.__getitem__)
    path = tmp_path / "report.json"
    own = rank(0, "--json", str(path))
    own._backend = backend
    missing = tuple(LostRank(each, "n0", "all_reduce 1 MiB timing", "its heartbeat stopped") for each in lost)
    own._conclude(Ending(attendance=Attendance(2, missing)))
    notes = as_json.read(str(path)).notes
    assert [note for note in notes if "recorder" in note] == [f"the flight recorder of rank 0: {STUCK}"] * noted


def test_why_a_run_measures_nothing_is_kept_for_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise UsageError(NO_ROOM)

    own, kept = rank(0), list[Ending]()
    monkeypatch.setattr(own, "_measure", refuses)
    monkeypatch.setattr(own, "_watchdog", SimpleNamespace(start=list, stop=list))
    monkeypatch.setattr(own, "_look", None)
    monkeypatch.setattr(own._recorder, "keep", kept.append)
    with pytest.raises(UsageError):
        own.run()
    assert kept == [Ending(why=NO_ROOM)]


NO_ROOM = "64 KiB: two buffers need 128 KiB per rank and rank 1 has only 0 B free; choose smaller sizes (-b and -e)"


@each_row(
    ("again", "rows", "notes"),
    [
        (None, ["row", "row"], []),
        (UsageError(NO_ROOM), ["row"], [f"all_reduce 64 KiB was not retested: {NO_ROOM}"]),
        (ProbeError("rank 1: reset"), ["row"], None),  # a lost rank still ends the run
    ],
)
def test_a_row_that_has_no_room_to_be_measured_again_keeps_its_verdict(
    again: Exception | None, rows: list[str], notes: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of one row, which fails until it is measured again, and one retest."""
    kept: list[str] = []
    said: list[str] = []
    outcomes = iter([None, again])

    def run_once(*_args: Any, **_more: Any) -> Iterator[str]:
        if outcome := next(outcomes):
            raise outcome
        yield "row"

    def nothing(*_: object) -> None: ...

    monkeypatch.setattr(sweep, "run", run_once)
    recorder = SimpleNamespace(
        progress=SimpleNamespace(expect=nothing, reach=nothing), add=kept.append, add_retest=kept.append,
        disturbed=nothing, skip=nothing, failing=lambda most: [("all_reduce", 1 << 16)],
    )  # fmt: skip
    alone = SimpleNamespace(collect=lambda value: [value], share=lambda value: value)
    run = SimpleNamespace(
        plan=plan, exchange=alone, set_phase=nothing, host=Replay({}), options=SimpleNamespace(repeat=1),
        recorder=recorder, note=said.append,
    )  # fmt: skip
    with pytest.raises(ProbeError) if notes is None else contextlib.nullcontext():
        collectives.sweep(run)  # type: ignore[arg-type]
    assert (kept, said) == (rows, notes or [])
