"""Real jobs that failed in the lab, with the cause that they have by construction: what is named of each.

They were recorded in the lab (tests/data/failures).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain

FAILURES = Path(__file__).resolve().parents[1] / "data" / "failures"
CASES = sorted(path.parent for path in FAILURES.glob("*/case.json"))
CROSSED = "desync-crossed-groups"
"""gloo does not record which ranks a group has: late, or in another call."""

SILENT = ("silent-", "nccl-killed", "nccl-late")
"""The rank that fell silent is named, with its last line where its log was given; one that wrote nothing has none."""


def causes(folder: Path, tmp_path: Path, pattern: str = "*.gz") -> list[dict[str, Any]]:
    report = tmp_path / "report.json"
    files = [str(path) for path in sorted(folder.glob(pattern))]
    assert explain.main([*files, "--json", str(report), "-q"]) == 0
    found: list[dict[str, Any]] = json.loads(report.read_text())["causes"]
    return found


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_the_cause_that_was_made_is_the_cause_that_is_named(folder: Path, tmp_path: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    found = causes(folder, tmp_path)
    if not case["code"]:
        assert found == []
        return
    first = found[0]
    codes = {first["code"], *first["could_be"]}
    assert case["code"] in codes
    assert folder.name == CROSSED or "unknown" not in codes
    ranks = {*first["ranks"]}
    assert not ranks or not case["ranks"] or ranks & {*case["ranks"]}
    if case["ranks"] and first["confidence"] == "named":
        assert ranks <= {*case["ranks"]}, "a wrong rank is never named"
    assert first["evidence"][0]["text"]
    if folder.name.startswith(SILENT):
        assert first["ranks"] == case["ranks"]
        assert [each["rank"] for each in first["suspects"]] in ([], case["ranks"])
        for each in first["suspects"]:
            assert bool(each["last_line"]) == bool(each["source"])


@pytest.mark.parametrize("folder", [path for path in CASES if list(path.glob("fr_*"))], ids=lambda path: path.name)
def test_logs_alone_never_name_another_cause(folder: Path, tmp_path: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    named = causes(folder, tmp_path, "*.log.gz")
    assert bool(named) == (folder.name != "healthy-recorded")
    for found in named[:1]:
        assert case["code"] in {found["code"], *found["could_be"]} or found["code"] == "unknown"


def test_flight_records_of_some_ranks_narrow_and_do_not_mislead(tmp_path: Path) -> None:
    """Of four ranks' dumps any two: the rank that called another operation is named only where its dump is there."""
    folder = FAILURES / "desync-other-operation"
    for some in ("[01]", "[03]", "[13]"):
        (found,) = causes(folder, tmp_path, f"fr_trace_rank_{some}.gz")
        assert found["code"] == "unknown"
        assert found["confidence"] == "unknown"
    (found,) = causes(folder, tmp_path, "fr_trace_rank_[12].gz")
    assert (found["code"], found["ranks"]) == ("collective-desync", [1, 2])
    (found,) = causes(folder, tmp_path, "fr_trace_rank_[023].gz")
    assert (found["code"], found["ranks"]) == ("collective-desync", [2])


def test_a_dump_of_no_known_rank_is_said(tmp_path: Path) -> None:
    nameless = tmp_path / "trace.gz"
    nameless.write_bytes((FAILURES / "desync-other-operation" / "fr_trace_rank_0.gz").read_bytes())
    report = tmp_path / "report.json"
    assert explain.main([str(nameless), "--json", str(report), "-q"]) == 0
    (found,) = json.loads(report.read_text())["not_understood"]
    assert "with an unknown rank" in found["text"]
