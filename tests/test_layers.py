"""The house's rules, held by reading the code: who may import whom, how long a file may be, what nobody may use."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.each_row import some

PACKAGE = Path(__file__).resolve().parent.parent / "ncclprobe"
FILES = sorted(PACKAGE.rglob("*.py"))

ROWS = {
    **dict.fromkeys(("signals", "model"), 0),
    **dict.fromkeys(("fleet", "host", "redact", "wire"), 1),
    "facts": 2,
    **dict.fromkeys(("nccl", "nccl_tests", "expect", "localise", "logs"), 3),
    **dict.fromkeys(("checks", "probes"), 4),
    "engine": 5,
    **dict.fromkeys(("report", "cluster"), 6),
    "session": 7,
    "commands": 8,
    **dict.fromkeys(
        (
            "__init__",
            "__main__",
            "accept",
            "api",
            "bandwidth",
            "copies",
            "doctor",
            "pairs",
            "site",
            "start",
            "workload",
        ),
        9,
    ),
}
OF_THE_PACKAGE = {"__version__", "DOCS", "page"}
"""What ncclprobe/__init__.py defines, without an import of its own."""
IN_ORDER = ("nccl", "nccl_tests", "expect", "localise", "logs")
"""Rooms of row 3, each of which may import those before it."""
APART = {4, 6, 9}
"""Rows whose rooms do not import each other."""
BANNED_IN_CHECKS = {"ncclprobe.host", "os", "subprocess", "socket", "time", "torch", "pathlib"}
TORCH_ZONE = {"probes", "session"}
TORCH_FILES = {
    PACKAGE / "cluster" / "rendezvous" / "store.py",  # a client of torchrun's own store
    PACKAGE / "api.py",  # names a type: tests/test_api.py sees that nothing is imported
}


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


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
    return {part[1] for part in parts if part[1] not in OF_THE_PACKAGE}


def broken_by(rule: Callable[[Path], Iterable[str]], paths: Iterable[Path] = FILES) -> dict[str, set[str]]:
    """What a rule finds, by file: files are no parameters of a test, because then every worker would read them all."""
    every = {str(path.relative_to(PACKAGE)): set(rule(path)) for path in paths}
    return {name: broken for name, broken in every.items() if broken}


def test_imports_point_down_the_house() -> None:
    def not_below(path: Path) -> Iterator[str]:
        own = room(path)
        allowed = IN_ORDER[: IN_ORDER.index(own)] if ROWS[own] == 3 else ()
        for other in rooms_imported(path) - {own}:
            apart = ROWS[own] in APART - {9} or (ROWS[own] == 3 and other not in allowed)
            if ROWS[other] > ROWS[own] or (ROWS[other] == ROWS[own] and apart):
                yield other

    assert broken_by(not_below) == {}


def test_the_rooms_and_the_arrows_between_them_are_few_enough_to_be_known() -> None:
    arrows = {(room(path), other) for path in FILES for other in rooms_imported(path) - {room(path)}}
    assert len({room(path) for path in FILES}) <= 31
    assert len(arrows) <= 103


def name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_files_import_each_other_in_no_circle() -> None:
    """At import or later, in a function: none of two files can be understood, or moved, without the other."""
    names = {name(path): imports(path) for path in FILES}
    of_files = {file: (found & names.keys()) - {file} for file, found in names.items()}
    for file, found in names.items():  # `from room import file` asks the room for nothing else
        for package in of_files[file] & {each.rpartition(".")[0] for each in names}:
            if {each for each in found if each.rpartition(".")[0] == package} <= names.keys():
                of_files[file] -= {package}
    TopologicalSorter(of_files).prepare()  # names the circle that it finds


def test_commands_do_not_import_each_other() -> None:
    from ncclprobe.commands import COMMANDS

    every = {f"ncclprobe.commands.{name}" for name in COMMANDS}
    commands = sorted((PACKAGE / "commands").glob("*.py"))
    assert broken_by(lambda path: imports(path) & (every - {f"ncclprobe.commands.{path.stem}"}), commands) == {}


def test_only_the_torch_zone_imports_torch() -> None:
    outside = [path for path in FILES if room(path) not in TORCH_ZONE and path not in TORCH_FILES]
    heavy = {"torch", "numpy"}
    assert broken_by(lambda path: heavy & {name.partition(".")[0] for name in imports(path)}, outside) == {}


def test_a_check_cannot_look_at_the_machine() -> None:
    checks = sorted((PACKAGE / "checks").rglob("*.py"))
    assert len(checks) > 50
    assert broken_by(lambda path: imports(path) & BANNED_IN_CHECKS, checks) == {}


def test_lines_tables_and_how_many_more_there_are_come_from_layout() -> None:
    own = re.compile(r'textwrap|tabulate|, …"( if| \*)|f";? and \{len\(.*\} more')
    assert {path.name for path in FILES if own.search(path.read_text(encoding="utf-8"))} == {"layout.py"}


def test_reports_need_nothing_but_nouns_units_and_files() -> None:
    for path in some((PACKAGE / "report").rglob("*.py")):
        rooms = {name for name in rooms_imported(path) if ROWS[name] > 0} - {"report"}
        files = {name for name in imports(path) if name.startswith("ncclprobe.host")}
        assert rooms <= {"host"}, path
        assert files <= {"ncclprobe.host", "ncclprobe.host.files"}, path


def test_a_file_fits_a_reader() -> None:
    assert broken_by(lambda path: path.read_text().splitlines()[700:701]) == {}


def code_lines(function: ast.AST, text: Sequence[str]) -> int:
    """Return how many lines of a function are code: no docstring, blank line or line of comment."""
    told = [node for node in ast.walk(function) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    silent = {line for node in told for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = range(getattr(function, "lineno", 1), (getattr(function, "end_lineno", None) or 0) + 1)
    return sum(1 for line in lines if line not in silent and not re.match(r"\s*(#|$)", text[line - 1]))


def test_a_function_is_read_at_a_glance() -> None:
    def too_long(path: Path) -> list[str]:
        text = path.read_text().splitlines()
        functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [each.name for each in functions if code_lines(each, text) > 40]

    assert broken_by(too_long) == {}


def test_every_room_of_the_package_has_its_place_in_this_table() -> None:
    assert {room(path) for path in FILES} == set(ROWS)


def test_the_description_of_the_rooms_names_every_one() -> None:
    codemap = (PACKAGE.parent / "docs/maintainers/architecture.md").read_text().partition("| row |")[2]
    told = {name.rstrip("/") for span in re.findall(r"`([^`]+)`", codemap) for name in span.split()}
    assert {room(path) for path in FILES} - {"__init__", "__main__"} <= told


def test_the_tree_of_errors_names_every_public_one() -> None:
    classes = (node for path in FILES for node in nodes(path) if isinstance(node, ast.ClassDef))
    own = {
        node.name for node in classes if {ast.unparse(base) for base in node.bases} & {"NcclprobeError", "HostError"}
    }
    told = set(
        re.findall(r"[├└]─ (\w+)", ast.get_docstring(ast.parse((PACKAGE / "model" / "errors.py").read_text())) or "")
    )
    assert {name for name in own if not name.startswith("_")} == told


def types(path: Path) -> set[str]:
    """Public classes and type aliases that a module makes: an alias is a capitalised name, not a constant's."""
    found = set()
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for name in targets if isinstance(name, ast.Name) and not name.id.isupper()}
    return {name for name in found if name[0].isupper()}


