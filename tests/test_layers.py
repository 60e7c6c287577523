"""The house's rules, held by reading the code: who may import whom, how long a file may be, what nobody may use."""

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from ncclprobe.commands import COMMANDS

PACKAGE = Path(__file__).resolve().parent.parent / "ncclprobe"
FILES = sorted(PACKAGE.rglob("*.py"))
TABLE = (
    "signals model", "fleet host redact wire", "facts", "nccl nccl_tests expect localise logs", "checks probes",
    "engine", "report cluster", "session", "commands",
    "__init__ __main__ accept api bandwidth copies doctor pairs site start workload",
)  # fmt: skip
"""The rows of the table in docs/maintainers/architecture.md, from row 0 on."""
ROWS = {room: number for number, rooms in enumerate(TABLE) for room in rooms.split()}
OF_THE_PACKAGE = {"__version__", "DOCS", "page"}
"""What ncclprobe/__init__.py defines, without an import of its own."""
IN_ORDER = TABLE[3].split()
"""Rooms of row 3, each of which may import those before it."""
APART = {4, 6}
"""Rows whose rooms do not import each other."""
BANNED_IN_CHECKS = {"ncclprobe.host", "os", "subprocess", "socket", "time", "torch", "pathlib"}
TORCH_ZONE = {
    PACKAGE / "cluster" / "rendezvous" / "store.py",  # a client of torchrun's own store
    PACKAGE / "api.py",  # names a type: tests/test_api.py sees that nothing is imported
    *(path for path in FILES if path.relative_to(PACKAGE).parts[0] in ("probes", "session")),
}
PICKLE = {PACKAGE / "facts" / "files" / "flight_child.py"}
"""In a child with limits, by an Unpickler that finds no class: see tests/facts/test_flight.py."""


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Full names of everything that `path` imports, at any depth, functions' own imports included."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def rooms_imported(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports(path) if name.startswith("ncclprobe.")]
    return {part[1] for part in parts if part[1] not in OF_THE_PACKAGE} - {room(path)}


def broken_by(rule: Callable[[Path], Iterable[str]], paths: Iterable[Path] = FILES) -> dict[str, set[str]]:
    """What a rule finds, by file."""
    every = {str(path.relative_to(PACKAGE)): set(rule(path)) for path in paths}
    assert every
    return {name: broken for name, broken in every.items() if broken}


def test_imports_point_down_the_house() -> None:
    def not_below(path: Path) -> set[str]:
        own, row = room(path), ROWS[room(path)]
        beside = {other for other in ROWS if ROWS[other] == row}
        allowed = set() if row in APART else set(IN_ORDER[: IN_ORDER.index(own)]) if row == 3 else beside
        return {other for other in rooms_imported(path) if ROWS[other] >= row and other not in allowed}

    assert broken_by(not_below) == {}
    assert {room(path) for path in FILES} == set(ROWS)


def test_the_rooms_and_the_arrows_between_them_are_few_enough_to_be_known() -> None:
    arrows = {(room(path), other) for path in FILES for other in rooms_imported(path)}
    assert len({room(path) for path in FILES}) <= 31
    assert len(arrows) <= 103


def test_each_file_imports_only_what_its_place_allows() -> None:
    def first(path: Path) -> set[str]:
        return {name.partition(".")[0] for name in imports(path)}

    def of_the_host(path: Path) -> set[str]:
        files = {"ncclprobe.host", "ncclprobe.host.files"}
        return {name for name in imports(path) if name.startswith("ncclprobe.host")} - files

    commands, checks = sorted((PACKAGE / "commands").glob("*.py")), sorted((PACKAGE / "checks").rglob("*.py"))
    every = {f"ncclprobe.commands.{name}" for name in COMMANDS}
    reports = sorted((PACKAGE / "report").rglob("*.py"))
    allowed = {"host", *(name for name, row in ROWS.items() if row == 0)}
    assert broken_by(lambda path: {"torch", "numpy"} & first(path), {*FILES} - TORCH_ZONE) == {}
    assert broken_by(lambda path: {"pickle"} & imports(path), {*FILES} - PICKLE) == {}
    assert broken_by(lambda path: {"dataclasses"} & imports(path)) == {}  # they take half a millisecond of every start
    assert broken_by(lambda path: imports(path) & BANNED_IN_CHECKS, checks) == {}
    assert broken_by(lambda path: rooms_imported(path) - allowed, reports) == {}
    assert broken_by(of_the_host, reports) == {}
    assert broken_by(lambda path: imports(path) & every - {f"ncclprobe.commands.{path.stem}"}, commands) == {}


def code_lines(function: ast.AST, text: Sequence[str]) -> int:
    """Return how many lines of a function are code: no docstring, blank line or line of comment."""
    told = [node for node in ast.walk(function) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    silent = {line for node in told for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = range(getattr(function, "lineno", 1), (getattr(function, "end_lineno", None) or 0) + 1)
    return sum(1 for line in lines if line not in silent and not re.match(r"\s*(#|$)", text[line - 1]))


def test_a_file_fits_a_reader_and_a_function_is_read_at_a_glance() -> None:
    def too_long(path: Path) -> list[str]:
        text = path.read_text().splitlines()
        functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [*text[700:701], *(each.name for each in functions if code_lines(each, text) > 40)]

    assert broken_by(too_long) == {}


def test_nothing_dangerous_is_called_and_what_is_caught_is_named_but_in_two_places() -> None:
    pattern = re.compile(r"(?<![\w.])eval\(|shell=True|gather_object\(|object_list\(|except Exception")
    found = broken_by(lambda path: pattern.findall(path.read_text()))
    assert found == {name: {"except Exception"} for name in ("commands/__init__.py", "engine/judge.py")}
