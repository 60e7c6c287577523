"""Several reports as a series: what is kept of each, since when something fails, and how it is told."""

from pathlib import Path

import pytest

from ncclprobe.commands import main
from ncclprobe.commands import report as command
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Finding, Status, Verdict, fail
from ncclprobe.model.report import NodeRow, Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report import trends
from ncclprobe.report.trends import Since
from tests.each_row import each_row

from . import samples
from .html import made

DOWN = fail("mlx5_3:1", "is DOWN", blame="link", action="repair")


def day(number: int, *findings: Finding, nodes: tuple[str, ...] = ("n0", "n1"), check: str = "ib.state") -> Report:
    """A report of that day of November, on `nodes`, of which n1 has `findings`."""
    status = Status.FAIL if findings else Status.PASS
    verdicts = [
        Verdict(check, name, status if name == "n1" else Status.PASS, "t", findings=findings if name == "n1" else ())
        for name in nodes
    ]
    rows = tuple(
        NodeRow(name, n, name, verdict.status) for n, (name, verdict) in enumerate(zip(nodes, verdicts, strict=True))
    )
    return samples.report(*verdicts, status=status, started=f"2026-11-{number:02}T10:00:00+00:00", nodes=rows)


def history(*reports: Report) -> list[trends.Past]:
    return [trends.past(each, f"{n}.json") for n, each in enumerate(reports)]


def told(*reports: Report) -> dict[tuple[str, str], str]:
    return {fault: str(when) for fault, when in trends.since(history(*reports)).items()}


def test_a_fault_counts_from_the_first_report_of_an_unbroken_row() -> None:
    found = told(day(1, DOWN), day(2), day(3, DOWN), day(4, DOWN))
    assert found == {("ib.state", "n1"): "since 2026-11-03 10:00 UTC; not on 2026-11-02 10:00 UTC"}


def test_what_the_first_report_has_already_may_be_older() -> None:
    assert told(day(1, DOWN), day(2, DOWN)) == {("ib.state", "n1"): "at least since 2026-11-01 10:00 UTC"}


def test_a_report_that_lacks_the_node_or_the_check_neither_shows_nor_ends_a_fault() -> None:
    without_node, without_check = day(2, nodes=("n0",)), day(3, check="pci.width")
    found = trends.since(history(day(1, DOWN), without_node, without_check, day(4, DOWN)))
    assert found == {("ib.state", "n1"): Since("2026-11-01 10:00 UTC", True)}


@each_row("status", [Status.SKIP, Status.UNKNOWN, None])
def test_a_report_in_which_the_check_did_not_look_is_no_good_report(status: Status | None) -> None:
    early = day(1)
    checks = tuple(replace(each, status=status) for each in early.checks) if status else ()
    blind = replace(early, checks=checks)
    found = told(blind, day(2, DOWN), day(3, DOWN))
    assert found == {("ib.state", "n1"): "first looked for at 2026-11-02 10:00 UTC; earlier reports did not look"}
    found = told(day(1), replace(blind, started="2026-11-02T10:00:00+00:00"), day(3, DOWN))
    assert found == {("ib.state", "n1"): "since 2026-11-03 10:00 UTC; not on 2026-11-01 10:00 UTC"}


def test_a_comparison_that_passed_looked_at_every_node() -> None:
    slow = fail("n1", "is slow", nodes=("n1",))
    fine = samples.report(
        Verdict("run.pairs", None, Status.PASS, "t"), started="2026-11-01T10:00:00Z", nodes=day(1).nodes
    )
    bad = samples.report(Verdict("run.pairs", None, Status.FAIL, "t", findings=(slow,)), started="2026-11-02T10:00:00Z",
                         status=Status.FAIL, nodes=day(1).nodes)  # fmt: skip
    assert told(fine, bad) == {("run.pairs", "n1"): "since 2026-11-02 10:00 UTC; not on 2026-11-01 10:00 UTC"}


def test_a_report_in_which_no_number_was_judged_is_no_pass_in_a_series() -> None:
    row = replace(samples.ROW, status="unjudged", expectation=None)
    (line, *_) = trends.lines(history(replace(day(1), measurements=(row,)), day(2)), 200)
    assert "NOT JUDGED" in line
    assert "PASS" not in line
    assert history(replace(day(1), measurements=(row,)))[0].states == {"n0": "skip", "n1": "skip"}


