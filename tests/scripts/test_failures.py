"""The recorded failures are those that scripts/record_failures.py makes."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_case_is_recorded_with_its_cause() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    from failures.cases import CASES  # type: ignore[import-not-found]

    kept = {
        path.parent.name: json.loads(path.read_text()) for path in (ROOT / "tests/data/failures").glob("*/case.json")
    }
    made = {case.name: (case.code, list(case.ranks)) for case in CASES}
    assert made == {name: (case["code"], case["ranks"]) for name, case in kept.items() if name in made}
    others = {name: case for name, case in kept.items() if name not in made}
    assert all({"code", "ranks", "launcher", "fault", "ranks_in_all"} <= set(case) for case in others.values())


def test_what_is_kept_is_small_and_names_no_machine() -> None:
    files = [path for path in (ROOT / "tests/data/failures").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1 << 20
