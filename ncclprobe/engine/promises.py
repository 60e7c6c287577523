"""What every check promises, ours or a site's: its examples hold, it documents itself, it never passes unlooked."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ncclprobe.engine.judge import judge
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.host.deadlines import outcome
from ncclprobe.model import bounds
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.fleet import History
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check, Collector, discover, source_of
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Job, Snapshot

_ID = r"(site-[a-z0-9]+(-[a-z0-9]+)*|[a-z]+)\.[a-z0-9]+(-[a-z0-9]+)*"
_SHORT = 40
"""A shorter reason only repeats the problem."""


def broken(check: Check) -> Iterator[str]:
    """Yield a sentence for each promise that `check` breaks."""
    if not check.needs:  # it stands for checks that cannot be loaded, or looks at nothing
        _, error = _run_bounded(check.run)
        yield str(error) if error else "it has no parameter, and so looks at nothing"
        return
    yield from _words(check)
    made = {each.produces for each in discover("ncclprobe.facts", Collector)}
    made |= {Job, Choices, AttainableRate, History, NamedMachine}
    for need in check.needs:
        source = source_of(need.fact) if isinstance(need.fact, type) else None
        if need.fact not in made and source not in ("run", "job", "files"):
            yield f"its parameter {need.name} is of type {need.fact}, which no collector makes"
    for name, examples, judged in (("bad", check.bad_examples, _bad), ("good", check.good_examples, _good)):
        yield from _examples(check, name, examples, judged)
    (verdict,) = judge([Snapshot("n", {})], [check], Job())
    skips = verdict.status is Status.SKIP and check.applies is not None  # a condition over the job alone may say no
    if verdict.status is not Status.UNKNOWN and not skips:
        yield f"it is {verdict.status.value} where nothing is known of the machine, and must be unknown"


def _words(check: Check) -> Iterator[str]:
    if not re.fullmatch(_ID, check.id):
        yield f"{check.id} is not an id: small letters, a dot, and words of small letters with hyphens"
    for name in ("title", "right", "fix"):
        if not getattr(check, name):
            yield f"its docstring has no {'first line' if name == 'title' else name.capitalize() + ':'}"
    if check.right == check.title:
        yield "its title says what is wrong, and Right: what holds: they cannot be the same"
    if len(check.why) <= _SHORT:
        yield f"Why: is missing, or says less than {_SHORT} characters"
    function = getattr(check.run, "args", (check.run,))[0]  # of a site's check, the function that is bounded
    told = f"{check.title}. Right: {check.right}. Why: {check.why} Fix: {check.fix}"
    if told.split() != (function.__doc__ or "").split():
        yield "a part of its docstring is not shown: after the first line write Right:, Why: and Fix:, each once"


def _examples(
    check: Check,
    name: str,
    examples: Callable[[], Sequence[tuple[Any, ...]]],
    judged: Callable[[Check, list[Finding]], Iterator[str]],
) -> Iterator[str]:
    given, error = _run_bounded(examples)
    if not error and not given:
        yield f"it has no {name} example"
    for number, example in enumerate(given or ()):
        found, error = _run_bounded(partial(check.run, *example))
        if error:
            break
        yield from (f"{name} example {number}: {why}" for why in judged(check, list(found or ())))
    if error:
        yield f"its {name} examples raise {type(error).__name__}: {error}"


def _run_bounded(make: Callable[[], Iterable[Any]]) -> tuple[tuple[Any, ...] | None, BaseException | None]:
    """Return what `make` yields, or the exception it raises."""
    try:
        return outcome(time.monotonic() + bounds.SITE_EXAMPLES_S, lambda: tuple(make()))
    except TimeoutError as late:
        return None, late


def _bad(check: Check, findings: list[Finding]) -> Iterator[str]:
    if not {each.severity for each in findings} & {Severity.WARN, Severity.FAIL}:
        yield "it does not object"
    consequence = check.cause is not None and not check.cause.code
    for each in findings:
        for name in ("subject", "message", "evidence"):
            if not getattr(each, name):
                yield f"a finding has no {name}"
        nobodys = each.blame == "unknown" and each.action == "none"
        if each.severity is not Severity.NOTE and nobodys and not consequence:
            yield "a finding says neither who is to blame nor what to do: give blame or action"


def _good(check: Check, findings: list[Finding]) -> Iterator[str]:
    for each in findings:
        if each.severity is not Severity.NOTE:
            yield f"it objects: {each.subject} {each.message}"
