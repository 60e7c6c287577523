"""The rules that make a verdict trustworthy."""

from pathlib import Path
from typing import Any

import pytest
from conftest import answers
from report.samples import HEALTHY

from ncclprobe.engine import history, running
from ncclprobe.engine.collect import collect, recordable
from ncclprobe.engine.doctor import look_s
from ncclprobe.facts.job.ranks import JobLooks, LocalRanks
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Failed, Missing, ParseError, UsageError
from ncclprobe.model.fleet import History
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import Struct
from ncclprobe.signals import NO_MEMORY
from tests.each_row import each_row


class Colour(Struct, frozen=True):
    name: str


class Shade(Struct, frozen=True):
    name: str


@collector
def colour_of(host: Host) -> Colour:
    """A colour."""
    return Colour(host.ask("read", "/colour"))


@collector
def shade_of(host: Host, colour: Colour) -> Shade:
    """A colour's shade."""
    return Shade(f"dark {colour.name}")


def test_facts_are_learned_in_the_order_of_their_needs() -> None:
    facts = collect(answers({("read", "/colour"): "red"}), [shade_of, colour_of])
    assert facts == {Colour: Colour("red"), Shade: Shade("dark red")}


@each_row(
    ("said", "refused", "why"),
    [
        ({("read", "/colour"): Missing("gone")}, "Missing", "gone"),
        ({("read", "/colour"): Denied("keep out")}, "Denied", "keep out"),
        ({}, "NotCaptured", "/colour"),
    ],
)
def test_a_refusal_becomes_absent_and_is_passed_on(said: Any, refused: str, why: str) -> None:
    facts = collect(answers(said), [shade_of, colour_of])
    assert facts[Colour] == facts[Shade]
    assert (facts[Colour].refused, why in facts[Colour].why) == (refused, True)


def test_a_fact_that_nobody_produces_makes_its_dependents_absent() -> None:
    assert "Colour was never collected" in collect(answers({}), [shade_of])[Shade].why


@each_row(
    ("error", "refused", "why"),
    [
        *((error("odd"), "ParseError", "please report it") for error in (ParseError, ValueError, KeyError, TypeError)),
        (OSError("no process left"), "ParseError", "no process left"),
        *(
            (error, "Failed", NO_MEMORY)
            for error in (MemoryError(), SystemError(), RuntimeError("can't allocate lock"))
        ),
        (RuntimeError("can't start new thread"), "ParseError", "can't start new thread"),
    ],
)
@each_row("at_once", [False, True])
def test_a_collector_that_fails_is_absent_and_the_others_have_their_facts(
    error: Exception, refused: str, why: str, at_once: bool
) -> None:
    """An answer that makes no sense is our bug; a machine that fails us is not."""

    @collector
    def broken(host: Host) -> Shade:
        raise error

    @collector
    def fine(host: Host) -> Colour:
        return Colour("red")

    facts = collect(answers({}), [broken, fine], at_once=at_once)
    assert facts[Colour] == Colour("red")
    assert (facts[Shade].refused, why in facts[Shade].why) == (refused, True)


def test_a_collector_that_ends_its_thread_or_gets_none_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    @collector
    def broken(host: Host) -> Shade:
        raise AssertionError

    said = {("read", "/colour"): "red"}
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    facts = collect(answers(said), [broken, colour_of], at_once=True)
    assert facts == {Shade: Absent("its collector failed; the reason is on stderr"), Colour: Colour("red")}

    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", full)
    monkeypatch.setattr("ncclprobe.engine.collect._BEGIN_S", 0.01)
    assert collect(answers(said), [shade_of, colour_of], at_once=True)[Shade] == Shade("dark red")


def test_variables_of_the_table_and_of_readers_are_recorded_and_none_that_holds_others() -> None:
    found = recordable()
    assert {"NCCL_DEBUG", "RANK", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"} <= found
    assert {"SLURM_EXPORT_ENV", "NCCLPROBE_TOKEN", "PATH"}.isdisjoint(found)


def test_a_tenth_of_the_time_is_left_to_judge_but_a_second_or_half_of_it() -> None:
    given = {120.0: 108.0, 20.0: 18.0, 10.0: 9.0, 5.0: 4.0, 2.0: 1.0, 1.0: 0.5}
    assert {timeout_s: look_s(timeout_s) for timeout_s in given} == given


OTHERS = tuple((str(pid), "ada", "0-7", "train.py", "10:00", "n1:29500") for pid in range(100, 125))
_NONE = "no rank of a job was found on n0, n1{}; --pid PID names one that sets RANK itself"


@each_row(
    ("facts", "why"),
    [
        ([LocalRanks(()), LocalRanks(())], _NONE.format("")),
        ([LocalRanks((), hidden=2), LocalRanks((), hidden=3)],
         _NONE.format("; 5 Python processes of other users run there; attach as the job's user or as root")),
        ([LocalRanks(()), Absent("no /proc")], "n1: ranks cannot be examined: no /proc"),
        ([LocalRanks((), others=OTHERS[:2]), LocalRanks(())], "n0 runs 2 jobs; choose one with --pid, one of 100, 101"),
        ([LocalRanks((), others=OTHERS)],
         f"n0 runs 25 jobs; choose one with --pid, one of {', '.join(map(str, range(100, 120)))}"),
    ],
)  # fmt: skip
def test_a_look_without_the_ranks_of_one_job_is_refused_with_what_to_do(facts: list[Any], why: str) -> None:
    nodes = [
        Snapshot(f"n{number}", {LocalRanks: fact, JobLooks: JobLooks((), ())})  # type: ignore[arg-type]
        for number, fact in enumerate(facts)
    ]
    with pytest.raises(UsageError) as refused:
        running.stands(nodes)
    assert str(refused.value) == why


def test_a_store_of_reports_that_does_not_answer_is_said_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ncclprobe.fleet.child.add", lambda _, *given: said.append(given))
    for written, left_s in (("r.json", 1.0), ("", 2.5), ("-", 9.0)):
        history.keep(HEALTHY, tmp_path, written, left_s, said.append)
    assert said == [(tmp_path, str(tmp_path / "r.json"), 2.0), (tmp_path, "--fleet", 2.5), (tmp_path, "--fleet", 5.0)]
    for error in (UsageError("no"), Failed("no"), UnicodeEncodeError("utf-8", "no", 0, 1, "no")):

        def refuses(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("ncclprobe.fleet.child.add", refuses)
        monkeypatch.setattr("ncclprobe.fleet.child.past", refuses)
        del said[:]
        history.keep(HEALTHY, tmp_path, "", 9.0, said.append)
        assert said == [f"--fleet: this report was not added: {error}"]
        (node,) = history.add_history([Snapshot("n7", {})], HEALTHY, tmp_path)
        assert node.facts == {History: Absent(str(error))}
    monkeypatch.setattr("ncclprobe.fleet.child.past", lambda *_: {"n8": "its days"})
    first, other = history.add_history([Snapshot("n7", {}), Snapshot("n8", {})], HEALTHY, tmp_path)
    assert first.facts == {History: Absent(f"{tmp_path} has no history of this node")}
    assert other.facts == {History: "its days"}
