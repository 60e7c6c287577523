"""What is said in one line: the headline, whose fault it is, the verdict, and the line that is pasted after a run."""

from typing import Any

from ncclprobe.model.findings import Finding, Related, Status, Verdict, fail, note
from ncclprobe.model.measurement import Judged
from ncclprobe.model.report import NodeRow, Report
from ncclprobe.model.values import replace
from ncclprobe.report import html, junit, markdown
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
