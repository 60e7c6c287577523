"""Sick machines: of every fault that was planted, the finding that was foretold, and no other."""

from pathlib import Path

import zoo
from zoo import findings, sick
from zoo.sick import Plant

from ncclprobe.engine.judge import conclude
from ncclprobe.model.findings import ExitCode, Severity, Status
from ncclprobe.model.nccl_selection import Choices
from tests.each_row import each_row
from tests.kept import difference

PLANTS = list(sick.PLANTS.values())
CAPTURES = findings.captures()
REAL_FINDINGS = {"guest-rxe-nobody": {"fail host.limits RLIMIT_MEMLOCK"}}

every_plant = each_row("plant", PLANTS, ids=lambda plant: plant.name)
every_capture = each_row("path", CAPTURES, ids=lambda path: path.stem)


def above_a_note(path: Path) -> set[str]:
    """Return the findings of a machine that change a status."""
    found = findings.findings(path)
    return {findings.short(rule, finding) for rule, finding in found if finding.severity is not Severity.NOTE}


def text_of(path: Path) -> str:
    """Return what a file has; of a new row there is no file yet."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


@every_plant
def test_the_capture_is_what_the_table_says(plant: Plant) -> None:
    path = sick.CAPTURES / f"{plant.name}.jsonl"
    kept, now = text_of(path), sick.capture(plant)
    assert kept == now, difference(f"write_captures.py {plant.name}", kept.splitlines(), now.splitlines())


def test_there_is_no_capture_of_an_unknown_fault() -> None:
    assert {path.stem for path in sick.CAPTURES.glob("*.jsonl")} == set(sick.PLANTS)
    assert not sick.PLANTS.keys() & zoo.MACHINES.keys()
    assert {findings.golden(path) for path in CAPTURES} == set(findings.GOLDEN.rglob("*.txt"))


@every_plant
def test_a_planted_fault_is_found_on_its_subject_and_nothing_else_but_the_consequences_foretold(plant: Plant) -> None:
    found = findings.findings(sick.CAPTURES / f"{plant.name}.jsonl")
    told = [findings.short(rule, finding) for rule, finding in found]
    assert plant.finding in told, f"expected {plant.finding}, found {told}"
    assert above_a_note(sick.CAPTURES / f"{plant.name}.jsonl") - {plant.finding} == set(plant.also)


@every_capture
def test_the_findings_of_a_machine_are_those_that_were_read_and_no_check_breaks(path: Path) -> None:
    kept, now = text_of(findings.golden(path)), findings.text(path)
    assert kept == now, difference("golden.py captures", kept.splitlines(), now.splitlines())
    broken = [verdict.why for verdict in findings.judged(path) if "the check itself failed" in verdict.why]
    assert broken == []


def test_no_machine_on_which_nccl_would_not_start_is_ready_for_it() -> None:
    stopped = {
        path.stem: conclude(findings.judged(path))
        for path in CAPTURES
        if isinstance(made := findings.looked_at(path).facts[Choices], Choices) and made.refused
    }
    assert {"ifname-none", "net-ofi", "no-interface"} <= stopped.keys()
    assert set(stopped.values()) == {(Status.FAIL, ExitCode.FAIL)}
    said = {"env.start", "launch.names"}  # the second for gloo, which starts no more than NCCL there
    unheard = [v for v in findings.judged(sick.CAPTURES / "no-interface.jsonl") if v.id not in said]
    assert conclude(unheard) != (Status.FAIL, ExitCode.FAIL), "another check says it too"


@each_row("name", [path.stem for path in CAPTURES if path.parent == zoo.CAPTURES])
def test_a_healthy_machine_has_no_finding_above_a_note(name: str) -> None:
    assert above_a_note(zoo.CAPTURES / f"{name}.jsonl") == REAL_FINDINGS.get(name, set())
