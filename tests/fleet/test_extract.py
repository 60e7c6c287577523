"""What a report tells of each node: numbers that are its own, findings that are about it."""

from pathlib import Path
from typing import Any

import pytest
from report.samples import HEALTHY, SICK

from fleet.made import day_of
from ncclprobe.fleet.extract import told
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import fail
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

REPORTS = Path(__file__).parents[2] / "reports"


def rates(made: Report) -> dict[tuple[str, str], float]:
    return {(each.node, number.called): reading.value for each in told(made, "r.json")
            for number, reading in each.numbers.items()}  # fmt: skip


def test_only_the_largest_size_of_an_operation_counts_and_no_doubtful_one() -> None:
    row = day_of("n1", 0).measurements[0]
    small = replace(row, nbytes=1 << 20, busbw_GBps=90.0)
    rows: list[tuple[list[Measurement], list[float]]] = [
        ([small, row], [391.0]),
        ([small, replace(row, status="inconclusive")], [90.0]),
        ([replace(row, wrong=3)], []),
        ([replace(row, nodes=2, ranks=16)], []),
        ([replace(row, busbw_GBps=0.0)], []),
    ]
    found = [list(rates(day_of("n1", 0, measurements=tuple(each))).values()) for each, _ in rows]
    assert found == [wanted for _, wanted in rows]
    ((number, _),) = told(day_of("n1", 0), "r.json")[0].numbers.items()
    assert "550.54.15" not in number.how  # a driver may be the cause of a change, and begins no new series


@each_row("path", sorted(REPORTS.glob("*.json")), ids=lambda path: path.name)
def test_every_report_of_ours_tells_something_or_is_refused_in_words(path: Path) -> None:
    made = as_json.read(str(path))
    if made.files:
        with pytest.raises(UsageError, match="a report of `explain`"):
            told(made, path.name)
        return
    for each in told(made, path.name):
        assert each.looked
        assert all(reading.value > 0 for reading in each.numbers.values())


def test_what_has_no_node_or_no_time_or_explains_a_job_is_refused() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"nodes": ()}, "names no node"),
        ({"started": "yesterday"}, "is not a time"),
        ({"files": ("a.log",)}, "a report of `explain`"),
        ({"nodes": HEALTHY.nodes * 2}, "twice"),
    ]
    for change, why in changes:
        with pytest.raises(UsageError, match=why):
            told(replace(HEALTHY, **change), "r.json")


def test_no_text_of_a_report_forges_a_row_or_is_kept_whole() -> None:
    (copy, *_) = SICK.copies
    found = fail("mlx5_0\nn9  failing", "bad \x1b[2J" + "x" * 999, blame="node")
    copy = replace(copy, node="n1", device="GPU3\nn9  failing" * 99)
    made = day_of("n1", 0, found, driver="550\n560", copies=(copy,))
    (one,) = told(made, "r.json")
    texts = [*one.machine.values(), one.faults[0].subject, one.faults[0].message]
    texts += [text for number in one.numbers for text in (number.part, number.name, number.how)]
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)
    assert "GPU3\\nn9  failing" in "".join(texts)
