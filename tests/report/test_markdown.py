"""Markdown and annotations: failures first, passes folded, bounded, and nothing of a machine's is markup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import markdown
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, SICK, fleet, hostile, report, reports, texts, verdict

GFM = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_problems_come_first_and_passes_are_folded() -> None:
    text = markdown.render(SICK)
    order = [text.index(part) for part in ("## FAIL", "### Problems", "GPU3", "`eth0`", "### Rows", "<summary>Passed")]
    assert order == sorted(order)
    assert "Did not report: `n[3-4]`." in text
    assert "50 | 95 | 0 | fail |" in text
    assert "- n0 GPU0 h2d: 20 GB/s, at least 50 expected" in text
    assert "confirmed: n1 (node)" in text


def test_a_healthy_report_names_no_problem() -> None:
    text = markdown.render(HEALTHY)
    assert "### " not in text
    assert text.startswith("## PASS")
    assert markdown.annotations(HEALTHY) == []


@each_row("many", ["findings", "titles", "gaps", "notes", "wide"])
def test_no_report_makes_more_than_the_limit(many: str) -> None:
    ids = {
        "findings": fleet(5_000, 1, 1),
        "titles": report(*(verdict(Status.PASS, id=f"a.{n}" * 20) for n in range(20_000))),
        "gaps": report(*(verdict(Status.UNKNOWN, why=f"w{n}" * 200, required=True) for n in range(5_000))),
        "notes": replace(HEALTHY, notes=("\U0001f525" * 10_000,) * 1_000),
        "wide": hostile("\x00|" * 100_000),
    }
    text = markdown.render(ids[many])
    assert len(text.encode()) <= markdown.MOST_BYTES
    assert "the JSON report has them all" in text or many == "wide"


def elements(text: str) -> set[str]:
    """What markup there is, of any kind."""
    return {inner.type for token in GFM.parse(text) for inner in [token, *(token.children or [])]}


@given(texts | st.text(alphabet="`|*_[]()<>#-+1.:@~$\\ \na", max_size=40))
def test_a_text_of_a_machine_is_never_markup(said: str) -> None:
    plain = {"inline", "text", "paragraph_open", "paragraph_close", "text_special"}
    assert elements(markdown.text(said)) <= plain
    assert elements(f"x {markdown.code(said)} y") <= {*plain, "code_inline"}


def test_nobody_is_called_by_a_name() -> None:
    assert "@everyone" not in markdown.text("@everyone")
    assert "@everyone" not in markdown.text("a@everyone")


def test_html_in_a_report_stays_text() -> None:
    html = {t.content for token in GFM.parse(markdown.render(hostile())) for t in [token, *(token.children or [])]
            if t.type in ("html_inline", "html_block")}  # fmt: skip
    assert all("script" not in each for each in html)


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


@pytest.mark.slow
@given(reports)
def test_whatever_a_report_says_it_is_rendered(made: Report) -> None:
    assert markdown.render(made).startswith("## ")


@each_row("number", ["0.82", "3. of 4", "12) of 14", "1e-05"])
def test_a_number_at_the_beginning_is_shown_as_it_stands_and_makes_no_list(number: str) -> None:
    page = GFM.render(markdown.text(number))
    assert page.strip() == f"<p>{number}</p>"
    assert "\u200b" not in markdown.text(number)
