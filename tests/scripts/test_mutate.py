"""`scripts/mutate.py`: each kind of fault is planted where it should be, and the near tests are found."""

import ast
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

import mutate

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


def test_each_kind_of_fault_changes_one_expression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    wrong = {}
    for old, new in KINDS.items():
        path = tmp_path / "module.py"
        path.write_text(f"é = 'é'; value = {old}\n", encoding="utf-8")
        first = next(mutate.faults_of(path))
        if (first.old, first.new) not in {(old, new), ("max", "min")}:
            wrong[old] = (first.old, first.new)
    assert wrong == {}


@pytest.mark.slow
def test_every_drawn_fault_leaves_python_that_parses_and_differs() -> None:
    for fault in some(mutate.drawn(20, 5)):
        data = (mutate.ROOT / fault.path).read_bytes()
        planted = data[: fault.begin] + fault.new.encode() + data[fault.end :]
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(data)), mutate.described(fault)


def test_no_fault_is_planted_in_an_example_of_a_check_or_where_nothing_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text("@check(bad=lambda: [gpus(8)], good=lambda: [gpus(9)])\ndef rule():\n    return 0.0, 77\n")
    assert [fault.old for fault in mutate.faults_of(path)] == ["77"]


@pytest.mark.slow
@each_row(
    ("module", "test"),
    [
        ("wire", "tests/test_wire.py"),
        ("checks/nvl", "tests/test_checks.py"),
        ("checks/log/crashes", "tests/log/test_outcome.py"),
        ("nccl_tests/reader", "tests/expect/test_nccl_tests.py"),
        ("commands/fleet", "tests/fleet/test_command.py"),
        ("probes/verbs/port", "tests/probes/test_verbs_pair.py"),
    ],
)
def test_near_tests_name_a_module_its_package_or_are_called_as_it_is(module: str, test: str) -> None:
    assert test in mutate.near_tests(Path(f"ncclprobe/{module}.py"))
