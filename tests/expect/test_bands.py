"""Expectations: what is refused and why, which rows a band speaks for, and what an earlier report is worth."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.bands import from_report, from_toml, judge_rows, judged, parse_tolerance
from ncclprobe.facts.run.samples import Expected, Rows
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Band, Disturbance, Expectation, TimeStats
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.values import replace
from tests.each_row import each_row

GOOD: dict[str, Any] = {
    "op": '"all_reduce"',
    "nbytes": '"1M"',
    "busbw_GBps": "100.0",
    "threshold_GBps": "90",
    "source": '"acceptance"',
    "why": '"20 nodes"',
}


def toml(**changes: Any) -> str:
    """One entry: GOOD with `changes`, None leaving a key out."""
    entry = {key: value for key, value in (GOOD | changes).items() if value is not None}
    return "[[expect]]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items())


def test_an_entry_becomes_a_band_with_its_origin() -> None:
    (band,) = from_toml(toml(), "bands.toml")
    assert (band.op, band.low_bytes, band.high_bytes) == ("all_reduce", 1 << 20, 1 << 20)
    assert band.expectation == Expectation(100.0, 90.0, "GB/s", "user", "20 nodes", "bands.toml: expect 1: acceptance")


def test_a_tolerance_is_a_share_of_the_value() -> None:
    (band,) = from_toml(toml(threshold_GBps=None, tolerance="0.05"), "b")
    assert band.expectation.threshold == pytest.approx(95.0)


def test_the_default_tolerance_is_said() -> None:
    (band,) = from_toml(toml(threshold_GBps=None), "b")
    assert band.expectation.threshold == pytest.approx(80.0)
    assert "tolerance of 20%" in band.expectation.why


@each_row(
    ("text", "words"),
    [
        ("[[expect]\n", "not TOML"),
        ("", "no [[expect]] table"),
        ("[expect]\nop = 1\n", "no [[expect]] table"),
        ("threshold = 3\n", "unknown key 'threshold'"),
        (toml(busbw="1.0"), "write busbw_GBps: a number needs its unit"),
        (toml(colour='"red"'), "unknown key 'colour'"),
        (toml(busbw_GBps=None), "busbw_GBps is missing"),
        (toml(busbw_GBps='"100"'), "busbw_GBps: expected a number, got a text"),
        (toml(busbw_GBps="true"), "busbw_GBps: expected a number, got true or false"),
        (toml(busbw_GBps="nan"), "busbw_GBps: expected a number > 0.0"),
        (toml(threshold_GBps="inf"), "threshold_GBps: expected a number <"),
        (toml(busbw_GBps="-1.0", threshold_GBps=None), "expected a number > 0.0"),
        (toml(threshold_GBps="101"), "at most busbw_GBps"),
        (toml(tolerance="0.1"), "not both"),
        (toml(threshold_GBps=None, tolerance="20"), "tolerance: expected a number < 1.0"),
        (toml(op='"allreduce"'), "'allreduce' is not a known operation; did you mean all_reduce?"),
        (toml(op="3"), "op: expected a text, got a whole number"),
        (toml(source=None), "source is missing"),
        (toml(why='" "'), "why: expected a text that is not empty"),
        (toml(nbytes=None), "give nbytes"),
        (toml(min_bytes="1"), "give nbytes, or min_bytes"),
        (toml(nbytes='"1T"'), "nbytes: size '1T'"),
        (toml(nbytes="1.5"), "whole number"),
        (toml(nbytes="0"), "above zero"),
        (toml(nbytes=None, min_bytes="9", max_bytes="8"), "is above max_bytes"),
        (toml() + toml(nbytes=None, min_bytes='"1K"'), "overlap for all_reduce"),
        (toml(busbw_GBps="9" * 401), "busbw_GBps: number out of range"),
        (toml(busbw_GBps="9" * 401 + ".0"), "busbw_GBps: expected a number <"),
        (toml(threshold_GBps=None, tolerance="9" * 401), "tolerance: number out of range"),
        (toml(busbw_GBps="9" * 4500), "a line of"),
        (toml(nbytes='"' + "9" * 400 + '"'), "is not a size"),
        (toml(nbytes="9" * 400), "whole number of bytes"),
        (".".join("a" * 20_000) + " = 1\n", "a line of 40003 characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_file_key_and_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        from_toml(text, "bands.toml")
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("bands.toml")
    assert "\n" not in str(refusal.value)


@given(st.text())
def test_no_text_at_all_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        from_toml(text, "bands.toml")


def test_a_range_covers_both_its_ends_and_no_more() -> None:
    (band,) = from_toml(toml(nbytes=None, min_bytes='"1K"', max_bytes='"4K"'), "b")
    covered = [n for n in (1023, 1024, 4096, 4097) if band.covers(replace(ROW, nbytes=n))]
    assert covered == [1024, 4096]


@each_row(("busbw", "status"), [(90.0, "pass"), (89.99, "fail")])
def test_a_row_is_judged_by_the_lowest_that_passes(busbw: float, status: str) -> None:
    mean_us = ROW.time_us.mean
    row = judged(replace(ROW, busbw_GBps=busbw, interval_us=(mean_us, mean_us)), from_toml(toml(), "b"))
    assert row.status == status
    assert row.expectation is not None


@each_row(
    ("interval_us", "status"),
    [
        ((19.0, 21.9), "pass"),  # 100 GB/s at the mean of 20 us, so 90 at 22.2
        ((19.0, 22.3), "inconclusive"),
        ((22.3, 30.0), "fail"),
        (None, "inconclusive"),
    ],
)
def test_a_band_is_passed_or_failed_at_both_ends_of_the_interval(
    interval_us: tuple[float, float] | None, status: str
) -> None:
    row = replace(ROW, busbw_GBps=100.0, time_us=TimeStats(20.0), interval_us=interval_us)
    assert judged(row, from_toml(toml(), "b")).status == status


def test_a_row_nobody_expected_stays_unjudged() -> None:
    row = replace(ROW, op="broadcast")
    assert judged(row, from_toml(toml(), "b")) is row


def report(*rows: Any) -> Report:
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-01-02", duration_s=1.0, command="", status=Status.PASS, exit_code=0,
        measurements=rows,
    )  # fmt: skip


def test_an_earlier_report_is_a_baseline_less_the_tolerance() -> None:
    (band,) = from_report(report(ROW), "old.json", 0.1)
    assert band.expectation.basis == "baseline"
    assert band.expectation.threshold == pytest.approx(0.9 * ROW.busbw_GBps)
    assert "2026-01-02" in band.expectation.why


@each_row(
    "other",
    [{"ranks": 16}, {"dtype": "int8"}, {"place": "out"}, {"backend": "gloo"}, {"mode": "blocking"}, {"nodes": 2}],
)
def test_a_baseline_speaks_only_for_rows_measured_alike(other: dict[str, Any]) -> None:
    (band,) = from_report(report(ROW), "old.json")
    assert band.covers(ROW)
    assert not band.covers(replace(ROW, **other))


@each_row("spoilt", [{"wrong": 1}, {"status": "inconclusive"}, {"status": "fail"}, {"busbw_GBps": 0.0}])
def test_a_spoilt_row_is_no_baseline(spoilt: dict[str, Any]) -> None:
    bands: tuple[Band, ...] = from_report(report(ROW, replace(ROW, nbytes=8, **spoilt)), "old.json")
    assert len(bands) == 1


def test_a_report_without_numbers_is_refused() -> None:
    with pytest.raises(UsageError, match=r"old\.json: contains no measurement"):
        from_report(report(), "old.json")


@each_row("text", ["20", "1", "-0.1", "nan", "0.1%", ""])
def test_a_tolerance_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="at least 0 and less than 1"):
        parse_tolerance(text)


@each_row(
    ("sizes", "words"),
    [
        ({}, "all_reduce 1 MiB"),
        ({"nbytes": None, "min_bytes": '"1K"', "max_bytes": '"4K"'}, "all_reduce from 1 KiB to 4 KiB"),
        ({"nbytes": None, "min_bytes": '"1K"'}, "all_reduce from 1 KiB"),
    ],
)
def test_a_band_says_what_it_speaks_for(sizes: dict[str, Any], words: str) -> None:
    assert first_of(from_toml(toml(**sizes), "b"), 3) == words


def test_a_baseline_says_how_it_was_measured_and_a_long_list_is_cut() -> None:
    bands = from_report(report(*(replace(ROW, nbytes=1 << n) for n in range(20, 24))), "old.json")
    assert str(bands[0]) == "all_reduce 1 MiB (float32, in place, 8 ranks, nccl)"
    assert first_of(bands, 3).endswith("4 MiB (float32, in place, 8 ranks, nccl) and 1 more")


EXPECTED = Expected((Band("all_reduce", 1, 1 << 40, Expectation(100.0, 90.0, "GB/s", "user", "w", "s")),))
SLOW = replace(ROW, busbw_GBps=60.0, time_us=TimeStats(20.0), interval_us=(19.8, 20.2))
FAST = replace(SLOW, busbw_GBps=100.0)
BUSY = Disturbance("GPU3 of n0 has lowered its clocks", 0.5)


def statuses(*measured: Any, retest: tuple[Any, ...] = (), disturbances: tuple[Disturbance, ...] = ()) -> list[str]:
    return [row.status for row in judge_rows(Rows(measured, retest, disturbances), EXPECTED)]


def test_a_row_that_fails_twice_fails_and_one_that_comes_and_goes_is_noise() -> None:
    assert statuses(SLOW) == ["fail"]
    assert statuses(SLOW, retest=(SLOW,)) == ["fail"]
    assert statuses(SLOW, retest=(FAST,)) == ["inconclusive"]
    assert statuses(SLOW, retest=(SLOW, FAST)) == ["inconclusive"]
    assert statuses(SLOW, retest=(FAST, SLOW)) == ["inconclusive"]  # it did not fail twice


def test_a_retest_speaks_for_its_own_row_alone_and_a_row_without_one_where_others_had_theirs_is_no_failure() -> None:
    for other in (replace(FAST, nbytes=8), replace(FAST, place="out"), replace(FAST, op="all_gather")):
        (row,) = judge_rows(Rows((SLOW,), (other,)), EXPECTED)
        assert (row.status, row.inconclusive_why) == ("inconclusive", "too slow once, and not retested")


def test_a_retest_makes_no_row_worse_and_is_shown() -> None:
    assert statuses(FAST, retest=(SLOW,)) == ["pass"]
    (row,) = judge_rows(Rows((SLOW,), (SLOW,)), EXPECTED)
    assert row.retest
    assert row.retest.busbw_GBps == 60.0
    (row,) = judge_rows(Rows((FAST,), (SLOW,)), EXPECTED)
    assert row.retest is None


def test_a_disturbance_excuses_what_it_explains_and_nothing_slower() -> None:
    assert statuses(SLOW, retest=(SLOW,), disturbances=(BUSY,)) == ["inconclusive"]
    assert statuses(SLOW, disturbances=(replace(BUSY, left=0.9),)) == ["fail"]
    assert statuses(FAST, disturbances=(BUSY,)) == ["pass"]


def test_rows_keep_their_order_and_those_of_which_nothing_is_expected_stay_as_they_are() -> None:
    other = replace(SLOW, op="broadcast")
    assert statuses(SLOW, other, FAST, disturbances=(BUSY,)) == ["inconclusive", "unjudged", "pass"]
    assert judge_rows(Rows((SLOW,)), Expected()) == (SLOW,)


def test_judging_twice_says_the_same() -> None:
    rows = Rows((SLOW, FAST), (SLOW,), (BUSY,))
    assert judge_rows(rows, EXPECTED) == judge_rows(rows, EXPECTED)
    again = judge_rows(replace(rows, measured=judge_rows(rows, EXPECTED)), EXPECTED)
    assert [row.status for row in again] == statuses(*rows.measured, retest=rows.retests, disturbances=(BUSY,))
