"""Incidents of public threads, planted in captures: the doctor names what was wrong there."""

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import tomllib
import zoo

from ncclprobe.engine.collect import Traces, add_choices, capture_facts
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.host.capture import Replay, load
from ncclprobe.model.errors import Missing
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job
from tests.each_row import each_row

INCIDENTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "data" / "incidents.toml").read_text())
CHECKS = every_check(MACHINE)


def planted(incident: dict[str, Any]) -> Replay:
    """The capture, with what was otherwise in the thread. A question that it does not answer is a KeyError."""
    capture = load(zoo.CAPTURES / f"{incident.get('like', 'hgx-h100')}.jsonl")
    answers = dict(capture.answers)
    asked = {" ".join(map(str, question)): question for question in answers}
    answers |= {asked[words]: answer for words, answer in incident.get("said", {}).items()}
    for pattern, (old, new) in incident.get("edit", {}).items():
        for question in [asked[words] for words in asked if fnmatch(words, pattern)]:
            assert old in str(answers[question])
            answers[question] = str(answers[question]).replace(old, new)
    answers |= {asked.get(words, tuple(words.split())): Missing(words) for words in incident.get("refused", ())}
    variables = json.loads(str(answers[("env",)])) | incident.get("env", {})
    return Replay({**answers, ("env",): json.dumps(variables)}, capture.node, older=False)


def found(host: Replay) -> tuple[list[Finding], int]:
    """The findings above a note, and the exit code of the doctor."""
    snapshot = capture_facts(host, discover("ncclprobe.facts", Collector, {"machine"}), Traces())
    verdicts = judge(add_choices([snapshot], CHECKS), CHECKS, Job())
    grave = [each for verdict in verdicts for each in verdict.findings if each.severity is not Severity.NOTE]
    return grave, int(conclude(verdicts)[1])


@each_row("name", INCIDENTS)
def test_the_doctor_names_what_was_wrong_as_gravely_as_it_was(name: str) -> None:
    incident = INCIDENTS[name]
    grave, code = found(planted(incident))
    named = [f for f in grave if incident["names"].lower() in f"{f.subject} {f.message} {f.evidence}".lower()]
    assert min((each.severity.value for each in named), default="not named") == incident["severity"]
    assert code == (4 if incident["severity"] == "fail" else incident.get("code", 0))


@each_row("like", sorted({each.get("like", "hgx-h100") for each in INCIDENTS.values()}))
def test_the_doctor_names_nothing_where_nothing_was_planted(like: str) -> None:
    assert found(planted({"like": like})) == ([], 0)
