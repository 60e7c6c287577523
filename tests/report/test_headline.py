"""Numbers that nothing judged are the headline, in every format: a PASS in front of them would be taken for theirs."""

import importlib
import re

import pytest

from ncclprobe.checks.env.fixtures import nccl
from ncclprobe.checks.sync.settings import nccl_version
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Related, Severity, Status, Verdict, fail, note
from ncclprobe.model.measurement import Expectation, Judged, Measurement
from ncclprobe.model.registry import Check
from ncclprobe.model.report import NodeRow
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from ncclprobe.report import html, junit, markdown
from ncclprobe.report.digest import Problem, blame_of, headline, verdict_line
from ncclprobe.report.text import quiet, render
from report import samples
from tests.checks import cases
from tests.each_row import each_row, some

V29, V27 = nccl(2, 29, 7), nccl(2, 27, 3)
UNJUDGED = replace(samples.ROW, status="unjudged", expectation=None)
PASSED = replace(samples.ROW, status="pass")
EXPECTED = Expectation(300.0, 0.0, "GB/s", "model", "links", "a run", worst="unjudged", gross=100.0)


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


@each_row("rows", [(), (PASSED, UNJUDGED), (replace(UNJUDGED, status="inconclusive"),)])
def test_a_run_without_rows_or_with_one_that_something_judges_keeps_its_verdict(rows: tuple[Measurement, ...]) -> None:
    assert line(*rows).startswith("PASS  ")


@pytest.mark.parametrize(("name", "needs"), [("markdown", "json"), ("junit", "junitparser"), ("html", "jinja2")])
def test_every_format_has_the_headline(name: str, needs: str) -> None:
    pytest.importorskip(needs)
    text = importlib.import_module(f"ncclprobe.report.{name}").render(
        replace(samples.HEALTHY, measurements=(UNJUDGED, UNJUDGED))
    )
    assert "2 rows measured, none judged" in text


@each_row("command", ["pairs", "copies", "accept --level 1"])
def test_pairs_and_copies_that_nothing_judged_are_no_pass_in_any_format(command: str) -> None:
    report = replace(samples.HEALTHY, command=f"ncclprobe {command}", judged=Judged(0, 8))
    said = "8 numbers measured, none judged"
    assert headline(report) == said
    for text in (render(report), quiet(report), junit.render(report), markdown.render(report), html.render(report)):
        assert said in text
        assert "PASS" not in text
    lines = render(report).splitlines()
    assert said in lines[0 if command.startswith("accept") else 2]
    assert "<skipped" in junit.render(report).partition("</testsuite>")[0]


def test_pairs_of_which_some_were_judged_pass() -> None:
    report = replace(samples.HEALTHY, judged=Judged(2, 8))
    assert verdict_line(report).startswith("PASS  ")
    assert "8 numbers, 2 judged" in verdict_line(report)
    assert "<skipped" not in junit.render(report).partition("</testsuite>")[0]


def test_a_row_that_fails_grossly_says_so_in_every_format() -> None:
    report = replace(
        samples.HEALTHY, measurements=(replace(PASSED, busbw_GBps=33.0, status="fail", expectation=EXPECTED),)
    )
    assert "not 100 below a third of it" in " ".join(render(report).split())
    assert "below a third of the 300 expected, 100" in junit.render(report)
    assert "| 33 | 100 |" in markdown.render(report)


@each_row(
    ("message", "told"),
    [
        ("is lost, as NVML says (nvmlDeviceGetMemoryInfo: GPU is lost)", "GPU6 is lost, as NVML says"),
        ("NVML nvmlDeviceGetMemoryInfo: GPU is lost", "GPU6: NVML nvmlDeviceGetMemoryInfo: GPU is lost"),
        ("is -1: NCCL makes buffers of -1 bytes; see param.cc", "GPU6 is -1: NCCL makes buffers of -1 bytes"),
        ("Xid 79: fallen off the bus; 1 hour ago", "GPU6: Xid 79: fallen off the bus"),
        ("no connection on 7 of 7 paths (eth0): filtered", "GPU6: no connection on 7 of 7 paths: filtered"),
        (
            "goes over sockets (eth0, (lo)) and not over mlx5_0: NCCL_NET",
            "GPU6: goes over sockets and not over mlx5_0: NCCL_NET",
        ),
        ("0 usable, 8 expected: see NVML. Drain it.", "GPU6: 0 usable, 8 expected: see NVML"),
        ("is missing", "GPU6 is missing"),
        ("is down; a: b", "GPU6 is down"),
    ],
)
def test_a_headline_is_the_first_sentence_that_says_something(message: str, told: str) -> None:
    verdict = Verdict("gpu.count", None, Status.FAIL, "t", findings=(fail("GPU6", message),))
    assert headline(replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,))) == told


