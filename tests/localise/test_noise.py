"""The threshold follows the noise of what was measured again, and few parts are named rather than many."""

import csv
import math
import random
from pathlib import Path
from statistics import median

import pytest
from fleets.recorded import HELD_BACK, Replay, recorded_sets

from ncclprobe.localise.pairs.causes import noise_floor, noise_limit, retest_noise
from ncclprobe.localise.pairs.samples import End, Rules, Sample
from ncclprobe.localise.pairs.suspects import Localisation, localise_slowness, verdict
from tests.each_row import each_row, some

RULES = Rules()
ONE_WAY = False
BUSY = Path(__file__).parents[1] / "data" / "busy_pairs.csv"
"""Four hosts on two busy processors, 1 MiB over gloo, as measured: n2 sends 200 Mbit/s, the rest is a lottery."""


def repeated(sigma: float, slow: float = 1.0, count: int = 40) -> list[Sample]:
    """Pairs measured twice, the second half of them at `slow` of what they could."""
    draw = random.Random(3)
    ends = [(End(f"n{number}"), End(f"n{number + 1}")) for number in range(0, 2 * count, 2)]
    rates = {pair: 40 * (slow if 2 * place >= count else 1.0) for place, pair in enumerate(ends)}
    both = [(step, pair, rate) for step in (0, 1) for pair, rate in rates.items()]
    return [Sample(*pair, rate * draw.lognormvariate(0, sigma), step=step) for step, pair, rate in both]


@each_row("sigma", [0.02, 0.05, 0.2])
def test_the_noise_is_what_repetitions_differ_by(sigma: float) -> None:
    assert retest_noise(repeated(sigma), RULES)[ONE_WAY] == pytest.approx(sigma, rel=0.35)


def test_a_loss_that_lasts_is_no_noise_few_repetitions_show_none_and_none_is_below_the_floor() -> None:
    noise = retest_noise(repeated(0.02), RULES)
    assert retest_noise(repeated(0.02, slow=0.5), RULES) == pytest.approx(noise)
    assert retest_noise(repeated(0.02, count=5), RULES) == {}
    assert retest_noise(repeated(0.0), RULES)[ONE_WAY] == noise_floor(RULES)


def test_a_noisy_pair_must_lose_more_than_a_quiet_one_and_many_samples_less_than_one() -> None:
    assert noise_limit(1, noise_floor(RULES), RULES) == math.log(0.95)
    assert noise_limit(1, 0.1, RULES) == pytest.approx(-0.35)
    assert noise_limit(1, 0.1, RULES) < noise_limit(32, 0.1, RULES) < math.log(0.95)


CROWDED = "cluster00 all_to_all 8"
"""Its uplinks carry less than two thirds: a tenth of a node is no outlier there."""


@each_row("name", [name for name in recorded_sets() if name.startswith(HELD_BACK) and name != CROWDED])
def test_a_node_a_tenth_slow_among_recorded_ones_is_named(name: str) -> None:
    recorded = recorded_sets()[name]
    for number, slow in some(enumerate(recorded.nodes[::4])):
        fleet = Replay(recorded, lambda src, dst, slow=slow: 0.9 if slow in (src.node, dst.node) else 1.0, number)  # type: ignore[misc]
        found = localise_slowness(fleet.rails, fleet.measure)
        assert slow in [str(each.cause) for each in found.confirmed]


def busy(**times: float) -> list[Sample]:
    """The recorded samples; those out of a node so many times as fast as they were."""
    with BUSY.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = []
    for row in rows:
        src, dst = End(f"n{row['src']}"), End(f"n{row['dst']}")
        GBps = (1 << 20) / median(map(float, row["samples_us"].split())) / 1e3
        found.append(Sample(src, dst, GBps * times.get(src.node, 1.0), row["both"] == "1", int(row["step"])))
    return found


def blamed(found: Localisation) -> list[str]:
    return [str(each.cause) for each in found.confirmed]


def test_a_steady_slow_node_among_ways_that_differ_tenfold_is_suspected_at_once_and_named_by_its_first_retest() -> None:
    samples = busy()
    assert [str(each.cause) for each in verdict([each for each in samples if not each.step]).suspects] == ["out of n2"]
    for last in range(1, 6):
        found = verdict([each for each in samples if each.step <= last])
        assert (blamed(found), found.suspects, found.cleared) == (["out of n2"], (), ())
    assert found.confirmed[0].partners == 3


def test_without_the_slow_card_the_same_busy_hosts_blame_nobody() -> None:
    assert blamed(verdict(busy(n2=20.0))) == []
