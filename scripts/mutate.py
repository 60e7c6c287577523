#!/usr/bin/env python3
"""Plant faults one at a time and run the tests near each: which faults does no test notice?

    .venv/bin/python scripts/mutate.py 20 [--seed 7] [--under ncclprobe/checks] [--list]

A fault is one small change of one expression, from a fixed list of kinds, at a random line. It is planted in a copy of
the tracked files, never in the checkout; the examples that a check ships are tests, and get none. The near tests are
the test files that name the changed module, by themselves or by a helper, or those that name its importers if none
does, and those that are called as it is; then those of all checks, and of the kept values those whose input calls the
changed function. Prints a line for each fault as it is judged, and the figures of each room. A survivor is a place to
look: some faults change nothing that a user could see. What timed out or is unsure counts as not caught: on a busy
machine a deadline says nothing.
"""

import argparse
import ast
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from child import ROOT, fail, run

SWAPPED_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
SWAPPED_ATTRIBUTES = {"FAIL": "WARN", "WARN": "NOTE"}
NEAREST_FILES, NEAR_FILES = 12, 28
"""How many files run before the kept values, and in all: what notices most faults comes first."""
DEADLINE_S = 400.0
KEPT = "tests/test_command_values.py"
RECORDER = """
import json, sys, threading
sys.path[:0] = [".", "tests"]
from tests import command_values
found = {}
for name in command_values.FILES:
    seen = set()
    def note(frame, event, _):
        if event == "call":
            seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
    threading.setprofile(note)
    sys.setprofile(note)
    command_values.text(name)
    sys.setprofile(None)
    threading.setprofile(None)
    found[name] = sorted(seen)
print(json.dumps(found))
"""
"""Prints which functions are called, by file and first line, for each file of kept values."""


class Fault(NamedTuple):
    """One changed expression: in `path` from `begin` to `end` (offsets in its text), `old` became `new`."""

    path: Path
    line: int
    begin: int
    end: int
    old: str
    new: str


def main(argv: Sequence[str] | None = None) -> int:
    """Plant, test and print; exit 0 whatever survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("?")[0])
    parser.add_argument("count", type=int, metavar="N", help="how many faults to plant")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed plants the same faults")
    parser.add_argument("--under", default="ncclprobe", metavar="FOLDER", help="plant only below this folder")
    parser.add_argument("--list", action="store_true", help="print the faults and run no test")
    options = parser.parse_args(argv)
    faults = drawn(options.count, options.seed, options.under)
    print(f"{len(faults)} faults of seed {options.seed}", flush=True)
    if options.list:
        for fault in faults:
            print(described(fault))
        return 0
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        called = recorded(copy)
        for fault in faults:
            outcomes.append((fault, outcome(copy, fault, kept_tests(fault, called))))
            print(f"{outcomes[-1][1]:9} {described(fault)}", flush=True)
    print("\n".join(summary(outcomes)))
    return 0


def drawn(count: int, seed: int, under: str = "ncclprobe") -> list[Fault]:
    """Return `count` faults: each of a random file, weighted by its size, and of a random place in it."""
    paths = [path for path in sorted((ROOT / under).rglob("*.py")) if path.name != "__init__.py"]
    if not paths:
        fail(f"{under} has no Python files: name a folder of the package")
    chance, weights = random.Random(seed), [path.stat().st_size for path in paths]
    found: dict[Fault, None] = {}
    for path in chance.choices(paths, weights, k=10 * count):
        if len(found) < count and (places := list(faults_of(path))):
            found[chance.choice(places)] = None
    return list(found)


def faults_of(path: Path) -> Iterator[Fault]:
    """Yield each fault that could be planted in a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    tree = ast.parse(text)
    examples = {id(part) for whole in ast.walk(tree) if is_example(whole) for part in ast.walk(whole)}
    for node in (each for each in ast.walk(tree) if id(each) not in examples):
        for part, new in changes(node):
            begin = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0)
            old = data[begin:end].decode()
            replaced = new(old)
            if replaced != old:
                yield Fault(path.relative_to(ROOT), part.lineno, begin, end, old, replaced)


