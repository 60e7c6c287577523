"""A measured row is the same row in every format: what is shown, and what it was judged to be worth.

The report has a row of each verdict. Each format is read as its readers do: by column, by name of a test, by label.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from typing import NamedTuple

import pytest

from ncclprobe.commands import bandwidth as command_line
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.units import size
from ncclprobe.report import html, junit, markdown, prometheus, rows
from ncclprobe.report import json as as_json
from ncclprobe.report import text as as_text
from ncclprobe.session.measure.recorder import Publisher
from tests.each_row import each_row, some

from .samples import SICK


class Shown(NamedTuple):
    """A row as it stands in a format; `least`: what it should have reached, where that is said. Empty: not said."""

    op: str
    nbytes: str
    place: str
    busbw: str
    verdict: str
    least: str = ""


def _lines(text: str) -> Iterator[Shown]:
    """Rows of a terminal, behind their header; what is wrapped below a verdict belongs to the row above."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 6 and words[2] in ("B", "KiB", "MiB", "GiB"):
            op, number, unit, place, *cells = words
            busbw, _, *verdict = cells[3:] if cells[5][0].isalpha() else cells[5:]
            least = verdict[verdict.index("not") + 1].strip(",") if "not" in verdict else ""
            yield Shown(op, f"{number} {unit}", place, busbw, verdict[0].strip(","), least)


def _live(report: Report) -> str:
    """What a run prints while it measures."""
    said: list[str] = []
    publisher = Publisher(command_line.parse(["--no-color"]))
    publisher._print = lambda text: said.append(f"{text}\n")  # type: ignore[method-assign]
    for row in report.measurements:
        publisher.row(row)
    return "".join(said)


def _parse_json(report: Report) -> Iterator[Shown]:
    for row in json.loads(as_json.render(report))["measurements"]:
        judged = row["expectation"] and row["status"] != "unjudged"
        least = f"{row['expectation']['threshold']:.6g}" if judged else ""
        yield Shown(row["op"], size(row["nbytes"]), row["place"], str(row["busbw_GBps"]), row["status"], least)


class _Tables(HTMLParser):
    """Collects the cells of every row of every table, with an empty row before each table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in ("table", "tr"):
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def _of_html(report: Report) -> Iterator[Shown]:
    parser = _Tables()
    parser.feed(html.render(report))
    yield from _by_column(parser.rows, ("Operation", "Size", "Place", "busbw, GB/s", "Verdict", "Threshold"))


def _of_markdown(report: Report) -> Iterator[Shown]:
    below = markdown.render(report).partition("<summary>Measurements")[2].partition("</details>")[0]
    cells = [[cell.strip().replace("\\", "") for cell in line.split("|")] for line in below.splitlines()]
    yield from _by_column(cells, ("op", "size", "place", "busbw (GB/s)", "verdict", "threshold"))


def _by_column(table: Sequence[Sequence[str]], names: Sequence[str]) -> Iterator[Shown]:
    rows = [[cell.strip() for cell in row] for row in table]
    heads = next(row for row in rows if {*names} <= {*row})
    columns = [heads.index(name) for name in names]
    for row in rows[rows.index(heads) + 1 :]:
        if len(row) != len(heads):
            return
        op, nbytes, place, busbw, verdict, least = (row[column] for column in columns)
        if op != "---":
            yield Shown(op, nbytes, place, busbw, verdict.split()[0], least.strip("–"))


def _of_junit(report: Report) -> Iterator[Shown]:
    words = {"failure": "fail", "error": "inconclusive", "skipped": "unjudged"}
    for case in ElementTree.fromstring(junit.render(report)).iter("testcase"):
        if case.get("classname", "").startswith("ncclprobe.bandwidth."):
            op, number, unit, place, _ = case.get("name", "").replace(",", "").split()
            said = dict(line.split("=") for line in (case.findtext("system-out") or "").split())
            verdict = next((words[child.tag] for child in case if child.tag in words), "pass or warn")
            yield Shown(op, f"{number} {unit}", place, said["busbw_GBps"], verdict, said.get("least_GBps", ""))


def _of_prometheus(report: Report) -> Iterator[Shown]:
    """It has numbers of rows, and verdicts only counted."""
    from prometheus_client.parser import text_string_to_metric_families

    least: dict[tuple[str, ...], float] = {}
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(prometheus.render(report)):
        into = {"ncclprobe_busbw_bytes_per_second": found, "ncclprobe_least_busbw_bytes_per_second": least}
        for sample in family.samples:
            if sample.name in into:
                into[sample.name][tuple(sample.labels[n] for n in ("op", "nbytes", "place"))] = sample.value / 1e9
    for (op, nbytes, place), busbw in found.items():
        threshold = least.get((op, nbytes, place))
        yield Shown(op, size(int(nbytes)), place, f"{busbw:.6g}", "", "" if threshold is None else f"{threshold:.6g}")


FORMATS: dict[str, Callable[[Report], Iterator[Shown]]] = {
    "live table": lambda report: _lines(_live(report)),
    "final table, 80 columns": lambda report: _lines(as_text.render(report, width=80)),
    "final table, 160 columns": lambda report: _lines(as_text.render(report, width=160)),
    "json": _parse_json,
    "html": _of_html,
    "markdown": _of_markdown,
    "junit": _of_junit,
    "prometheus": _of_prometheus,
}


def _same_number(shown: str, meant: float) -> bool:
    """Return whether `shown` is `meant` to the three digits that every format has."""
    return float(shown.replace(",", "")) == pytest.approx(meant, rel=2e-3)


@each_row("name", FORMATS)
def test_a_row_is_the_same_in_every_format(name: str) -> None:
    found = {(each.op, each.nbytes, each.place): each for each in FORMATS[name](SICK)}
    assert len(found) == len(SICK.measurements) > 3, "a row is missing, or there are two of one name"
    for row in SICK.measurements:
        _compare(found[row.op, size(row.nbytes), row.place], row)


def _compare(shown: Shown, row: Measurement) -> None:
    assert _same_number(shown.busbw, row.busbw_GBps), f"{shown} is not {row.busbw_GBps}"
    assert shown.verdict in ("", row.status, "pass or warn" if row.status in ("pass", "warn") else row.status)
    if shown.least:
        assert row.expectation
        assert _same_number(shown.least, row.expectation.threshold)
        assert row.status != "unjudged", "what nothing is judged by is no threshold"


def test_the_number_beside_a_failure_is_below_the_one_that_it_is_held_against() -> None:
    for row in some(SICK.measurements):
        (shown,) = _lines(rows.row(row, 160))
        assert not shown.least or float(shown.busbw) < float(shown.least)
