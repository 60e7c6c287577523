"""A check that a release brings warns until the next minor one, unless a site wants otherwise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclprobe import __version__
from ncclprobe.commands import main
from ncclprobe.engine import diagnose, stability
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.model.errors import Unlearned, UsageError
from ncclprobe.model.findings import ExitCode, Finding, Severity, Status, fail, note, warn
from ncclprobe.model.registry import Check, check
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row


def every_severity(job: Job) -> Iterator[Finding]:
    """Things are wrong.

    Right: things are right. Why: because. Fix: them.
    """
    yield fail("a", "fails")
    yield warn("b", "warns")
    yield note("c", "is worth knowing")


def blind(job: Job) -> Iterator[Finding]:
    """Things cannot be seen.

    Right: things are right. Why: because. Fix: them.
    """
    raise Unlearned("it is dark")
    yield


NEW, DARK = (check(bad=tuple, good=tuple, required=True, since="0.2")(run) for run in (every_severity, blind))
OLD = replace(NEW, since="")


def judged(rule: Check, worst: str | None, version: str) -> tuple[list[tuple[Severity, str]], ExitCode]:
    checks = stability.judged_as(worst, [rule], version)
    verdicts = judge([Snapshot("n0", {})], checks, Job())
    return [(each.severity, each.message) for v in verdicts for each in v.findings], conclude(verdicts)[1]


WARNED = "fails (new in 0.2: a warning until 0.3)"


@each_row(
    ("rule", "worst", "version", "first", "code"),
    [
        (NEW, None, "0.2.0", (Severity.WARN, WARNED), ExitCode.OK),
        (NEW, "warn", "0.2.7", (Severity.WARN, WARNED), ExitCode.OK),
        (NEW, "fail", "0.2.0", (Severity.FAIL, "fails"), ExitCode.FAIL),
        (NEW, None, "0.3.0", (Severity.FAIL, "fails"), ExitCode.FAIL),
        (NEW, None, "1.0.0", (Severity.FAIL, "fails"), ExitCode.FAIL),
        (OLD, None, "0.2.0", (Severity.FAIL, "fails"), ExitCode.FAIL),
    ],
)
def test_a_new_check_fails_nothing_until_the_next_minor_release(
    rule: Check, worst: str | None, version: str, first: tuple[Severity, str], code: ExitCode
) -> None:
    findings, found = judged(rule, worst, version)
    assert (findings[0], found) == (first, code)
    assert findings[1:] == [(Severity.WARN, "warns"), (Severity.NOTE, "is worth knowing")]


def test_no_run_depends_on_what_a_new_check_cannot_see() -> None:
    for worst, version, required in ((None, "0.2.0", False), ("fail", "0.2.0", True), (None, "0.3.0", True)):
        (verdict,) = judge([Snapshot("n0", {})], stability.judged_as(worst, [DARK], version), Job())
        assert (verdict.status, verdict.required) == (Status.UNKNOWN, required)


@each_row(
    ("option", "text", "severity"),
    [
        (None, "", Severity.WARN),
        (None, 'new_checks = "fail"\n', Severity.FAIL),
        ("warn", 'new_checks = "fail"\n', Severity.WARN),
        ("fail", "", Severity.FAIL),
    ],
)
def test_a_site_chooses_by_option_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str | None, text: str, severity: Severity
) -> None:
    rule = replace(NEW, since=stability.minor(__version__))
    monkeypatch.setattr(diagnose, "every_check", lambda *_: (rule,))
    path = tmp_path / "site.toml"
    path.write_text(text)
    question = diagnose.ask(diagnose.Judging(config=path, new_checks=option), ("doctor",), Job())
    (asked,) = question.checks
    assert next(iter(asked.run(Job()))).severity is severity


def test_another_word_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('new_checks = "ignore"\n')
    with pytest.raises(UsageError, match="new_checks: 'ignore' is unknown; choose from warn, fail"):
        diagnose.ask(diagnose.Judging(config=path), ("doctor",), Job())
    assert main(["doctor", "--new-checks", "ignore"]) == ExitCode.USAGE
