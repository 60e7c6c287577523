"""JUnit XML, Markdown, metrics and lists of nodes: read back by others, bounded, and with no markup of a machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from ncclprobe.model.findings import ONCE, Certainty, Finding, Severity, Status, Verdict, fail, warn
from ncclprobe.model.report import Area, Report
from ncclprobe.model.values import replace
from ncclprobe.report import junit, markdown, nodes, prometheus
from tests.each_row import each_row, some

from .samples import HEALTHY, INCONCLUSIVE, LOST_LANES, ROW, SICK, SLOW, fleet, hostile, report, reports, texts, verdict

KINDS = {"healthy": HEALTHY, "sick": SICK, "inconclusive": INCONCLUSIVE, "hostile": hostile(), "fleet": fleet(30, 5)}


@pytest.mark.slow
@given(reports)
def test_whatever_a_report_says_each_form_is_well_formed(made: Report) -> None:
    for suite in JUnitXml.fromstring(junit.render(made).encode()):
        assert not any("\n" in (result.message or "") for case in suite for result in case.result)
    assert markdown.render(made).startswith("## ")
    assert metrics(made)["ncclprobe_exit_code"].samples[0].value == made.exit_code


# JUnit XML: green if the exit code is 0 and nowhere else.


def suites(made: Report) -> dict[str, Any]:
    """The suites by name, as junitparser reads them."""
    return {suite.name: suite for suite in JUnitXml.fromstring(junit.render(made).encode())}


def results(suite: Any) -> dict[str, list[tuple[type, str]]]:
    return {case.name: [(type(result), result.message) for result in case.result] for case in suite}


@pytest.mark.slow
@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_jenkins_takes_it(made: Report) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    xmlschema.XMLSchema(str(Path(__file__).with_name("xunit.xsd"))).validate(junit.render(made))


def test_each_check_row_and_copy_is_a_test_and_says_what_became_of_it_as_pytest_does() -> None:
    found = suites(SICK)
    assert results(found["n0"]) == {"pci.width": [(Failure, "GPU3: x8 of 16 lanes (+1 more)")]}
    assert results(found["n1"]) == {
        "pci.width": [],
        "host.eth": [],
        "ib.state": [(Error, "could not be done: permission denied")],
        "pci.aer": [(Skipped, "permission denied")],
    }
    assert results(found["between nodes"]) == {"sync.nccl": [(Failure, "n2: differs")]}
    assert set(results(found["missing nodes"])) == {"n3", "n4"}
    assert (found["n1"].tests, found["n1"].errors, found["n1"].skipped) == (4, 1, 1)
    assert [(each.name, each.value) for each in found["n1"].properties()] == [("does not apply", "1")]
    text = next(iter(found["n0"])).result[0].text
    assert "  seen: /sys\n  fix: reseat it\n  A link of this node is at fault; repair it." in text
    slow = [(Failure, "bus bandwidth 50 GB/s, at least 95 expected")]
    assert results(found["measured all_reduce"])["all_reduce 4 MiB, in place"] == slow
    assert [result[0][0] for result in results(found["measured broadcast"]).values()] == [Error, Skipped]
    numbers = {each.name: each.value for each in found["measured all_reduce"].properties()}
    assert [numbers[f"{SLOW.nbytes}.in.{name}_GBps"] for name in ("busbw", "least")] == ["50", "95"]
    copies = {"n0 GPU0 h2d": [(Failure, "20 GB/s, at least 50 expected")], "n0 GPU0 d2d GPU1": []}
    assert results(found["measured copies"]) == copies


@each_row("made", KINDS.values(), ids=KINDS)
def test_the_page_is_green_where_the_exit_code_is_0(made: Report) -> None:
    xml = JUnitXml.fromstring(junit.render(made).encode())
    assert (xml.failures + xml.errors == 0) is (made.exit_code == 0)


def test_a_warning_fails_only_where_the_run_stopped_at_it() -> None:
    mild = report(verdict(Status.WARN, warn("eth0", "is slow")), status=Status.WARN)
    for code, said in ((0, []), (4, [(Failure, "eth0: is slow")])):
        assert results(suites(replace(mild, exit_code=code))["n0"]) == {"pci.width": said}


# Markdown and annotations.


GFM = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_problems_come_first_and_passes_are_folded() -> None:
    text = markdown.render(SICK)
    order = [text.index(part) for part in ("## FAIL", "### Problems", "GPU3", "`eth0`", "### Rows", "<summary>Passed")]
    assert order == sorted(order)
    assert "### " not in markdown.render(HEALTHY)
    assert markdown.render(HEALTHY).startswith("## PASS")
    assert markdown.annotations(HEALTHY) == []


MANY: dict[str, Callable[[], Report]] = {
    "findings": lambda: fleet(5_000, 1, 1),
    "titles": lambda: report(*(verdict(Status.PASS, id=f"a.{n}" * 20) for n in range(20_000))),
    "gaps": lambda: report(*(verdict(Status.UNKNOWN, why=f"w{n}" * 200, required=True) for n in range(5_000))),
    "notes": lambda: replace(HEALTHY, notes=("\U0001f525" * 10_000,) * 1_000),
    "wide": lambda: hostile("\x00|" * 100_000),
}


@each_row("many", MANY)
def test_no_report_makes_more_than_the_limit(many: str) -> None:
    text = markdown.render(MANY[many]())
    assert len(text.encode()) <= markdown.MOST_BYTES
    assert "the JSON report has them all" in text or many == "wide"


def tokens(text: str) -> list[Any]:
    return [inner for token in GFM.parse(text) for inner in [token, *(token.children or [])]]


@given(texts | st.text(alphabet="`|*_[]()<>#-+1.:@~$\\ \na", max_size=40))
def test_a_text_of_a_machine_is_never_markup(said: str) -> None:
    plain = {"inline", "text", "paragraph_open", "paragraph_close", "text_special"}
    assert {each.type for each in tokens(markdown.text(said))} <= plain
    assert {each.type for each in tokens(f"x {markdown.code(said)} y")} <= {*plain, "code_inline"}


def test_html_in_a_report_stays_text_and_nobody_is_called_by_a_name() -> None:
    found = {each.content for each in tokens(markdown.render(hostile())) if each.type in ("html_inline", "html_block")}
    assert all("script" not in each for each in some(found))
    assert ["@everyone" in markdown.text(said) for said in ("@everyone", "a@everyone")] == [False, False]


def test_failures_are_errors_warnings_and_gaps_are_warnings() -> None:
    said = markdown.annotations(SICK)
    assert said[0] == "::error title=ncclprobe nodes::did not report: n[3-4]"
    assert said[1].startswith("::error title=ncclprobe pci.width::GPU3 on n0: x8 of 16 lanes; fix: reseat it")
    assert any(line.startswith("::warning title=ncclprobe host.eth::eth0 on n1") for line in said)
    assert any("could not be done: permission denied" in line for line in said)
    assert markdown.annotations(INCONCLUSIVE)[0].startswith("::warning title=ncclprobe verdict::UNKNOWN")


@each_row("made", [fleet(500, 1, 1), hostile()], ids=["fleet", "hostile"])
def test_annotations_are_few_and_of_one_line(made: Report) -> None:
    said = markdown.annotations(made)
    assert sum(line.startswith("::error ") for line in said) <= markdown.MOST_ANNOTATIONS
    assert not any(c in line for line in said for c in "\r\n\x1b")
    assert all(line.startswith(("::error title=", "::warning title=")) for line in said)


def test_a_title_cannot_end_its_own_value() -> None:
    odd = Verdict("a::b,c=d%", "n0", Status.UNKNOWN, "t", why="w%0A", required=True)
    (line,) = markdown.annotations(report(odd, status=Status.UNKNOWN))
    assert line == "::warning title=ncclprobe a%3A%3Ab%2Cc=d%25::could not be done: w%250A"


@each_row("number", ["0.82", "3. of 4", "12) of 14", "1e-05"])
def test_a_number_at_the_beginning_is_shown_as_it_stands_and_makes_no_list(number: str) -> None:
    assert GFM.render(markdown.text(number)).strip() == f"<p>{number}</p>"
    assert "\u200b" not in markdown.text(number)


# Metrics: as the textfile collector wants them, with bounded labels.


def metrics(made: Report) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(prometheus.render(made))}


def value(made: Report, name: str, **labels: str) -> float:
    samples = metrics(made)[f"ncclprobe_{name}"].samples
    (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    return float(found)


def test_the_run_its_verdicts_and_its_rows_are_there_in_base_units() -> None:
    row = {"op": "all_reduce", "nbytes": str(4 << 20), "place": "in"}
    assert value(SICK, "last_run_timestamp_seconds") == 1795219200
    assert value(SICK, "exit_code") == 4
    assert value(SICK, "nodes", status="missing") == 2
    assert value(SICK, "verdicts", check="pci.width", status="pass") == 2
    assert value(SICK, "busbw_bytes_per_second", **row) == 50e9
    assert value(SICK, "latency_seconds", **row) == pytest.approx(20e-6)
    assert value(SICK, "expected_busbw_bytes_per_second", **row, basis="user") == 100e9
    assert value(SICK, "threshold_busbw_bytes_per_second", **row, basis="user") == 95e9
    assert value(SICK, "copy_bytes_per_second", kind="h2d", concurrent="no") == 20e9
    both = report(measurements=(ROW, replace(ROW, busbw_GBps=7.0, dtype="int8"), ROW))
    assert value(both, "busbw_bytes_per_second", op="all_reduce") == 7e9  # of one series the slower row counts
    assert not metrics(replace(HEALTHY, started="yesterday"))["ncclprobe_last_run_timestamp_seconds"].samples


def test_the_way_of_the_bytes_is_there_where_it_was_looked_at() -> None:
    assert not metrics(SICK)["ncclprobe_transport_info"].samples
    told = "NCCL → sockets over eth0 (10 Gb/s): the OFI plugin is not there" + 200 * "x"
    found = metrics(replace(SICK, areas=(Area("GPUs", "8", Status.PASS), Area("transport", told, Status.WARN))))
    (sample,) = found["ncclprobe_transport_info"].samples
    assert (sample.labels["transport"], sample.value) == (told[:128], 1)


@each_row(("worst", "series"), [("fail", 1), ("warn", 0), ("unjudged", 0)])
def test_only_a_row_that_may_fail_has_a_bandwidth_below_which_it_fails(worst: Any, series: int) -> None:
    (row,) = SICK.measurements[:1]
    assert row.expectation
    loose = replace(row, expectation=replace(row.expectation, worst=worst))
    found = metrics(replace(SICK, measurements=(loose,)))
    assert len(found["ncclprobe_threshold_busbw_bytes_per_second"].samples) == series


def test_the_files_of_two_commands_have_no_series_in_common() -> None:
    """node_exporter refuses a folder in which two files have one."""
    made = [replace(SICK, command=f"ncclprobe {line}") for line in ("doctor --local", "bandwidth -q")]
    series = [{(sample.name, *sorted(sample.labels.items())) for family in metrics(each).values()
               for sample in family.samples} for each in made]  # fmt: skip
    assert not series[0] & series[1]
    assert value(SICK, "exit_code", command="doctor") == 4
    for line in ("", "x", "x --json", "x " + 200 * "y", 'x doctor"', "x \u212a"):  # names no command
        assert value(replace(SICK, command=line), "exit_code", command="") == 4


@each_row("made", KINDS.values(), ids=KINDS)
def test_every_metric_has_help_and_type_and_no_sample_a_time_stamp(made: Report) -> None:
    for name, family in some(metrics(made).items()):
        assert (bool(family.documentation), family.type) == (True, "gauge"), name
        assert all(sample.timestamp is None for sample in family.samples)


def test_no_label_names_a_host_and_their_number_is_bounded() -> None:
    many = tuple(verdict(Status.PASS, id=f"x.{n}") for n in range(5000))
    rows = tuple(replace(ROW, nbytes=n) for n in range(5000))
    for made in (fleet(300, 3), report(*many, measurements=rows)):
        assert "gpu-00" not in prometheus.render(made)
        assert max(len(family.samples) for family in metrics(made).values()) <= prometheus.MOST_SERIES


def list_of(*findings: Finding, id: str = "pci.width", node: str | None = "n0") -> str:
    """In which list n0 stands, where n1 is healthy."""
    other = verdict(Status.PASS, node="n1")
    own = (verdict(Status.PASS),) if node is None else ()
    made = report(verdict(Status.FAIL, *findings, id=id, node=node), *own, other)
    return next(name for name, names in nodes.sort(made).items() if "n0" in names)


@each_row(
    ("finding", "expected"),
    [
        (replace(LOST_LANES, blame="node"), "bad"),
        (LOST_LANES, "bad"),
        (replace(LOST_LANES, blame="job"), "good"),
        (replace(LOST_LANES, blame="image"), "good"),
        (replace(LOST_LANES, severity=Severity.WARN), "good"),
        (replace(LOST_LANES, blame="fabric"), "unsure"),
        (replace(LOST_LANES, blame="unknown"), "unsure"),
        (replace(LOST_LANES, action="retest"), "unsure"),
        (replace(LOST_LANES, confidence=ONCE), "unsure"),
        (replace(LOST_LANES, confidence=Certainty("low", "measured once")), "unsure"),
    ],
    ids=["node", "link", "job", "image", "warning", "fabric", "unknown", "retest", "once", "measured once"],
)
def test_only_a_fault_of_its_own_that_is_settled_makes_a_node_bad(finding: Finding, expected: str) -> None:
    assert list_of(finding) == expected


def test_a_comparison_makes_the_nodes_it_names_bad_and_no_others() -> None:
    named = replace(LOST_LANES, nodes=("n0",))
    assert list_of(named, node=None) == "bad"
    assert list_of(replace(named, nodes=("n1",)), node=None) == "good"


def test_a_measured_fault_that_names_nobody_leaves_all_in_doubt() -> None:
    made = report(
        verdict(Status.FAIL, fail("all_reduce 1 MiB", "slow", action="retest"), id="run.bandwidth"),
        verdict(Status.PASS, node="n1"),
    )
    assert nodes.sort(made) == {"good": (), "bad": (), "unsure": ("n0", "n1"), "missing": ()}


def test_a_slow_node_that_was_measured_again_is_bad_and_the_one_that_reported_it_is_not() -> None:
    slow = fail("n1", "slow", blame="node", action="repair", confidence=Certainty("high", "measured again"),
                nodes=("n1",))  # fmt: skip
    made = report(verdict(Status.FAIL, slow, id="run.pairs"), verdict(Status.PASS, node="n1"))
    assert nodes.sort(made)["bad"] == ("n1",)
    assert nodes.sort(made)["good"] == ("n0",)


@each_row(
    "blind",
    [
        verdict(Status.UNKNOWN, why="permission denied", required=True),
        verdict(Status.SKIP, why="explained by gpu.driver", required=True),
        verdict(Status.UNKNOWN, id="run.bandwidth", why="too noisy", required=True),
    ],
    ids=["unknown", "explained", "measured"],
)
def test_a_node_that_was_not_looked_at_is_never_good(blind: Verdict) -> None:
    assert nodes.sort(report(blind))["unsure"] == ("n0",)
    assert nodes.sort(INCONCLUSIVE)["unsure"] == ("n0",)


def test_a_gap_that_nobody_must_fill_and_a_check_that_does_not_apply_leave_a_node_good() -> None:
    made = report(verdict(Status.UNKNOWN, why="denied"), verdict(Status.SKIP, why="applies only to x", required=True),
                  verdict(Status.WARN, warn("x", "y", blame="node")), status=Status.PASS)  # fmt: skip
    assert nodes.sort(made)["good"] == ("n0",)


@each_row("made", [HEALTHY, SICK, fleet(2048, 2), hostile()], ids=["healthy", "sick", "fleet", "hostile"])
def test_every_node_stands_in_one_list_folded_on_a_line_or_empty(made: Report) -> None:
    texts = nodes.lists(made).texts
    assert set(texts) == set(nodes.NAMES)
    assert all(text.count("\n") == bool(text) for text in texts.values())
    assert nodes.sort(SICK) == {"good": (), "bad": ("n0",), "unsure": ("n1", "n2"), "missing": ("n3", "n4")}
    assert nodes.lists(fleet(40, 2)).texts["bad"] == "gpu-[00000,00010,00020,00030]\n"


@each_row("name", ["@all", "n0#2", "a,b", "n[0-9]", "a b", "-w", "$(x)", "n0\n"])
def test_a_name_that_no_host_has_stands_in_no_list_and_is_told(name: str) -> None:
    found = nodes.lists(report(verdict(Status.PASS, node=name), verdict(Status.PASS, node="n1"), status=Status.PASS))
    assert found.texts["good"] == "n1\n"
    assert found.left_out == (name,)
