"""Any text in any place of a report: every format stays what it is, and is read by other programs' parsers."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report import markdown

from .html import made as pages
from .samples import SICK, riddled, rough

_PARTS = (pages.moved(), pages.pairs(2), pages.fleet(2))
_FOUND = {name: value for part in _PARTS for name in Report.__struct_fields__ if (value := getattr(part, name))}
FULL: Report = replace(SICK, **{name: value for name, value in _FOUND.items() if not getattr(SICK, name)})
"""A report with something in nearly every part."""
CONTROL = {chr(code) for code in (*range(9), *range(11, 32), 127)}


def whole(text: str) -> Report:
    found: Report = riddled(FULL, text)
    return found


def control_characters(text: str) -> set[str]:
    return {each for each in text if each in CONTROL or 0xD800 <= ord(each) <= 0xDFFF}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rough)
def test_any_text_in_any_place_leaves_junit_well_formed(text: str) -> None:
    from ncclprobe.report import junit

    made = junit.render(whole(text))
    root = ElementTree.fromstring(made.encode())
    assert root.tag == "testsuites"
    assert len(list(root.iter("testcase"))) == len(list(ElementTree.fromstring(junit.render(FULL)).iter("testcase")))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rough)
def test_any_text_in_any_place_leaves_json_that_is_read_back(text: str) -> None:
    made = as_json.render(whole(text))
    made.encode()
    assert json.loads(made)["exit_code"] == FULL.exit_code


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rough)
def test_any_text_in_any_place_leaves_metrics_that_prometheus_reads_once_each(text: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from ncclprobe.report import prometheus

    made = prometheus.render(whole(text))
    series = [
        (s.name, tuple(sorted(s.labels.items())))
        for f in parser.text_string_to_metric_families(made)
        for s in f.samples
    ]
    assert len(series) == len(set(series)) > 0


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(rough)
def test_any_text_in_any_place_leaves_a_page_with_the_same_elements(text: str) -> None:
    from ncclprobe.report import html

    made, plain = (html.render(each) for each in (riddled(FULL, text), FULL))
    assert not control_characters(made)
    assert {*tags(made)} <= {*tags(plain), "wbr"}  # a list of names may break after a comma


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rough)
def test_any_text_in_any_place_leaves_markdown_without_control_characters(text: str) -> None:
    assert not control_characters(markdown.render(whole(text)))


def tags(page: str) -> Iterator[str]:
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.append(tag)

    Tags().feed(page)
    yield from found
