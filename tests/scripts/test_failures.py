"""The recorded failures say what was done and what the cause is."""

import json

from conftest import ROOT


def test_every_case_says_its_cause() -> None:
    cases = [json.loads(path.read_text()) for path in (ROOT / "tests/data/failures").glob("*/case.json")]
    assert len(cases) > 60
    assert all({"code", "ranks", "launcher", "fault"} <= set(case) for case in cases)


def test_what_is_kept_is_small_and_names_no_machine() -> None:
    files = [path for path in (ROOT / "tests/data/failures").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1 << 20