@each_row(
    ("versions", "told"),
    [
        ({"n0": V29, "n1": V27}, "NCCL 2.29.7 on n0, NCCL 2.27.3 on n1"),
        ({"n0": V29, "n1": V29, "n2": V27}, "NCCL 2.27.3 on n2, NCCL 2.29.7 on the others"),
        ({"n0": V29, "n1": V29, "n2": Software({})}, "no libnccl on n2, NCCL 2.29.7 on the others"),
    ],
)
def test_a_comparison_says_in_its_headline_what_differs_and_how(versions: dict[str, Software], told: str) -> None:
    (finding,) = nccl_version.run(Every(versions))
    verdict = Verdict("sync.versions", None, Status.FAIL, "t", findings=(finding,))
    nodes = tuple(NodeRow(name, n, name, Status.FAIL) for n, name in enumerate(versions))
    assert headline(replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,), nodes=nodes)) == told


@each_row("check", cases.checks(), ids=lambda check: check.key)
def test_no_headline_is_a_number_of_nodes_alone(check: Check) -> None:
    """Of every bad example: a comparison's headline has its values, and every headline more than its subject."""
    for example in some(check.bad):
        for finding in check.run(*example):
            verdict = Verdict(check.id, None, Status.FAIL, "t", findings=(replace(finding, severity=Severity.FAIL),))
            told = headline(replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,)))
            assert not re.search(r"(no majority among [0-9]+ nodes|[0-9] of [0-9]+ differs?)$", told)
            assert told != finding.subject


def test_a_comparison_that_names_a_node_has_it_in_the_headline_once() -> None:
    found = (fail("NCCL_ALGO", "differs", nodes=("n1",)), fail("n1 rail 2 (eth1)", "is slow", nodes=("n1",)))
    verdict = Verdict("sync.env", None, Status.FAIL, "t", findings=found)
    nodes = tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL) for n in range(2))
    text = headline(replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,), nodes=nodes))
    assert text == "n1 NCCL_ALGO: differs; n1 rail 2 (eth1) is slow"


@each_row(
    ("subjects", "said"),
    [
        (("n2 rail 5 (mlx5_5:1)",), "The link mlx5_5:1 of n2 is at fault"),
        (("mlx5_3:1",), "The link mlx5_3:1 of n2 is at fault"),
        (("rank 5",), "A link of n2 is at fault"),
        (("mlx5_3:1", "mlx5_4:1"), "A link of n2 is at fault"),
    ],
)
def test_the_link_at_fault_is_named_where_the_finding_names_one(subjects: tuple[str, ...], said: str) -> None:
    problem = Problem("x.y", fail(subjects[0], "is slow", nodes=("n2",), blame="link"), (), subjects)
    assert blame_of(problem).startswith(said)


def test_a_consequence_stands_under_its_cause_and_not_by_itself() -> None:
    lost = fail("GPU6", "is lost", remedy="drain the node", blame="node")
    follows = note("GPU6", "not looked at: GPU is lost", related=(Related("gpu.count", "GPU6"),))
    checks = (
        Verdict("gpu.count", "n0", Status.FAIL, "t", findings=(lost,)),
        Verdict("nvl.links", "n0", Status.PASS, "t", findings=(follows,)),
    )
    report = replace(samples.HEALTHY, status=Status.FAIL, exit_code=4, checks=checks)
    for text in (render(report), markdown.render(report)):
        assert text.count("not looked at: GPU is lost") == 1
        assert "explain nvl.links" not in text
    assert "      so:    nvl.links GPU6: not looked at: GPU is lost" in render(report)
    alone = render(replace(report, checks=checks[1:]))  # its cause was ignored, and it is not lost with it
    assert "NOTE  nvl.links  GPU6" in alone
