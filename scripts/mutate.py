#!/usr/bin/env python3
"""Plant faults one at a time and run the tests near each: which faults does no test notice?

    .venv/bin/python scripts/mutate.py 20 [--seed 7] [--under ncclprobe/checks] [--list]

A fault is one small change of one expression, from a fixed list of kinds, at a random line. It is planted in a copy of
the tracked files, never in the checkout; the examples that a check ships are tests, and get none. The near tests are
those that call the changed function, or one that uses the changed constant: first those of the file called as the
module, then the shortest. Which test calls what is recorded once, in some minutes, and again for the test files that
changed since; remove .venv/touched.jsonl to record all again. Prints a line for each fault as it is judged, and the
figures of each room. A survivor is a place to look: some faults change nothing that a user could see. What timed out
counts as not caught: on a busy machine a deadline says nothing.
"""

import argparse
import ast
import functools
import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
NEAR_S, SHORT_S = 25.0, 0.2
"""How many processor seconds the tests of a fault may take together, as they took when they were recorded."""
NEAR_FILES = 16
"""How many files are collected anew for a fault that shows only when its file is imported."""
HOLDING = ("tests/test_checks.py", "tests/test_command_values.py")
"""What holds the values of every check and of whole commands notices most faults."""
DEADLINE_S, RECORD_S = 200.0, 7200.0
TOUCHED = ROOT / ".venv" / "touched.jsonl"


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
        touched, warm = recorded(copy), Warm(copy, ["tests"])
        try:
            for fault in faults:
                outcomes.append((fault, outcome(copy, warm, fault, near_tests(fault, touched))))
                print(f"{outcomes[-1][1]:9} {described(fault)}", flush=True)
        finally:
            warm.close()
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
    """Copy the tracked files into `folder`, and compile them; a planted fault never reaches the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    compiled = ["env", f"PYTHONPYCACHEPREFIX={folder}/.bytecode", sys.executable, "-m", "compileall", "-q"]
    run([*compiled, f"{folder}/ncclprobe", f"{folder}/tests"], deadline_s=DEADLINE_S, sink=len)
    return folder


class Touched(NamedTuple):
    """A test file: the text it had, the functions that its collection calls, its tests with seconds and functions."""

    text: str
    collected: set[str]
    tests: list[tuple[str, float, set[str]]]


def recorded(copy: Path) -> dict[str, Touched]:
    """Return which test calls what, from what was recorded before and of the test files that changed since."""
    known = dict(map(parsed, TOUCHED.read_text(encoding="utf-8").splitlines())) if TOUCHED.exists() else {}
    files = {str(path.relative_to(copy)): digest(path) for path in sorted((copy / "tests").rglob("test_*.py"))}
    stale = [name for name, text in files.items() if name not in known or known[name].text != text]
    lines = [line for line in read(TOUCHED).splitlines() if parsed(line)[0] in files.keys() - {*stale}] if known else []
    if stale:
        print(f"recording what {len(stale)} test files call", flush=True)
        target = copy / "touched.jsonl"
        code = run(pytest_in(copy, {"TOUCHED_RECORD": str(target)}, stale), deadline_s=RECORD_S, sink=len)
        rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
        new = [each for each in rows if each["tests"] or code != 2]  # 2: it was interrupted
        lines += [json.dumps({**each, "text": files[each["file"]]}) for each in new]
        TOUCHED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return dict(map(parsed, lines))


def parsed(line: str) -> tuple[str, Touched]:
    """Return a test file and what it calls, of a line of the record."""
    row = json.loads(line)
    names = row["functions"]
    tests = [(test, seconds, {names[at] for at in places}) for test, seconds, places in row["tests"]]
    return row["file"], Touched(row["text"], {names[at] for at in row["collected"]}, tests)


def digest(path: Path) -> str:
    """Return what tells one text of a file from another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def near_tests(fault: Fault, touched: Mapping[str, Touched]) -> list[str]:
    """Return the tests that call what a fault changes, and those beside them, as many as `NEAR_S` allows.

    Those that were seen to call it come before the others of their files: first the tests of a file called as the
    module, then the short ones, then those that hold values. If none was, as another process may call it: those of
    files that share a word with the module's name, or called as its folder.
    """
    functions, path = changed(fault), fault.path
    found = []
    for file, (_, collected, tests) in touched.items():
        at_all = collected & functions or any(called & functions for _, _, called in tests)
        near = is_called_as(ROOT / file, path.stem) and file not in HOLDING
        for test, seconds, called in tests if at_all else ():
            rank = 0 if near else 1 if seconds < SHORT_S else 2 if file in HOLDING else 3
            found.append((not called & functions, rank, seconds, test))
    for file, (_, _, tests) in touched.items() if not found else ():
        shared = len({*path.stem.split("_")} & {*Path(file).stem.split("_")})
        if shared or is_called_as(ROOT / file, path.parent.name):
            found += [(False, -shared, seconds, test) for test, seconds, _ in tests]
    left, chosen = NEAR_S, list[str]()
    for _, _, seconds, test in sorted(found):
        if seconds <= left:
            left -= seconds
            chosen.append(test)
    return chosen


class Scope(NamedTuple):
    """A function, or a statement of a module or class: what a record calls it, its lines, what it defines and uses."""

    function: str
    begin: int
    end: int
    defined: set[str]
    used: set[str]


