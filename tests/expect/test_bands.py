"""Expectations and verdicts: which file is refused, which rows a band speaks for, what fails, and what is noise."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.bands import from_report, from_toml, judge, judge_rows, judged, parse_tolerance
from ncclprobe.facts.run.samples import Expected, Rows
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Band, Disturbance, Expectation, Measurement, Retest, TimeStats
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.values import replace
from tests.each_row import each_row, known

GOOD: dict[str, Any] = {
    **{"op": '"all_reduce"', "nbytes": '"1M"', "busbw_GBps": "100.0", "threshold_GBps": "90"},
    **{"source": '"acceptance"', "why": '"20 nodes"'},
}


def toml(**changes: Any) -> str:
    """One entry: GOOD with `changes`, None leaving a key out."""
    entry = {key: value for key, value in (GOOD | changes).items() if value is not None}
    return "[[expect]]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items())


def test_an_entry_becomes_a_band_with_its_origin_and_a_tolerance_is_a_share_of_the_value() -> None:
    (band,) = from_toml(toml(), "bands.toml")
    assert (band.op, band.low_bytes, band.high_bytes) == ("all_reduce", 1 << 20, 1 << 20)
    assert band.expectation == Expectation(100.0, 90.0, "GB/s", "user", "20 nodes", "bands.toml: expect 1: acceptance")
    (told,) = from_toml(toml(threshold_GBps=None, tolerance="0.05"), "b")
    (usual,) = from_toml(toml(threshold_GBps=None), "b")
    assert [told.expectation.threshold, usual.expectation.threshold] == pytest.approx([95.0, 80.0])
    assert "tolerance of 20%" in usual.expectation.why


WRONG = (
    *("[[expect]\n", "", "[expect]\nop = 1\n", "threshold = 3\n", toml(busbw="1.0"), toml(busbw_GBps=None)),
    *(toml(busbw_GBps='"100"'), toml(threshold_GBps="inf"), toml(busbw_GBps="-1.0", threshold_GBps=None)),
    *(toml(threshold_GBps="101"), toml(tolerance="0.1"), toml(threshold_GBps=None, tolerance="20")),
    *(toml(op='"allreduce"'), toml(source=None), toml(nbytes=None), toml(min_bytes="1"), toml(nbytes='"1T"')),
    *(toml(nbytes="1.5"), toml(nbytes="0"), toml(nbytes=None, min_bytes="9", max_bytes="8")),
    *(toml() + toml(nbytes=None, min_bytes='"1K"'), toml(nbytes="9" * 400), ".".join("a" * 20_000) + " = 1\n"),
)
"""Files that are refused; their messages are in tests/data/command_values/refused.txt."""


@given(st.text())
def test_no_text_at_all_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        from_toml(text, "bands.toml")


@each_row("text", ["20", "1", "-0.1", "nan", "0.1%", ""])
def test_a_tolerance_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="at least 0 and less than 1"):
        parse_tolerance(text)


SIZES = (1023, 1024, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1)


@each_row(
    ("sizes", "words", "covered"),
    [
        ({}, "all_reduce 1 MiB", [1 << 20]),
        ({"nbytes": None, "min_bytes": '"1K"', "max_bytes": '"4K"'}, "all_reduce from 1 KiB to 4 KiB", [1024, 4096]),
        ({"nbytes": None, "min_bytes": '"1K"'}, "all_reduce from 1 KiB", [*SIZES[1:]]),
        ({"nbytes": None, "max_bytes": '"4K"'}, "all_reduce from 1 B to 4 KiB", [1023, 1024, 4096]),
        ({"nbytes": None, "min_bytes": '"4K"', "max_bytes": '"4K"'}, "all_reduce 4 KiB", [4096]),
    ],
)
def test_a_band_speaks_for_both_of_its_ends_and_no_more(sizes: dict[str, Any], words: str, covered: list[int]) -> None:
    (band,) = from_toml(toml(**sizes), "b")
    assert first_of([band], 3) == words
    assert [n for n in SIZES if band.covers(replace(ROW, nbytes=n))] == covered


def test_neighbours_in_any_order_are_taken_and_two_numbers_for_one_size_of_one_operation_refused() -> None:
    def found(*ends: tuple[int, int]) -> int:
        parts = [toml(nbytes=None, min_bytes=low, max_bytes=high) for low, high in ends]
        return len(from_toml("".join([*parts, toml(op='"broadcast"', nbytes="9")]), "b"))

    assert found((9, 10), (1, 8)) == 3
    with pytest.raises(UsageError, match="expect 2 and expect 1 overlap for all_reduce; keep one per size"):
        found((9, 10), (1, 9))


def report(*rows: Measurement) -> Report:
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-01-02", duration_s=1.0, command="", status=Status.PASS, exit_code=0,
        measurements=rows,
    )  # fmt: skip


def test_an_earlier_report_is_a_baseline_for_rows_measured_alike_less_the_tolerance() -> None:
    (band,) = from_report(report(ROW), "old.json", 0.1)
    assert (band.expectation.basis, "2026-01-02" in band.expectation.why) == ("baseline", True)
    assert band.expectation.threshold == pytest.approx(0.9 * ROW.busbw_GBps)
    assert band.covers(ROW)
    others = ({"ranks": 16}, {"dtype": "int8"}, {"place": "out"}, {"backend": "gloo"}, {"mode": "blocking"})
    assert not any(band.covers(replace(ROW, **other)) for other in (*others, {"nodes": 2}, {"redop": "max"}))
    for spoilt in ({"wrong": 1}, {"status": "inconclusive"}, {"status": "fail"}, {"busbw_GBps": 0.0}):
        assert len(from_report(report(ROW, replace(ROW, nbytes=8, **spoilt)), "old.json")) == 1, spoilt
    with pytest.raises(UsageError, match=r"old\.json: contains no measurement"):
        from_report(report(), "old.json")
    bands = from_report(report(*(replace(ROW, nbytes=1 << n) for n in range(20, 24))), "old.json")
    assert str(bands[0]) == "all_reduce 1 MiB (float32, in place, 8 ranks, nccl)"
    assert first_of(bands, 3).endswith("4 MiB (float32, in place, 8 ranks, nccl) and 1 more")


BAND = Expectation(100.0, 80.0, "GB/s", "baseline", "5 runs", "site.json")
ALL = (Band(ROW.op, 1, 1 << 40, BAND),)
SHOWN = replace(BAND, basis="model", threshold=0.0, worst="unjudged", known="not judged: known from 2 sources")
GROSS = replace(BAND, threshold=0.0, worst="unjudged", known="1 source", gross=33.3)


def row(busbw: float, half: float | None = 0.01) -> Measurement:
    interval = None if half is None else (20 * (1 - half), 20 * (1 + half))
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), interval_us=interval)


def second(busbw: float, half: float = 0.01) -> Retest:
    return Retest(busbw, 20.0, (20 * (1 - half), 20 * (1 + half)), 5)


def test_a_row_is_judged_by_what_is_expected_and_its_interval() -> None:
    found = {(90.1, 0.0): "pass", (80, 0.0): "warn", (79.99, 0.0): "fail", (80, 0.1): "inconclusive"}
    assert {each: judge(row(*each), BAND).status for each in found} == found


def test_the_number_that_is_shown_is_the_number_that_is_judged_whatever_the_mean() -> None:
    times = TimeStats(mean=2000.0, median=20.0, min=19.9, p95=2000.0, max=8000.0, stdev=1.0)
    shown = replace(ROW, time_us=times, interval_us=(20.0, 20.0))
    assert [judge(replace(shown, busbw_GBps=rate), BAND).status for rate in (81.0, 79.0)] == ["warn", "fail"]


@each_row(
    ("band", "first", "again", "status", "why"),
    [
        (BAND, 60, second(61), "fail", ""),
        (BAND, 60, second(99), "inconclusive", "intermittent: 60 GB/s at first and 99 when retested"),
        (BAND, 60, second(80, 0.2), "inconclusive", ""), (BAND, 60, Retest(60, 20.0, None, 1), "inconclusive", ""),
        (GROSS, 20, second(21), "fail", ""), (GROSS, 20, second(90), "inconclusive", "of at least 33.3"),
    ],
)  # fmt: skip
def test_only_what_fails_twice_fails(band: Expectation, first: float, again: Retest, status: str, why: str) -> None:
    said = judge(row(first), band, retest=again)
    assert (said.status, why in said.why) == (status, True)


@each_row("basis", ["model", "published", "datasheet", "user", "baseline"])
def test_a_launch_bound_row_fails_only_by_what_was_measured_in_the_same_way(basis: Any) -> None:
    slow = replace(row(60), launch_bound=True, issue_us=18.0)
    said = judge(slow, replace(BAND, basis=basis), retest=second(60))
    alike = basis in ("user", "baseline")
    assert (said.status, "launch-bound" in said.why) == (("fail", False) if alike else ("inconclusive", True))
    assert judge(replace(slow, busbw_GBps=100.0), replace(BAND, basis=basis)).status == "pass"


def test_a_disturbance_explains_what_it_can_and_no_more() -> None:
    busy = Disturbance("30% of the processors of n0 were busy with other work", 0.4)
    assert "30% of the processors" in judge(row(60), BAND, retest=second(60), disturbances=(busy,)).why
    assert judge(row(20), BAND, disturbances=(busy,)).status == "fail"
    assert judge(row(100), BAND, disturbances=(busy,)).status == "pass"
    assert (replace(BAND, gross=33.3).mark(20.0), replace(BAND, gross=33.3, worst="warn").mark(20.0)) == (80.0, 33.3)
    blocking = Disturbance("CUDA_LAUNCH_BLOCKING=1", 1.0, falsifies=True)
    said = [judge(row(99), each, disturbances=(busy, blocking)) for each in (BAND, SHOWN)]
    assert [each.status for each in said] == ["inconclusive", "unjudged"]
    assert said[0].why == "measured with a setting that distorts it: CUDA_LAUNCH_BLOCKING=1"


def test_a_row_is_judged_again_by_the_expectation_that_it_has_and_stays_if_nothing_judges_it() -> None:
    first = judged(row(60), ALL)
    again = judged(first, (), retest=second(99))
    assert (first.status, again.status, again.retest) == ("fail", "inconclusive", second(99))
    assert again.inconclusive_why
    shown = judged(row(1), (replace(ALL[0], expectation=SHOWN),))
    assert (shown.status, shown.expectation, shown.inconclusive_why) == ("unjudged", SHOWN, "")
    other = replace(ROW, op="broadcast")
    assert judged(other, ALL) is other


EXPECTED = Expected(ALL)
SLOW, FAST = row(60), row(100)
BUSY = Disturbance("GPU3 of n0 has lowered its clocks", 0.5)


@each_row(
    ("measured", "retests", "disturbances", "statuses"),
    [
        ((SLOW,), (), (), ["fail"]), ((SLOW,), (SLOW,), (), ["fail"]), ((SLOW,), (FAST,), (), ["inconclusive"]),
        ((SLOW,), (SLOW, FAST), (), ["inconclusive"]),
        ((SLOW,), (FAST, SLOW), (), ["inconclusive"]),  # it did not fail twice
        ((FAST,), (SLOW,), (), ["pass"]), ((SLOW,), (SLOW,), (BUSY,), ["inconclusive"]),
        ((SLOW,), (), (replace(BUSY, left=0.9),), ["fail"]), ((FAST,), (), (BUSY,), ["pass"]),
        ((SLOW, replace(SLOW, op="broadcast"), FAST), (), (BUSY,), ["inconclusive", "unjudged", "pass"]),
    ],
)  # fmt: skip
def test_rows_are_judged_in_their_order_with_their_retests_and_disturbances_and_twice_alike(
    measured: tuple[Measurement, ...], retests: tuple[Measurement, ...], disturbances: Any, statuses: list[str]
) -> None:
    rows = Rows(measured, retests, disturbances)
    first = judge_rows(rows, EXPECTED)
    assert [row.status for row in first] == statuses
    assert [row.status for row in judge_rows(replace(rows, measured=first), EXPECTED)] == statuses


def test_a_retest_speaks_for_its_own_row_is_shown_and_a_row_without_one_where_others_had_theirs_is_no_failure() -> None:
    for other in (replace(FAST, nbytes=8), replace(FAST, place="out"), replace(FAST, op="all_gather")):
        (found,) = judge_rows(Rows((SLOW,), (other,)), EXPECTED)
        assert (found.status, found.inconclusive_why) == ("inconclusive", "too slow once, and not retested")
    (found,) = judge_rows(Rows((SLOW,), (SLOW,)), EXPECTED)
    assert known(found.retest).busbw_GBps == 60.0
    assert judge_rows(Rows((FAST,), (SLOW,)), EXPECTED)[0].retest is None
    assert judge_rows(Rows((SLOW,)), Expected()) == (SLOW,)
