"""The documentation: its commands run as it says, and what it names is there."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from documentation import PAGES, ROOT, Block, blocks, prints

from ncclprobe import DOCS
from ncclprobe.commands import COMMANDS
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.explain_pages import entry
from ncclprobe.expect import evidence
from ncclprobe.nccl.parameters import table
from tests.each_row import each_row

NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.exists()]
UNSET = ("NCCL_", "TORCH", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_")
_PATH = re.compile(r"`((?:docs|ncclprobe|reports|scripts|tests)/[\w./-]*)`")
_COMMAND = re.compile(r"ncclprobe[ .]([a-z]+)([^|;&#\n`]*)")


def runs_here(block: Block) -> bool:
    if block.comment == "needs: no GPU":
        return not Path("/dev/nvidia0").exists()
    return block.language == "console" and not block.comment


def with_examples() -> list[str]:
    return [name for name in NAMES if any(runs_here(block) for block in blocks(ROOT / name))]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables in which `ncclprobe` is the one of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "ncclprobe"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ncclprobe "$@"\n')
    command.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return {**inherited, **own}


@pytest.mark.parametrize("name", with_examples())
def test_the_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    for part in ("docs", "tests"):  # as in a checkout, which nothing is written to
        (folder / part).symlink_to(ROOT / part)
    code = 0
    for block in filter(runs_here, blocks(ROOT / name)):
        for example in block.examples:
            if example.command == "echo $?":
                assert (str(code),) == example.expected
                continue
            command = ["sh", "-c", example.command]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, env=environment)
            code = done.returncode
            assert prints(done.stdout, example.expected), f"{example.command}\n{done.stdout}{done.stderr}"


def test_what_a_page_says_is_compared_line_by_line() -> None:
    assert prints("a\nb\nc\n", ["a", "…", "c"])
    assert prints("a\n", ["…", "a", "…"])
    assert prints("3 rows in 4 s\n", ["3 rows in … s"])
    assert not prints("a\nb\nc\n", ["a", "c"])
    assert not prints("a\nb\n", ["a"])
    assert not prints("b\na\n", ["a", "…", "b"])
    assert not prints("3 rows in 4 ms\n", ["3 rows in … us"])


@each_row("name", NAMES)
def test_a_block_that_does_not_run_says_why(name: str) -> None:
    for block in blocks(ROOT / name):
        if block.language == "console" and block.comment:
            kind, _, why = block.comment.partition(": ")
            assert kind in ("not run", "needs", "lab"), block
            assert why, block


def test_the_pages_have_what_is_asked_of_each() -> None:
    """A page may have none of it, so the loops below and above may be empty; all pages have this much."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in NAMES]
    every = [block for name in NAMES for block in blocks(ROOT / name)]
    counts = {
        "runs": len([*filter(runs_here, every)]),
        "does not run": sum(bool(block.comment) for block in every),
        "paths": sum(len(_PATH.findall(text)) for text in texts),
        "commands": sum(len(_COMMAND.findall(text)) for text in texts),
        "held": sum(len(_HELD.findall(text)) for text in texts),
    }
    fewest = {"runs": 15, "does not run": 5, "paths": 120, "commands": 200, "held": 6}
    assert {name: count for name, count in counts.items() if count < fewest[name]} == {}


@each_row("name", NAMES)
def test_a_path_that_a_page_names_is_there(name: str) -> None:
    named = _PATH.findall((ROOT / name).read_text(encoding="utf-8"))
    assert not [path for path in named if not (ROOT / path).exists() and "NAME" not in path]


def test_a_page_that_the_code_cites_is_there() -> None:
    files = [path for folder in ("ncclprobe", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")]
    cited = {name for path in files for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text("utf-8"))}
    assert len(cited) > 5
    assert not [name for name in cited if not (ROOT / name).exists()]


@cache
def pages_of_the_code() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "scripts" / "docs_pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def usage(command: str) -> str:
    printed: str = pages_of_the_code().usage(command)
    return printed


def test_the_page_on_exit_codes_has_the_table_of_outcomes() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    table = pages_of_the_code().outcome_table()
    assert table in page, f"write this table there:\n{table}"


@each_row("name", NAMES)
def test_the_options_that_a_page_names_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for command, rest in _COMMAND.findall(text):
        for option in re.findall(r"--[a-z][a-z-]+", rest) if command in COMMANDS else ():
            assert option in usage(command), f"ncclprobe {command} {option}"


@cache
def options_of(command: str) -> tuple[frozenset[str], str]:
    """Return the options of a command, and its help without commands to type."""
    shown = re.sub(r"`ncclprobe [^`]*`", "", " ".join(usage(command).partition("\nexamples:")[0].split()))
    lines = re.findall(r"^  (-[^ ].*?)(?:  |$)", usage(command), re.MULTILINE)
    return frozenset(option for line in lines for option in re.findall(r"--?[a-z][\w-]*", line)), shown


@each_row("command", COMMANDS)
def test_a_help_tells_to_use_only_options_that_this_command_has(command: str) -> None:
    own, shown = options_of(command)
    assert own
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", shown)) <= own


def test_every_option_is_explained_by_a_page() -> None:
    pages = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in NAMES)
    told = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", pages))
    owned = {option for command in COMMANDS for option in options_of(command)[0] if option.startswith("--")}
    assert len(owned) > 80
    assert not owned - told, f"no page tells of {sorted(owned - told)}; a form of a report: docs/reference/report.md"


