"""Faults that scripts/mutate.py plants: each changes what it says, and its near tests are found."""

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

import mutate
from child import run

from tests.each_row import each_row, some

KINDS = {
    "a < b": "(a) <= (b)",
    "a == b": "(a) != (b)",
    "a and b or c": "((a and b) and (c))",
    "not a": "bool(a)",
    "max(a)": "min(a)",
    "Severity.FAIL": "Severity.WARN",
    "a if b else c": "(c if b else a)",
    "a[0]": "a[-1]",
    "7": "(7 + 1)",
    "0.5": "(0.5 * 1.25)",
}
EXAMPLES = "@check(bad=lambda: [gpus(8)], good=lambda: [gpus(9)])\ndef rule():\n    return 0.0, 77\n"


@each_row("old", KINDS)
def test_each_kind_of_fault_changes_one_expression(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutate.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(f"é = 'é'; value = {old}\n", encoding="utf-8")
    first = next(mutate.faults_of(path))
    assert (first.old, first.new) in {(old, KINDS[old]), ("max", "min")}
    path.write_text(EXAMPLES)  # of a check, where nothing is planted, nor where nothing would change
    assert [fault.old for fault in mutate.faults_of(path)] == ["77"]


@pytest.mark.slow
def test_every_drawn_fault_leaves_python_that_parses_and_differs() -> None:
    for fault in some(mutate.drawn(20, 5)):
        data = (Path(mutate.__file__).parents[1] / fault.path).read_bytes()
        planted = data[: fault.begin] + fault.new.encode() + data[fault.end :]
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(data)), mutate.described(fault)


MODULE = "def f():\n    return [g() for _ in 'a']\n\ndef g():\n    return 70\n\ndef h(most=80):\n    return most + 90\n"
TESTS = """
from ncclprobe.one import f, g, h
G = g()
def test_f(): assert f() == [70]
def test_wrong(): assert f() == 71
def test_h(): assert h(1) > 10
def test_most(): assert h() == 170
"""


def test_what_each_test_calls_is_recorded_and_a_fault_is_caught_by_what_calls_it(tmp_path: Path) -> None:
    (tmp_path / "ncclprobe").mkdir()
    (tmp_path / "ncclprobe" / "__init__.py").touch()
    (tmp_path / "ncclprobe" / "one.py").write_text(MODULE)
    (tmp_path / "test_one.py").write_text(TESTS)
    run(mutate.pytest_in(tmp_path, {"TOUCHED_RECORD": f"{tmp_path}/record"}, ["test_one.py"]), deadline_s=60, sink=len)
    _, touched = mutate.parsed(json.dumps({**json.loads((tmp_path / "record").read_text()), "text": ""}))
    assert "ncclprobe/one.py:g" in touched.collected
    calls = {test.partition("::")[2]: sorted(name[-1] for name in called) for test, _, called in touched.tests}
    assert calls == {"test_f": ["f", "g"], "test_h": ["h"], "test_most": ["h"]}
    warm = mutate.Warm(tmp_path, ["test_one.py"])
    rows = [("70", "f", "caught"), ("80", "most", "caught"), ("90", "h", "survived"), ("90", "wrong", "survived")]
    found = []
    for old, test, _ in rows:
        at = MODULE.index(old)
        fault = mutate.Fault(Path("ncclprobe/one.py"), 0, at, at + 2, old, f"{old} + 1")
        found.append((old, test, mutate.outcome(tmp_path, warm, fault, [f"test_one.py::test_{test}"])))
    warm.close()
    assert found == rows
