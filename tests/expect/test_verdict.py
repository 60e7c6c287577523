"""The verdict on a row: what fails, what is only noise, and what is never held against a machine."""

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.bands import judge, judged
from ncclprobe.model.measurement import Band, Basis, Disturbance, Expectation, Measurement, Retest, TimeStats
from ncclprobe.model.values import replace
from tests.each_row import each_row

BAND = Expectation(100.0, 80.0, "GB/s", "baseline", "5 runs", "site.json")


def row(busbw: float, half: float = 0.01) -> Measurement:
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), interval_us=(20 * (1 - half), 20 * (1 + half)))


def second(busbw: float, half: float = 0.01) -> Retest:
    return Retest(busbw, 20.0, (20 * (1 - half), 20 * (1 + half)), 5)


@each_row(
    ("busbw", "half", "status"),
    [(100, 0.01, "pass"), (300, 0.01, "pass"), (85, 0.01, "warn"), (89, 0.05, "pass"), (60, 0.01, "fail"),
     (80, 0.1, "inconclusive")],
)  # fmt: skip
def test_a_row_is_judged_by_both_ends_of_its_interval(busbw: float, half: float, status: str) -> None:
    assert judge(row(busbw, half), BAND).status == status


@each_row("basis", ["model", "datasheet", "published", "baseline", "user"])
def test_who_drew_a_line_is_not_warned_above_it(basis: Basis) -> None:
    assert judge(row(85), replace(BAND, basis=basis)).status == ("pass" if basis == "user" else "warn")


def test_what_fails_twice_fails() -> None:
    assert judge(row(60), BAND, retest=second(61)).status == "fail"


def test_what_fails_once_comes_and_goes() -> None:
    said = judge(row(60), BAND, retest=second(99))
    assert said.status == "inconclusive"
    assert "intermittent: 60 GB/s at first and 99 when retested" in said.why


def test_a_repetition_that_is_noise_decides_nothing() -> None:
    assert judge(row(60), BAND, retest=second(80, 0.2)).status == "inconclusive"
    assert judge(row(60), BAND, retest=Retest(60, 20.0, None, 1)).status == "inconclusive"


@each_row(
    ("basis", "status"),
    [("model", "inconclusive"), ("published", "inconclusive"), ("datasheet", "inconclusive"), ("user", "fail"),
     ("baseline", "fail")],
)  # fmt: skip
def test_a_launch_bound_row_fails_only_by_what_was_measured_in_the_same_way(basis: Basis, status: str) -> None:
    slow = replace(row(60), launch_bound=True, issue_us=18.0)
    said = judge(slow, replace(BAND, basis=basis), retest=second(60))
    assert said.status == status
    assert ("launch-bound" in said.why) is (status == "inconclusive")
    assert judge(replace(slow, busbw_GBps=100.0), replace(BAND, basis=basis)).status == "pass"


def test_a_disturbance_explains_what_it_can_and_no_more() -> None:
    busy = Disturbance("30% of the processors of n0 were busy with other work", 0.4)
    assert "30% of the processors" in judge(row(60), BAND, retest=second(60), disturbances=(busy,)).why
    assert judge(row(20), BAND, disturbances=(busy,)).status == "fail"
    assert judge(row(100), BAND, disturbances=(busy,)).status == "pass"


def test_a_row_is_judged_again_by_the_expectation_that_it_has() -> None:
    first = judged(row(60), (Band(ROW.op, 1, 1 << 40, BAND),))
    assert first.status == "fail"
    both = judged(first, (), retest=second(99))
    assert (both.status, both.retest) == ("inconclusive", second(99))
    assert both.inconclusive_why


LOOSE = replace(BAND, basis="model", worst="warn", known="off by 60% in the median")
SHOWN = replace(BAND, basis="model", threshold=0.0, worst="unjudged", known="not judged: known from 2 sources")


@each_row(("busbw", "half", "status"), [(100, 0.01, "pass"), (85, 0.01, "pass"), (80, 0.1, "pass"), (10, 0.01, "warn")])
def test_a_loosely_known_number_warns_at_most_and_noise_of_it_is_no_verdict(
    busbw: float, half: float, status: str
) -> None:
    assert judge(row(busbw, half), LOOSE).status == status


def test_without_an_interval_a_loosely_known_number_judges_nothing() -> None:
    assert judge(replace(row(10), interval_us=None), LOOSE).status == "unjudged"


def test_a_number_that_judges_nothing_leaves_the_row_as_it_is() -> None:
    first = judged(row(1), (Band(ROW.op, 1, 1 << 40, SHOWN),))
    assert (first.status, first.expectation, first.inconclusive_why) == ("unjudged", SHOWN, "")


@each_row("hiccup", [1.0, 3.0, 100.0])
def test_the_number_that_is_shown_is_the_number_that_is_judged(hiccup: float) -> None:
    times = TimeStats(mean=20.0 * hiccup, median=20.0, min=19.9, p95=20.0 * hiccup, max=80.0 * hiccup, stdev=1.0)
    shown = replace(ROW, busbw_GBps=81.0, time_us=times, interval_us=(20.0, 20.0))
    assert judge(shown, BAND).status == "warn"
    assert judge(replace(shown, busbw_GBps=79.0), BAND).status == "fail"


GROSS = replace(BAND, threshold=0.0, worst="unjudged", known="1 source", gross=33.3)


@each_row(("busbw", "status"), [(34.0, "unjudged"), (32.0, "fail"), (3.0, "fail")])
def test_a_loss_that_nobody_could_miss_fails_however_loosely_the_number_is_known(busbw: float, status: str) -> None:
    assert judge(row(busbw), GROSS).status == status
    assert judge(replace(row(busbw), interval_us=None), GROSS).status == status
    assert judge(row(busbw), replace(GROSS, gross=None)).status == "unjudged"


def test_a_gross_loss_that_does_not_come_again_is_inconclusive() -> None:
    assert judge(row(20), GROSS, retest=second(21)).status == "fail"
    said = judge(row(20), GROSS, retest=second(90))
    assert (said.status, "of at least 33.3" in said.why) == ("inconclusive", True)


def test_a_row_that_the_fine_mark_judges_is_held_to_that() -> None:
    fine = replace(BAND, gross=33.3)
    assert fine.mark(20.0) == BAND.threshold
    assert replace(fine, worst="warn").mark(20.0) == 33.3
