"""What every check promises, found by discovery: a new check is tested here without being named."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ncclprobe.engine.judge import conclude, judge
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.registry import check, discover
from ncclprobe.model.rules import Check, Collector
from ncclprobe.model.snapshot import Job, Snapshot

CHECKS = discover("ncclprobe.checks", Check)
COLLECTORS = discover("ncclprobe.facts", Collector)
IDS = [c.id for c in CHECKS]

every_check = pytest.mark.parametrize("rule", CHECKS, ids=IDS)


def cases(kind: str) -> list[Any]:
    return [pytest.param(c, example, id=f"{c.id}-{n}") for c in CHECKS for n, example in enumerate(getattr(c, kind))]


@pytest.mark.parametrize(("rule", "example"), cases("bad"))
def test_a_check_objects_to_each_of_its_bad_examples(rule: Check, example: tuple[Any, ...]) -> None:
    findings = list(rule.run(*example))
    assert {f.severity for f in findings} & {Severity.WARN, Severity.FAIL}
    for finding in findings:
        assert finding.subject
        assert finding.message
        assert finding.evidence
        if finding.severity is not Severity.NOTE and not (rule.cause and not rule.cause.code):  # no mere consequence
            assert finding.blame != "unknown" or finding.action != "none"


@pytest.mark.parametrize(("rule", "example"), cases("good"))
def test_a_check_accepts_each_of_its_good_examples(rule: Check, example: tuple[Any, ...]) -> None:
    assert [f for f in rule.run(*example) if f.severity is not Severity.NOTE] == []


@every_check
def test_a_check_says_what_why_and_how_to_fix(rule: Check) -> None:
    assert rule.title
    assert rule.right
    assert rule.right != rule.title
    assert len(rule.why) > 40
    assert rule.fix
    assert rule.bad
    assert rule.good


@every_check
def test_no_word_of_an_explanation_is_lost(rule: Check) -> None:
    told = " ".join(f"{rule.title}. Right: {rule.right}. Why: {rule.why} Fix: {rule.fix}".split())
    assert told == " ".join((inspect.getdoc(rule.run) or "").split())


@every_check
def test_a_check_that_knows_nothing_never_passes(rule: Check) -> None:
    (verdict,) = judge([Snapshot("n", {})], [rule], Job())
    assert verdict.status in (Status.UNKNOWN, Status.SKIP)
    if verdict.status is Status.SKIP:  # a condition over the job alone may say no
        assert rule.applies is not None


def test_a_machine_of_which_nothing_is_known_is_inconclusive() -> None:
    verdicts = judge([Snapshot("n", {})], CHECKS, Job())
    assert conclude(verdicts) == (Status.UNKNOWN, 3)


def test_ids_are_unique_and_look_like_ids() -> None:
    assert len(set(IDS)) == len(IDS)
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", i) for i in IDS)


def test_a_cause_that_silences_others_exists() -> None:
    assert {c.requires for c in CHECKS if c.requires} <= set(IDS)


def test_every_fact_is_produced_by_one_collector() -> None:
    produced = [c.produces for c in COLLECTORS]
    assert len(set(produced)) == len(produced)


@every_check
def test_the_facts_a_check_needs_exist(rule: Check) -> None:
    made = {need.fact for need in rule.needs} if rule.id.startswith(("run.", "log.")) else set()  # no machine is asked
    assert {need.fact for need in rule.needs} <= {c.produces for c in COLLECTORS} | {Job} | made


def test_a_function_becomes_a_check_by_its_signature_and_docstring() -> None:
    def odd_(job: Job) -> Iterator[Finding]:
        """The job is odd.

        Right: The job is
        even.
        Why: because
        it is.
        Fix: even it out.
        """
        yield from ()

    rule = check(bad=tuple, good=tuple)(odd_)
    assert (rule.id, rule.title, rule.right, rule.why, rule.fix) == (
        "test_checks.odd",
        "The job is odd",
        "The job is even",
        "because it is.",
        "even it out.",
    )
    assert [(need.name, need.fact, need.accepts_absent) for need in rule.needs] == [("job", Job, False)]
