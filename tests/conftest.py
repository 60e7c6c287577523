"""What several tests share: sourced facts, a host made of a dictionary, a clean environment."""

import csv
import gc
import json
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ncclprobe.host import Question
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError
from ncclprobe.report import json as as_json

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "tests" / "data" / "facts"
gc.set_threshold(200_000)  # as the program does: searching for cycles was a sixth of what tests take
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup, and then in every process that a test starts
        signal.signal(number, usual)

for name, examples in (("usual", 25), ("whole", 100)):  # `scripts/test all` takes the whole
    like = settings.get_profile("ci" if "CI" in os.environ else "default")
    settings.register_profile(name, like, deadline=None, max_examples=examples)  # a deadline depends on the load
settings.load_profile("usual")


def pytest_collection_finish() -> None:
    """Take the 18,000 collected tests out of what every later collection of garbage looks through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _a_test_leaves_the_environment_and_the_signals_as_they_were() -> Iterator[None]:
    """What one leaves behind, every later test of its worker reads, and every process that it starts inherits."""
    before = _inherited()
    yield
    assert _inherited() == before


def _inherited() -> tuple[dict[str, str], list[object]]:
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return own, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@cache
def _validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(json.loads(as_json.SCHEMA_FILE.read_text()))


def _forms(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """What stands where in JSON: each path, rows of a list being one, with the types that are there."""
    yield path, type(value)
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _forms(each, (*path, key))
    elif isinstance(value, list):
        for each in value:
            yield from _forms(each, (*path, "[]"))


@pytest.fixture(scope="session", autouse=True)
def _every_report_that_a_test_reads_is_valid() -> Iterator[None]:
    """By the schema that is shipped, whoever wrote it. One that has no form which none before it had is as valid:
    what must be there, and which words, read() itself asks by the types that the schema is made of.
    """
    read = as_json.read
    seen: set[tuple[tuple[str, ...], type]] = set()

    def checked(path: str) -> Any:
        report = read(path)
        written = json.loads(Path(path).read_text())
        if not seen.issuperset(forms := set(_forms(written))):
            _validator().validate(written)
            seen.update(forms)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_json, "read", checked)
        yield


def fact_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in tests/data/facts."""
    with (FACTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def answers(said: dict[Question, Any]) -> Replay:
    """A host that knows these answers only; structured ones may be given as objects."""
    texts: dict[Question, str | HostError] = {
        ask: answer if isinstance(answer, str | HostError) else json.dumps(answer) for ask, answer in said.items()
    }
    return Replay(texts)