def is_example(node: ast.AST) -> bool:
    """Return whether this is ``bad=`` or ``good=`` of a check's decorator."""
    return isinstance(node, ast.keyword) and node.arg in {"bad", "good"}


def changes(node: ast.AST) -> Iterator[tuple[ast.expr, Callable[[str], str]]]:
    """Yield the expressions to change at this node, each with the function from its old text to its new one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right, sign = ast.unparse(node.left), ast.unparse(node.comparators[0]), type(node.ops[0])
        yield node, lambda _: f"({left}) {SWAPPED_COMPARISONS[sign]} ({right})"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        parts = [f"({ast.unparse(value)})" for value in node.values]
        yield node, lambda _: f"({word.join(parts)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        operand = ast.unparse(node.operand)
        yield node, lambda _: f"bool({operand})"
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value not in (0, 1):
        yield node, lambda old: f"({old} + 1)"
    elif isinstance(node, ast.Constant) and type(node.value) is float and node.value:
        yield node, lambda old: f"({old} * 1.25)"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in SWAPPED_NAMES:
        yield node, lambda old: SWAPPED_NAMES.get(old, old)
    elif isinstance(node, ast.Attribute) and node.attr in SWAPPED_ATTRIBUTES:
        owner, attribute = ast.unparse(node.value), SWAPPED_ATTRIBUTES[node.attr]
        yield node, lambda _: f"{owner}.{attribute}"
    elif isinstance(node, ast.IfExp):
        chosen = f"({ast.unparse(node.orelse)} if {ast.unparse(node.test)} else {ast.unparse(node.body)})"
        yield node, lambda _: chosen
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        owner = ast.unparse(node.value)
        yield node, lambda _: f"{owner}[-1]"


def copied(folder: Path) -> Path:
    """Copy the tracked files into `folder`; a planted fault never reaches the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def recorded(copy: Path) -> dict[str, list[tuple[str, int]]]:
    """Return the functions that the input of each file of kept values calls. Raises SystemExit if it fails."""
    command = [sys.executable, "-c", RECORDER]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=3 * DEADLINE_S, check=False)
    if done.returncode:
        fail(f"kept values cannot be made: {done.stderr[-500:]}")
    found: dict[str, list[tuple[str, int]]] = {}
    for name, calls in json.loads(done.stdout).items():
        below = [(Path(file), line) for file, line in calls if file.startswith(f"{copy}{os.sep}")]
        found[name] = [(str(file.relative_to(copy)), line) for file, line in below]
    return found


def kept_tests(fault: Fault, called: Mapping[str, Sequence[tuple[str, int]]]) -> list[str]:
    """Return the tests of kept values whose input calls the changed function, or any of a module whose own line it is.

    Those that call the module do if none calls the function: another process may.
    """
    tree = ast.parse(read(ROOT / fault.path))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [node for node in functions if node.lineno <= fault.line <= (node.end_lineno or 0)]
    begins = {min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in around}
    near = [name for name, calls in called.items() if {(str(fault.path), line) for line in begins} & {*calls}]
    near = near or [name for name, calls in called.items() if any(file == str(fault.path) for file, _ in calls)]
    return [f"{KEPT}::{test}[{name}]" for name in near for test in re.findall(r"def (test_\w+)", read(ROOT / KEPT))]


def outcome(copy: Path, fault: Fault, kept: Sequence[str]) -> str:
    """Plant a fault, run its near tests, and take it out: ``caught``, ``survived``, ``timed out`` or ``unsure``.

    ``unsure``: the test that failed also fails without the fault, as where the machine is busy.
    """
    target = copy / fault.path
    whole = target.read_bytes()
    target.write_bytes(whole[: fault.begin] + fault.new.encode() + whole[fault.end :])
    try:
        near = near_tests(fault.path)
        code, said = tested(copy, [*near[:NEAREST_FILES], *kept, *near[NEAREST_FILES:]])
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        target.write_bytes(whole)
    if code in (0, 5):
        return "survived"
    if "Timeout (>" in said:
        return "timed out"
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/[^\s:]+(?:::\w+(?:\[[\w-]+\])?)?)", said, re.MULTILINE)
    try:
        return "caught" if failed and tested(copy, failed[-1:])[0] == 0 else "unsure"
    except subprocess.TimeoutExpired:
        return "unsure"


