"""What is learned of captured machines, and what the commands print of recorded input, word for word.

A fact is kept by its fields; a long collection by its length, its first items and its last. A line of a report is kept
without its times and spaces; an object of JSON as a line of its simple fields; of a page its text.
`scripts/golden.py` writes them to tests/data/command_values; to add an input, add it to a function of
`tests.command_inputs`.
"""

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from unittest import mock

from ncclprobe.commands import main
from ncclprobe.engine.collect import collect
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.values import Struct
from tests.captured_facts import fields
from tests.command_inputs import CAPTURES, COMMANDS, DATA, TESTS
from tests.facts import made_up, made_up_texts
from tests.function_inputs import FUNCTIONS

KEPT = DATA / "command_values"
LEARNED = ("hgx-h100", "dgx-1v", "aws-p4d", "gb200-tray", "power9", "h100-vm", "guest-rxe-root", "one-gpu",
           "dgx-b200", "l40s-8", "laptop", "a100-bridged")  # fmt: skip
MADE_UP_ITEMS = 16
_NOW = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*|sha256-\S*|\b1\.7\d+e\+09\b")
_NOT_KEPT = frozenset({"started", "duration_s", "tool", "versions", "ended", "environment", "seconds", "by"})
_STYLE = re.compile(r"<(style|script)>.*?</\1>", re.S)


def values(argv: list[str], folder: Path) -> Iterator[str]:
    """Yield the exit code of a command, and each line that it prints.

    It runs beside its files and has short names for them: lines are wrapped, and a checkout may be anywhere.
    """
    out, beside = io.StringIO(), folder if any(str(folder) in word for word in argv) else TESTS
    clean = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ} | {"HOME": "/home/u"}
    with (
        mock.patch.dict(os.environ, {**clean, "COLUMNS": "9999"}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        working_in(beside),
    ):
        code = _ran([word.replace(f"{beside}/", "") for word in argv])
    yield f"exit {code}"
    printed = _STYLE.sub("", out.getvalue().replace(f"{folder}/", ""))
    if printed.startswith("{"):
        yield from json_values(json.loads(printed), "")
        return
    for line in printed.splitlines():
        if words := _said(line):
            yield words


def _ran(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as left:  # the page of a command
        return int(left.code or 0)


def _said(text: str) -> str:
    return " ".join(_NOW.sub("", text).split())


def json_values(value: object, name: str) -> Iterator[str]:
    """Yield a line for each object: its numbers and texts, with their names."""
    if not isinstance(value, dict | list):
        yield _simple(value)
    if isinstance(value, list):
        simple = [_simple(each) for each in value if not isinstance(each, dict | list)]
        if any(simple):
            yield f"{name}: {' '.join(filter(None, simple))}"
        silent = [each for each in value if name == "checks" and not each.get("findings")]
        rows = sorted((each["status"], each["id"], each.get("part") or "") for each in silent)
        for status, ids in groupby(rows, itemgetter(0)):
            listed = ["/".join(filter(None, each)) for _, *each in ids]
            yield f"{status}: {len(listed)} {' '.join(listed) if status != 'pass' else ''}"
        for each in value:
            if isinstance(each, dict | list) and each not in silent:
                yield from json_values(each, name)
    elif isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in _NOT_KEPT and each is not None}
        simple = [f"{key}={_simple(each)}" for key, each in kept.items() if not isinstance(each, dict | list)]
        if line := " ".join(each for each in simple if not each.endswith("=")):
            yield f"{name}: {line}"
        for key, each in kept.items():
            if isinstance(each, dict | list):
                yield from json_values(each, f"{name}.{key}" if name else key)


def _simple(value: object) -> str:
    if isinstance(value, str):
        return _said(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change the working directory for a while, as contextlib.chdir does since Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def text(file: str) -> str:
    """Return the values of all commands or functions of one file; "facts": those of captured machines."""
    if file in FUNCTIONS:
        rows = ((name, json_values(builtin(found), "")) for name, found in FUNCTIONS[file]())
        return "".join(f"{line}\n" for name, lines in rows for line in (f"== {name}", *lines))
    if file in (*made_up_texts.FILES, "answers"):
        own = ((name, _made_up(name)) for name in made_up.MACHINES)
        made = own if file == "answers" else made_up_texts.results(file)
        return "".join(f"{line}\n" for name, lines in made for line in (f"== {name}", *lines))
    if file == "facts":
        return "".join(f"== {name}\n{''.join(_facts_of(CAPTURES / f'{name}.jsonl'))}" for name in LEARNED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        commands = COMMANDS[file](folder)
        return "".join(f"{row}\n" for each, argv in commands for row in (f"== {each}", *values(argv, folder)))


def _facts_of(path: Path) -> Iterator[str]:
    host = load(path)
    for kind, fact in collect(host, discover("ncclprobe.facts", Collector, {"machine"})).items():
        for name, value in fields(fact, kind.__name__):
            yield f"{name} = {value}\n"


def _made_up(name: str) -> Iterator[str]:
    """Yield the fields of a made-up machine's fact, and for each refusal of an answer those that it changes."""
    usual = dict(fields(made_up.learn(*made_up.MACHINES[name]), "", MADE_UP_ITEMS))
    yield from (f"{field} = {value}" for field, value in usual.items())
    alike: dict[tuple[str, str], list[str]] = {}
    for question, how, fact in made_up.changed(name):
        now = dict(fields(fact, "", MADE_UP_ITEMS))
        other = "; ".join(f"{each}={value}" for each, value in now.items() if value != usual.get(each))
        alike.setdefault((question, re.sub("'(Failed|TimedOut)'", "'Denied'", other)), []).append(how)
    yield from (f"{question} {' or '.join(how)}: {other}" for (question, other), how in alike.items() if other)


def builtin(value: object) -> object:
    """Return a value as JSON has it; what is no part of JSON by its text."""
    if isinstance(value, Struct):
        return {name: builtin(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): builtin(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [builtin(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(value)


FILES = (*COMMANDS, *FUNCTIONS, "facts", "answers", *made_up_texts.FILES)
