"""What the goldens do not hold, and what they do: a changed number is no change, a changed word is one."""

from typing import Any

import pytest

from measuring import essence

pytestmark = pytest.mark.slow

OWN = {"/tmp/run-1": "FOLDER", "n1": "HOST"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("its heartbeat stopped 5.3 s ago", "its heartbeat stopped # s ago"),
        ("it took 493 us", "it took # s"),
        ("bus bandwidth 0.0149 GB/s, at least 8.1e+09 expected", "bus bandwidth # GB/s, at least # expected"),
        ("less a tolerance of 10%", "less a tolerance of #%"),
        ("rank 1 of 2, all_reduce 16 MiB", "rank 1 of 2, all_reduce 16 MiB"),
        ("ended by SIGINT in phase 'all_reduce 16 MiB in place batch 1'", "ended by SIGINT in phase '…'"),
        ("/tmp/run-1/bands.toml on n1, not n10 or an-n1", "FOLDER/bands.toml on HOST, not n10 or an-n1"),
        ("gather was skipped: result type Float", "gather was skipped: …"),
        ("the store is gone (Broken pipe) while", "the store is gone (…) while"),
    ],
)
def test_numbers_that_are_measured_and_names_of_this_machine_are_left_out(said: str, kept: str) -> None:
    assert essence.plain(said, OWN) == kept


def finding(message: str) -> dict[str, str]:
    return {"severity": "fail", "subject": "x", "blame": "node", "action": "retest", "message": message}


def check(name: str, status: str, required: bool = True, message: str = "") -> dict[str, Any]:
    found = [finding(message)] if message else []
    return {"id": name, "node": "n1", "status": status, "required": required, "why": "", "findings": found}


def report(*checks: dict[str, Any], status: str = "pass", code: int = 0) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "measurements": [],
        "skipped_rows": [],
        "notes": [],
        "missing_nodes": [],
        "first_call": None,
    }
    return {**empty, "nodes": [{}], "launch": {}, "checks": checks, "status": status, "exit_code": code}


def test_a_check_of_the_machine_is_left_out_and_one_of_the_run_is_kept() -> None:
    found = essence.of_report(report(check("host.limits", "fail", message="low"), check("run.data", "pass")), OWN)
    assert [each["id"] for each in found["checks"]] == ["run.data"]
    assert found["findings"] == []


def test_a_rank_that_was_late_on_a_busy_machine_changes_nothing() -> None:
    row = dict.fromkeys(essence.ROW) | {"expectation": None}
    late = report(check("run.straggler", "warn", False, "late"), check("run.data", "pass"), status="warn")
    calm = report(check("run.straggler", "pass", False), check("run.data", "pass"))
    both = [essence.of_report({**each, "measurements": [row]}, OWN) for each in (late, calm)]
    assert both[0] == both[1]


def test_another_warning_is_a_change() -> None:
    found = essence.of_report(report(check("run.groups", "warn", False, "odd"), status="warn"), OWN)
    assert (found["status"], len(found["findings"])) == ("warn", 1)
