"""The JSON Schema that is shipped: what the types say, and what every report of this repository keeps to."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import bandwidth as options
from ncclprobe.commands import report
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.run.samples import Participants
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.recorder import Recorder
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, ROW, SICK, fleet

jsonschema = pytest.importorskip("jsonschema")
SHIPPED = json.loads(as_json.SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)
EXAMPLES = sorted((Path(__file__).parents[2] / "reports").glob("*.json"))


def test_what_is_shipped_is_what_the_types_say() -> None:
    again = "python -m ncclprobe report --schema > ncclprobe/report/schema.json"
    assert as_json.schema() == SHIPPED, f"make it again: {again}"
    VALIDATOR.check_schema(SHIPPED)


def test_what_is_shown_is_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--schema"]) == 0
    assert capsys.readouterr().out == as_json.SCHEMA_FILE.read_text()


@each_row("made", [HEALTHY, SICK, INCONCLUSIVE, fleet(3, 4)], ids=["healthy", "sick", "cut", "fleet"])
def test_reports_are_valid(made: Report) -> None:
    VALIDATOR.validate(json.loads(as_json.render(made)))


@each_row("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))


def test_what_is_written_while_a_sweep_still_runs_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    asked = options.parse(["--json", str(path), "-q"])
    record = Recorder(asked, ask(asked.judging, (), Job(), MEASURED), Participants("environment", 2, ("h0", "h1")))
    record.open()
    record.add(ROW)
    partial = json.loads(path.read_text())
    VALIDATOR.validate(partial)
    assert (partial["status"], partial["exit_code"], len(partial["measurements"])) == ("unknown", 3, 0)
    assert as_json.read(str(path)).exit_code == 3


@each_row(
    "change",
    [
        {"schema": "ncclprobe.report/2"},
        {"exit_code": 1},
        {"exit_code": "0"},
        {"status": "great"},
        {"nodes": None},
        {"checks": [{"id": "x"}]},
        {"duration_s": "1.5"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_report_is_not_valid(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({**json.loads(as_json.render(HEALTHY)), **change})


def test_keys_may_be_added_by_a_newer_version() -> None:
    assert VALIDATOR.is_valid({**json.loads(as_json.render(HEALTHY)), "later": {"x": 1}})
