"""Median polish and its thresholds, against cases worked out by hand."""

import math
import random
from itertools import permutations

import pytest

from ncclprobe.localise.pairs.effects import apart, levels, modified_z, polish, slow
from ncclprobe.localise.pairs.samples import End, Lost, Rules, Sample
from tests.each_row import each_row


def test_the_usual_is_that_of_the_good_and_both_ways_at_once_have_a_level_of_their_own() -> None:
    bad = {f"{x}{y}": 20.0 for x, y in permutations("abcdefgh", 2) if {x, y} & set("abc")}
    samples = [Sample(End(x), End(y), bad.get(x + y, 40.0)) for x, y in permutations("abcdefgh", 2)]
    assert sum(sample.GBps < 40 for sample in samples) > len(samples) / 2
    assert levels(samples) == {False: 40.0}
    equal = [Sample(End(s), End(d), 40) for s, d in permutations("abcd", 2)]
    equal.append(Sample(End("a"), End("b"), 30, both=True))
    assert (levels(equal), set(polish(equal).residual)) == ({False: 40, True: 30}, {0.0})


def test_slow_needs_both_rules_and_a_quiet_fleet_makes_no_outlier_of_a_wrinkle() -> None:
    wrinkle = {**dict.fromkeys(range(9), 0.0), 9: -0.05}
    assert modified_z(wrinkle, floor=0.02)[9] == pytest.approx(-0.6745 * 0.05 / 0.02)
    assert slow(wrinkle, Rules()) == {}
    quiet = {**dict.fromkeys(range(9), 0.0), 9: math.log(0.94)}
    assert slow(quiet, Rules()) == {9: math.log(0.94)}
    assert slow({**quiet, 9: math.log(0.96)}, Rules()) == {}
    assert slow({**{number: 0.1 * (-1) ** number for number in range(9)}, 9: math.log(0.94)}, Rules()) == {}


@each_row(("times", "quiet_alone"), [(20.0, True), (3.4, True), (2.6, False)])
def test_ends_are_fitted_by_the_quiet_way_where_another_is_noisy(times: float, quiet_alone: bool) -> None:
    noise = random.Random(1)
    logs = {pair: noise.gauss(0, 0.01) - 0.1 * ("b" in pair) for pair in permutations("abcdefgh", 2)}
    quiet = [Sample(End(s), End(d), 40 * math.exp(log)) for (s, d), log in logs.items()]
    noisy = [Sample(End(s), End(d), 25 * math.exp(times * log), True) for (s, d), log in logs.items()]
    assert (polish([*quiet, *noisy]).out == pytest.approx(polish(quiet).out)) is quiet_alone


@each_row("rate", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_rate_and_pairs_inside_a_node_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        Sample(End("a"), End("b"), rate)
    for make in (lambda: Sample(End("a", 0), End("a", 1), 1.0), lambda: Lost(End("a", 0), End("a", 1))):
        with pytest.raises(ValueError, match="of one node"):
            make()


def test_an_end_twice_as_slow_as_all_others_is_apart_however_these_differ() -> None:
    rates = {"ab": 0.3, "ac": 2.4, "ad": 0.28, "ba": 1.5, "bc": 0.54, "bd": 1.46, "da": 0.36, "db": 0.34, "dc": 2.1}

    def noisy(slow: float, **more: float) -> list[Sample]:
        out_of_c = dict.fromkeys(("ca", "cb", "cd"), slow)
        return [Sample(End(src), End(dst), rate) for (src, dst), rate in (rates | out_of_c | more).items()]

    effects = polish(noisy(0.13))
    assert slow(effects.out, Rules()) == slow(effects.into, Rules()) == {}
    assert apart(noisy(0.13), Rules()) == apart(noisy(0.13, ab=9.0), Rules()) == {End("c")}
    low = noisy(0.02)
    of_three = [each for each in low if "b" not in (each.src.node, each.dst.node)]
    for samples in (noisy(0.15), noisy(0.02, ca=0.29), of_three, [each for each in low if each.src.node == "c"], []):
        assert apart(samples, Rules()) == set()
