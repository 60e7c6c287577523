"""Numbers that nothing judged are the headline, in every format: a PASS in front of them would be taken for theirs."""

import importlib

import pytest

from ncclprobe.model.findings import Status, Verdict, fail
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import NodeRow
from ncclprobe.model.values import replace
from ncclprobe.report.digest import headline, verdict_line
from ncclprobe.report.text import render
from report import samples

UNJUDGED = replace(samples.ROW, status="unjudged", expectation=None)
PASSED = replace(samples.ROW, status="pass")


def line(*rows: Measurement, status: Status = Status.PASS, code: int = 0) -> str:
    return verdict_line(replace(samples.HEALTHY, measurements=rows, status=status, exit_code=code))


def test_rows_that_nothing_judged_stand_in_place_of_the_pass() -> None:
    text = line(UNJUDGED, UNJUDGED)
    assert text.startswith("2 rows measured, none judged; ")
    assert text.endswith("(exit 0)")
    assert "PASS" not in text
    report = replace(samples.HEALTHY, measurements=(UNJUDGED,))
    assert headline(report) == "1 row measured, none judged"
    assert render(report).splitlines()[-1] == "1 row measured, none judged. (exit 0)"


def test_a_run_that_fails_or_had_to_be_judged_says_so_first() -> None:
    assert line(UNJUDGED, status=Status.FAIL, code=4).startswith("FAIL  1 row measured, none judged; ")
    text = line(UNJUDGED, status=Status.UNKNOWN, code=3)
    assert text.startswith("UNKNOWN  1 row measured, none judged; ")
    assert text.endswith("(exit 3)")


@pytest.mark.parametrize("rows", [(), (PASSED, UNJUDGED), (replace(UNJUDGED, status="inconclusive"),)])
def test_a_run_without_rows_or_with_one_that_something_judges_keeps_its_verdict(rows: tuple[Measurement, ...]) -> None:
    assert line(*rows).startswith("PASS  ")


@pytest.mark.parametrize(("name", "needs"), [("markdown", "json"), ("junit", "junitparser"), ("html", "jinja2")])
def test_every_format_has_the_headline(name: str, needs: str) -> None:
    pytest.importorskip(needs)
    text = importlib.import_module(f"ncclprobe.report.{name}").render(
        replace(samples.HEALTHY, measurements=(UNJUDGED, UNJUDGED))
    )
    assert "2 rows measured, none judged" in text


def test_a_comparison_that_names_a_node_has_it_in_the_headline_once() -> None:
    found = (fail("NCCL_ALGO", "differs", nodes=("n1",)), fail("n1 rail 2 (eth1)", "is slow", nodes=("n1",)))
    verdict = Verdict("sync.env", None, Status.FAIL, "t", findings=found)
    nodes = tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL) for n in range(2))
    text = headline(replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,), nodes=nodes))
    assert text == "n1 NCCL_ALGO: differs; n1 rail 2 (eth1) is slow"
