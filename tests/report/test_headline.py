"""What is said in one line: the headline, whose fault it is, the verdict, and the line that is pasted after a run."""

from typing import Any

from ncclprobe.checks.run.rows import ROW
from ncclprobe.model.findings import NOTHING_TO_SET, Finding, Related, Status, Verdict, fail, note
from ncclprobe.model.measurement import Fingerprint, Judged
from ncclprobe.model.report import NodeRow, Report, Scope
from ncclprobe.model.values import replace
from ncclprobe.report import digest, html, junit, markdown
from ncclprobe.report.digest import headline
from ncclprobe.report.text import quiet, render
from tests.each_row import each_row

from . import samples

SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")
UNJUDGED = replace(samples.ROW, status="unjudged", expectation=None)
PASSED = replace(samples.ROW, status="pass")


def of(*found: Finding, nodes: int = 0, id: str = "gpu.count", node: str | None = None) -> Report:
    """A report with these findings of one check, on so many nodes."""
    verdict = Verdict(id, node, Status.FAIL, "t", findings=found)
    rows = tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL) for n in range(nodes))
    return replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,), nodes=rows or samples.HEALTHY.nodes)


def test_one_finding_of_several_subjects_or_nodes_is_one_problem_with_a_folded_list() -> None:
    lanes = [("n0", fail(f"GPU{n}", "x8 of 16 lanes", evidence=f"/sys/{n}")) for n in (4, 5, 6, 7)]
    ports = [(node, fail(port, "is DOWN")) for node, port in (("n0", "a:1"), ("n1", "a:1"), ("n2", "b:1"))]
    rows = [
        ([*lanes, ("n0", fail("GPU0", "x4 of 16 lanes"))], [("GPU[4-7]", ("n0",)), ("GPU0", ("n0",))]),
        ([(f"n{n}", note(f"rank {2 * n}", "has two processors")) for n in (0, 1)], [("rank [0,2]", ("n0", "n1"))]),
        (ports, [("a:1", ("n0", "n1")), ("b:1", ("n2",))]),
    ]
    for found, wanted in rows:
        report = samples.report(*(samples.verdict(Status.FAIL, each, node=node) for node, each in found))
        assert [(each.subject, each.nodes) for each in digest.problems(report)] == wanted


def test_a_machine_without_a_driver_is_told_what_to_ask_for_if_nothing_was_measured_on_gpus() -> None:
    report = samples.report(samples.verdict(Status.UNKNOWN, required=True), status=Status.UNKNOWN)
    blind = replace(report, scope=Scope(driver=False))
    rails = replace(blind, command="ncclprobe rails --nnodes 2")
    assert ["--backend gloo" in headline(each) for each in (blind, report, rails)] == [True, False, False]
    assert digest.conclusion(rails).startswith("Could not confirm readiness for NCCL over rails")
    by_gloo = Fingerprint(software={"backend": "gloo"})
    for rows in ("measurements", "pairs", "copies", "groups", "steps", "ladder"):
        row: dict[str, Any] = {rows: (ROW,)}
        told = headline(replace(blind, **row)), headline(replace(blind, fingerprint=by_gloo, **row))
        assert ["no GPU" in each for each in told] == [False, True], rows


def test_a_note_of_what_cannot_be_changed_is_for_the_curious() -> None:
    idle = note("processors", "this machine has no more", remedy=f"{NOTHING_TO_SET}: take another machine")
    useful = note("processors", "few of many", remedy="give ranks more")
    report = samples.report(samples.verdict(Status.PASS, idle, useful), status=Status.PASS)
    assert "this machine has no more" not in render(report)
    assert "few of many" in render(report)
    assert "this machine has no more" in render(report, verbose=True)


def test_a_consequence_stands_under_its_cause_and_not_by_itself() -> None:
    lost = fail("GPU6", "is lost", remedy="drain the node", blame="node")
    follows = note("GPU6", "not looked at: GPU is lost", related=(Related("gpu.count", "GPU6"),))
    report = of(lost, node="n0")
    checks = (*report.checks, Verdict("nvl.links", "n0", Status.PASS, "t", findings=(follows,)))
    report = replace(report, exit_code=4, checks=checks)
    for shown in (render(report), markdown.render(report)):
        assert shown.count("not looked at: GPU is lost") == 1
        assert "explain nvl.links" not in shown
    assert "      so:    nvl.links GPU6: not looked at: GPU is lost" in render(report)
    alone = render(replace(report, checks=checks[1:]))  # its cause was ignored, and it is not lost with it
    assert "NOTE  nvl.links  GPU6" in alone


@each_row(
    ("changes", "said"),
    [
        ({"measurements": (UNJUDGED, UNJUDGED)}, "2 rows measured, none judged"),
        ({"command": "ncclprobe pairs", "judged": Judged(0, 8)}, "8 numbers measured, none judged"),
        ({"command": "ncclprobe accept --level 1", "judged": Judged(0, 8)}, "8 numbers measured, none judged"),
    ],
)
def test_numbers_that_nothing_judged_are_no_pass_in_any_format(changes: dict[str, Any], said: str) -> None:
    report = replace(samples.HEALTHY, **changes)
    assert headline(report) == said
    for shown in (render(report), quiet(report), junit.render(report), markdown.render(report), html.render(report)):
        assert said in shown
        assert "PASS" not in shown
    lines = render(report).splitlines()
    assert said in lines[0 if "accept" in report.command else 2]
    assert "<skipped" in junit.render(report).partition("</testsuite>")[0]
