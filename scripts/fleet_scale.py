#!/usr/bin/env python3
"""How large is a store, and how long does it take to add a report and to list a fleet?

    .venv/bin/python scripts/fleet_scale.py [--nodes N] [--days N] [--numbers N]

A store in a temporary folder gets a report a day of each node. Those of the first and the last day are added as any
report is, but without waiting for the disk; the days between are rows that are copied from the first. Then reports are
added and timed, waits for the disk included, and what was read of their JSON before not.
"""

import argparse
import math
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ncclprobe.fleet import store
from ncclprobe.localise.pairs.rounds import least_seen
from ncclprobe.model.findings import Severity
from ncclprobe.model.fleet import Added, Fault, Number, Reading, Told
from ncclprobe.report.html import days as page

DAY_S, PATIENCE_S, TIMED = 86400.0, 7200.0, 100
LOOKED = tuple(f"group.check-{number}" for number in range(170))
DOWN = Fault("ib.state", "mlx5_3:1", Severity.FAIL, "link", "bad", "is DOWN; its siblings are ACTIVE")


def told(rng: random.Random, node: int, day: float, numbers: int) -> Told:
    """What a report of one day tells of one node."""
    time_s = day * DAY_S + node
    rates = {
        Number(f"rail {place} (mlx5_{place}:1)", "rails out", "GB/s", "8 x NVIDIA H100 80GB HBM3"):
            Reading(time_s, 48 * math.exp(rng.gauss(0, 0.02)), 0.005)
        for place in range(numbers)
    }  # fmt: skip
    faults = (DOWN,) if rng.random() < 0.002 else ()
    machine = {"driver": "550.54.15", "kernel": "6.8.0-51-generic", "distribution": "Ubuntu 24.04"}
    return Told(f"n{node:04}", time_s, faults, LOOKED, False, rates, machine)


def timed(fleet: store.Store, tests: Iterator[list[Told]]) -> str:
    """Add reports, and return how long one took."""
    took = []
    for number, each in enumerate(tests):
        begun = time.perf_counter()
        fleet.add(each, f"timed {each[0].time_s} {number}", Added(each[0].time_s, "root@n1", "/var/r.json", "accept"))
        took.append(1e3 * (time.perf_counter() - begun))
    return f"median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms"


COPIES = (
    "INSERT INTO reports SELECT id + :day * :nodes, digest || ' ' || :day, started_s + :later, added_s + :later,"
    " added_by, source, command FROM reports WHERE id <= :nodes",
    "INSERT INTO tests SELECT node, time_s + :later, report + :day * :nodes, unknown, machine, looked, faults, counted"
    " FROM tests WHERE report <= :nodes AND time_s < 86400",
    "INSERT INTO readings SELECT series, time_s + :later, report + :day * :nodes,"
    " value * (1 + (:day * 37 % 11 - 5) / 300.0), noise, partners"
    " FROM readings WHERE report <= :nodes AND time_s < 86400",
)
"""Makes of the first day's rows those of another day."""


def add_day(fleet: store.Store, rng: random.Random, day: int, options: argparse.Namespace) -> None:
    for node in range(options.nodes):
        one = told(rng, node, day, options.numbers)
        fleet.add([one], f"{node:064} {day}", Added(one.time_s, "root@n1", f"/var/{node}-{day}.json", "accept"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--numbers", type=int, default=8)
    options = parser.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.db"
        with store.opened(path, PATIENCE_S, create=True) as fleet:
            quick: sqlite3.Connection = fleet._sql
            quick.execute("PRAGMA synchronous = OFF")
            add_day(fleet, rng, 0, options)
            for day in range(1, options.days - 1):
                for statement in COPIES:
                    quick.execute(statement, {"day": day, "later": day * DAY_S, "nodes": options.nodes})
            add_day(fleet, rng, options.days - 1, options)
        asked = f"{options.nodes} nodes, {options.days} days, {options.numbers} numbers of each"
        print(f"{asked}: {path.stat().st_size / 1e6:.0f} MB")
        with store.opened(path, PATIENCE_S) as fleet:
            ones = ([told(rng, node, options.days, options.numbers)] for node in range(TIMED))
            print("one report of one node:", timed(fleet, ones))
            late = ([told(rng, node, options.days - 200.5, options.numbers)] for node in range(20))
            print("one that comes 200 days late:", timed(fleet, late))
            jobs = (range(first, first + 64) for first in range(0, 320, 64))
            many = ([told(rng, node, options.days + 1 + job[0] / 1e4, options.numbers) for node in job] for job in jobs)
            print("one report of 64 nodes:", timed(fleet, many))
        put = "to put what came late in its place"
        once(path, put, lambda fleet: fleet.settle())
        with store.opened(path, PATIENCE_S) as fleet:
            timed(fleet, iter([[told(rng, 20, options.days - 2.5, options.numbers)]]))
        once(path, f"{put}, days late after that", lambda fleet: fleet.settle())
        once(path, "to list all nodes", lambda fleet: fleet.standings())
        once(path, "to show one", lambda fleet: fleet.history("n0001", 20))
        now_s = options.days * DAY_S
        once(path, "a page of 90 days", lambda f: page.render(list(f.days(now_s - 90 * DAY_S)), now_s, 90, "fleet.db"))
        once(path, "to plan pairs of all", lambda f: least_seen(f.names(), f.together(f.names()), 1))


def once(path: Path, what: str, do: Callable[[store.Store], object]) -> None:
    """Open the store, do something with it, and print how long that took."""
    begun = time.perf_counter()
    with store.opened(path, PATIENCE_S) as fleet:
        do(fleet)
    print(f"{what}: {time.perf_counter() - begun:.3f} s")


if __name__ == "__main__":
    main()
