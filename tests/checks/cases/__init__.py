"""Further cases of the checks, by id: what a check must object to, or accept, beside the two examples that it ships."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ncclprobe.checks.log import Examples
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.values import Struct, replace
from tests.checks.cases.examples import EXAMPLES

VALUES = Path(__file__).parents[2] / "data" / "case_values.txt"
_VALUE = re.compile(r"[^\s,;()'\"]*\d[^\s,;()'\"]*")


class Cases(Struct, frozen=True):
    """Cases of one check: tuples of facts as its examples are, or texts of logs.

    A bad row begins with what the check must say of it: "FAIL link: mlx5_0:1 on n1" is severity, blame, subject and
    the nodes that the finding names. `said` writes it. A row of `other` begins so too, with a note that is no
    objection, or with "UNKNOWN: " and words of the reason why it cannot be judged.
    """

    bad: Sequence[tuple[Any, ...]] = ()
    good: Sequence[Any] = ()
    other: Sequence[tuple[Any, ...]] = ()


def alike(must: str, *facts: Any) -> list[tuple[Any, ...]]:
    """Return a row for each of `facts`, of all of which the check must say the same."""
    return [(must, each) for each in facts]


def rows_of(**usual: object) -> Callable[..., tuple[Any, ...]]:
    """Return what makes a row: what must be said, if any, and the facts `usual` in this order, but for its changes."""

    def row(*must: str, **changes: object) -> tuple[Any, ...]:
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
    """Yield a line for each finding of bad cases, then of others: the numbers and names a user reads, not the wording.

    They are the words with a digit of the message, the remedy and the evidence; then the writer, subject and place.
    """
    for rule in rules:
        other = [facts for must, *facts in written().get(rule.key, Cases()).other if not must.startswith("UNKNOWN")]
        for number, example in enumerate([*rule.bad_examples(), *other]):
            for each in rule.run(*example):
                texts = (each.message, each.remedy, each.headline, each.seen)
                words = " | ".join(filter(None, (" ".join(_VALUE.findall(text)) for text in texts)))
                said = each.occurrence
                place = f" @ {said.ranks} {said.hosts} {said.peers} {said.peer_hosts} {said.line}" if said else ""
                loss = f" -{each.loss:.3f}" if each.loss is not None else ""
                yield f"{rule.key} {number}: {words}{loss}{place}"


def expected(check: Check) -> list[str]:
    """Return what the check must say of its own bad example and of each bad case, in the order of `with_cases`."""
    return [EXAMPLES[check.key], *(row[0] for row in written().get(check.key, Cases()).bad)]


@cache
def written() -> dict[str, Cases]:
    """Return the cases of all modules here by the ids of their checks."""
    names = [each.name for each in pkgutil.iter_modules(__path__) if each.name != "examples"]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    pairs = [pair for module in modules for pair in module.CASES.items()]
    assert len(dict(pairs)) == len(pairs), "the cases of a check stand in one module"
    return dict(pairs)


def checks() -> list[Check]:
    """Return all checks of the package, each with its cases behind its own two examples."""
    return [with_cases(each) for each in discover("ncclprobe.checks", Check)]


def with_cases(check: Check) -> Check:
    """Return the check with its cases behind its own two examples."""
    more = written().get(check.key, Cases())
    bad = [_example(facts) for _, *facts in more.bad]
    good = [*more.good, *(_example(facts) for must, *facts in more.other if not must.startswith("UNKNOWN"))]
    return replace(check, bad_examples=_more(check.bad_examples, bad), good_examples=_more(check.good_examples, good))


def _example(facts: list[Any]) -> Any:
    texts = len(facts) == 1 and isinstance(facts[0], str | dict)
    return facts[0] if texts else tuple(facts)


def _more(own: Callable[[], Sequence[Any]], cases: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    if isinstance(own, Examples):  # they become facts together
        return replace(own, written=lambda: [*own.written(), *cases])
    return lambda: [*own(), *cases]
