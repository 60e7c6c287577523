#!/usr/bin/env python3
"""How well are culprits found? localise.pairs over simulated fleets, and over the recorded pairs of a real cluster.

    .venv/bin/python scripts/localisation.py [--nodes N ...] [--seeds N] [--noise NAME ...] [--recorded CSV]
                                             [--cells PATH.jsonl] [--cell-s SECONDS] [--out PATH.md]

1. Healthy fleets: how often is anybody blamed?
2. One to three planted faults of each kind: how many are named (kind, node, rail and direction right), how many at
   least placed (the right node or leaf under another name), how much of the blame hits a faulty place, how many rounds.
3. One slow node: the smallest loss named in nine of ten fleets, with the threshold loosened as far as at most 1 % of
   healthy fleets are blamed. Both are searched by halving: a looser rule alarms more, a larger loss is found more.
4. Recorded pairs: the same with their own noise; a retest gets the recorded number again, as there is no other.

A pair is planted among those that the tournament measures: beyond 64 nodes it takes 6 rounds, and what is not measured
is not found. Leaves and uplinks are measured with all pairs at once, everything else with 16. Noise `ecmp` is the usual
one in a fabric that hashes each flow to one uplink, where it may collide; a single `link` is planted in such a fabric.
Fleets of 8 nodes have two leaves: what is slow between them is slow for both, and neither's uplinks are ever blamed.

Every cell of a table stands on the seeds 0 … fleets - 1. Where --cell-s ends a cell early its row says how many fleets
it got. With --cells each cell is written down when it is done and not run again by the next call; --out is written
anew each time, with the cells that there are.
"""

import argparse
import csv
import json
import os
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from math import sqrt
from pathlib import Path

from ncclprobe.model.values import Struct, asdict, field, replace

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

from fleets.faults import KINDS  # noqa: E402 - found in tests/
from fleets.fleet import NOISES  # noqa: E402
from fleets.trials import DEFAULT, ECMP, PER_LEAF, Outcome, Tally, Trial, play, tally  # noqa: E402
from tables import table  # noqa: E402

from ncclprobe.localise.pairs.retests import PairRound  # noqa: E402
from ncclprobe.localise.pairs.samples import Result, Rules, Sample  # noqa: E402
from ncclprobe.localise.pairs.search import localise_slowness  # noqa: E402
from ncclprobe.localise.pairs.suspects import Localisation  # noqa: E402

RATIOS = (0.97, 0.95, 0.92, 0.9, 0.85, 0.8, 0.7, 0.6)
LOSSES = (0.03, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
ALARMS = 0.01
FOUND = 0.9
LOOSE_FLOOR = 0.005
FEWEST = 8
"""Fleets that a cell gets whatever its time."""

Cell = Callable[[Trial], Tally]
"""The sums over the seeds of a trial. Raises NotYet where they are only looked up, and not there."""


class NotYet(Exception):
    """A cell that has not been run."""


class Book(Struct):
    """The cells that there are, in memory and, line by line, in a file."""

    path: Path | None
    cells: dict[str, Tally] = field(default_factory=dict)

    def load(self) -> None:
        """Read what earlier calls left; a line that was cut off is no cell."""
        if self.path and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    said = json.loads(line)
                    self.cells[said["cell"]] = Tally(**said["tally"])

    def keep(self, trial: Trial, seen: Tally) -> None:
        """Write it down."""
        self.cells[name(trial)] = seen
        if self.path:
            with self.path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"cell": name(trial), "tally": asdict(seen)}) + "\n")

    def look(self, trial: Trial) -> Tally:
        """The cell, if it is there."""
        if name(trial) not in self.cells:
            raise NotYet
        return self.cells[name(trial)]


def name(trial: Trial) -> str:
    """What makes a cell: everything but the seed."""
    rules = {key: value for key, value in asdict(trial.rules).items() if value != getattr(DEFAULT, key)}
    said = asdict(replace(trial, seed=0)) | {"rules": rules}
    return " ".join(f"{key}={value}" for key, value in said.items() if key != "seed")


class Runner(Struct, frozen=True):
    """Plays the fleets of a cell, a few at a time, until all are played or the time is over."""

    pool: ProcessPoolExecutor
    jobs: int
    seeds: int
    cell_s: float
    book: Book
    done: Callable[[], None]

    def __call__(self, trial: Trial) -> Tally:
        """The cell, run unless it is there."""
        known = self.book.cells.get(name(trial))
        if known and known.asked >= self.seeds:
            return known
        seen: list[Outcome] = []
        started = time.monotonic()
        while len(seen) < self.seeds and not self.enough(trial, seen, time.monotonic() - started):
            seeds = range(len(seen), min(self.seeds, len(seen) + 4 * self.jobs))
            seen += self.pool.map(play, [replace(trial, seed=seed) for seed in seeds])
        result = tally(seen, self.seeds)
        self.book.keep(trial, result)
        self.done()
        return result

    def enough(self, trial: Trial, seen: Sequence[Outcome], seconds: float) -> bool:
        """Whether the time is over, or a threshold that is tried has already alarmed too often."""
        tried = not trial.kind and trial.rules != DEFAULT
        too_many = tried and sum(bool(each.blamed) for each in seen) > ALARMS * self.seeds
        return too_many or (len(seen) >= FEWEST and seconds > self.cell_s)


