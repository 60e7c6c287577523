"""What a report tells of each node: numbers that are its own, findings that are about it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report.samples import HEALTHY, SICK, report, verdict

from fleet.made import DOWN, day_of
from ncclprobe.fleet.extract import told
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status, fail
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.pair_results import PairRow, RailWay
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

REPORTS = Path(__file__).parents[2] / "reports"


def pair(src: str, dst: str, rate: float) -> PairRow:
    return PairRow(src=0, dst=1, src_end=src, dst_end=dst, nbytes=1 << 26, latency_nbytes=8, latency_us=2.0, GBps=rate,
                   time_us=1.0, min_us=1.0, max_us=1.0, samples_us=(1.0,))  # fmt: skip


def rates(made: Report) -> dict[tuple[str, str], float]:
    return {(each.node, number.called): reading.value for each in told(made, "r.json")
            for number, reading in each.numbers.items()}  # fmt: skip


def of(names: Sequence[str], **rows: Any) -> Report:
    """A healthy report on nodes of these names."""
    return report(*(verdict(Status.PASS, node=name) for name in names), status=Status.PASS, **rows)


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


def test_a_rail_between_nodes_is_the_median_over_partners_and_its_sick_partner_takes_nothing_from_it() -> None:
    names = ("n1", "n2", "n3", "n10")
    pairs = tuple(pair(f"{src} rail 0 (mlx5_0)", f"{dst} rail 0 (mlx5_0)", 20.0 if "n3" in (src, dst) else 48.0)
                  for src in names for dst in names if src != dst)  # fmt: skip
    found = rates(of(names, pairs=pairs))
    out = {node: rate for (node, called), rate in found.items() if called == "rail 0 (mlx5_0) pairs of 64 MiB out"}
    assert out == {"n1": 48.0, "n2": 48.0, "n3": 20.0, "n10": 48.0}
    assert len(found) == 8


def test_with_one_or_two_partners_it_is_another_number_that_says_which() -> None:
    names = ("n0", "n1", "n2")
    pairs = tuple(pair(f"{src} rail 0", f"{dst} rail 0", 48.0) for src in names for dst in names if src != dst)
    (first, *_) = told(of(names, pairs=pairs), "")
    assert {which.called: reading.partners for which, reading in first.numbers.items()} == {
        "rail 0 pairs of 64 MiB out with two more": ("n1", "n2"),
        "rail 0 pairs of 64 MiB in with two more": ("n1", "n2"),
    }


def test_rails_that_were_tried_count_and_dead_ones_do_not() -> None:
    names = ("n1", "n2", "n3", "n4", "n5")
    ways = tuple(RailWay(src=a, dst=b, src_rail=2, dst_rail=2, src_end=f"{a} rail 2 (mlx5_2:1)", dst_end=f"{b} rail 2",
                         state="dead" if b == "n5" else "ok", tests=1, GBps=48.0)
                 for a in names for b in names if a != b)  # fmt: skip
    found = rates(of(names, rails=ways))
    assert found["n1", "rail 2 (mlx5_2:1) rails out"] == 48.0
    assert ("n5", "rail 2 rails in") not in found


def test_a_finding_on_the_run_is_the_nodes_that_it_names_and_of_a_single_node_its_own() -> None:
    slow = fail("n1", "is slow", blame="node", nodes=("n1",))
    two = report(verdict(Status.FAIL, slow, node="n0", id="run.pairs"), verdict(Status.PASS, node="n1"))
    assert {each.node: len(each.faults) for each in told(two, "r")} == {"n0": 0, "n1": 1}
    one = report(verdict(Status.FAIL, fail("all_reduce", "is slow"), node="n0", id="run.bandwidth"))
    assert [len(each.faults) for each in told(one, "r")] == [1]


def test_a_users_setting_weighs_nothing_and_what_asks_for_a_retest_little() -> None:
    found = {"job": "", "image": "", "unknown": "unsure", "fabric": "unsure", "node": "bad", "link": "bad"}
    for blame, weight in found.items():
        (one,) = told(day_of("n1", 0, fail("X", "is wrong", blame=blame)), "r")
        assert [each.weight for each in one.faults] == [weight]
    (one,) = told(day_of("n1", 0, replace(DOWN, action="retest")), "r")
    assert [each.weight for each in one.faults] == ["unsure"]


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
