"""A pytest plugin of scripts/mutate.py: record the functions that each test calls, or run listed tests in their order.

The file that TOUCHED_RECORD names gets a line of JSON for each test file: its name; the functions that are called, as
FILE:QUALIFIED NAME; the places in this list of those called while it was collected; and for each test that passed its
id, its seconds and the places of those that it called. What another process calls is not seen. TOUCHED_TESTS names a
file with the ids to run, one a line.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

import pytest

PACKAGE = f"{os.sep}ncclprobe{os.sep}"
_codes: dict[int, CodeType] = {}
_collected: dict[str, list[str]] = {}
_passed: list[tuple[str, str, float, list[str]]] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the listed tests, in their order."""
    if listed := os.environ.get("TOUCHED_TESTS"):
        order = {name: at for at, name in enumerate(Path(listed).read_text(encoding="utf-8").splitlines())}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Record what the collection of a test file calls."""
    before = begin()
    yield
    if isinstance(collector, pytest.Module):
        _collected[collector.nodeid] = end(before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record what a test and its fixtures call."""
    before, began = begin(), time.monotonic()
    yield
    called = end(before)
    if item.stash.get(PASSED, False):
        _passed.append((item.nodeid.partition("::")[0], item.nodeid, round(time.monotonic() - began, 3), called))


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Note whether a test passed: one that fails without a fault notices none."""
    yield
    item.stash[PASSED] = item.stash.get(PASSED, True) and call.excinfo is None


def pytest_sessionfinish() -> None:
    """Write what was recorded."""
    if target := os.environ.get("TOUCHED_RECORD"):
        of_file = {name: list(rows) for name, rows in groupby(sorted(_passed), key=lambda row: row[0])}
        with Path(target).open("w", encoding="utf-8") as file:
            for name, called in _collected.items():
                rows = of_file.get(name, [])
                place = {each: at for at, each in enumerate(sorted({*called}.union(*(row[3] for row in rows))))}
                tests = [(test, seconds, [place[each] for each in row]) for _, test, seconds, row in rows]
                collected = [place[each] for each in called]
                line = {"file": name, "functions": [*place], "collected": collected, "tests": tests}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def begin() -> dict[int, CodeType]:
    """Begin to note the functions that are called; return what was noted so far."""
    global _codes
    before, _codes = _codes, {}
    if "TOUCHED_RECORD" in os.environ:
        threading.settrace(_note)
        sys.settrace(_note)
    return before


def end(before: dict[int, CodeType]) -> list[str]:
    """Return the functions of the package that were called since `begin`, and go on with what was noted before."""
    global _codes
    if "TOUCHED_RECORD" in os.environ:
        sys.settrace(None)
        threading.settrace(None)
    mine = [code for code in _codes.values() if PACKAGE in code.co_filename]
    _codes = before
    return sorted({f"ncclprobe/{code.co_filename.rpartition(PACKAGE)[2]}:{name_of(code)}" for code in mine})


def name_of(code: CodeType) -> str:
    """Return the qualified name of a function, or of the one that it is in; before Python 3.11 its own name."""
    return str(getattr(code, "co_qualname", code.co_name)).partition(".<locals>")[0]


def _note(frame: FrameType, event: str, _: object) -> None:
    _codes[id(frame.f_code)] = frame.f_code
