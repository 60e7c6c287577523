"""What is learned of captured machines, and what the commands print of recorded input, without the wording.

A fact is kept by its fields; a long collection by its length, its first items and its last. A line of a report is kept
as its words with a digit or in capitals; an object of JSON as a line of its simple fields. `scripts/golden.py` writes
them to tests/data/command_values; to add an input, add it to a function of `tests.command_inputs`.
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
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from tests.command_inputs import CAPTURES, COMMANDS, DATA, TESTS
from tests.function_inputs import FUNCTIONS

KEPT = DATA / "command_values"
LEARNED = ("hgx-h100", "dgx-1v", "aws-p4d", "gb200-tray", "power9", "h100-vm", "guest-rxe-root", "one-gpu")
FIRST_ITEMS, LONG = 2, 60
_NOW = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*|sha256-\S*|\b1\.7\d+e\+09\b")
_NOT_KEPT = frozenset({"started", "duration_s", "tool", "versions", "ended", "environment", "seconds", "by"})
_VALUE = re.compile(r"[A-Z]{4,}[A-Z_0-9=]*|[^\s,;()'\"<>|]*\d[^\s,;()'\"<>|]*")


def values(argv: list[str], folder: Path) -> Iterator[str]:
    """Yield the exit code of a command, and the values of each line that it prints.

    It runs beside its files and has short names for them: lines are wrapped, and a checkout may be anywhere.
    """
    out, beside = io.StringIO(), folder if any(str(folder) in word for word in argv) else TESTS
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    with (
        mock.patch.dict(os.environ, {**clean, "COLUMNS": "9999"}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        working_in(beside),
    ):
        code = _ran([word.replace(f"{beside}/", "") for word in argv])
    yield f"exit {code}"
    printed = out.getvalue().replace(f"{folder}/", "")
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
    return " ".join(_VALUE.findall(_NOW.sub("", text)))


def json_values(value: object, name: str) -> Iterator[str]:
    """Yield a line for each object: its numbers, its single words, and the values in its texts, with their names."""
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
        return value if len(value.split()) == 1 and not _NOW.search(value) else _said(value)
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
    if file == "facts":
        return "".join(f"== {name}\n{''.join(_of_facts(CAPTURES / f'{name}.jsonl'))}" for name in LEARNED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        commands = COMMANDS[file](folder)
        return "".join(f"{row}\n" for each, argv in commands for row in (f"== {each}", *values(argv, folder)))


def _of_facts(path: Path) -> Iterator[str]:
    host = load(path)
    for kind, fact in collect(host, discover("ncclprobe.facts", Collector, {"machine"})).items():
        for name, value in fields(fact, kind.__name__):
            yield f"{name} = {value}\n"


def fields(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield the simple values of a fact with their names."""
    if isinstance(value, Absent):
        yield name, f"absent, {value.refused}"
    elif isinstance(value, Struct):
        for each in value.__struct_fields__:
            yield from fields(getattr(value, each), f"{name}.{each}")
    elif isinstance(value, Mapping):
        yield f"len({name})", str(len(value))
        for key in sorted(value, key=str)[:FIRST_ITEMS]:
            yield from fields(value[key], f"{name}[{key}]")
    elif isinstance(value, tuple | list | set | frozenset):
        yield f"len({name})", str(len(value))
        for number, each in enumerate(sorted(value) if isinstance(value, set | frozenset) else value):
            if number < FIRST_ITEMS or number == len(value) - 1:
                yield from fields(each, f"{name}[{number}]")
    else:
        yield name, str(value)[:LONG].replace("\n", " ")


