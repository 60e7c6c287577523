"""Further cases of the checks, by id: what a check must object to, or accept, beside the two examples that it ships."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ncclprobe.checks.log import Examples
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.values import replace

VALUES = Path(__file__).parents[2] / "data" / "case_values.txt"


Cases = Mapping[str, Sequence[Any]]
"""Rows of checks, by id. A row is a tuple of facts as the check's examples are, or the text of a log.

A bad row begins with what the check must say: "FAIL link: mlx5_0:1 on n1" is severity, blame, subject and the nodes of
the finding. `said` writes it. Several texts after it must lead to the same. A row that the check only notes begins with
the note, and one that it cannot judge with "UNKNOWN: " and words of the reason. In the others nothing may be found.
"""
WARN, INFO = "n1:7:9 [0] x.cc:1 NCCL WARN ", "n1:7:7 [0] NCCL INFO "
"""How lines of NCCL begin, where the file and the line in it say nothing."""


class Row(NamedTuple):
    """One case of a check: what it must say, and the facts."""

    must: str
    facts: Any

    @property
    def kind(self) -> Literal["bad", "good", "other"]:
        """Return whether the check must object, must find nothing, or only notes something or cannot judge."""
        if not self.must:
            return "good"
        return "bad" if re.match(r"(?!UNKNOWN).*\b(FAIL|WARN) ", self.must) else "other"


def rows_of(**usual: object) -> Callable[..., tuple[Any, ...]]:
    """Return what makes a row: what must be said, if any, and the facts `usual` in this order, but for its changes.

    A change is another fact of the same type, or a named one.
    """

    def row(*given: object, **changes: object) -> tuple[Any, ...]:
        must = given[:1] if given and isinstance(given[0], str) else ()
        for fact in given[len(must) :]:
            (name,) = (name for name, each in usual.items() if type(each) is type(fact))
            changes[name] = fact
        assert changes.keys() <= usual.keys()
        return (*must, *{**usual, **changes}.values())

    return row


def said(findings: Iterable[Finding]) -> str:
    """Return who is to blame for what, and how severe it is: what the rows of bad cases begin with."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for each in findings:
        groups.setdefault((each.severity.name, each.blame, each.nodes), []).append(each.subject)
    return "; ".join(
        f"{severity} {blame}: {', '.join(dict.fromkeys(subjects))}{f' on {chr(32).join(nodes)}' if nodes else ''}"
        for (severity, blame, nodes), subjects in groups.items()
    )


def case_values(rules: Iterable[Check]) -> Iterator[str]:
    """Yield a line for each finding of bad cases, then of good ones: what a user reads of it.

    It has what `said` writes, the action, its texts and its place. A note stands once for each check.
    """
    for rule in rules:
        notes = set[str]()
        for number, example in enumerate([*rule.bad_examples(), *rule.good_examples()]):
            told = [each for each in map(values, rule.run(*example)) if each not in notes]
            notes |= {each for each in told if each.startswith("NOTE")}
            yield from (f"{rule.key} {number}: {each}" for each in told)


def values(finding: Finding) -> str:
    """Return what a user reads of a finding."""
    texts = (finding.message, finding.remedy, finding.headline, finding.seen, finding.confidence.how)
    words = [" ".join(text.split()) for text in texts]
    what = " | ".join(filter(None, [f"{said([finding])}, {finding.action}, {finding.confidence.level}", *words]))
    by = finding.occurrence
    place = f" @ {by.ranks} {by.hosts} {by.peers} {by.peer_hosts} {by.line} {by.codes}" if by else ""
    loss = f" -{finding.loss:.3f} {finding.lost_GBps or 0:.4g}" if finding.loss is not None else ""
    return f"{what}{loss}{place}"


def cases_of(key: str, kind: str) -> list[Row]:
    """Return the cases of one kind of the check with this key."""
    return [row for row in written().get(key, ()) if row.kind == kind]


@cache
def written() -> dict[str, list[Row]]:
    """Return the cases of all modules here by the keys of their checks."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    pairs = [(key, [row for each in given for row in _read(each)]) for m in modules for key, given in m.CASES.items()]
    assert len(dict(pairs)) == len(pairs), "the cases of a check stand in one module"
    return dict(pairs)


def _read(given: Any) -> Iterator[Row]:
    must, *facts = given if isinstance(given, tuple) and isinstance(given[0], str) else ("", given)
    texts = all(isinstance(each, str | dict) for each in facts)
    yield from (Row(must, each) for each in facts) if texts or not must else [Row(must, tuple(facts))]


def checks() -> list[Check]:
    """Return all checks of the package, each with its cases behind its own two examples."""
    return [with_cases(each) for each in discover("ncclprobe.checks", Check)]


def with_cases(check: Check) -> Check:
    """Return the check with its cases behind its own two examples."""
    bad = [row.facts for row in cases_of(check.key, "bad")]
    notes = [row.facts for row in cases_of(check.key, "other") if not row.must.startswith("UNKNOWN")]
    good = [*(row.facts for row in cases_of(check.key, "good")), *notes]
    return replace(check, bad_examples=_more(check.bad_examples, bad), good_examples=_more(check.good_examples, good))


def _more(own: Callable[[], Sequence[Any]], cases: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    if isinstance(own, Examples):  # they become facts together
        return replace(own, written=lambda: [*own.written(), *cases])
    return lambda: [*own(), *cases]
