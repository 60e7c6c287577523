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

from ncclprobe.commands import COMMANDS
from ncclprobe.expect import evidence
from ncclprobe.nccl.parameters import table
from tests.each_row import each_row

NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.exists()]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
UNSET = ("NCCL_", "TORCH", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_")
_PATH = re.compile(r"`((?:docs|ncclprobe|reports|scripts|tests)/[\w./-]*)`")
_COMMAND = re.compile(r"ncclprobe[ .]([a-z]+)([^|;&#\n`]*)")
_FIGURE = re.compile(r"(\d[\d.]*)<!-- (?:(\d+) \* )?([\w.]+)\.(\w+)(?: / 2\*\*(\d+))? -->")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


def runs_here(block: Block) -> bool:
    if block.comment == "needs: no GPU":
        return not Path("/dev/nvidia0").exists()
    return block.language == "console" and not block.comment


@pytest.mark.parametrize("name", [name for name in NAMES if any(map(runs_here, blocks(ROOT / name)))])
def test_the_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    folder, program = tmp_path / "reader", tmp_path / "bin" / "ncclprobe"
    for each in (folder, program.parent):
        each.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ncclprobe "$@"\n')
    program.chmod(0o755)
    for part in ("docs", "tests"):  # as in a checkout, which nothing is written to
        (folder / part).symlink_to(ROOT / part)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    own = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    code = 0
    for example in (example for block in filter(runs_here, blocks(ROOT / name)) for example in block.examples):
        if example.command == "echo $?":
            assert (str(code),) == example.expected
            continue
        line = ["sh", "-c", example.command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, cwd=folder, env=inherited | own)
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


@each_row("name", NAMES)
def test_a_page_names_what_is_there_and_says_why_a_block_does_not_run(name: str) -> None:
    for block in blocks(ROOT / name):
        kind, _, why = block.comment.partition(": ")
        assert block.language != "console" or not block.comment or (kind in ("not run", "needs", "lab") and why), block
    named = _PATH.findall(TEXTS[name])
    assert not [path for path in named if not (ROOT / path).exists() and "NAME" not in path]
    for command, rest in _COMMAND.findall(TEXTS[name].replace("\\\n", " ")):
        for option in re.findall(r"--[a-z][a-z-]+", rest) if command in COMMANDS else ():
            assert option in usage(command), f"ncclprobe {command} {option}"


def test_a_help_tells_of_its_own_options_and_a_page_tells_of_every_option() -> None:
    told, owned = set(_OPTION.findall("\n".join(TEXTS.values()))), set()
    for command in COMMANDS:
        lines = re.findall(r"^  (-[^ ].*?)(?:  |$)", usage(command), re.MULTILINE)
        own = {option for line in lines for option in re.findall(r"--?[a-z][\w-]*", line)}
        shown = re.sub(r"`ncclprobe [^`]*`", "", " ".join(usage(command).partition("\nexamples:")[0].split()))
        assert set(_OPTION.findall(shown)) <= own, command
        owned |= {option for option in own if option.startswith("--")}
    assert len(owned) > 80
    assert not owned - told, f"no page tells of {sorted(owned - told)}; a form of a report: docs/reference/report.md"


def test_a_number_or_a_table_that_a_page_takes_from_the_code_is_that_of_the_code() -> None:
    found = [match for text in TEXTS.values() for match in _FIGURE.findall(text)]
    assert len(found) > 10
    for said, times, module, name, power in found:
        value = getattr(importlib.import_module(module), name)
        assert float(said) == value * int(times or 1) / 2 ** int(power or 0), f"{said}: {module}.{name} is {value}"
    outcomes = pages_of_the_code().outcome_table()
    assert outcomes in TEXTS["docs/reference/exit-codes.md"], f"write this table there:\n{outcomes}"
    names = [each.name for those in pages_of_the_code().families().values() for each in those]
    assert sorted(names) == sorted(table()), "every variable is on one page"


def test_what_fails_by_an_expectation_is_what_its_page_says() -> None:
    loose = {evidence.LARGEST_DECADE: evidence.GROSS_SHARE}
    cells = [c for c in evidence.table().values() if (c.mark or 0.0) >= loose.get(c.decade, evidence.LOOSE)]
    least = {path: min(cell.decade for cell in cells if cell.path == path) for path in {cell.path for cell in cells}}
    one_way = {path: decade for path, decade in least.items() if path.split()[0] not in ("rdma", "pcie")}
    known = {"nvlink hopper": 6, "nvlink ampere": 7, "nvlink blackwell": 7, "ib": 6, "roce": 8, "tcpxo": 9, "mnnvl": 9}
    assert one_way == {**known, "efa": 9, "roce unified": 9, "nvlink pairs": 9}
    assert least["pcie"] == 6
