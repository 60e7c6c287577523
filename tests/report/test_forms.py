"""JUnit XML, Markdown, metrics and lists of nodes: read back by others, bounded, and with no markup of a machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Failure, JUnitXml
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from ncclprobe.model.findings import Status, Verdict, warn
from ncclprobe.model.report import Area, Report
from ncclprobe.model.values import replace
from ncclprobe.report import junit, markdown, nodes, prometheus
from tests.each_row import each_row, some

from .samples import BAND, HEALTHY, INCONCLUSIVE, ROW, SICK, SLOW, fleet, hostile, report, reports, texts, verdict

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


MANY: dict[str, Callable[[], Report]] = {
    "findings": lambda: fleet(5_000, 1, 1),
    "titles": lambda: report(*(verdict(Status.PASS, id=f"a.{n}" * 20) for n in range(20_000))),
    "gaps": lambda: report(*(verdict(Status.UNKNOWN, why=f"w{n}" * 200, required=True) for n in range(5_000))),
    "notes": lambda: replace(HEALTHY, notes=("\U0001f525" * 10_000,) * 1_000),
    "wide": lambda: hostile("\x00|" * 100_000),
}


@each_row("many", MANY)
@pytest.mark.slow
@pytest.mark.every_time
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


def test_of_one_series_the_slower_row_counts_and_the_transport_is_there_where_it_was_looked_at() -> None:
    both = report(measurements=(ROW, replace(ROW, busbw_GBps=7.0, dtype="int8"), ROW))
    assert value(both, "busbw_bytes_per_second", op="all_reduce") == 7e9
    assert not metrics(replace(HEALTHY, started="yesterday"))["ncclprobe_last_run_timestamp_seconds"].samples
    told = "NCCL → sockets over eth0 (10 Gb/s): the OFI plugin is not there" + 200 * "x"
    areas = (Area("GPUs", "8", Status.PASS), Area("transport", told, Status.WARN))
    (sample,) = metrics(replace(SICK, areas=areas))["ncclprobe_transport_info"].samples
    assert (sample.labels["transport"], sample.value) == (told[:128], 1)
    for worst, series in (("fail", 1), ("warn", 0), ("unjudged", 0)):
        loose: Any = replace(SLOW, expectation=replace(BAND, worst=worst))
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