def test_a_report_given_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{place}.json") for place in range(3)]
    for path, report in zip(paths, (day(2), day(1), day(2)), strict=True):
        as_json.write(report, path)
    assert main(["report", *paths]) == 0
    said = capsys.readouterr()
    assert [line[:10] for line in said.out.splitlines()] == ["2026-11-01", "2026-11-02"]
    assert said.err == "ncclprobe: 2.json is the same report as 0.json: it counts once\n"


@each_row(
    ("times", "names"),
    [
        (("01T10:00:00", "02T10:00:00"), ["11-01", "11-02"]),
        (("01T10:00:00", "01T11:00:00"), ["11-01 10:00", "11-01 11:00"]),
        (("01T10:00:00", "01T10:00:07"), ["11-01 10:00:00", "11-01 10:00:07"]),
        (("01T10:00:00", "01T10:00:00", "02T10:00:00"), ["0.json", "1.json", "11-02 10:00"]),
    ],
)
def test_no_two_reports_have_the_same_head(times: tuple[str, ...], names: list[str]) -> None:
    made_at = [replace(day(1), started=f"2026-11-{time}+00:00") for time in times]
    assert trends.names(history(*made_at)) == names


def test_what_no_longer_fails_is_not_told_of_and_one_report_has_no_since() -> None:
    assert told(day(1, DOWN), day(2)) == {}
    assert told(day(1, DOWN)) == {}


def test_a_series_holds_rows_measured_alike_one_size_of_each_class() -> None:
    found = trends.series(made.history())
    assert [(each.op, each.kind, each.nbytes) for each in found] == [
        ("all_reduce", "large", 1 << 32),
        ("all_reduce", "medium", 1 << 24),
        ("all_reduce", "small", 1 << 10),
    ]
    assert all(len(each.points) == 6 for each in found)
    other = [replace(each, rows=tuple(replace(row, ranks=16) for row in each.rows)) for each in made.history()[:5]]
    assert {len(each.points) for each in trends.series([*other, made.history()[-1]])} == {1}


def test_what_numbers_depend_on_is_told_where_it_changed() -> None:
    assert trends.changed(made.history()) == [("2026-09-22 07:00 UTC", "driver: 550.1 -> 570.1")]


def test_reports_are_put_in_the_order_of_their_time_and_the_newest_is_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, each in enumerate(reversed(made.weeks())):
        as_json.write(each, str(tmp_path / f"{number}.json"))
    page = tmp_path / "page.html"
    code = command.main([*(str(tmp_path / f"{number}.json") for number in range(6)), "--html", str(page)])
    lines = capsys.readouterr().out.splitlines()
    assert code == 4
    assert [line[:10] for line in lines[:6]] == [each.when[:10] for each in made.history()]
    assert lines[6].startswith("all_reduce 4 GiB, GB/s: 4")
    assert lines[-1] == "run.bandwidth: since 2026-09-22 07:00 UTC; not on 2026-09-15 07:00 UTC"
    text = page.read_text()
    for said in (
        "Over time",
        "10.0\u00a0% worse than the median before",
        "driver: 550.1 -&gt; 570.1",
        "Since 2026-09-22",
    ):
        assert said in text
    assert text.count('class="chart small"') == 3


def test_a_page_of_one_report_has_no_trends() -> None:
    from ncclprobe.report.html import render

    assert "Over time" not in render(made.sweep())


@each_row(
    ("change", "why"),
    [({"started": "yesterday"}, "is no time"), ({"files": ("1 log",)}, "explains a job that failed")],
)
def test_what_has_no_place_in_a_series_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        trends.past(replace(samples.HEALTHY, **change), "a.json")


def test_formats_of_one_report_refuse_a_series(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for each in files:
        as_json.write(samples.HEALTHY, each)
    with pytest.raises(UsageError, match="--markdown takes one report"):
        command.main([*files, "--markdown", str(tmp_path / "c.md")])


def test_a_redacted_series_holds_no_name_of_a_node_or_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for number in (1, 2):
        files.append(str(tmp_path / f"secretcluster-{number}.json"))
        named = replace(day(number, DOWN), nodes=(NodeRow("secretnode", 0, "secretnode", Status.FAIL),))
        as_json.write(replace(named, checks=tuple(replace(v, node="secretnode") for v in named.checks)), files[-1])
    page = tmp_path / "page.html"
    command.main([*files, "--redact-key", "a long word", "--html", str(page)])
    assert "secretnode" not in page.read_text() + capsys.readouterr().out
