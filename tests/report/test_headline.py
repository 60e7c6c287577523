"""What is said in one line: the headline, whose fault it is, the verdict, and the line that is pasted after a run."""

from typing import Any

from ncclprobe.model.causes import Answer, Cause, Suspect
from ncclprobe.model.findings import Finding, Related, Status, Verdict, fail, note
from ncclprobe.model.measurement import Judged
from ncclprobe.model.report import NodeRow, Report
from ncclprobe.model.values import replace
from ncclprobe.report import causes, html, junit, markdown
from ncclprobe.report.digest import headline
from ncclprobe.report.text import quiet, render
from tests.each_row import each_row

from . import samples

UNJUDGED = replace(samples.ROW, status="unjudged", expectation=None)


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


@each_row(
    ("suspect", "words"),
    [
        (Suspect(3, "n1", time=1.7e9), "rank 3, n1 (it logged nothing)"),
        (Suspect(3, source="a"), "rank 3: its last line was written"),
        (Suspect(3, source="a", time=0.0), "rank 3: its last line was written at 00:00:00"),
        (Suspect(3, source="a", silent_s=0.0),
         "rank 3: its last line was written, 0 s before the first error of another rank"),
        (Suspect(3, source="a", silent_s=-1.0, step=0), "rank 3: its last line was written; it reached step 0"),
        (Suspect(3, source="a", step=7, furthest_step=7), "rank 3: its last line was written; it reached step 7"),
        (Suspect(3, source="a", step=7, furthest_step=8),
         "rank 3: its last line was written; it reached step 7, others to 8"),
        (Suspect(3, source="a", furthest_step=8), "rank 3: its last line was written"),
    ])  # fmt: skip
def test_a_silent_rank_is_described_by_what_is_known_of_it(suspect: Suspect, words: str) -> None:
    assert causes.suspected(suspect) == words


CAUSE = Cause(
    "oom", "log.memory-full/x", "named", "rank 3 is full", ranks=(3,), nodes=("n1",), blame="job", action="fix-job"
)


def test_a_cause_is_labelled_by_its_own_answer_and_names_whose_fault_it_is() -> None:
    for answer, label in (
        (Answer("hung", "named", False, "oom", "rank 3 is full"), "If it hangs:"),
        (Answer("hung", "named", True, "oom", "rank 3 is full"), "CAUSE"),
        (Answer("slow", "named", False, "oom", "rank 4 is full"), "CAUSE"),
        (Answer("slow", "named", False, "shm", "rank 3 is full"), "CAUSE"),
    ):
        other = Answer("failed", "named", False, "x", "y")
        report = replace(samples.HEALTHY, answers=(other, answer), causes=(CAUSE,))
        assert causes.label(report, CAUSE) == label
    assert causes.headline(report) == "n1: rank 3 is full [oom]"
    several = replace(CAUSE, confidence="narrowed", could_be=("oom", "shm"), message="it is full", ranks=(3, 4))
    assert causes.headline(replace(report, causes=(several,))) == "ranks 3-4, n1: it is full [oom or shm]"
    assert causes.blamed(CAUSE) == "The job's settings or its program are at fault; correct them."
    for action, said in (("restart", "Restart it."), ("retest", "Test again before you act."), ("repair", "")):
        assert causes.blamed(replace(several, action=action)) == said, action