def tested(copy: Path, files: Sequence[str]) -> tuple[int, str]:
    """Run test files up to the first failure; return pytest's exit code and what it printed. Raises TimeoutExpired."""
    pytest = ["env", "-C", str(copy), "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", "pytest", "-q", "-x"]
    pytest += ["-m", "not slow or every_time", "-p", "no:cacheprovider"]
    chunks: list[bytes] = []
    code = run([*pytest, *files], deadline_s=DEADLINE_S, sink=chunks.append)
    return code, b"".join(chunks).decode(errors="replace")


def near_tests(path: Path) -> list[str]:
    """Return the test files that name a module, or its importers if no test names it, and those called as the module.

    What is found by discovery has no importer: then those that are called as its folder too. First come those called
    as the module, then as its folder, then the smallest.
    """
    module = ".".join(path.with_suffix("").parts)
    of_all = ["tests/test_checks.py"] if module.startswith("ncclprobe.checks.") else []
    names, found = {module}, list[Path]()
    for _ in range(3):
        if found := naming(names):
            break
        names |= {name_of(each) for each in (ROOT / "ncclprobe").rglob("*.py") if names & imported(each)}
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    near = {each for each in tests if is_called_as(each, path.stem)}
    near |= {*found} or {each for each in tests if is_called_as(each, path.parent.name)}
    called = (path.stem, path.parent.name)
    order = sorted(near, key=lambda each: (*(not is_called_as(each, name) for name in called), each.stat().st_size))
    return list(dict.fromkeys([*of_all, *(str(each.relative_to(ROOT)) for each in order[:NEAR_FILES])]))


def name_of(path: Path) -> str:
    """Return the name of a module; of a package that of its folder."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_called_as(test: Path, name: str) -> bool:
    """Return whether the name of a test file, or of one of its folders, has this name in it."""
    place = test.relative_to(ROOT).with_suffix("")
    return name in {*place.parts[1:-1], *place.stem.split("_"), place.stem.removeprefix("test_")}


def naming(names: set[str]) -> list[Path]:
    """Return the test files that import a module; if none does, those that do in a child, or by a helper."""
    every = sorted((ROOT / "tests").rglob("*.py"))
    tests = [each for each in every if each.name.startswith("test_")]
    if found := [each for each in tests if names & imported(each)]:
        return found
    direct = [each for each in every if names & imported(each) or any(name in read(each) for name in names)]
    helpers = {each.stem for each in direct} - {each.stem for each in tests}
    return [each for each in tests if each in direct or any(helper in read(each) for helper in helpers)]


@functools.cache
def read(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


_IMPORTED: dict[Path, set[str]] = {}


def imported(path: Path) -> set[str]:
    """Return the names of the modules, and of what is taken from them, that a file imports."""
    if path not in _IMPORTED:
        found = set()
        for node in ast.walk(ast.parse(read(path))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        _IMPORTED[path] = found
    return _IMPORTED[path]


def described(fault: Fault) -> str:
    """Return a fault in one line."""
    old, new = (" ".join(text.split())[:60] for text in (fault.old, fault.new))
    return f"{fault.path}:{fault.line}: {old} -> {new}"


def summary(outcomes: Sequence[tuple[Fault, str]]) -> Iterator[str]:
    """Yield how many faults of each room were caught, and of all."""
    rooms, caught = Counter[str](), Counter[str]()
    for fault, told in outcomes:
        room = "/".join(fault.path.parts[1:-1]) or fault.path.stem
        rooms[room] += 1
        caught[room] += told == "caught"
    yield ""
    for room, planted in sorted(rooms.items()):
        yield f"{room}: {caught[room]} of {planted} caught"
    share = caught.total() / max(1, rooms.total())
    yield f"all: {caught.total()} of {rooms.total()} caught ({share:.0%})"


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
