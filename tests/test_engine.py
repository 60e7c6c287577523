"""The rules that make a verdict trustworthy."""

from collections.abc import Iterator
from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import conclude, judge, selected, suppress
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Missing, NotCaptured, ParseError, Unlearned
from ncclprobe.model.findings import UNSEEN, Finding, Status, fail, note, warn
from ncclprobe.model.registry import applies, check, collector
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot
from ncclprobe.model.values import Struct
from tests.each_row import each_row


class Colour(Struct, frozen=True):
    name: str


class Shade(Struct, frozen=True):
    name: str


@applies
def never(job: Job) -> bool:
    """on no machine at all."""
    return False


def rule(**details: Any) -> Any:
    """A check over Colour that yields the finding named by the colour."""

    def colour(colour: Colour) -> Iterator[Finding]:
        """The colour is wrong.

        Right: The colour is right.
        Why: reasons.
        Fix: paint it.
        """
        if colour.name == "broken":
            raise KeyError("no such colour")
        tell = {"red": fail, "yellow": warn, "white": note}.get(colour.name)
        if tell:
            yield tell("wall", "is " + colour.name)

    return check(bad=tuple, good=tuple, **details)(colour)


def verdict(name: str | Absent, **details: Any) -> Any:
    fact = name if isinstance(name, Absent) else Colour(name)
    return judge([Snapshot("n", {Colour: fact})], [rule(**details)], Job())[0]


@each_row(
    ("colour", "status"),
    [("red", Status.FAIL), ("yellow", Status.WARN), ("white", Status.PASS), ("green", Status.PASS)],
)
def test_the_worst_finding_decides(colour: str, status: Status) -> None:
    assert verdict(colour).status is status


@each_row(
    ("colour", "title"),
    [
        ("red", "The colour is wrong"),
        ("yellow", "The colour is wrong"),
        ("white", "The colour is right, except as noted"),
        ("green", "The colour is right"),
        ("broken", "Not checked: The colour is right"),
        (Absent("dark"), "Not checked: The colour is right"),
    ],
)
def test_the_title_fits_the_status(colour: str | Absent, title: str) -> None:
    assert verdict(colour).title == title


def test_a_check_that_does_not_apply_claims_nothing() -> None:
    assert verdict("red", applies=never).title == "Not checked: The colour is right"


def test_a_finding_without_a_remedy_takes_the_checks_own() -> None:
    assert verdict("red").findings[0].remedy == "paint it."


def test_an_absent_fact_is_unknown_and_says_why() -> None:
    seen = verdict(Absent("permission denied", "Denied"), privilege="root", required=True)
    assert (seen.status, seen.required) == (Status.UNKNOWN, True)
    assert seen.why == "permission denied (needs root)"


def test_a_question_an_older_capture_never_asked_is_advisory() -> None:
    seen = verdict(Absent("the capture does not hold it", "NotCaptured"), required=True)
    assert (seen.status, seen.required) == (Status.UNKNOWN, False)


def test_a_check_that_raises_is_unknown_and_alone() -> None:
    broken = rule(required=True)
    verdicts = judge([Snapshot("n", {Colour: Colour("broken")})], [broken, broken], Job())
    assert [v.status for v in verdicts] == [Status.UNKNOWN] * 2
    assert "KeyError: 'no such colour'" in verdicts[0].why


def test_a_check_whose_facts_do_not_say_is_unknown() -> None:
    @check(bad=tuple, good=tuple, required=True)
    def silent(colour: Colour) -> Iterator[Finding]:
        """Says nothing.

        Why: it cannot.
        Fix: ask again.
        """
        raise Unlearned("no colour was seen")
        yield

    (seen,) = judge([Snapshot("n", {Colour: Colour("red")})], [silent], Job())
    assert (seen.status, seen.required, seen.why) == (Status.UNKNOWN, True, "no colour was seen")


def test_a_check_that_does_not_apply_is_skipped_with_the_words_of_its_condition() -> None:
    seen = verdict("red", applies=never)
    assert (seen.status, seen.why) == (Status.SKIP, "applies only on no machine at all")


@each_row("colour", ["red", "yellow"])
def test_a_consequence_is_silenced_by_its_cause(colour: str) -> None:
    cause, consequence = rule(), rule(requires="test_engine.colour")
    consequence = type(cause)(**{f: getattr(consequence, f) for f in cause.__slots__} | {"id": "wall.cracks"})
    verdicts = judge([Snapshot("n", {Colour: Colour(colour)})], [cause, consequence], Job())
    silenced = colour == "red"  # a warning explains nothing away
    assert verdicts[1].status is (Status.SKIP if silenced else Status.WARN)
    assert bool(verdicts[1].findings) is not silenced


