"""Every cause on its own examples and cases, and on all others': it names itself, and nothing else names it."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks import log as rules
from ncclprobe.checks.log import Examples
from ncclprobe.engine import pasted_causes
from ncclprobe.engine.diagnose import LEFT, MACHINE, MEASURED, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.logs import messages
from ncclprobe.logs import ranks as log_ranks
from ncclprobe.logs.causes import ANY, SAME_LINE, causes
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.reader import Reader
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Job, Snapshot
from tests.checks.cases import with_cases
from tests.command_values import KEPT
from tests.each_row import each_row, some

CHECKS = [
    with_cases(check) for check in every_check(LEFT) if check.cause and [need.fact for need in check.needs] == [JobLog]
]
RULES = {check.key: check.cause for check in CHECKS if check.cause}
READER = Reader([sign for rule in RULES.values() for sign in rule.signs])
NO_LINE_ALONE = {
    "stated": "of a line that no check knows",
    "collective-stalled": "of a job that runs: job.inside",
    "nccl-bug-VERSION-topic": "the form of such codes",
}


def texts(written: Examples) -> list[Mapping[str, str]]:
    return [
        {"example": each} if isinstance(each, str) else each
        for each in written.written()
        if isinstance(each, str | Mapping)
    ]


def whole(logs: Mapping[str, str]) -> JobLog:
    """Return logs as they are read in earnest: with the signs of all checks."""
    return log_ranks.joined([READER.read_one(name, [text.encode()]) for name, text in logs.items()])


def examples(kind: str) -> list[Any]:
    return [
        pytest.param(check, example, id=f"{check.key}-{number}")
        for check in CHECKS
        for number, example in enumerate(texts(getattr(check, f"{kind}_examples")))
    ]


def found(check: Check, log: JobLog) -> list[Finding]:
    return [each for each in check.run(log) if each.occurrence]


def codes_of(check: Check, findings: list[Finding]) -> set[str]:
    narrowed = {code for each in findings if each.occurrence for code in each.occurrence.codes}
    return narrowed or ({check.cause.code} - {""} if check.cause and findings else set())


@cache
def declared(check_id: str) -> frozenset[str]:
    """Return the codes that a check can name: its own, and those that it narrows to in its examples."""
    check = next(each for each in CHECKS if each.key == check_id)
    assert check.cause
    narrowed = {code for logs in texts(check.bad_examples) for code in codes_of(check, found(check, whole(logs)))}  # type: ignore[arg-type]
    return frozenset({check.cause.code, *narrowed} - {""})


def explained(log: JobLog) -> tuple[Cause, ...]:
    return causes(judge([], tuple(CHECKS), Job(), {JobLog: log}), RULES)


@each_row(("check", "logs"), examples("bad"))
def test_a_cause_is_named_first_among_all_checks(check: Check, logs: Mapping[str, str]) -> None:
    first, *_ = explained(whole(logs))
    own = declared(check.key)
    assert first.code in (own or {"unknown"}) or {*first.could_be} & own, first


@each_row(("check", "logs"), examples("bad"))
def test_no_other_check_names_its_own_cause_there(check: Check, logs: Mapping[str, str]) -> None:
    log, own = whole(logs), declared(check.key)
    for other in some(CHECKS):
        assert other.cause
        said = [each for each in found(other, log) if other.key not in OF_NO_FAILURE]
        strange = codes_of(other, said) - own
        assert not strange or {*other.cause.echoes} & own, (other.key, strange)


OF_NO_FAILURE = ("log.slow-path/slow-path", "log.interface/ranks-may-not-meet")
"""Checks of conditions, which may be beside any cause."""


@each_row(("check", "logs"), examples("good"))
def test_what_is_no_case_of_a_cause_is_not_named_so(check: Check, logs: Mapping[str, str]) -> None:
    assert not found(check, whole(logs))


def _vocabulary() -> set[str]:
    listed = (rules.__doc__ or "").partition("Codes, by group.")[2]
    return set(listed.split("``")[1::2])


def test_every_code_is_of_the_list_and_every_code_of_the_list_has_a_check() -> None:
    named = {code for check in CHECKS for code in declared(check.key)}
    named |= {code for row in messages.rows() if row.meaning.startswith("cause ") for code in row.meaning.split()[1:]}
    echoed = {code for check in CHECKS if check.cause for code in check.cause.echoes}
    listed = {code for code in named | echoed if not code.startswith("nccl-bug-2.")} - {ANY, SAME_LINE}
    assert listed <= _vocabulary() | {*NO_LINE_ALONE}
    kept = "".join(path.read_text(encoding="utf-8") for path in KEPT.glob("log-*.txt"))
    assert {code for code in _vocabulary() - named if f"'{code}'" not in kept} == {*NO_LINE_ALONE}
    ids = {each.id for each in (*every_check(MACHINE), *every_check(MEASURED))}
    assert {check.cause.doctor for check in CHECKS if check.cause} - {""} <= ids


def test_texts_without_a_sign_that_is_shipped_are_not_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = {sign for check in every_check(LEFT) if check.cause for sign in check.cause.signs}
    shipped = Path(rules.__file__).parents[2] / "logs" / "signs.txt"
    assert shipped.read_text(encoding="utf-8").splitlines() == sorted(signs), "run scripts/golden.py signs"
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(pasted_causes, "_explained", asked.append)
    for name, text, looked in (
        ("plain", "NCCL_IB_HCA=mlx5_0\n$ ulimit -n\n1024\n", False),
        ("sign", "NCCL_DEBUG=INFO\nwe see: unhandled\nsystem error\n", True),
        ("coloured", "NCCL_IB_HCA=mlx5_0 \x1b[31m\n", True),
        ("long", "NCCL_IB_HCA=mlx5_0\n" * 4096, True),
    ):
        (tmp_path / name).write_text(text)
        asked.clear()
        pasted_causes.said_in([str(tmp_path / name)], [Snapshot("n", {})])
        assert bool(asked) == looked, name