def test_a_public_type_name_of_model_facts_and_expect_is_one_thing() -> None:
    owners: dict[str, list[Path]] = {}
    for path in FILES:
        for name in types(path) if room(path) in ("model", "facts", "expect") else ():
            owners.setdefault(name, []).append(path)
    assert not {name: paths for name, paths in owners.items() if len(paths) > 1}


def test_there_is_one_kind_of_value_type() -> None:
    """A dataclass takes half a millisecond of every start, and neither ``replace`` nor ``asdict`` knows it."""
    assert not [path for path in FILES if "dataclasses" in imports(path)]


def test_nothing_dangerous_is_called() -> None:
    pattern = re.compile(r"(?<![\w.])eval\(|shell=True|gather_object\(|object_list\(")
    for path in some(FILES):
        assert not pattern.search(path.read_text()), path


def test_a_report_is_made_in_one_place() -> None:
    """All else reads one, or changes a copy of it."""
    made = [
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Report"
    ]
    assert made == ["engine/diagnose.py"]


def test_everything_but_one_judge_and_the_command_catches_what_it_names() -> None:
    broad = [path for path in FILES for line in path.read_text().splitlines() if "except Exception" in line]
    assert [path.relative_to(PACKAGE).as_posix() for path in broad] == ["commands/__init__.py", "engine/judge.py"]


def test_the_standard_library_of_python_3_10_is_enough() -> None:
    newer = {"tomllib"}
    for path in FILES:
        names = {name.partition(".")[0] for name in imports(path)} & newer
        assert not names or "tomli" in path.read_text(), path
    assert sys.version_info >= (3, 10)


def test_only_the_reader_of_flight_records_unpickles() -> None:
    """In a child with limits, by an Unpickler that finds no class: see tests/facts/test_flight_hostile.py."""
    assert [path.name for path in FILES if "pickle" in imports(path)] == ["flight_child.py"]
