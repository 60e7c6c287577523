"""What every check promises, found by discovery: a new check is tested here without being named."""

import re
from collections.abc import Iterator

import pytest

from ncclprobe.engine.judge import conclude, judge
from ncclprobe.engine.promises import broken
from ncclprobe.engine.site import PREFIX
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Status
from ncclprobe.model.registry import Check, Collector, check, discover
from ncclprobe.model.snapshot import Job, Snapshot
from tests.checks.cases import VALUES, Row, case_values, checks, said, written
from tests.checks.changes import CHANGES, changes
from tests.checks.edges import EDGES, moved
from tests.checks.mixes import MIXES, otherwise
from tests.kept import difference

CHECKS = checks()
COLLECTORS = discover("ncclprobe.facts", Collector)
IDS = [c.key for c in CHECKS]


def test_every_check_keeps_what_checks_promise() -> None:
    """Its examples and cases hold, it explains itself, it passes nothing unlooked: `engine.promises`."""
    assert {rule.id: why for rule in CHECKS if (why := list(broken(rule)))} == {}


def test_every_case_leads_to_the_severity_blame_subject_and_nodes_that_its_row_begins_with() -> None:
    """One fault planted in a threshold, a severity, a blame or a subject must fail here, not in a user's report."""
    wrong, rows = {}, 0
    for rule in CHECKS:
        bad = iter(rule.bad_examples()[1:])  # behind the one that it ships; of a log, what is read in it
        for number, (must, facts) in enumerate(written().get(rule.key, ()), 1):
            if not must:
                continue
            rows += 1
            try:
                does = said(rule.run(*(next(bad) if Row(must, facts).kind == "bad" else facts)))
            except Unlearned as error:
                does = must if must.startswith("UNKNOWN: ") and must[9:] in str(error) else f"UNKNOWN: {error}"
            if does != must:
                wrong[f"{rule.key}, row {number}"] = f"expected {must}, found {does or 'nothing'}"
        assert not [*bad]
    assert not wrong, "\n".join([f"{len(wrong)} rows are wrong", *(f"[{row}] {why}" for row, why in wrong.items())])
    assert rows >= 2 * len(CHECKS)


def test_what_users_read_of_every_bad_case_is_what_was_read() -> None:
    """How bad, whose fault, which rank, NIC, line or limit: a message may be reworded, its values may not change."""
    kept, now = VALUES.read_text(encoding="utf-8").splitlines(), list(case_values(CHECKS))
    assert {*kept} == {*now}, difference("golden.py cases edges changes mixes applies", kept, now)
    assert len(kept) == len(now) > 800
    assert {rule.key for rule in CHECKS} == {line.partition(" ")[0] for line in kept}


def test_every_number_that_a_check_judges_has_the_edge_that_was_read() -> None:
    """On both sides of each: a threshold a little off, or `<` in place of `<=`, must fail here."""
    kept = EDGES.read_text(encoding="utf-8").splitlines()
    assert list(moved(CHECKS, kept)) == [], difference("golden.py cases edges changes mixes applies", (), ())
    assert len(kept) > 400
    assert len({line.partition("\t")[0] for line in kept}) > 100


@pytest.mark.slow
@pytest.mark.every_time
def test_what_a_check_says_of_its_cases_after_one_change_is_what_was_read() -> None:
    """A condition that is dropped, or asks for too much, must fail here: tests.checks.changes."""
    kept, now = CHANGES.read_text(encoding="utf-8").splitlines(), list(changes(CHECKS))
    assert {*kept} == {*now}, difference("golden.py cases edges changes mixes applies", kept, now)
    assert len(kept) > 4000


@pytest.mark.slow
@pytest.mark.every_time
def test_what_a_check_says_of_mixed_cases_is_what_was_read() -> None:
    """Two conditions at once, another order, a part twice or unknown: tests.checks.mixes."""
    kept = MIXES.read_text(encoding="utf-8").splitlines()
    assert list(otherwise(CHECKS, kept)) == [], difference("golden.py cases edges changes mixes applies", (), ())
    assert len({line.partition(" ")[0] for line in kept}) > 180


def test_every_case_is_of_a_check() -> None:
    assert set(written()) <= set(IDS)


def test_a_check_ships_one_example_of_each_kind_and_its_other_cases_are_tests() -> None:
    assert [c.id for c in discover("ncclprobe.checks", Check) if (len(c.bad), len(c.good)) != (1, 1)] == []


def test_a_machine_of_which_nothing_is_known_is_inconclusive() -> None:
    verdicts = judge([Snapshot("n", {})], CHECKS, Job())
    assert conclude(verdicts) == (Status.UNKNOWN, 3)


def test_ids_are_unique_and_look_like_ids() -> None:
    assert len(set(IDS)) == len(IDS)
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", i.partition("/")[0]) for i in IDS)
    assert not [i for i in IDS if i.startswith(PREFIX.rstrip("-"))], "a site's ids begin so"


def test_a_cause_that_silences_others_exists() -> None:
    assert {c.requires for c in CHECKS if c.requires} <= set(IDS)


def test_every_fact_is_produced_by_one_collector() -> None:
    produced = [c.produces for c in COLLECTORS]
    assert len(set(produced)) == len(produced)


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
        "test_checks.odd", "The job is odd", "The job is even", "because it is.", "even it out.",
    )  # fmt: skip
    assert [(need.name, need.fact, need.accepts_absent) for need in rule.needs] == [("job", Job, False)]