def statuses(*of: Status, required: bool = True) -> list[Any]:
    return [type(verdict("red"))("a.b", "n", status, "t", required=required) for status in of]


@each_row(
    ("verdicts", "fail_on", "expected"),
    [
        (statuses(Status.PASS, Status.SKIP), "fail", (Status.PASS, 0)),
        (statuses(Status.PASS, Status.WARN), "fail", (Status.WARN, 0)),
        (statuses(Status.PASS, Status.WARN), "warn", (Status.WARN, 4)),
        (statuses(Status.PASS, Status.UNKNOWN), "fail", (Status.UNKNOWN, 3)),
        (statuses(Status.PASS) + statuses(Status.UNKNOWN, required=False), "fail", (Status.PASS, 0)),
        (statuses(Status.FAIL, Status.UNKNOWN), "fail", (Status.FAIL, 4)),
        (statuses(Status.SKIP), "fail", (Status.UNKNOWN, 3)),
        ([], "fail", (Status.UNKNOWN, 3)),
    ],
)
def test_exit_codes_are_those_that_are_promised(
    verdicts: list[Any], fail_on: str, expected: tuple[Status, int]
) -> None:
    assert conclude(verdicts, fail_on) == expected


def test_what_was_not_looked_at_makes_a_passing_run_inconclusive() -> None:
    assert conclude(statuses(Status.PASS), inconclusive=True) == (Status.UNKNOWN, 3)


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


@each_row("refusal", [Missing("gone"), Denied("keep out")])
def test_a_refusal_becomes_absent_and_is_passed_on(refusal: Exception) -> None:
    facts = collect(answers({("read", "/colour"): refusal}), [shade_of, colour_of])
    assert facts[Colour] == facts[Shade] == Absent(str(refusal), type(refusal).__name__)


def test_what_a_capture_does_not_hold_is_absent_for_that_reason() -> None:
    assert collect(answers({}), [colour_of])[Colour].refused == NotCaptured.__name__


@each_row("error", [ParseError("odd"), ValueError("odd"), KeyError("odd"), TypeError("odd")])
def test_an_answer_that_makes_no_sense_is_our_bug_and_not_healthy(error: Exception) -> None:
    @collector
    def confused(host: Host) -> Colour:
        """Cannot be parsed."""
        raise error

    fact = collect(answers({}), [confused])[Colour]
    assert fact.refused == "ParseError"
    assert "please report it" in fact.why


def test_a_fact_that_nobody_produces_makes_its_dependents_absent() -> None:
    assert "Colour was never collected" in collect(answers({}), [shade_of])[Shade].why


def test_checks_are_chosen_by_globs() -> None:
    checks = [rule()]
    assert selected(checks, ["test_*"]) == tuple(checks)
    assert selected(checks, ["env.*"]) == ()
    assert selected(checks, ignore=["*.colour"]) == ()
    assert selected(checks, ignore=["*.colour=wall"]) == tuple(checks)


def test_a_suppressed_finding_is_left_out_and_said() -> None:
    kept, left_out = suppress([verdict("red")], ["test_engine.*=wall"])
    assert (kept[0].status, kept[0].findings) == (Status.PASS, ())
    assert kept[0].title == "Suppressed: The colour is wrong"
    assert [(s.id, s.subject) for s in left_out] == [("test_engine.colour", "wall")]


def test_suppressing_another_subject_changes_nothing() -> None:
    seen = verdict("red")
    assert suppress([seen], ["test_engine.*=door"]) == ((seen,), ())


@each_row("error", [OSError("no process left"), RuntimeError("can't start new thread")])
@each_row("at_once", [False, True])
def test_a_collector_that_the_machine_fails_is_absent_and_the_others_have_their_facts(
    error: Exception, at_once: bool
) -> None:
    @collector
    def broken(host: Host) -> Shade:
        raise error

    @collector
    def fine(host: Host) -> Colour:
        return Colour("red")

    facts = collect(answers({}), [broken, fine], at_once=at_once)
    assert facts[Colour] == Colour("red")
    assert isinstance(facts[Shade], Absent)
    assert str(error) in facts[Shade].why


