#!/usr/bin/env python3
"""How well does the test over time find what was planted, and how often is it wrong? Simulated years, a test a day.

    .venv/bin/python scripts/fleet_years.py [--runs N] [--years N] [OUT, such as reports/fleet-years.md]

Each node keeps a level of its own (1 % between nodes) and scatters by 2 % from day to day, as those of one node do from
1 GiB on. The readings go through ncclprobe.fleet.drift as the store hands them over: beside the median and the spread
of the other nodes of the fleet on the day before, where there are siblings. The seeds are fixed.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from sys import path

path.insert(0, str(Path(__file__).resolve().parents[1]))

from ncclprobe.fleet import drift
from ncclprobe.localise.pairs.rounds import round_robin
from ncclprobe.model.fleet import Drift, Reading

DAY_S, LEVEL, NOISE, BETWEEN = 86400.0, 391.0, 0.02, 0.01
FLEET, YEAR, AFTER, REPAIRED = 40, 365, 60, 10
YEAR_OF_PAIRS = 200
Scatter = Callable[[random.Random, int], float]


def gauss(noise: float) -> Scatter:
    return lambda rng, _day: rng.gauss(0, noise)


def heavy(rng: random.Random, _day: int) -> float:
    """Student's t of 5 degrees, scaled to 2 %."""
    return NOISE * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(2.5, 0.4)) * math.sqrt(0.6)


def odd_days(rng: random.Random, day: int) -> float:
    return rng.gauss(0, NOISE) - 0.1 * (rng.random() < 0.01)


def seasons(rng: random.Random, day: int) -> float:
    return rng.gauss(0, NOISE) + 0.01 * math.sin(2 * math.pi * day / YEAR)


NOISES: dict[str, Scatter] = {
    "2 %": gauss(NOISE),
    "1 %": gauss(0.01),
    "3 %": gauss(0.03),
    "4 %": gauss(0.04),
    "2 %, heavy tails (t of 5 degrees)": heavy,
    "2 %, one day in a hundred 10 % slower": odd_days,
    "2 %, and 1 % with the seasons": seasons,
}


def states(rng: random.Random, losses: Sequence[float], scatter: Scatter, sums: int = 1) -> list[str]:
    """The state after each day of a node that is alone."""
    at, found = Drift(), []
    for day, loss in enumerate(losses):
        value = LEVEL * (1 - loss) * math.exp(scatter(rng, day))
        at = drift.step(at, Reading(day * DAY_S, value), sums)
        found.append(worst(at))
    return found


def worst(at: Drift) -> str:
    return max(at.own.state, at.siblings.state, key=("ok", "watch", "degraded").index)


def fleet(
    rng: random.Random, days: int, scatter: Scatter, planted: dict[int, Sequence[float]], shared: Sequence[float] = ()
) -> dict[int, list[str]]:
    """The states of each node of a fleet, by its place. `planted`: what some lose each day; `shared`: what all do."""
    own = [rng.gauss(0, BETWEEN) for _ in range(FLEET)]
    at = [Drift() for _ in range(FLEET)]
    levels: dict[int, tuple[float, float]] = {}
    found: dict[int, list[str]] = {node: [] for node in range(FLEET)}
    for day in range(days):
        before = drift.Siblings(dict(levels))
        for node in range(FLEET):
            left = (1 - (planted[node][day] if node in planted else 0.0)) * (1 - (shared[day] if shared else 0.0))
            value = LEVEL * left * math.exp(own[node] + scatter(rng, day))
            siblings, spread = before.beside(node)
            at[node] = drift.step(at[node], Reading(day * DAY_S + node, value, 0.0, siblings, spread), sums=2)
            levels[node] = statistics.fmean(map(math.log, at[node].recent)), math.log(value)
            found[node].append(worst(at[node]))
    return found


def alarms(found: Sequence[str]) -> tuple[int, int]:
    """How often a node that is well was watched or worse, and degraded."""
    steps = list(pairwise(("ok", *found)))
    return sum(old == "ok" != new for old, new in steps), sum(old != "degraded" == new for old, new in steps)


