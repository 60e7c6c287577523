"""What is known of one check, with an example that triggers it and one that does not; or of one variable. As lines.

Everything told is read from the check itself, and its examples are judged while they are told: they cannot
disagree with what the check does.
"""

import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from ncclprobe.engine.diagnose import every_check
from ncclprobe.errors import UsageError
from ncclprobe.model.findings import Finding, Status
from ncclprobe.model.registry import discover
from ncclprobe.model.rules import Check, Collector, Need
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.parameters import Parameter, table
from ncclprobe.units import printable

_WIDTH = 96
_SOURCES = re.compile(
    r"[A-Za-z][\w./-]*#\d+"  # nccl#342
    r"|\b(?:src|drivers|net|mm|graph|torch|Documentation|gloo|plugins)/[\w./-]*\w(?::\d+)?"
    r"|\b\w+\([1-8]\)"  # mlock(2)
    r"|\b[\w-]+\.(?:cc|cpp|rst|hpp|h|py)\b(?::\d+)?"
)


def entry(wanted: str) -> list[str]:
    """Return the lines on the check or the variable `wanted`. Raises UsageError where there is neither."""
    return list(variable(table()[wanted]) if wanted in table() else explanation(_named(wanted)))


def variable(parameter: Parameter) -> Iterator[str]:
    """Yield the lines on one variable of NCCL's table."""
    bounds = tuple("" if bound is None else str(bound) for bound in (parameter.low, parameter.high))
    values = "|".join(parameter.words) or ("..".join(bounds) if any(bounds) else "")
    since, gone = (".".join(map(str, version)) if version else "" for version in (parameter.since, parameter.gone))
    told = {
        "read by": "nothing" if parameter.owner == "none" else parameter.owner,
        "type": f"{parameter.type} {values}".rstrip(),
        "default": parameter.default,
        "since": since,
        "ignored": gone and f"from {gone} on",
        "instead": parameter.instead,
        "scope": {"job": "must agree on all ranks", "rank": "may differ between ranks"}.get(parameter.scope, ""),
        "hazard": parameter.hazard,
        "source": parameter.source,
    }
    yield parameter.name
    yield ""
    for name, text in told.items():
        yield from _wrapped(f"{name + ':':<10}", text) if text else ()


def _named(wanted: str) -> Check:
    checks = {check.id: check for check in every_check()}
    if wanted in checks:
        return checks[wanted]
    near = difflib.get_close_matches(wanted, checks, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`ncclprobe checks` lists them"
    raise UsageError(f"{printable(wanted)}: there is no such check; {hint}")


def explanation(check: Check) -> Iterator[str]:
    """Yield the lines of the whole text."""
    yield f"{check.id}  {check.title}"
    yield ""
    yield from _wrapped("passes:   ", f"{check.right}.")
    yield from _wrapped("why:      ", check.why)
    yield from _wrapped("fix:      ", check.fix)
    yield ""
    yield from _decision(check)
    sources = dict.fromkeys(_SOURCES.findall(f"{check.why} {check.fix}"))
    if sources:
        yield from _wrapped("sources:  ", ", ".join(sources))
    yield ""
    yield from _example("triggers it", check, check.bad[0])
    yield ""
    yield from _example("does not", check, _nearest(check.bad[0], check.good), but=check.bad[0])


def _decision(check: Check) -> Iterator[str]:
    collectors = {c.produces: c for c in discover("ncclprobe.facts", Collector)}
    lead = "decided:  "
    for need in check.needs:
        yield from _wrapped(lead, _origin(need, collectors))
        lead = " " * len(lead)
    if check.applies:
        yield from _wrapped("applies:  ", f"only {check.applies.words}")
    inconclusive = ": a run that could not look is inconclusive" if check.required else ""
    yield f"standing: {check.standing}{inconclusive}"
    yield f"needs:    {check.privilege or 'no privilege of its own'}"
    silenced = f"when {check.requires} fails, which explains it; " if check.requires else ""
    yield from _wrapped("silenced: ", f"{silenced}with --ignore '{check.id}=SUBJECT', or in ncclprobe.toml")


def _origin(need: Need, collectors: Mapping[type, Collector]) -> str:
    """Return a fact, and where it comes from: the first sentence of its collector."""
    made = collectors.get(need.fact)
    doc = " ".join(((made.run if made else need.fact).__doc__ or "").strip().partition("\n\n")[0].split())
    copes = " (or without it)" if need.accepts_absent else ""
    return f"{need.fact.__name__}{copes}: {doc}"


def _nearest(bad: tuple[Any, ...], good: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the example that has most in common with `bad`: what differs is what matters."""
    return max(good, key=lambda example: sum(one == other for one, other in zip(example, bad, strict=True)))


def _example(word: str, check: Check, example: tuple[Any, ...], but: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the arguments, without those that are as in `but`, and what the check says of them."""
    yield f"example that {word}:"
    same = [need.name for need, value, old in zip(check.needs, example, but, strict=False) if value == old]
    for need, value in zip(check.needs, example, strict=True):
        if need.name not in same:
            yield from _wrapped(f"    {need.name} = ", shown(value))
    if same:
        yield from _wrapped("    ", f"{', '.join(same)}: as above")
    findings = list(check.run(*example))
    for finding in findings:
        yield from _wrapped("    -> ", _said(finding))
    if not findings:
        yield f"    -> {Status.PASS.value}"


def _said(finding: Finding) -> str:
    return f"{finding.severity.value.upper()} {finding.subject}: {finding.message} (seen: {finding.seen})"


def shown(value: Any) -> str:
    """Return a fact as a person reads it: of every value only the fields that differ from their defaults."""
    if isinstance(value, Absent):
        return f"not known ({value.why})"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Struct):
        told = [f"{f.name}={shown(getattr(value, f.name))}" for f in fields(value) if _told(value, f)]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{shown(k)}: {shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list, set, frozenset)):
        return _listed(value)
    return repr(value)


def _told(value: Any, field: FieldInfo) -> bool:
    own = getattr(value, field.name)
    if field.default is not NODEFAULT:
        return bool(own != field.default)
    return field.default_factory is NODEFAULT or bool(own != field.default_factory())


def _listed(values: Any) -> str:
    """Return elements in brackets; a run of whole numbers as its ends, and more than a few by their number."""
    items = sorted(values) if isinstance(values, (set, frozenset)) else list(values)
    whole = len(items) > 4 and all(type(item) is int for item in items)
    if whole and items == list(range(items[0], items[-1] + 1)):
        return f"[{items[0]}..{items[-1]}]"
    texts = [shown(item) for item in items]
    rest = f", … {len(texts)} in all" if len(texts) > 4 else ""
    return f"[{', '.join(texts[:4])}{rest}]"


def _wrapped(lead: str, text: str) -> list[str]:
    clean = printable(" ".join(text.split()))
    filler = textwrap.TextWrapper(_WIDTH, lead, " " * len(lead), break_long_words=False, break_on_hyphens=False)
    return filler.wrap(clean) or [lead]