def share(part: int, whole: int) -> str:
    """Per cent, or a dash for nothing of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def interval(part: int, whole: int) -> str:
    """Where the share may lie, 95 %: E. B. Wilson, JASA 22, 1927."""
    z = 1.96
    middle = (part + z * z / 2) / (whole + z * z)
    half = z / (whole + z * z) * sqrt(part * (whole - part) / whole + z * z / 4)
    return f"{max(0.0, 100 * (middle - half)):.1f} – {100 * (middle + half):.1f} %"


def there(makers: Iterable[Callable[[], tuple[object, ...]]]) -> Iterator[tuple[object, ...]]:
    """The rows whose cells there are."""
    for make in makers:
        try:
            yield make()
        except NotYet:
            continue


def healthy(cell: Cell, trial: Trial) -> tuple[object, ...]:
    """A row of fleets in which nothing is planted."""
    seen = cell(trial)
    rounds = (seen.round_robin + seen.retests) / seen.fleets
    blamed = (seen.alarms, share(seen.alarms, seen.fleets), interval(seen.alarms, seen.fleets))
    return (trial.nodes, trial.noise, seen.fleets, *blamed, seen.unsure, f"{rounds:.1f}")


def planted(cell: Cell, trial: Trial) -> tuple[object, ...]:
    """A row of one to three faults of one kind."""
    seen = cell(trial)
    return (
        trial.nodes,
        trial.noise,
        trial.kind,
        seen.fleets,
        seen.planted,
        share(seen.named, seen.planted),
        share(seen.placed, seen.planted),
        share(seen.just, seen.blamed),
        f"{seen.round_robin / seen.fleets:.0f}",
        f"{seen.retests / seen.fleets:.1f}",
        f"{seen.seconds / seen.fleets:.2g}",
    )


def smallest(cell: Cell, nodes: int, noise: str) -> tuple[object, ...]:
    """The loosest threshold that spares the healthy, and the smallest loss found with it; the same for the default."""
    fleets: set[int] = set()

    def quiet(place: int) -> bool:
        rules = Rules(slow_ratio=RATIOS[place], mad_floor=LOOSE_FLOOR)
        seen = cell(Trial(nodes, noise, "", rules=rules))
        return seen.alarms <= ALARMS * seen.fleets

    def found(rules: Rules, place: int) -> bool:
        seen = cell(Trial(nodes, noise, "node", left=1 - LOSSES[place], count=1, rules=rules))
        fleets.add(seen.fleets)
        return seen.named >= FOUND * seen.fleets

    def loss(rules: Rules) -> str:
        place = bisect_left(range(len(LOSSES)), True, key=partial(found, rules))
        return f"{LOSSES[place]:.0%}" if place < len(LOSSES) else f"more than {LOSSES[-1]:.0%}"

    place = bisect_left(range(len(RATIOS)), True, key=quiet)
    ratio = RATIOS[place] if place < len(RATIOS) else None
    tuned = loss(Rules(slow_ratio=ratio, mad_floor=LOOSE_FLOOR)) if ratio else "–"
    default = loss(DEFAULT)
    return (nodes, noise, "–".join(map(str, sorted({min(fleets), max(fleets)}))), ratio or "–", tuned, default)


Pairs = dict[tuple[str, str], float]


def recorded(path: Path, left: float) -> Iterator[str]:
    """Each set of pairs as it is, with each node slow in turn, and with each pair slow in turn."""
    sets: defaultdict[str, Pairs] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            name = f"{row['cluster']}, {row['collective']}, {row['gpus_per_node']} GPUs per node"
            sets[name][row["node_a"], row["node_b"]] = float(row["last_busbw_GBps"])
    rows = [(name, *replay(pairs, left)) for name, pairs in sets.items()]
    yield from (f"## Recorded pairs ({path.name}), slow ones leaving {left:.0%}", "")
    yield from table(("set", "pairs", "blamed as it is", "slow node named", "slow pair named", "others blamed"), rows)


def replay(pairs: Pairs, left: float) -> tuple[object, ...]:
    """The cells of one set."""
    nodes = sorted({node for pair in pairs for node in pair})
    as_is = [str(suspect.cause) for suspect in ask(pairs, nodes, frozenset(), left).confirmed]
    tried = [(f"{node}", frozenset({node})) for node in nodes]
    tried += [(" with ".join(pair), frozenset(pair)) for pair in combinations(nodes, 2)]
    named, others = Counter[int](), 0
    for name, slow in tried:
        causes = {str(suspect.cause) for suspect in ask(pairs, nodes, slow, left).confirmed}
        named[len(slow)] += name in causes
        others += len(causes - {name})
    return (
        len(pairs),
        ", ".join(as_is) or "nobody",
        f"{named[1]} of {len(nodes)}",
        f"{named[2]} of {len(tried) - len(nodes)}",
        others,
    )


def ask(pairs: Pairs, nodes: Sequence[str], slow: frozenset[str], left: float) -> Localisation:
    """Search the recording, in which all pairs of one node, or the one pair of two, are slow."""

    def rate(one: str, other: str) -> float:
        usual = pairs[one, other] if (one, other) in pairs else pairs[other, one]
        return usual * (left if slow and slow <= {one, other} else 1)

    def measure(meetings: PairRound, step: int) -> Iterator[Result]:
        for one, other in meetings:
            for src, dst in ((one, other), (other, one)):
                yield Sample(src, dst, rate(one.node, other.node), step=step)

    return localise_slowness(dict.fromkeys(nodes, (0,)), measure)


HEALTHY = ("nodes", "noise", "fleets", "somebody blamed", "share", "95 % interval", "left unsure", "rounds, mean")
PLANTED = (
    "nodes", "noise", "fault", "fleets", "planted", "recall", "placed", "precision", "rounds", "retest rounds",
    "CPU s per fleet",
)  # fmt: skip
SMALLEST = (
    "nodes", "noise", "fleets each", f"loosest ratio with alarms ≤ {ALARMS:.0%}", "loss found with it",
    "with the default rules",
)  # fmt: skip


def report(asked: argparse.Namespace, cell: Cell, recorded_pairs: Sequence[str]) -> Iterator[str]:
    """All tables, and what was run for them."""
    sizes = ", ".join(map(str, asked.nodes)) or "none"
    yield from ("# Localising culprits", "")
    yield f"Fleets of {sizes} nodes with 2 rails, noise {', '.join(asked.noise)}, {asked.seeds} seeds each (0 …)."
    yield f"Made with `scripts/localisation.py {' '.join(asked.made_with)}`. A row says how many fleets, that is seeds"
    yield from ("from 0 on, it stands on; a row that is missing was not run.", "", "## Healthy fleets", "")
    cases = [(size, noise) for size in asked.nodes for noise in asked.noise]
    yield from table(HEALTHY, there(partial(healthy, cell, Trial(*case, "")) for case in cases))
    yield from (f"## Planted faults, one to three of a kind, each leaving {asked.left:.0%}", "")
    trials = [Trial(*case, kind, left=asked.left) for case in cases for kind in asked.kind]
    yield from table(PLANTED, there(partial(planted, cell, trial) for trial in trials))
    if not asked.no_smallest:
        yield from (f"## The smallest loss of one node named in {FOUND:.0%} of fleets", "")
        yield from table(SMALLEST, there(partial(smallest, cell, *case) for case in cases))
    yield from recorded_pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for, and write the tables."""
    asked = parse(sys.argv[1:] if argv is None else argv)
    book = Book(asked.cells)
    book.load()
    pairs = ["Recorded pairs: not run yet."]

    def write() -> None:
        if asked.out:
            asked.out.write_text("\n".join(report(asked, book.look, pairs)) + "\n", encoding="utf-8")

    with ProcessPoolExecutor(asked.jobs) as pool:
        run = Runner(pool, asked.jobs, asked.seeds, asked.cell_s, book, write)
        for _ in report(asked, run, ()):
            pass  # what it reads is run, and printed below from the book
    if asked.recorded and asked.recorded.exists():
        pairs[:] = recorded(asked.recorded, asked.left)
    else:
        pairs[:] = [f"Recorded pairs: not run ({'no such file' if asked.recorded else 'none given'})."]
    write()
    if not asked.out:
        print("\n".join(report(asked, book.look, pairs)))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options, or exit code 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--nodes", type=int, nargs="*", default=list(PER_LEAF), metavar="N", help="fleets (default: all)")
    add("--noise", nargs="*", choices=[*NOISES, ECMP], default=[*NOISES, ECMP])
    add("--kind", nargs="*", choices=KINDS, default=list(KINDS))
    add("--seeds", type=int, default=200, metavar="N", help="fleets of each sort (default: %(default)s)")
    add("--cell-s", type=float, default=float("inf"), metavar="S", help="end a cell after so many seconds")
    add("--left", type=float, default=0.6, help="what a fault leaves (default: %(default)s)")
    add("--no-smallest", action="store_true", help="skip the search for the smallest loss")
    add("--recorded", type=Path, metavar="CSV", help="pairs of a real cluster; skipped where absent")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: %(default)s)")
    add("--cells", type=Path, metavar="PATH", help="JSON lines: keep cells there, and do not run again those there are")
    add("--out", type=Path, metavar="PATH", help="where the markdown goes (default: stdout)")
    asked = parser.parse_args(argv)
    if asked.seeds < 1 or not 0 < asked.left < 1 or any(size < 4 for size in asked.nodes):
        parser.error("at least one seed, at least 4 nodes, and a fault leaves something between 0 and 1")
    places = {"--recorded", "--cells", "--out"}
    asked.made_with = [word for before, word in zip(["", *argv], argv, strict=False) if not {before, word} & places]
    return asked


if __name__ == "__main__":
    sys.exit(main())
