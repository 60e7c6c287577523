"""Metrics: as the textfile collector wants them, with bounded labels."""

from typing import Any

import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from ncclprobe.model.findings import Status
from ncclprobe.model.report import Area, Report
from ncclprobe.model.values import replace
from ncclprobe.report import prometheus
from tests.each_row import each_row, some

from .samples import HEALTHY, ROW, SICK, fleet, hostile, report, reports, verdict


def read(made: Report) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(prometheus.render(made))}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    (found,) = [s.value for s in families[f"ncclprobe_{name}"].samples if labels.items() <= s.labels.items()]
    return float(found)


def test_the_run_its_verdicts_and_its_rows_are_there_in_base_units() -> None:
    found = read(SICK)
    assert value(found, "last_run_timestamp_seconds") == 1795219200
    assert value(found, "exit_code") == 4
    assert value(found, "nodes", status="missing") == 2
    assert value(found, "verdicts", check="pci.width", status="pass") == 2
    row = {"op": "all_reduce", "nbytes": str(4 << 20), "place": "in"}
    assert value(found, "busbw_bytes_per_second", **row) == 50e9
    assert value(found, "latency_seconds", **row) == pytest.approx(20e-6)
    assert value(found, "expected_busbw_bytes_per_second", **row, basis="user") == 100e9
    assert value(found, "threshold_busbw_bytes_per_second", **row, basis="user") == 95e9
    assert value(found, "copy_bytes_per_second", kind="h2d", concurrent="no") == 20e9


def test_the_way_of_the_bytes_is_there_where_it_was_looked_at() -> None:
    assert not read(SICK)["ncclprobe_transport_info"].samples
    told = "NCCL → sockets over eth0 (10 Gb/s): the OFI plugin is not there" + 200 * "x"
    found = read(replace(SICK, areas=(Area("GPUs", "8", Status.PASS), Area("transport", told, Status.WARN))))
    (sample,) = found["ncclprobe_transport_info"].samples
    assert (sample.labels["transport"], sample.value) == (told[:128], 1)


@each_row(("worst", "series"), [("fail", 1), ("warn", 0), ("unjudged", 0)])
def test_only_a_row_that_may_fail_has_a_bandwidth_below_which_it_fails(worst: Any, series: int) -> None:
    (row,) = SICK.measurements[:1]
    assert row.expectation
    loose = replace(row, expectation=replace(row.expectation, worst=worst))
    found = read(replace(SICK, measurements=(loose,)))
    assert len(found["ncclprobe_threshold_busbw_bytes_per_second"].samples) == series


def test_the_files_of_two_commands_have_no_series_in_common() -> None:
    """node_exporter refuses a folder in which two files have one."""
    series = [
        {(sample.name, *sorted(sample.labels.items())) for family in read(made).values() for sample in family.samples}
        for made in (replace(SICK, command="ncclprobe doctor --local"), replace(SICK, command="ncclprobe bandwidth -q"))
    ]
    assert not series[0] & series[1]
    assert value(read(SICK), "exit_code", command="doctor") == 4


@each_row("line", ["", "x", "x --json", "x " + 200 * "y", 'x doctor"', "x \u212a"])
def test_a_line_that_names_no_command_gives_none(line: str) -> None:
    assert value(read(replace(SICK, command=line)), "exit_code", command="") == 4


@each_row("made", [HEALTHY, SICK, hostile()], ids=["healthy", "sick", "hostile"])
def test_every_metric_has_help_and_type_and_no_sample_a_time_stamp(made: Report) -> None:
    for name, family in some(read(made).items()):
        assert family.documentation, name
        assert family.type == "gauge"
        assert all(sample.timestamp is None for sample in family.samples)


def test_no_label_names_a_host_and_their_number_is_bounded() -> None:
    many = tuple(verdict(Status.PASS, id=f"x.{n}") for n in range(5000))
    rows = tuple(replace(ROW, nbytes=n) for n in range(5000))
    for made in (fleet(300, 3), report(*many, measurements=rows)):
        text = prometheus.render(made)
        assert "gpu-00" not in text
        assert max(len(family.samples) for family in read(made).values()) <= prometheus.MOST_SERIES


def test_of_two_rows_that_are_one_series_the_slower_counts() -> None:
    found = read(report(measurements=(ROW, replace(ROW, busbw_GBps=7.0, dtype="int8"), ROW)))
    assert value(found, "busbw_bytes_per_second", op="all_reduce") == 7e9


def test_a_start_that_is_no_time_gives_no_time() -> None:
    assert not read(replace(HEALTHY, started="yesterday"))["ncclprobe_last_run_timestamp_seconds"].samples


@pytest.mark.slow
@given(reports)
def test_whatever_a_report_says_it_can_be_read_back(made: Report) -> None:
    assert read(made)["ncclprobe_exit_code"].samples[0].value == made.exit_code
