"""JUnit XML: read back by junitparser, valid for Jenkins, and green if the exit code is 0 and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from junitparser import Error, Failure, JUnitXml, Skipped

from ncclprobe.model.findings import Status, warn
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import junit
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, SICK, SLOW, fleet, hostile, report, reports, verdict


def read(made: Report) -> dict[str, Any]:
    """The suites by name, as junitparser reads them."""
    return {suite.name: suite for suite in JUnitXml.fromstring(junit.render(made).encode())}


def results(suite: Any) -> dict[str, list[tuple[type, str]]]:
    return {case.name: [(type(result), result.message) for result in case.result] for case in suite}


@pytest.mark.slow
@pytest.mark.parametrize("made", [HEALTHY, SICK, INCONCLUSIVE, hostile(), fleet(30, 5)], ids=range(5))
def test_jenkins_takes_it(made: Report) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    xmlschema.XMLSchema(str(Path(__file__).with_name("xunit.xsd"))).validate(junit.render(made))


def test_each_check_of_each_node_is_a_test_and_says_what_became_of_it_as_pytest_does() -> None:
    suites = read(SICK)
    assert results(suites["n0"]) == {"pci.width": [(Failure, "GPU3: x8 of 16 lanes (+1 more)")]}
    assert results(suites["n1"]) == {
        "pci.width": [],
        "host.eth": [],
        "ib.state": [(Error, "could not be done: permission denied")],
        "pci.aer": [(Skipped, "permission denied")],
    }
    assert results(suites["between nodes"]) == {"sync.nccl": [(Failure, "n2: differs")]}
    assert set(results(suites["missing nodes"])) == {"n3", "n4"}
    assert (suites["n1"].tests, suites["n1"].errors, suites["n1"].skipped) == (4, 1, 1)
    assert [(each.name, each.value) for each in suites["n1"].properties()] == [("does not apply", "1")]


def test_a_failure_carries_evidence_and_remedy_in_its_text() -> None:
    (case,) = read(SICK)["n0"]
    assert "  seen: /sys\n  fix: reseat it\n  A link of this node is at fault; repair it." in case.result[0].text


def test_each_row_is_a_test_and_its_numbers_are_properties() -> None:
    suites = read(SICK)
    assert results(suites["measured all_reduce"])["all_reduce 4 MiB, in place"] == [
        (Failure, "bus bandwidth 50 GB/s, at least 95 expected")
    ]
    kinds = [result[0][0] for result in results(suites["measured broadcast"]).values()]
    assert kinds == [Error, Skipped]
    numbers = {each.name: each.value for each in suites["measured all_reduce"].properties()}
    assert numbers[f"{SLOW.nbytes}.in.busbw_GBps"] == "50"
    assert numbers[f"{SLOW.nbytes}.in.least_GBps"] == "95"


def test_copies_are_tests_too() -> None:
    assert results(read(SICK)["measured copies"]) == {
        "n0 GPU0 h2d": [(Failure, "20 GB/s, at least 50 expected")],
        "n0 GPU0 d2d GPU1": [],
    }


@each_row("made", [HEALTHY, SICK, INCONCLUSIVE], ids=["healthy", "sick", "inconclusive"])
def test_the_page_is_green_where_the_exit_code_is_0(made: Report) -> None:
    xml = JUnitXml.fromstring(junit.render(made).encode())
    assert (xml.failures + xml.errors == 0) is (made.exit_code == 0)


def test_a_warning_fails_only_where_the_run_stopped_at_it() -> None:
    mild = report(verdict(Status.WARN, warn("eth0", "is slow")), status=Status.WARN)
    assert results(read(mild)["n0"]) == {"pci.width": []}
    strict = replace(mild, exit_code=4)
    assert results(read(strict)["n0"]) == {"pci.width": [(Failure, "eth0: is slow")]}


@pytest.mark.slow
@given(reports)
def test_whatever_a_report_says_the_xml_is_well_formed_and_messages_have_one_line(made: Report) -> None:
    for suite in JUnitXml.fromstring(junit.render(made).encode()):
        for case in suite:
            assert not any("\n" in (result.message or "") for result in case.result)
