"""What a release has promised holds: nothing that others have written down vanishes, and what is new only adds.

``tests/data/released/VERSION`` is what ``scripts/freeze.py`` wrote for a release; docs/stability.md says what may
change.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclprobe import __version__, api
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.stability import minor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import freeze

RELEASES = sorted(freeze.FOLDER.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
NOW = freeze.names()
AGAIN = "if it is not released yet: python scripts/freeze.py"

every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def read(release: Path, name: str) -> Any:
    return json.loads((release / name).read_text(encoding="utf-8"))


def lost(old: Any, new: Any, where: str = "") -> list[str]:
    """What a reader of `old` relies on and `new` does not say: keys, types, values, and which keys are always there."""
    if isinstance(old, dict):
        if not isinstance(new, dict):
            return [where]
        wrong = [f"{where}/required: {each}" for each in {*new.get("required", ())} ^ {*old.get("required", ())}]
        kept = {key: value for key, value in old.items() if key not in ("required", "default")}
        return wrong + [each for key, value in kept.items() for each in lost(value, new.get(key), f"{where}/{key}")]
    if isinstance(old, list):
        return [f"{where}: {each}" for each in old if each not in (new or ())]
    return [] if old == new else [f"{where}: {old} became {new}"]


@every_release
def test_a_report_of_a_release_keeps_to_the_schema(release: Path) -> None:
    assert lost(read(release, "schema.json"), freeze.schema()) == [], AGAIN


def test_a_change_of_the_schema_that_breaks_a_reader_is_seen() -> None:
    old = {"properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}, "required": ["a"]}
    assert lost(old, {**old, "properties": {**old["properties"], "c": {"type": "integer"}}}) == []  # type: ignore[dict-item]
    assert lost(old, {**old, "required": []}) == ["/required: a"]
    assert lost(old, {**old, "required": ["a", "b"]}) == ["/required: b"]
    assert lost(old, {**old, "properties": {"a": {"type": "string"}}}) == ["/properties/b"]
    assert lost(old, {**old, "properties": {"a": {"type": "integer"}, "b": {"enum": [1, 2, 3]}}}) == [
        "/properties/a/type: string became integer"
    ]
    assert lost(old, {**old, "properties": {"a": {"type": "string"}, "b": {"enum": [1]}}}) == ["/properties/b/enum: 2"]


@every_release
@pytest.mark.parametrize("kind", ["checks", "commands", "api"])
def test_a_released_name_never_vanishes(release: Path, kind: str) -> None:
    assert {*read(release, "names.json")[kind]} - {*NOW[kind]} == set(), AGAIN


@every_release
@pytest.mark.parametrize("kind", ["exit_codes", "metrics"])
def test_a_released_name_keeps_its_meaning(release: Path, kind: str) -> None:
    was = read(release, "names.json")[kind]
    assert {name: NOW[kind].get(name) for name in was} == was, AGAIN


@every_release
def test_a_call_of_a_release_is_still_a_call(release: Path) -> None:
    """Parameters stay as they were, in their order; new ones stand behind, and have a default."""
    for name, was in read(release, "names.json")["signatures"].items():
        now = NOW["signatures"][name]
        assert {each: now.get(each) for each in was} == was, AGAIN
        assert [each for each in now if each in was] == [*was] or all("KEYWORD" in now[each] for each in was)
        assert all(" = " in now[each] and "KEYWORD_ONLY" in now[each] for each in {*now} - {*was})


@every_release
def test_a_capture_of_a_release_says_as_much_as_it_did(release: Path, tmp_path: Path) -> None:
    """No check that could look then is blind now: an answer is never understood less well."""
    path = tmp_path / "capture.jsonl"
    path.write_bytes(gzip.decompress((release / "capture.jsonl.gz").read_bytes()))
    now, was = freeze.statuses(api.doctor([path])), read(release, "statuses.json")
    assert {name for name, status in was.items() if status != "unknown" and now[name] == "unknown"} == set()


def test_no_check_says_that_it_comes_with_a_later_release_than_this_one() -> None:
    """It would fail now, warn in that release as if it were new, and fail again in the next."""
    later = {check.id: check.since for check in every_check() if numbers(check.since) > numbers(minor(__version__))}
    assert not later, f"without `since`, or with the version of ncclprobe/__init__.py: {later}"


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number]


def test_a_check_that_no_release_had_says_since_when_it_is_there() -> None:
    """Until 0.1.0 is released, every check is of the first one. A cause of `explain` gates nothing, and says none."""
    newest, ids = RELEASES[-1].name, {*read(RELEASES[-1], "names.json")["checks"]}
    added = [check for check in every_check() if check.id not in ids and not (check.origin or check.cause)]
    if newest != __version__:
        assert {check.id: check.since for check in added} == {check.id: minor(__version__) for check in added}
