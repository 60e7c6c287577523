"""Whole and broken measuring runs over real gloo ranks: what they report, exit with and say is what they did before.

    .venv/bin/python -m pytest tests/measuring --write-goldens

writes the goldens anew; read the difference before committing. No speed is compared.
"""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Launcher

from measuring.cases import CASES, Case
from measuring.play import played
from ncclprobe.model.registry import Check, discover
from tests.each_row import some

GOLDENS = Path(__file__).parent / "goldens"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    found = Launcher(tmp_path)
    yield found
    found.clear()


def text_of(found: dict[str, Any]) -> str:
    """`found` as JSON: a line for each short value, and for each entry of a list."""
    return _block(found, "") + "\n"


def _block(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    deeper = indent + "  "
    if isinstance(value, dict) and (len(line) > 110 or any(isinstance(each, list | dict) for each in value.values())):
        inner = [f"{deeper}{json.dumps(key)}: {_block(each, deeper)}" for key, each in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    if isinstance(value, list) and len(line) > 110:
        return "[\n" + ",\n".join(deeper + json.dumps(each, ensure_ascii=False) for each in value) + f"\n{indent}]"
    return line


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_measuring_run_reports_what_it_did_before(
    case: Case, launcher: Launcher, request: pytest.FixtureRequest
) -> None:
    if case.kind == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here: nothing is compared or written; `scripts/lab_packages` installs it")
    found = played(case, launcher)
    path = GOLDENS / f"{case.name}.json"
    if request.config.getoption("--write-goldens", default=False):
        path.write_text(text_of(found), encoding="utf-8")
        pytest.skip(f"{path.name} was written")
    print("meant so? `pytest tests/measuring --write-goldens` writes the goldens anew; read the difference")
    assert text_of(found) == path.read_text(encoding="utf-8")


def test_every_golden_of_a_report_lists_every_check_of_a_run() -> None:
    """A golden that was not written anew, because its launcher is not here, is told without that launcher."""
    checks = {each.id for each in discover("ncclprobe.checks.run", Check)}
    for path in some(GOLDENS.iterdir()):
        listed = set(re.findall(r'"id": "(run\.[a-z-]+)"', path.read_text(encoding="utf-8")))
        wrong = sorted(listed ^ checks) if listed else []
        assert not wrong, (
            f"{path.name} lacks, or has too much, {wrong}: write it anew, or by hand as its neighbours are"
        )


def test_every_golden_has_its_run() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == {case.name for case in CASES}
