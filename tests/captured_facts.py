"""The facts of captured machines as lines of text, and how they and the verdicts differ if one answer does."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import judge
from ncclprobe.host import Host, Question
from ncclprobe.host.capture import load
from ncclprobe.model.errors import Denied, HostError, Missing
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import Struct
from tests.command_inputs import CAPTURES

MACHINES = ("hgx-h100", "guest-rxe-root", "gb200-tray", "aws-p4d")
REFUSING = "guest-rxe-root"
COLLECTORS, CHECKS = discover("ncclprobe.facts", Collector, {"machine"}), discover("ncclprobe.checks", Check)
FIRST_ITEMS, LONG = 2, 60
FIRST_FIELDS, FIRST_VERDICTS = 4, 6
_NUMBER = re.compile(r"[0-9a-f.:]*\d[0-9a-f.:]*")


def altered(machine: str) -> Iterator[tuple[str, object]]:
    """Yield each change that matters: how many fields and verdicts it changes, and the first of them.

    Of questions that differ by a number only the first is changed.
    """
    host, seen = load(CAPTURES / f"{machine}.jsonl"), set[str]()
    usual = _learned(machine, host)
    for question, answer in host.answers.items():
        if (kind := _NUMBER.sub("#", _named(question))) in seen:
            continue
        seen.add(kind)
        for change, new in _changed(answer, machine == REFUSING):
            now = _learned(machine, host.with_answers({**host.answers, question: new}))
            facts, verdicts = map(_differences, usual, now)
            if facts or verdicts:
                shown = facts[:FIRST_FIELDS], verdicts[:FIRST_VERDICTS]
                yield f"{_named(question)}: {change}", (len(facts), len(verdicts), *shown)


def _learned(machine: str, host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of all facts, and what each check finds in them."""
    facts = collect(host, COLLECTORS)
    verdicts = judge([Snapshot(machine, facts)], CHECKS, Job())
    found = {
        each.id: f"{each.status.name} {'; '.join(f'{one.severity.name} {one.subject}' for one in each.findings[:2])}"
        for each in verdicts
    }
    return dict(row for kind, fact in facts.items() for row in fields(fact, kind.__name__)), found


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what has another value now, each with its name."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}={after.get(name)}" for name in names]


def fields(value: object, name: str, first: int = FIRST_ITEMS) -> Iterator[tuple[str, str]]:
    """Yield the simple values of a fact with their names, of a collection those of its first items and its last."""
    if isinstance(value, Absent):
        yield name, f"absent, {value.refused}"
    elif isinstance(value, Struct):
        for each in value.__struct_fields__:
            yield from fields(getattr(value, each), f"{name}.{each}", first)
    elif isinstance(value, Mapping):
        yield f"len({name})", str(len(value))
        for key in sorted(value, key=str)[:first]:
            yield from fields(value[key], f"{name}[{key}]", first)
    elif isinstance(value, tuple | list | set | frozenset):
        yield f"len({name})", str(len(value))
        for number, each in enumerate(sorted(value) if isinstance(value, set | frozenset) else value):
            if number < first or number == len(value) - 1:
                yield from fields(each, f"{name}[{number}]", first)
    else:
        yield name, str(value)[:LONG].replace("\n", " ")


def _named(question: Question) -> str:
    return " ".join([str(question[0]), *(str(each).rpartition("/")[2] for each in question[1:])])[:80]


def _changed(answer: str | HostError, refusing: bool) -> Iterator[tuple[str, Any]]:
    """Yield an answer that was refused, and one that says less or another number."""
    if not isinstance(answer, str):
        return
    yield "not there", Missing("it is not there")
    if refusing:
        yield "denied", Denied("not allowed")
    try:
        value = json.loads(answer)
    except ValueError:
        lines = answer.splitlines(keepends=True)
        if len(lines) > 1:
            yield "without its last line", "".join(lines[:-1])
        yield "other numbers", re.sub(r"\d+", lambda found: str(int(found[0]) + 1), answer, count=40)
    else:
        yield "another value", json.dumps(_other(value))


def _other(value: Any) -> Any:
    """Return JSON with its first item gone, its numbers one higher, its booleans turned."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [_other(each) for each in value[1:]]
    if isinstance(value, dict):
        return {key: _other(each) for key, each in value.items()}
    return value