def false_alarms(years: int) -> Iterator[str]:
    yield "| noise | siblings | node-years | watched or worse, per node-year | degraded, per node-year |"
    yield "|--|--|--|--|--|"
    for name, scatter in NOISES.items():
        rng = random.Random(1)
        each = [alarms(states(rng, [0.0] * YEAR, scatter)) for _ in range(years)]
        yield _counted(name, "none", each)
    steps = [0.05 * (day // 100 % 2) for day in range(YEAR)]
    in_a_fleet = {"2 %, and all nodes lose 5 % for 100 days": (NOISES["2 %"], steps)}
    in_a_fleet |= {name: (NOISES[name], []) for name in ("2 %", "2 %, and 1 % with the seasons")}
    for name, (scatter, shared) in in_a_fleet.items():
        rng = random.Random(2)
        fleets = (fleet(rng, YEAR, scatter, {}, shared) for _ in range(max(years // FLEET, 1)))
        yield _counted(name, f"{FLEET - 1}", [alarms(found) for each in fleets for found in each.values()])


def _counted(name: str, siblings: str, each: Sequence[tuple[int, int]]) -> str:
    watched, degraded = (sum(one[place] for one in each) / len(each) for place in (0, 1))
    return f"| {name} | {siblings} | {len(each):,} | {watched:.4f} | {degraded:.4f} |"


def recall(runs: int) -> Iterator[str]:
    ends = "within 10 tests | within 30 | tests, median | ok within 5 after repair |"
    yield f"| loss | tests before | numbers of the node | {ends}"
    yield "|--|--|--|--|--|--|--|"
    cases = [(loss, 60, 1) for loss in (0.02, 0.03, 0.05, 0.1, 0.4)]
    for loss, before, numbers in (*cases, (0.03, 20, 1), (0.05, 20, 1), (0.03, 60, 20), (0.05, 60, 20)):
        rng, found = random.Random(3), []
        losses = [0.0] * before + [loss] * AFTER + [0.0] * REPAIRED
        for _ in range(runs):
            found.append(states(rng, losses, gauss(NOISE), sums=2 * numbers)[before:])
        yield f"| {loss:.0%} | {before} | {numbers} | {_found(found)} |"


def _found(found: Sequence[Sequence[str]]) -> str:
    delays = [each.index("degraded") + 1 if "degraded" in each[:AFTER] else math.inf for each in found]
    ill = [each for each in found if each[AFTER - 1] == "degraded"]
    well = sum("ok" in each[AFTER : AFTER + 5] for each in ill) / max(len(ill), 1)
    shares = [sum(delay <= most for delay in delays) / len(delays) for most in (10, 30)]
    middle = statistics.median(delays)
    return f"{shares[0]:.1%} | {shares[1]:.1%} | {'never' if math.isinf(middle) else f'{middle:g}'} | {well:.1%}"


def in_fleets(runs: int) -> Iterator[str]:
    yield f"| planted in one node of {FLEET} | within 10 tests | within 30 | tests, median | ok within 5 after repair |"
    yield "|--|--|--|--|--|"
    step = [0.0] * AFTER + [0.05] * AFTER + [0.0] * REPAIRED
    always = [0.1] * AFTER + [0.0] * REPAIRED
    slow = [0.001 * day for day in range(AFTER)] + [0.0] * REPAIRED
    for name, losses, begins in (
        ("a step of 5 % on day 60", step, AFTER), ("10 % slower from the first day", always, 0),
        ("0.1 % more lost each day", slow, 0),
    ):  # fmt: skip
        rng = random.Random(4)
        found = [fleet(rng, len(losses), gauss(NOISE), {0: losses})[0][begins:] for _ in range(runs)]
        yield f"| {name} | {_found(found)} |"


def pairs(runs: int) -> Iterator[str]:
    """One pair at a time, in the rounds of a plan: one node loses a share after 40 rounds, as all its pairs do."""
    ends = "rounds, median | rounds, most | others watched or worse, per node-year of a test a day | others degraded |"
    yield f"| nodes | loss | found of | {ends}"
    yield "|--|--|--|--|--|--|--|"
    for nodes, loss in (*((16, loss) for loss in (0.0, 0.05, 0.1, 0.4)), (8, 0.1), (6, 0.1), (5, 0.1), (4, 0.1)):
        rng, found, others, blamed = random.Random(5), [], 0, 0
        for _ in range(runs):
            delay, alarms, degraded = _paired(rng, nodes, loss)
            found += [delay] if delay else []
            others += alarms
            blamed += degraded
        rounds = f"{statistics.median(found):g} | {max(found)}" if found else "– | –"
        healthy = runs * (nodes - (loss > 0))
        years = healthy * YEAR_OF_PAIRS / YEAR
        share = f"{others / years:.4f} | {blamed:,} of {healthy:,}"
        yield f"| {nodes} | {loss:.0%} | {len(found)} of {runs if loss else 0} | {rounds} | {share} |"


def _paired(rng: random.Random, nodes: int, loss: float) -> tuple[int, int, int]:
    """Return after how many rounds node 0 is degraded (0: never), how often another was watched or worse, and how many
    others were degraded.
    """
    rounds, at = round_robin(nodes, nodes - 1 + nodes % 2), {node: Drift() for node in range(nodes)}
    levels = [rng.gauss(0, BETWEEN) for _ in at]
    found = others = 0
    blamed = set()
    for number in range(YEAR_OF_PAIRS):
        for match in rounds[number % len(rounds)]:
            ends = match.first, match.second
            lost = math.log(1 - loss) if 0 in ends and number >= 40 else 0.0
            value = LEVEL * math.exp(min(levels[end] for end in ends) + rng.gauss(0, NOISE) + lost)
            for node, partner in (ends, ends[::-1]):
                before = at[node].own.state
                at[node] = drift.step(at[node], Reading(number * DAY_S, value, 0.005, partners=(str(partner),)), 4)
                if node > 0 or not loss:
                    others += before == "ok" != at[node].own.state
                    blamed |= {node} if at[node].own.state == "degraded" else set()
        if not found and at[0].own.state == "degraded" and number >= 40:
            found = number - 39
    return found, others, len(blamed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=2000, help="of each planted loss")
    parser.add_argument("--years", type=int, default=10_000, help="of healthy nodes, of each noise")
    options = parser.parse_args()
    lines = [
        "# Simulated years of a fleet",
        "",
        f"Made with `scripts/fleet_years.py --runs {options.runs} --years {options.years}`, which says how.",
        "A test a day. Degraded counts as found; an alarm of a healthy node counts once, however long it lasts.",
        "", "## Healthy nodes", "", *false_alarms(options.years),
        "", "## Losses, by the node's own past alone", "", *recall(options.runs),
        "", "## In a fleet", "", *in_fleets(max(options.runs // 10, 1)),
        "", "## One pair of idle nodes at a time", "", *pairs(max(options.runs // 10, 1)),
    ]  # fmt: skip
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