def builtin(value: object) -> object:
    """Return a value as JSON has it; what is no part of JSON by its text."""
    if isinstance(value, Struct):
        return {name: builtin(getattr(value, name)) for name in type(value).__match_args__}
    if isinstance(value, Mapping):
        return {str(key): builtin(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [builtin(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(value)


<<<<<<< HEAD
def _expect_nccl(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for release in sorted((DATA / "nccl_failures").glob("*.gz")):
        for name, row in list(recorded_jobs.read(release).items())[::EVERY_NTH_OF_NCCL]:
            path = folder / f"{release.name}-{re.sub('[^a-z0-9]+', '-', name)}.log"
            path.write_text("\n".join(row["logs"].values()))
            yield path.stem, ["explain", str(path)]


def _of_cases(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The last bad case of each check of logs as a whole log: which of all causes is named, and what to do."""
    for key, cases in written().items():
        if key.startswith("log.") and cases.bad and isinstance(text := cases.bad[-1][1], str):
            path = folder / f"{key.replace('/', '-')}.log"
            path.write_text(text)
            yield key, ["explain", str(path)]


def _of_captures(_: Path) -> Iterator[tuple[str, list[str]]]:
    sick = [str(CAPTURES / "sick" / f"{name}.jsonl") for name in SICK if (CAPTURES / "sick" / f"{name}.jsonl").exists()]
    for path in [str(CAPTURES / "hgx-h100.jsonl"), *sick]:
        yield Path(path).stem, ["doctor", path, "--no-config"]
    yield "apart", ["doctor", *sick, "--no-config"]
    yield "one job", ["doctor", *sick, "--one-job", "--no-config", "-v"]


def _of_attached(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for packed in sorted([*DATA.glob("attach-*.gz"), *DATA.glob("attach-init/*.gz"), *DATA.glob("on_cpu/attach-*.gz")]):
        path = folder / packed.stem
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        yield packed.stem, ["explain", str(path)]
    yield "3 nodes", ["explain", *map(str, sorted((DATA / "attach-3-nodes").glob("*.jsonl")))]


def _of_reports(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for packed in sorted(DATA.glob("on_cpu/*/report.json.gz")):
        path = folder / f"{packed.parent.name}.json"
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    for path in sorted(folder.glob("*.json"))[::EVERY_NTH_REPORT]:
        yield path.stem, ["report", str(path), "-v"]
    for form in ("--markdown", "--junit", "--prometheus", "--html"):
        yield form, ["report", str(folder / "pairs-2.json"), form, "-"]


def _of_machines(_: Path) -> Iterator[tuple[str, list[str]]]:
    for machine in MACHINES:
        for nodes in ("1", "4"):
            argv = ["expect", "--machine", machine, "--nodes", nodes, "--op", ALL_OPERATIONS, "-b", "1K", "-e", "1G"]
            yield f"{machine}, {nodes}", argv


def _of_matrices(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for capture in sorted(CAPTURES.glob("*.jsonl")):
        for row in map(json.loads, capture.read_text(encoding="utf-8").splitlines()):
            if row.get("ask", [])[:3] == ["run", "nvidia-smi", "topo"] and "said" in row:
                path = folder / f"{capture.stem}.txt"
                path.write_text(row["said"])
                yield capture.stem, ["topo", str(path)]


COMMANDS: Mapping[str, Callable[[Path], Iterator[tuple[str, list[str]]]]] = {
    "explain-desync": lambda _: _of_jobs("failures/desync-*"),
    "explain-silent": lambda _: _of_jobs("failures/[n-z]*"),
    "explain-others": lambda _: _of_jobs("failures/[!dn-z]*"),
    "explain-cuda": lambda _: _of_jobs("on_cpu/job-*"),
    "explain-nccl": _expect_nccl,
    "explain-cases": _of_cases,
    "doctor": _of_captures,
    "attach": _of_attached,
    "report": _of_reports,
    "expect": _of_machines,
    "topo": _of_matrices,
}
"""The commands of each file with what they look at; what is compressed is unpacked into a folder."""
FILES = (*COMMANDS, "facts")
=======
FILES = (*COMMANDS, *FUNCTIONS, "facts")
>>>>>>> f6fa9edf (tests: keep the whole answers of commands and pure functions)
