"""The page as text: what stands in it and is drawn, what cannot, and how much of a fleet it bears."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given

from ncclprobe import DOCS, api
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report.html import matrix, render, tables
from ncclprobe.report.html.legible import sentence, typed
from ncclprobe.report.html.page import HERE
from tests.each_row import each_row

from .. import samples
from . import made


class Page(HTMLParser):
    """Elements, attributes and text of a page, its scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[tuple[bool, str]] = []
        self.words = ""
        self._in: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("script", "style"):
            self._in = tag
            self.scripts.append((("type", "application/json") in attrs, "")) if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._in = None if tag == self._in else self._in

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            data_only, text = self.scripts[-1]
            self.scripts[-1] = data_only, text + data
        elif self._in is None:
            self.words += data

    def data(self) -> list[Any]:
        return [json.loads(text) for data_only, text in self.scripts if data_only]


FLEET = made.fleet(40, (made.MARKUP,))


@each_row(
    "report",
    [made.EMPTY, FLEET, made.sweep(), made.moved(), samples.hostile(), samples.hostile(made.MARKUP), samples.SICK],
    ids=["empty", "fleet", "sweep", "pairs", "hostile", "markup", "sick"],
)
def test_nothing_that_a_machine_said_becomes_an_element_or_a_script(report: Report) -> None:
    page = Page(render(report))
    assert not {"img", "iframe", "object", "link", "base", "b onerror"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    links = [value for name, value in page.attributes if name in ("href", "src") and value and value[0] != "#"]
    assert not [link for link in links if not re.fullmatch(rf"{re.escape(DOCS)}/checks/[a-z]+/#[a-z0-9.-]+", link)]
    own = (HERE / "page.js").read_text()
    assert [data_only for data_only, _ in page.scripts] == [True, False]
    assert page.scripts[-1][1] == own
    assert len(page.data()) == 1


@given(samples.reports)
def test_any_report_makes_a_page_of_legible_text(report: Report) -> None:
    text = render(report)
    text.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029\u202e]", text)
    assert len(Page(text).scripts) == 2


def test_the_policy_of_the_page_lets_its_own_scripts_run_and_nothing_be_fetched() -> None:
    page = Page(render(made.sweep()))
    policy = next(value for name, value in page.attributes if name == "content" and value and "script-src" in value)
    for data_only, script in page.scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert data_only or f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


@each_row("busbw_GBps", [5e-324, 1e308])
def test_an_axis_holds_any_number_that_a_float_can_be(busbw_GBps: float) -> None:
    row = replace(samples.ROW, busbw_GBps=busbw_GBps, expectation=None)
    assert Page(render(replace(samples.HEALTHY, measurements=(row, replace(row, nbytes=2 * row.nbytes))))).data()


def test_a_large_fleet_with_many_different_faults_and_a_text_without_end_are_cut() -> None:
    report = samples.fleet(6000, 3, 4)
    text = render(report)
    page = Page(text)
    table = next(each for each in page.data() if "more" in each)
    assert len(table["on"]) + len(table["more"]) == len(tables.rows(report)) == 1503
    assert "400 of 1,503 rows stand here" in page.words
    assert "further nodes not drawn" in page.words
    assert len(text) < 7 << 20
    endless = Verdict("a.b", "n0", Status.UNKNOWN, "t", "x" * (5 << 20), True)
    assert len(render(samples.report(endless, status=Status.UNKNOWN))) < 100_000
    assert max(len(render(each).encode()) for each in (made.pairs(64), made.whole(), FLEET)) < 300_000


@each_row(
    ("text", "shown"),
    [
        ("type `a <b>`, then `c`.", "type <code>a &lt;b&gt;</code>, then <code>c</code>."),
        ("version `GLIBC_2.38' is missing & <so on>", "version `GLIBC_2.38&#39; is missing &amp; &lt;so on&gt;"),
    ],
)
def test_what_is_to_be_typed_is_code_everything_is_escaped_and_a_sentence_begins_with_a_capital(
    text: str, shown: str
) -> None:
    assert typed(text) == shown
    assert str(sentence(text)) == shown[0].upper() + shown[1:]
    assert [str(sentence(each)) for each in ("mlx5_0:1 is DOWN", "")] == ["mlx5_0:1 is DOWN", ""]


def test_no_head_of_a_row_or_column_is_empty() -> None:
    """axe-core names these (empty-table-header); on the pages of five commands it names nothing else."""
    path = Path(__file__).parents[2] / "captures" / "hgx-h100.jsonl"
    text = render(api.doctor(path))
    assert text.count("<th ") > 10
    assert re.findall(r"<th[^>]*>\s*</th>", text) == []


def test_a_map_of_many_ends_keeps_the_blamed_and_says_what_it_leaves_out() -> None:
    report = made.pairs(70)
    shown = matrix.maps(report.pairs, report.localisation)[0]
    assert shown.ends == matrix.MOST_ENDS
    assert ">n3<" in str(shown.picture)
    assert shown.note.startswith("6 of 70 are left out")
