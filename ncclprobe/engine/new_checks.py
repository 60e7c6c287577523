"""A check that a release brings only warns until the next minor one, so that an upgrade drains no fleet.

What it finds says so. Nor does a run depend on it until then: where it cannot look, it is unknown and advisory.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ncclprobe import __version__
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Check
from ncclprobe.model.values import replace


def judged_as(worst: str | None, checks: Sequence[Check], version: str = __version__) -> tuple[Check, ...]:
    """Return `checks`, of which those that are new in `version` only warn, unless `worst` is ``fail``."""
    if worst == "fail":
        return tuple(checks)
    return tuple(_softened(check) if check.since and check.since == minor(version) else check for check in checks)


def minor(version: str) -> str:
    """Return ``0.2`` of ``0.2.1``: what the `since` of a check is compared with."""
    return ".".join(version.split(".")[:2])


def _softened(check: Check) -> Check:
    major, _, number = check.since.partition(".")
    words = f"(new in {check.since}: a warning until {major}.{int(number) + 1})"
    return replace(check, run=partial(_warning, check.run, words), required=False)


def _warning(run: Any, words: str, *facts: Any) -> Iterator[Finding]:
    for found in run(*facts):
        fails = found.severity is Severity.FAIL
        yield replace(found, severity=Severity.WARN, message=f"{found.message} {words}") if fails else found
