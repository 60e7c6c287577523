"""The repository holds our own code: nothing in it clones, builds or reads the sources of another project."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("scripts", "tests", "docs", ".ci")
_TEXT = {"", ".py", ".sh", ".md", ".toml", ".cfg", ".txt", ".yml", ".yaml", ".c", ".cc", ".h", ".def", ".mk", ".html"}
_CLONE = re.compile(r"\bgit[ \",']{1,6}(?:clone|submodule)\b")
_COMMAND = re.compile(
    r"(?:^|[\s\"'`$(\[])(?:make|cmake|ninja|nvcc|g\+\+|gcc|cc|clang)"
    r"(?: -[a-zA-Z]|[\"'], ?(?:[\"']-|str\(|\*|source\b|path\b|name\b))"
)
_SOURCES = re.compile(
    r"(?<![\w/])(?:nccl|nccl-tests|pytorch|gloo|aws-ofi-nccl|cuda-samples|nvbandwidth)/(?:src|csrc|build|torch/csrc)/[\w/]"
    r"|--nccl-tests-src"
)
OWN = {
    "tests/test_policy.py": "the expressions of this test", "scripts/gpu_stages/standins.py": "tests/fake_nvml.c",
    "scripts/stand_in/build.py": "tests/fake_nvml.c and what tests/cuda_stand_in holds",
    "tests/fake_nvml.py": "tests/fake_nvml.c", "tests/fake_verbs.py": "tests/fake_verbs.c and tests/fake_cuda.c",
    "tests/guest/run": "tests/fake_nvml.c", "tests/lab/launchers.py": "tests/fake_nvml.c",
    "tests/log/single_hosts.py": "a command in a line of a log",
    "tests/probes/test_nccl_library.py": "a library of one function, written by the test",
    "tests/probes/test_verbs_abi.py": "a program that prints offsets, written by the test",
    "tests/test_elf.py": "libraries of one function, written by the test",
}  # fmt: skip
"""Files that compile our own stand-ins, or speak of what is forbidden, and why."""


def lines() -> Iterator[tuple[str, int, str]]:
    """Yield each line of text of the folders with its place; recordings under tests/data are not recipes."""
    for path in sorted(path for top in FOLDERS for path in (ROOT / top).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if not path.is_file() or path.suffix not in _TEXT or name.startswith("tests/data/") or "__pycache__" in name:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from ((name, number, line) for number, line in enumerate(text.splitlines(), 1))


@pytest.fixture(scope="module")
def read() -> list[tuple[str, int, str]]:
    found = [*lines()]
    assert len(found) > 30_000, "the folders were not read"
    return found


def found(read: list[tuple[str, int, str]], what: re.Pattern[str]) -> list[str]:
    return [f"{name}:{number}: {line.strip()}" for name, number, line in read if name not in OWN and what.search(line)]


def test_nothing_clones_builds_or_names_the_sources_of_another_project(read: list[tuple[str, int, str]]) -> None:
    assert [found(read, what) for what in (_CLONE, _COMMAND, _SOURCES)] == [[], [], []]


def test_who_may_compile_exists_and_names_a_source_of_ours() -> None:
    assert [name for name in OWN if not (ROOT / name).exists()] == []
    sources = re.findall(r"tests/[\w/]+\.c\b", " ".join(OWN.values()))
    assert [each for each in sources if not (ROOT / each).exists()] == []


def test_what_is_forbidden_is_seen_and_ordinary_sentences_are_not_taken_for_commands() -> None:
    clones = ("git clone https://example.org/x", '["git", "clone", url]')
    builds = ("make -j8", "cmake -B build", '["g++", "-O2", name]', "nvcc -o x x.cu", "gcc -shared x.c")
    missed = [text for text in clones if not _CLONE.search(text)]
    missed += [text for text in builds if not _COMMAND.search(text)]
    missed += [text for text in ("cp nccl/src/init.cc .", "--nccl-tests-src DIR") if not _SOURCES.search(text)]
    said = ("to make it fast", "it can make, say, two", "cc: the team")
    assert missed + [text for text in said if _CLONE.search(text) or _COMMAND.search(text)] == []


MOST_PRIVATE = 30


def private_names(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each private name of ncclprobe that a file uses, and whether it imports the name itself."""
    modules = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ncclprobe"):
            modules |= {each.asname or each.name for each in node.names}
            yield from ((each.name, True) for each in node.names if re.match("_[^_]", each.name))
    for node in ast.walk(tree):
        owner = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in modules and re.match("_[^_]", node.attr):
            yield node.attr, False


def test_tests_import_no_private_name_and_reach_into_modules_for_ever_fewer() -> None:
    """What a test needs is public; lower the number with each that you take away."""
    found = [(path.name, *each) for path in sorted((ROOT / "tests").rglob("*.py")) for each in private_names(path)]
    assert [(file, name) for file, name, imported in found if imported] == []
    assert len(found) <= MOST_PRIVATE
