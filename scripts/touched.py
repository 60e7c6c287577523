"""A pytest plugin of scripts/mutate.py: record the functions that each test calls, or run tests on planted faults.

The file that TOUCHED_RECORD names gets a line of JSON for each test file: its name; the functions that are called, as
FILE:QUALIFIED NAME; the places in this list of those called while it was collected; and for each test that passed its
id, its processor seconds and the places of those that it called. What another process calls is not seen.

TOUCHED_SERVE names two descriptors. One brings requests, as lines of JSON: a file with a fault, its text without, test
ids and seconds. Each is played in a fork that has collected all tests: it replaces the code of the functions that
differ, and runs the tests in their order. The other takes the first test that failed with what it said, `timed out`, or
`cold`: what differs ran when the tests were collected, so that only a new process would show it.
"""

import contextlib
import gc
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

PACKAGE = f"{os.sep}ncclprobe{os.sep}"
WRITTEN = 77
_codes: dict[int, CodeType] = {}
_collected: dict[str, list[str]] = {}
_passed: list[tuple[str, str, float, list[str]]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Play each request in a fork, until there is none; without requests pytest runs its tests."""
    if "TOUCHED_SERVE" not in os.environ:
        return None
    requests, answers = map(int, os.environ.pop("TOUCHED_SERVE").split(","))
    sys.settrace(None)
    gc.unfreeze()
    items = {item.nodeid: item for item in session.items}
    with os.fdopen(requests, encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            if not (child := os.fork()):
                code = 1
                try:
                    os.setpgid(0, 0)
                    os.write(answers, f"{json.dumps(_played(request, items))}\n".encode())
                    code = WRITTEN
                finally:
                    os._exit(code)
            if _end_of(child, request["seconds"]) != WRITTEN:
                os.write(answers, b'["timed out", ""]\n')
    return True


def _played(request: dict[str, Any], items: dict[str, pytest.Item]) -> tuple[str, str]:
    if request["whole"] and not planted(request["path"], request["whole"]):
        return "cold", ""
    if missing := [name for name in request["tests"] if name not in items]:
        return missing[0], "it was not collected"
    tests = [items[name] for name in request["tests"]]
    for test, following in zip(tests, [*tests[1:], None], strict=False):
        for report in runtestprotocol(test, log=False, nextitem=following):
            if report.failed:
                return test.nodeid, report.longreprtext[-2000:]
    return "", ""


def planted(path: str, whole: str) -> bool:
    """Give the functions of a file the code that it has now, in place of that of `whole`.

    False if what differs has run already, or runs when the file is imported.
    """
    old = list(_of_functions(compile(whole, path, "exec")))
    new = dict(zip(old, _of_functions(compile(Path(path).read_text(encoding="utf-8"), path, "exec")), strict=True))
    ran = {code for code in _codes.values() if code.co_filename.endswith(path)}
    differ = {code for code in old if new[code] != code}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__ in differ:  # a proxy would import what it is for
            each.__code__ = new[each.__code__]
    return bool(differ) and not differ & ran


def _of_functions(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
                yield each
            yield from _of_functions(each)


def _end_of(child: int, seconds: float) -> int:
    """Return the exit code of a child; -1 if it was killed, as it is after `seconds`, with what it started."""
    end, ended, status = time.monotonic() + seconds, 0, 0
    while not ended and time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status if ended else os.waitpid(child, 0)[1])


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Record what the collection of a test file calls."""
    before = begin()
    yield
    called = end(before)
    if isinstance(collector, pytest.Module):
        _collected[collector.nodeid] = called


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record what a test and its fixtures call."""
    before, began = begin(), sum(os.times()[:4])
    yield
    called = end(before)
    if item.stash.get(PASSED, False):
        _passed.append((item.nodeid.partition("::")[0], item.nodeid, round(sum(os.times()[:4]) - began, 3), called))


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
    before = _codes
    if "TOUCHED_RECORD" in os.environ:
        _codes = {}
        threading.settrace(_note)
        sys.settrace(_note)
    return before


def end(before: dict[int, CodeType]) -> list[str]:
    """Return the functions of the package that were called since `begin`, and go on with what was noted before."""
    global _codes
    if "TOUCHED_RECORD" not in os.environ:
        return []
    sys.settrace(None)
    threading.settrace(None)
    mine, _codes = [code for code in _codes.values() if PACKAGE in code.co_filename], before
    return sorted({f"ncclprobe/{code.co_filename.rpartition(PACKAGE)[2]}:{name_of(code)}" for code in mine})


def name_of(code: CodeType) -> str:
    """Return the qualified name of a function, or of the one that it is in; before Python 3.11 its own name."""
    return str(getattr(code, "co_qualname", code.co_name)).partition(".<locals>")[0]


def _note(frame: FrameType, event: str, _: object) -> None:
    _codes[id(frame.f_code)] = frame.f_code


if "TOUCHED_SERVE" in os.environ:
    sys.settrace(_note)
