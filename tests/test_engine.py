"""The rules that make a verdict trustworthy."""

from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Missing, ParseError, Unlearned
from ncclprobe.model.findings import Status
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import Struct
from tests.each_row import each_row
from tests.judge_inputs import FIRST, First


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


def test_a_check_whose_facts_do_not_say_is_unknown() -> None:
    """More of what is judged is in tests/data/command_values/judging.txt."""
    (seen,) = judge([Snapshot("n", {First: First(error=Unlearned("no colour was seen"))})], [FIRST], Job())
    assert (seen.status, seen.required, conclude([seen])) == (Status.UNKNOWN, True, (Status.UNKNOWN, 3))
