"""Median polish and its thresholds, against cases worked out by hand."""

import math
import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.localise.pairs.effects import apart, levels, modified_z, polish, slow
from ncclprobe.localise.pairs.samples import End, Lost, Rules, Sample
from tests.each_row import each_row

NODES = "abcdef"


def fleet(**rates: float) -> list[Sample]:
    """All directed pairs of six nodes at 40 GB/s, but `ab` from a to b at what is given."""
    pairs = permutations(NODES, 2)
    return [Sample(End(src), End(dst), rates.get(src + dst, 40.0)) for src, dst in pairs]


def test_a_fleet_of_equals_has_no_effects() -> None:
    found = polish(fleet())
    assert found.level == {False: 40.0}
    assert set(found.out.values()) == set(found.into.values()) == set(found.residual) == {0.0}


def test_what_slows_one_way_out_is_the_ends_effect_and_no_residual() -> None:
    samples = fleet(**{f"a{other}": 20.0 for other in NODES})
    found = polish(samples)
    assert found.out[End("a")] == pytest.approx(math.log(0.5))
    assert found.into[End("a")] == 0
    assert found.residual == pytest.approx([0.0] * 30)


def test_what_slows_one_pair_is_its_residual_and_no_ends_effect() -> None:
    samples = fleet(ab=10.0)
    found = polish(samples)
    assert set(found.out.values()) == set(found.into.values()) == {0.0}
    odd = {(s.src.node, s.dst.node): r for s, r in zip(samples, found.residual, strict=True) if r}
    assert odd == {("a", "b"): pytest.approx(math.log(0.25))}


def test_the_usual_is_that_of_the_good_though_most_pairs_touch_a_bad_node() -> None:
    bad = {f"{x}{y}": 20.0 for x, y in permutations("abcdefgh", 2) if {x, y} & set("abc")}
    samples = [Sample(End(x), End(y), bad.get(x + y, 40.0)) for x, y in permutations("abcdefgh", 2)]
    assert sum(sample.GBps < 40 for sample in samples) > len(samples) / 2
    assert levels(samples) == {False: 40.0}


def test_both_ways_at_once_have_a_level_of_their_own() -> None:
    samples = [Sample(End(s), End(d), 40) for s, d in permutations("abcd", 2)]
    samples.append(Sample(End("a"), End("b"), 30, both=True))
    assert levels(samples) == {False: 40, True: 30}
    assert set(polish(samples).residual) == {0.0}


def test_a_quiet_fleet_makes_no_outlier_of_a_wrinkle() -> None:
    logs = {**dict.fromkeys(range(9), 0.0), 9: -0.05}
    assert modified_z(logs, floor=0.02)[9] == pytest.approx(-0.6745 * 0.05 / 0.02)
    assert slow(logs, Rules()) == {}


def test_slow_needs_both_rules() -> None:
    quiet = {**dict.fromkeys(range(9), 0.0), 9: math.log(0.94)}
    assert slow(quiet, Rules()) == {9: math.log(0.94)}
    assert slow({**quiet, 9: math.log(0.96)}, Rules()) == {}
    wide = {**{number: 0.1 * (-1) ** number for number in range(9)}, 9: math.log(0.94)}
    assert slow(wide, Rules()) == {}


def test_ends_are_fitted_by_the_quiet_way_where_another_is_noisy() -> None:
    noise = random.Random(1)

    def rate(pair: tuple[str, str], both: bool) -> float:
        return (25 * noise.uniform(0.6, 1.4) if both else 40) * (0.9 if "b" in pair else 1)

    pairs = [*permutations("abcdefgh", 2)]
    found = polish([Sample(End(s), End(d), rate((s, d), both), both) for both in (False, True) for s, d in pairs])
    assert found.out[End("b")] == pytest.approx(math.log(0.9))
    assert all(found.out[End(node)] == pytest.approx(0) for node in "acdefgh")


def test_nothing_measured_is_nothing_found() -> None:
    assert modified_z({}, 0.02) == {}
    empty = polish([])
    assert (dict(empty.level), empty.out, empty.residual) == ({}, {}, ())


@given(st.lists(st.floats(1, 100), min_size=30, max_size=30), st.floats(0.01, 100))
def test_effects_do_not_depend_on_the_unit(rates: list[float], unit: float) -> None:
    pairs = list(permutations(NODES, 2))
    one = polish([Sample(End(s), End(d), r) for (s, d), r in zip(pairs, rates, strict=True)])
    other = polish([Sample(End(s), End(d), r * unit) for (s, d), r in zip(pairs, rates, strict=True)])
    assert other.residual == pytest.approx(one.residual, abs=1e-6)


@each_row("rate", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        Sample(End("a"), End("b"), rate)


def test_pairs_inside_a_node_are_refused() -> None:
    for make in (lambda: Sample(End("a", 0), End("a", 1), 1.0), lambda: Lost(End("a", 0), End("a", 1))):
        with pytest.raises(ValueError, match="of one node"):
            make()


def noisy(slow: float) -> list[Sample]:
    """Four nodes whose ways differ tenfold, but those out of c, which are `slow`."""
    rates = {"ab": 0.3, "ac": 2.4, "ad": 0.28, "ba": 1.5, "bc": 0.54, "bd": 1.46, "da": 0.36, "db": 0.34, "dc": 2.1}
    others = [Sample(End(src), End(dst), rate) for (src, dst), rate in rates.items()]
    return [*others, *(Sample(End("c"), End(dst), slow) for dst in "abd")]


def test_an_end_far_below_all_others_is_apart_however_these_differ() -> None:
    samples = noisy(0.13)
    effects = polish(samples)
    assert slow(effects.out, Rules()) == slow(effects.into, Rules()) == {}
    assert apart(samples, Rules()) == {End("c")}


def test_no_end_is_apart_that_is_not_twice_as_slow_or_reaches_one_node_as_fast_as_others_do() -> None:
    assert apart(noisy(0.15), Rules()) == set()
    one_fast = [Sample(End("c"), End("a"), 0.29) if (s.src, s.dst) == (End("c"), End("a")) else s for s in noisy(0.02)]
    assert apart(one_fast, Rules()) == set()


def test_of_three_nodes_none_is_apart_and_without_others_neither() -> None:
    samples = noisy(0.02)
    assert apart([each for each in samples if "b" not in (each.src.node, each.dst.node)], Rules()) == set()
    assert apart([each for each in samples if each.src.node == "c"], Rules()) == set()
    assert apart([], Rules()) == set()