def test_a_comparison_says_nothing_again_of_a_subject_that_its_node_was_failed_for() -> None:
    own = rule()

    @check(bad=tuple, good=tuple, requires=own.id)
    def differs(colours: Every[Colour]) -> Iterator[Finding]:
        """A colour differs.

        Right: All colours agree.
        Why: reasons.
        Fix: paint it.
        """
        yield fail("n0 wall", "differs from the others", nodes=("n0",))
        yield fail("n0 door", "differs from the others", nodes=("n0",))

    told = [Snapshot("n0", {Colour: Colour("red")}), Snapshot("n1", {Colour: Colour("green")})]
    joint = judge(told, [own, differs], Job())[-1]
    assert [finding.subject for finding in joint.findings] == ["n0 door"]
    alone = judge(told[1:], [own, differs], Job())[-1]
    assert [finding.subject for finding in alone.findings] == ["n0 wall", "n0 door"]


def test_what_follows_from_a_graver_finding_on_its_subject_names_that_and_has_no_remedy_of_its_own() -> None:
    own = rule()

    @check(bad=tuple, good=tuple)
    def blind(colour: Colour) -> Iterator[Finding]:
        """A wall is dirty.

        Right: All walls are clean.
        Why: reasons.
        Fix: wash it.
        """
        yield note("wall", f"{UNSEEN}it is gone", evidence="a look")
        yield note("wall", "has been painted twice", evidence="a look")

    @check(bad=tuple, good=tuple)
    def differs(colours: Every[Colour]) -> Iterator[Finding]:
        """A colour differs.

        Right: All colours agree.
        Why: reasons.
        Fix: paint all the same.
        """
        yield warn("wall", "differs from the others", nodes=("n0",))
        yield warn("door", "differs from the others", nodes=("n0",))
        yield warn("wall", "differs from the others", nodes=("n1",))

    told = [Snapshot("n0", {Colour: Colour("red")}), Snapshot("n1", {Colour: Colour("green")})]
    verdicts = judge(told, [own, blind, differs], Job())
    found = [finding for verdict in verdicts for finding in verdict.findings if verdict.id != own.id]
    assert [(f.see_also, bool(f.remedy)) for f in found] == [
        (f"{own.id} wall", False), ("", True),  # of n0
        ("", True), ("", True),  # of n1, on which nothing fails
        (f"{own.id} wall", False), ("", True), ("", True),  # between them
    ]  # fmt: skip


@check(bad=tuple, good=tuple)
def spans(launch: Launch) -> Iterator[Finding]:
    """The node is of a job of several.

    Right: The node is alone.
    Why: reasons.
    Fix: none.
    """
    if launch.several_nodes:
        yield note("job", f"spans {launch.nnodes} nodes")


@each_row(
    ("launches", "several"),
    [
        ([Launch()], [False]),
        ([Launch(), Launch()], [True, True]),
        ([Launch("torchrun", nnodes=1), Launch()], [False, True]),
        ([Launch("environment", 0, 2), Launch("options", nnodes=2)], [False, True]),
    ],
)
def test_nodes_that_are_judged_together_are_of_one_job_unless_a_launcher_says_otherwise(
    launches: list[Launch], several: list[bool]
) -> None:
    snapshots = [Snapshot(f"n{at}", {Launch: each}) for at, each in enumerate(launches)]
    assert [bool(each.findings) for each in judge(snapshots, [spans], Job())] == several
    apart = judge(snapshots, [spans], Job(local=True))
    assert [bool(each.findings) for each in apart] == [each.several_nodes for each in launches]


@each_row(("machines", "count"), [("aa", 0), ("aab", 2), ("ab", 2), ("aA", 2)])
def test_a_machine_that_was_captured_twice_is_one_node(machines: str, count: int) -> None:
    """A capital is a container with a network of its own on that machine."""
    facts = [
        {
            Launch: Launch(),
            System: System("node", "6.8.0", "x86_64", "Ubuntu 22.04", each.lower()),
            Process: Process(ResourceLimit(None, None), (0,), (0,), frozenset(), True, {"net": ord(each)}),
        }
        for each in machines
    ]
    snapshots = [Snapshot(f"n{at}", each) for at, each in enumerate(facts)]
    said = {finding.message for each in judge(snapshots, [spans], Job()) for finding in each.findings}
    assert said == ({f"spans {count} nodes"} if count else set())