@functools.cache
def scopes(path: Path) -> list[Scope]:
    """Return the scopes of a file; a function inside a function is a part of it."""
    return list(_scopes(ast.parse(read(ROOT / path)), f"{path}:", set()))


def _scopes(whole: ast.AST, owner: str, defined: set[str]) -> Iterator[Scope]:
    for node in (each for each in ast.iter_child_nodes(whole) if isinstance(each, ast.stmt)):
        begin = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        parts = list(ast.walk(node))
        used = {each.id for each in parts if isinstance(each, ast.Name)}
        used |= {each.attr for each in parts if isinstance(each, ast.Attribute)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Scope(f"{owner}{node.name}", begin, node.end_lineno or begin, {node.name}, used)
        elif isinstance(node, ast.ClassDef):
            yield from _scopes(node, f"{owner}{node.name}.", {node.name})
        else:
            stored = {each.id for each in parts if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            yield Scope("", begin, node.end_lineno or begin, defined | stored, used)


def changed(fault: Fault) -> set[str]:
    """Return the function that a fault is in, or those that use the constant or the class that it is in."""
    around = [scope for scope in scopes(fault.path) if scope.begin <= fault.line <= scope.end]
    functions = {scope.function for scope in around} - {""}
    names = set[str]().union(*(scope.defined for scope in around))
    every = [scope for path in sorted((ROOT / "ncclprobe").rglob("*.py")) for scope in scopes(path.relative_to(ROOT))]
    for _ in range(0 if functions else 2):  # a constant may be a part of another
        users = [scope for scope in every if scope.used & names]
        functions |= {scope.function for scope in users} - {""}
        names |= set[str]().union(*(scope.defined for scope in users if not scope.function))
    return functions


class Warm:
    """A process that has collected tests of a copy, and plays a fault in a fork of it."""

    def __init__(self, copy: Path, files: Iterable[str]) -> None:
        """Start it, and wait until it has collected the tests."""
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        given = {"TOUCHED_SERVE": f"{requests},{answers}", "PYTHONDONTWRITEBYTECODE": "1"}
        null, fds = subprocess.DEVNULL, (requests, answers)
        command = pytest_in(copy, given, files)
        self._process = subprocess.Popen(command, stdout=null, stderr=null, pass_fds=fds, start_new_session=True)
        os.close(requests)
        os.close(answers)
        self(Path(), "", [])

    def __call__(self, path: Path, whole: str, tests: Sequence[str]) -> tuple[str, str]:
        """Return the first test that fails with what it said; or `timed out`, `cold`, or nothing.

        `whole`: the text without its fault of a file that was collected without it; else empty.
        """
        request = {"path": str(path), "whole": whole, "tests": tests, "seconds": DEADLINE_S}
        line = f"{json.dumps(request)}\n".encode()
        while line:
            line = line[os.write(self._requests, line) :]
        while not line.endswith(b"\n"):
            ready = select.select([self._answers], [], [], 2 * DEADLINE_S)[0]
            if not ready or not (part := os.read(self._answers, 65536)):
                return "timed out", "pytest ended before it had played the tests of a fault"
            line += part
        failed, said = json.loads(line)
        return failed, said

    def close(self) -> None:
        """End it."""
        for each in (self._requests, self._answers):
            os.close(each)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)


def outcome(copy: Path, warm: Warm, fault: Fault, near: Sequence[str]) -> str:
    """Play a fault's near tests: ``caught``, ``survived`` or ``timed out``.

    What shows only if the file is imported with the fault is played by a new process. A test that also fails without
    the fault, as on a busy machine, catches nothing: the others are played again.
    """
    target = copy / fault.path
    whole, times = target.read_bytes(), (target.stat().st_atime, target.stat().st_mtime)
    target.write_bytes(whole[: fault.begin] + fault.new.encode() + whole[fault.end :])
    try:
        failed, said = warm(fault.path, whole.decode(), near)
        if failed == "cold":
            files = list(dict.fromkeys(test.partition("::")[0] for test in near))[:NEAR_FILES]
            new = Warm(copy, files)
            failed, said = new(fault.path, "", [test for test in near if test.partition("::")[0] in files])
            new.close()
    finally:
        target.write_bytes(whole)
        os.utime(target, times)  # as its bytecode has it
    if failed == "timed out" or "Timeout (>" in said:
        return "timed out"
    if not failed:
        return "survived"
    if warm(fault.path, "", [failed])[0]:
        return outcome(copy, warm, fault, [test for test in near if test != failed])
    return "caught"


def pytest_in(copy: Path, given: Mapping[str, str], files: Iterable[str]) -> list[str]:
    """Return the command that starts pytest in a copy with our plugin and these variables."""
    own = {"PYTHONPATH": f"{ROOT}/scripts", "PYTHONPYCACHEPREFIX": f"{copy}/.bytecode", **given}
    command = ["env", "-C", str(copy), *(f"{name}={value}" for name, value in own.items()), sys.executable]
    command += ["-m", "pytest", "-q", "-p", "touched", "-p", "no:cacheprovider", "--assert=plain"]
    return [*command, "-m", "not slow or every_time", *files]


def is_called_as(test: Path, name: str) -> bool:
    """Return whether the name of a test file, or of one of its folders, has this name in it."""
    place = test.relative_to(ROOT).with_suffix("")
    return name in {*place.parts[1:-1], *place.stem.split("_"), place.stem.removeprefix("test_")}


@functools.cache
def read(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


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