_FIGURE = re.compile(r"(\d[\d.]*)<!-- (?:(\d+) \* )?([\w.]+)\.(\w+)(?: / 2\*\*(\d+))? -->")


def test_a_number_that_a_page_takes_from_the_code_is_that_of_the_code() -> None:
    found = [match for name in NAMES for match in _FIGURE.findall((ROOT / name).read_text(encoding="utf-8"))]
    assert len(found) > 10
    for said, times, module, name, power in found:
        value = getattr(importlib.import_module(module), name)
        assert float(said) == value * int(times or 1) / 2 ** int(power or 0), f"{said}: {module}.{name} is {value}"


def test_a_figure_that_a_page_quotes_of_a_report_is_there() -> None:
    seen = 0
    for name in NAMES:
        for part in re.split(r"\n\s*\n|\n(?=[|-])", (ROOT / name).read_text(encoding="utf-8")):
            reports = re.findall(r"reports/[\w./-]+\.(?:md|txt)", part)
            there = " ".join((ROOT / report).read_text(encoding="utf-8") for report in reports).replace(",", "")
            quoted = re.findall(r"\d+ of (?:the )?\d+|\b\d{3,}\b|\d+ %", part.replace(",", "")) if reports else []
            for figure in quoted:
                part_of, _, whole = figure.partition(" of ")
                in_a_row = whole and re.search(rf"\b{whole} \| {part_of}\b", there)  # a column "of 66" above 46
                assert figure in there or figure.replace(" %", "%") in there or in_a_row, f"{name}: {figure}: {reports}"
                seen += 1
    assert seen > 8


_HELD = re.compile(r"<!-- (tests/[\w/]+\.py)::(test_\w+) -->")
_OF_OTHERS = (
    "docs/wrong.md",
    "docs/maintainers/",
    "CONTRIBUTING.md",
)  # what NCCL and jobs do, rules


@each_row("name", [name for name in NAMES if not name.startswith(_OF_OTHERS)])
def test_what_always_or_never_happens_is_held_by_a_test(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for part in re.split(r"\n\s*\n|\n(?=[|])", re.sub(r"(?ms)^```.*?^```", "", text)):
        outcomes = part.replace("a rank never came", "")
        assert not re.search(r"(?i)\b(always|never)\b", outcomes) or _HELD.search(part), part
    for path, test in _HELD.findall(text):
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_what_fails_by_an_expectation_is_what_its_page_says() -> None:
    loose = {evidence.LARGEST_DECADE: evidence.GROSS_SHARE}
    cells = [c for c in evidence.table().values() if (c.mark or 0.0) >= loose.get(c.decade, evidence.LOOSE)]
    least = {path: min(cell.decade for cell in cells if cell.path == path) for path in {cell.path for cell in cells}}
    one_way = {path: decade for path, decade in least.items() if path.split()[0] not in ("rdma", "pcie")}
    known = {"nvlink hopper": 6, "nvlink ampere": 7, "nvlink blackwell": 7, "ib": 6, "roce": 8, "tcpxo": 9, "mnnvl": 9}
    assert one_way == {**known, "efa": 9, "roce unified": 9, "nvlink pairs": 9}
    assert least["pcie"] == 6


def test_every_variable_is_on_one_page() -> None:
    names = [each.name for those in pages_of_the_code().families().values() for each in those]
    assert sorted(names) == sorted(table())


@each_row("wanted", ["env.value", "log.port"])
def test_the_page_of_a_check_says_what_explain_says(wanted: str) -> None:
    parts = [check for check in every_check() if check.id == wanted]
    code = pages_of_the_code()
    page = code.check_section(parts)
    assert page.startswith(f"## {wanted} {{ #{wanted} }}\n")
    for check in parts:
        missing = [said for said in (check.title, check.why, check.fix, check.right) if code.text(said) not in page]
        assert not missing, check.key
        example = "\n".join(entry(check.key)).partition("example of what it finds:\n")[2].partition("\n\n")[0]
        assert example
        assert example in page


def test_the_address_of_a_checks_page_is_the_one_that_is_printed() -> None:
    assert DOCS.endswith("/en/stable")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"site_url: {DOCS}/\n" in site
    assert "use_directory_urls" not in site, "checks/GROUP/ is an address that findings print"


def test_words_of_a_docstring_are_not_taken_for_markup() -> None:
    text = pages_of_the_code().text
    assert text("set <device> to NCCL_IB_* | `a|b` of [x]") == r"set \<device\> to NCCL\_IB\_\* \| `a\|b` of \[x\]"
    assert text("one ` alone") == r"one \` alone"
