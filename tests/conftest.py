"""What several tests share: the facts beside the checkout, a host made of a dictionary, a clean environment."""

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.errors import HostError
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay
from ncclprobe.report import json as as_json

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Finds a file of the facts and corpus kept beside the project; skips where they are absent."""
    folder = Path(os.environ.get("NCCLPROBE_SHARED") or ROOT.parent / "shared")

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{name} is not beside this checkout (NCCLPROBE_SHARED names another folder)")
        return folder / name

    return find


@cache
def _validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(json.loads(as_json.SCHEMA_FILE.read_text()))


@pytest.fixture(scope="session", autouse=True)
def _every_report_that_a_test_reads_is_valid() -> Iterator[None]:
    """By the schema that is shipped, whoever wrote it."""
    read = as_json.read

    def checked(path: str) -> Any:
        report = read(path)
        _validator().validate(json.loads(Path(path).read_text()))
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_json, "read", checked)
        yield


def answers(said: dict[Question, Any]) -> Replay:
    """A host that knows these answers only; structured ones may be given as objects."""
    texts: dict[Question, str | HostError] = {
        ask: answer if isinstance(answer, str | HostError) else json.dumps(answer) for ask, answer in said.items()
    }
    return Replay(texts)
