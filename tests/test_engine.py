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
from ncclprobe.model.errors import Denied, Missing, ParseError, Unlearned
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


DENIED = Absent("permission denied", "Denied")
NOT_ASKED = Absent("the capture does not hold it", "NotCaptured")


@each_row(
    ("fact", "details", "status", "title", "why"),
    [
        ("red", {}, Status.FAIL, "The colour is wrong", ""),
        ("yellow", {}, Status.WARN, "The colour is wrong", ""),
        ("white", {}, Status.PASS, "The colour is right, except as noted", ""),
        ("green", {}, Status.PASS, "The colour is right", ""),
        ("broken", {}, Status.UNKNOWN, "Not checked: The colour is right", "KeyError: 'no such colour'"),
        (DENIED, {"privilege": "root"}, Status.UNKNOWN, "Not checked: The colour is right", "denied (needs root)"),
        (NOT_ASKED, {}, Status.UNKNOWN, "Not checked: The colour is right", "the capture does not hold it"),
        ("red", {"applies": never}, Status.SKIP, "Not checked: The colour is right",
         "applies only on no machine at all"),
    ],
)  # fmt: skip
def test_the_worst_finding_decides_and_the_title_fits_the_status(
    fact: str | Absent, details: dict[str, Any], status: Status, title: str, why: str
) -> None:
    for required in (True, False):
        seen = verdict(fact, required=required, **details)
        assert (seen.status, seen.title, why in seen.why) == (status, title, True)
        if status is Status.UNKNOWN:  # what an older capture was not asked is advisory
            assert seen.required is (required and fact != NOT_ASKED)


def test_a_finding_without_a_remedy_takes_the_checks_own() -> None:
    assert verdict("red").findings[0].remedy == "paint it."


def test_a_check_that_raises_is_alone() -> None:
    verdicts = judge([Snapshot("n", {Colour: Colour("broken")})], [rule(), rule()], Job())
    assert [v.status for v in verdicts] == [Status.UNKNOWN] * 2


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
    if expected == (Status.PASS, 0):  # but of a run that did not look at everything
        assert conclude(verdicts, fail_on, inconclusive=True) == (Status.UNKNOWN, 3)


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
    assert suppress([verdict("red")], ["test_engine.*=door"]) == ((verdict("red"),), ())


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
